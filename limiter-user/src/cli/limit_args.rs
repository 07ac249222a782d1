//! The options of `limiter limit`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::safety::SafetyArgs;
use api::error::Failure;
use model::ban::BanInput;
use model::class::{By, ClassText};
use model::input::OneOrMany;
use model::{LimitInput, OnError, Partition, Reach, Selector, Target};

const RATES: &str = "\
Rates:
  packets  1000pps, 10kpps, 2.5kpps, 400/minute, 5/hour
  bytes    10mbit, 1gbit, 10mbyte/s, 100kibyte/s
  k, m, g are powers of 1000, ki, mi, gi of 1024. A bare number is refused, and so are bps, kbps and
  mbps, by which tc means bytes.

Which limit applies:
  A packet is in one class: of those that limits are for, the most specific one that it matches. Flags
  go before ports, ports before the protocol, and of two port ranges the narrower goes first. Of the
  limits of that class, that of the longest prefix applies; if none covers the source, those of the
  next wider class, at last those for all packets. A source has a bucket for each limited class.
  A packet that its source's limit lets through must also get through those that are --aggregate: that of
  its class, that of the longest prefix, and that of all sources (--for default).

Examples:
  limiter limit set 1000pps --burst 2000
  limiter limit set 1000pps 10mbit --burst 2000 --burst 256kbyte --for 198.51.100.7
  limiter limit set 400/minute --for 2001:db8::/48
  limiter limit set 200pps --proto udp --dport 53
  limiter limit set 50pps --syn --ban-for 10m --ban-unverified
  limiter limit set 1gbit --for 203.0.113.0/24 --aggregate
  limiter limit set 500kpps --aggregate --reserve 20
  limiter limit set 100/minute --algorithm sliding-window
  limiter limit set 500pps --scope cluster
  limiter limit set 500pps --scope cluster --partition majority-reclaim
  limiter limit set 500kpps --aggregate --scope cluster
  limiter limit set 500pps --scope strict --on-error closed";

const LIST: &str = "\
A limit a line, as for `limit set`; # begins a comment:
  TARGET [CLASS] [aggregate] RATE[+RATE] [BURST[+BURST]] [OPTION...]

  default                    1000pps 2000
  198.51.100.7               1000pps+10mbit 2000+256kbyte
  2001:db8::/48              400/minute no-enforce algorithm=fixed-window
  default udp:53             200pps
  default tcp/syn,!ack       50pps ban-for=10m ban-after=5s ban-factor=10 ban-unverified
  192.0.2.0/24               500pps scope=cluster partition=majority-reclaim
  203.0.113.0/24 aggregate   1gbit reserve=20

A class is PROTO[:PORTS][/FLAGS]: udp:53, tcp:80-443, tcp/syn,!ack, icmp, 47, or *:53 for TCP and UDP.";

#[derive(Debug, Subcommand)]
pub(super) enum LimitCommand {
    /// Set the limit of every source, or of the sources in a prefix, each by itself
    #[command(after_help = RATES)]
    // Boxed: it is several times as large as any other command.
    Set(Box<SetArgs>),
    /// Set many limits at once: all of them, or none if one line is wrong
    #[command(after_help = LIST)]
    Import {
        /// A text file, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        safety: SafetyArgs,
    },
    /// List all limits
    List,
    /// Limits that only count what they would drop, beside those in force
    #[command(subcommand)]
    Shadow(ShadowCommand),
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
        #[command(flatten)]
        kind: KindArgs,
        #[command(flatten)]
        safety: SafetyArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ShadowCommand {
    /// Count what a limit would drop, for every source that sends enough to have a bucket
    ///
    /// Nothing is dropped by it. It goes on until it is removed, replaced, or the daemon ends.
    Set {
        /// How much each source might send
        #[arg(allow_hyphen_values = true)]
        rate: String,
        /// How much at once [default: 120 % of a second's rate]
        #[arg(long, allow_hyphen_values = true)]
        burst: Option<String>,
        /// How it is kept, as for `limit set`
        #[arg(long, value_name = "ALGORITHM")]
        algorithm: Option<String>,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Show what shadow limits would have dropped, and of which sources
    List {
        /// How many sources to name for each
        #[arg(short, default_value_t = 20)]
        n: usize,
    },
    /// Remove a shadow limit
    Unset {
        #[command(flatten)]
        target: TargetArgs,
    },
}

/// A target as it was set.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// For the sources in this prefix instead of every source
    #[arg(
        long = "for",
        value_name = "TARGET",
        default_value = "default",
        hide_default_value = true
    )]
    target: String,
    #[command(flatten)]
    kind: KindArgs,
}

impl TargetArgs {
    /// The target that is meant.
    pub(super) fn target(&self) -> Result<Target, Failure> {
        self.kind.target(&self.target)
    }
}

/// The limit that is to be set.
#[derive(Debug, Args)]
pub(super) struct SetArgs {
    /// How much each source may send
    // A negative rate gets a better answer than "unexpected argument".
    #[arg(allow_hyphen_values = true)]
    pub(super) rate: String,
    /// How much of the other unit, at the same time: packets and bytes
    #[arg(value_name = "RATE")]
    also: Option<String>,
    /// How much at once: packets (2000, 2k) or a size (64kbyte, 1mbit), by the rate's unit; twice
    /// for two rates [default: 120 % of a second's rate]
    #[arg(long, allow_hyphen_values = true)]
    // Text, as are rates and bans: options, lines of a list and the file are read by one reader, with one wording.
    pub(super) burst: Vec<String>,
    /// How it is kept: token-bucket, fixed-window or sliding-window [default: token-bucket]
    ///
    /// A token bucket admits at most burst + limit in any window as long as the rate's period. A fixed window counts
    /// from the start of each period, and admits at most twice the limit in any window. A sliding window weighs what
    /// the period before admitted: less than twice the limit, and near it for steady traffic. Windows have no burst.
    #[arg(long, value_name = "ALGORITHM")]
    algorithm: Option<String>,
    /// Drop nothing: count what would be dropped (`would_drop` in `stats`)
    #[arg(long)]
    no_enforce: bool,
    /// For the sources in this prefix instead of every source; the longest match wins
    #[arg(
        long = "for",
        value_name = "TARGET",
        default_value = "default",
        hide_default_value = true
    )]
    pub(super) target: String,
    #[command(flatten)]
    kind: KindArgs,
    #[command(flatten)]
    ban: BanArgs,
    /// Where it holds: on this host, on all hosts of the cluster, or on all that use a store [default: local]
    ///
    /// A limit for the cluster is for all its hosts; what a source gets from all of them together is to be
    /// within it. A local limit of a host hides that of the cluster for the same target on this host. Needs
    /// [cluster] in the configuration. A strict limit holds over all hosts with this limit and the same store, which
    /// leases its tokens. It needs `limiter-serve --daemon SOCKET --store URL`, and is of packets of each source.
    #[arg(long, value_enum, value_name = "SCOPE")]
    // What was not said stays unsaid: a line of a list or the file
    // may leave it out, too, and all three mean the same.
    scope: Option<Reach>,
    /// Of a limit for the cluster: what becomes of the shares of hosts that cannot be reached [default: auto]
    ///
    /// Each host has a share of the limit. While hosts are lost or cut off from others, theirs are either left
    /// alone, which never lets too much through and costs as much as they are; or used by the rest, which is
    /// safe as long as that has the majority of shares; or used by everybody on each side, which may let
    /// through k times the limit where there are k sides. When hosts see each other again all is as before.
    #[arg(long, value_enum, value_name = "POLICY", requires = "scope")]
    partition: Option<Partition>,
    /// Of a strict limit: what this host admits while the store leases nothing [default: lease]
    #[arg(long, value_enum, value_name = "ANSWER", requires = "scope")]
    on_error: Option<OnError>,
    /// Of an --aggregate limit: so much of the burst is kept for known sources, percent, 0 to 90
    ///
    /// A source is known that has a bucket and owes no more than an eighth of its burst. However many newcomers there
    /// are, known sources get what the limit earns first, and the reserve.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, hide_default_value = true)]
    reserve: u8,
    #[command(flatten)]
    pub(super) safety: SafetyArgs,
}

impl SetArgs {
    /// What is said of the limit.
    ///
    /// # Errors
    /// If the target cannot be read.
    pub(super) fn input(self) -> Result<LimitInput, Failure> {
        let Self {
            rate,
            also,
            burst,
            algorithm,
            no_enforce,
            target,
            kind,
            ban,
            scope,
            partition,
            on_error,
            reserve,
            ..
        } = self;
        Ok(LimitInput {
            target: kind.target(&target)?.to_string(),
            // Two rates are one limit: set one after the other, the second would replace the
            // first.
            rate: OneOrMany([rate].into_iter().chain(also).collect()),
            burst: OneOrMany(burst),
            algorithm,
            enforce: !no_enforce,
            ban: ban.input(),
            scope,
            partition,
            on_error,
            reserve,
        })
    }
}

/// Which packets a limit is for, and who shares it.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct KindArgs {
    /// Only for packets of this protocol: tcp, udp, icmp, … or a number
    #[arg(short, long, alias = "protocol", value_name = "PROTO", allow_hyphen_values = true)]
    proto: Option<String>,
    /// Only for TCP and UDP packets to this port, or range such as 1000-2000
    #[arg(long, value_name = "PORTS", allow_hyphen_values = true)]
    dport: Option<String>,
    /// Only for TCP and UDP packets from this port, or range: answers that nobody asked for
    #[arg(long, value_name = "PORTS", allow_hyphen_values = true)]
    sport: Option<String>,
    /// Only for this type of ICMP, such as 8, or type and code, such as 3/4
    #[arg(long, value_name = "TYPE[/CODE]", allow_hyphen_values = true)]
    icmp: Option<String>,
    /// Only for fragments but the first one of each packet, which have no ports
    #[arg(long)]
    fragments: bool,
    /// Only for packets to this address or prefix: what each source may send to a service
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    dst: Option<String>,
    /// Who has the limit: each source by itself, or each destination by itself, whoever sends
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// Only for TCP packets with these flags, and without those after a !, such as 'syn,!ack'
    #[arg(long, value_name = "FLAGS")]
    tcp_flags: Option<String>,
    /// Only for the first packets of TCP connections: short for --tcp-flags 'syn,!ack'
    #[arg(long, conflicts_with = "tcp_flags")]
    syn: bool,
    /// One limit that all sources share, beside those that each has by itself; for the default target,
    /// the total of all sources
    #[arg(long)]
    aggregate: bool,
}

impl KindArgs {
    /// The target that is meant for those in `whom`.
    pub(super) fn target(&self, whom: &str) -> Result<Target, Failure> {
        let text = ClassText {
            proto: self.proto.as_deref(),
            dport: self.dport.as_deref(),
            sport: self.sport.as_deref(),
            icmp: self.icmp.as_deref(),
            fragments: self.fragments,
            dst: self.dst.as_deref(),
            by: self.by,
            tcp_flags: self.tcp_flags.as_deref(),
            syn: self.syn,
        };
        let whom = whom.parse::<Selector>()?;
        let class = text.read()?;
        Ok(Target { whom, class, aggregate: self.aggregate })
    }
}

/// What becomes of sources that go on to be far over a limit.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct BanArgs {
    /// Deny a source that goes on to be far over the limit for so long, such as 10m
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    // Texts, as in a line of a list and in the file: one reader judges all three with the same
    // words.
    ban_for: Option<String>,
    /// How long it must be so far over the limit, 1s to 1h [default: 5s]
    #[arg(long, value_name = "DURATION", requires = "ban_for", allow_hyphen_values = true)]
    ban_after: Option<String>,
    /// How many times the limit it must offer [default: 10]
    #[arg(long, value_name = "N", requires = "ban_for", allow_hyphen_values = true)]
    ban_factor: Option<String>,
    /// Deny it also if nothing shows that its address is not forged
    #[arg(long, requires = "ban_for")]
    ban_unverified: bool,
}

impl BanArgs {
    /// What is asked for.
    fn input(self) -> Option<BanInput> {
        let Self { ban_for, ban_after, ban_factor, ban_unverified: unverified } = self;
        // Nothing else asks for a ban: the parser refuses the others without this one.
        let lasts = Some(ban_for?);
        Some(BanInput { after: ban_after, factor: ban_factor, lasts, unverified })
    }
}
