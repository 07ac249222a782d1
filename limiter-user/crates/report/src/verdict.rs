//! Who is hurting us, since when, and did we hurt anybody?

use super::{Sources, time};
use api::HistoryReport;
use api::text::thousands;
use model::target::short_prefix;

/// Reasons for which only packets are dropped that are over the limit of their own source, or of a
/// source on the deny list.
// A list of the deserved, not of the doubtful: a reason that is added later counts as doubtful
// until somebody has thought about it.
const DESERVED: [&str; 2] = ["over_limit", "denied"];

/// How many there were, of so many per second in each step.
pub(super) fn total(history: &HistoryReport, rates: &[Option<f64>]) -> f64 {
    let steps = rates.iter().zip(&history.seconds);
    steps.filter_map(|(rate, seconds)| Some(rate.as_ref()? * seconds.as_ref()?)).sum()
}

/// The verdict, from what was counted and the sources of which most was dropped.
pub(super) fn sentences(history: &HistoryReport, sources: &Sources) -> Vec<String> {
    let (passed, dropped) =
        (total(history, &history.passed_pps), total(history, &history.dropped_pps));
    if history.time.is_empty() || history.seconds.iter().all(Option::is_none) {
        // Before anything else: no counts look like no drops, and "nobody is hurting us" would be
        // a guess.
        return vec!["Nothing is known of this time.".into()];
    }
    // Rates times seconds: less than half a packet is rounding.
    if dropped < 0.5 {
        let passed = thousands(passed.round() as u64);
        return vec![format!("Nobody is hurting us: all {passed} packets passed.")];
    }
    let mut sentences = Vec::new();
    let began = history.dropped_pps.iter().position(|pps| pps.is_some_and(|pps| pps > 0.0));
    let since = began.and_then(|i| history.time.get(i)).map(|began| time(*began));
    let share = 100.0 * dropped / (passed + dropped);
    sentences.push(format!(
        "{} packets ({share:.1} % of all) were dropped, the first in this time at {}.",
        thousands(dropped.round() as u64),
        since.unwrap_or_default()
    ));
    if let Some(worst) = sources.all.first().filter(|_| sources.have_lost) {
        // Of the listed sources: other drops have no source that a bucket counts them for.
        let all: u64 = sources.all.iter().map(|source| source.dropped).sum();
        let since = worst.first_seen.as_deref().unwrap_or("some time ago");
        sentences.push(format!(
            "{} hurts us most, since {since}: {} packets of it were dropped by its limit, {:.1} % of those \
             of the {} worst sources.",
            short_prefix(&worst.net),
            thousands(worst.dropped),
            100.0 * worst.dropped as f64 / all as f64,
            sources.all.len()
        ));
    }
    let doubtful: Vec<_> = history
        .reasons
        .iter()
        .filter(|row| row.verdict == "drop" && !DESERVED.contains(&row.reason.as_str()))
        .map(|row| format!("{} {:.0}", row.reason, total(history, &row.pps)))
        .collect();
    sentences.push(if doubtful.is_empty() {
        "We hurt nobody who conforms: packets were dropped only of sources over their own limit or on the \
         deny list."
            .into()
    } else {
        format!(
            "We may have hurt somebody who conforms: packets were dropped for what others do, too ({}).",
            doubtful.join(", ")
        )
    });
    sentences
}
