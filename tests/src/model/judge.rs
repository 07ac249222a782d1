//! From a frame to a verdict.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    Account, Bucket, Buckets, By, Charge, Charges, Limits, MAPPED, Policy, Reading, Sketch, Target,
    Verdict,
    limits::is_of_destination,
    policy::{MAX_GATE, TICKS},
    read, sketch,
    ways::{Step, Way, ways},
};

/// Why a packet is dropped that its destination has no tokens for.
const OVER_DESTINATION: &str = "over_destination_limit";

/// A source whose bucket takes less than this to fill does not wait for the coarse clock, ns.
const MIN_WAIT: i128 = 40_000_000;

/// When a frame was judged.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Between these two, ns since boot.
    pub ns: (u64, u64),
    /// The coarse clock was not behind this, ns since boot.
    pub coarse: u64,
    /// The sketch's epoch.
    pub epoch: u64,
    /// The part of it, of 256.
    pub part: u64,
    /// When the epoch began, ns since boot; negative if before.
    pub began: i128,
}

/// Packets and bytes by verdict and reason.
pub type Counts = BTreeMap<Verdict, (u64, u64)>;

/// An account with a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    buckets: Buckets,
    /// Whether its last packet was over the limit.
    denied: bool,
    /// Packets within the limit since it has one.
    pub passed: u64,
    /// Packets over it since.
    pub dropped: u64,
    /// Packets of both that may be of the other.
    pub unsure: u64,
    /// Bytes of both.
    pub bytes: u64,
}

/// How the model likes a verdict.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// It is what it must be.
    Agrees,
    /// It may be either.
    Uncertain,
    /// It was dropped although its bucket has just got a token again: a source over its limit waits
    /// for the coarse clock.
    Waits,
    /// It is wrong.
    Differs,
}

/// What packets have met, to tell whether a test shows anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// A limit of a class.
    pub class: u64,
    /// A limit of two tiers, in a bucket or shared.
    pub two: u64,
    /// A shared limit that admitted them.
    pub shared: u64,
    /// Two shared limits, one after the other.
    pub series: u64,
    /// A limit of their destination.
    pub destination: u64,
}

/// The limiter as it should be.
#[derive(Clone, Debug)]
pub struct Model {
    /// The length of an epoch, ns.
    pub window: u64,
    /// The sketch's columns.
    pub width: u64,
    /// The sketch's rows.
    pub depth: u64,
    /// CPUs that the program may run on.
    pub cpus: u64,
    /// Whether IP without a readable source is dropped.
    pub drop_malformed: bool,
    limits: Limits,
    /// What has become of all frames.
    pub counts: Counts,
    /// Frames with an invalid header and a source.
    pub malformed: u64,
    /// What is known of light sources.
    pub sketch: Sketch,
    /// Everything that has a bucket.
    pub tracked: HashMap<Account, Tracked>,
    /// Buckets that went with their class.
    pub retired: u64,
    /// The buckets of shared limits.
    shared: HashMap<Target, Buckets>,
    /// Those that have denied their last packet.
    denied: BTreeSet<Target>,
    /// What packets have met.
    pub seen: Seen,
}

/// Whose tokens a packet asks for.
#[derive(Clone, Copy, Debug)]
enum Payer {
    /// Those of its source, or of its destination.
    Account(Account, Tracked),
    /// Those of a shared limit.
    Shared(Target),
}

/// A limit that a packet comes to.
#[derive(Clone, Copy, Debug)]
struct Stage {
    payer: Payer,
    buckets: Buckets,
    charges: Charges,
    /// Whether the packet may be dropped because who pays waits for the coarse clock.
    may_wait: bool,
    /// What its bucket would say.
    exact: Option<bool>,
}

impl Stage {
    fn step(&self, enforce: bool) -> Step {
        let over = match self.payer {
            Payer::Account((_, number), _) if is_of_destination(number) => OVER_DESTINATION,
            Payer::Account(..) => "over_limit",
            Payer::Shared(Target { class: None, length: 0, .. }) => "over_total_limit",
            Payer::Shared(_) => "over_shared_limit",
        };
        let deny = self.exact != Some(true) || self.may_wait;
        Step { may: [deny, self.exact != Some(false)], over, enforce }
    }

    /// What is known of the buckets after a packet that may have been admitted, denied, or not have come.
    fn after(&self, now: (i128, i128), outcomes: &BTreeSet<Option<bool>>) -> Buckets {
        let after = outcomes.iter().map(|outcome| {
            let mut buckets = self.buckets;
            match outcome {
                None => {}
                Some(false) if self.may_wait => buckets.wait(now, self.charges),
                Some(admitted) => buckets.settle(now, self.charges, *admitted),
            }
            buckets
        });
        after.reduce(Buckets::or).unwrap_or(self.buckets)
    }
}

impl Model {
    /// A model of a limiter that has seen nothing and limits nothing.
    #[must_use]
    pub fn new(window: u64, (width, depth): (u64, u64), cpus: u64) -> Self {
        Self {
            window,
            width,
            depth,
            cpus,
            drop_malformed: false,
            limits: Limits::default(),
            counts: Counts::new(),
            malformed: 0,
            sketch: Sketch::default(),
            tracked: HashMap::new(),
            retired: 0,
            shared: HashMap::new(),
            seen: Seen::default(),
            denied: BTreeSet::new(),
        }
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Sets a limit between two moments, ns since boot, in the place of another one. The bucket of a shared one is full
    /// when it is new, and owes no more than an empty one else.
    pub fn set(&mut self, target: Target, policy: Policy, at: (u64, u64)) {
        if target.by == By::All {
            let known = self.limits.has(&target).then(|| self.shared[&target]);
            let mut buckets = known.unwrap_or(Buckets::FULL);
            let now = (i128::from(at.0) * TICKS, i128::from(at.1) * TICKS);
            buckets.clamp(now, policy.least_charges());
            self.shared.insert(target, buckets);
        }
        self.limits.set(target, policy);
    }

    /// Removes a limit, and with the last one of a class the buckets for it.
    pub fn unset(&mut self, target: &Target) {
        let Some(gone) = self.limits.unset(target) else { return };
        let before = self.tracked.len();
        self.tracked.retain(|(_, class), _| *class != gone);
        self.retired += (before - self.tracked.len()) as u64;
    }

    fn count(&mut self, verdict: Verdict, frame: &[u8]) {
        let tally = self.counts.entry(verdict).or_default();
        tally.0 += 1;
        tally.1 += frame.len() as u64;
    }

    /// Judges `frame`, takes in what has become of it, and tells whether it should have.
    pub fn judge(&mut self, frame: &[u8], at: Moment, verdict: Verdict) -> Outcome {
        self.count(verdict, frame);
        let (address, malformed, kind) = match read(frame) {
            Reading::From { address, malformed, kind } => (address, malformed, kind),
            other => {
                let right = match other {
                    Reading::NotIp => ("pass", "non_ip"),
                    _ if self.drop_malformed => ("drop", "malformed"),
                    _ => ("pass", "malformed"),
                };
                return if verdict == right { Outcome::Agrees } else { Outcome::Differs };
            }
        };
        self.malformed += u64::from(malformed);
        // Sources are IPv4 addresses and IPv6 /64s.
        let source = if address >> 32 == MAPPED >> 32 { address } else { address >> 64 << 64 };
        let met = self.limits.meet(source, &kind);
        let now = (i128::from(at.ns.0) * TICKS, i128::from(at.ns.1) * TICKS);
        let own = self.stage((source, met.number), &met.own, frame.len(), at, now);
        let reason = if own.is_some() { "conforming" } else { "below_gate" };
        let mut stages: Vec<_> = own.map(|stage| (stage, met.own)).into_iter().collect();
        for (target, policy) in &met.shared {
            let (buckets, charges) = (self.shared[target], policy.charges(frame.len()));
            // What CPUs remember of it makes a packet wait, whether or not it is enforced.
            let may_wait =
                self.denied.contains(target) && may_wait(buckets, true, charges, at, now);
            let (payer, exact) = (Payer::Shared(*target), buckets.admits(now, charges));
            stages.push((Stage { payer, buckets, charges, may_wait, exact }, *policy));
        }
        // A destination that no limit of its sender keeps the packet from.
        let reached = verdict.0 == "pass" || verdict.1 == OVER_DESTINATION;
        if let Some(((number, policy), to)) = met.destination.zip(kind.to).filter(|_| reached) {
            let stage = self.stage((to, number), &policy, frame.len(), at, now);
            stages.extend(stage.map(|stage| (stage, policy)));
        }
        let steps: Vec<_> = stages.iter().map(|(stage, it)| stage.step(it.enforce)).collect();
        let stages: Vec<_> = stages.into_iter().map(|(stage, _)| stage).collect();
        let mut ways = ways(reason, &steps);
        ways.retain(|way| way.verdict == verdict);
        let mut outcome = Outcome::Agrees;
        if ways.is_empty() {
            println!("from {source:x}, {kind:?}, at {now:?}: {reason}, {stages:?}");
            return Outcome::Differs;
        }
        self.seen.take(met.number, &stages, &ways);
        for (step, stage) in stages.iter().enumerate() {
            let outcomes: BTreeSet<_> = ways.iter().map(|way| way.admitted(step)).collect();
            let denied = outcomes.contains(&Some(false));
            if stage.exact == Some(true) && denied && outcomes.len() == 1 {
                outcome = Outcome::Waits;
            } else if stage.exact.is_none() && outcomes.iter().any(Option::is_some) {
                outcome = Outcome::Uncertain;
            }
            let buckets = stage.after(now, &outcomes);
            match stage.payer {
                Payer::Shared(target) => {
                    self.shared.insert(target, buckets);
                    if outcomes.contains(&Some(false)) {
                        self.denied.insert(target);
                    } else if outcomes.contains(&Some(true)) {
                        self.denied.remove(&target);
                    }
                }
                Payer::Account(account, mut tracked) => {
                    tracked.buckets = buckets;
                    tracked.take(frame.len(), &outcomes);
                    self.tracked.insert(account, tracked);
                }
            }
        }
        outcome
    }

    /// What a packet of `length` bytes meets in an account's bucket, if that has one.
    fn stage(
        &mut self,
        account: Account,
        policy: &Policy,
        length: usize,
        at: Moment,
        now: (i128, i128),
    ) -> Option<Stage> {
        let mut tracked = self.tracked(account, policy, at, now)?;
        let charges = policy.charges(length);
        // Both tiers, whichever denies: the limit may be another one since the last packet.
        tracked.buckets.clamp(now, charges);
        let buckets = tracked.buckets;
        // Only what the program remembers makes it wait under two tiers, which is what it has dropped.
        let may_wait = tracked.denied && may_wait(buckets, policy.enforce, charges, at, now);
        let (payer, exact) = (Payer::Account(account, tracked), buckets.admits(now, charges));
        Some(Stage { payer, buckets, charges, may_wait, exact })
    }

    /// What is known of an account that has a bucket, or gets one with this packet.
    fn tracked(
        &mut self,
        account: Account,
        policy: &Policy,
        at: Moment,
        now: (i128, i128),
    ) -> Option<Tracked> {
        if let Some(tracked) = self.tracked.get(&account) {
            return Some(*tracked);
        }
        let estimate = self.sketch.add(account, at.epoch, at.part);
        let first_and_only = estimate.current == 1 && policy.gate > 1;
        if estimate.window < policy.gate || first_and_only {
            return None;
        }
        self.sketch.forget(account);
        let buckets = self.new_buckets(policy, estimate, at, now);
        Some(Tracked { buckets, denied: false, passed: 0, dropped: 0, unsure: 0, bytes: 0 })
    }

    /// The buckets of a source that has reached its gate. It owes what it has sent in this epoch and
    /// cannot be noise, as if all had come when the first can have come at the earliest.
    fn new_buckets(
        &self,
        policy: &Policy,
        estimate: sketch::Estimate,
        at: Moment,
        now: (i128, i128),
    ) -> Buckets {
        let noise = self.sketch.noise(at.epoch, self.cpus, (self.width, self.depth));
        let owed = (estimate.current - 1).saturating_sub(noise).min(MAX_GATE);
        let part = i128::from(self.window / sketch::PARTS);
        let since = (at.began + i128::from(estimate.first) * part) * TICKS;
        let owed = i128::from(owed);
        let owing = |charge: Charge| {
            let (least, most) = charge.cost;
            Bucket((since + owed * least).max(now.0), (since + owed * most).max(now.1))
        };
        let (first, second) = policy.least_charges();
        Buckets { first: owing(first), second: second.map_or(Bucket(now.0, now.1), owing) }
    }
}

impl Tracked {
    /// Counts a packet of `length` bytes.
    fn take(&mut self, length: usize, outcomes: &BTreeSet<Option<bool>>) {
        self.denied = outcomes.contains(&Some(false));
        self.unsure += u64::from(outcomes.len() > 1);
        self.bytes += length as u64;
        if self.denied {
            self.dropped += 1;
        } else {
            self.passed += 1;
        }
    }
}

/// Whether the coarse clock may show a time at which buckets that have denied a packet had no token; those of two tiers
/// may wait only if that is `remembered`.
fn may_wait(
    buckets: Buckets,
    remembered: bool,
    charges: Charges,
    at: Moment,
    now: (i128, i128),
) -> bool {
    let late = (i128::from(at.coarse) * TICKS, now.1);
    let least = MIN_WAIT * TICKS;
    let fills_slowly = match charges {
        (first, None) => first.burst.1 >= first.cost.0 + least,
        (first, Some(second)) => remembered && first.burst.1 >= least && second.burst.1 >= least,
    };
    fills_slowly && buckets.admits(late, charges) != Some(true)
}

impl Seen {
    fn take(&mut self, class: u8, stages: &[Stage], ways: &[Way]) {
        let reached = |step: &usize| ways.iter().all(|way| way.admitted(*step).is_some());
        let met: Vec<&Stage> =
            stages.iter().enumerate().filter(|(step, _)| reached(step)).map(|(_, s)| s).collect();
        let shared = met.iter().filter(|stage| matches!(stage.payer, Payer::Shared(_))).count();
        let of_destination = |stage: &&Stage| matches!(stage.payer, Payer::Account((_, number), _) if is_of_destination(number));
        self.destination += u64::from(met.iter().any(of_destination));
        self.class += u64::from(class != 0);
        self.two += u64::from(met.iter().any(|stage| stage.charges.1.is_some()));
        self.shared += u64::from(shared > 0);
        self.series += u64::from(shared > 1);
    }
}
