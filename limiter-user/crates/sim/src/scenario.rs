//! Scenarios: a cluster, what its sources send, and what goes wrong.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::clock::Span;
use super::demand::{Among, Demand, Pattern};
use super::kernel::Packets;
use super::network::Conditions;
use super::regions::{RegionPart, assign};
use cluster::escrow::Partition;
use model::{Algorithm, Amount, Invalid, Limit, Location, Rate, Target, Tier, Unit};

/// The most hosts of a scenario.
// Each host has a view of each other one, so a run grows with their square.
pub const MAX_HOSTS: usize = 1000;
/// The most sources.
// Each host has a bucket for each of them, and each tick visits all.
const MAX_KEYS: usize = 10_000;
/// The longest run.
const MAX_RUN: Duration = Duration::from_secs(600);

/// Weight of each host, until it is changed.
pub(super) const WEIGHT: u32 = 100;

/// How soon hosts notice who is there: each at a random moment of its own between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Detection {
    /// That a host is gone, at the earliest.
    pub earliest: Span,
    /// That a host is gone, at the latest.
    pub latest: Span,
    /// That a host has come, at the latest.
    pub joined: Span,
}

impl Default for Detection {
    fn default() -> Self {
        let span = |ms| Span(Duration::from_millis(ms));
        Self { earliest: span(500), latest: span(2000), joined: span(500) }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The hosts and the others do not reach each other.
    Partition,
    /// What the hosts send does not reach the others.
    OneWay,
    /// The daemon does nothing (SIGSTOP) while its kernel goes on; half of the times it is stopped between
    /// deciding something and doing it.
    Pause,
    /// The daemon is killed and, in the end, started again with what it had kept; its kernel goes on.
    Daemon,
    /// The host is gone and, in the end, starts again: a new kernel, a clock that starts anew, and what
    /// its daemon had kept.
    Crash,
    /// The host is not there before.
    Join,
    /// The daemon hands its shares over and goes.
    Leave,
    /// The network is as `network` says.
    Network,
    /// The others take the hosts for dead, though they are well.
    Suspect,
    /// The machine stands still, and its clock with it: a virtual one that is stopped or moved.
    Freeze,
    /// The machine is as it was `back` ago, with its clock, kernel and disk: a snapshot of it is restored.
    Restore,
    /// Nothing can be written to the disk, or it is durable only `slow` later.
    Disk,
    /// The clock runs faster by `rate`.
    Clock,
    /// Limits have another `policy` from then on.
    Policy,
    /// The host has another `weight` from then on.
    Weight,
    /// The host has no `room` to track more sources than that.
    Crowd,
}

/// What is on a disk when a daemon starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// What the daemon had kept.
    #[default]
    Kept,
    /// Nothing: the host is installed anew.
    Lost,
    /// What was there `back` before the fault: a backup, or writes that never came to the disk.
    Back,
}

/// A fault, its time and its hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// When it begins.
    pub at: Span,
    /// How long it lasts; to the end if it is not said.
    #[serde(rename = "for")]
    pub lasts: Option<Span>,
    /// The hosts, from 0.
    pub hosts: Option<Vec<usize>>,
    /// This part of the hosts instead, at least one: the first ones, rounded.
    pub part: Option<f64>,
    /// The hosts of this region, or the first ones of them if `part` is said, too.
    pub region: Option<String>,
    /// How the network is, between regions as well, [`FaultKind::Network`].
    pub network: Option<Conditions>,
    /// What a clock that starts anew is set by, s, [`FaultKind::Crash`].
    #[serde(default)]
    pub clock: f64,
    /// With more than one host: each one so much later than the one before.
    #[serde(default)]
    pub apart: Span,
    /// What is on the disk in the end, [`FaultKind::Daemon`] and [`FaultKind::Crash`].
    #[serde(default)]
    pub store: Store,
    /// How far before the fault it was so, [`Store::Back`] and [`FaultKind::Restore`].
    #[serde(default)]
    pub back: Span,
    /// How much later what is written is durable, [`FaultKind::Disk`]; never if it is not said.
    pub slow: Option<Span>,
    /// By how much the clock is fast, 0.1 being 0.1 s in a second, [`FaultKind::Clock`].
    #[serde(default)]
    pub rate: f64,
    /// The weight, [`FaultKind::Weight`]; hosts have 100.
    pub weight: Option<u32>,
    /// The policy, [`FaultKind::Policy`].
    pub policy: Option<Partition>,
    /// How many sources there is room for, [`FaultKind::Crowd`].
    pub room: Option<usize>,
}

impl Fault {
    /// One of this kind that befalls nobody yet.
    pub(super) fn new(kind: FaultKind, at: Span) -> Self {
        Self {
            kind,
            at,
            lasts: None,
            hosts: None,
            part: None,
            region: None,
            network: None,
            clock: 0.0,
            apart: Span::default(),
            store: Store::default(),
            back: Span::default(),
            slow: None,
            rate: 0.0,
            weight: None,
            policy: None,
            room: None,
        }
    }
}

/// What is to be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Goals {
    /// The worst overage in a second at most, as a part of burst + rate · 1 s; what is promised if it is not said.
    pub overage: Option<f64>,
    /// The utilisation at least.
    pub utilisation: Option<f64>,
    /// The packets of the `conforming` source that a host drops, at most; what is promised if it is not said.
    pub lost: Option<u64>,
    /// The time to 90 % of what could be admitted after each step of the demand, at most.
    pub convergence: Option<Span>,
    /// What a host sends, bytes per second, at most.
    pub bytes: Option<f64>,
    /// What hosts of different regions send each other, bytes per second and host, at most.
    pub between: Option<f64>,
    /// What deciding takes on a host, as a part of one core, at most. It is measured where it is asked for.
    pub cpu: Option<f64>,
    /// The time until all know of each other, at most, where `membership` is simulated.
    pub joined: Option<Span>,
    /// The time until all know of a crash, at most, where `membership` is simulated.
    pub detected: Option<Span>,
}

/// A scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// A misspelt key would be a fault that never comes, and the run would pass.
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it is about.
    #[serde(default)]
    pub about: String,
    /// Hosts, 1 to [`MAX_HOSTS`].
    #[serde(default = "three")]
    pub hosts: usize,
    /// It says something only with so many hosts, and the suite leaves it out with fewer.
    #[serde(default)]
    pub least_hosts: usize,
    /// It is run with so many seeds at most, because each run takes long; as many as asked for if 0.
    #[serde(default)]
    pub most_seeds: usize,
    /// Who is there, and nothing else: the daemon's own membership without traffic. All hosts start at one
    /// moment, and when all is calm one crashes. Only `hosts` and `network` matter then.
    #[serde(default)]
    pub membership: bool,
    /// How long it runs.
    #[serde(default = "ten_seconds")]
    pub duration: Span,
    /// From when on the utilisation counts.
    #[serde(default = "one_second")]
    pub warm_up: Span,
    /// A step of the simulated traffic, a whole part of 100 ms.
    #[serde(default = "two_milliseconds")]
    pub tick: Span,
    /// The limit's burst, in the time that its rate takes for it. Where it is short, so is what a host may
    /// use too long before it shows.
    #[serde(default = "tenth_of_second")]
    pub burst: Span,
    /// Whether hosts judge whole packets by the kernel program's own code. Otherwise the traffic is a fluid of the limit,
    /// which takes less time.
    #[serde(default)]
    pub packets: bool,
    /// The limit's rate. A fluid is not admitted by it. But daemons count packets of it, and take the longer to tell what a
    /// source sends the slower the limit is.
    #[serde(default = "thousand_packets")]
    pub rate: Rate,
    /// By how much clocks may be fast or slow.
    // What leases and P6 allow for.
    #[serde(default = "thousandth")]
    pub drift: f64,
    /// In what steps clocks go on. The coarser they are, the more ends and begins at one moment.
    #[serde(default = "nanosecond")]
    pub resolution: Span,
    /// Whether the first host founded the cluster and holds all shares in the beginning; otherwise they are
    /// shared by then.
    #[serde(default)]
    pub founded: bool,
    /// What is done with the shares of hosts that are lost.
    #[serde(default)]
    pub policy: Partition,
    /// How long a host may use its share without hearing from half of the others, and how long shares are missing until
    /// they are counted anew.
    #[serde(default = "ten_minutes")]
    pub home_lease: Span,
    /// What sources send.
    #[serde(default)]
    pub demand: Demand,
    /// One source more, which keeps to half of its limit: a packet after the other, to one host, to each in turn (`spread`),
    /// or to another one every four seconds (`hopping`). It begins after a second, or after `warm_up` where nothing goes
    /// wrong: hosts have earned their burst floors by then.
    pub conforming: Option<Pattern>,
    /// The network.
    #[serde(default)]
    pub network: Conditions,
    /// Regions that hosts are in; one if there are none.
    #[serde(default, rename = "region")]
    pub regions: Vec<RegionPart>,
    /// The network between hosts of different regions; as any other if it is not said.
    pub between: Option<Conditions>,
    /// Who notices what when.
    #[serde(default)]
    pub detection: Detection,
    /// What goes wrong.
    #[serde(default, rename = "fault")]
    // With their places, as a file has many faults that look alike.
    pub faults: Vec<Spanned<Fault>>,
    /// What is to be reached.
    #[serde(default)]
    pub goals: Goals,
}

const fn three() -> usize {
    3
}

const fn ten_seconds() -> Span {
    Span(Duration::from_secs(10))
}

const fn ten_minutes() -> Span {
    Span(Duration::from_secs(600))
}

const fn one_second() -> Span {
    Span(Duration::from_secs(1))
}

const fn tenth_of_second() -> Span {
    Span(Duration::from_millis(100))
}

const fn thousand_packets() -> Rate {
    packets(1000)
}

/// So many packets a second.
pub(super) const fn packets(a_second: u64) -> Rate {
    Rate::from_parts(a_second, 1_000_000_000, Unit::Packets)
}

const fn two_milliseconds() -> Span {
    Span(Duration::from_millis(2))
}

const fn thousandth() -> f64 {
    0.001
}

const fn nanosecond() -> Span {
    Span(Duration::from_nanos(1))
}

/// Where to look for what can be written.
const HINT: &str =
    "`limiter simulate cluster --print --scenario NAME` shows a built-in one to start from";

/// What is wrong with a scenario, and where if it is a fault's.
type Problem = (Option<usize>, String);

impl Scenario {
    /// One with nothing but a name.
    pub(super) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            about: String::new(),
            hosts: three(),
            least_hosts: 0,
            most_seeds: 0,
            membership: false,
            duration: ten_seconds(),
            warm_up: one_second(),
            tick: two_milliseconds(),
            burst: tenth_of_second(),
            packets: false,
            rate: thousand_packets(),
            drift: thousandth(),
            resolution: nanosecond(),
            founded: false,
            policy: Partition::default(),
            home_lease: ten_minutes(),
            demand: Demand::default(),
            conforming: None,
            network: Conditions::default(),
            regions: Vec::new(),
            between: None,
            detection: Detection::default(),
            faults: Vec::new(),
            goals: Goals::default(),
        }
    }

    /// Reads one from TOML; `path` is for messages.
    ///
    /// # Errors
    /// The first thing that is wrong with it, by path, line and column.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Invalid> {
        let at = |byte: usize, message: &dyn fmt::Display| {
            let Location { line, column } = Location::at(text, byte);
            let message = format!("{}:{line}:{column}: {message}", path.display());
            Invalid::new(message).with_hint(HINT)
        };
        let scenario: Self = toml::from_str(text).map_err(|error| {
            at(error.span().map_or(0, |span| span.start), &error.message().trim())
        })?;
        // All that is wrong is found before the first run: a suite takes minutes.
        match scenario.problem() {
            None => Ok(scenario),
            Some((byte, message)) => Err(at(byte.unwrap_or(0), &message)),
        }
    }

    /// The same with another number of hosts.
    ///
    /// # Errors
    /// If it names hosts that there are not.
    pub fn with_hosts(&self, hosts: usize) -> Result<Self, Invalid> {
        // Checked anew: faults may name hosts that a smaller cluster lacks.
        let other = Self { hosts, ..self.clone() };
        match other.problem() {
            None => Ok(other),
            Some((_, message)) => {
                let message = format!("{} with {hosts} hosts: {message}", self.name);
                Err(Invalid::new(message).with_hint("let its faults say `part` instead of `hosts`"))
            }
        }
    }

    fn problem(&self) -> Option<Problem> {
        let whole = |message: &str| Some((None, message.to_owned()));
        // It becomes a part of messages, tables and the page.
        let name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(name) {
            return whole("`name` has 1 to 64 of the characters a to z, A to Z, 0 to 9, - and _");
        }
        if self.hosts == 0 || self.hosts > MAX_HOSTS {
            return whole(&format!("`hosts` is a number from 1 to {MAX_HOSTS}"));
        }
        if self.membership && (self.hosts < 2 || !self.faults.is_empty()) {
            return whole("with `membership` there are two hosts at least and no faults");
        }
        if self.demand.keys == 0 || self.demand.keys > MAX_KEYS {
            return whole(&format!("`keys` is a number from 1 to {MAX_KEYS}"));
        }
        if self.duration.0 > MAX_RUN || self.duration.0 < Duration::from_secs(2) {
            return whole("`duration` is from 2s to 10m");
        }
        // The judge's second and the steps of the noise must begin with a tick, or both would depend on its length.
        let tick = self.tick.ns();
        if !(100_000..=100_000_000).contains(&tick) || !100_000_000_u64.is_multiple_of(tick) {
            return whole("`tick` is from 100us to 100ms and 100ms is a multiple of it");
        }
        if self.warm_up >= self.duration {
            return whole("`warm_up` is shorter than `duration`");
        }
        let burst = self.burst.seconds();
        // All packets of a tick come at once: a shorter burst could not admit them at any rate.
        if !(0.01..=60.0).contains(&burst) || burst < self.tick.seconds() {
            return whole("`burst` is from 10ms to 60s and not shorter than `tick`");
        }
        if self.rate.unit() != Unit::Packets {
            return whole("`rate` is in packets, such as `1000pps`");
        }
        if self.packets && !Packets::can_share(&self.limit()) {
            return whole("with `packets` the `rate` is one that hosts can share, such as `20pps`");
        }
        let steady = matches!(
            self.conforming,
            None | Some(Pattern::One | Pattern::Spread | Pattern::Hopping)
        );
        if !steady || self.conforming.is_some() && !self.packets {
            return whole("`conforming` is `one`, `spread` or `hopping`, with `packets`");
        }
        if self.home_lease.0 < Duration::from_secs(2) {
            return whole("`home_lease` is at least 2s");
        }
        // A host that was not counted is to have nothing that it was given before.
        if !self.regions.is_empty() && self.home_lease.0 < Duration::from_secs(8) {
            return whole("with regions `home_lease` is at least 8s");
        }
        if !(0.0..=0.01).contains(&self.drift) {
            return whole("`drift` is a number from 0 to 0.01");
        }
        if !(1..=10_000_000).contains(&self.resolution.ns()) {
            return whole("`resolution` is from 1ns to 10ms");
        }
        let demand = &self.demand;
        let loads = (0.0..=1e6).contains(&demand.load) && (0.0..=1.0).contains(&demand.noise);
        if !loads {
            return whole("`load` is a number from 0 to 1000000, `noise` from 0 to 1");
        }
        let periodic = matches!(demand.pattern, Pattern::Hopping | Pattern::Diurnal);
        if periodic && demand.period.0 < Duration::from_millis(10) {
            return whole("`period` is at least 10ms");
        }
        if self.detection.earliest > self.detection.latest {
            return whole("`earliest` is not later than `latest`");
        }
        if let Some(message) = wrong(&self.network).or_else(|| wrong(self.between.as_ref()?)) {
            return whole(message);
        }
        if let Err(message) = assign(&self.regions, self.hosts) {
            return whole(&message);
        }
        if self.regions.is_empty() && (self.between.is_some() || demand.among == Among::Regions) {
            return whole(
                "where there is no region, nothing is `between` them and no demand `among` them",
            );
        }
        self.faults.iter().find_map(|fault| {
            let message = self.problem_of(fault.get_ref())?;
            Some((Some(fault.span().start), message))
        })
    }

    fn problem_of(&self, fault: &Fault) -> Option<String> {
        if let Some(message) = fault.network.as_ref().and_then(wrong) {
            return Some(message.to_owned());
        }
        if (fault.kind == FaultKind::Network) != fault.network.is_some() {
            return Some("a fault of the kind `network`, and no other, says `network`".into());
        }
        if fault.kind == FaultKind::Network {
            return None;
        }
        match (&fault.hosts, &fault.region, fault.part) {
            (Some(hosts), None, None) => {
                if let Some(host) = hosts.iter().find(|host| **host >= self.hosts) {
                    return Some(format!(
                        "there is no host {host}: the last is {}",
                        self.hosts - 1
                    ));
                }
            }
            (None, Some(name), None | Some(0.0..=1.0)) => {
                if !self.regions.iter().any(|region| region.name == *name) {
                    return Some(format!("there is no region {name:?}"));
                }
            }
            (None, None, Some(0.0..=1.0)) => {}
            _ => {
                return Some(
                    "a fault says `hosts`, or `region` or `part`, a number from 0 to 1, or both of these".into(),
                );
            }
        }
        let lasting = fault.lasts.is_some();
        let for_good = matches!(
            fault.kind,
            FaultKind::Join
                | FaultKind::Leave
                | FaultKind::Restore
                | FaultKind::Policy
                | FaultKind::Weight
        );
        if lasting && for_good {
            return Some("such a fault is for good, without `for`".into());
        }
        let anew = fault.kind == FaultKind::Crash && lasting;
        if fault.clock != 0.0 && !(anew && fault.clock.abs() <= 1e5) {
            return Some("`clock` is for a crash that ends, up to 100000 seconds".into());
        }
        let starts = lasting && matches!(fault.kind, FaultKind::Daemon | FaultKind::Crash);
        let goes_back = fault.store == Store::Back || fault.kind == FaultKind::Restore;
        // What a fault of another kind says would be taken for a fault that never comes.
        let fields = [
            (fault.store == Store::Kept || starts, "`store` is for a daemon or a crash that ends"),
            (
                goes_back == (fault.back > Span::default()) && fault.back <= fault.at,
                "`back` is for `store = \"back\"` and `restore`, and not before the beginning",
            ),
            (fault.slow.is_none() || fault.kind == FaultKind::Disk, "`slow` is for a disk"),
            (
                (fault.kind == FaultKind::Clock) == (fault.rate != 0.0) && fault.rate.abs() <= 0.2,
                "`rate` is for a clock, from -0.2 to 0.2",
            ),
            (
                (fault.kind == FaultKind::Weight) == fault.weight.is_some()
                    && fault.weight.is_none_or(|weight| (1..=1000).contains(&weight)),
                "`weight` is for the kind `weight`, from 1 to 1000",
            ),
            (
                (fault.kind == FaultKind::Policy) == fault.policy.is_some(),
                "`policy` is for the kind `policy`",
            ),
            (
                (fault.kind == FaultKind::Crowd) == fault.room.is_some(),
                "`room` is for the kind `crowd`",
            ),
        ];
        fields.into_iter().find_map(|(good, message)| (!good).then(|| message.to_owned()))
    }

    /// The limit, as daemons know it.
    pub(super) fn limit(&self) -> Limit {
        let burst = (self.burst.seconds() * self.rate.per_second()).max(1.0) as u64;
        let tier = Tier { rate: self.rate, burst, algorithm: Algorithm::default() };
        Amount::new(tier).of(Target::DEFAULT)
    }

    /// Sources, the conforming one included.
    pub(super) fn sources(&self) -> usize {
        self.demand.keys + usize::from(self.conforming.is_some())
    }

    /// When the conforming source begins, s. Hosts that start together have given each other nothing before a second.
    pub(super) fn conforms_since(&self) -> f64 {
        if self.faults.is_empty() { self.warm_up.seconds() } else { 1.0 }
    }

    /// When no fault is in effect, s: from the beginning on until the first one, and from `warm_up` on.
    pub(super) fn is_calm(&self, at: f64) -> bool {
        let first = self.all_faults().map(|fault| fault.at.seconds()).fold(f64::INFINITY, f64::min);
        at >= self.warm_up.seconds() || at < first && !self.founded
    }

    /// What all hosts together may admit at once, in the time that the limit's rate takes for it, s: the burst, or a packet
    /// a host.
    pub(super) fn most_at_once(&self) -> f64 {
        self.burst.seconds().max(self.hosts as f64 * self.packet())
    }

    /// A packet, in the time that the limit's rate takes for it, s. A fluid has none.
    pub(super) fn packet(&self) -> f64 {
        if self.packets { 1.0 / self.rate.per_second() } else { 0.0 }
    }

    /// Whether machines are copied.
    pub(super) fn copies(&self) -> bool {
        self.all_faults().any(|fault| fault.back > Span::default())
    }

    /// As a file of it would say it, without what need not be said.
    pub fn text(&self) -> String {
        let mut table = table_of(self);
        leave_out(&mut table, &table_of(&Self { name: String::new(), ..Self::named("") }));
        if let Some(toml::Value::Array(faults)) = table.get_mut("fault") {
            for (fault, said) in self.faults.iter().zip(faults) {
                let plain = Fault::new(fault.get_ref().kind, fault.get_ref().at);
                if let toml::Value::Table(said) = said {
                    leave_out(said, &table_of(&plain));
                    said.extend(table_of(&When::of(fault.get_ref())));
                }
            }
        }
        toml::to_string(&table).unwrap_or_default()
    }

    /// With how many seeds it is run where so many are asked for.
    pub(super) const fn seeds(&self, asked: usize) -> usize {
        if self.most_seeds == 0 || asked < self.most_seeds { asked } else { self.most_seeds }
    }

    /// Whether it takes long: then it is run only where its size is asked for.
    pub const fn is_heavy(&self) -> bool {
        self.most_seeds > 0
    }

    /// The number of the region of each host.
    pub(super) fn regions(&self) -> Vec<usize> {
        // What does not fit was refused before.
        assign(&self.regions, self.hosts).unwrap_or_else(|_| vec![0; self.hosts])
    }

    /// All faults, without their places.
    pub(super) fn all_faults(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().map(Spanned::get_ref)
    }

    /// The first host that is there from the start: it holds everything in the beginning if the cluster was just
    /// founded.
    pub(super) fn founder(&self) -> usize {
        let joins = |host: &usize| {
            self.all_faults()
                .filter(|it| it.kind == FaultKind::Join)
                .any(|it| self.hosts_of(it).contains(host))
        };
        (0..self.hosts).find(|host| !joins(host)).unwrap_or(0)
    }

    /// The hosts of a fault.
    pub(super) fn hosts_of(&self, fault: &Fault) -> Vec<usize> {
        let among: Vec<usize> = match (&fault.hosts, &fault.region) {
            (Some(hosts), _) => return hosts.clone(),
            (None, Some(name)) => {
                let number = self.regions.iter().position(|region| region.name == *name);
                let of = self.regions().into_iter().enumerate();
                of.filter(|(_, region)| Some(*region) == number).map(|(host, _)| host).collect()
            }
            (None, None) if fault.part.is_none() => return Vec::new(),
            (None, None) => (0..self.hosts).collect(),
        };
        let n = (among.len() as f64 * fault.part.unwrap_or(1.0)).round() as usize;
        // At least one: rounded to nobody, the scenario would pass with few hosts as nothing goes wrong.
        among[..n.max(1).min(among.len())].to_vec()
    }
}

/// What each fault says.
#[derive(Serialize)]
struct When {
    kind: FaultKind,
    at: Span,
}

impl When {
    const fn of(fault: &Fault) -> Self {
        Self { kind: fault.kind, at: fault.at }
    }
}

fn table_of(what: &impl Serialize) -> toml::Table {
    // Numbers, texts and lists: none of it can fail.
    toml::Table::try_from(what).unwrap_or_default()
}

/// Leaves out what `plain` says as well.
fn leave_out(table: &mut toml::Table, plain: &toml::Table) {
    table.retain(|key, value| {
        let before = plain.get(key);
        if let (toml::Value::Table(value), Some(toml::Value::Table(before))) = (&mut *value, before)
        {
            leave_out(value, before);
            return !value.is_empty();
        }
        before != Some(value)
    });
}

fn wrong(network: &Conditions) -> Option<&'static str> {
    let good = |probability: f64| (0.0..=1.0).contains(&probability);
    let all = good(network.loss) && good(network.duplicate) && good(network.late);
    (!all).then_some("`loss`, `duplicate` and `late` are probabilities, from 0 to 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Scenario, Invalid> {
        Scenario::parse(Path::new("x.toml"), text)
    }

    #[test]
    fn little_needs_to_be_said() {
        let scenario = parse("name = \"x\"").unwrap();
        assert_eq!((scenario.hosts, scenario.duration), (3, ten_seconds()));
        let fault =
            "name = \"x\"\nhosts = 10\n[[fault]]\nkind = \"one-way\"\nat = \"1s\"\npart = 0.34";
        let scenario = parse(fault).unwrap();
        assert_eq!(scenario.hosts_of(scenario.faults[0].get_ref()), [0, 1, 2]);
        let two = scenario.with_hosts(2).unwrap();
        assert_eq!(two.hosts_of(two.faults[0].get_ref()), [0]);
        let regions = "[[region]]\nname = \"a\"\n[[region]]\nname = \"b\"\n[[fault]]\nkind = \"pause\"\nat = \"1s\"";
        for (more, hosts) in [("", vec![3, 4, 5]), ("part = 0.4", vec![3])] {
            let text = format!("name = \"x\"\nhosts = 6\n{regions}\nregion = \"b\"\n{more}");
            let scenario = parse(&text).unwrap();
            assert_eq!(scenario.hosts_of(scenario.faults[0].get_ref()), hosts);
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let fault = |text: &str| format!("name = \"x\"\n[[fault]]\nat = \"1s\"\n{text}");
        for (text, place, about) in [
            ("name = \"x\"\nhots = 3".to_owned(), "2:1", "hots"),
            ("name = \"x\"\nhosts = 0".into(), "1:1", "`hosts`"),
            ("name = \"a b\"".into(), "1:1", "`name`"),
            ("name = \"x\"\nduration = \"soon\"".into(), "2:12", "soon"),
            ("name = \"x\"\ntick = \"3ms\"".into(), "1:1", "`tick`"),
            ("name = \"x\"\nresolution = \"0s\"".into(), "1:1", "`resolution`"),
            ("name = \"x\"\n[demand]\npattern = \"spred\"".into(), "3:11", "spred"),
            ("name = \"x\"\n[network]\nloss = 1.5".into(), "1:1", "`loss`"),
            (fault("kind = \"pause\"\nhosts = [3]"), "2:1", "no host 3"),
            (fault("kind = \"pause\""), "2:1", "`part`"),
            (fault("kind = \"pause\"\nregion = \"eu\""), "2:1", "no region \"eu\""),
            (
                "name = \"x\"\nhosts = 1\n[[region]]\nname = \"a\"\n[[region]]\nname = \"b\""
                    .into(),
                "1:1",
                "no host",
            ),
            ("name = \"x\"\n[between]\nloss = 0.1".into(), "1:1", "`between`"),
            ("name = \"x\"\n[demand]\namong = \"regions\"".into(), "1:1", "`among`"),
            (fault("kind = \"network\""), "2:1", "`network`"),
            (fault("kind = \"join\"\nhosts = [0]\nfor = \"1s\""), "2:1", "for good"),
            (
                fault("kind = \"pause\"\nhosts = [0]\nfor = \"1s\"\nstore = \"lost\""),
                "2:1",
                "`store`",
            ),
            (fault("kind = \"restore\"\nhosts = [0]\nback = \"2s\""), "2:1", "`back`"),
            (fault("kind = \"clock\"\nhosts = [0]"), "2:1", "`rate`"),
            (fault("kind = \"weight\"\nhosts = [0]\nweight = 0"), "2:1", "`weight`"),
            (fault("kind = \"policy\"\nhosts = [0]"), "2:1", "`policy`"),
        ] {
            let failure = parse(&text).unwrap_err();
            assert!(failure.to_string().starts_with(&format!("x.toml:{place}: ")), "{failure}");
            assert!(failure.to_string().contains(about), "{failure}");
        }
        let named = parse(&fault("kind = \"pause\"\nhosts = [2]")).unwrap();
        assert!(named.with_hosts(2).unwrap_err().to_string().contains("x with 2 hosts"));
    }
}
