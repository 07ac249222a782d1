//! What was simulated, as reports.

mod algorithms;
mod algorithms_page;
mod nemesis;
mod page;

pub(crate) use algorithms::{AlgorithmsReport, ExperimentReport, Judged};
pub(crate) use nemesis::NemesisReport;

use std::io::{self, Write};

use serde::Serialize;

use api::{Print, text};
use sim::{Between, Bound, Figure, GOALS, Goal, Scenario, SchemeKind, Summary};

/// `limiter simulate cluster`: one row for each scenario, number of hosts and scheme.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SimulationReport {
    pub scenarios: Vec<SimulationRow>,
    /// Whether all goals were reached.
    pub ok: bool,
    /// Whether the table of goals is printed.
    #[serde(skip)]
    pub with_goals: bool,
}

/// Runs of one scenario under one scheme.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SimulationRow {
    pub name: String,
    /// What kept the limit.
    pub scheme: SchemeKind,
    pub hosts: usize,
    /// Runs, each with a seed of its own.
    pub seeds: usize,
    /// The most that was admitted of a source in any second beyond burst + rate · 1 s, as a part of that.
    pub worst_overage: f64,
    /// The seed of that run.
    // To be given to `--first-seed`: a run is the same with it for ever.
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
    /// What hosts of different regions sent each other after warming up, at most; absent where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between_regions: Option<BetweenRegions>,
    /// What deciding took on the host where it took most, as a part of one core of this machine; absent where
    /// it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// The longest time until all hosts knew of each other, ms; absent where no membership was simulated, or
    /// if they never did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined_ms: Option<f64>,
    /// The same for a crash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detected_ms: Option<f64>,
    /// What was to be reached and was not. Only the escrow and the membership have goals.
    // The schemes to compare with are there to fail.
    pub missed: Vec<String>,
}

/// What went between regions, each figure at most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct BetweenRegions {
    /// How many regions there were.
    pub regions: usize,
    /// Of all hosts and runs.
    #[serde(flatten)]
    pub sent: Between,
    /// The mean of all hosts, bytes per second.
    pub per_host: f64,
    /// For each source, bytes per second of all hosts together.
    pub per_source: f64,
}

impl BetweenRegions {
    fn new(scenario: &Scenario, sent: Between) -> Self {
        Self {
            regions: scenario.regions.len(),
            sent,
            per_host: sent.bytes_per_second / scenario.hosts as f64,
            per_source: sent.bytes_per_second / scenario.demand.keys as f64,
        }
    }
}

impl SimulationRow {
    fn new(scenario: &Scenario, summary: &Summary) -> Self {
        // Whole microseconds: further digits are noise of the arithmetic.
        let ms = |seconds: f64| (seconds * 1e6).round() / 1e3;
        Self {
            name: scenario.name.clone(),
            scheme: summary.scheme,
            hosts: scenario.hosts,
            seeds: summary.seeds,
            worst_overage: summary.verdict.worst_overage,
            worst_seed: summary.worst_seed,
            bound_excess: summary.verdict.bound_excess,
            share_sum: summary.verdict.share_sum,
            utilisation: summary.verdict.utilisation,
            least_utilisation: summary.least_utilisation,
            convergence_ms: summary.convergence.flatten().map(ms),
            median_convergence_ms: summary.median_convergence.map(ms),
            bytes_per_second: summary.bytes,
            between_regions: summary.between.map(|sent| BetweenRegions::new(scenario, sent)),
            cpu: summary.cpu,
            joined_ms: summary.joined.flatten().map(ms),
            detected_ms: summary.detected.flatten().map(ms),
            missed: summary.missed.clone(),
        }
    }

    /// A figure, where there is one; infinite if what was waited for never came.
    fn figure(&self, figure: Figure) -> Option<f64> {
        // A time that is absent in a row with a goal for it is one that never came.
        let time = |ms: Option<f64>, there: bool| match ms {
            None if there => Some(f64::INFINITY),
            ms => ms.map(|ms| ms / 1e3),
        };
        let members = self.scheme == SchemeKind::Membership;
        match figure {
            // Absent and not zero: hosts that limit nothing would otherwise reach each goal.
            Figure::Overage => (!members).then_some(self.worst_overage),
            Figure::Utilisation => (!members).then_some(self.utilisation),
            Figure::Convergence => time(self.convergence_ms, !members),
            Figure::Bytes => Some(self.bytes_per_second),
            Figure::Between => self.between_regions.map(|between| between.per_host),
            Figure::Cpu => self.cpu,
            Figure::Joined => time(self.joined_ms, members),
            Figure::Detected => time(self.detected_ms, members),
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
        // Hosts that only find each other limit nothing: a zero would look like a result.
        let limits = |text: String| match self.scheme {
            SchemeKind::Membership => "–".to_owned(),
            _ => text,
        };
        vec![
            self.name.clone(),
            self.scheme.name().to_owned(),
            self.hosts.to_string(),
            limits(percent(self.worst_overage)),
            limits(percent(self.bound_excess)),
            limits(format!("{:.3}", self.utilisation)),
            limits(format!("{:.3}", self.least_utilisation)),
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

    /// What was found.
    pub(crate) fn new(scenarios: &[Scenario], summaries: &[Summary]) -> Self {
        let row = |summary: &Summary| SimulationRow::new(&scenarios[summary.scenario], summary);
        let ok = summaries.iter().all(|summary| summary.missed.is_empty());
        Self { scenarios: summaries.iter().map(row).collect(), ok, with_goals: false }
    }

    /// The columns of what went between regions; from the third on they are numbers.
    pub(super) const BETWEEN: [&'static str; 8] = [
        "SCENARIO",
        "SCHEME",
        "HOSTS",
        "REGIONS",
        "BETWEEN REGIONS",
        "PER HOST",
        "AT MAX",
        "PER SOURCE",
    ];

    /// What went between regions, where there were some, of schemes that send anything.
    pub(super) fn between(&self) -> Vec<Vec<String>> {
        let bytes = |bytes: f64| format!("{}B/s", text::si(bytes));
        let row = |row: &SimulationRow| {
            let BetweenRegions { regions, sent, per_host, per_source } = row.between_regions?;
            if sent.bytes_per_second <= 0.0 {
                return None;
            }
            Some(vec![
                row.name.clone(),
                row.scheme.name().to_owned(),
                row.hosts.to_string(),
                regions.to_string(),
                bytes(sent.bytes_per_second),
                bytes(per_host),
                bytes(sent.most_per_host),
                bytes(per_source),
            ])
        };
        self.scenarios.iter().filter_map(row).collect()
    }

    /// The worst of a goal's figure that a scheme had.
    fn worst(&self, goal: &Goal, of: impl Fn(SchemeKind) -> bool) -> Option<f64> {
        let rows = self.scenarios.iter().filter(|row| of(row.scheme) && goal.is_of(&row.name));
        rows.filter_map(|row| row.figure(goal.figure)).reduce(|a, b| goal.bound.worse(a, b))
    }

    /// The goals, what was found, and what the schemes have that it is compared with.
    fn goals(&self) -> comfy_table::Table {
        let baselines: Vec<SchemeKind> =
            SchemeKind::ALL.into_iter().filter(|scheme| scheme.is_baseline()).collect();
        let mut columns = vec!["FIGURE", "GOAL", "FOUND", ""];
        columns.extend(baselines.iter().map(|scheme| scheme.name()));
        let mut table = text::table(&columns, 1);
        for goal in GOALS {
            let show =
                |value: Option<f64>| value.map_or("–".to_owned(), |v| shown(goal.figure, v));
            let (sign, bound) = match goal.bound {
                Bound::AtMost(most) => ("≤", most),
                Bound::AtLeast(least) => ("≥", least),
            };
            let found = self.worst(goal, SchemeKind::has_goals);
            let verdict = match found.map(|found| goal.bound.is_met(found)) {
                // Not "reached": a suite with few hosts leaves scenarios out.
                None => "not run",
                Some(true) => "reached",
                // Without optimisation it says nothing of what deciding costs.
                Some(false) if goal.figure == Figure::Cpu && cfg!(debug_assertions) => {
                    "debug build"
                }
                Some(false) => "MISSED",
            };
            let mut cells = vec![
                goal.about.to_owned(),
                format!("{sign} {}", shown(goal.figure, bound)),
                show(found),
                verdict.to_owned(),
            ];
            let baseline = |scheme: &SchemeKind| show(self.worst(goal, |of| of == *scheme));
            cells.extend(baselines.iter().map(baseline));
            table.add_row(cells);
        }
        table
    }

    /// What was missed, in sentences.
    pub(super) fn missed(&self) -> Vec<String> {
        let missed = self.scenarios.iter().filter(|row| !row.missed.is_empty());
        missed
            .map(|row| format!("{}, {} hosts: {}", row.name, row.hosts, row.missed.join("; ")))
            .collect()
    }
}

/// A figure for people.
fn shown(figure: Figure, value: f64) -> String {
    if value.is_infinite() {
        // An infinite time would else be printed as a number of milliseconds.
        return "never".to_owned();
    }
    match figure {
        Figure::Overage => format!("{:.2} %", 100.0 * value),
        Figure::Utilisation => format!("{value:.3}"),
        Figure::Convergence => format!("{:.0} ms", 1e3 * value),
        Figure::Bytes | Figure::Between => format!("{}B/s", text::si(value)),
        Figure::Cpu => format!("{:.1} %", 100.0 * value),
        Figure::Joined | Figure::Detected => format!("{value:.1} s"),
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
                // As above: schemes to compare stand under one name.
                cells[0].clear();
                cells[2].clear();
            }
            last = group;
            table.add_row(cells);
        }
        writeln!(out, "{table}")?;
        let between = self.between();
        if !between.is_empty() {
            let mut table = text::table(&Self::BETWEEN, 2);
            table.add_rows(between);
            writeln!(out, "\n{table}")?;
        }
        if self.with_goals {
            writeln!(out, "\n{}", self.goals())?;
            writeln!(
                out,
                "FOUND is the daemon's own code; the schemes beside it are there to compare with. What \
                 deciding costs was measured on this machine.\n"
            )?;
        }
        for missed in self.missed() {
            writeln!(out, "missed: {missed}")?;
        }
        let runs: usize = self.scenarios.iter().map(|row| row.seeds).sum();
        let verdict = if self.ok { "all goals are reached" } else { "not all goals are reached" };
        writeln!(out, "{runs} runs: {verdict}")
    }
}
