//! How a daemon is to run.

use std::path::PathBuf;

use clap::ValueEnum;
use cluster::ClusterConfig;
use dataplane::Options;
use ipnet::IpNet;
use model::instance::Instance;
use model::interface::Mode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::web::WebConfig;

/// What remains when the daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnExit {
    /// The program stays attached and enforces the limits.
    Keep,
    /// The program is detached and its maps are removed.
    Detach,
}

/// How to run a daemon.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// Interfaces to attach to, besides those that are attached already.
    pub interfaces: Vec<String>,
    /// How to attach to them.
    pub mode: Mode,
    /// Whether to take the place of another XDP program.
    pub replace: bool,
    /// The API's socket.
    pub socket: PathBuf,
    /// The group that may use it.
    pub socket_group: String,
    /// The group whose members may change something, beside root.
    pub admin_group: Option<String>,
    /// Addresses that no limit applies to.
    pub management: Vec<IpNet>,
    /// Where the store lies.
    pub state_dir: PathBuf,
    /// What remains at the end.
    pub on_exit: OnExit,
    /// Which instance it is.
    pub instance: Option<Instance>,
    /// Where the dashboard is served.
    pub web: WebConfig,
    /// The data plane.
    pub options: Options,
    /// The cluster.
    pub cluster: ClusterConfig,
}
