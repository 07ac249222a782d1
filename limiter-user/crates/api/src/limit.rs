//! Limits.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Applied, Diff, Print, Rule, text};
use model::limit::is_nothing;
use model::units::format_burst;
use model::{
    Algorithm, Ban, Class, Limit, OnError, Partition, Rate, Reach, Scope, Target, Tier, Unit, lease,
};

/// Where a limit comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitOrigin {
    /// It was set at run time, and is stored.
    #[default]
    Runtime,
    /// The configuration file has it.
    File,
}

impl LimitOrigin {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::File => "file",
        }
    }
}

/// A rate and its burst.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierReport {
    /// The rate in its largest exact unit.
    pub rate: Rate,
    /// The burst as it is written.
    pub burst: String,
    /// Packets or bytes per second.
    pub rate_per_second: f64,
    /// Packets or bytes at once.
    pub burst_amount: u64,
    /// What is counted.
    pub unit: Unit,
    /// Of a limit that sources share, what all CPUs together may hold of it, packets or bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_amount: Option<u64>,
}

impl From<Tier> for TierReport {
    fn from(tier: Tier) -> Self {
        Self {
            rate: tier.rate,
            burst: tier.burst_text(),
            rate_per_second: tier.rate.per_second(),
            burst_amount: tier.burst,
            unit: tier.rate.unit(),
            held_amount: None,
        }
    }
}

/// A limit as it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitReport {
    /// Whom and what it is for, which tells it from others: `default`, a prefix, `default udp:53`,
    /// `10.0.0.0/8 aggregate`.
    pub target: Target,
    /// The class of packets in it, if it is not for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// Whether all sources share it.
    // The key keeps its first name: scripts read it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not", rename = "as_one")]
    pub aggregate: bool,
    /// The rate in its largest exact unit.
    pub rate: Rate,
    /// The burst as it is written.
    pub burst: String,
    /// Packets or bytes per second.
    pub rate_per_second: f64,
    /// Packets or bytes at once.
    pub burst_amount: u64,
    /// What is counted.
    pub unit: Unit,
    /// How it is kept.
    #[serde(default, skip_serializing_if = "Algorithm::is_bucket")]
    pub algorithm: Algorithm,
    /// What holds at the same time, in bytes; then the rest is in packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<TierReport>,
    /// Packets in a sketch window below which a source needs no bucket.
    // Shown, as a limit of gate 1 gives each source a bucket at once, spoofed ones too.
    pub gate: u32,
    /// Whether what is over it is dropped, rather than only counted.
    pub enforce: bool,
    /// What becomes of a source that goes on to be far over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban: Option<Ban>,
    /// Where it holds.
    #[serde(default)]
    pub scope: Reach,
    /// Of a limit for the cluster, what becomes of the shares of hosts that cannot be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
    /// Of a strict limit, what a host admits while the central store leases nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// Of a strict limit, for how many seconds more than it sends a source gets its rate at the most, beside the burst and
    /// a packet of each host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond_seconds: Option<f64>,
    /// What each further side of a partition may let through beyond the limit, packets or bytes per second, and as
    /// much of the burst: hosts on k sides that cannot reach each other exceed it by k - 1 times this. Nothing if
    /// they never do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond_per_side: Option<f64>,
    /// Of a limit for the cluster, how many hosts have a share of it, as far as this one knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<u32>,
    /// Of a limit for the cluster, what a source may send at once to all hosts together, packets or bytes: the burst,
    /// or a packet for each host where that is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_burst_amount: Option<u64>,
    /// Of a limit that sources share, how much of the burst is kept for known sources, percent.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub reserve: u8,
    /// Of a limit that sources share, what all CPUs together may hold of it, packets or bytes. Up to twice as much
    /// may pass beyond burst and rate, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_amount: Option<u64>,
    /// Where it comes from.
    #[serde(default)]
    pub origin: LimitOrigin,
}

/// How limits differ.
pub type DiffReport = Diff<LimitReport>;

impl Rule for LimitReport {
    type Target = Target;

    fn target(&self) -> Self::Target {
        self.target
    }

    fn name(&self) -> String {
        self.target.short()
    }

    fn summary(&self) -> String {
        self.summary()
    }
}

/// What each further side of a partition lets through beyond a limit, if it does.
fn beyond_per_side(scope: Scope, rate_per_second: f64) -> Option<f64> {
    let partition = scope.partition()?;
    // What a second side adds is what each further one adds. Only `available` adds anything.
    Some(rate_per_second * (partition.bound(2) - partition.bound(1))).filter(|more| *more > 0.0)
}

/// For how long a source may get its rate beyond a window under a strict limit.
fn beyond_seconds(scope: Scope) -> Option<f64> {
    scope.on_error().map(|_| lease::BEYOND.as_secs_f64())
}

/// How much a limit is, in a few words.
pub(super) fn amount(
    rate: &str,
    burst: &str,
    also: Option<&TierReport>,
    algorithm: Algorithm,
) -> String {
    if !algorithm.is_bucket() {
        // Its burst is its rate.
        let also = also.map_or_else(String::new, |also| format!(" and {}", also.rate));
        return format!("{rate}{also} by {}", algorithm.name());
    }
    let also = also.map(|also| format!(" and {} burst {}", also.rate, also.burst));
    format!("{rate} burst {burst}{}", also.unwrap_or_default())
}

/// A limit in a few words, without its target.
pub(super) fn describe(
    amount: &str,
    enforce: bool,
    ban: Option<Ban>,
    (partition, on_error): (Option<Partition>, Option<OnError>),
    reserve: u8,
) -> String {
    let ban = ban.map(|ban| format!(", {ban}")).unwrap_or_default();
    let enforced = if enforce { "" } else { ", not enforced" };
    let wide = match partition {
        None => match on_error.unwrap_or_default() {
            _ if on_error.is_none() => String::new(),
            OnError::Lease => ", strict".to_owned(),
            on_error => format!(", strict ({})", on_error.name()),
        },
        Some(partition) if partition == Partition::default() => ", cluster-wide".to_owned(),
        Some(partition) => format!(", cluster-wide ({})", partition.name()),
    };
    let reserve = match reserve {
        0 => String::new(),
        percent => format!(", {percent} % for known sources"),
    };
    format!("{amount}{enforced}{ban}{wide}{reserve}")
}

impl LimitReport {
    /// Tells `limit`, which was set at run time and whose gate is `gate`.
    // The gate depends on the sketch's window and so on the host, not on what the operator wrote.
    pub fn new(limit: &Limit, gate: u32) -> Self {
        let class = limit.target.class;
        let TierReport { rate, burst, rate_per_second, burst_amount, unit, .. } =
            limit.tier().into();
        Self {
            target: limit.target,
            class: (!class.is_any()).then_some(class),
            aggregate: limit.target.aggregate,
            rate,
            burst,
            rate_per_second,
            burst_amount,
            unit,
            algorithm: limit.algorithm,
            also: limit.also.map(Into::into),
            gate,
            enforce: limit.enforce,
            ban: limit.ban,
            scope: limit.scope.reach(),
            partition: limit.scope.partition(),
            on_error: limit.scope.on_error(),
            beyond_seconds: beyond_seconds(limit.scope),
            beyond_per_side: beyond_per_side(limit.scope, rate_per_second),
            // Only the cluster knows, and a host alone must not claim a number.
            hosts: None,
            cluster_burst_amount: None,
            reserve: limit.reserve,
            held_amount: None,
            origin: LimitOrigin::Runtime,
        }
    }

    /// Tells where it holds.
    pub fn set_scope(&mut self, scope: Scope) {
        (self.scope, self.partition) = (scope.reach(), scope.partition());
        (self.on_error, self.beyond_seconds) = (scope.on_error(), beyond_seconds(scope));
        self.beyond_per_side = beyond_per_side(scope, self.rate_per_second);
    }

    /// Tells how many hosts share it, each of which lets a packet of up to `frame` bytes through.
    pub fn set_hosts(&mut self, hosts: u32, frame: u32) {
        // However small its share, each host lets one packet of a source through.
        let packet = match self.unit {
            _ if self.aggregate => 0,
            Unit::Bytes => frame,
            Unit::Packets => 1,
        };
        let packets = u64::from(hosts) * u64::from(packet);
        self.hosts = Some(hosts);
        // The bound of P6 as it is proved: without a packet a host, 5/minute would shut out every
        // client.
        self.cluster_burst_amount = Some(self.burst_amount.max(packets));
    }

    /// Tells what all CPUs together may hold of each rate.
    pub fn set_held(&mut self, [first, second]: [Option<u64>; 2]) {
        self.held_amount = first;
        if let Some(also) = &mut self.also {
            also.held_amount = second;
        }
    }

    /// What CPUs may hold of it, if they do.
    fn held(&self) -> Option<String> {
        let also = self.also.as_ref().map(|also| (also.held_amount, also.unit));
        let amounts = [Some((self.held_amount, self.unit)), also].into_iter().flatten();
        let held: Vec<String> = amounts
            .filter_map(|(amount, unit)| Some(format_burst(amount.filter(|it| *it > 0)?, unit)))
            .collect();
        (!held.is_empty()).then(|| {
            let (target, held) = (self.target.short(), held.join(" and "));
            // Each host's CPUs may hold as much, and its bucket has room for that.
            let times = self.hosts.unwrap_or(1) + 1;
            format!(
                "{target}: CPUs of a host hold up to {held} together; {times} times that may pass beyond it, once"
            )
        })
    }

    /// Where it holds, as tables have it.
    fn scopes(&self) -> String {
        let partition = self.partition.filter(|partition| *partition != Partition::default());
        let on_error = self.on_error.filter(|on_error| *on_error != OnError::default());
        match partition.map(Partition::name).or(on_error.map(OnError::name)) {
            Some(more) => format!("{} ({more})", self.scope.name()),
            None => self.scope.name().to_owned(),
        }
    }

    /// By how much hosts may exceed it while they cannot reach each other, if they do.
    pub fn bound(&self) -> Option<String> {
        let (target, rates) = (self.target.short(), self.rates());
        let note = || {
            format!(
                "{target}: each side of a partition lets {rates} through, so k sides k times as much"
            )
        };
        let strict = |seconds: f64| {
            let burst = &self.burst;
            format!(
                "{target}: hosts with one store let burst {burst} and {rates} for T + {seconds} s through in any time T, \
                 and one packet each"
            )
        };
        self.beyond_per_side.map(|_| note()).or(self.beyond_seconds.map(strict))
    }

    /// The limit in a few words.
    pub fn summary(&self) -> String {
        let rate = self.rate.to_string();
        let amount = amount(&rate, &self.burst, self.also.as_ref(), self.algorithm);
        let wide = (self.partition, self.on_error);
        describe(&amount, self.enforce, self.ban, wide, self.reserve)
    }

    /// Its rates as tables have them.
    pub fn rates(&self) -> String {
        let also = self.also.as_ref().map(|also| format!(" + {}", also.rate));
        format!("{}{}", self.rate, also.unwrap_or_default())
    }

    /// Its bursts as tables have them.
    fn bursts(&self) -> String {
        let also = self.also.as_ref().map(|also| format!(" + {}", also.burst));
        format!("{}{}", self.burst, also.unwrap_or_default())
    }
}

/// `limit import`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitsImported {
    /// Limits in the list.
    pub read: u64,
    /// Of those, new or different from before.
    pub changed: u64,
    /// Of those that changed, limits for targets that had none.
    pub added: u64,
    /// What every change tells.
    #[serde(flatten)]
    pub applied: Applied<LimitReport>,
}

impl Print for LimitsImported {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { read, changed, added, .. } = self;
        self.applied.print(out, |out| {
            let (replaced, unchanged) = (changed - added, read - changed);
            let each = format!("{added} added, {replaced} changed, {unchanged} unchanged");
            writeln!(out, "{read} limits read: {each}")
        })
    }
}

/// What to do where there are no limits.
// A daemon without limits enforces nothing, and says so wherever limits are told: silence would
// look like safety.
pub(super) const FIRST_LIMIT: &str =
    "set one, such as `limiter limit set 1000pps`, or let `limiter suggest` propose one";

/// `limit list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitList {
    /// All limits, the default first.
    pub limits: Vec<LimitReport>,
}

impl Print for LimitList {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.limits.is_empty() {
            return writeln!(out, "no limits are set; {FIRST_LIMIT}");
        }
        let header =
            ["TARGET", "RATE", "BURST", "ALGORITHM", "GATE", "ENFORCED", "BAN", "SCOPE", "FROM"];
        let mut table = text::table(&header, 1);
        for limit in &self.limits {
            table.add_row([
                limit.target.short(),
                limit.rates(),
                limit.bursts(),
                limit.algorithm.name().to_owned(),
                limit.gate.to_string(),
                if limit.enforce { "yes" } else { "no" }.to_owned(),
                limit.ban.map_or("no".into(), |ban| ban.to_string().replacen("ban ", "", 1)),
                limit.scopes(),
                limit.origin.name().to_owned(),
            ]);
        }
        writeln!(out, "{}", table.trim_fmt())?;
        // The greatest number: all limits of the cluster are divided among the same hosts, so it
        // is said once.
        if let Some(hosts) = self.limits.iter().filter_map(|limit| limit.hosts).max() {
            writeln!(
                out,
                "cluster: {hosts} host{} together let a source's burst through at once, or a packet each where that \
                 is more",
                if hosts == 1 { "" } else { "s" }
            )?;
        }
        let notes = self.limits.iter().flat_map(|limit| [limit.bound(), limit.held()]);
        notes.flatten().try_for_each(|note| writeln!(out, "{note}"))
    }
}

/// `limit set`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitSet {
    /// The limit in force now.
    pub limit: LimitReport,
    /// Whether it was another one before.
    pub changed: bool,
    /// The limit that was in force for this very target before.
    #[serde(default)]
    pub previous: Option<LimitReport>,
    /// What every change tells.
    #[serde(flatten)]
    pub applied: Applied<LimitReport>,
}

impl Print for LimitSet {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let (target, new) = (self.limit.target.short(), self.limit.summary());
        self.applied.print(out, |out| {
            match &self.previous {
                // `limit set` takes ban and burst of the limit before away without being asked; so
                // the old one is shown whole.
                _ if !self.changed => writeln!(out, "{target}: {new} (as before)")?,
                None => writeln!(out, "{target}: {new}")?,
                Some(old) => writeln!(out, "{target}: {} → {new}", old.summary())?,
            }
            self.limit.bound().map_or(Ok(()), |bound| writeln!(out, "{bound}"))
        })
    }
}

/// `limit unset`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitRemoved {
    /// The limit that was in force.
    pub removed: LimitReport,
    /// What every change tells.
    #[serde(flatten)]
    pub applied: Applied<LimitReport>,
}

impl Print for LimitRemoved {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let (target, old) = (self.removed.target.short(), self.removed.summary());
        self.applied.print(out, |out| writeln!(out, "{target}: removed {old}"))
    }
}

#[cfg(test)]
mod tests {
    use model::list::Reader;
    use model::{LimitInput, Limits};

    use super::*;

    #[test]
    fn a_line_says_whatever_a_command_can() {
        let text = "default udp:53 100pps 200\ndefault udp:53 aggregate 50kpps reserve=20\n10.0.0.0/8 aggregate 1gbit\n\
             192.0.2.1 1000pps+10mbit 2000+64kbyte ban-for=10m # two\n192.0.2.2 10mbit+1000pps\n\
             192.0.2.3 tcp/syn,!ack 40/minute no-enforce\n192.0.2.4 40/minute 50\n\
             192.0.2.5 5pps 9 ban-factor=3 ban-after=2s ban-for=1h ban-unverified\n\
             192.0.2.6 5pps scope=cluster partition=conservative no-enforce\n\
             192.0.2.7 5pps scope=cluster partition=available\n\
             192.0.2.8 5pps partition=majority-reclaim scope=cluster";
        let mut reader = Reader::default();
        reader.push(text.as_bytes()).unwrap();
        let mut limits = Limits::default();
        limits.apply(&reader.finish().unwrap());
        let found: Vec<_> = limits
            .iter()
            .map(|limit| {
                let report = LimitReport::new(&limit, 1);
                format!("{}: {}", limit.target.short(), report.summary())
            })
            .collect();
        assert_eq!(
            found,
            [
                "default udp:53: 100pps burst 200 packets",
                "default udp:53 aggregate: 50kpps burst 60000 packets, 20 % for known sources",
                "10.0.0.0/8 aggregate: 1gbit burst 150 mbyte",
                "192.0.2.1: 1000pps burst 2000 packets and 10mbit burst 64 kbyte, ban 10m after 5s at 10×",
                "192.0.2.2: 1000pps burst 1200 packets and 10mbit burst 1500 kbyte",
                "192.0.2.3 tcp/syn,!ack: 40/minute burst 1 packet, not enforced",
                "192.0.2.4: 40/minute burst 50 packets",
                "192.0.2.5: 5pps burst 9 packets, ban 1h after 2s at 3×, unverified",
                "192.0.2.6: 5pps burst 6 packets, not enforced, cluster-wide (conservative)",
                "192.0.2.7: 5pps burst 6 packets, cluster-wide (available)",
                "192.0.2.8: 5pps burst 6 packets, cluster-wide (majority-reclaim)",
            ]
        );
    }

    #[test]
    fn a_list_tells_what_cpus_hold() {
        let limit = LimitInput {
            target: "default aggregate".into(),
            rate: ["1mpps", "100gbit"].into_iter().collect(),
            ..LimitInput::default()
        };
        let mut report = LimitReport::new(&limit.limit().unwrap(), 1);
        let list = |report: &LimitReport| {
            let mut out = Vec::new();
            LimitList { limits: vec![report.clone()] }.print(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        report.set_held([Some(0), Some(0)]);
        assert!(!list(&report).contains("CPUs"));
        report.set_held([Some(1000), Some(12_500_000)]);
        let text = list(&report);
        let says = "default aggregate: CPUs of a host hold up to 1000 packets and 12500 kbyte together; 2 times";
        assert!(text.contains(says), "{text}");
        report.set_hosts(3, 1514);
        assert_eq!(report.cluster_burst_amount, Some(report.burst_amount));
        let text = list(&report);
        assert!(text.contains("together; 4 times"), "{text}");
    }
}
