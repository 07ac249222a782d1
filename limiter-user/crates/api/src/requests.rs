//! Requests, as client and daemon share them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Failure;
use model::input::{OneOrMany, default_target};
use model::interface::Mode;
use model::traffic::{GroupBy, Sort};
use model::{Limit, LimitInput, Reach};

/// How a change is to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeOptions {
    /// Only tell what it would change.
    pub dry_run: bool,
    /// Revert it after this time unless it is confirmed.
    pub confirm: Option<Duration>,
    // The client says it: a Unix socket tells the daemon who asks, but not from where.
    /// Where the operator is logged in from, whom a change could shut out.
    pub session: Option<IpAddr>,
    // `deny add 0.0.0.0/0` once shut the IPv4 Internet out with "1 entry changed".
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

/// `PUT /v1/shadows`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// Requests refuse unknown fields: a misspelled `dry_run` or `confirm_ms` must not become a change
// at once. Reports do not, so that a client reads what a newer daemon tells beside what it knows.
#[serde(deny_unknown_fields)]
pub struct ShadowRequest {
    /// As [`LimitInput::target`].
    #[serde(default = "default_target")]
    pub target: String,
    /// A rate, such as `500pps`.
    pub rate: String,
    /// A burst, such as `1000` or `64kbyte`; 120 % of a second's rate if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<String>,
    /// As [`LimitInput::algorithm`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
}

impl ShadowRequest {
    /// The limit.
    ///
    /// # Errors
    /// If anything cannot be read, or does not go together.
    pub fn limit(&self) -> Result<Limit, Failure> {
        let input = LimitInput {
            target: self.target.clone(),
            // Through the same reader as `limit set`, so that a limit tried out is the one that is
            // then set.
            rate: OneOrMany(vec![self.rate.clone()]),
            burst: OneOrMany(self.burst.iter().cloned().collect()),
            algorithm: self.algorithm.clone(),
            // All else that can be said of a limit has no meaning for one that only counts.
            ..LimitInput::default()
        };
        Ok(input.limit()?)
    }
}

/// `GET /v1/shadows`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowsQuery {
    /// How many sources to name for each.
    pub n: usize,
}

/// `DELETE /v1/shadows`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowQuery {
    /// As [`LimitInput::target`].
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
        // Wide prefixes are a matter of lists; a limit for everybody is the usual one.
        ChangeOptions { dry_run: self.dry_run, confirm, session: self.session, yes: false }
    }
}

/// `DELETE /v1/limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetQuery {
    /// As [`LimitInput::target`].
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
    /// The operator's words, 256 bytes at most.
    pub reason: Option<String>,
    /// Where it holds: `local`, which is meant if left out, or `cluster`, on the deny list.
    pub scope: Option<Reach>,
    /// Whether IPv4 prefixes shorter than /8 and IPv6 prefixes shorter than /16 are meant; without it they are
    /// refused.
    pub yes: bool,
    /// Whether a program asks for denials, and no operator: each address stands for its source. Who is allowed or
    /// manages the host is refused, and entries that last long enough stay as they are.
    pub automatic: bool,
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

/// `GET /v1/overrides`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OverridesQuery {
    /// Those of this domain; all if left out.
    pub domain: Option<String>,
}

/// `POST /v1/overrides`, beside the lines in its body: each a [`model::overrides::Line`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OverrideQuery {
    /// As [`ListQuery::ttl_seconds`].
    pub ttl_seconds: Option<u64>,
    /// Where they hold: `local`, which is meant if left out, or `cluster`.
    pub scope: Option<Reach>,
    /// As [`ChangeQuery::dry_run`].
    pub dry_run: bool,
    /// As [`ChangeQuery::confirm_ms`].
    pub confirm_ms: Option<u64>,
    /// As [`ChangeQuery::session`].
    pub session: Option<IpAddr>,
}

impl OverrideQuery {
    /// For how long.
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl_seconds.map(Duration::from_secs)
    }

    /// What is asked for.
    pub fn how(&self) -> ChangeOptions {
        let &Self { dry_run, confirm_ms, session, .. } = self;
        ChangeQuery { dry_run, confirm_ms, session }.how()
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
        // As far back as there is a slot for each second.
        Self { since: "1h".into(), until: "0s".into(), step: None }
    }
}

/// `GET /v1/top`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TopQuery {
    /// [`GroupBy::Source`] or [`GroupBy::Destination`].
    pub by: GroupBy,
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
        Self { by: GroupBy::Source, n: 20, sort: Sort::default(), live: false }
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
        // Two seconds: a port with a hundredth of all packets is then told within a tenth of that.
        Self { n: 20, over_ms: 2000 }
    }
}

/// `POST /v1/sketch/cells`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SketchCellsRequest {
    /// The address, cut to the prefix that makes a source.
    pub address: IpAddr,
    /// Cells in a row of the sketch, a power of two.
    pub width: u32,
    /// Its rows.
    pub depth: u32,
}

/// `POST /v1/interfaces`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachRequest {
    /// The interface's name, 15 bytes at most.
    pub name: String,
    /// How to attach.
    #[serde(default = "native")]
    pub mode: Mode,
    /// Whether to take the place of another XDP program.
    #[serde(default)]
    // Never by default: the other program may be somebody's firewall.
    pub replace: bool,
}

const fn native() -> Mode {
    Mode::Native
}

/// Forgetting a host that is gone for good.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetHost {
    /// The host's name.
    pub name: String,
    /// Whether its machine is off: then its home lease is not waited for.
    #[serde(default)]
    pub now: bool,
    /// Only tell what would come of it.
    #[serde(default)]
    pub dry_run: bool,
}

/// Query of leaving the cluster.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveQuery {
    /// How long shares may take to be handed over, s.
    pub seconds: u64,
}

impl LeaveQuery {
    /// The longest that it may take, s.
    pub const MAX: u64 = 600;
}
