//! Things that happen, as `limiter monitor` tells them.

use std::fmt;
use std::time::SystemTime;

use clap::ValueEnum;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use model::target::short_prefix;

/// Something that happened. As JSON, one object: `time`, `severity`, `event`, and what belongs to that
/// event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, RFC 3339.
    #[serde(with = "humantime_text")]
    pub time: SystemTime,
    /// How much it matters.
    // Derived, and stored all the same: readers of JSON filter by it without a table of kinds.
    pub severity: Severity,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

impl Event {
    /// Something that happens now.
    pub fn now(what: What) -> Self {
        Self::at(SystemTime::now(), what)
    }

    /// Something that happened at `time`.
    pub fn at(time: SystemTime, what: What) -> Self {
        Self { time, severity: what.severity(), what }
    }

    /// Tells the log: a sentence, with the event as fields.
    pub fn log(&self) {
        let (event, what) = (self.what.kind().name(), &self.what);
        let source = what.source().map(|source| short_prefix(&source));
        let source = source.as_deref();
        let by = what.by().map(|by| by.user.as_str());
        match self.severity {
            // A target of its own, so that LIMITER_LOG can switch events off and leave the
            // daemon's own lines.
            Severity::Info => tracing::info!(target: "event", event, source, by, "{what}"),
            Severity::Warning => tracing::warn!(target: "event", event, source, by, "{what}"),
            Severity::Error => tracing::error!(target: "event", event, source, by, "{what}"),
        }
    }
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Info,
    /// Somebody should look.
    Warning,
    /// Something does not work.
    Error,
}

/// Who has changed something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// Name and id: a name may go with its user, and the id alone tells nobody anything.
pub struct By {
    /// The user's id, where there is one.
    pub uid: Option<u32>,
    /// The user's name; the id if it has none.
    pub user: String,
}

impl By {
    /// The user with an id. Asks the system for the name, which may block.
    pub fn user(uid: u32) -> Self {
        let known = nix::unistd::User::from_uid(uid.into()).ok().flatten();
        Self { uid: Some(uid), user: known.map_or_else(|| uid.to_string(), |user| user.name) }
    }

    /// Somebody on another host of the cluster.
    // The other host's user is not known here: ids of two machines need not mean the same person.
    pub fn cluster(host: &str) -> Self {
        Self { uid: None, user: format!("cluster: {host}") }
    }

    /// Whoever has the token of the dashboard.
    pub fn dashboard() -> Self {
        Self { uid: None, user: "dashboard".into() }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A packet of a source was dropped for the first time since the source got its bucket.
    // Once a bucket: an event for each dropped packet would be a second flood.
    Limited {
        /// The source.
        source: IpNet,
        /// The limit, as an operator writes it; `None` if it has changed since.
        limit: Option<String>,
    },
    /// No bucket was free for a source.
    SetFull {
        /// The source.
        source: IpNet,
    },
    /// A packet of a group was dropped for the first time since the group got its bucket.
    GroupLimited {
        /// The prefix.
        group: IpNet,
        /// As of [`What::Limited`].
        limit: Option<String>,
    },
    /// A packet to a destination was dropped for the first time since the destination got its bucket.
    DestinationLimited {
        /// The destination.
        destination: IpNet,
        /// As of [`What::Limited`].
        limit: Option<String>,
    },
    /// A source was put on the deny list because it was far over its limit.
    Ban {
        /// The source.
        source: IpNet,
        /// What it has done.
        reason: String,
        /// When the ban ends, RFC 3339.
        until: Option<String>,
    },
    /// A ban has ended.
    Unban {
        /// The source.
        source: IpNet,
        /// Why: `expired` or `removed`.
        why: String,
    },
    /// The bucket table fills up, or has room again.
    TablePressure {
        /// Whether it is nearly full.
        high: bool,
        /// Share of the buckets that are in use and cannot be given to others.
        busy: f64,
    },
    /// Far more sources send than usual.
    DistinctJump {
        /// Distinct sources in a window.
        sources: f64,
        /// The median of the last hour.
        median: f64,
    },
    /// Many sources of one neighbourhood are over their limit.
    Spread {
        /// The neighbourhood.
        prefix: IpNet,
        /// Sources of it that were limited within a minute.
        sources: u64,
    },
    /// The program was attached to an interface.
    Attached {
        /// The interface.
        interface: String,
        /// `native` or `generic`.
        mode: String,
        /// By whom; the daemon itself if left out.
        by: Option<By>,
    },
    /// The program was detached from an interface.
    Detached {
        /// The interface.
        interface: String,
        /// By whom; the daemon itself if left out.
        by: Option<By>,
    },
    /// Limits, lists, shadow limits or the configuration have changed.
    Policy {
        /// What, in words.
        what: String,
        /// By whom; the daemon itself if left out.
        by: Option<By>,
        /// For how long, s; until it is changed again if left out.
        ttl_seconds: Option<u64>,
        /// After how long it is reverted unless it is confirmed, s.
        confirm_seconds: Option<u64>,
    },
    /// A change that was not confirmed was reverted.
    Reverted {
        /// What, in words.
        what: String,
        /// By whom; because its time was over if left out.
        by: Option<By>,
    },
    /// The data plane had more events than it could tell.
    // Told, though they are gone: whoever reads must know that some are missing (P5).
    EventsLost {
        /// How many, since they were told last.
        count: u64,
    },
    /// More of a kind happened in a second than is told one by one.
    Suppressed {
        /// The kind.
        kind: Kind,
        /// How many were not told.
        count: u64,
    },
    /// Whoever listens was too slow and has missed something.
    // Told to the listener itself, whose stream would otherwise look complete (P5).
    Missed {
        /// How many events.
        count: u64,
    },
    /// The daemon has started.
    Started {
        /// Its version.
        version: String,
    },
    /// The daemon ends; the limits may stay in force.
    Stopping,
    /// The central store leases nothing of strict limits any more, or does again.
    Leases {
        /// Why it does not, if it does not.
        problem: Option<String>,
    },
    /// A source was far enough over its limit for a ban, but nothing shows that its address is not forged.
    BanWithheld {
        /// The source.
        source: IpNet,
        /// What it has done, and what is known of it.
        reason: String,
    },
}

/// The kinds of events.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
// Apart from [`What`], which has fields: filters, throttle and completions need the bare names.
pub enum Kind {
    /// A source was limited for the first time
    Limited,
    /// No bucket was free for a source
    SetFull,
    /// A source was banned
    Ban,
    /// A ban has ended
    Unban,
    /// The bucket table fills up, or has room again
    TablePressure,
    /// Far more sources send than usual
    DistinctJump,
    /// Many sources of one neighbourhood are limited
    Spread,
    /// Attached to an interface
    Attached,
    /// Detached from an interface
    Detached,
    /// Limits, lists, shadow limits or the configuration were changed
    Policy,
    /// A change was not confirmed
    Reverted,
    /// The data plane had more events than it could tell
    EventsLost,
    /// More of a kind happened than is told one by one
    Suppressed,
    /// The listener was too slow
    Missed,
    /// The daemon has started
    Started,
    /// The daemon ends
    Stopping,
    /// A source was not banned, as its address may be forged
    BanWithheld,
    /// The sources of a prefix without a bucket were limited for the first time
    GroupLimited,
    /// A destination got more than its limit for the first time
    DestinationLimited,
    /// The central store leases nothing of strict limits, or does again
    Leases,
}

impl Kind {
    /// The name, as JSON and options have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::SetFull => "set_full",
            Self::Ban => "ban",
            Self::Unban => "unban",
            Self::TablePressure => "table_pressure",
            Self::DistinctJump => "distinct_jump",
            Self::Spread => "spread",
            Self::Attached => "attached",
            Self::Detached => "detached",
            Self::Policy => "policy",
            Self::Reverted => "reverted",
            Self::EventsLost => "events_lost",
            Self::Suppressed => "suppressed",
            Self::Missed => "missed",
            Self::Started => "started",
            Self::Stopping => "stopping",
            Self::BanWithheld => "ban_withheld",
            Self::GroupLimited => "group_limited",
            Self::DestinationLimited => "destination_limited",
            Self::Leases => "leases",
        }
    }

    /// Whether it is a change that somebody has made, rather than something that was seen.
    // Changes outlive the daemon in a file; what was only seen would fill that with the next
    // flood.
    pub const fn is_change(self) -> bool {
        matches!(self, Self::Attached | Self::Detached | Self::Policy | Self::Reverted)
    }
}

impl What {
    /// The kind.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Limited { .. } => Kind::Limited,
            Self::SetFull { .. } => Kind::SetFull,
            Self::GroupLimited { .. } => Kind::GroupLimited,
            Self::DestinationLimited { .. } => Kind::DestinationLimited,
            Self::Ban { .. } => Kind::Ban,
            Self::Unban { .. } => Kind::Unban,
            Self::TablePressure { .. } => Kind::TablePressure,
            Self::DistinctJump { .. } => Kind::DistinctJump,
            Self::Spread { .. } => Kind::Spread,
            Self::Attached { .. } => Kind::Attached,
            Self::Detached { .. } => Kind::Detached,
            Self::Policy { .. } => Kind::Policy,
            Self::Reverted { .. } => Kind::Reverted,
            Self::EventsLost { .. } => Kind::EventsLost,
            Self::Suppressed { .. } => Kind::Suppressed,
            Self::Missed { .. } => Kind::Missed,
            Self::Started { .. } => Kind::Started,
            Self::Stopping => Kind::Stopping,
            Self::BanWithheld { .. } => Kind::BanWithheld,
            Self::Leases { .. } => Kind::Leases,
        }
    }

    /// How much it matters.
    pub const fn severity(&self) -> Severity {
        match self {
            Self::SetFull { .. }
            | Self::GroupLimited { .. }
            | Self::DestinationLimited { .. }
            | Self::TablePressure { high: true, .. }
            | Self::DistinctJump { .. }
            | Self::Spread { .. }
            | Self::Reverted { .. }
            | Self::Leases { problem: Some(_) }
            | Self::EventsLost { .. }
            | Self::Missed { .. } => Severity::Warning,
            // Also bans: the limiter has done what it was told to.
            _ => Severity::Info,
        }
    }

    /// The source or the neighbourhood that it is about.
    pub const fn source(&self) -> Option<IpNet> {
        match self {
            Self::Limited { source, .. }
            | Self::SetFull { source }
            | Self::GroupLimited { group: source, .. }
            | Self::Ban { source, .. }
            | Self::Unban { source, .. }
            | Self::BanWithheld { source, .. }
            | Self::Spread { prefix: source, .. } => Some(*source),
            _ => None,
        }
    }

    /// Who has done it, if somebody has.
    pub const fn by(&self) -> Option<&By> {
        match self {
            Self::Attached { by, .. }
            | Self::Detached { by, .. }
            | Self::Policy { by, .. }
            | Self::Reverted { by, .. } => by.as_ref(),
            _ => None,
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited { source, limit: Some(limit) } => {
                write!(f, "{} exceeded its limit {limit}", short_prefix(source))
            }
            Self::Limited { source, limit: None } => {
                write!(f, "{} exceeded its former limit", short_prefix(source))
            }
            Self::SetFull { source } => {
                let source = short_prefix(source);
                write!(f, "no bucket is free for {source}: its set of the bucket table is full")
            }
            Self::GroupLimited { group, limit } => {
                let limit = limit.as_ref().map(|limit| format!(" of {limit}")).unwrap_or_default();
                write!(
                    f,
                    "{group} exceeded the group limit{limit}: packets of its sources without a bucket are dropped"
                )
            }
            Self::DestinationLimited { destination, limit } => {
                let limit = limit.as_ref().map(|limit| format!(" {limit}")).unwrap_or_default();
                let destination = short_prefix(destination);
                write!(f, "more is sent to {destination} than its limit{limit}")
            }
            Self::Ban { source, reason, .. } => {
                write!(f, "banned {}: {reason}", short_prefix(source))
            }
            Self::Unban { source, why } => {
                write!(f, "{} is not banned any more: {why}", short_prefix(source))
            }
            Self::TablePressure { high, busy } => {
                let now = if *high { "nearly full" } else { "no longer nearly full" };
                write!(f, "the bucket table is {now}: {:.0} % of it in use", busy * 100.0)
            }
            Self::DistinctJump { sources, median } => {
                // A quiet host has a median of zero.
                let times = sources / median.max(1.0);
                write!(
                    f,
                    "{sources:.0} distinct sources, {times:.0}× the hour's median: likely spoofed"
                )
            }
            Self::Spread { prefix, sources } => {
                write!(f, "{sources} sources of {prefix} were limited within a minute")
            }
            Self::Attached { interface, mode, .. } => {
                write!(f, "attached to {interface} in {mode} mode")
            }
            Self::Detached { interface, .. } => write!(f, "detached from {interface}"),
            Self::Policy { what, .. } => f.write_str(what),
            Self::Leases { problem: Some(problem) } => {
                write!(f, "no leases of strict limits: {problem}; on_error says what is admitted")
            }
            Self::Leases { problem: None } => f.write_str("the store leases strict limits again"),
            Self::Reverted { what, .. } => write!(f, "{what} was not confirmed: reverted"),
            Self::EventsLost { count } => write!(f, "{count} events of the data plane were lost"),
            Self::Suppressed { kind, count } => {
                write!(f, "{count} more events of the kind {}", kind.name())
            }
            Self::Missed { count } => write!(f, "{count} events were missed: read faster"),
            Self::Started { version } => write!(f, "limiter {version} has started"),
            Self::Stopping => f.write_str("the daemon ends"),
            Self::BanWithheld { source, reason } => {
                write!(f, "not banned {}: {reason}", short_prefix(source))
            }
        }
    }
}

/// A moment as text.
// RFC 3339, as all answers have it: serde's own form is a pair of numbers.
mod humantime_text {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_rfc3339_millis(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_event_is_one_object() {
        let source = "198.51.100.7/32".parse().unwrap();
        let what = What::Limited { source, limit: Some("100pps".into()) };
        let event = Event::at(SystemTime::UNIX_EPOCH + Duration::from_millis(1500), what);
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(
            text,
            r#"{"time":"1970-01-01T00:00:01.500Z","severity":"info","event":"limited","source":"198.51.100.7/32","limit":"100pps"}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
        assert_eq!(event.what.to_string(), "198.51.100.7 exceeded its limit 100pps");
    }

    #[test]
    fn kinds_have_the_names_that_events_have() {
        let by = Some(By::user(0));
        let events = [
            What::Policy { what: "x".into(), by, ttl_seconds: None, confirm_seconds: None },
            What::SetFull { source: "192.0.2.1/32".parse().unwrap() },
            What::DistinctJump { sources: 9.0, median: 0.0 },
            What::Suppressed { kind: Kind::SetFull, count: 2 },
            What::Missed { count: 1 },
            What::Stopping,
        ];
        for what in events {
            let (kind, json) = (what.kind(), serde_json::to_value(&what).unwrap());
            assert_eq!(json["event"], kind.name());
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
            assert_eq!(Kind::from_str(kind.name(), false), Ok(kind));
        }
        let kinds = Kind::value_variants().iter().enumerate();
        assert!(kinds.into_iter().all(|(i, kind)| *kind as usize == i), "they index throttles");
        assert_eq!(By::user(0).user, "root");
    }
}
