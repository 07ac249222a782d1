//! Requests, as client and daemon share them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::daemon::How;
use crate::dataplane::Mode;
use crate::error::Failure;
use crate::policy::units::parse_burst;
use crate::policy::{LimitSpec, Rate, Target};
use crate::report::Sort;

/// `PUT /v1/limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetRequest {
    /// `default`, an address or a prefix.
    #[serde(default = "default_target")]
    pub target: String,
    /// A rate, such as `1000pps`.
    pub rate: String,
    /// A burst, such as `2000` or `64kbyte`; 120 % of a second's rate if left out.
    #[serde(default)]
    pub burst: Option<String>,
    /// Whether what is over the limit is dropped, rather than only counted.
    #[serde(default = "enforced")]
    pub enforce: bool,
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
    /// If target, rate or burst cannot be read, or do not go together.
    pub fn limit(&self) -> Result<LimitSpec, Failure> {
        let target: Target = self.target.parse()?;
        let rate: Rate = self.rate.parse()?;
        let burst = match &self.burst {
            Some(burst) => Some(parse_burst(burst, rate.unit())?),
            None => None,
        };
        Ok(LimitSpec::new(target, rate, burst)?.enforced(self.enforce))
    }
}

/// How a change is to be made: the query of `PUT /v1/limits` and `POST /v1/limits/import`.
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
    pub fn how(&self) -> How {
        let confirm = self.confirm_ms.map(Duration::from_millis);
        How { dry_run: self.dry_run, confirm, session: self.session }
    }
}

/// `DELETE /v1/limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetQuery {
    /// `default`, an address or a prefix.
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
    pub fn how(&self) -> How {
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

/// `POST /v1/reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReloadQuery {
    /// Only tell what would change.
    pub dry_run: bool,
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
}

impl ListQuery {
    /// For how long.
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl_seconds.map(Duration::from_secs)
    }
}

/// `GET /v1/top`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TopQuery {
    /// How many sources, 1 to [`TopQuery::MOST`].
    pub n: usize,
    /// By what.
    pub sort: Sort,
}

impl TopQuery {
    /// The most sources that one request can ask for.
    pub const MOST: usize = 10_000;
}

impl Default for TopQuery {
    fn default() -> Self {
        Self { n: 20, sort: Sort::default() }
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
