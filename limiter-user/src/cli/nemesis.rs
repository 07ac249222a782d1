//! `limiter simulate nemesis`

use clap::Args;

use super::output::Output;
use super::progress::ProgressDisplay;
use crate::simulation::NemesisReport;
use api::error::{Failure, exit};
use sim::nemesis;

/// What is tried and what is told.
pub(super) const NEMESIS: &str = "\
A schedule is a cluster, what its sources send, and up to six faults at random times: partitions, hangs,
crashes, stopped machines and restored ones, disks that are full, slow, lost or older, clocks that run
wrong, and limits and weights that change. A quarter have regions. Hosts judge whole packets by the kernel
program's code. A seed determines it.

Three things break a promise. Hosts admit more than is promised for these faults. They admit less than 0.9 of
what is left to use, six seconds after the last fault, or twelve between regions. A source that keeps to half
of its limit loses more than its first packets at a host. Such a schedule is made as short as still breaks
one, and printed as a scenario for `limiter simulate cluster`.

Exit code 1 if a promise is broken.

  limiter simulate nemesis --schedules 1000
  limiter simulate nemesis --seed 4711 --schedules 1 --json";

/// The sizes of clusters.
const SIZES: std::ops::RangeInclusive<usize> = 2..=30;

#[derive(Debug, Args)]
pub(super) struct NemesisArgs {
    /// How many schedules
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    schedules: u64,
    /// The first schedule's seed; each schedule's is one more
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Hosts, such as 3,5; each schedule has one of these numbers
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "3,4,5,6,7,8,9")]
    hosts: Vec<usize>,
}

pub(super) fn run(output: &mut Output<'_>, arguments: &NemesisArgs) -> Result<u8, Failure> {
    let NemesisArgs { schedules, seed, hosts } = arguments;
    if let Some(hosts) = hosts.iter().find(|hosts| !SIZES.contains(*hosts)) {
        return Err(Failure::new(exit::USAGE, format!("{hosts} hosts cannot be tried"))
            .hint(format!("--hosts is from {} to {}", SIZES.start(), SIZES.end())));
    }
    let mut display = ProgressDisplay::new();
    let found = nemesis::search(*seed, *schedules, hosts, &mut |done| {
        display
            .show(done as f64 / *schedules as f64, || format!("{done} of {schedules} schedules"));
    });
    display.clear();
    let report = NemesisReport::new(&found);
    output.print(&report)?;
    Ok(if report.violations == 0 { exit::OK } else { exit::NEGATIVE })
}

#[cfg(test)]
mod tests {
    use crate::cli;

    fn limiter(arguments: &[&str]) -> (u8, String) {
        let all = ["limiter", "simulate", "nemesis"].iter().chain(arguments);
        let mut out = Vec::new();
        let code = cli::main(all.map(Into::into).collect(), &mut out);
        (code, String::from_utf8(out).unwrap())
    }

    #[test]
    fn schedules_are_tried_and_told() {
        let (code, out) = limiter(&["--schedules", "6", "--seed", "3", "--hosts", "3,4", "--json"]);
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &document["violations"]), (0, &0.into()), "{document}");
        assert_eq!(document["schedules"], 6);
        let faults = document["faults"].as_array().unwrap();
        assert!(faults.len() > 3 && faults[0]["schedules"].as_u64() > Some(0), "{document}");
        let (_, text) = limiter(&["--schedules", "6", "--seed", "3", "--hosts", "3,4"]);
        assert!(text.contains("6 schedules: no promise is broken"), "{text}");
        assert_eq!(limiter(&["--hosts", "1"]).0, 2);
    }
}
