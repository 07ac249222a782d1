//! Sources: one of them, and the heaviest.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::Reason;
use limiter_common::evidence::Evidence;
use serde::{Deserialize, Serialize};

use super::limit::amount;
use super::{LimitReport, ListEntry, Print, text};
use model::evidence_text;
use model::lists::Action;
use model::source::{HeldShare, Source, SourceShadow, SourceState};
use model::target::short_prefix;
use model::{Algorithm, Class, Rate, Tier, Unit};

/// Packets and bits per second, over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Average {
    /// Packets per second.
    pub pps: f64,
    /// Bits per second.
    pub bps: f64,
    /// The time, s.
    pub seconds: f64,
}

impl Average {
    /// The average of so many packets and bytes in `time`, which must not be zero.
    pub fn new((packets, bytes): (u64, u64), time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self { pps: packets as f64 / seconds, bps: 8.0 * bytes as f64 / seconds, seconds }
    }
}

/// Why a bucket has dropped packets, if it has.
fn last_drop(source: &Source) -> Option<Reason> {
    // Only drops since the bucket came are known. Lists drop before the bucket, so the caller adds
    // their reason.
    if source.dropped == 0 {
        return None;
    }
    let observed = source.limit.is_some_and(|limit| !limit.enforce);
    Some(match (source.is_group, observed) {
        (true, _) => Reason::OverGroup,
        (false, true) => Reason::WouldDrop,
        (false, false) => Reason::OverLimit,
    })
}

/// A moment as JSON has it, RFC 3339.
pub fn moment(at: Option<SystemTime>) -> Option<String> {
    at.map(text::time)
}

/// `show IP`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceReport {
    /// The source that the address belongs to.
    pub source: IpNet,
    /// The packets that this is about, if not all that no limit of a class applies to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// Whether it has a bucket.
    pub tracked: bool,
    /// `limited` (dropped within the last second), `conforming`, or `light` (without a bucket).
    pub state: SourceState,
    /// The limit in force for it.
    pub limit: Option<LimitReport>,
    /// The management addresses that it belongs to, for which no limit applies.
    pub management: Option<IpNet>,
    /// Where this host takes frames of the cluster from the address that was asked for, to which no limit
    /// applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlimited_frames: Option<SocketAddr>,
    /// Packets or bytes it may send at once.
    pub tokens: Option<f64>,
    /// Bytes it may send at once, where packets and bytes are limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also_tokens: Option<f64>,
    /// Packets in the sketch's window.
    pub estimate: u32,
    /// Packets passed since it got its bucket.
    pub passed: u64,
    /// Packets dropped since then.
    pub dropped: u64,
    /// Bytes offered since then.
    pub bytes: u64,
    /// What was looked up of its packets over a limit that bans on evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<EvidenceReport>,
    /// Why it is not banned at present although it is far enough over its limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban_withheld: Option<String>,
    /// Packets offered per second in the last moments; `null` without a bucket.
    #[serde(default)]
    pub pps: Option<f64>,
    /// Bits per second, likewise.
    #[serde(default)]
    pub bps: Option<f64>,
    /// As in [`super::TopEntry::since_ns`].
    #[serde(skip)]
    pub since_ns: u64,
    /// Why a packet of it was dropped last, as far as that is known of a source: by a list, or by its
    /// limit since it got its bucket. As `stats` calls it.
    #[serde(default)]
    pub last_drop: Option<String>,
    /// When it got its bucket, RFC 3339.
    pub first_seen: Option<String>,
    /// Its last packet, RFC 3339.
    pub last_seen: Option<String>,
    /// What the allow or deny list says of it, which goes before its limit.
    #[serde(default)]
    pub listed: Option<ListEntry>,
    /// What a shadow limit would have dropped of it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "trial")]
    pub shadow: Option<SourceShadowReport>,
    /// What this host may use of the limit, where hosts of a cluster share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareReport>,
    /// The group that it belongs to: its limit goes before that of the source as long as that has no bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Box<Self>>,
    /// The same for each class of its packets that it has a bucket for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<Self>,
    /// The limits that it shares with others, in the order in which a packet has to pass them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedReport>,
}

/// What a shadow limit would have dropped of a source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceShadowReport {
    /// Its rate in the largest exact unit.
    pub rate: Rate,
    /// Its burst as it is written.
    pub burst: String,
    /// How it is kept.
    #[serde(default, skip_serializing_if = "Algorithm::is_bucket")]
    pub algorithm: Algorithm,
    /// Packets that it has judged.
    pub packets: u64,
    /// Of those, how many it would have dropped.
    pub would_drop: u64,
}

/// Samples of a source's packets over its limit, since it got its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceReport {
    /// Samples that were looked up.
    pub sampled: u32,
    /// Of those, how many belong to an established TCP connection of this host.
    pub connected: u32,
}

impl From<Evidence> for EvidenceReport {
    fn from(Evidence { sampled, connected }: Evidence) -> Self {
        Self { sampled, connected }
    }
}

/// What this host may use of a limit that hosts of a cluster share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareReport {
    /// The part of the limit that it may use at present, 0 to 1.
    pub share: f64,
    /// The part that it may use without end, 0 to 1.
    pub floor: f64,
    /// When its share falls to that, if it is more, RFC 3339.
    pub until: Option<String>,
}

impl ShareReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { share, floor, until } = self;
        // The share and what it falls to: a source limited here may have the rest of its limit
        // elsewhere.
        write!(out, "share      {:.2} % of the cluster's limit", share * 100.0)?;
        match until {
            Some(until) => writeln!(out, " until {until}, then {:.2} %", floor * 100.0),
            None => writeln!(out),
        }
    }
}

impl From<HeldShare> for ShareReport {
    fn from(HeldShare { share, floor, until }: HeldShare) -> Self {
        Self { share, floor, until: moment(until) }
    }
}

impl From<SourceShadow> for SourceShadowReport {
    fn from(SourceShadow { tier, packets, would_drop }: SourceShadow) -> Self {
        let Tier { rate, algorithm, .. } = tier;
        Self { rate, burst: tier.burst_text(), algorithm, packets, would_drop }
    }
}

/// A limit that sources share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedReport {
    /// The limit, with the target that they share.
    pub limit: LimitReport,
    /// What this host may use of it, if hosts of a cluster share it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareReport>,
    /// Packets passed since it is set.
    pub passed: u64,
    /// Packets over it since then.
    pub dropped: u64,
    /// Bytes offered since then.
    pub bytes: u64,
}

impl SourceReport {
    /// Tells `source`, the gate of whose limit is `gate`.
    pub fn new(source: &Source, gate: u32) -> Self {
        Self {
            source: source.source,
            class: (!source.class.is_any()).then_some(source.class),
            tracked: source.state != SourceState::Light,
            state: source.state,
            limit: source.limit.as_ref().map(|limit| LimitReport::new(limit, gate)),
            // What follows is no part of the bucket: the core fills it in from its lists, limits
            // and peers.
            management: None,
            unlimited_frames: None,
            tokens: source.tokens,
            also_tokens: source.also_tokens,
            estimate: source.estimate,
            passed: source.passed,
            dropped: source.dropped,
            bytes: source.bytes,
            evidence: source.evidence.map(Into::into),
            // By the core, too.
            ban_withheld: None,
            pps: None,
            bps: None,
            since_ns: source.since_ns,
            last_drop: last_drop(source).map(|reason| reason.name().into()),
            first_seen: moment(source.first_seen),
            last_seen: moment(source.last_seen),
            listed: None,
            shadow: source.shadow.map(Into::into),
            share: source.share.map(Into::into),
            group: None,
            classes: Vec::new(),
            shared: Vec::new(),
        }
    }

    /// Tells rates, from what is known `apart` later. All else stays as it was at the first look: a source
    /// whose tokens come back meanwhile was still limited when somebody asked.
    #[must_use]
    pub fn with_rates(mut self, later: &Self, apart: Duration) -> Self {
        // The later look may have found classes that the first had not, in another order.
        let mut all = std::iter::once(later).chain(&later.classes);
        if let Some(later) = all.find(|it| it.class == self.class).filter(|_| self.tracked) {
            // A new bucket began at nothing.
            let same = self.since_ns == later.since_ns;
            let before = if same { (self.passed + self.dropped, self.bytes) } else { (0, 0) };
            let packets = (later.passed + later.dropped).saturating_sub(before.0);
            let average = Average::new((packets, later.bytes.saturating_sub(before.1)), apart);
            (self.pps, self.bps) = (Some(average.pps), Some(average.bps));
        }
        let classes = self.classes.into_iter();
        self.classes = classes.map(|class| class.with_rates(later, apart)).collect();
        self
    }

    fn print_bucket(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "state      {}", self.state.name())?;
        match &self.limit {
            Some(limit) => {
                writeln!(out, "limit      {} ({})", limit.summary(), limit.target.short())?;
            }
            None => match &self.management {
                Some(net) => writeln!(out, "limit      none, management ({})", short_prefix(net))?,
                None => writeln!(out, "limit      none")?,
            },
        }
        // Without a bucket there are no tokens and no counts of its own; zeros would say that it
        // sent nothing.
        if !self.tracked {
            return writeln!(out, "estimate   {} packets in the window, no bucket", self.estimate);
        }
        if let (Some(tokens), Some(limit)) = (self.tokens, &self.limit) {
            let unit = if limit.unit == Unit::Packets { "packets" } else { "bytes" };
            writeln!(out, "tokens     {tokens:.1} of {} {unit}", limit.burst_amount)?;
            if let (Some(tokens), Some(also)) = (self.also_tokens, &limit.also) {
                writeln!(out, "           {tokens:.1} of {} bytes", also.burst_amount)?;
            }
        }
        self.share.iter().try_for_each(|share| share.print(out))?;
        writeln!(out, "passed     {} packets", self.passed)?;
        writeln!(out, "dropped    {} packets", self.dropped)?;
        if let Some(SourceShadowReport { rate, burst, algorithm, packets, would_drop }) =
            &self.shadow
        {
            let amount = amount(&rate.to_string(), burst, None, *algorithm);
            writeln!(out, "shadow     {amount}: {would_drop} of {packets} would be dropped")?;
        }
        if let Some(reason) = &self.last_drop {
            writeln!(out, "last drop  {reason}")?;
        }
        if let Some(EvidenceReport { sampled, connected }) = self.evidence {
            writeln!(out, "evidence   {}", evidence_text(Evidence { sampled, connected }))?;
        }
        if let Some(reason) = &self.ban_withheld {
            writeln!(out, "not banned {reason}")?;
        }
        writeln!(out, "offered    {} bytes", self.bytes)?;
        if let (Some(pps), Some(bps)) = (self.pps, self.bps) {
            writeln!(out, "sends      {pps:.0} pps, {}bit/s", text::si(bps))?;
        }
        for (name, at) in [("first seen", &self.first_seen), ("last seen ", &self.last_seen)] {
            if let Some(at) = at {
                writeln!(out, "{name} {at}")?;
            }
        }
        Ok(())
    }
}

impl Print for SourceReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "source     {}", short_prefix(&self.source))?;
        if let Some(listen) = self.unlimited_frames {
            writeln!(
                out,
                "peer       frames of the cluster to UDP {listen} are not limited; all else is:"
            )?;
        }
        if let Some(entry) = &self.listed {
            let fate = match entry.action {
                Action::Allow => "allowed, whatever it sends",
                Action::Deny => "denied, whatever it sends",
            };
            writeln!(out, "listed     {fate} ({})", short_prefix(&entry.target))?;
            writeln!(out, "           {}", entry.history())?;
        }
        // A list goes before any limit, so it stands first: what the bucket says below does not
        // count while it is listed.
        self.print_bucket(out)?;
        for class in &self.classes {
            writeln!(out, "\nclass      {}", class.class.unwrap_or_default())?;
            class.print_bucket(out)?;
        }
        if let Some(group) = &self.group {
            writeln!(out, "\ngroup      {} (its sources without a bucket)", group.source)?;
            group.print_bucket(out)?;
        }
        for SharedReport { limit, share, passed, dropped, .. } in &self.shared {
            writeln!(out, "\nshared     {} ({})", limit.summary(), limit.target.short())?;
            share.iter().try_for_each(|share| share.print(out))?;
            writeln!(out, "passed     {passed} packets\ndropped    {dropped} packets")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(since_ns: u64, passed: u64, dropped: u64) -> SourceReport {
        let report = serde_json::json!({
            "source": "192.0.2.1/32", "tracked": since_ns > 0, "state": "limited", "limit": null,
            "management": null, "tokens": null, "estimate": 0, "passed": passed, "dropped": dropped,
            "bytes": 100 * (passed + dropped), "first_seen": null, "last_seen": null,
        });
        SourceReport { since_ns, ..serde_json::from_value(report).unwrap() }
    }

    #[test]
    fn rates_are_of_one_bucket_and_all_else_is_of_the_first_look() {
        let rates = |before: SourceReport, later: SourceReport| {
            let told = before.clone().with_rates(&later, Duration::from_millis(500));
            assert_eq!(SourceReport { pps: None, bps: None, ..told.clone() }, before);
            (told.pps, told.bps)
        };
        let before = report(7, 100, 50);
        assert_eq!(rates(before.clone(), report(7, 110, 90)), (Some(100.0), Some(80_000.0)));
        assert_eq!(rates(before.clone(), report(7, 100, 50)), (Some(0.0), Some(0.0)), "silent");
        assert_eq!(rates(before, report(8, 500, 0)).0, Some(1000.0), "another bucket");
        assert_eq!(rates(report(0, 0, 0), report(8, 500, 0)).0, None, "none when asked");
    }

    #[test]
    fn evidence_is_told() {
        let evidence = Some(EvidenceReport { sampled: 40, connected: 3 });
        let ban_withheld = Some("over 10pps by 12× for 5s".into());
        let report = SourceReport { evidence, ban_withheld, ..report(7, 100, 50) };
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines = "evidence   3 of 40 samples belong to established TCP connections\n\
                     not banned over 10pps by 12× for 5s\n";
        assert!(text.contains(lines), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["evidence"], serde_json::json!({"sampled": 40, "connected": 3}));
    }

    #[test]
    fn each_class_has_its_own_rates() {
        let class = Some("udp:53".parse().unwrap());
        let with = |any, udp| SourceReport {
            classes: vec![SourceReport { class, ..report(9, udp, 0) }],
            ..report(7, any, 0)
        };
        let told = with(10, 20).with_rates(&with(30, 25), Duration::from_secs(1));
        assert_eq!((told.pps, told.classes[0].pps), (Some(20.0), Some(5.0)));
    }
}
