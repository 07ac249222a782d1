//! From a frame to a verdict.

use std::collections::{BTreeMap, HashMap};

use super::{
    Bucket, Policy, Reading, Sketch,
    packet::MAPPED,
    policy::{MAX_GATE, TICKS},
    read, sketch,
};

/// A source whose bucket takes less than this to fill does not wait for the coarse clock, ns.
const LEAST_TO_WAIT: i128 = 40_000_000;

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
pub type Counts = BTreeMap<(&'static str, &'static str), (u64, u64)>;

/// A source with a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    bucket: Bucket,
    /// Whether its last packet was dropped.
    denied: bool,
    /// Packets passed since it has one.
    pub passed: u64,
    /// Packets dropped since.
    pub dropped: u64,
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
    /// The limit of each prefix: network (IPv4 mapped into IPv6), its length of 128, policy.
    pub limits: Vec<(u128, u32, Policy)>,
    /// The limit of all others.
    pub default: Policy,
    /// What has become of all frames.
    pub counts: Counts,
    /// Frames with an invalid header and a source.
    pub malformed: u64,
    /// What is known of light sources.
    pub sketch: Sketch,
    /// Every source that has a bucket.
    pub tracked: HashMap<u128, Tracked>,
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
            limits: Vec::new(),
            default: Policy::UNLIMITED,
            counts: Counts::new(),
            malformed: 0,
            sketch: Sketch::default(),
            tracked: HashMap::new(),
        }
    }

    /// The limit of a source: that of the longest prefix it is in.
    fn policy(&self, source: u128) -> Policy {
        let inside = |(network, length, _): &&(u128, u32, Policy)| {
            (source ^ network).checked_shr(128 - length).unwrap_or(0) == 0
        };
        let longest = self.limits.iter().filter(inside).max_by_key(|(_, length, _)| *length);
        longest.map_or(self.default, |(_, _, policy)| *policy)
    }

    fn count(&mut self, passed: bool, reason: &'static str, frame: &[u8]) {
        let tally = self.counts.entry((if passed { "pass" } else { "drop" }, reason)).or_default();
        tally.0 += 1;
        tally.1 += frame.len() as u64;
    }

    /// Judges `frame`, takes in that it has `passed`, and tells whether it should have.
    pub fn judge(&mut self, frame: &[u8], at: Moment, passed: bool) -> Outcome {
        let (address, malformed) = match read(frame) {
            Reading::From { address, malformed } => (address, malformed),
            other => {
                let (right, reason) = match other {
                    Reading::NotIp => (true, "non_ip"),
                    _ => (!self.drop_malformed, "malformed"),
                };
                self.count(right, reason, frame);
                return if passed == right { Outcome::Agrees } else { Outcome::Differs };
            }
        };
        self.malformed += u64::from(malformed);
        // Sources are IPv4 addresses and IPv6 /64s.
        let source = if address >> 32 == MAPPED >> 32 { address } else { address >> 64 << 64 };
        let policy = self.policy(source);
        let now = (i128::from(at.ns.0) * TICKS, i128::from(at.ns.1) * TICKS);
        let mut tracked = match self.tracked.get(&source) {
            Some(tracked) => *tracked,
            None => {
                let estimate = self.sketch.add(source, at.epoch, at.part);
                if estimate.window < policy.gate {
                    self.count(true, "below_gate", frame);
                    return if passed { Outcome::Agrees } else { Outcome::Differs };
                }
                self.sketch.forget(source);
                let bucket = self.new_bucket(policy, estimate, at, now);
                Tracked { bucket, denied: false, passed: 0, dropped: 0, bytes: 0 }
            }
        };
        let charge = policy.charge(frame.len());
        let exact = tracked.bucket.admits(now, charge);
        // A source that was over its limit may have been judged by the coarse clock: whether that one
        // may have shown a time at which it had no token.
        let late = (i128::from(at.coarse) * TICKS, now.1);
        let may_wait = tracked.denied
            && charge.burst.1 >= charge.cost.0 + LEAST_TO_WAIT * TICKS
            && tracked.bucket.admits(late, charge) != Some(true);
        let right = exact.unwrap_or(passed);
        let waited = !passed && may_wait;
        if waited {
            tracked.bucket.wait(now, charge);
        } else {
            tracked.bucket.settle(now, charge, right);
        }
        let right = right && !waited;
        tracked.denied = !right;
        tracked.bytes += frame.len() as u64;
        if right {
            tracked.passed += 1;
            self.count(true, "conforming", frame);
        } else {
            tracked.dropped += 1;
            self.count(false, "over_limit", frame);
        }
        self.tracked.insert(source, tracked);
        match exact {
            Some(true) if waited => Outcome::Waits,
            Some(_) if right == passed => Outcome::Agrees,
            Some(_) => Outcome::Differs,
            None => Outcome::Uncertain,
        }
    }

    /// The bucket of a source that has reached its gate. It owes what it has sent in this epoch and
    /// cannot be noise, as if all had come when the first can have come at the earliest.
    fn new_bucket(
        &self,
        policy: Policy,
        estimate: sketch::Estimate,
        at: Moment,
        now: (i128, i128),
    ) -> Bucket {
        let noise = self.sketch.noise(at.epoch, self.cpus, (self.width, self.depth));
        let owed = (estimate.current - 1).saturating_sub(noise).min(MAX_GATE);
        let part = i128::from(self.window / sketch::PARTS);
        let since = (at.began + i128::from(estimate.first) * part) * TICKS;
        let cost = policy.least_cost();
        let owed = i128::from(owed);
        Bucket((since + owed * cost.0).max(now.0), (since + owed * cost.1).max(now.1))
    }
}
