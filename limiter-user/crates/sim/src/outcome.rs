//! What a run was like.

use super::judge::Verdict;
use super::regions::Between;

/// Over how long 90 % are asked for, s.
const HOLDS: f64 = 0.2;
/// What counts as served.
const SERVED: f64 = 0.9;
/// Points of a series per second.
const POINTS: f64 = 20.0;

/// What a run was like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// What the judge found.
    pub verdict: Verdict,
    /// For each step of the demand, how long it took until 90 % of what could be admitted was and stayed so, s;
    /// `None` if it was not by the next step.
    pub convergence: Vec<Option<f64>>,
    /// What the host that sent most has sent, bytes per second.
    pub bytes: f64,
    /// What went between regions; `None` where there is one.
    pub between: Option<Between>,
    /// What deciding took on the host where it took most, as a part of one core; `None` where it was not measured.
    pub cpu: Option<f64>,
    /// How long it took until all hosts knew of each other, s; `Some(None)` if they never did, `None` where that
    /// was not looked at.
    pub joined: Option<Option<f64>>,
    /// The same for a crash.
    pub detected: Option<Option<f64>>,
    /// A digest of when daemons did something, what they had their kernels do, and what they told each other and operators.
    pub digest: u64,
    /// Over time.
    pub series: Series,
}

/// What was offered and admitted over time, in limits: 1 is what one limit allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// The end of each step, s.
    pub time: Vec<f64>,
    /// Offered.
    pub offered: Vec<f64>,
    /// What could have been admitted.
    pub due: Vec<f64>,
    /// Admitted.
    pub admitted: Vec<f64>,
}

/// What is written down during a run, tick by tick.
#[derive(Debug)]
pub(super) struct Record {
    tick: f64,
    steps: Vec<f64>,
    offered: Vec<f64>,
    admitted: Vec<f64>,
    due: Vec<f64>,
}

impl Record {
    pub(super) fn new(tick: f64, steps: Vec<f64>) -> Self {
        Self { tick, steps, offered: Vec::new(), admitted: Vec::new(), due: Vec::new() }
    }

    pub(super) fn tick(&mut self, offered: f64, admitted: f64, due: f64) {
        self.offered.push(offered);
        self.admitted.push(admitted);
        self.due.push(due);
    }

    pub(super) fn outcome(self, verdict: Verdict, bytes: f64) -> Outcome {
        let convergence = self.convergence();
        Outcome { verdict, convergence, bytes, series: self.series(), ..Outcome::default() }
    }

    fn convergence(&self) -> Vec<Option<f64>> {
        // Summed up once: a window that slides over each tick of a run would add the same ticks again and again.
        let sums = |values: &[f64]| {
            let mut sum = 0.0;
            let sums = values.iter().map(|value| {
                sum += value;
                sum
            });
            std::iter::once(0.0).chain(sums).collect::<Vec<_>>()
        };
        let (admitted, due) = (sums(&self.admitted), sums(&self.due));
        let holds = (HOLDS / self.tick).round() as usize;
        let tick_of = |seconds: f64| (seconds / self.tick).round() as usize;
        let served = |from: usize| {
            let to = from + holds;
            admitted[to] - admitted[from] >= SERVED * (due[to] - due[from]) - 1e-9
        };
        let steps = self.steps.iter().enumerate().filter_map(|(i, step)| {
            let end = self.steps.get(i + 1).map_or(self.due.len(), |next| tick_of(*next));
            let from = tick_of(*step);
            // What comes too late for a full window is not judged.
            let last = end.min(self.due.len()).checked_sub(holds)?;
            if from > last {
                return None;
            }
            // What a bucket had saved may serve it for a while: it counts when it is served for good.
            Some(match (from..=last).rfind(|tick| !served(*tick)) {
                None => Some(0.0),
                Some(tick) if tick == last => None,
                Some(tick) => Some((tick + 1 - from) as f64 * self.tick),
            })
        });
        steps.collect()
    }

    fn series(&self) -> Series {
        let each = (1.0 / POINTS / self.tick).round().max(1.0) as usize;
        let sum = |values: &[f64]| {
            let points = values.chunks_exact(each);
            points.map(|part| part.iter().sum::<f64>() / (each as f64 * self.tick)).collect()
        };
        let points = self.due.len() / each;
        Series {
            time: (1..=points).map(|i| (i * each) as f64 * self.tick).collect(),
            offered: sum(&self.offered),
            due: sum(&self.due),
            admitted: sum(&self.admitted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(admitted: impl Fn(usize) -> f64) -> Outcome {
        let mut record = Record::new(0.01, vec![1.0, 2.0]);
        for tick in 0..300 {
            record.tick(0.05, admitted(tick), 0.01);
        }
        record.outcome(Verdict::default(), 7.0)
    }

    #[test]
    fn the_way_back_is_timed_after_each_step() {
        let outcome = record(|tick| if (100..130).contains(&tick) { 0.0 } else { 0.01 });
        // A tenth may be missing of the window of 0.2 s.
        let found: Vec<_> =
            outcome.convergence.iter().map(|found| found.map(|s| (s * 1e3).round())).collect();
        assert_eq!(found, [Some(280.0), Some(0.0)]);
        let late = record(|tick| if tick < 130 { 0.01 } else { 0.0 });
        assert_eq!(late.convergence, [None, None], "what was saved does not count");
    }

    #[test]
    fn a_series_is_in_limits() {
        let outcome = record(|tick| if tick < 100 { 0.02 } else { 0.01 });
        let series = outcome.series;
        assert_eq!((series.time.len(), series.admitted.len()), (60, 60));
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(series.time[19], 1.0);
        close(series.admitted[19], 2.0);
        close(series.admitted[20], 1.0);
        close(series.offered[0], 5.0);
        close(series.due[59], 1.0);
    }
}
