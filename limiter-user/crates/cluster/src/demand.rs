//! What a source sends, from looks at what its bucket has counted.

use std::time::Duration;

use model::source::Counts;
use model::{Limit, Share, Tier, Unit};

use crate::Moment;

/// The shortest time that a rate is told from.
// Just below the pace of looks, so that each of them may tell something.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
/// The longest: so slow limits wait for a second.
// A demand must be renewed before the escrow forgets its key after three seconds.
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// Packets that tell a rate well enough: fewer are chance.
// A count of 32 is uncertain by its root, about a sixth.
const ENOUGH: u64 = 32;
/// Packets that a look waits for, by what the source has sent before. Many hosts may share a source: told from a packet or
/// two, its demand would be twice too much or nothing, and each host would say so again and again.
// Fewer cost bytes, more cost time: a demand that goes up and down within seconds is followed late.
const AWAITED: f64 = 8.0;
/// Who sends nothing for as long as so many packets would take has stopped, unless it often pauses.
// By chance, at the same rate, once in e^12 = 160,000 looks. A share waits meanwhile with who does not use it.
const MISSED: f64 = 12.0;
/// It pauses often if it did so lately, for more than one part in this of the present silence.
const PAUSES: f64 = 1.5;
/// What somebody is taken to want who is limited, and of whom nothing more is known: so much comes of a source that
/// keeps to its limit, and what it does not use comes back when it is known.
pub const GUESS: Share = Share::from_units(1 << 31);
/// A bucket that is younger tells what its source sends by itself.
// As long as a look: to go through a table of many buckets may take most of that.
const YOUNG: Duration = MAX_INTERVAL;
/// The least age that a rate is told from, whatever the bucket says.
// A rate over no time would be without a bound.
const MIN_AGE: Duration = Duration::from_millis(10);

/// Counts of a bucket that are waiting for later ones.
#[derive(Clone, Copy, Debug)]
pub struct DemandEstimator {
    counts: Counts,
    since: Moment,
    /// How long a look takes that tells something under this limit.
    span: Duration,
    /// What it sent when it last did, packets a second; 0 once it has stopped.
    pace: f64,
    /// What was told last.
    told: Share,
    /// Nothing is known yet of what it sends at present.
    is_guess: bool,
    /// A packet came just before the last look that told something.
    follows: bool,
    /// Packets at the last look, when there were more of them than before, and whether a look has found no more since.
    latest: u64,
    heard: Moment,
    is_silent: bool,
    /// How long there were no more before: the longest of the latest few times.
    pause: Duration,
}

/// What a source has sent lately.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Snapshot {
    /// As a part of its limit, drops included. What rises is believed at once, what falls nearly so, and that it has
    /// stopped.
    pub demand: Share,
    /// Whether that was anything.
    pub sends: bool,
    /// Whether some of it was dropped.
    pub drops: bool,
}

/// In how long a limit lets [`ENOUGH`] packets through.
fn span_of(limit: &Limit) -> Duration {
    let span = |tier: Tier| {
        // A common size of packets. It only decides how long to wait, so it need not be exact.
        let frame = if tier.rate.unit() == Unit::Bytes { 1000.0 } else { 1.0 };
        ENOUGH as f64 * frame / tier.rate.per_second()
    };
    let longest = MAX_INTERVAL.as_secs_f64();
    let seconds = limit.tiers().map(span).fold(longest, f64::min);
    Duration::from_secs_f64(seconds.max(MIN_INTERVAL.as_secs_f64()))
}

/// What was offered between two counts of a bucket that lie `long` apart, as a part of the limit; of that in
/// packets or bytes of which it is more.
fn offered(limit: &Limit, earlier: &Counts, now: &Counts, long: Duration) -> Share {
    // Drops count: of a source that is limited, only they tell that it wants more than it has.
    let packets = now.packets().saturating_sub(earlier.packets());
    let bytes = now.bytes.saturating_sub(earlier.bytes);
    let part = |tier: &Tier| {
        let offered = if tier.rate.unit() == Unit::Bytes { bytes } else { packets };
        let period_s = tier.rate.period_ns() as f64 / 1e9;
        let allowed = tier.rate.amount() as f64 / period_s * long.as_secs_f64();
        // Two looks at one moment tell nothing.
        if allowed > 0.0 { offered as f64 / allowed } else { 0.0 }
    };
    // The larger of the two, as either tier alone drops a packet.
    let first = part(&limit.tier());
    Share::from_part(limit.also.as_ref().map_or(first, |also| first.max(part(also))))
}

impl DemandEstimator {
    /// Begins with a bucket, and tells what its source seems to send: what it did since it has the bucket, or,
    /// if that is long ago, as much as is told of it by `guess`.
    pub fn begin(now: Moment, limit: &Limit, counts: Counts, guess: Share) -> (Self, Share) {
        let age = now.since(Moment(counts.since_ns));
        // All counts since the bucket began are the present demand, if that is recent.
        let none = Counts { since_ns: counts.since_ns, ..Counts::default() };
        let demand =
            if age < YOUNG { offered(limit, &none, &counts, age.max(MIN_AGE)) } else { guess };
        let gauge = Self {
            counts,
            since: now,
            span: span_of(limit),
            pace: 0.0,
            told: demand,
            is_guess: age >= YOUNG,
            // Buckets are found by what comes to them.
            follows: true,
            latest: counts.packets(),
            heard: now,
            is_silent: false,
            pause: Duration::ZERO,
        };
        (gauge, demand)
    }

    /// How long a look takes that tells something: until [`AWAITED`] packets come at the latest pace.
    fn interval(&self) -> Duration {
        if self.pace <= 0.0 {
            return self.span;
        }
        let seconds = (AWAITED / self.pace).min(MAX_INTERVAL.as_secs_f64());
        self.span.max(Duration::from_secs_f64(seconds))
    }

    /// Whether a source that sent steadily has stopped, when it has sent `packets` in all.
    fn has_stopped(&mut self, now: Moment, packets: u64) -> bool {
        let silent = now.since(self.heard);
        if packets != self.latest {
            let paused = if self.is_silent { silent } else { Duration::ZERO };
            let pause = paused.max(self.pause * 3 / 4);
            *self = Self { latest: packets, heard: now, is_silent: false, pause, ..*self };
            return false;
        }
        self.is_silent = true;
        silent >= self.pause.mul_f64(PAUSES) && silent.as_secs_f64() * self.pace >= MISSED
    }

    /// Whether the bucket tells by itself what its source sends.
    pub fn is_young(&self, now: Moment) -> bool {
        now.since(Moment(self.counts.since_ns)) < YOUNG
    }

    /// Takes a later look. Tells what the source has sent since the last one that told something; nothing if
    /// it is too early to tell, unless that is `urgent`.
    pub fn look(
        &mut self,
        now: Moment,
        limit: &Limit,
        counts: Counts,
        urgent: bool,
    ) -> Option<Snapshot> {
        // From the last look that told something: short ones add up until they are enough.
        let long = now.since(self.since);
        let before = self.counts;
        if counts.since_ns != before.since_ns {
            // Another life of the bucket.
            let (gauge, demand) = Self::begin(now, limit, counts, Share::NONE);
            *self = gauge;
            let (sends, drops) = (counts.packets() > 0, counts.dropped > 0);
            return Some(Snapshot { demand, sends, drops });
        }
        let stopped = self.has_stopped(now, counts.packets());
        // Drops are moved from a CPU's memory to the bucket meanwhile, and may be missed for a moment.
        let packets = counts.packets().saturating_sub(before.packets());
        let early = packets < ENOUGH && long < self.interval();
        // Whole pauses are told of: without them a single packet would look like a flood.
        let pauses = if self.follows { packets } else { packets.saturating_sub(1) };
        let hurries = urgent || self.is_guess;
        if !stopped && (long < MIN_INTERVAL || early && !(hurries && pauses > 0)) {
            return None;
        }
        let mut sent = offered(limit, &before, &counts, long);
        if early && !stopped {
            // A look that a packet brings about ends with one.
            sent = sent.times(pauses, packets);
        }
        let told = match () {
            () if stopped => Share::NONE,
            () if sent >= self.told => sent,
            () => self.told.times(1, 4) + sent.times(3, 4),
        };
        let pace = match packets {
            _ if stopped => 0.0,
            0 => self.pace,
            _ => packets as f64 / long.as_secs_f64(),
        };
        // The limit may have changed since the last look.
        *self = Self {
            counts,
            since: now,
            span: span_of(limit),
            pace,
            told,
            is_guess: false,
            follows: self.heard == now,
            ..*self
        };
        let drops = counts.dropped > before.dropped;
        Some(Snapshot { demand: told, sends: packets > 0, drops: drops && !stopped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Target;

    fn limit(rate: &str) -> Limit {
        Limit::new(Target::DEFAULT, rate.parse().unwrap(), None).unwrap()
    }

    #[test]
    fn demand_is_a_part_of_the_unit_that_is_used_most() {
        let mut both = limit("1000pps");
        let earlier = Counts { passed: 100, dropped: 10, bytes: 1000, since_ns: 1 };
        let now = Counts { passed: 200, dropped: 60, bytes: 101_000, since_ns: 1 };
        let of = |limit: &Limit| offered(limit, &earlier, &now, Duration::from_millis(100)).part();
        // 150 packets where 100 may come.
        assert!((of(&both) - 1.5).abs() < 1e-6, "{}", of(&both));
        both.also = Some(limit("250kbyte/s").tier());
        assert!((of(&both) - 4.0).abs() < 1e-6, "{}", of(&both));
    }

    #[test]
    fn a_look_takes_long_enough_to_tell_something() {
        for (rate, ms) in
            [("1000pps", 32), ("200pps", 160), ("1pps", 1000), ("1gbit", 20), ("80kbit", 1000)]
        {
            assert_eq!(span_of(&limit(rate)), Duration::from_millis(ms), "{rate}");
        }
    }

    #[test]
    fn a_source_that_many_hosts_share_is_told_of_steadily() {
        // A hundredth of what the limit lets through twice: a packet in every other look, or two, or none.
        let (limit, ms) = (limit("1000pps"), |ms: u64| Moment(ms * 1_000_000));
        let counts = |ms: u64| Counts { dropped: ms / 50, since_ns: 1, ..Counts::default() };
        let (mut gauge, _) = DemandEstimator::begin(ms(1_000), &limit, counts(1_000), Share::NONE);
        let looks = (41..=400).map(|look| 25 * look + look % 7);
        let told: Vec<f64> = looks
            .filter_map(|at| gauge.look(ms(at), &limit, counts(at), false))
            .map(|snapshot| snapshot.demand.part())
            .collect();
        assert!((18..40).contains(&told.len()), "in nine seconds: {}", told.len());
        assert!(told[2..].iter().all(|demand| (0.016..0.025).contains(demand)), "{told:?}");
    }

    #[test]
    fn the_second_packet_of_a_source_that_comes_back_tells_what_it_sends() {
        let (limit, ms) = (limit("20pps"), |ms: u64| Moment(ms * 1_000_000));
        let counts = |packets: u64| Counts { dropped: packets, since_ns: 1, ..Counts::default() };
        let begin = |guess| DemandEstimator::begin(ms(15_000), &limit, counts(50), guess);
        for guess in [Share::NONE, GUESS] {
            let (mut gauge, demand) = begin(guess);
            assert_eq!(demand, guess);
            // No packet tells nothing.
            assert_eq!(gauge.look(ms(15_090), &limit, counts(50), true), None);
            let told = gauge.look(ms(15_100), &limit, counts(51), guess.is_none()).unwrap();
            assert!((told.demand.part() - 0.5).abs() < 0.01, "{told:?}");
            // From then on it is known, and chance is not told of.
            assert_eq!(gauge.look(ms(15_150), &limit, counts(52), false), None);
        }
    }
}
