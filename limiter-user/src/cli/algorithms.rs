//! `limiter simulate algorithms`

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};

use super::output::{Output, write_file};
use super::progress::ProgressDisplay;
use crate::simulation::{AlgorithmsReport, ExperimentReport, Judged};
use api::error::{Failure, exit};
use lab::{Candidate, PATTERNS, Settings, SettingsError, Traffic, experiment};
use model::units::{Rate, Unit, parse_duration};
use model::{Invalid, chain};

/// What is measured.
const ALGORITHMS: &str = "\
BOUND is the most that an algorithm admits in any window, wherever it begins, as proved; IN A WINDOW
is what it admitted. A request conforms if its source has sent no more than the limit in any window up to
then; CONFORMING DENIED are those that were denied nevertheless. DECIDED OTHERWISE is the part of all
requests that the exact log decides otherwise: where much more is sent than admitted, which of equals is
admitted is arbitrary. BYTES is the memory for one source. NS is what a decision took on this machine.

Each source has the limit for itself, and each request costs 1. The leaky bucket is here as a meter: it is
the token bucket in other words. Sources of a file are its source addresses, and its first packet begins
the first window.

Exit code 1 if an algorithm admitted more than its bound.

  limiter simulate algorithms --limit 100/minute --pattern edge
  limiter simulate algorithms --limit 500pps --pcap mine.pcap --html mine.html
  limiter simulate algorithms --adversary";

/// A number of requests, or a rate of them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LimitInput {
    amount: u64,
    period: Option<Duration>,
}

fn parse_limit(input: &str) -> Result<LimitInput, Invalid> {
    if let Ok(amount) = input.trim().parse() {
        return Ok(LimitInput { amount, period: None });
    }
    let invalid = |problem: String| {
        Invalid::new(problem)
            .with_hint("write a number of requests, or a rate such as 100/minute or 500pps")
    };
    let rate: Rate = input.parse().map_err(|error| invalid(chain(&error)))?;
    if rate.unit() != Unit::Packets {
        return Err(invalid(format!("{input:?} counts bytes, and each request is one")));
    }
    Ok(LimitInput { amount: rate.amount(), period: Some(Duration::from_nanos(rate.period_ns())) })
}

/// A published experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExperimentName {
    /// 400 million requests of 270,000 sources
    Cloudflare,
}

/// The names of patterns, and what is before the last `-` of some.
fn pattern_names() -> Vec<&'static str> {
    let families = PATTERNS.iter().filter_map(|pattern| Some(pattern.name.rsplit_once('-')?.0));
    let mut names: Vec<_> = families.filter(|it| Traffic::named(it).len() > 1).collect();
    names.dedup();
    names.extend(PATTERNS.iter().map(|pattern| pattern.name));
    names
}

#[derive(Debug, Args)]
#[command(after_help = ALGORITHMS)]
pub(super) struct AlgorithmsArgs {
    /// Requests that a source may send in a window: a number, or a rate such as 100/minute
    #[arg(long, value_name = "LIMIT", default_value = "100", value_parser = parse_limit)]
    limit: LimitInput,
    /// The window's length [default: 60s, or what the rate is for]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    window: Option<Duration>,
    /// What a full bucket holds [default: the limit]
    #[arg(long, value_name = "N")]
    burst: Option<u64>,
    /// The length of a sub-window; 2 to 60 make the window [default: a 60th of the window]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    granularity: Option<Duration>,
    /// Runs of each pattern
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// The first run's seed; each run's is one more
    #[arg(long, value_name = "SEED", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=1 << 60))]
    first_seed: u64,
    /// Only this pattern, or those that begin so; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = PossibleValuesParser::new(pattern_names()))]
    pattern: Vec<String>,
    /// Judge the packets of a pcap or pcapng file of Ethernet frames instead of patterns
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Judge what `limiter capture -w` wrote instead of patterns
    ///
    /// Samples are a part of the traffic: at most as many a second as --rate of `limiter capture` says. All rates are
    /// lower than they were, unless it was above them.
    #[arg(long, value_name = "FILE.pcapng")]
    capture: Option<PathBuf>,
    /// Search for the traffic of which each algorithm admits most in a window, and print it
    #[arg(long)]
    adversary: bool,
    /// Also write a page with charts
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Repeat a published experiment instead; takes a minute on two CPUs
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["pattern", "pcap", "capture", "adversary", "html", "seeds"])]
    experiment: Option<ExperimentName>,
    /// Requests of the experiment
    #[arg(long, value_name = "N", default_value_t = experiment::REQUESTS, requires = "experiment")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    requests: u64,
    /// Sources of the experiment
    #[arg(long, value_name = "N", default_value_t = experiment::SOURCES, requires = "experiment")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    sources: u64,
}

impl AlgorithmsArgs {
    fn settings(&self) -> Result<Settings, Failure> {
        let LimitInput { amount, period } = self.limit;
        let window = self.window.or(period).unwrap_or(Duration::from_secs(60));
        // Rounded down: never more than the rate.
        let limit = period.map_or(Some(amount), |period| {
            let earned = u128::from(amount).checked_mul(window.as_nanos())?;
            u64::try_from(earned / period.as_nanos()).ok()
        });
        Settings::new(limit.unwrap_or(u64::MAX), window, self.burst, self.granularity)
            .map_err(refused)
    }

    /// What is to be judged, but for what an adversary would find.
    fn traffic(&self) -> Result<Vec<Traffic>, Failure> {
        let mut all: Vec<_> = self.pattern.iter().flat_map(|name| Traffic::named(name)).collect();
        if let Some(path) = &self.pcap {
            all.push(Traffic::recorded("pcap", "the packets of the file", read(path)?));
        }
        if let Some(path) = &self.capture {
            let about = "samples: a part of the traffic, so all rates are lower than they were";
            all.push(Traffic::recorded("capture", about, read(path)?));
        }
        if all.is_empty() && !self.adversary {
            all = Traffic::all();
        }
        Ok(all)
    }
}

fn refused(error: SettingsError) -> Failure {
    Failure::new(exit::USAGE, chain(&error)).hint(error.hint())
}

fn read(path: &Path) -> Result<Vec<Vec<u64>>, Failure> {
    let refuse = |error: &(dyn std::error::Error + 'static)| {
        Failure::new(exit::USAGE, format!("cannot read {}: {}", path.display(), chain(error)))
            .hint("name a file of Ethernet frames, as `tcpdump -i eth0 -w FILE` or `limiter capture -w FILE` writes it")
    };
    let file = File::open(path).map_err(|error| refuse(&error))?;
    lab::read(BufReader::new(file)).map_err(|error| refuse(&error))
}

pub(super) fn run(output: &mut Output<'_>, arguments: &AlgorithmsArgs) -> Result<u8, Failure> {
    let settings = arguments.settings()?;
    let candidates = settings.candidates().map_err(refused)?;
    if let Some(ExperimentName::Cloudflare) = arguments.experiment {
        return experiment(output, arguments, &settings, &candidates);
    }
    let traffic = arguments.traffic()?;
    let mut display = ProgressDisplay::new();
    let searches = if arguments.adversary { candidates.len() } else { 0 };
    let steps = (traffic.len() + searches) as f64;
    let mut show = |done: usize, name: &str| {
        let part = done as f64 / steps;
        display.show(part, || format!("{:.0} %: {name}", 100.0 * part));
    };
    let seeds = arguments.first_seed..arguments.first_seed + arguments.seeds;
    let mut judged = Vec::new();
    for traffic in traffic {
        show(judged.len(), &traffic.name);
        let outcome = lab::judge(&settings, &candidates, &traffic, seeds.clone());
        judged.push(Judged { traffic, outcome, trains: Vec::new() });
    }
    for candidate in &candidates[..searches] {
        let name = format!("against {}", candidate.name);
        show(judged.len(), &name);
        let attack = lab::adversary::search(&settings, candidate, arguments.first_seed);
        let about = format!("the traffic found of which {} admits most", candidate.name);
        let traffic = Traffic::recorded(name, about, vec![attack.times]);
        let outcome = lab::judge(&settings, &candidates, &traffic, seeds.clone());
        judged.push(Judged { traffic, outcome, trains: attack.trains });
    }
    display.clear();
    let report = AlgorithmsReport::new(&settings, arguments.seeds, &candidates, &judged);
    // Before the table: a page that cannot be written fails the command, and its table would look like success.
    if let Some(path) = &arguments.html {
        let page = report.html(&settings, &judged, arguments.first_seed).map_err(|problem| {
            Failure::new(exit::NEGATIVE, format!("cannot write the page: {problem}"))
        })?;
        write_file(path, &page, "name another file with --html")?;
    }
    output.print(&report)?;
    Ok(if report.over_bound().is_empty() { exit::OK } else { exit::NEGATIVE })
}

fn experiment(
    output: &mut Output<'_>,
    arguments: &AlgorithmsArgs,
    settings: &Settings,
    candidates: &[Candidate],
) -> Result<u8, Failure> {
    let start = Instant::now();
    let mut display = ProgressDisplay::new();
    let size = (arguments.requests, arguments.sources);
    let tallies = experiment::run(settings, candidates, size, arguments.first_seed, &mut |part| {
        display.show(part, || format!("{:.0} % of {} requests", 100.0 * part, size.0));
    });
    display.clear();
    let seconds = start.elapsed().as_secs_f64();
    output.print(&ExperimentReport::new(settings, size.1, candidates, &tallies, seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn limiter(arguments: &[&str]) -> (u8, String) {
        let all = ["limiter", "simulate", "algorithms"].iter().chain(arguments);
        let mut out = Vec::new();
        let code = cli::main(all.map(Into::into).collect(), &mut out);
        (code, String::from_utf8(out).unwrap())
    }

    fn json(arguments: &[&str]) -> serde_json::Value {
        let (code, out) = limiter(&[arguments, &["--json"]].concat());
        assert_eq!(code, 0, "{arguments:?}: {out}");
        serde_json::from_str(&out).unwrap()
    }

    #[test]
    fn all_algorithms_are_compared_on_all_patterns() {
        let report = json(&["--seeds", "1"]);
        let rows = report["algorithms"].as_array().unwrap();
        assert!(rows.iter().map(|row| &row["name"]).eq(&lab::NAMES.map(serde_json::Value::from)));
        for row in rows {
            let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
            assert!((95.0..=number("bound")).contains(&number("most_in_window")), "{row}");
            assert!(number("bytes") >= 8.0 && number("ns") > 0.0, "{row}");
            assert!((0.0..1.0).contains(&number("decided_otherwise")), "{row}");
        }
        let of = |key: &str| rows.iter().map(|row| row[key].as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!(of("bound"), [200, 200, 200, 199, 100, 100]);
        assert_eq!(of("bytes"), [8, 8, 8, 8, 504, 808]);
        let patterns = report["patterns"].as_array().unwrap();
        assert_eq!(patterns.len(), PATTERNS.len());
        let worst = patterns.iter().map(|it| it["algorithms"][2]["most_in_window"].as_u64());
        assert_eq!(worst.max().unwrap(), Some(of("most_in_window")[2]));
        let half = json(&["--pattern", "steady-0.5,poisson-0.5"]);
        for row in half["algorithms"].as_array().unwrap() {
            assert_eq!(row["conforming_denied"], 0, "{row}");
        }
    }

    #[test]
    fn a_rate_says_how_long_its_window_is() {
        let limit = |arguments: &[&str]| {
            let report = json(&[arguments, &["--pattern", "edge"]].concat());
            (report["limit"].as_u64().unwrap(), report["window_seconds"].as_f64().unwrap())
        };
        assert_eq!(limit(&[]), (100, 60.0));
        assert_eq!(limit(&["--limit", "50/hour"]), (50, 3600.0));
        assert_eq!(limit(&["--limit", "50pps"]), (50, 1.0));
        assert_eq!(limit(&["--limit", "5pps", "--window", "10s"]), (50, 10.0));
        assert_eq!(limit(&["--limit", "7", "--window", "10s"]), (7, 10.0));
    }

    #[test]
    fn an_adversary_prints_what_it_found() {
        let report = json(&["--adversary", "--limit", "10"]);
        for row in report["algorithms"].as_array().unwrap() {
            let (most, bound) = (row["most_in_window"].as_f64(), row["bound"].as_f64());
            assert!(most.unwrap() >= 0.95 * bound.unwrap() && most <= bound, "{row}");
        }
        let patterns = report["patterns"].as_array().unwrap();
        assert_eq!(patterns.len(), lab::NAMES.len());
        for pattern in patterns {
            let sent: u64 = pattern["trace"]
                .as_array()
                .unwrap()
                .iter()
                .map(|train| train["requests"].as_u64().unwrap())
                .sum();
            assert_eq!(pattern["requests"], sent, "{pattern}");
        }
        let (code, text) = limiter(&["--adversary", "--limit", "10"]);
        assert!(code == 0 && text.contains("against fixed-window"), "{text}");
        assert!(text.contains("none is over its bound"), "{text}");
    }

    #[test]
    fn the_experiment_is_beside_what_was_published() {
        let arguments = ["--experiment", "cloudflare", "--requests", "100000", "--sources", "1000"];
        let report = json(&arguments);
        assert_eq!(report["algorithms"].as_array().unwrap().len(), 6);
        assert_eq!(report["published"]["decided_otherwise"], 3e-5);
        assert_eq!(report["algorithms"][5]["decided_otherwise"], 0.0);
        let (_, text) = limiter(&arguments);
        assert!(text.contains("published") && text.contains("0.0030 %"), "{text}");
    }

    #[test]
    fn what_cannot_be_tried_is_refused_with_a_hint() {
        for (arguments, hint) in [
            (&["--granularity", "7s"][..], "15s"),
            (&["--granularity", "60s"], "15s"),
            (&["--granularity", "100ms"], "15s"),
            (&["--limit", "0"], "--limit"),
            (&["--limit", "1000000"], "scale"),
            (&["--limit", "lots"], "100/minute"),
            (&["--limit", "10mbit"], "100/minute"),
            (&["--limit", "1/hour", "--window", "1s"], "--limit"),
            (&["--burst", "0"], "--burst"),
            (&["--window", "0s"], "--"),
            (&["--window", "60"], "60s"),
            (&["--pattern", "edgy"], "edge"),
            (&["--pcap", "/nowhere.pcap"], "tcpdump"),
            (&["--pcap", "/dev/null"], "tcpdump"),
            (&["--experiment", "cloudflare", "--adversary"], "--help"),
            (&["--requests", "5"], "--help"),
            (&["--seeds", "0"], "--help"),
        ] {
            let (code, out) = limiter(&[arguments, &["--json"]].concat());
            let document: serde_json::Value = serde_json::from_str(&out).unwrap();
            let told = document["error"]["hint"].as_str().unwrap_or_default();
            assert_eq!(code, 2, "{arguments:?}: {out}");
            assert!(told.contains(hint), "{arguments:?}: {out}");
        }
    }
}
