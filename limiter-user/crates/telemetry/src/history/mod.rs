//! What went on: the last hour by the second and the last week by the minute, in fixed memory.
//!
//! The time of the history is its own. It starts at what the wall clock said with the first sample and
//! goes on with the monotonic clock, so a step of the wall clock neither counts a second twice nor skips
//! one. A moment is told by how long ago it was from what the wall clock says at the last sample: whoever
//! sets the clock right sets what is told of the past right too, and moments stay in their order.
//!
//! Pauses of up to 3 seconds between samples are spread over the seconds evenly. A longer one,
//! because the daemon was down, is a gap: its seconds stay empty, and what was counted in it is in the
//! one slot after it, as a mean over that time. So nothing that was counted is lost, and nobody sees a
//! course of events that nobody has seen.

mod file;
mod slot;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use file::{Keeper, Patch};
use slot::Totals;
pub use slot::{REASONS, Slot};

use super::Sample;

/// Slots of a second: an hour.
const SECONDS: usize = 3600;
/// Slots of a minute: a week.
const MINUTES: usize = 7 * 24 * 60;
/// Seconds of a minute.
const MINUTE: u64 = 60;
/// Seconds without a sample that are no gap.
// A busy machine gives the daemon its second late. That is no reason for a hole in every chart.
const SHORT: u64 = 3;
const NS: u64 = 1_000_000_000;

/// How far back history goes, s.
pub const MAX_AGE: u64 = MINUTES as u64 * MINUTE;

/// The most points that are told at once.
// As many as there are minutes, so that each slot of a week can be had at once.
pub const MAX_POINTS: u64 = MINUTES as u64;

/// Slots of one length, the oldest of which make room for new ones.
#[derive(Clone, Debug)]
struct Ring {
    slots: Vec<Slot>,
    /// Places that have changed since they were written.
    dirty: BTreeSet<usize>,
}

impl Ring {
    fn new(length: usize) -> Self {
        Self { slots: vec![Slot::default(); length], dirty: BTreeSet::new() }
    }

    fn place(&self, number: u64) -> usize {
        (number % self.slots.len() as u64) as usize
    }

    fn get(&self, number: u64) -> Option<&Slot> {
        self.slots.get(self.place(number)).filter(|slot| slot.number == number && number > 0)
    }

    fn add(&mut self, number: u64, part: &Slot) {
        let place = self.place(number);
        if self.slots[place].number != number {
            self.slots[place] = Slot { number, ..Slot::default() };
        }
        self.slots[place].add(part);
        self.dirty.insert(place);
    }
}

/// The last sample, from which the next one is counted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Last {
    /// When, ns of the history's time.
    position_ns: u64,
    /// When, ns since boot.
    monotonic_ns: u64,
    /// When, ms since 1970.
    wall_ms: u64,
    totals: Totals,
}

impl Last {
    const fn second(&self) -> u64 {
        self.position_ns / NS
    }
}

/// The last hour by the second and the last week by the minute: 13,680 slots of 376 bytes, 4.9 MiB.
#[derive(Clone, Debug)]
pub struct History {
    seconds: Ring,
    minutes: Ring,
    last: Option<Last>,
    /// Time that the monotonic clock does not tell of, before the next sample: across a reboot, ns.
    away_ns: u64,
}

impl Default for History {
    fn default() -> Self {
        Self { seconds: Ring::new(SECONDS), minutes: Ring::new(MINUTES), last: None, away_ns: 0 }
    }
}

/// Consecutive slots, added up to steps of the same length.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Length of a step, s.
    pub step: u64,
    /// The end of each step, s since 1970, and what happened in it; `None` in a gap.
    pub points: Vec<(f64, Option<Slot>)>,
}

fn wall_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl History {
    /// Adds what has happened since the last sample. The first one only says what counting starts from.
    pub fn record(&mut self, sample: &Sample) {
        let (totals, wall_ms) = (Totals::new(sample), wall_ms(sample.time));
        let monotonic_ns = sample.monotonic_ns;
        let Some(last) = self.last else {
            // Second and minute 0 stand for none.
            let position_ns = wall_ms.clamp(MINUTE * 1000, u64::MAX / 2_000_000) * 1_000_000;
            self.last = Some(Last { position_ns, monotonic_ns, wall_ms, totals });
            return;
        };
        let passed = monotonic_ns.saturating_sub(last.monotonic_ns);
        let ns = passed.saturating_add(std::mem::take(&mut self.away_ns));
        let position_ns = last.position_ns.saturating_add(ns);
        let now = Last { position_ns, monotonic_ns, wall_ms, totals };
        // Counters that fall are those of new maps, which have counted from nothing.
        let before = if totals.follow(&last.totals) { last.totals } else { Totals::default() };
        let added = totals.since(&before);
        let slot = Slot {
            tracked: u32::try_from(sample.tracked()).unwrap_or(u32::MAX),
            distinct: sample.distinct.map_or(f32::NAN, |distinct| distinct.sources as f32),
            noise: sample.noise as f32,
            ..Slot::default()
        };
        // A gap in one piece: spread evenly it would look as if somebody had watched.
        let later = now.second() - last.second();
        let parts = if later > SHORT { 1 } else { later.max(1) };
        for part in 0..parts {
            let number = now.second() - (parts - 1 - part);
            let (added, covered_ns) = (added.part(part, parts), ns / parts);
            self.add(number, &Slot { covered_ns, added, ..slot });
        }
        self.last = Some(now);
    }

    fn add(&mut self, second: u64, slot: &Slot) {
        self.seconds.add(second, slot);
        self.minutes.add(second / MINUTE, slot);
    }

    /// What happened from `since` to `until` ago, in steps of `step`, or of what makes some hundred
    /// points. Steps are whole seconds; beyond the last hour, whole minutes.
    pub fn series(&self, since: Duration, until: Duration, step: Option<Duration>) -> Series {
        let since = since.as_secs().clamp(1, MAX_AGE);
        let until = until.as_secs().min(since);
        let length = since - until;
        let (ring, unit) = match since <= SECONDS as u64 {
            true => (&self.seconds, 1),
            false => (&self.minutes, MINUTE),
        };
        let wanted = step.map_or(length.div_ceil(360), |step| step.as_secs());
        let least = length.div_ceil(MAX_POINTS);
        // Whoever asks for a week by the second would get more than a page can show, or a socket should carry.
        let step = wanted.clamp(1, MAX_AGE).max(least).div_ceil(unit) * unit;
        let Some(last) = &self.last else { return Series { step, points: Vec::new() } };
        // From one look to the next a slot stays in the same step.
        let (slots, end) = (step / unit, (last.second() - until.min(last.second())) / unit);
        let first = end.saturating_sub(length / unit) / slots;
        let shift = last.wall_ms as f64 / 1e3 - last.position_ns as f64 / 1e9;
        let point = |n: u64| {
            let from = n * slots;
            let within = (from..from + slots).filter(|number| *number <= end);
            let sum = within.filter_map(|number| ring.get(number)).fold(None, |sum, slot| {
                let mut sum = sum.unwrap_or(Slot::default());
                sum.add(slot);
                Some(sum)
            });
            // What is counted in a second came until some moment of it. The last step may not be over.
            let ends = (((from + slots) * unit - 1) as f64 + shift).min(last.wall_ms as f64 / 1e3);
            ((ends * 1e3).round() / 1e3, sum)
        };
        Series { step, points: (first..=end / slots).map(point).collect() }
    }

    /// Distinct sources in each second of the last hour, the oldest first; `None` where they were not
    /// counted.
    pub fn distinct(&self) -> Vec<Option<f64>> {
        let last = self.last.map_or(0, |last| last.second());
        let first = (last + 1).saturating_sub(SECONDS as u64);
        (first..=last).map(|second| self.seconds.get(second)?.distinct()).collect()
    }

    /// Goes on with what an earlier daemon has stored. `same_boot` says whether the monotonic clock is
    /// still the same, `same_maps` whether the counters may be.
    fn resume(&mut self, mut last: Last, now: &Sample, same_boot: bool, same_maps: bool) {
        if !same_boot || now.monotonic_ns < last.monotonic_ns {
            let away_ms = wall_ms(now.time).saturating_sub(last.wall_ms).max(1000);
            self.away_ns = away_ms.saturating_mul(1_000_000);
            last.monotonic_ns = now.monotonic_ns;
        }
        // New maps count from nothing; after a reboot there are no others.
        if !same_boot || !same_maps {
            last.totals = Totals::default();
        }
        self.last = Some(last);
    }
}

#[cfg(test)]
mod tests;
