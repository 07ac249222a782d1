//! What is promised of a scenario: never more than the limit, but for faults that no message can make up for.
//!
//! `ALGORITHM.md` of the cluster argues for each bound, in "What is not promised".

use std::collections::BTreeSet;

use super::scenario::{Fault, FaultKind, Scenario, Store, WEIGHT};

/// What clocks that are fast by 0.1 % let through (P6).
const DRIFT: f64 = 0.001;
/// What a host may use without asking anybody.
const FLOOR: f64 = 0.05;
/// The longest lease, s, and the same over long ways.
const LEASE: f64 = 1.5;
const FAR_LEASE: f64 = 4.0;
/// From which delay on a way is long, s.
const FAR_DELAY: f64 = 0.1;
/// A region keeps a fifth more than its hosts use, and by weight it may have nearly all.
const LENDS: f64 = 5.0 / 6.0;
/// What home shares may add up to above the whole before they are scaled.
const NOISE: f64 = 1.0 / 256.0;

/// From the first packet of a source that nobody knows until its host asks, what hosts wait before they act, s; and messages
/// until it has its share: what it asks for, that another one is to have less, that it has, and the share.
const FIRST_LOOK: f64 = 0.06;
const TRIPS: f64 = 4.0;
/// How long hosts of one region take to see that they are far from each other, s: only then grants last as long as they need.
const LEARNS: f64 = 7.0;
/// What it loses while the host that it came to before has not missed it yet, which takes twelve packets, and both share what
/// there is.
const FORMER: u64 = 2;

/// What may come of rounding alone, in the sum of shares and in the bound.
const ROUNDING: f64 = 1e-6;

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// The most that is admitted of a source in a second beyond burst + rate · 1 s, as a part of that.
    pub overage: f64,
    /// The shares of all hosts never add up to more than the whole.
    pub strict: bool,
    /// The part of the limit that can be used when faults are over: the rest lies idle with hosts that are lost.
    pub usable: f64,
    /// The most packets of a conforming source that a host drops while there is no fault: what comes until it has heard of
    /// the source, and its first packet.
    pub lost: u64,
}

impl Promise {
    /// The most beyond burst + rate·T in a time of any length, for which the clocks' drift is allowed for, as a part of
    /// burst + rate · 1 s. What a fault lets through goes on for as long as that lasts.
    pub(super) const fn excess(&self) -> f64 {
        if self.strict { ROUNDING } else { f64::INFINITY }
    }

    /// The most that the shares of all hosts add up to.
    pub(super) const fn sum(&self) -> f64 {
        if self.strict { 1.0 + ROUNDING } else { f64::INFINITY }
    }
}

impl Scenario {
    /// What is promised, by the faults that there are.
    pub fn promise(&self) -> Promise {
        let all = || self.all_faults();
        // Hosts that hear nobody cannot be told that others have what they had.
        let parted = self.network.loss > 0.0
            || all().any(|fault| {
                use FaultKind::{Network, OneWay, Partition, Suspect};
                matches!(fault.kind, Network | OneWay | Partition | Suspect)
            });
        // In limits, over a second.
        let more: f64 = all().map(|fault| self.more(fault, parted)).sum();
        let is_policy = |fault: &Fault| fault.kind == FaultKind::Policy;
        let majority = self.policy.may_ask_majority() || all().any(is_policy);
        let lost: f64 = all().filter(|it| is_lost(it)).map(|it| self.homes(it)).sum();
        let gone: f64 = all().filter(|it| is_gone(it)).map(|it| self.homes(it)).sum();
        // Who starts, or takes shares, after a host was lost has not heard what that had, and does not vote about it.
        let votes = majority && !self.founded && all().all(|it| is_gone(it) || !forgets(it));
        let usable = match majority {
            // Nobody renews home leases, nor counts anew.
            _ if !self.can_count() || all().any(|it| self.is_mute(it)) => 0.0,
            // What lost hosts had comes back.
            _ if self.counts_anew() => 1.0,
            // Without more than half of all shares there is no majority.
            true if lost + gone >= 0.5 => 0.0,
            true if votes => 1.0 - lost,
            _ => 1.0 - lost - gone,
        };
        let weighs = all().any(|fault| fault.kind == FaultKind::Weight);
        let lends = if weighs && !self.regions.is_empty() { LENDS } else { 1.0 };
        Promise {
            overage: DRIFT + more / (1.0 + self.burst.seconds()),
            strict: more == 0.0,
            usable: lends * usable.max(0.0),
            // Where less than it sends can be used, something is missing all the time.
            lost: if usable < 0.75 { u64::MAX } else { self.first_lost() },
        }
    }

    /// Whether hosts are so far from each other that leases are longer.
    pub(super) fn is_far(&self) -> bool {
        !self.regions.is_empty() || self.network.delay.seconds() >= FAR_DELAY
    }

    /// What a host drops of a conforming source that is new to it, where enough can be used.
    fn first_lost(&self) -> u64 {
        // Who leaves is no fault, but what it has divided is missing for as long as a lease.
        if self.all_faults().any(|fault| fault.kind == FaultKind::Leave) {
            return u64::MAX;
        }
        let far = self.between.unwrap_or(self.network);
        let trip = far.delay.seconds() + far.jitter.seconds();
        let half = self.rate.per_second() / 2.0;
        let learns = if self.is_far() && self.regions.is_empty() { LEARNS } else { 0.0 };
        1 + FORMER + (half * (FIRST_LOOK + TRIPS * trip + learns)).ceil() as u64
    }

    /// Whether shares are counted anew within the run.
    fn counts_anew(&self) -> bool {
        self.home_lease < self.duration
    }

    /// Whether more than half of those who count are left, whatever happens first.
    fn can_count(&self) -> bool {
        let hosts = |which: fn(&Fault) -> bool| -> BTreeSet<usize> {
            self.all_faults().filter(|it| which(it)).flat_map(|it| self.hosts_of(it)).collect()
        };
        let mut lost = hosts(|it| is_lost(it) || is_gone(it));
        // Whoever was away for longer has nothing when it comes back, and does not count for a while.
        let away = |it: &&Fault| is_apart(it) && it.lasts > Some(self.home_lease);
        lost.extend(self.all_faults().filter(away).flat_map(|it| self.hosts_of(it)));
        let some = hosts(|it| matches!(it.kind, FaultKind::Join | FaultKind::Leave));
        let founder = self.founded && lost.contains(&self.founder());
        let stay = (0..self.hosts).filter(|host| !some.contains(host));
        let stay: BTreeSet<usize> = stay.collect();
        !founder && 2 * lost.union(&some).count() < stay.len() + some.len()
    }

    /// What a fault may have all hosts admit beyond the limit within a second, in limits.
    fn more(&self, fault: &Fault, parted: bool) -> f64 {
        let hosts = self.hosts_of(fault).len() as f64;
        let burst = self.burst.seconds();
        let each = match fault.kind {
            // Its clock tells it that what it was given has not ended. It is the owner of a key at the most, so it uses
            // and gives no more than the whole.
            FaultKind::Freeze => 1.0,
            // Its buckets are as full as they were, too.
            FaultKind::Restore => 1.0 + burst,
            // Its buckets fill by its clock, and leases overlap by as much as clocks differ.
            FaultKind::Clock => {
                let lease = if self.is_far() { FAR_LEASE } else { LEASE };
                let home_lease = if self.counts_anew() { self.home_lease.seconds() } else { 0.0 };
                fault.rate.abs() * (1.0 + 2.0 * lease + home_lease)
            }
            // It goes on by what it knows, with what the others use in its place.
            FaultKind::Policy if parted => 1.0,
            FaultKind::Daemon | FaultKind::Crash => {
                // Buckets that start are empty, but for a packet.
                let starts = fault.kind == FaultKind::Crash && fault.lasts.is_some();
                let boot = if starts { self.packet() } else { 0.0 };
                boot + match fault.store {
                    Store::Back if parted => 1.0,
                    Store::Back => FLOOR + NOISE,
                    Store::Kept | Store::Lost => 0.0,
                }
            }
            _ => 0.0,
        };
        // Whoever is not counted has its floor until it hears of that, and its buckets their burst floor.
        let kept = FLOOR + if self.packets { burst / 2.0 } else { 0.0 };
        let floors = if self.counts_anew() { kept * self.homes(fault) } else { 0.0 };
        each * hosts + if is_apart(fault) { floors } else { 0.0 }
    }

    /// Whether a restored host is not heard until it starts again: it has started since the copy was made, and its moments
    /// are those of a run before.
    fn is_mute(&self, fault: &Fault) -> bool {
        let hosts = self.hosts_of(fault);
        let starts = self.all_faults().filter(|it| it.lasts.is_some());
        fault.kind == FaultKind::Restore
            && starts
                .filter(|it| matches!(it.kind, FaultKind::Daemon | FaultKind::Crash))
                .any(|it| self.hosts_of(it).iter().any(|host| hosts.contains(host)))
    }

    /// The most that the hosts of a fault can have of all shares.
    fn homes(&self, fault: &Fault) -> f64 {
        let weights = |host: usize, worse: fn(u32, u32) -> u32| {
            let its = self.all_faults().filter(|fault| self.hosts_of(fault).contains(&host));
            f64::from(its.filter_map(|fault| fault.weight).fold(WEIGHT, worse))
        };
        let hosts = self.hosts_of(fault);
        // The founder has all for a while.
        if self.founded && hosts.contains(&self.founder()) {
            return 1.0;
        }
        // At its worst moment: before others join, and with what those had that leave.
        let does = |host: usize, kind: FaultKind| {
            self.all_faults().any(|it| it.kind == kind && self.hosts_of(it).contains(&host))
        };
        // What a founder does not give to who is away it gives to the others.
        let is_away = |host: usize| {
            let takes = |it: &&Fault| self.hosts_of(it).contains(&host);
            self.founded && self.all_faults().filter(takes).any(|it| is_apart(it) || is_gone(it))
        };
        let is_theirs = |host: &usize| hosts.contains(host) || does(*host, FaultKind::Leave);
        let theirs: f64 =
            (0..self.hosts).filter(is_theirs).map(|host| weights(host, u32::max)).sum();
        let others: f64 = (0..self.hosts)
            .filter(|host| !is_theirs(host) && !does(*host, FaultKind::Join) && !is_away(*host))
            .map(|host| weights(host, u32::min))
            .sum();
        theirs / (theirs + others)
    }
}

/// Whether what a host had lies idle for good, though it is there: nobody knows that its disk has lost it, or what it
/// has taken since the copy.
fn is_lost(fault: &Fault) -> bool {
    fault.kind == FaultKind::Restore || fault.lasts.is_some() && fault.store != Store::Kept
}

/// Whether hosts are up, or come back, and others may take them for lost.
fn is_apart(fault: &Fault) -> bool {
    use FaultKind::{Clock, Crowd, Disk, Join, Leave, Policy, Weight};
    !matches!(fault.kind, Clock | Crowd | Disk | Join | Leave | Policy | Weight) && !is_gone(fault)
}

/// Whether hosts do not know any more what others had.
fn forgets(fault: &Fault) -> bool {
    use FaultKind::{Crash, Daemon, Join, Leave, Policy, Restore, Weight};
    matches!(fault.kind, Crash | Daemon | Join | Leave | Policy | Restore | Weight)
}

/// Whether a host never comes back.
fn is_gone(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::Daemon | FaultKind::Crash) && fault.lasts.is_none()
}
