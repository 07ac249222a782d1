//! What a nemesis found, as a report.

use std::io::{self, Write};

use serde::Serialize;

use api::{Print, text};
use sim::nemesis::Found;

/// `limiter simulate nemesis`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NemesisReport {
    pub schedules: u64,
    /// Schedules that broke a promise.
    pub violations: usize,
    /// The most beyond the limit where it is promised whatever happens, as a part of burst + rate · 1 s.
    pub worst_overage: f64,
    /// The same where a fault has a bound of its own.
    pub worst_named: f64,
    /// The least that was used of what could be used when faults were over.
    pub least_utilisation: f64,
    pub faults: Vec<FaultRow>,
    pub broken: Vec<BrokenRow>,
}

/// A fault, and in how many schedules it came.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FaultRow {
    pub kind: &'static str,
    pub schedules: u64,
}

/// A schedule that broke a promise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct BrokenRow {
    pub seed: u64,
    /// What it broke.
    pub broken: String,
    /// The shortest that still breaks one, as `limiter simulate cluster` reads it.
    pub scenario: String,
}

impl NemesisReport {
    pub(crate) fn new(found: &Found) -> Self {
        let row =
            |(kind, schedules): (&&'static str, &u64)| FaultRow { kind, schedules: *schedules };
        let broken = found.violations.iter().map(|violation| BrokenRow {
            seed: violation.seed,
            broken: violation.broken.to_string(),
            scenario: violation.shortest.text(),
        });
        Self {
            schedules: found.schedules,
            violations: found.violations.len(),
            worst_overage: found.worst_overage,
            worst_named: found.worst_named,
            least_utilisation: found.least_utilisation,
            faults: found.faults.iter().map(row).collect(),
            broken: broken.collect(),
        }
    }
}

impl Print for NemesisReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = text::table(&["FAULT", "SCHEDULES"], 1);
        table.add_rows(
            self.faults.iter().map(|row| [row.kind.to_owned(), row.schedules.to_string()]),
        );
        writeln!(out, "{table}")?;
        for BrokenRow { seed, broken, scenario } in &self.broken {
            writeln!(out, "\nseed {seed}: {broken}\n{scenario}")?;
        }
        writeln!(
            out,
            "\nover the limit: {:.3} % where that is promised, {:.1} % where a fault has a bound of its own",
            100.0 * self.worst_overage,
            100.0 * self.worst_named
        )?;
        let (used, all) = (self.least_utilisation, self.schedules);
        writeln!(out, "least utilisation when faults were over: {used:.3} of what could be used")?;
        match self.violations {
            0 => writeln!(out, "{all} schedules: no promise is broken"),
            n => writeln!(out, "{all} schedules: {n} BROKE A PROMISE"),
        }
    }
}
