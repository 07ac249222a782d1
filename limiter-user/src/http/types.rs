//! Requests, as client and daemon share them.

use serde::{Deserialize, Serialize};

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
        Ok(LimitSpec::new(target, rate, burst)?)
    }
}

/// `DELETE /v1/limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetQuery {
    /// `default`, an address or a prefix.
    #[serde(default = "default_target")]
    pub target: String,
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
