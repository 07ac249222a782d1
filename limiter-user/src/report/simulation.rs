//! What simulated clusters were like.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Print, text};
use crate::cluster::simulate::{Scenario, SchemeKind, Summary};

/// `limiter simulate cluster`: one row for each scenario, number of hosts and scheme.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimulationReport {
    /// The rows.
    pub scenarios: Vec<SimulationRow>,
    /// Whether all goals were reached.
    pub ok: bool,
}

/// Runs of one scenario under one scheme.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimulationRow {
    /// The scenario.
    pub name: String,
    /// What kept the limit.
    pub scheme: SchemeKind,
    /// Hosts.
    pub hosts: usize,
    /// Runs, each with a seed of its own.
    pub seeds: usize,
    /// The most that was admitted of a source in any second beyond burst + rate · 1 s, as a part of that.
    pub worst_overage: f64,
    /// The seed of that run.
    pub worst_seed: u64,
    /// The same in a time of any length, the clocks' drift allowed for.
    pub bound_excess: f64,
    /// The most that the shares of all hosts added up to at one moment.
    pub share_sum: f64,
    /// Admitted of what could have been, min(offered, limit), the mean of all runs.
    pub utilisation: f64,
    /// The same in the worst run.
    pub least_utilisation: f64,
    /// The longest time to 90 % of what could be admitted after a step of the demand, ms; absent if there was
    /// no step, or if it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub convergence_ms: Option<f64>,
    /// The median of these times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_convergence_ms: Option<f64>,
    /// What the host that sent most has sent, bytes per second.
    pub bytes_per_second: f64,
    /// What was to be reached and was not. Only the escrow has goals.
    pub missed: Vec<String>,
}

impl SimulationRow {
    fn new(scenario: &Scenario, summary: &Summary, seeds: usize) -> Self {
        let ms = |seconds: f64| (seconds * 1e6).round() / 1e3;
        Self {
            name: scenario.name.clone(),
            scheme: summary.scheme,
            hosts: scenario.hosts,
            seeds,
            worst_overage: summary.verdict.worst_overage,
            worst_seed: summary.worst_seed,
            bound_excess: summary.verdict.bound_excess,
            share_sum: summary.verdict.share_sum,
            utilisation: summary.verdict.utilisation,
            least_utilisation: summary.least_utilisation,
            convergence_ms: summary.convergence.flatten().map(ms),
            median_convergence_ms: summary.median_convergence.map(ms),
            bytes_per_second: summary.bytes,
            missed: summary.missed.clone(),
        }
    }

    /// As cells of a table.
    pub(super) fn cells(&self) -> Vec<String> {
        let percent = |part: f64| format!("{:.2} %", 100.0 * part);
        let ms = |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{ms:.0} ms"));
        let goals = match (self.scheme.has_goals(), self.missed.is_empty()) {
            (false, _) => "",
            (true, true) => "reached",
            (true, false) => "MISSED",
        };
        vec![
            self.name.clone(),
            self.scheme.name().to_owned(),
            self.hosts.to_string(),
            percent(self.worst_overage),
            percent(self.bound_excess),
            format!("{:.3}", self.utilisation),
            format!("{:.3}", self.least_utilisation),
            ms(self.median_convergence_ms),
            ms(self.convergence_ms),
            format!("{}B/s", text::si(self.bytes_per_second)),
            goals.to_owned(),
        ]
    }
}

impl SimulationReport {
    /// The columns of a table; from the third on they are numbers.
    pub(super) const COLUMNS: [&'static str; 11] = [
        "SCENARIO",
        "SCHEME",
        "HOSTS",
        "OVERAGE IN 1 S",
        "IN ANY TIME",
        "UTILISATION",
        "WORST RUN",
        "BACK TO 90 %",
        "AT WORST",
        "PER HOST",
        "GOALS",
    ];

    /// What was found, of `seeds` runs each.
    pub fn new(scenarios: &[Scenario], summaries: &[Summary], seeds: usize) -> Self {
        let row =
            |summary: &Summary| SimulationRow::new(&scenarios[summary.scenario], summary, seeds);
        let ok = summaries.iter().all(|summary| summary.missed.is_empty());
        Self { scenarios: summaries.iter().map(row).collect(), ok }
    }

    /// What was missed, in sentences.
    pub(super) fn missed(&self) -> Vec<String> {
        let missed = self.scenarios.iter().filter(|row| !row.missed.is_empty());
        missed
            .map(|row| format!("{}, {} hosts: {}", row.name, row.hosts, row.missed.join("; ")))
            .collect()
    }
}

impl Print for SimulationReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = text::table(&Self::COLUMNS, 2);
        let mut last = None;
        for row in &self.scenarios {
            let mut cells = row.cells();
            let group = Some((&row.name, row.hosts));
            if last == group {
                // What is the same as above.
                cells[0].clear();
                cells[2].clear();
            }
            last = group;
            table.add_row(cells);
        }
        writeln!(out, "{table}")?;
        for missed in self.missed() {
            writeln!(out, "missed: {missed}")?;
        }
        let runs: usize = self.scenarios.iter().map(|row| row.seeds).sum();
        let verdict = if self.ok { "all goals are reached" } else { "not all goals are reached" };
        writeln!(out, "{runs} runs: {verdict}")
    }
}
