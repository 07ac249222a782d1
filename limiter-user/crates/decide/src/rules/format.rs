//! The file format: that of `envoyproxy/ratelimit`, read as it is, and some keys more.

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::scope::{Kind, OnError};
use model::meter::Choice;

/// One file: a domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub(super) domain: String,
    #[serde(default)]
    pub(super) descriptors: Option<Vec<Descriptor>>,
}

/// An entry of a descriptor, and what may follow it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Descriptor {
    pub(super) key: Option<Spanned<String>>,
    pub(super) value: Option<String>,
    pub(super) rate_limit: Option<RateLimit>,
    #[serde(default)]
    pub(super) descriptors: Option<Vec<Self>>,
    #[serde(default)]
    pub(super) shadow_mode: bool,
    #[serde(default)]
    pub(super) quota_mode: bool,
    #[serde(default)]
    pub(super) share_threshold: bool,
    // Read and checked. A metric for each value of a key would have no bound: `limiter top --keys` tells of them.
    #[serde(default, rename = "detailed_metric")]
    _detailed_metric: bool,
    #[serde(default, rename = "value_to_metric")]
    _value_to_metric: bool,
    pub(super) metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// A limit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    #[serde(default)]
    pub(super) requests_per_unit: u32,
    pub(super) unit: Option<String>,
    #[serde(default)]
    pub(super) unlimited: bool,
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) replaces: Vec<Replaces>,
    // Ours.
    #[serde(default)]
    pub(super) algorithm: Choice,
    pub(super) burst: Option<u32>,
    pub(super) granularity: Option<u32>,
    pub(super) push_down: Option<PushDown>,
    #[serde(default)]
    pub(super) scope: Kind,
    pub(super) on_error: Option<OnError>,
    pub(super) budget: Option<String>,
    pub(super) interval: Option<String>,
}

/// When an address is to be denied by the kernel, and for how long.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PushDown {
    pub(super) factor: u32,
    pub(super) r#for: String,
}

/// The name of a limit that does not hold where this one does.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replaces {
    pub(super) name: Option<String>,
}
