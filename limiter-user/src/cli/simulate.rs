//! `limiter simulate`

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};

use super::algorithms::{self, AlgorithmsArgs};
use super::nemesis::{self, NEMESIS, NemesisArgs};
use super::output::{Output, write_file};
use super::progress::ProgressDisplay;
use crate::simulation::SimulationReport;
use api::error::{Failure, exit};
use sim::{self as simulate, MAX_HOSTS, Progress, Scenario, SchemeKind};

/// The largest file of a scenario, bytes.
// The largest built-in scenario has some kilobytes. A wrong path, such as a capture, is refused before it is read.
const MAX_FILE_LEN: u64 = 1 << 20;

#[derive(Debug, Subcommand)]
pub(super) enum SimulateCommand {
    /// Run clusters on a virtual network that fails, and judge whether they keep one limit
    ///
    /// Without a file or a scenario, all built-in scenarios are run. Exit code 1 if a goal is missed.
    #[command(after_help = CLUSTER)]
    Cluster(Box<ClusterArgs>),
    /// Try the cluster with random schedules of faults, and shorten those that break a promise
    #[command(after_help = NEMESIS)]
    Nemesis(NemesisArgs),
    /// Compare all algorithms of rate limiting on the same traffic, patterns or your own
    Algorithms(Box<AlgorithmsArgs>),
}

/// What is simulated and what is told.
const CLUSTER: &str = "\
Each host has a clock of its own, a bucket for each source as in the kernel, and the daemon's own code to
share limits with the others over a network that loses, delays, doubles and reorders messages. Scenarios
add partitions, hangs, crashes, restarts, joins and leaves. A run is determined by its seed.

OVERAGE IN 1 S is the most that all hosts together admitted of a source within any second beyond burst +
rate · 1 s, as a part of that, in the worst of all runs; IN ANY TIME the same for windows of every length,
the clocks' drift allowed for. UTILISATION is what was admitted of min(offered, limit), after warming up.
BACK TO 90 % is how long it takes after the demand moved. PER HOST is what the host that sends most does.

In the scenarios regions-…, hosts are in three or four regions that are far from each other. What hosts of
different regions send each other has a table of its own. They are left out where fewer than six hosts are
asked for.

In the scenario members, hosts do nothing but find out who is there, as the daemon does (scheme membership):
nothing is limited in it, and PER HOST is the mean of all hosts at rest.

Beside the escrow there are schemes to compare with: none (each host has the whole limit), static (each
has the same share), debit (each takes from its buckets what others say that they admitted), proportional
(each has its part of the demand that it has heard of). Where there are regions, flat is the escrow whose
hosts know of none: what it sends between them is what regions are to save.

A file has one scenario; --print shows a built-in one to start from:
  limiter simulate cluster --scenario partition --print > mine.toml
  limiter simulate cluster mine.toml --seeds 100 --chart mine.html";

#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// A scenario of your own
    #[arg(value_name = "FILE.toml", conflicts_with_all = ["scenario", "suite"])]
    file: Option<PathBuf>,
    /// All built-in scenarios, and a table of what is to be reached; takes some minutes on two CPUs
    ///
    /// Nearly all of that is for the heavy ones: a hundred hosts with a thousand sources, and a thousand hosts that
    /// find each other. They come in their own size and with few seeds. Where --hosts asks for less than a hundred
    /// alone they are left out, and the rest takes seconds.
    #[arg(long, conflicts_with = "scenario")]
    suite: bool,
    /// Only this built-in scenario; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    scenario: Vec<String>,
    /// Runs of each scenario
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    seeds: u32,
    /// The first run's seed; each run's is one more
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first_seed: u64,
    /// Hosts, such as 3,10,100 [default: what the scenario says]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    hosts: Vec<usize>,
    /// Only these schemes; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "SCHEME", value_delimiter = ',')]
    scheme: Vec<SchemeKind>,
    /// Also write a page with charts
    #[arg(long, value_name = "FILE.html")]
    chart: Option<PathBuf>,
    /// Print the scenario as TOML and end
    #[arg(long, requires = "scenario", conflicts_with = "json")]
    print: bool,
}

pub(super) fn run(output: &mut Output<'_>, command: &SimulateCommand) -> Result<u8, Failure> {
    match command {
        SimulateCommand::Cluster(arguments) => cluster(output, arguments),
        SimulateCommand::Nemesis(arguments) => nemesis::run(output, arguments),
        SimulateCommand::Algorithms(arguments) => algorithms::run(output, arguments),
    }
}

fn cluster(output: &mut Output<'_>, arguments: &ClusterArgs) -> Result<u8, Failure> {
    if arguments.print {
        // Nothing is run: the text is there to be edited.
        for name in &arguments.scenario {
            output.raw(simulate::text(name)?.as_bytes())?;
        }
        return Ok(exit::OK);
    }
    let scenarios = scenarios(arguments)?;
    let mut schemes = arguments.scheme.clone();
    if schemes.is_empty() {
        schemes = SchemeKind::ALL.to_vec();
    }
    let seeds = arguments.seeds as usize;
    let mut display = ProgressDisplay::new();
    let show = &mut |progress: &Progress| display.show(progress.part, || line(progress));
    let summaries = simulate::run_all(&scenarios, &schemes, arguments.first_seed, seeds, show);
    display.clear();
    let mut report = SimulationReport::new(&scenarios, &summaries);
    // The goals speak of all scenarios together, so only the whole suite can reach them.
    report.with_goals = arguments.suite;
    // Before the table: a page that cannot be written fails the command, and its table would look like success.
    if let Some(path) = &arguments.chart {
        let page = report.html(&scenarios, &summaries).map_err(|problem| {
            Failure::new(exit::NEGATIVE, format!("cannot write the charts: {problem}"))
        })?;
        write_file(path, &page, "name another file with --chart")?;
    }
    output.print(&report)?;
    Ok(if report.ok { exit::OK } else { exit::NEGATIVE })
}

/// How far the runs are, in a line.
fn line(progress: &Progress) -> String {
    let Progress { done, runs, part, left, running } = progress;
    let left = left.map(|left| {
        // Whole seconds: humantime would go on to nanoseconds.
        let left = humantime::format_duration(Duration::from_secs(left.as_secs()));
        format!(", about {left} left")
    });
    let running = if running.is_empty() { String::new() } else { format!(": {running}") };
    let percent = (100.0 * part) as u32;
    format!("{percent} %{}, {done} of {runs} runs{running}", left.unwrap_or_default())
}

/// The scenarios that are asked for, in the sizes that are.
fn scenarios(arguments: &ClusterArgs) -> Result<Vec<Scenario>, Failure> {
    if let Some(hosts) = arguments.hosts.iter().find(|hosts| !(1..=MAX_HOSTS).contains(*hosts)) {
        return Err(Failure::new(exit::USAGE, format!("{hosts} hosts cannot be simulated"))
            .hint(format!("--hosts is from 1 to {MAX_HOSTS}")));
    }
    let (found, is_named) = match (&arguments.file, &arguments.scenario[..]) {
        (Some(path), _) => (vec![Scenario::parse(path, &read(path)?)?], true),
        (None, []) => (simulate::suite()?, false),
        (None, names) => {
            (names.iter().map(|name| simulate::named(name)).collect::<Result<Vec<_>, _>>()?, true)
        }
    };
    let mut scenarios = Vec::new();
    for scenario in found {
        let is_heavy = scenario.is_heavy();
        let mut sizes = arguments.hosts.clone();
        // Nobody has asked for this one by name: too few hosts leave it out.
        sizes.retain(|hosts| is_named || *hosts >= scenario.least_hosts);
        if is_heavy && arguments.suite {
            // It takes minutes as it is: in the suite it comes in its own size alone.
            if arguments.hosts.is_empty() || !sizes.is_empty() {
                scenarios.push(scenario);
            }
        } else if !arguments.hosts.is_empty() {
            for hosts in sizes {
                scenarios.push(scenario.with_hosts(hosts)?);
            }
        } else if is_named || !is_heavy {
            scenarios.push(scenario);
        }
    }
    Ok(scenarios)
}

fn read(path: &Path) -> Result<String, Failure> {
    let refuse = |problem: &dyn std::fmt::Display| {
        let message = format!("cannot read {}: {problem}", path.display());
        Failure::new(exit::USAGE, message)
            .hint("name a TOML file, or a built-in scenario with --scenario")
    };
    // Asked before it is read: no file is to fill the memory.
    let size = std::fs::metadata(path).map_err(|error| refuse(&error))?.len();
    if size > MAX_FILE_LEN {
        return Err(refuse(&"it is larger than a mebibyte"));
    }
    std::fs::read_to_string(path).map_err(|error| refuse(&error))
}

#[cfg(test)]
mod tests {
    use super::super::args::Cli;
    use crate::cli;
    use clap::Parser;

    fn limiter(arguments: &[&str]) -> (u8, String) {
        let all = ["limiter", "simulate", "cluster"].iter().chain(arguments);
        let mut out = Vec::new();
        let code = cli::main(all.map(Into::into).collect(), &mut out);
        (code, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_file_of_ones_own_is_run_and_drawn() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (file, page) = (path("x.toml"), path("x.html"));
        std::fs::write(&file, "name = \"mine\"\nhosts = 2\nduration = \"2s\"\ntick = \"10ms\"")
            .unwrap();
        let (code, out) = limiter(&[
            &file,
            "--seeds",
            "2",
            "--scheme",
            "none,static",
            "--chart",
            &page,
            "--json",
        ]);
        assert_eq!(code, 0);
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        let rows = document["scenarios"].as_array().unwrap();
        assert_eq!((rows.len(), &document["ok"]), (2, &true.into()));
        assert_eq!((&rows[0]["name"], &rows[0]["scheme"]), (&"mine".into(), &"none".into()));
        assert_eq!((&rows[0]["hosts"], &rows[0]["seeds"]), (&2.into(), &2.into()));
        assert!(rows[0]["worst_overage"].as_f64().unwrap() > 0.9);
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains("<svg") && page.contains("mine, 2 hosts"));
        let (_, text) = limiter(&[&file, "--seeds", "1", "--scheme", "static", "--hosts", "3,4"]);
        assert!(text.contains("mine") && text.contains("2 runs"), "{text}");
    }

    #[test]
    fn progress_is_told_in_a_line() {
        let mut progress = super::Progress {
            done: 12,
            runs: 2939,
            part: 0.437,
            left: Some(std::time::Duration::from_millis(750_400)),
            running: "overhead (escrow, 100 hosts)".into(),
        };
        let told = "43 %, about 12m 30s left, 12 of 2939 runs: overhead (escrow, 100 hosts)";
        assert_eq!(super::line(&progress), told);
        progress = super::Progress { left: None, running: String::new(), ..progress };
        assert_eq!(super::line(&progress), "43 %, 12 of 2939 runs");
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        for arguments in [
            &["nowhere.toml"][..],
            &["--scenario", "spraed"],
            &["--hosts", "0"],
            &["--scenario", "reboot", "--hosts", "1"],
            &["--seeds", "0"],
            &["--print"],
        ] {
            assert_eq!(limiter(arguments).0, 2, "{arguments:?}");
        }
        let (code, text) = limiter(&["--scenario", "chaos", "--print"]);
        assert!(code == 0 && text.contains("[[fault]]"));
        let all = ["limiter", "simulate", "cluster", "--suite", "--hosts", "3,10"];
        assert!(Cli::try_parse_from(all).is_ok());
    }
}
