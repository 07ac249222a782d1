//! What a source sends, from looks at what its bucket has counted.

use std::time::Duration;

use cluster::Moment;
use dataplane::ClusterMember;
use model::Share;
use model::source::Counts;
use model::{Limit, Tier};

/// The shortest time that a rate is told from.
// Just below the pace of looks, so that each of them may tell something.
const MIN_INTERVAL: Duration = Duration::from_millis(40);
/// The longest: so slow limits wait for a second.
// A demand must be renewed before the escrow forgets its key after three seconds.
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// Packets that tell a rate well enough: fewer are chance.
// A count of 32 is uncertain by its root, about a sixth.
const ENOUGH: u64 = 32;
/// Who sends nothing for as long as so many packets would take has stopped, unless it often pauses.
// By chance, at the same rate, once in e^12 = 160,000 looks. A share waits meanwhile with who does not use it.
const MISSED: f64 = 12.0;
/// It pauses often if it did so lately, for more than one part in this of the present silence.
const PAUSES: f64 = 1.5;
/// A bucket that is younger tells what its source sends by itself.
// As long as a grant: counts of a longer time say little of the present.
const YOUNG: Duration = Duration::from_millis(500);
/// The least age that a rate is told from, whatever the bucket says.
// A rate over no time would be without a bound.
const MIN_AGE: Duration = Duration::from_millis(10);

/// Counts of a bucket that are waiting for later ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemandEstimator {
    counts: Counts,
    since: Moment,
    /// How long a look takes that tells something under this limit.
    span: Duration,
    /// What was told last, packets a second.
    pace: f64,
    /// Packets at the last look, when there were more of them than before, and how long that had taken: the longest of
    /// the latest few times.
    latest: u64,
    heard: Moment,
    pause: Duration,
}

/// What a source has sent lately.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Snapshot {
    /// As a part of its limit, drops included.
    pub(super) demand: Share,
    /// Whether that was anything.
    pub(super) sends: bool,
    /// Whether some of it was dropped.
    pub(super) drops: bool,
}

/// In how long a limit lets [`ENOUGH`] packets through.
fn span_of(limit: &Limit) -> Duration {
    let span = |tier: Tier| {
        // A common size of packets. It only decides how long to wait, so it need not be exact.
        let frame = if tier.rate.unit() == model::Unit::Bytes { 1000.0 } else { 1.0 };
        ENOUGH as f64 * frame / tier.rate.per_second()
    };
    let longest = MAX_INTERVAL.as_secs_f64();
    let seconds = limit.tiers().map(span).fold(longest, f64::min);
    Duration::from_secs_f64(seconds.max(MIN_INTERVAL.as_secs_f64()))
}

impl DemandEstimator {
    /// Begins with a bucket, and tells what its source seems to send: what it did since it has the bucket, or,
    /// if that is long ago, as much as is told of it by `guess`.
    pub(super) fn begin(now: Moment, member: &ClusterMember, guess: Share) -> (Self, Share) {
        let counts = member.bucket.counts;
        let age = now.since(Moment(counts.since_ns));
        // All counts since the bucket began are the present demand, if that is recent.
        let none = Counts { since_ns: counts.since_ns, ..Counts::default() };
        let demand = if age < YOUNG { member.demand(&none, age.max(MIN_AGE)) } else { guess };
        let latest = counts.packets();
        let span = span_of(&member.limit);
        let gauge =
            Self { counts, since: now, span, pace: 0.0, latest, heard: now, pause: Duration::ZERO };
        (gauge, demand)
    }

    /// Begins to measure anew, when `pace` was told.
    fn told(&mut self, now: Moment, member: &ClusterMember, pace: f64) {
        let (counts, span) = (member.bucket.counts, span_of(&member.limit));
        *self = Self { counts, since: now, span, pace, ..*self };
    }

    /// Whether a source that sent steadily has stopped, when it has sent `packets` in all.
    fn has_stopped(&mut self, now: Moment, packets: u64) -> bool {
        let silent = now.since(self.heard);
        if packets != self.latest {
            let pause = silent.max(self.pause * 3 / 4);
            *self = Self { latest: packets, heard: now, pause, ..*self };
            return false;
        }
        silent >= self.pause.mul_f64(PAUSES) && silent.as_secs_f64() * self.pace >= MISSED
    }

    /// Whether the bucket tells by itself what its source sends.
    pub(super) fn is_young(&self, now: Moment) -> bool {
        now.since(Moment(self.counts.since_ns)) < YOUNG
    }

    /// Takes a later look. Tells what the source has sent since the last one that told something; nothing if
    /// it is too early to tell, unless that is `urgent`.
    pub(super) fn look(
        &mut self,
        now: Moment,
        member: &ClusterMember,
        urgent: bool,
    ) -> Option<Snapshot> {
        let counts = member.bucket.counts;
        // From the last look that told something: short ones add up until they are enough.
        let long = now.since(self.since);
        let before = self.counts;
        if counts.since_ns != before.since_ns {
            // Another life of the bucket.
            let (gauge, demand) = Self::begin(now, member, Share::NONE);
            *self = gauge;
            let (sends, drops) = (counts.packets() > 0, counts.dropped > 0);
            return Some(Snapshot { demand, sends, drops });
        }
        if self.has_stopped(now, counts.packets()) {
            self.told(now, member, 0.0);
            return Some(Snapshot { demand: Share::NONE, sends: false, drops: false });
        }
        // Drops are moved from a CPU's memory to the bucket meanwhile, and may be missed for a moment.
        let packets = counts.packets().saturating_sub(before.packets());
        let early = packets < ENOUGH && long < self.span;
        // Not even an urgent look may tell from less: a single packet would look like a flood.
        if long < MIN_INTERVAL || early && !(urgent && packets > 0) {
            return None;
        }
        self.told(now, member, packets as f64 / long.as_secs_f64());
        let drops = counts.dropped > before.dropped;
        Some(Snapshot { demand: member.demand(&before, long), sends: packets > 0, drops })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Target;

    #[test]
    fn a_look_takes_long_enough_to_tell_something() {
        for (rate, ms) in
            [("1000pps", 40), ("200pps", 160), ("1pps", 1000), ("1gbit", 40), ("80kbit", 1000)]
        {
            let limit = Limit::new(Target::DEFAULT, rate.parse().unwrap(), None).unwrap();
            assert_eq!(span_of(&limit), Duration::from_millis(ms), "{rate}");
        }
    }
}
