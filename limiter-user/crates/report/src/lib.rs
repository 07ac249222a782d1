//! `limiter report`: who is hurting us, since when, and did we hurt anybody?

pub mod chart;
pub mod html;
mod verdict;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use api::{
    ChangesReport, HistoryReport, LimitList, LimitReport, StatusReport, TopEntry, TopReport, text,
};
use model::traffic::Weight;

/// Sources that the page lists.
const SOURCES: usize = 20;

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
        let verdict = verdict::sentences(&history, &Sources::new(&top));
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
    /// commas in a gap. It begins where anything is known.
    pub fn csv(&self) -> String {
        let history = &self.history.known();
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
        // Nothing needs quotes: a moment, numbers and the reasons' own names have no commas.
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

/// A source, with the sums of its buckets: it has one for each class of its packets that is limited by
/// itself.
struct Source {
    net: IpNet,
    /// The limits of its buckets.
    limits: Vec<String>,
    first_seen: Option<String>,
    pps: f64,
    passed: u64,
    dropped: u64,
    bytes: u64,
}

/// The sources that a report tells of, the worst first.
struct Sources {
    all: Vec<Source>,
    /// Whether these are the ones that have lost packets; otherwise none has, and these are the heaviest.
    have_lost: bool,
}

impl Sources {
    fn new(top: &TopReport) -> Self {
        let have_lost = top.sources.iter().any(TopEntry::has_lost);
        // By source, not by bucket: one for each class, none of which tells what the source lost
        // in all.
        let mut by_source: BTreeMap<IpNet, Source> = BTreeMap::new();
        for entry in top.sources.iter().filter(|entry| entry.has_lost() || !have_lost) {
            let source = by_source.entry(entry.source).or_insert_with(|| Source {
                net: entry.source,
                limits: Vec::new(),
                first_seen: entry.first_seen.clone(),
                pps: 0.0,
                passed: 0,
                dropped: 0,
                bytes: 0,
            });
            let limit = entry.limit.as_ref().map_or("none".into(), LimitReport::rates);
            let class = entry.class.map(|class| format!("{class} ")).unwrap_or_default();
            source.limits.push(format!("{class}{limit}"));
            // As text, moments are in the order of time.
            source.first_seen =
                [source.first_seen.take(), entry.first_seen.clone()].into_iter().flatten().min();
            source.pps += entry.pps;
            source.passed += entry.passed;
            source.dropped += entry.dropped;
            source.bytes += entry.bytes;
        }
        let mut all: Vec<_> = by_source.into_values().collect();
        let weight = |source: &Source| {
            let packets = (source.passed + source.dropped) as f64;
            Weight::new(source.dropped as f64, source.pps, packets)
        };
        all.sort_by(|a, b| weight(a).heavier_first(&weight(b)));
        all.truncate(SOURCES);
        Self { all, have_lost }
    }
}

/// A moment, s since 1970, as RFC 3339.
fn time(moment: f64) -> String {
    let since = Duration::try_from_secs_f64(moment).unwrap_or_default();
    UNIX_EPOCH.checked_add(since).map(text::time).unwrap_or_default()
}

/// `text` without anything that a page gives meaning to.
pub fn escape(text: &str) -> String {
    // Reasons of bans and names of users come from whoever may write to the socket, and the page is mailed around.
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // What a terminal or a page may do with it is unknown.
            other if other.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
