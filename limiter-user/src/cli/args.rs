//! Every command and option.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use crate::daemon::OnExit;
use crate::dataplane::{Mode, OnFull};
use crate::report::Sort;

const RATES: &str = "\
Rates:
  packets  1000pps, 10kpps, 2.5kpps, 400/minute, 5/hour
  bytes    10mbit, 1gbit, 10mbyte/s, 100kibyte/s
  k, m, g are powers of 1000, ki, mi, gi of 1024. A bare number is refused, and so are bps, kbps and
  mbps, by which tc means bytes.

Examples:
  limiter limit set 1000pps --burst 2000
  limiter limit set 10mbit --burst 256kbyte --for 198.51.100.7
  limiter limit set 400/minute --for 2001:db8::/48";

/// Rations packets per source address at the network card.
#[derive(Debug, Parser)]
#[command(name = "limiter", version, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Args)]
pub(super) struct Global {
    /// The daemon's socket
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "LIMITER_SOCKET",
        default_value = "/run/limiter/limiter.sock"
    )]
    pub(super) socket: PathBuf,
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
    /// List the heaviest sources
    #[command(after_help = TOP)]
    Top(TopArgs),
    /// Show what is known of a source
    Show {
        /// An address of the source
        #[arg(value_name = "IP")]
        address: String,
    },
    /// Attach to an interface
    Attach(AttachArgs),
    /// Detach from an interface
    Detach {
        /// The interface's name
        #[arg(value_name = "IFACE")]
        interface: String,
    },
    /// Show the versions of the program and of its map layouts
    Version,
}

/// How a list of limits is written.
const LIST: &str = "\
A limit a line, TARGET RATE [BURST], as for `limit set`; # begins a comment:
  default        1000pps 2000
  198.51.100.7   10mbit
  2001:db8::/48  400/minute";

/// What rates are over which time.
const TOP: &str = "\
PPS is the rate since an earlier `top`, if one ran 0.2 to 10 seconds ago (the daemon keeps the counts of
the last two), and else the average since the source got its bucket. With --sort pps the rates must
be of the present: if there was no such `top`, the command waits 0.2 seconds.";

#[derive(Debug, Subcommand)]
pub(super) enum LimitCommand {
    /// Set the limit of every source, or of the sources in a prefix, each by itself
    #[command(after_help = RATES)]
    Set {
        /// How much each source may send
        // A negative rate gets a better answer than "unexpected argument".
        #[arg(allow_hyphen_values = true)]
        rate: String,
        /// How much at once: packets (2000, 2k) or a size (64kbyte, 1mbit), by the rate's unit
        /// [default: 120 % of a second's rate]
        #[arg(long, allow_hyphen_values = true)]
        burst: Option<String>,
        /// For the sources in this prefix instead of every source; the longest match wins
        #[arg(
            long = "for",
            value_name = "TARGET",
            default_value = "default",
            hide_default_value = true
        )]
        target: String,
    },
    /// Set many limits at once: all of them, or none if one line is wrong
    #[command(after_help = LIST)]
    Import {
        /// A text file, or - for standard input
        file: PathBuf,
    },
    /// List all limits
    List,
    /// Remove the limit of every source, or of a prefix
    Unset {
        /// Of this prefix, as it was set, instead of every source
        #[arg(
            long = "for",
            value_name = "TARGET",
            default_value = "default",
            hide_default_value = true
        )]
        target: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Print once and end
    #[arg(long)]
    pub(super) once: bool,
    /// How many sources
    #[arg(short, default_value_t = 20)]
    pub(super) n: usize,
    /// What to sort by
    #[arg(long, value_enum, default_value_t)]
    pub(super) sort: Sort,
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

/// What happens to packets without a readable source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Malformed {
    /// They pass.
    Pass,
    /// They are dropped.
    Drop,
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Attach to this interface, besides those attached already; may be repeated
    #[arg(short, long = "interface", value_name = "IFACE")]
    pub(super) interfaces: Vec<String>,
    /// In the driver, or in the network stack where the driver cannot (several times slower)
    #[arg(long, value_enum, default_value = "native")]
    pub(super) mode: Mode,
    /// Take the place of another XDP program
    #[arg(long)]
    pub(super) replace: bool,
    /// The group that may use the socket, if it exists; else only root
    #[arg(long, value_name = "NAME", default_value = "limiter")]
    pub(super) socket_group: String,
    /// Where limits are stored
    #[arg(long, value_name = "DIR", default_value = "/var/lib/limiter")]
    pub(super) state_dir: PathBuf,
    /// Where maps and links are pinned, on a BPF file system
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/limiter")]
    pub(super) pin_dir: PathBuf,
    /// Whether the limits stay in force when the daemon ends
    #[arg(long, value_enum, default_value = "keep")]
    pub(super) on_exit: OnExit,
    /// The sketch's error, relative to all packets of a window: its width is e/ε
    #[arg(long, value_name = "ε", default_value_t = 0.000025)]
    pub(super) sketch_epsilon: f64,
    /// The probability that the sketch's error is larger: its depth is ln 1/δ
    #[arg(long, value_name = "δ", default_value_t = 0.14)]
    pub(super) sketch_delta: f64,
    /// The sketch's window, rounded to a power of two of nanoseconds
    #[arg(long, value_name = "DURATION", default_value = "134ms", value_parser = humantime::parse_duration)]
    pub(super) sketch_window: Duration,
    /// Sources that can be limited at once, rounded up to a power of two; 80 bytes each
    #[arg(long, value_name = "N", default_value_t = 524_288)]
    pub(super) max_sources: u32,
    /// Limits of single sources that can be set
    #[arg(long, value_name = "N", default_value_t = 1_048_576)]
    pub(super) max_limits: u32,
    /// Leading bits of an IPv4 address that make a source
    #[arg(long, value_name = "BITS", default_value_t = 32)]
    pub(super) ipv4_prefix: u8,
    /// Leading bits of an IPv6 address that make a source
    #[arg(long, value_name = "BITS", default_value_t = 64)]
    pub(super) ipv6_prefix: u8,
    /// What happens to IP packets whose source cannot be read
    #[arg(long, value_enum, default_value = "pass")]
    pub(super) malformed: Malformed,
    /// What happens to a source for which the bucket table has no place
    #[arg(long, value_enum, default_value = "pass")]
    pub(super) on_full: OnFull,
    /// Start with fresh maps, without the buckets and counters of the pinned ones; limits are kept
    #[arg(long)]
    pub(super) reset_state: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    fn set(arguments: &[&str]) -> (String, Option<String>, String, bool) {
        let all = ["limiter", "limit", "set"].iter().chain(arguments);
        let cli = Cli::try_parse_from(all).unwrap();
        match cli.command {
            Command::Limit(LimitCommand::Set { rate, burst, target }) => {
                (rate, burst, target, cli.global.json)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_come_before_or_after_a_rate() {
        let wanted = ("5pps".to_owned(), Some("2k".to_owned()), "192.0.2.1".to_owned(), true);
        assert_eq!(set(&["5pps", "--burst", "2k", "--for", "192.0.2.1", "--json"]), wanted);
        assert_eq!(set(&["--json", "--for=192.0.2.1", "--burst", "2k", "5pps"]), wanted);
        let (rate, burst, target, json) = set(&["-5pps"]);
        assert_eq!(
            (rate.as_str(), burst, target.as_str(), json),
            ("-5pps", None, "default", false)
        );
        assert_eq!(set(&["5pps", "--burst", "-2"]).1.as_deref(), Some("-2"));
    }
}
