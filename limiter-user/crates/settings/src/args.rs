//! The settings of a daemon, as options of `limiter run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::OnExit;
use crate::web::parse_listen;
use cluster::config::{KEY_FILE, Seed, parse_listen as parse_cluster_listen};
use model::management::parse_management;
use model::units::parse_duration;
use model::{interface::Mode, tables::OnFull};

/// What happens to packets without a readable source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Malformed {
    /// They pass.
    Pass,
    /// They are dropped.
    Drop,
}

/// How the daemon's log is written.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For human beings.
    #[default]
    Text,
    /// One JSON object in a line.
    Json,
}

/// Headings of the options in `--help`.
const CLUSTER: &str = "Cluster options";
const DASHBOARD: &str = "Dashboard options";

/// The settings of a daemon: each, but for the last, is also a key of the configuration file.
#[derive(Clone, Debug, Args, Serialize)]
pub struct RunArgs {
    /// Attach to this interface, besides those attached already; may be repeated
    #[arg(
        short,
        long = "interface",
        value_name = "IFACE",
        env = "LIMITER_INTERFACES",
        value_delimiter = ','
    )]
    pub interfaces: Vec<String>,
    /// In the driver, or in the network stack where the driver cannot (several times slower)
    #[arg(long, env = "LIMITER_MODE", value_enum, default_value = "native")]
    pub mode: Mode,
    /// Take the place of another XDP program
    #[arg(
        long,
        env = "LIMITER_REPLACE",
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        hide_default_value = true
    )]
    pub replace: bool,
    /// The group whose members may look (status, stats, show, …), if it exists; else only root may
    #[arg(long, env = "LIMITER_SOCKET_GROUP", value_name = "NAME", default_value = "limiter")]
    pub socket_group: String,
    /// The group whose members may also change something; without it, only root may
    #[arg(long, env = "LIMITER_ADMIN_GROUP", value_name = "NAME")]
    pub admin_group: Option<String>,
    /// Never limit this address or prefix, from which the host is managed; may be repeated
    #[arg(
        long,
        value_name = "CIDR",
        env = "LIMITER_MANAGEMENT",
        value_delimiter = ',',
        value_parser = parse_management
    )]
    pub management: Vec<IpNet>,
    /// Where limits are stored
    #[arg(long, env = "LIMITER_STATE_DIR", value_name = "DIR", default_value = "/var/lib/limiter")]
    pub state_dir: PathBuf,
    /// Where maps and links are pinned, on a BPF file system
    #[arg(
        long,
        env = "LIMITER_PIN_DIR",
        value_name = "DIR",
        default_value = "/sys/fs/bpf/limiter"
    )]
    pub pin_dir: PathBuf,
    /// Whether the limits stay in force when the daemon ends
    #[arg(long, env = "LIMITER_ON_EXIT", value_enum, default_value = "keep")]
    pub on_exit: OnExit,
    /// Serve the dashboard and the API for looking on this address, such as 127.0.0.1:9090 [default: off]
    ///
    /// On a loopback address every user of this machine may look, unless there is a --http-token-file. Any
    /// other address needs a token and --http-tls-cert with --http-tls-key. Nothing can be changed there
    /// without --http-admin-token-file.
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_LISTEN", value_name = "ADDR:PORT", value_parser = parse_listen)]
    pub http_listen: Option<SocketAddr>,
    /// The file with the token that the dashboard asks for before it shows anything
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_TOKEN_FILE", value_name = "FILE")]
    pub http_token_file: Option<PathBuf>,
    /// The file with the token by which limits and the deny list can be changed over the dashboard
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub http_admin_token_file: Option<PathBuf>,
    /// The dashboard's certificate with its chain, PEM
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_TLS_CERT", value_name = "FILE")]
    pub http_tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_TLS_KEY", value_name = "FILE")]
    pub http_tls_key: Option<PathBuf>,
    /// A name by which the dashboard is reached, beside addresses and localhost; may be repeated
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_HOST", value_name = "NAME", value_delimiter = ',')]
    pub http_host: Vec<String>,
    /// The sketch's error, relative to all packets of a window: its width is e/ε
    #[arg(long, env = "LIMITER_SKETCH_EPSILON", value_name = "ε", default_value_t = 0.000025)]
    pub sketch_epsilon: f64,
    /// The probability that the sketch's error is larger: its depth is ln 1/δ
    #[arg(long, env = "LIMITER_SKETCH_DELTA", value_name = "δ", default_value_t = 0.14)]
    pub sketch_delta: f64,
    /// The sketch's window, rounded to a power of two of nanoseconds
    #[arg(long, env = "LIMITER_SKETCH_WINDOW", value_name = "DURATION", default_value = "134ms", value_parser = parse_duration, allow_hyphen_values = true)]
    #[serde(serialize_with = "as_duration")]
    pub sketch_window: Duration,
    /// Sources that can be limited at once, rounded up to a power of two; 145 bytes each
    ///
    /// A limit of gate 1 (`limiter limit list`) leaves a quarter of them to other limits.
    #[arg(long, env = "LIMITER_MAX_SOURCES", value_name = "N", default_value_t = 524_288)]
    pub max_sources: u32,
    /// Limits of single sources that can be set
    #[arg(long, env = "LIMITER_MAX_LIMITS", value_name = "N", default_value_t = 1_048_576)]
    pub max_limits: u32,
    /// Sources that can be on the allow and deny lists
    #[arg(long, env = "LIMITER_MAX_LISTED", value_name = "N", default_value_t = 1_048_576)]
    pub max_listed: u32,
    /// Leading bits of an IPv4 address that make a source
    #[arg(long, env = "LIMITER_IPV4_PREFIX", value_name = "BITS", default_value_t = 32)]
    pub ipv4_prefix: u8,
    /// Leading bits of an IPv6 address that make a source
    #[arg(long, env = "LIMITER_IPV6_PREFIX", value_name = "BITS", default_value_t = 64)]
    pub ipv6_prefix: u8,
    /// What happens to IP packets whose source cannot be read
    #[arg(long, env = "LIMITER_MALFORMED", value_enum, default_value = "pass")]
    pub malformed: Malformed,
    /// What happens to a source for which the bucket table has no place
    #[arg(long, env = "LIMITER_ON_FULL", value_enum, default_value = "pass")]
    pub on_full: OnFull,
    /// How the log on stderr is written: for human beings, or one JSON object in a line
    #[arg(long, env = "LIMITER_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Let the kernel program write to the log what happens to which source: who gets a bucket, or finds none
    ///
    /// For diagnosis. At most 20 packets a second and CPU are written about; of others the number is told.
    /// LIMITER_LOG=warn,limiter::kernel=info leaves only such lines and warnings. While it is off it costs
    /// nothing: the kernel takes the instructions out.
    #[arg(
        long,
        env = "LIMITER_KERNEL_LOG",
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        hide_default_value = true
    )]
    pub kernel_log: bool,
    /// The host's name in the cluster [default: its own]
    #[arg(long, help_heading = CLUSTER, env = "LIMITER_CLUSTER_NAME", value_name = "NAME")]
    pub cluster_name: Option<String>,
    /// Be in a cluster: the address and UDP port of this host that its peers come to [default: none]
    #[arg(
        long,
        help_heading = CLUSTER,
        env = "LIMITER_CLUSTER_LISTEN",
        value_name = "ADDR:PORT",
        value_parser = parse_cluster_listen
    )]
    pub cluster_listen: Option<SocketAddr>,
    /// Hosts of the cluster to ask for the others: addresses or DNS names with ports, commas between them
    ///
    /// All hosts may have the same ones, their own address among them.
    #[arg(long, help_heading = CLUSTER, env = "LIMITER_CLUSTER_SEEDS", value_name = "HOST:PORT", value_delimiter = ',')]
    pub cluster_seeds: Vec<Seed>,
    /// Found a cluster with the others once so many hosts that belong to none see each other: 2 to 256
    ///
    /// For hosts that start together with one configuration. Give the number of all of them: twice as many hosts that
    /// are cut off from each other in two halves at their very first start would found two clusters. A host that
    /// sees a member of a cluster joins it instead. Without this one host founds the cluster by `limiter cluster init`.
    #[arg(long, help_heading = CLUSTER, env = "LIMITER_CLUSTER_BOOTSTRAP_EXPECT", value_name = "N")]
    pub cluster_bootstrap_expect: Option<u32>,
    /// The file with the key that all hosts of the cluster have; see `limiter cluster key generate`
    #[arg(long, help_heading = CLUSTER, env = "LIMITER_CLUSTER_KEY_FILE", value_name = "FILE", default_value = KEY_FILE)]
    pub cluster_key_file: PathBuf,
    /// The host's part of every limit, relative to those of the others: 1 to 1000
    #[arg(long, help_heading = CLUSTER, env = "LIMITER_CLUSTER_WEIGHT", value_name = "N", default_value_t = 100)]
    pub cluster_weight: u32,
    /// The region that the host is in: limits are shared within regions first
    ///
    /// Hosts that are near to each other, some milliseconds, should have the same name here; all of one data centre,
    /// say. The hosts of a region divide what is their own of a limit among them, and only what they lack is borrowed
    /// from other regions, of each source by one host for all of the region. That saves traffic between regions, and
    /// keeps what is near fast. It costs time: what moves between regions takes some round trips between them, and what
    /// a region has lent when it is cut off lies idle for some seconds. Without regions far from each other leave it.
    #[arg(long, help_heading = CLUSTER, env = "LIMITER_CLUSTER_REGION", value_name = "NAME", default_value = "default")]
    pub cluster_region: String,
    /// Start with fresh maps, without the buckets and counters of the pinned ones; limits are kept
    #[arg(long)]
    #[serde(skip)]
    pub reset_state: bool,
}

fn as_duration<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

impl RunArgs {
    /// `limiter run` with these options and no others, for those who test.
    pub fn command() -> clap::Command {
        clap::Command::new("limiter").subcommand(Self::augment_args(clap::Command::new("run")))
    }
}
