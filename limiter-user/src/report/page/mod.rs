//! `limiter report`: who is hurting us, since when, and did we hurt anybody?

mod chart;
mod html;
mod simulation;
mod verdict;

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{ChangesReport, HistoryReport, LimitList, StatusReport, TopReport, text};

/// All that a report of some time says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IncidentReport {
    /// Who is hurting us, since when, and whether we hurt anybody, in sentences.
    pub verdict: Vec<String>,
    /// What was counted.
    pub history: HistoryReport,
    /// The sources of which most was dropped, at present.
    pub top: TopReport,
    /// The limits in force at present; none if there are more than ten thousand.
    pub limits: LimitList,
    /// What was changed and what happened.
    pub happened: ChangesReport,
    /// How the daemon fares.
    pub status: StatusReport,
}

impl IncidentReport {
    /// Puts together what the daemon tells.
    pub fn new(
        history: HistoryReport,
        top: TopReport,
        limits: LimitList,
        happened: ChangesReport,
        status: StatusReport,
    ) -> Self {
        let verdict = verdict::sentences(&history, &top);
        Self { verdict, history, top, limits, happened, status }
    }

    /// As a page that needs nothing from elsewhere.
    ///
    /// # Errors
    /// If a chart cannot be drawn, with the reason.
    pub fn html(&self) -> Result<String, String> {
        html::page(self)
    }

    /// What was counted as comma-separated values: a header, then a step in a line; nothing between
    /// commas in a gap.
    pub fn csv(&self) -> String {
        let history = &self.history;
        let mut columns: Vec<(String, &[Option<f64>])> = vec![
            ("seconds".into(), &history.seconds),
            ("passed_pps".into(), &history.passed_pps),
            ("dropped_pps".into(), &history.dropped_pps),
            ("passed_bps".into(), &history.passed_bps),
            ("dropped_bps".into(), &history.dropped_bps),
            ("tracked".into(), &history.tracked),
            ("promotions".into(), &history.promotions),
            ("distinct".into(), &history.distinct),
            ("noise".into(), &history.noise),
        ];
        for reason in &history.reasons {
            columns.push((format!("{}_{}_pps", reason.verdict, reason.reason), &reason.pps));
        }
        let mut csv = String::from("time");
        columns.iter().for_each(|(name, _)| csv.extend([",", name]));
        csv.push('\n');
        for (i, moment) in history.time.iter().enumerate() {
            csv.push_str(&time(*moment));
            for (_, values) in &columns {
                csv.push(',');
                if let Some(value) = values.get(i).copied().flatten() {
                    // To a string nothing can fail.
                    let _ = write!(csv, "{value}");
                }
            }
            csv.push('\n');
        }
        csv
    }
}

/// A moment, s since 1970, as RFC 3339.
fn time(moment: f64) -> String {
    let since = Duration::try_from_secs_f64(moment).unwrap_or_default();
    UNIX_EPOCH.checked_add(since).map(text::time).unwrap_or_default()
}

#[cfg(test)]
mod tests;
