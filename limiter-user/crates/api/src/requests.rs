//! Requests, as client and daemon share them.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Failure;
use model::ban::BanText;
use model::interface::Mode;
use model::traffic::{GroupBy, Sort};
use model::{Limit, LimitInput, Partition, Reach};

/// How a change is to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeOptions {
    /// Only tell what it would change.
    pub dry_run: bool,
    /// Revert it after this time unless it is confirmed.
    pub confirm: Option<Duration>,
    /// Where the operator is logged in from, whom a change could shut out.
    pub session: Option<IpAddr>,
    /// Make it though it hits very many sources, or removes all entries of a list.
    pub yes: bool,
}

impl ChangeOptions {
    /// What to do about a change that may shut the operator out.
    pub const fn advice(&self) -> &'static str {
        match self.confirm {
            Some(_) => "confirm it only if you still get through",
            None => "with --confirm 60s it would be reverted if you no longer get through",
        }
    }
}

/// `PUT /v1/limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetRequest {
    /// `default`, an address or a prefix; a class and `as-one` may follow: `default udp:53 as-one`.
    #[serde(default = "default_target")]
    pub target: String,
    /// A rate, such as `1000pps`, or a list of one of packets and one of bytes.
    pub rate: OneOrMany,
    /// A burst, such as `2000` or `64kbyte`, or a list with one for each rate; 120 % of a second's rate
    /// if left out.
    #[serde(default, skip_serializing_if = "OneOrMany::is_empty")]
    pub burst: OneOrMany,
    /// Whether what is over the limit is dropped, rather than only counted.
    #[serde(default = "enforced")]
    pub enforce: bool,
    /// What becomes of a source that goes on to be far over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban: Option<BanRequest>,
    /// Where it holds: `local`, which is meant if left out, or `cluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Reach>,
    /// Of a limit for the cluster, what becomes of the shares of hosts that cannot be reached:
    /// `conservative`, which is meant if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
}

/// A ban that is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BanRequest {
    /// How long a source must be over the limit, such as `5s`, which it is if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How many times the limit it must offer; 10 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<String>,
    /// For how long it is denied, such as `10m`.
    #[serde(rename = "for")]
    pub lasts: Option<String>,
}

impl BanRequest {
    /// What it says.
    fn text(&self) -> BanText<'_> {
        let Self { after, factor, lasts } = self;
        let [after, factor, lasts] = [after, factor, lasts].map(Option::as_deref);
        BanText { after, factor, lasts }
    }
}

/// A text, or several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OneOrMany(pub Vec<String>);

impl OneOrMany {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn as_strs(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

impl Serialize for OneOrMany {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => serializer.serialize_str(one),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or a list of strings")
            }

            fn visit_unit<E: de::Error>(self) -> Result<OneOrMany, E> {
                Ok(OneOrMany::default())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![text.into()]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<OneOrMany, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(list)).map(OneOrMany)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

const fn enforced() -> bool {
    true
}

fn default_target() -> String {
    "default".into()
}

impl SetRequest {
    /// The limit that is asked for.
    ///
    /// # Errors
    /// If anything cannot be read, or does not go together.
    pub fn limit(&self) -> Result<Limit, Failure> {
        let input = LimitInput {
            rates: self.rate.as_strs(),
            bursts: self.burst.as_strs(),
            enforce: self.enforce,
            ban: self.ban.as_ref().map(BanRequest::text),
            scope: self.scope,
            partition: self.partition,
        };
        input.limit(self.target.parse()?).map_err(|(_, error)| error.into())
    }
}

/// `PUT /v1/trials`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialRequest {
    /// As [`SetRequest::target`].
    #[serde(default = "default_target")]
    pub target: String,
    /// A rate, such as `500pps`.
    pub rate: String,
    /// A burst, such as `1000` or `64kbyte`; 120 % of a second's rate if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<String>,
}

impl TrialRequest {
    /// The limit that is to be tried.
    ///
    /// # Errors
    /// If anything cannot be read, or does not go together.
    pub fn limit(&self) -> Result<Limit, Failure> {
        let input = LimitInput {
            rates: vec![&self.rate],
            bursts: self.burst.iter().map(String::as_str).collect(),
            enforce: true,
            ban: None,
            scope: None,
            partition: None,
        };
        input.limit(self.target.parse()?).map_err(|(_, error)| error.into())
    }
}

/// `GET /v1/trials`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialsQuery {
    /// How many sources to name for each trial.
    pub n: usize,
}

/// `DELETE /v1/trials`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialQuery {
    /// As [`SetRequest::target`].
    #[serde(default = "default_target")]
    pub target: String,
}

/// How a change is to be made: the query of `PUT /v1/limits`, `POST /v1/limits/import`,
/// `POST /v1/lists/{list}/remove` and `POST /v1/reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeQuery {
    /// Only tell what would change.
    pub dry_run: bool,
    /// Revert the change after so many milliseconds unless it is confirmed.
    pub confirm_ms: Option<u64>,
    /// Where the operator is logged in from.
    pub session: Option<IpAddr>,
}

impl ChangeQuery {
    /// What is asked for.
    pub fn how(&self) -> ChangeOptions {
        let confirm = self.confirm_ms.map(Duration::from_millis);
        ChangeOptions { dry_run: self.dry_run, confirm, session: self.session, yes: false }
    }
}

/// `DELETE /v1/limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetQuery {
    /// As [`SetRequest::target`].
    #[serde(default = "default_target")]
    pub target: String,
    /// As [`ChangeQuery::dry_run`].
    #[serde(default)]
    pub dry_run: bool,
    /// As [`ChangeQuery::confirm_ms`].
    #[serde(default)]
    pub confirm_ms: Option<u64>,
    /// As [`ChangeQuery::session`].
    #[serde(default)]
    pub session: Option<IpAddr>,
}

impl TargetQuery {
    /// What is asked for.
    pub fn how(&self) -> ChangeOptions {
        let &Self { dry_run, confirm_ms, session, .. } = self;
        ChangeQuery { dry_run, confirm_ms, session }.how()
    }
}

/// `POST /v1/confirm`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfirmQuery {
    /// Revert the change instead.
    pub abort: bool,
}

/// `POST /v1/config/diff`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigText {
    /// The file's name, for messages.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
}

/// `POST /v1/lists/{list}`, beside the targets in its body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListQuery {
    /// For how long, seconds; for ever if left out.
    pub ttl_seconds: Option<u64>,
    /// Why.
    pub reason: Option<String>,
    /// Where it holds: `local`, which is meant if left out, or `cluster`, on the deny list.
    pub scope: Option<Reach>,
    /// Whether IPv4 prefixes shorter than /8 and IPv6 prefixes shorter than /16 are meant; without it they are
    /// refused.
    pub yes: bool,
    /// As [`ChangeQuery::dry_run`].
    pub dry_run: bool,
    /// As [`ChangeQuery::confirm_ms`].
    pub confirm_ms: Option<u64>,
    /// As [`ChangeQuery::session`].
    pub session: Option<IpAddr>,
}

impl ListQuery {
    /// For how long.
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl_seconds.map(Duration::from_secs)
    }

    /// What is asked for.
    pub fn how(&self) -> ChangeOptions {
        let &Self { yes, dry_run, confirm_ms, session, .. } = self;
        ChangeOptions { yes, ..ChangeQuery { dry_run, confirm_ms, session }.how() }
    }
}

/// `POST /v1/lists/{list}/clear`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClearQuery {
    /// Whether all entries are meant; without it the request is refused, unless there are none.
    pub yes: bool,
    /// As [`ChangeQuery::dry_run`].
    pub dry_run: bool,
    /// As [`ChangeQuery::confirm_ms`].
    pub confirm_ms: Option<u64>,
    /// As [`ChangeQuery::session`].
    pub session: Option<IpAddr>,
}

impl ClearQuery {
    /// What is asked for.
    pub fn how(&self) -> ChangeOptions {
        let &Self { yes, dry_run, confirm_ms, session } = self;
        ChangeOptions { yes, ..ChangeQuery { dry_run, confirm_ms, session }.how() }
    }
}

/// `GET /v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventsQuery {
    /// Kinds of events, with commas between them; all if left out.
    pub kinds: Option<String>,
}

/// `GET /v1/history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryQuery {
    /// How long ago it begins, such as `1h`; a week at the most.
    pub since: String,
    /// How long ago it ends, such as `10m`.
    pub until: String,
    /// The length of a step, such as `10s`; some hundred steps if left out.
    pub step: Option<String>,
}

impl Default for HistoryQuery {
    fn default() -> Self {
        Self { since: "1h".into(), until: "0s".into(), step: None }
    }
}

/// `GET /v1/top`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TopQuery {
    /// How many sources, 1 to [`TopQuery::MAX`].
    pub n: usize,
    /// By what.
    pub sort: Sort,
    /// Whether the answer may be that of the look of this second, which all share who ask again and
    /// again; else there is a look at all sources for this request.
    pub live: bool,
}

impl TopQuery {
    /// The most sources that one request can ask for.
    pub const MAX: usize = 10_000;
}

impl Default for TopQuery {
    fn default() -> Self {
        Self { n: 20, sort: Sort::default(), live: false }
    }
}

/// `GET /v1/groups`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupsQuery {
    /// What is summed up: [`GroupBy::Prefix`] or [`GroupBy::Class`].
    pub by: GroupBy,
    /// How many groups, 1 to [`TopQuery::MAX`].
    pub n: usize,
    /// By what.
    pub sort: Sort,
}

impl Default for GroupsQuery {
    fn default() -> Self {
        Self { by: GroupBy::Prefix, n: 20, sort: Sort::default() }
    }
}

/// `GET /v1/ports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PortsQuery {
    /// How many ports, 1 to [`TopQuery::MAX`].
    pub n: usize,
    /// For how long packets are looked at, 100 to 60,000 ms.
    pub over_ms: u64,
}

impl Default for PortsQuery {
    fn default() -> Self {
        Self { n: 20, over_ms: 2000 }
    }
}

/// `POST /v1/interfaces`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachRequest {
    /// The interface's name.
    pub name: String,
    /// How to attach.
    #[serde(default = "native")]
    pub mode: Mode,
    /// Whether to take the place of another XDP program.
    #[serde(default)]
    pub replace: bool,
}

const fn native() -> Mode {
    Mode::Native
}

/// Query of leaving the cluster.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LeaveQuery {
    /// How long rights may take to be handed over, s.
    pub seconds: u64,
}

impl LeaveQuery {
    /// The longest that it may take, s.
    pub const MAX: u64 = 600;
}
