//! The judge: what all hosts together admitted, against the limit.

use std::collections::VecDeque;

/// What is told of a run, or of all runs of a scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The most that was admitted of a source in a window of one second beyond burst + rate · 1 s, as a part
    /// of that; 0 if there never was any.
    pub worst_overage: f64,
    /// The same over windows of every length, against burst + rate·T of a clock that is as fast as any may be.
    pub bound_excess: f64,
    /// The most that the shares which hosts went by at one moment have added up to, of a source.
    pub share_sum: f64,
    /// Packets of the conforming source that a host dropped while there was no fault and it came to that one, at most.
    pub lost: u64,
    /// Admitted of what could have been, min(offered, limit), after warming up.
    pub utilisation: f64,
}

/// One source.
#[derive(Clone, Debug, Default)]
struct Source {
    /// What is in a textbook bucket of the whole limit, fed with all that was admitted: it must never be more
    /// than the burst. The maximum over all windows of admitted − rate·T, kept up to date.
    level: f64,
    /// Admitted so far, at the end of each tick of the last second.
    history: VecDeque<f64>,
    admitted: f64,
}

/// Watches all sources of a run, tick by tick.
#[derive(Debug)]
pub struct Judge {
    burst: f64,
    tick: f64,
    drift: f64,
    window: usize,
    sources: Vec<Source>,
    worst: Verdict,
    counted: (f64, f64),
    /// Packets of the conforming source that were dropped, by when it came to a host.
    lost: Vec<u64>,
}

impl Judge {
    /// A judge of `sources` whose limit has a rate of one per second and this burst, s. Clocks may be fast by
    /// `drift`; a tick is so many seconds, and a second a whole number of them.
    pub fn new(sources: usize, burst: f64, tick: f64, drift: f64) -> Self {
        Self {
            burst,
            tick,
            drift,
            window: (1.0 / tick).round() as usize,
            sources: vec![Source::default(); sources],
            worst: Verdict::default(),
            counted: (0.0, 0.0),
            lost: Vec::new(),
        }
    }

    /// Takes what was offered and admitted of a source by all hosts in the tick that ends; each source
    /// once in each tick. It counts for the utilisation if `counts`. Returns what could have been admitted.
    pub fn tick(&mut self, source: usize, offered: f64, admitted: f64, counts: bool) -> f64 {
        // Of a burst nothing is due: one that was saved up is used only once, and a run is long.
        let due = offered.min(self.tick);
        if counts {
            self.counted.0 += admitted;
            self.counted.1 += due;
        }
        let source = &mut self.sources[source];
        source.admitted += admitted;
        // Drained before it is filled: what came in this tick may have come at its end.
        source.level = (source.level - self.tick * (1.0 + self.drift)).max(0.0) + admitted;
        let bound = self.burst + 1.0;
        self.worst.bound_excess = self.worst.bound_excess.max((source.level - self.burst) / bound);
        // A window of a second has the admissions at `window` ticks and one more: those at both its ends. The
        // last is left out, and with it a tick's worth that the limit may admit.
        let before =
            if source.history.len() == self.window { source.history.pop_front() } else { None };
        source.history.push_back(source.admitted);
        let within = source.admitted - before.unwrap_or(0.0);
        self.worst.worst_overage = self.worst.worst_overage.max(within / bound - 1.0);
        due
    }

    /// Takes what the shares of a source add up to.
    pub fn shares(&mut self, sum: f64) {
        self.worst.share_sum = self.worst.share_sum.max(sum);
    }

    /// A host drops a packet of the conforming source, which has come to it as its `contact`th.
    pub fn loses(&mut self, contact: usize) {
        self.lost.resize(self.lost.len().max(contact + 1), 0);
        self.lost[contact] += 1;
    }

    /// What has been found.
    pub fn verdict(&self) -> Verdict {
        let (admitted, due) = self.counted;
        let utilisation = if due > 0.0 { admitted / due } else { 1.0 };
        let lost = self.lost.iter().copied().max().unwrap_or(0);
        Verdict { utilisation, lost, ..self.worst.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a judge of one source with a burst of 1 s says of admissions in ticks of 10 ms.
    fn judge(drift: f64, admitted: impl IntoIterator<Item = f64>) -> Verdict {
        let mut judge = Judge::new(1, 1.0, 0.01, drift);
        admitted.into_iter().for_each(|admitted| {
            judge.tick(0, 1.0, admitted, true);
        });
        judge.verdict()
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn the_limit_itself_is_no_overage() {
        let all = judge(0.0, std::iter::once(1.0).chain(std::iter::repeat_n(0.01, 500)));
        close(all.worst_overage, 0.0);
        close(all.bound_excess, 0.0);
        close(all.utilisation, (1.0 + 5.0) / 5.01);
    }

    #[test]
    fn a_second_too_full_is_found_wherever_it_lies() {
        for start in [0, 7, 150, 399] {
            // A burst, then the double rate for a second: a half more than a second may have.
            let quiet = std::iter::repeat_n(0.0, start);
            let busy = std::iter::once(1.0).chain(std::iter::repeat_n(0.02, 99));
            let all = judge(0.0, quiet.chain(busy).chain(std::iter::repeat_n(0.0, 200)));
            close(all.worst_overage, 2.98 / 2.0 - 1.0);
            close(all.bound_excess, (2.98 - 0.99 - 1.0) / 2.0);
        }
    }

    #[test]
    fn a_little_more_than_the_rate_shows_in_long_windows() {
        let rate = |part: f64| std::iter::once(1.0).chain(std::iter::repeat_n(0.01 * part, 10_000));
        let all = judge(0.0, rate(1.001));
        assert!(all.worst_overage < 0.001 && all.bound_excess > 0.04, "{all:?}");
        // It is what a clock that is fast by 0.1 % lets through.
        assert!(judge(0.001, rate(1.001)).bound_excess < 1e-9);
        assert!(judge(0.001, rate(1.002)).bound_excess > 0.04);
    }

    #[test]
    fn sources_are_judged_for_themselves() {
        let mut judge = Judge::new(2, 1.0, 0.01, 0.0);
        for tick in 0..100 {
            judge.tick(0, 1.0, 0.02 * f64::from(tick % 2), true);
            judge.tick(1, 0.001, 0.001, true);
            judge.shares(0.5);
        }
        let verdict = judge.verdict();
        assert_eq!((verdict.worst_overage, verdict.bound_excess), (0.0, 0.0));
        close(verdict.utilisation, 1.0);
        assert_eq!(verdict.share_sum, 0.5);
    }
}
