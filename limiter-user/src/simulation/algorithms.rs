//! What algorithms made of the same traffic.

use std::io::{self, Write};

use serde::Serialize;

use api::{Print, text};
use lab::adversary::Train;
use lab::experiment::PUBLISHED;
use lab::{Candidate, Outcome, Settings, Tally, Traffic, seconds};

/// A traffic that was judged.
pub(crate) struct Judged {
    pub traffic: Traffic,
    pub outcome: Outcome,
    /// What it is made of, if an adversary has found it.
    pub trains: Vec<Train>,
}

/// `limiter simulate algorithms`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AlgorithmsReport {
    /// Requests in a window.
    pub limit: u64,
    pub window_seconds: f64,
    pub burst: u64,
    pub sub_window_seconds: f64,
    /// Runs of each pattern.
    pub seeds: u64,
    /// The worst that each algorithm did on any of the patterns.
    pub algorithms: Vec<AlgorithmRow>,
    pub patterns: Vec<TrafficRow>,
}

/// One algorithm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AlgorithmRow {
    pub name: String,
    /// The most that it admits in any window, as proved.
    pub bound: u64,
    /// The most that it admitted.
    pub most_in_window: u64,
    /// Requests that were denied though their source sent no more than the limit in any window.
    pub conforming_denied: u64,
    /// The part of all requests that the exact log decided otherwise.
    pub decided_otherwise: f64,
    /// Memory of one source.
    pub bytes: usize,
    /// What a decision took on average.
    pub ns: f64,
}

/// One traffic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TrafficRow {
    pub name: String,
    pub about: String,
    pub sources: usize,
    /// In all runs.
    pub requests: u64,
    pub algorithms: Vec<AlgorithmRow>,
    /// What an adversary found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<TrainRow>,
}

/// Requests, evenly spaced.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TrainRow {
    /// When the first one comes, from the edge of the window in which the first of all lies.
    pub at_seconds: f64,
    /// The time that they are spread over; 0 if they come at once.
    pub over_seconds: f64,
    pub requests: u64,
}

impl AlgorithmRow {
    fn new(candidate: &Candidate, tally: &Tally) -> Self {
        Self {
            name: candidate.name.to_string(),
            bound: candidate.bound(),
            most_in_window: tally.most,
            conforming_denied: tally.conforming_denied,
            decided_otherwise: tally.otherwise_part(),
            bytes: candidate.bytes(),
            // Further digits are noise.
            ns: (tally.ns() * 10.0).round() / 10.0,
        }
    }

    /// The worst of the same algorithm.
    fn worst<'a>(self, rows: impl Iterator<Item = &'a Self>) -> Self {
        rows.fold(self, |worst, row| Self {
            conforming_denied: worst.conforming_denied.max(row.conforming_denied),
            decided_otherwise: worst.decided_otherwise.max(row.decided_otherwise),
            ..worst
        })
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            text::thousands(self.bound),
            text::thousands(self.most_in_window),
            text::thousands(self.conforming_denied),
            percent(self.decided_otherwise),
            text::thousands(self.bytes as u64),
            format!("{:.1}", self.ns),
        ]
    }
}

fn percent(part: f64) -> String {
    format!("{:.2} %", 100.0 * part)
}

impl TrafficRow {
    fn new(settings: &Settings, candidates: &[Candidate], judged: &Judged) -> Self {
        let Judged { traffic, outcome, trains } = judged;
        let first = trains.first().map_or(0, |train| train.start - train.start % settings.window);
        let train = |train: &Train| TrainRow {
            at_seconds: seconds(train.start - first),
            over_seconds: seconds(train.length),
            requests: train.amount,
        };
        let rows = candidates.iter().zip(&outcome.tallies);
        Self {
            name: traffic.name.clone(),
            about: traffic.about.clone(),
            sources: outcome.sources,
            requests: outcome.tallies.first().map_or(0, |tally| tally.offered),
            algorithms: rows
                .map(|(candidate, tally)| AlgorithmRow::new(candidate, tally))
                .collect(),
            trace: trains.iter().map(train).collect(),
        }
    }
}

/// A figure of an algorithm on one traffic, for people.
type Figure = fn(&AlgorithmRow) -> String;

impl AlgorithmsReport {
    /// The columns of the algorithms; from the second on they are numbers.
    pub(super) const COLUMNS: [&'static str; 7] = [
        "ALGORITHM",
        "BOUND",
        "IN A WINDOW",
        "CONFORMING DENIED",
        "DECIDED OTHERWISE",
        "BYTES",
        "NS",
    ];

    /// What is told of each algorithm on each traffic.
    pub(super) const FIGURES: [(&'static str, Figure); 3] = [
        ("Most admitted in any window", |row| text::thousands(row.most_in_window)),
        ("Conforming requests denied", |row| text::thousands(row.conforming_denied)),
        ("Decided otherwise than the exact log", |row| percent(row.decided_otherwise)),
    ];

    /// The columns of what an adversary found; from the second on they are numbers.
    pub(super) const TRACE: [&'static str; 4] = ["TRAFFIC", "AT", "OVER", "REQUESTS"];

    /// What was found.
    pub(crate) fn new(
        settings: &Settings,
        seeds: u64,
        candidates: &[Candidate],
        judged: &[Judged],
    ) -> Self {
        let patterns: Vec<_> =
            judged.iter().map(|it| TrafficRow::new(settings, candidates, it)).collect();
        let worst = |(i, candidate): (usize, &Candidate)| {
            let mut total = Tally::default();
            judged.iter().for_each(|it| total.add(&it.outcome.tallies[i]));
            let rows = patterns.iter().map(|pattern| &pattern.algorithms[i]);
            // Parts and counts are the worst of one traffic, times the mean of all.
            AlgorithmRow { conforming_denied: 0, ..AlgorithmRow::new(candidate, &total) }
                .worst(rows)
        };
        Self {
            limit: settings.limit,
            window_seconds: seconds(settings.window),
            burst: settings.burst,
            sub_window_seconds: seconds(settings.window / settings.parts),
            seeds,
            algorithms: candidates.iter().enumerate().map(worst).collect(),
            patterns,
        }
    }

    /// The algorithms that admitted more than was proved.
    pub(crate) fn over_bound(&self) -> Vec<&str> {
        let is_over = |row: &&AlgorithmRow| row.most_in_window > row.bound;
        self.algorithms.iter().filter(is_over).map(|row| &row.name[..]).collect()
    }

    /// The verdict on the bounds.
    pub(super) fn verdict(&self) -> String {
        match &self.over_bound()[..] {
            [] => "none is over its bound".into(),
            over => format!("OVER ITS BOUND: {}", over.join(", ")),
        }
    }

    /// What all algorithms had.
    pub(super) fn conditions(&self) -> String {
        let Self { limit, window_seconds, burst, sub_window_seconds, seeds, .. } = self;
        format!(
            "{limit} in {window_seconds} s, burst {burst}, sub-windows of {sub_window_seconds} s, {seeds} runs of each pattern"
        )
    }

    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        self.algorithms.iter().map(AlgorithmRow::cells).collect()
    }

    /// The columns of a figure; from the second on they are numbers.
    pub(super) fn figure_columns(&self) -> Vec<&str> {
        let names = self.algorithms.iter().map(|row| &row.name[..]);
        ["TRAFFIC"].into_iter().chain(names).collect()
    }

    pub(super) fn figure_rows(&self, figure: Figure) -> Vec<Vec<String>> {
        let row = |it: &TrafficRow| {
            [it.name.clone()].into_iter().chain(it.algorithms.iter().map(figure)).collect()
        };
        self.patterns.iter().map(row).collect()
    }

    /// What an adversary found.
    pub(super) fn trace_rows(&self) -> Vec<Vec<String>> {
        let cells = |name: &str, it: &TrainRow| {
            let over = match it.over_seconds {
                0.0 => "at once".to_owned(),
                over => format!("{over:.9} s"),
            };
            let at = format!("{:.9} s", it.at_seconds);
            vec![name.to_owned(), at, over, text::thousands(it.requests)]
        };
        let patterns = self.patterns.iter();
        patterns.flat_map(|it| it.trace.iter().map(|train| cells(&it.name, train))).collect()
    }
}

impl Print for AlgorithmsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = |title: &str, texts, columns: &[&str], rows: Vec<Vec<String>>| {
            let mut table = text::table(columns, texts);
            table.add_rows(rows);
            writeln!(out, "{title}:\n{table}\n")
        };
        let traffic = |it: &TrafficRow| {
            let numbers = [it.sources as u64, it.requests].map(text::thousands);
            [vec![it.name.clone(), it.about.clone()], numbers.to_vec()].concat()
        };
        let traffic = self.patterns.iter().map(traffic).collect();
        table("Traffic", 2, &["TRAFFIC", "ABOUT", "SOURCES", "REQUESTS"], traffic)?;
        for (title, figure) in Self::FIGURES {
            table(title, 1, &self.figure_columns(), self.figure_rows(figure))?;
        }
        let trace = self.trace_rows();
        if !trace.is_empty() {
            table("Found, in s from the edge of a window", 1, &Self::TRACE, trace)?;
        }
        table("The worst of all", 1, &Self::COLUMNS, self.rows())?;
        writeln!(out, "{}: {}", self.conditions(), self.verdict())
    }
}

/// `limiter simulate algorithms --experiment`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ExperimentReport {
    pub limit: u64,
    pub window_seconds: f64,
    pub requests: u64,
    pub sources: u64,
    /// How long it took.
    pub seconds: f64,
    pub published: ExperimentRow,
    pub algorithms: Vec<ExperimentRow>,
}

/// The figures of one algorithm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ExperimentRow {
    pub name: String,
    /// The part of all requests that the exact log decided otherwise.
    pub decided_otherwise: f64,
    /// The mean difference between what was counted and what was sent in the last window, as a part of that.
    pub mean_difference: f64,
    /// Sources that sent more than the limit in some window, and lost nothing.
    pub allowed_above: u64,
    /// The most that one of them was above it, as a part of it.
    pub allowed_excess: f64,
    /// Sources that never sent more than the limit in a window, and lost something.
    pub limited_below: u64,
}

impl ExperimentReport {
    pub(crate) fn new(
        settings: &Settings,
        sources: u64,
        candidates: &[Candidate],
        tallies: &[Tally],
        seconds: f64,
    ) -> Self {
        let row = |(candidate, tally): (&Candidate, &Tally)| ExperimentRow {
            name: candidate.name.to_string(),
            decided_otherwise: tally.otherwise_part(),
            mean_difference: tally.mean_difference(),
            allowed_above: tally.missed_sources,
            allowed_excess: tally.missed_excess,
            limited_below: tally.wronged_sources,
        };
        Self {
            limit: settings.limit,
            window_seconds: lab::seconds(settings.window),
            requests: tallies.first().map_or(0, |tally| tally.offered),
            sources,
            seconds,
            published: ExperimentRow {
                name: "published".into(),
                decided_otherwise: PUBLISHED.otherwise,
                mean_difference: PUBLISHED.difference,
                allowed_above: PUBLISHED.missed_sources,
                allowed_excess: PUBLISHED.missed_excess,
                limited_below: PUBLISHED.wronged_sources,
            },
            algorithms: candidates.iter().zip(tallies).map(row).collect(),
        }
    }
}

impl Print for ExperimentReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = [
            "ALGORITHM",
            "DECIDED OTHERWISE",
            "RATES DIFFER BY",
            "ALLOWED ABOVE",
            "BY UP TO",
            "LIMITED BELOW",
        ];
        let mut table = text::table(&columns, 1);
        for row in [&self.published].into_iter().chain(&self.algorithms) {
            table.add_row([
                row.name.clone(),
                format!("{:.4} %", 100.0 * row.decided_otherwise),
                percent(row.mean_difference),
                format!("{} sources", row.allowed_above),
                percent(row.allowed_excess),
                format!("{} sources", row.limited_below),
            ]);
        }
        writeln!(out, "{table}")?;
        writeln!(
            out,
            "{} requests of {} sources in a day, {} in {} s each; took {:.1} s",
            text::thousands(self.requests),
            text::thousands(self.sources),
            self.limit,
            self.window_seconds,
            self.seconds
        )
    }
}
