//! How many sources a host divides with others: no more than it has the time for, so that those which it does
//! divide have their grants in time, whoever else comes.

use std::time::Duration;

use cluster::Moment;
use cluster::escrow::MAX_HELD;

/// How many sources there is room for from the start, and always.
// Few at first: how fast the machine is shows only under load.
const FIRST: usize = 1 << 8;
const MIN: usize = 1 << 7;
/// How often that is reconsidered.
// As long as a grant, so that a change shows its cost before the next one.
const SPAN: Duration = Duration::from_millis(500);
/// Of its time a thread may work for this part; what is more is too much.
// Half the time is left for bursts. A thread at its limit would let grants end before their
// renewal.
const FULL: f64 = 0.5;
/// The part that it should work when it had too much to do.
const GOOD: f64 = 0.4;
/// Below this part there is room for more, and below that for many more.
const ROOMY: f64 = 0.3;
const EMPTY: f64 = 0.12;
/// A step that takes so long is too long, whatever part of the time that is: what other hosts wait for is in time with
/// shorter ones.
// A fifth of a grant: a renewal that waits for one such step still comes in time.
const LONG: Duration = Duration::from_millis(100);
/// If it takes so long until each source has had its turn, that is too long, too.
// Half of the time after which the escrow forgets a key without reports.
const ROUND: Duration = Duration::from_millis(1500);
/// How many times in a row there must be too much before sources are given up: a machine may stand still.
const TIMEOUT: u32 = 2;

/// How many sources there is room for.
#[derive(Clone, Debug)]
pub(super) struct AdmissionControl {
    most: usize,
    since: Moment,
    busy: Duration,
    longest: Duration,
    /// How long it takes until each has had its turn.
    round: Duration,
    /// How many times in a row there was too much to do.
    full: u32,
}

impl AdmissionControl {
    pub(super) const fn new(now: Moment) -> Self {
        let [busy, longest, round] = [Duration::ZERO; 3];
        Self { most: FIRST, since: now, busy, longest, round, full: 0 }
    }

    /// How many sources may be tracked.
    pub(super) const fn most(&self) -> usize {
        self.most
    }

    /// The thread has worked for so long at a stretch.
    pub(super) fn worked(&mut self, span: Duration) {
        self.busy += span;
        self.longest = self.longest.max(span);
    }

    /// Each source has its turn within so long.
    pub(super) const fn goes_round(&mut self, span: Duration) {
        self.round = span;
    }

    /// Reconsiders it where it is time, when so many sources are tracked.
    pub(super) fn renew(&mut self, now: Moment, tracked: usize) {
        let span = now.since(self.since);
        if span < SPAN {
            return;
        }
        // By the time that has really passed: after a standstill a span may be seconds long.
        let load = self.busy.as_secs_f64() / span.as_secs_f64();
        let step = std::mem::take(&mut self.longest).as_secs_f64() / LONG.as_secs_f64();
        let long = step.max(self.round.as_secs_f64() / ROUND.as_secs_f64());
        (self.since, self.busy) = (now, Duration::ZERO);
        // Each counts: one long step may hide in a low load, and short looks may go round slowly.
        let full = load > FULL || long > 1.0;
        self.full = if full { self.full + 1 } else { 0 };
        if full {
            // Nobody is given up yet, but nobody comes either.
            self.most = self.most.min(tracked.max(MIN));
            if self.full >= TIMEOUT {
                self.full = 0;
                // By the worst of all. The clamp keeps one odd measure from giving up nearly all
                // sources.
                let part = (GOOD / load).min(1.0 / long).clamp(0.25, 0.9);
                let fewer = (tracked as f64 * part) as usize;
                self.most = fewer.clamp(MIN, MAX_HELD);
            }
        // Only where sources are near the bound: otherwise it would rise without any evidence that
        // the time suffices.
        } else if load < ROOMY && long < 0.5 && tracked + tracked / 4 >= self.most {
            // What those who come take shows only when others have heard of them.
            let more = self.most / if load < EMPTY && long < 0.25 { 2 } else { 4 };
            self.most = (self.most + more).min(MAX_HELD);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half seconds in which so many sources at most are tracked, each of which takes so long.
    fn run(
        room: &mut AdmissionControl,
        from: u64,
        spans: u64,
        wanted: usize,
        each: Duration,
    ) -> Vec<usize> {
        let span = |at: u64| {
            let tracked = wanted.min(room.most());
            // In ten steps, as rounds are.
            (0..10).for_each(|_| room.worked(each / 10 * tracked as u32));
            room.renew(Moment(0).after(SPAN * (from + at + 1) as u32), tracked);
            room.most()
        };
        (0..spans).map(span).collect()
    }

    #[test]
    fn it_grows_while_there_is_time_and_not_before_it_is_needed() {
        let mut room = AdmissionControl::new(Moment(0));
        let quick = Duration::from_micros(5);
        assert_eq!(run(&mut room, 0, 20, 200, quick).last(), Some(&FIRST));
        assert_eq!(run(&mut room, 20, 20, 100_000, quick).last(), Some(&MAX_HELD));
    }

    #[test]
    fn it_becomes_what_there_is_time_for_and_stays_so() {
        let mut room = AdmissionControl::new(Moment(0));
        let slow = Duration::from_micros(1500);
        let found = run(&mut room, 0, 60, 100_000, slow);
        // Nobody is given up for what may be a moment's trouble.
        assert_eq!(found[0], FIRST);
        // 0.3 to 0.5 of half a second for 1.5 ms each.
        assert!(found[20..].iter().all(|most| (100..=167).contains(most)), "{found:?}");
    }

    #[test]
    fn a_machine_that_stands_still_for_a_while_gives_nobody_up() {
        let mut room = AdmissionControl::new(Moment(0));
        room.worked(SPAN * 4);
        room.renew(Moment(0).after(SPAN * 4), 200);
        assert_eq!(room.most(), 200);
        let found = run(&mut room, 4, 10, 200, Duration::from_micros(5));
        assert!(found.iter().all(|most| *most >= 200), "{found:?}");
    }

    #[test]
    fn steps_that_are_too_long_are_too_much_whatever_time_is_left() {
        let mut room = AdmissionControl::new(Moment(0));
        for at in 1..=10_u32 {
            // A quarter of the time, at one stretch.
            let tracked = 1000.min(room.most());
            room.worked(Duration::from_micros(500) * tracked as u32);
            room.renew(Moment(0).after(SPAN * at), tracked);
        }
        // 100 ms at most.
        assert!((150..=200).contains(&room.most()), "{room:?}");
    }

    #[test]
    fn a_turn_that_comes_too_seldom_is_too_much_whatever_time_is_left() {
        let mut room = AdmissionControl::new(Moment(0));
        // So many of 5,000 at a look.
        let mut run = |from: u32, many: usize, pause| {
            for at in from..from + 20 {
                let tracked = 5000.min(room.most());
                room.goes_round(Duration::from_millis(pause) * tracked.div_ceil(many) as u32);
                room.renew(Moment(0).after(SPAN * at), tracked);
            }
            room.most()
        };
        assert!(run(1, 2048, 40) >= 5000);
        // One and a half seconds at most.
        let found = run(21, 256, 300);
        assert!((600..=1280).contains(&found), "{found}");
    }
}
