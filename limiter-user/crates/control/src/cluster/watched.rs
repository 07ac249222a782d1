//! What somebody under a limit of the cluster sends, and what it is taken to want: a source, or a key.

use std::time::Duration;

use cluster::Moment;
use cluster::demand::{DemandEstimator, GUESS, Snapshot};
use model::share::{self, IDLE};
use model::source::Counts;
use model::{Limit, Share, Tier, Unit};

/// Less of a limit than this is nobody's concern, whatever the floor.
// Half of a tiny floor is a packet now and then. Every source would be tracked for it.
const LITTLE: Share = Share::from_units(1 << 23);

/// Bytes of a frame, where a limit counts them.
// The largest Ethernet frame: with smaller ones a limit in bytes lets more packets through, so
// this is the slow case.
const FRAME: f64 = 1514.0;

/// What matters of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// What this host may use of every key.
    pub(super) floor: Share,
    /// The least that limits of the cluster let through whole, packets a second.
    pub(super) slowest: f64,
}

impl Bounds {
    /// The least part of a limit that matters.
    pub(super) fn least(&self) -> Share {
        self.floor.times(1, 2).max(LITTLE)
    }
}

/// What a tier lets through, packets a second; full frames where it counts bytes.
pub(super) fn packets_a_second(tier: &Tier) -> f64 {
    let frame = if tier.rate.unit() == Unit::Bytes { FRAME } else { 1.0 };
    tier.rate.per_second() / frame
}

/// For how long who is under a limit is watched after it was busy.
fn life_of(limit: &Limit) -> Duration {
    let fills = limit.tiers().map(|tier| tier.burst as f64 / tier.rate.per_second());
    share::life(fills.fold(0.0, f64::max))
}

/// What is wanted at least for a source whose share is kept: its bucket fills by that while it sends less. Where it
/// is tracked longer than others, a packet at least.
fn kept(limit: &Limit, life: Duration, bounds: Bounds) -> Share {
    // More than what is nobody's concern. Where nobody else wants any, that brings the whole limit.
    let little = bounds.least().times(2, 1);
    if life <= IDLE {
        return little;
    }
    let packets = packets_a_second(&limit.tier()) * life.as_secs_f64();
    Share::from_part(1.0 / packets.max(1.0)).max(little)
}

/// What is known of somebody who is watched.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    gauge: DemandEstimator,
    /// Whether some of it is dropped.
    pub(super) limited: bool,
    /// When it last sent so much that it matters.
    pub(super) busy: Moment,
    /// For how long it is watched from then on: what it has used of its limit comes back at its share.
    life: Duration,
    /// It pauses: until it is given up, its share is kept.
    keeps: bool,
}

impl Watch {
    /// Begins with what a bucket has counted, and whether it is known to be limited. Tells what it seems to send, as a part
    /// of the limit.
    pub(super) fn begin(
        now: Moment,
        limit: &Limit,
        counts: Counts,
        limited: bool,
        bounds: Bounds,
    ) -> (Self, Share) {
        let guess = if limited { GUESS } else { Share::NONE };
        let (gauge, part) = DemandEstimator::begin(now, limit, counts, guess);
        let life = life_of(limit);
        let keeps = life > IDLE || part >= bounds.least();
        (Self { gauge, limited, busy: now, life, keeps }, part)
    }

    /// Whether the bucket tells by itself what comes.
    pub(super) fn is_young(&self, now: Moment) -> bool {
        self.gauge.is_young(now)
    }

    /// Whether it has sent little for so long that it is watched no more.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        now.since(self.busy) > self.life
    }

    /// What is wanted when it sends so much of its limit.
    pub(super) fn wanted(&self, part: Share, limit: &Limit, bounds: Bounds) -> Share {
        if self.keeps { part.max(kept(limit, self.life, bounds)) } else { part }
    }

    /// Takes a later look at the bucket, which is known to be limited or not. What is wanted from now on, if that is known.
    pub(super) fn look(
        &mut self,
        now: Moment,
        limit: &Limit,
        counts: Counts,
        limited: bool,
        bounds: Bounds,
    ) -> Option<Share> {
        // The first drop is urgent: the source has used its share, and waits for more.
        let starts = limited && !self.limited;
        let Snapshot { demand: part, sends, drops } =
            self.gauge.look(now, limit, counts, starts)?;
        // Whoever sends nothing is not limited, whatever became of its last packet.
        self.limited = sends && (drops || limited);
        let matters = part >= bounds.least() || self.limited;
        if matters {
            self.busy = now;
        }
        // The limit may have changed since the last look.
        self.life = life_of(limit);
        // What is told of a pause falls by chance, look by look. Who has stopped leaves its share to others, unless
        // its bucket takes long to fill.
        let pauses = !part.is_none() && (matters || self.keeps);
        self.keeps = pauses || self.life > IDLE;
        Some(self.wanted(part, limit, bounds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Target;

    #[test]
    fn whoever_is_watched_is_for_as_long_as_its_bucket_takes_to_fill() {
        for (rate, burst, seconds) in [
            ("1000pps", 1200, 3.0),
            ("20pps", 24, 3.0),
            ("5/minute", 1, 14.2),
            ("1/minute", 60, 300.0),
        ] {
            let limit = Limit::new(Target::DEFAULT, rate.parse().unwrap(), Some(burst)).unwrap();
            let life = life_of(&limit).as_secs_f64();
            assert!((life - seconds).abs() < 1e-6, "{rate} {burst}: {life}");
        }
    }
}
