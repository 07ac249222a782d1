//! What went on, as series that can be drawn.

use limiter_common::abi::Reason;
use serde::{Deserialize, Serialize};

use telemetry::history::{Series, Slot};

/// Packets per second of one verdict and reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReasonSeries {
    /// `pass` or `drop`.
    pub verdict: String,
    /// The reason, as `stats` calls it.
    pub reason: String,
    /// Packets per second at each moment.
    pub pps: Vec<Option<f64>>,
}

/// `GET /v1/history`: columns of the same length, a row of which is a moment; `null` in a gap, in which
/// nobody counted. What was counted in a gap is in the row after it, as a mean over the whole time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryReport {
    /// From one row to the next, s.
    pub step_seconds: u64,
    /// The end of each step, s since 1970, ascending.
    pub time: Vec<f64>,
    /// For how long was counted, s: longer than a step after a gap.
    pub seconds: Vec<Option<f64>>,
    /// Packets passed, per second.
    pub passed_pps: Vec<Option<f64>>,
    /// Packets dropped, per second.
    pub dropped_pps: Vec<Option<f64>>,
    /// Bits passed, per second; without the frame check sequence.
    pub passed_bps: Vec<Option<f64>>,
    /// Bits dropped, per second.
    pub dropped_bps: Vec<Option<f64>>,
    /// The most buckets in use.
    pub tracked: Vec<Option<f64>>,
    /// Buckets that sources got, per second.
    pub promotions: Vec<Option<f64>>,
    /// The most distinct sources in a window; also `null` where they were not counted.
    pub distinct: Vec<Option<f64>>,
    /// The most noise of a cell of the sketch, packets.
    pub noise: Vec<Option<f64>>,
    /// Packets by reason, of those that there were any of.
    pub reasons: Vec<ReasonSeries>,
}

/// What is told of each slot.
fn column(series: &Series, tell: impl Fn(&Slot) -> Option<f64>) -> Vec<Option<f64>> {
    // Three digits behind the point are more than anybody measures.
    let round = |value: f64| (value * 1e3).round() / 1e3;
    series.points.iter().map(|(_, slot)| slot.as_ref().and_then(&tell).map(round)).collect()
}

fn rate(series: &Series, count: impl Fn(&Slot) -> u64) -> Vec<Option<f64>> {
    // By the time that the slot covers, not by the step: after a gap one slot has the counts of
    // all of it.
    column(series, |slot| Some(count(slot) as f64 / slot.seconds()))
}

/// Packets and bytes of one verdict.
fn sum(slot: &Slot, passes: bool) -> (u64, u64) {
    let of_verdict = Reason::ALL.iter().zip(slot.tallies()).filter(|(r, _)| r.passes() == passes);
    of_verdict
        .fold((0, 0), |(packets, bytes), (_, tally)| (packets + tally.packets, bytes + tally.bytes))
}

impl HistoryReport {
    /// The same without the time of which nothing is known at its beginning: before the first daemon.
    #[must_use]
    pub fn known(&self) -> Self {
        // Only gaps at the beginning go. One in between is time without a daemon, and has to show.
        let first = self.seconds.iter().position(Option::is_some).unwrap_or_default();
        let mut known = self.clone();
        known.time.drain(..first);
        let columns = [
            &mut known.seconds,
            &mut known.passed_pps,
            &mut known.dropped_pps,
            &mut known.passed_bps,
            &mut known.dropped_bps,
            &mut known.tracked,
            &mut known.promotions,
            &mut known.distinct,
            &mut known.noise,
        ];
        let reasons = known.reasons.iter_mut().map(|reason| &mut reason.pps);
        for column in columns.into_iter().chain(reasons) {
            column.drain(..first);
        }
        known
    }

    /// Tells `series`.
    pub fn new(series: &Series) -> Self {
        let packets = |passes| rate(series, move |slot| sum(slot, passes).0);
        let bits = |passes| rate(series, move |slot| 8 * sum(slot, passes).1);
        let reasons = Reason::ALL.iter().enumerate().map(|(i, reason)| ReasonSeries {
            verdict: if reason.passes() { "pass" } else { "drop" }.into(),
            reason: reason.name().into(),
            pps: rate(series, |slot| slot.tallies()[i].packets),
        });
        // Most reasons never occur on a host, and each would be a whole column of zeros.
        let some = |reason: &ReasonSeries| reason.pps.iter().flatten().any(|pps| *pps > 0.0);
        Self {
            step_seconds: series.step,
            time: series.points.iter().map(|(time, _)| *time).collect(),
            seconds: column(series, |slot| Some(slot.seconds())),
            passed_pps: packets(true),
            dropped_pps: packets(false),
            passed_bps: bits(true),
            dropped_bps: bits(false),
            tracked: column(series, |slot| Some(slot.tracked().into())),
            promotions: rate(series, Slot::promotions),
            distinct: column(series, Slot::distinct),
            noise: column(series, |slot| Some(slot.noise())),
            reasons: reasons.filter(some).collect(),
        }
    }
}
