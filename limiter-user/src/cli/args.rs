//! Every command and option.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::capture::CaptureArgs;
use super::cluster::ClusterCommand;
use super::limit_args::LimitCommand;
use super::safety::SafetyArgs;
use super::simulate::SimulateCommand;
use crate::cluster::config::{KEY_FILE, Seed, parse_listen as parse_cluster_listen};
use crate::daemon::OnExit;
use crate::dataplane::{Mode, OnFull};
use crate::http::web::parse_listen;
use crate::instance::Instance;
use crate::observe::event::Kind;
use crate::policy::Reach;
use crate::policy::management::parse_management;
use crate::report::{By, Sort};

/// Rations packets per source address at the network card.
#[derive(Debug, Parser)]
#[command(name = "limiter", version, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Clone, Debug, Args)]
pub(super) struct Global {
    /// The instance: a daemon with interfaces, limits and buckets of its own
    ///
    /// By default its socket is /run/limiter/NAME/limiter.sock, its configuration
    /// /etc/limiter/NAME.toml, its limits are in /var/lib/limiter/NAME and its pins in
    /// /sys/fs/bpf/limiter@NAME. A name has 1 to 32 of the characters a to z, 0 to 9, _ and -.
    #[arg(long, global = true, value_name = "NAME", env = "LIMITER_INSTANCE")]
    pub(super) instance: Option<Instance>,
    /// The daemon's socket
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "LIMITER_SOCKET",
        default_value = "/run/limiter/limiter.sock"
    )]
    pub(super) socket: PathBuf,
    /// The configuration file [default: /etc/limiter/limiter.toml, if it is there]
    #[arg(long, global = true, value_name = "FILE", env = "LIMITER_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Print exactly one JSON document on stdout
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Log more on stderr; twice for still more
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(super) verbose: u8,
    /// Log errors only
    #[arg(short, long, global = true)]
    pub(super) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the daemon in the foreground
    Run(Box<RunArgs>),
    /// Tell how the daemon and its data plane fare; exit code 1 if degraded
    Status,
    /// Show the counters: every packet is in exactly one of them
    Stats,
    /// Set, list and remove limits
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Check, show and explain the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Let the daemon read its configuration file again: all of it, or nothing if anything is wrong
    ///
    /// Prints what changes, and which keys need a restart. SIGHUP does the same. What is not confirmed
    /// with --confirm is not in force after a restart of the daemon either, until the file is changed or
    /// this command comes again.
    Reload {
        #[command(flatten)]
        safety: SafetyArgs,
    },
    /// Keep the change that waits to be confirmed
    Confirm {
        /// Revert it at once instead
        #[arg(long)]
        abort: bool,
    },
    /// Let sources through whatever they send
    #[command(subcommand)]
    Allow(ListCommand),
    /// Drop everything from sources
    #[command(subcommand)]
    Deny(ListCommand),
    /// Watch the heaviest sources
    #[command(after_help = TOP)]
    Top(TopArgs),
    /// Watch what sources send, and propose a limit that leaves nearly all of them alone
    #[command(after_help = SUGGEST)]
    Suggest(SuggestArgs),
    /// Stream what happens until Ctrl-C: as text on a terminal, else as JSON, one event in a line
    ///
    /// Of each kind of event some are told in a second, and of more only how many. Whoever reads too
    /// slowly is told how many events were missed.
    Monitor(MonitorArgs),
    /// Write what went on to a file: charts, who was limited, what was changed
    ///
    /// The page needs nothing from elsewhere: it can be mailed and kept. The daemon keeps the last hour by
    /// the second and the last week by the minute.
    Report(ReportArgs),
    /// Write samples of packets to a file, with what became of each
    ///
    /// The kernel program takes them, only while this runs and only as many as --rate allows, so that a flood
    /// does not become a flood of samples; the others are counted. Exit code 1 if no packet matched.
    Capture(CaptureArgs),
    /// Show what is known of a source
    #[command(visible_alias = "why")]
    Show {
        /// An address of the source
        #[arg(value_name = "IP")]
        address: String,
        /// What each host of the cluster knows of it, and the sums
        ///
        /// Exit code 1 if a host does not answer within a second; it is named.
        #[arg(long)]
        cluster: bool,
    },
    /// Show the hosts of the cluster: who is there, what each may use, clocks, lag
    ///
    /// Exit code 1 if a member does not answer within a second, or has other limits.
    Peers,
    /// Attach to an interface
    Attach(AttachArgs),
    /// Detach from an interface
    Detach {
        /// The interface's name
        #[arg(value_name = "IFACE")]
        interface: String,
    },
    /// Check what the limiter needs of this machine, and of an interface; needs no daemon
    ///
    /// Exit code 0 if all is well, 1 if there is something to look at. Nothing is changed or attached.
    Doctor(DoctorArgs),
    /// Remove what dead daemons left: pinned data planes, unfinished ones, sockets
    ///
    /// Of all instances, and leaves those alone whose daemon runs; with --instance, --socket, --config or
    /// --pin-dir only of that one, and refuses while its daemon runs. Removing a data plane that is attached ends its protection, so
    /// that needs --yes.
    Cleanup(CleanupArgs),
    /// Share limits with other hosts
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Try out on simulated hosts what cannot be tried out on real ones; needs no daemon
    #[command(subcommand)]
    Simulate(SimulateCommand),
    /// Show the versions of the program and of its map layouts
    Version,
    /// Write manual pages and shell completions
    #[command(hide = true)]
    Documents {
        /// Where to
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Check a file: exit code 0 if it is good, 2 if not; needs no daemon
    Check {
        /// The file [default: that of --config]
        file: Option<PathBuf>,
    },
    /// Show what `limiter run` with the same options would do, and where each value comes from
    Show(Box<RunArgs>),
    /// Compare a file with what the daemon does: exit code 0 if it is the same, 1 if not
    Diff {
        /// The file [default: the one that the daemon has read]
        file: Option<PathBuf>,
    },
    /// Print a file with every key, its default and what it means
    Default,
    /// Print the JSON Schema of the file
    Schema,
}

/// What `top` tells, and its keys.
const TOP: &str = "\
Keys: d, p, b and k sort by packets dropped, packets/s, bits/s and packets; / filters by a part of the
line or by a prefix; space stops and goes on; enter shows a source's history and limit, esc goes back;
? tells all keys; q ends.

PPS and BITS/S are rates since an earlier look of the last 5 seconds (the daemon keeps two while somebody
looks), and else averages since the source got its bucket; with --sort pps or bits there is such a look, if
need be after 0.2 seconds. PASSED, DROPPED and BYTES count since the source got its bucket; ERROR is what
PASSED may be too low by: packets that passed below the gate in the sketch's two windows before that.

--by prefix sums IPv4 sources up by /24 and IPv6 ones by /64, by /56 where 8 or more /64s of it have a
bucket, and by /48 where 8 or more /56s of it have; --by class sums up all sources of a class that has a
limit of its own.";

/// What a proposal is made of.
const SUGGEST: &str = "\
The rate is what the given share of sources exceeds, with a fifth more; the burst 120 % of a second, or what
such sources sent within one second. What it would touch is told for the long run, when bursts are used up.
Nothing is set: copy the command that is printed, or try it first with `limiter limit try`.

Sources below the gate of the sketch have no bucket (see `limiter status`): they are only counted. Watch
when traffic is as it should be; in a flood those who flood are a part of the sources.

Exit code 1 if fewer than 20 sources send enough to tell what is usual.";

/// What is to be proposed.
#[derive(Debug, Args)]
pub(super) struct SuggestArgs {
    /// The share of sources that the limit may touch, such as 0.1% or 0.001
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = super::suggest::parse_share)]
    pub(super) share: f64,
    /// For the sources in this prefix instead of every source
    #[arg(
        long = "for",
        value_name = "TARGET",
        default_value = "default",
        hide_default_value = true
    )]
    pub(super) target: String,
    /// For how long to watch: 1 second to 10 minutes
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(super) over: Duration,
}

#[derive(Debug, Subcommand)]
pub(super) enum ListCommand {
    /// Add sources or prefixes: all of them, or none if one is wrong
    ///
    /// A single source goes before any prefix, and the longest prefix before others. An entry that is
    /// there already gets the new reason and lifetime.
    Add {
        /// Addresses and prefixes; - reads them from standard input, one in a line, # begins a comment
        #[arg(required = true, value_name = "TARGET")]
        targets: Vec<String>,
        /// For how long, such as 10m or 7d; the kernel ends it also without the daemon
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        #[arg(allow_hyphen_values = true)]
        ttl: Option<Duration>,
        /// Why, for whoever reads the list later
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// On this host alone, or on all hosts of the cluster, which only the deny list can be [default: local]
        #[arg(long, value_enum, value_name = "SCOPE")]
        scope: Option<Reach>,
        #[command(flatten)]
        safety: SafetyArgs,
    },
    /// Remove sources or prefixes, as they were added: all of them, or none
    Del {
        /// Addresses and prefixes; - reads them from standard input, one in a line
        #[arg(required = true, value_name = "TARGET")]
        targets: Vec<String>,
        #[command(flatten)]
        safety: SafetyArgs,
    },
    /// Show the list
    List,
}

#[derive(Clone, Debug, Args)]
pub(super) struct TopArgs {
    /// Print once and end; --json does so, too
    #[arg(long)]
    pub(super) once: bool,
    /// How many lines [default: 20, or as many as the terminal has room for]
    #[arg(short, value_name = "N")]
    pub(super) n: Option<usize>,
    /// What to sort by
    #[arg(long, value_enum, default_value_t)]
    pub(super) sort: Sort,
    /// What a line is about
    #[arg(long, value_enum, default_value_t)]
    pub(super) by: By,
    /// Of all hosts of the cluster together, as if their traffic had come to one
    ///
    /// Exit code 1 if a host does not answer within a second; it is named.
    #[arg(long)]
    pub(super) cluster: bool,
}

#[derive(Debug, Args)]
pub(super) struct MonitorArgs {
    /// Only events of this kind; may be repeated
    #[arg(long = "kind", value_enum, value_name = "KIND", value_delimiter = ',')]
    pub(super) kinds: Vec<Kind>,
    /// As text, also where stdout is no terminal
    #[arg(long, conflicts_with = "json")]
    pub(super) text: bool,
}

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// How long ago it begins; a week at the most
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[arg(default_value = "1h")]
    pub(super) since: Duration,
    /// How long ago it ends
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[arg(default_value = "0s")]
    pub(super) until: Duration,
    /// The length of a step [default: what makes some hundred steps]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(super) step: Option<Duration>,
    /// The file; - for stdout
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(super) out: PathBuf,
    /// How it is written; --json is --format json
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: ReportFormat,
}

/// How a report is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    /// A page that needs nothing from elsewhere
    #[default]
    Html,
    /// All that the page is made of
    Json,
    /// What was counted, one step in a line
    Csv,
}

#[derive(Debug, Args)]
pub(super) struct AttachArgs {
    /// The interface's name
    #[arg(value_name = "IFACE")]
    pub(super) interface: String,
    /// In the driver, or in the network stack where the driver cannot (several times slower)
    #[arg(long, value_enum, default_value = "native")]
    pub(super) mode: Mode,
    /// Take the place of another XDP program
    #[arg(long)]
    pub(super) replace: bool,
}

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Look at this interface, too
    #[arg(value_name = "IFACE")]
    pub(super) interface: Option<String>,
    /// Where maps and links would be pinned
    /// [default: what the configuration says, or /sys/fs/bpf/limiter]
    #[arg(long, value_name = "DIR", env = "LIMITER_PIN_DIR")]
    pub(super) pin_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct CleanupArgs {
    /// Only tell what would be removed
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Also detach from interfaces whose packets are still limited
    #[arg(long)]
    pub(super) yes: bool,
    /// Where maps and links are pinned
    /// [default: what the configuration says, or /sys/fs/bpf/limiter]
    #[arg(long, value_name = "DIR", env = "LIMITER_PIN_DIR")]
    pub(super) pin_dir: Option<PathBuf>,
}

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

/// The settings of a daemon: each, but for the last, is also a key of the configuration file.
#[derive(Clone, Debug, Args, Serialize)]
pub(crate) struct RunArgs {
    /// Attach to this interface, besides those attached already; may be repeated
    #[arg(
        short,
        long = "interface",
        value_name = "IFACE",
        env = "LIMITER_INTERFACES",
        value_delimiter = ','
    )]
    pub(crate) interfaces: Vec<String>,
    /// In the driver, or in the network stack where the driver cannot (several times slower)
    #[arg(long, env = "LIMITER_MODE", value_enum, default_value = "native")]
    pub(crate) mode: Mode,
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
    pub(crate) replace: bool,
    /// The group whose members may look (status, stats, show, …), if it exists; else only root may
    #[arg(long, env = "LIMITER_SOCKET_GROUP", value_name = "NAME", default_value = "limiter")]
    pub(crate) socket_group: String,
    /// The group whose members may also change something; without it, only root may
    #[arg(long, env = "LIMITER_ADMIN_GROUP", value_name = "NAME")]
    pub(crate) admin_group: Option<String>,
    /// Never limit this address or prefix, from which the host is managed; may be repeated
    #[arg(
        long,
        value_name = "CIDR",
        env = "LIMITER_MANAGEMENT",
        value_delimiter = ',',
        value_parser = parse_management
    )]
    pub(crate) management: Vec<IpNet>,
    /// Where limits are stored
    #[arg(long, env = "LIMITER_STATE_DIR", value_name = "DIR", default_value = "/var/lib/limiter")]
    pub(crate) state_dir: PathBuf,
    /// Where maps and links are pinned, on a BPF file system
    #[arg(
        long,
        env = "LIMITER_PIN_DIR",
        value_name = "DIR",
        default_value = "/sys/fs/bpf/limiter"
    )]
    pub(crate) pin_dir: PathBuf,
    /// Whether the limits stay in force when the daemon ends
    #[arg(long, env = "LIMITER_ON_EXIT", value_enum, default_value = "keep")]
    pub(crate) on_exit: OnExit,
    /// Serve the dashboard and the API for looking on this address, such as 127.0.0.1:9090 [default: off]
    ///
    /// On a loopback address every user of this machine may look, unless there is a --http-token-file. Any
    /// other address needs a token and --http-tls-cert with --http-tls-key. Nothing can be changed there
    /// without --http-admin-token-file.
    #[arg(long, env = "LIMITER_HTTP_LISTEN", value_name = "ADDR:PORT", value_parser = parse_listen)]
    pub(crate) http_listen: Option<SocketAddr>,
    /// The file with the token that the dashboard asks for before it shows anything
    #[arg(long, env = "LIMITER_HTTP_TOKEN_FILE", value_name = "FILE")]
    pub(crate) http_token_file: Option<PathBuf>,
    /// The file with the token by which limits and the deny list can be changed over the dashboard
    #[arg(long, env = "LIMITER_HTTP_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub(crate) http_admin_token_file: Option<PathBuf>,
    /// The dashboard's certificate with its chain, PEM
    #[arg(long, env = "LIMITER_HTTP_TLS_CERT", value_name = "FILE")]
    pub(crate) http_tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, env = "LIMITER_HTTP_TLS_KEY", value_name = "FILE")]
    pub(crate) http_tls_key: Option<PathBuf>,
    /// A name by which the dashboard is reached, beside addresses and localhost; may be repeated
    #[arg(long, env = "LIMITER_HTTP_HOST", value_name = "NAME", value_delimiter = ',')]
    pub(crate) http_host: Vec<String>,
    /// The sketch's error, relative to all packets of a window: its width is e/ε
    #[arg(long, env = "LIMITER_SKETCH_EPSILON", value_name = "ε", default_value_t = 0.000025)]
    pub(crate) sketch_epsilon: f64,
    /// The probability that the sketch's error is larger: its depth is ln 1/δ
    #[arg(long, env = "LIMITER_SKETCH_DELTA", value_name = "δ", default_value_t = 0.14)]
    pub(crate) sketch_delta: f64,
    /// The sketch's window, rounded to a power of two of nanoseconds
    #[arg(long, env = "LIMITER_SKETCH_WINDOW", value_name = "DURATION", default_value = "134ms", value_parser = humantime::parse_duration)]
    #[serde(serialize_with = "as_duration")]
    pub(crate) sketch_window: Duration,
    /// Sources that can be limited at once, rounded up to a power of two; 129 bytes each
    #[arg(long, env = "LIMITER_MAX_SOURCES", value_name = "N", default_value_t = 524_288)]
    pub(crate) max_sources: u32,
    /// Limits of single sources that can be set
    #[arg(long, env = "LIMITER_MAX_LIMITS", value_name = "N", default_value_t = 1_048_576)]
    pub(crate) max_limits: u32,
    /// Sources that can be on the allow and deny lists
    #[arg(long, env = "LIMITER_MAX_LISTED", value_name = "N", default_value_t = 1_048_576)]
    pub(crate) max_listed: u32,
    /// Leading bits of an IPv4 address that make a source
    #[arg(long, env = "LIMITER_IPV4_PREFIX", value_name = "BITS", default_value_t = 32)]
    pub(crate) ipv4_prefix: u8,
    /// Leading bits of an IPv6 address that make a source
    #[arg(long, env = "LIMITER_IPV6_PREFIX", value_name = "BITS", default_value_t = 64)]
    pub(crate) ipv6_prefix: u8,
    /// What happens to IP packets whose source cannot be read
    #[arg(long, env = "LIMITER_MALFORMED", value_enum, default_value = "pass")]
    pub(crate) malformed: Malformed,
    /// What happens to a source for which the bucket table has no place
    #[arg(long, env = "LIMITER_ON_FULL", value_enum, default_value = "pass")]
    pub(crate) on_full: OnFull,
    /// How the log on stderr is written: for human beings, or one JSON object in a line
    #[arg(long, env = "LIMITER_LOG_FORMAT", value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,
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
    pub(crate) kernel_log: bool,
    /// The host's name in the cluster [default: its own]
    #[arg(long, env = "LIMITER_CLUSTER_NAME", value_name = "NAME")]
    pub(crate) cluster_name: Option<String>,
    /// Be in a cluster: the address and UDP port of this host that its peers come to [default: none]
    #[arg(
        long,
        env = "LIMITER_CLUSTER_LISTEN",
        value_name = "ADDR:PORT",
        value_parser = parse_cluster_listen
    )]
    pub(crate) cluster_listen: Option<SocketAddr>,
    /// Members of the cluster to ask for the others: addresses or DNS names with ports, commas between them
    ///
    /// A host without seeds that has been in no cluster yet founds one.
    #[arg(long, env = "LIMITER_CLUSTER_SEEDS", value_name = "HOST:PORT", value_delimiter = ',')]
    pub(crate) cluster_seeds: Vec<Seed>,
    /// The file with the key that all hosts of the cluster have; see `limiter cluster key generate`
    #[arg(long, env = "LIMITER_CLUSTER_KEY_FILE", value_name = "FILE", default_value = KEY_FILE)]
    pub(crate) cluster_key_file: PathBuf,
    /// The host's part of every limit, relative to those of the others: 1 to 1000
    #[arg(long, env = "LIMITER_CLUSTER_WEIGHT", value_name = "N", default_value_t = 100)]
    pub(crate) cluster_weight: u32,
    /// The region that the host is in: limits are shared within regions first
    ///
    /// Hosts that are near to each other, some milliseconds, should have the same name here; all of one data centre,
    /// say. The hosts of a region divide what is their own of a limit among them, and only what they lack is borrowed
    /// from other regions, of each source by one host for all of the region. That saves traffic between regions, and
    /// keeps what is near fast. It costs time: what moves between regions takes some round trips between them, and what
    /// a region has lent when it is cut off lies idle for some seconds. Without regions far from each other leave it.
    #[arg(long, env = "LIMITER_CLUSTER_REGION", value_name = "NAME", default_value = "default")]
    pub(crate) cluster_region: String,
    /// Start with fresh maps, without the buckets and counters of the pinned ones; limits are kept
    #[arg(long)]
    #[serde(skip)]
    pub(crate) reset_state: bool,
}

fn as_duration<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::error::Failure;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    fn set(arguments: &[&str]) -> (String, Vec<String>, String, bool) {
        let all = ["limiter", "limit", "set"].iter().chain(arguments);
        let cli = Cli::try_parse_from(all).unwrap();
        match cli.command {
            Command::Limit(LimitCommand::Set(arguments)) => {
                (arguments.rate, arguments.burst, arguments.target, cli.global.json)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_come_before_or_after_a_rate() {
        let wanted = ("5pps".to_owned(), vec!["2k".to_owned()], "192.0.2.1".to_owned(), true);
        assert_eq!(set(&["5pps", "--burst", "2k", "--for", "192.0.2.1", "--json"]), wanted);
        assert_eq!(set(&["--json", "--for=192.0.2.1", "--burst", "2k", "5pps"]), wanted);
        let (rate, burst, target, json) = set(&["-5pps"]);
        assert_eq!(
            (rate.as_str(), burst.len(), target.as_str(), json),
            ("-5pps", 0, "default", false)
        );
        assert_eq!(set(&["5pps", "--burst", "-2"]).1, ["-2"]);
        assert_eq!(set(&["5pps", "1mbit", "--burst", "2", "--burst", "9k"]).1, ["2", "9k"]);
    }

    fn target(arguments: &[&str]) -> Result<String, Failure> {
        let all = ["limiter", "limit", "unset"].iter().chain(arguments);
        match Cli::try_parse_from(all).unwrap().command {
            Command::Limit(LimitCommand::Unset { target, kind, .. }) => {
                kind.target(&target).map(|target| target.short())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_make_a_class() {
        for (arguments, found) in [
            (&[][..], "default"),
            (&["--proto", "udp", "--dport", "53"], "default udp:53"),
            (&["-p", "47", "--for", "192.0.2.1"], "192.0.2.1 gre"),
            (&["--dport", "1000-2000"], "default *:1000-2000"),
            (&["--syn", "--as-one", "--for", "192.0.2.0/24"], "192.0.2.0/24 tcp/syn,!ack as-one"),
            (&["--tcp-flags", "rst", "--dport", "80"], "default tcp:80/rst"),
        ] {
            assert_eq!(target(arguments).unwrap(), found);
        }
        for (arguments, about) in [
            (&["--proto", "tpc"][..], "tpc"),
            (&["--proto", "icmp", "--dport", "8"], "only TCP and UDP"),
            (&["--dport", "-5"], "-5"),
            (&["--proto", "udp", "--syn"], "only TCP has flags"),
            (&["--for", "192.0.2.0/24 udp:53"], "neither an IP address"),
        ] {
            let failure = target(arguments).unwrap_err();
            assert!(failure.message.contains(about) && failure.hint.is_some(), "{failure}");
        }
    }
}
