//! Every command and option.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::capture::CaptureArgs;
use super::cluster::ClusterCommand;
use super::limit_args::LimitCommand;
use super::rule::RuleCommand;
use super::safety::SafetyArgs;
use super::simulate::SimulateCommand;
use super::sketch::SketchCommand;
use api::address::Address;
use api::client::Client;
use model::Reach;
use model::instance::Instance;
use model::interface::Mode;
use model::traffic::{GroupBy, Sort};
use model::units::parse_duration;
use settings::RunArgs;
use telemetry::event::Kind;

/// Limits the packets of each source address, in the kernel at the network card
#[derive(Debug, Parser)]
#[command(name = "limiter", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

// What every command has comes after what it has of its own, and in `--help` alone.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(super) struct Global {
    /// The instance: a daemon with interfaces, limits and buckets of its own
    ///
    /// By default its socket is /run/limiter/NAME/limiter.sock, its configuration
    /// /etc/limiter/NAME.toml, its limits are in /var/lib/limiter/NAME and its pins in
    /// /sys/fs/bpf/limiter@NAME. A name has 1 to 32 of the characters a to z, 0 to 9, _ and -.
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        value_name = "NAME",
        env = "LIMITER_INSTANCE"
    )]
    pub(super) instance: Option<Instance>,
    /// The daemon's socket
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        value_name = "PATH",
        env = "LIMITER_SOCKET",
        // `config::socket` asks whether this is the default: only then may the configuration name
        // another one.
        default_value = "/run/limiter/limiter.sock"
    )]
    pub(super) socket: PathBuf,
    /// The configuration file [default: /etc/limiter/limiter.toml, if it is there]
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        value_name = "FILE",
        env = "LIMITER_CONFIG"
    )]
    // No default value: that file may be missing, while one that is named must be there.
    pub(super) config: Option<PathBuf>,
    /// Print exactly one JSON document on stdout
    #[arg(long, global = true, hide_short_help = true)]
    pub(super) json: bool,
    /// Log more on stderr; twice for still more
    #[arg(short, long, global = true, hide_short_help = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(super) verbose: u8,
    /// Log errors only
    #[arg(short, long, global = true, hide_short_help = true)]
    pub(super) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the daemon in the foreground
    // Boxed: it has every key of the configuration, and each other command would be as large.
    Run(Box<RunArgs>),
    /// Show the state of daemon and data plane; exit code 1 if degraded
    Status,
    /// Show the counters: every packet is in exactly one of them
    Stats {
        /// Only those that are not zero
        #[arg(long)]
        nonzero: bool,
    },
    /// Set, list and remove limits
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Set, list and remove limits of single keys that limiter-serve decides on
    #[command(subcommand)]
    Rule(RuleCommand),
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
    /// Save what the data plane estimates, and merge it with that of other hosts
    #[command(subcommand)]
    Sketch(SketchCommand),
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
        #[arg(value_name = "IP", required_unless_present = "key")]
        address: Option<String>,
        /// What each host of the cluster knows of it, and the sums
        ///
        /// Exit code 1 if a host does not answer within a second; it is named.
        #[arg(long)]
        cluster: bool,
        /// How a key of limiter-serve stands, in place of a source: a domain and entries of a descriptor
        #[arg(long, num_args = 2.., value_names = ["DOMAIN", "KEY=VALUE"])]
        #[arg(conflicts_with_all = ["address", "cluster"])]
        key: Vec<String>,
        #[command(flatten)]
        serve: ServeArgs,
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
    /// Try out what cannot be tried out on real hosts: clusters that fail, and all algorithms; needs no daemon
    #[command(subcommand)]
    Simulate(SimulateCommand),
    /// Show the versions of the program and of its map layouts
    Version,
    /// Print the completions for a shell
    ///
    /// For bash: limiter completions bash >/etc/bash_completion.d/limiter. Packages bring them along.
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Write manual pages and shell completions
    // For whoever builds a package. Operators have `completions`.
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
    // The options of `run`, so that a unit's command line can be tried as it stands.
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
// Where PPS and ERROR come from decides how far they can be trusted, and a screen has no room for
// that.
const TOP: &str = "\
Keys: d, p, b and k sort by packets dropped, packets/s, bits/s and packets; / filters by a part of the
line or by a prefix; space stops and goes on; enter shows a source's history and limit, esc goes back;
? tells all keys; q ends.

PPS and BITS/S are rates of the last moments: 5 seconds at the most, 0.2 seconds if nobody watched before.
Sources that are equal in what is sorted by are in the order of packets/s, then of packets: where nothing is
dropped, those that send most come first. PASSED, DROPPED and BYTES count since the source got its bucket;
ERROR is what PASSED may be too low by: packets that passed below the gate in the sketch's two windows before
that. On a terminal --once leaves out columns that do not fit; FIRST and LAST are how long ago.

--by prefix sums IPv4 sources up by /24 and IPv6 ones by /64, by /56 where 8 or more /64s of it have a
bucket, and by /48 where 8 or more /56s of it have; --by class sums up all sources of a class that has a
limit of its own.";

/// What a proposal is made of.
const SUGGEST: &str = "\
The rate is what the given share of sources exceeds, with a fifth more; the burst 120 % of a second, or what
such sources sent within one second. What it would touch is told for the long run, when bursts are used up.
Nothing is set: copy the command that is printed, or try it first with `limiter limit shadow set`.

Where the share is less than one source, the limit is above the heaviest of them. A note says so, and names
a share that would make a difference. A source that sends more than half of all packets is left out of what is
usual, and named.

A table compares the kernel's algorithms on what sources sent second by second. Recommended is the limit that
lets the fewest packets of a source through in any minute; a token bucket if that is about as few.

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
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration, allow_hyphen_values = true)]
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
        // Text, as only the daemon knows to which prefix a source is cut.
        targets: Vec<String>,
        /// For how long, such as 10m or 7d; the kernel ends it also without the daemon
        #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
        ttl: Option<Duration>,
        /// Why, for whoever reads the list later
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// On this host alone, or on all hosts of the cluster, which only the deny list can be [default: local]
        #[arg(long, value_enum, value_name = "SCOPE")]
        scope: Option<Reach>,
        /// Also add IPv4 prefixes shorter than /8 and IPv6 prefixes shorter than /16
        #[arg(long)]
        yes: bool,
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
    /// Remove all that were added, bans as well; what the configuration file lists stays
    Clear {
        /// Do it; otherwise only their number is told
        #[arg(long)]
        yes: bool,
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
    pub(super) by: GroupBy,
    /// Of all hosts of the cluster together, as if their traffic had come to one
    ///
    /// Exit code 1 if a host does not answer within a second; it is named.
    #[arg(long)]
    pub(super) cluster: bool,
    /// Keys that limiter-serve denied most lately, in place of sources
    #[arg(long, conflicts_with_all = ["by", "sort", "cluster"])]
    pub(super) keys: bool,
    #[command(flatten)]
    pub(super) serve: ServeArgs,
}

/// Where `limiter-serve` is asked.
#[derive(Clone, Debug, Args)]
pub(super) struct ServeArgs {
    /// The HTTP face of limiter-serve: IP:PORT or unix:PATH
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080",
        env = "LIMITER_SERVE_HTTP"
    )]
    pub(super) serve: Address,
}

impl ServeArgs {
    pub(super) fn client(&self) -> Client {
        Client::of_serve(self.serve.clone())
    }
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
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
    #[arg(default_value = "1h")]
    pub(super) since: Duration,
    /// How long ago it ends
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
    #[arg(default_value = "0s")]
    pub(super) until: Duration,
    /// The length of a step [default: what makes some hundred steps]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
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
    // No third value picks one of the two: a silent fallback would
    // cost most of the speed, and nobody would know why.
    #[arg(long, value_enum, default_value = "native")]
    pub(super) mode: Mode,
    /// Take the place of another XDP program
    #[arg(long)]
    pub(super) replace: bool,
}

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Look at this interface, too
    #[arg(value_name = "IFACE", conflicts_with = "store")]
    pub(super) interface: Option<String>,
    /// Look at the central store of limiter-serve, and at nothing else
    #[arg(long)]
    pub(super) store: bool,
    #[command(flatten)]
    pub(super) serve: ServeArgs,
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use api::error::Failure;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    /// Asserts of `command` and those below it what help tells first, and returns how many they are.
    fn assert_help(command: &mut clap::Command) -> usize {
        let name = command.get_name().to_owned();
        let [short, long] =
            [command.render_help().to_string(), command.render_long_help().to_string()];
        assert!(
            !short.contains("--socket <PATH>") && !short.contains("Global options"),
            "{name}: {short}"
        );
        let (own, global) = long.split_once("\nGlobal options:\n").expect("a heading");
        assert!(own.contains("\nOptions:\n") && !own.contains("--socket <PATH>"), "{name}: {long}");
        for option in ["--instance", "--socket", "--config", "--json", "--verbose", "--quiet"] {
            assert!(global.contains(option), "{name} {option}: {long}");
        }
        1 + command.get_subcommands_mut().map(assert_help).sum::<usize>()
    }

    #[test]
    fn help_tells_a_commands_own_options_first() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        assert!(assert_help(&mut command) > 30);
        let run = command.find_subcommand_mut("run").unwrap().render_long_help().to_string();
        let (own, cluster) = run.split_once("\nCluster options:\n").expect("a heading");
        assert!(!own.contains("--cluster-") && cluster.contains("--cluster-region"), "{run}");
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
            (
                &["--syn", "--aggregate", "--for", "192.0.2.0/24"],
                "192.0.2.0/24 tcp/syn,!ack aggregate",
            ),
            (&["--tcp-flags", "rst", "--dport", "80"], "default tcp:80/rst"),
            (&["--proto", "udp", "--sport", "53"], "default udp:from-53"),
            (&["--icmp", "3/4"], "default icmp:3/4"),
            (&["--fragments", "--aggregate"], "default *:fragments aggregate"),
        ] {
            assert_eq!(target(arguments).unwrap(), found);
        }
        for (arguments, about) in [
            (&["--proto", "tpc"][..], "tpc"),
            (&["--proto", "icmp", "--dport", "8"], "only TCP and UDP"),
            (&["--dport", "-5"], "-5"),
            (&["--sport", "53", "--fragments"], "with a protocol alone"),
            (&["--proto", "tcp", "--icmp", "8"], "only ICMP"),
            (&["--proto", "udp", "--syn"], "only TCP has flags"),
            (&["--for", "192.0.2.0/24 udp:53"], "neither an IP address"),
        ] {
            let failure = target(arguments).unwrap_err();
            assert!(failure.message.contains(about) && failure.hint.is_some(), "{failure}");
        }
    }
}
