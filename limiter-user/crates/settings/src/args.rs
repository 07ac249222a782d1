//! The settings of a daemon: flags, environment variables, keys of the file and their reference, written once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::builder::Resettable;
use clap::{ArgAction, Args, Command, FromArgMatches, ValueEnum};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::OnExit;
use crate::read::{
    as_duration, cluster_listen, duration, group_limit, list, listen, parse_group_limit,
};
use crate::tables::{LimitTable, LimitsTable, ListTable};
use crate::web::parse_listen;
use cluster::config::{KEY_FILE, Seed, parse_listen as parse_cluster_listen};
use model::management::parse_management;
use model::units::parse_duration;
use model::{GroupLimit, interface::Mode, tables::OnFull};

/// Keys that take effect without a restart, as limits and lists do.
// No key is here that is a read-only global of the program, the size of a map or a socket: none
// changes under packets.
pub const LIVE: [&str; 9] = [
    "admin_group",
    "cluster_seeds",
    "cluster_weight",
    "group_ipv6_prefix",
    "group_limit",
    "link_control",
    "malformed",
    "management",
    "on_full",
];

/// What happens to packets without a readable source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Malformed {
    /// They pass.
    Pass,
    /// They are dropped.
    Drop,
}

/// What happens to packets that the link needs to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkControl {
    /// They pass.
    Pass,
    /// They count for the limit of the neighbour that sends them.
    Limit,
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

/// The configuration of `limiter run`. Every key can be left out.
// The first paragraph of a doc comment is a flag's short help; all of it is also what the file and the
// reference say of the key.
#[derive(Clone, Debug, Args, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunArgs {
    /// Attach to this interface, besides those attached already; may be repeated
    ///
    /// The program attaches to one that comes later as soon as it is there, before it is up. In the file:
    /// `["eth0", "eth1"]`.
    #[arg(
        short,
        long = "interface",
        value_name = "IFACE",
        env = "LIMITER_INTERFACES",
        value_delimiter = ','
    )]
    // A comma separates, as an environment variable has one value only.
    pub interfaces: Vec<String>,
    /// In the driver, or in the network stack where the driver cannot (several times slower)
    #[arg(long, env = "LIMITER_MODE", value_enum, default_value = "native")]
    // No fallback to generic mode: a host several times slower than planned must not come about in
    // silence.
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
    // A flag with a value, so that `--replace=false` can take back what the file says. And off:
    // the other program may be somebody's firewall.
    pub replace: bool,
    /// The daemon's socket
    ///
    /// The commands that talk to the daemon look here, too. The instance NAME (`limiter --instance NAME`) has other
    /// defaults: `/run/limiter/NAME/limiter.sock` for `socket`, `/var/lib/limiter/NAME` for `state_dir`, and
    /// `/sys/fs/bpf/limiter@NAME` for `pin_dir`. Its configuration is `/etc/limiter/NAME.toml`.
    // A flag of every command.
    #[arg(skip = "/run/limiter/limiter.sock")]
    pub socket: PathBuf,
    /// The group whose members may look (status, stats, show, …), if it exists; else only root may
    #[arg(long, env = "LIMITER_SOCKET_GROUP", value_name = "NAME", default_value = "limiter")]
    pub socket_group: String,
    /// The group whose members may also change something; without it, only root may
    #[arg(long, env = "LIMITER_ADMIN_GROUP", value_name = "NAME")]
    #[schemars(example = &"root")]
    // Apart from the socket's group: who may look at an attack need not be trusted to open the
    // host to it.
    pub admin_group: Option<String>,
    /// The management addresses.
    #[command(flatten)]
    pub management: ManagementArgs,
    /// Where limits are stored
    ///
    /// These are the limits and lists that were set at run time.
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
    // To keep is the default, as a daemon also ends in an upgrade or a crash: there must be no
    // moment without limits (P4).
    pub on_exit: OnExit,
    /// Serve the dashboard and the API for looking on this address, such as 127.0.0.1:9090 [default: off]
    ///
    /// On a loopback address every user of this machine may look, unless there is a --http-token-file. Any
    /// other address needs a token and --http-tls-cert with --http-tls-key. Nothing can be changed there
    /// without --http-admin-token-file. The address may be one that no interface has yet.
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_LISTEN", value_name = "ADDR:PORT", value_parser = parse_listen)]
    #[serde(deserialize_with = "listen")]
    #[schemars(with = "Option<String>", example = "127.0.0.1:9090")]
    // Off: a TCP port on a host under attack is for its operator to open.
    pub http_listen: Option<SocketAddr>,
    /// The file with the token that the dashboard asks for before it shows anything
    ///
    /// A token is the file's only line, of 16 to 256 characters. Nobody but the file's owner and group can read it:
    /// `(umask 077; openssl rand -hex 32 >/etc/limiter/token)`.
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_TOKEN_FILE", value_name = "FILE")]
    #[schemars(example = "/etc/limiter/token")]
    pub http_token_file: Option<PathBuf>,
    /// The file with the token by which limits and the deny list can be changed over the dashboard
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_ADMIN_TOKEN_FILE", value_name = "FILE")]
    #[schemars(example = "/etc/limiter/admin-token")]
    pub http_admin_token_file: Option<PathBuf>,
    /// The dashboard's certificate with its chain, PEM
    ///
    /// Certificate and key are read when the dashboard starts. Limits never wait for it: the daemon tries again while
    /// something is missing, and `limiter status` says so.
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_TLS_CERT", value_name = "FILE")]
    #[schemars(example = "/etc/limiter/tls.crt")]
    pub http_tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_TLS_KEY", value_name = "FILE")]
    #[schemars(example = "/etc/limiter/tls.key")]
    pub http_tls_key: Option<PathBuf>,
    /// A name by which the dashboard is reached, beside addresses and localhost; may be repeated
    ///
    /// Other names are refused, so that no foreign page reaches the dashboard through a name of its own.
    #[arg(long, help_heading = DASHBOARD, env = "LIMITER_HTTP_HOST", value_name = "NAME", value_delimiter = ',')]
    #[schemars(example = ["limiter.example.net"])]
    pub http_host: Vec<String>,
    /// The sketch's error, relative to all packets of a window: its width is e/ε
    #[arg(long, env = "LIMITER_SKETCH_EPSILON", value_name = "ε", default_value_t = 0.000025)]
    // 131,072 columns: at 2.5 Mpps a window's noise is 2.5 packets a cell, well below the largest
    // gate of 16.
    pub sketch_epsilon: f64,
    /// The probability that the sketch's error is larger: its depth is ln 1/δ
    #[arg(long, env = "LIMITER_SKETCH_DELTA", value_name = "δ", default_value_t = 0.14)]
    // Two rows: each one more costs a light packet a cell outside the first-level cache, and width
    // buys more than depth.
    pub sketch_delta: f64,
    /// The sketch's window, rounded to a power of two of nanoseconds
    ///
    /// It lasts 1ms to 60s.
    #[arg(long, env = "LIMITER_SKETCH_WINDOW", value_name = "DURATION", default_value = "134ms", value_parser = parse_duration, allow_hyphen_values = true)]
    #[serde(serialize_with = "as_duration", deserialize_with = "duration")]
    #[schemars(with = "String")]
    // 2^27 ns. Noise grows with the window, and a window of a second would have seven times as
    // much. A value with a minus gets through to our reader, which says what is wrong with it.
    pub sketch_window: Duration,
    /// Sources that can be limited at once, rounded up to a power of two; 145 bytes each
    ///
    /// From 8 to 67108864. A limit of gate 1 (`limiter limit list`) leaves a quarter of them to other limits.
    #[arg(long, env = "LIMITER_MAX_SOURCES", value_name = "N", default_value_t = 524_288)]
    pub max_sources: u32,
    /// Limits of single sources that can be set
    #[arg(long, env = "LIMITER_MAX_LIMITS", value_name = "N", default_value_t = 1_048_576)]
    // The map grows as it fills: a large number costs nothing until it is used.
    pub max_limits: u32,
    /// Sources that can be on the allow and deny lists
    #[arg(long, env = "LIMITER_MAX_LISTED", value_name = "N", default_value_t = 1_048_576)]
    pub max_listed: u32,
    /// Leading bits of an IPv4 address that make a source
    ///
    /// All hosts of a cluster need the same: others are refused.
    #[arg(long, env = "LIMITER_IPV4_PREFIX", value_name = "BITS", default_value_t = 32)]
    pub ipv4_prefix: u8,
    /// Leading bits of an IPv6 address that make a source
    #[arg(long, env = "LIMITER_IPV6_PREFIX", value_name = "BITS", default_value_t = 64)]
    // Whoever has one IPv6 address usually has the 2^64 of its subnet (RFC 6177), and would be as
    // many sources.
    pub ipv6_prefix: u8,
    /// What happens to IP packets whose source cannot be read
    #[arg(long, env = "LIMITER_MALFORMED", value_enum, default_value = "pass")]
    // Passed: without a source nobody can say that it is over a limit (P1).
    pub malformed: Malformed,
    /// What happens to packets that the link needs: neighbour discovery, MLD, and DHCP of hosts without an address
    #[arg(long, env = "LIMITER_LINK_CONTROL", value_enum, default_value = "pass")]
    // Passed: a neighbour over its limit would not be found any more, nor find the host (P1).
    pub link_control: LinkControl,
    /// Count packets of IP in IP from this address or prefix for the source inside; may be repeated, up to 16 times
    ///
    /// For load balancers that hand packets on in tunnels. Anybody else's tunnels count for whoever sends them.
    #[arg(long, env = "LIMITER_TUNNELS", value_name = "CIDR", value_delimiter = ',', value_parser = parse_management)]
    #[serde(deserialize_with = "list")]
    #[schemars(with = "Vec<String>", example = ["192.0.2.80", "2001:db8::80"])]
    pub tunnels: Vec<IpNet>,
    /// What happens to a source for which the bucket table has no place
    #[arg(long, env = "LIMITER_ON_FULL", value_enum, default_value = "pass")]
    // Passed: a spoofed flood can fill a set, and must not cost conforming sources their packets
    // (P1).
    pub on_full: OnFull,
    /// Limit the sources of each IPv4 /24 and IPv6 /48 together, as far as they have no bucket: RATE or RATE,BURST
    /// [default: off]
    ///
    /// Whoever can send from a whole prefix needs no bucket in the table: each of its sources stays below the gate.
    /// With this, their packets are charged to the prefix first, and dropped where that is over its limit. A source
    /// with a bucket never pays for its neighbours. Take what a prefix of customers sends at its busiest, not what a
    /// source may send. The burst is 120 % of a second's rate if left out.
    #[arg(long, env = "LIMITER_GROUP_LIMIT", value_name = "RATE[,BURST]", value_parser = parse_group_limit)]
    #[serde(deserialize_with = "group_limit")]
    #[schemars(with = "Option<String>", example = "50kpps")]
    pub group_limit: Option<GroupLimit>,
    /// Leading bits of an IPv6 address that make a group: 48 (a site) or 56 (a home)
    #[arg(long, env = "LIMITER_GROUP_IPV6_PREFIX", value_name = "BITS", default_value_t = 48)]
    pub group_ipv6_prefix: u8,
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
    /// The cluster that the host belongs to: none unless `listen` is set.
    ///
    /// Its hosts keep limits that are for the cluster (`scope = "cluster"`) together.
    ///
    /// A cluster is founded once: by `limiter cluster init` on one of its hosts, which has all of the limits then, or
    /// by hosts that have `bootstrap_expect`. A host that has lost its state directory founds nothing. It waits for a
    /// member, and joins again. What it had of the limits is given out anew after ten minutes. Until a host belongs to a
    /// cluster, it drops what is under limits of the cluster, and `limiter status` says so.
    ///
    /// A host that joins has no part of the limits until others have given it some. Meanwhile it drops the first packets
    /// of each source under them, until others grant it some. All hosts together let a source's burst through at once, or a packet each where that is more: see `limiter
    /// limit list`. Limits never wait for the cluster: until `listen` and the key can be used, which the daemon
    /// tries again and again, sources may use 5 % of what this host had kept.
    ///
    /// Each host keeps its part through restarts, in `cluster.json` of the state directory: do not copy that to
    /// another host. `limiter cluster leave` hands it over.
    ///
    /// What members and seeds send to `listen` is not limited, whatever limits and lists say. A host that is neither
    /// yet is limited like any source.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Limits that are not for a prefix.
    #[arg(skip)]
    #[serde(skip_serializing)]
    pub(crate) limits: LimitsTable,
    /// Limits of the sources in a prefix.
    #[arg(skip)]
    #[serde(skip_serializing)]
    pub(crate) limit: Vec<LimitTable>,
    /// Sources that are let through whatever they send.
    #[arg(skip)]
    #[serde(skip_serializing)]
    pub(crate) allow: Vec<ListTable>,
    /// Sources that are dropped whatever they send.
    #[arg(skip)]
    #[serde(skip_serializing)]
    pub(crate) deny: Vec<ListTable>,
    /// Start with fresh maps, without the buckets and counters of the pinned ones; limits are kept
    // Something to do once, not to be found in a file.
    #[arg(long)]
    #[serde(skip)]
    pub reset_state: bool,
}

/// `[management]`
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ManagementArgs {
    /// Never limit this address or prefix, from which the host is managed; may be repeated
    #[arg(
        id = "management",
        long = "management",
        value_name = "CIDR",
        env = "LIMITER_MANAGEMENT",
        value_delimiter = ',',
        value_parser = parse_management
    )]
    #[serde(deserialize_with = "list")]
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpNet>,
}

/// `[cluster]`
#[derive(Clone, Debug, Args, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterArgs {
    /// The host's name in the cluster [default: its own]
    ///
    /// It is for operators, and may change: what a host has does not depend on it. Give one where the host's own is set
    /// late in boot.
    #[arg(id = "cluster_name", long = "cluster-name", help_heading = CLUSTER, env = "LIMITER_CLUSTER_NAME", value_name = "NAME")]
    #[schemars(example = "edge-1")]
    pub name: Option<String>,
    /// Be in a cluster: the address and UDP port of this host that its peers come to [default: none]
    #[arg(
        id = "cluster_listen",
        long = "cluster-listen",
        help_heading = CLUSTER,
        env = "LIMITER_CLUSTER_LISTEN",
        value_name = "ADDR:PORT",
        value_parser = parse_cluster_listen
    )]
    #[serde(deserialize_with = "cluster_listen")]
    #[schemars(with = "Option<String>", example = "192.0.2.10:7700")]
    pub listen: Option<SocketAddr>,
    /// Where other hosts reach this one, if not where it listens: behind NAT, or in a container [default: where it listens]
    ///
    /// What it sends has to come from there, too.
    #[arg(
        id = "cluster_advertise",
        long = "cluster-advertise",
        help_heading = CLUSTER,
        env = "LIMITER_CLUSTER_ADVERTISE",
        value_name = "ADDR:PORT",
        value_parser = parse_cluster_listen
    )]
    #[serde(deserialize_with = "cluster_listen")]
    #[schemars(with = "Option<String>", example = "198.51.100.10:7700")]
    pub advertise: Option<SocketAddr>,
    /// Hosts of the cluster to ask for the others: addresses or DNS names with ports, commas between them
    ///
    /// All hosts may have the same ones, their own address among them. A name that begins with an underscore is one of
    /// SRV records, which tell names and ports: `_limiter._udp.example.net`. Names are looked up again every 30 seconds.
    #[arg(id = "cluster_seeds", long = "cluster-seeds", help_heading = CLUSTER, env = "LIMITER_CLUSTER_SEEDS", value_name = "HOST:PORT", value_delimiter = ',')]
    #[serde(deserialize_with = "list")]
    #[schemars(with = "Vec<String>", example = ["edge-2.example.net:7700", "192.0.2.12:7700"])]
    pub seeds: Vec<Seed>,
    /// Found a cluster with the others once so many hosts that belong to none see each other: 2 to 256
    ///
    /// For hosts that start together with one configuration. Give the number of all of them: twice as many hosts that
    /// are cut off from each other in two halves at their very first start would found two clusters. A host that
    /// sees a member of a cluster joins it instead. Without this one host founds the cluster by `limiter cluster init`.
    ///
    /// All of them have to know each other: name all as seeds, or a DNS name with the addresses of all.
    #[arg(id = "cluster_bootstrap_expect", long = "cluster-bootstrap-expect", help_heading = CLUSTER, env = "LIMITER_CLUSTER_BOOTSTRAP_EXPECT", value_name = "N")]
    #[schemars(example = 3)]
    pub bootstrap_expect: Option<u32>,
    /// The file with the key that all hosts of the cluster have; see `limiter cluster key generate`
    #[arg(id = "cluster_key_file", long = "cluster-key-file", help_heading = CLUSTER, env = "LIMITER_CLUSTER_KEY_FILE", value_name = "FILE", default_value = KEY_FILE)]
    pub key_file: PathBuf,
    /// The host's part of every limit, relative to those of the others: 1 to 1000
    #[arg(id = "cluster_weight", long = "cluster-weight", help_heading = CLUSTER, env = "LIMITER_CLUSTER_WEIGHT", value_name = "N", default_value_t = 100)]
    // A hundred leaves room for smaller hosts and larger ones in whole numbers.
    pub weight: u32,
    /// The region that the host is in: limits are shared within regions first
    ///
    /// Hosts that are near to each other, some milliseconds, should have the same name here; all of one data centre,
    /// say. The hosts of a region divide what is their own of a limit among them, and only what they lack is borrowed
    /// from other regions, of each source by one host for all of the region. That saves traffic between regions, and
    /// keeps what is near fast. It costs time: what moves between regions takes some round trips between them, and what
    /// a region has lent when it is cut off lies idle for some seconds. Without regions far from each other leave it.
    #[arg(id = "cluster_region", long = "cluster-region", help_heading = CLUSTER, env = "LIMITER_CLUSTER_REGION", value_name = "NAME", default_value = "default")]
    pub region: String,
}

impl Default for ClusterArgs {
    fn default() -> Self {
        DEFAULTS.cluster.clone()
    }
}

impl Default for RunArgs {
    fn default() -> Self {
        DEFAULTS.clone()
    }
}

/// What neither flag nor environment says.
// clap has them, and serde asks for them here: so each default is written once.
static DEFAULTS: LazyLock<RunArgs> = LazyLock::new(|| {
    let command = RunArgs::augment_args(Command::new("run").no_binary_name(true));
    // The environment is no default: a file is to win over what is one.
    let command = command.mut_args(|arg| arg.env(Resettable::Reset));
    let matches = command.try_get_matches_from(std::iter::empty::<&str>());
    let defaults = matches.and_then(|matches| RunArgs::from_arg_matches(&matches));
    defaults.expect("every default is a value of its key")
});

impl RunArgs {
    /// `limiter run` with these options and no others, for those who test.
    pub fn command() -> Command {
        Command::new("limiter").subcommand(Self::augment_args(Command::new("run")))
    }
}
