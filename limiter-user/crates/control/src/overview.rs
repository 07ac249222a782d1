//! A look at all that goes on, for the dashboard.
//!
//! It is taken once a second while a page is open. What takes a look at the whole table is kept for
//! some seconds, apart from the heaviest sources.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::core::Core;
use api::error::Failure;
use api::{
    Commands, CostReport, Flow, Health, LimitReport, ListEntry, Offender, OverviewReport,
    ReasonFlow, Shown, StatusReport, TopEntry, Verdict, reasons,
};
use dataplane::RunTime;
use model::Class;
use model::lists::Action;
use model::source::SourceState;
use model::target::short_prefix;
use model::traffic::Sort;
use telemetry::Sample;

/// Sources that are looked at to find those that packets are dropped of now.
const CANDIDATES: usize = 100;

/// Sources that are told.
const OFFENDERS: usize = 10;

/// Limits, and entries of lists, that are told.
const MAX: usize = 50;

/// Entries of lists that are looked at to find denied ones.
const MAX_ENTRIES: usize = 2000;

/// How long the state of the whole table is kept.
const KEPT: Duration = Duration::from_secs(10);

/// How the kernel is told to measure, and what that costs: it reads its clock twice. Measured on a virtual
/// machine with 2 cores of an AMD EPYC, Linux 6.18, medians of 11 interleaved rounds
/// (`tests/tests/measuring.rs`): 42 → 125 ns for a dropped packet, 98 → 185 for one that passes.
const MEASURE: &str = "run `sysctl kernel.bpf_stats_enabled=1`; it costs each packet 80 to 100 ns in a virtual \
                       machine";

/// What a source and a class of its packets are known by.
type Key = (IpNet, Option<Class>);

/// What a look needs of the one before.
#[derive(Default)]
pub struct Watching {
    before: Option<Before>,
    status: Option<(Instant, StatusReport)>,
}

struct Before {
    sample: Sample,
    run_time: Option<RunTime>,
    /// Packets dropped of each, and the bucket that has counted them: see [`TopEntry::since_ns`].
    dropped: HashMap<Key, (u64, u64)>,
    /// What others had dropped at most.
    others: u64,
}

fn key(entry: &TopEntry) -> Key {
    (entry.source, entry.class)
}

/// Sums up what has a verdict.
fn sum(flows: &[ReasonFlow], verdict: &str) -> Flow {
    let of = flows.iter().filter(|flow| flow.verdict == verdict);
    of.fold(Flow::default(), |sum, ReasonFlow { flow, .. }| Flow {
        pps: sum.pps + flow.pps,
        bps: sum.bps + flow.bps,
    })
}

/// What sources that are not among the heaviest have dropped at most.
fn least(heaviest: &[TopEntry]) -> u64 {
    if heaviest.len() < CANDIDATES {
        return 0;
    }
    heaviest.iter().map(|entry| entry.dropped).min().unwrap_or_default()
}

impl Before {
    /// Packets dropped of a source per second, in `seconds`; at least so many, if it was not among the
    /// heaviest before.
    fn dropped_pps(&self, entry: &TopEntry, seconds: f64) -> f64 {
        let before = match self.dropped.get(&key(entry)) {
            Some((since_ns, dropped)) if *since_ns == entry.since_ns => *dropped,
            // All that a new bucket counts is new.
            Some(_) => 0,
            None => self.others,
        };
        let dropped = entry.dropped.checked_sub(before).unwrap_or(entry.dropped);
        if seconds > 0.0 { dropped as f64 / seconds } else { 0.0 }
    }
}

impl Core {
    /// Looks at what goes on since `watching` was last used here; the first time, rates are zero.
    ///
    /// # Errors
    /// If the data plane cannot be read.
    pub fn overview(
        &mut self,
        watching: &mut Watching,
        now: Instant,
    ) -> Result<OverviewReport, Failure> {
        let fresh = |at: &Instant| now.duration_since(*at) < KEPT;
        let kept = watching.status.take().filter(|(at, _)| fresh(at));
        let (at, status) = match kept {
            Some(kept) => kept,
            None => (now, self.status()?),
        };
        let top = self.top(CANDIDATES, Sort::Dropped);
        let (sample, run_time) = (self.sample()?, self.plane().run_time());
        let before = watching.before.take();
        let earlier = before.as_ref().map_or(&sample, |before| &before.sample);
        let seconds = sample.monotonic_ns.saturating_sub(earlier.monotonic_ns) as f64 / 1e9;
        let flows = reasons(earlier, &sample);
        let (passed, dropped) = (sum(&flows, "pass"), sum(&flows, "drop"));
        let rate = |entry: &TopEntry| {
            before.as_ref().map_or(0.0, |before| before.dropped_pps(entry, seconds))
        };
        let counts =
            top.sources.iter().map(|entry| (key(entry), (entry.since_ns, entry.dropped))).collect();
        let mut found: Vec<_> = top.sources.iter().map(|entry| (rate(entry), entry)).collect();
        // Those that are equal stay in the order of `top`.
        found.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let enforced = |entry: &TopEntry| entry.limit.as_ref().is_some_and(|limit| limit.enforce);
        let limited = |entry: &TopEntry| entry.state == SourceState::Limited && enforced(entry);
        let over = top.sources.iter().filter(|entry| limited(entry)).count();
        let worst = found.iter().find(|(_, entry)| limited(entry));
        let worst = worst.map(|(pps, entry)| {
            (short_prefix(&entry.source), (pps / dropped.pps.max(0.001)).min(1.0))
        });
        let verdict = Verdict::new(
            &flows,
            over as u64,
            over == CANDIDATES,
            worst.as_ref().map(|(source, share)| (source.as_str(), *share)),
            status.state,
        );
        let told = |(pps, entry): &(f64, &TopEntry)| Offender {
            entry: (*entry).clone(),
            dropped_pps: *pps,
            commands: Commands::new(entry, self.instance.as_ref()),
        };
        let lost = found.iter().filter(|(_, entry)| entry.has_lost());
        let offenders: Vec<_> = lost.take(OFFENDERS).map(told).collect();
        let some = if offenders.is_empty() { OFFENDERS } else { 0 };
        let heaviest = found.iter().take(some).map(told).collect();
        let report = OverviewReport {
            time: humantime::format_rfc3339_millis(sample.time).to_string(),
            seconds,
            verdict,
            passed,
            dropped,
            tracked: top.tracked,
            distinct: sample.distinct,
            heaviest,
            offenders,
            reasons: flows,
            noise: sample.noise,
            sketch: status.sketch,
            table: status.table,
            cost: cost(before.as_ref().and_then(|before| before.run_time), run_time),
            limits: self.some_limits(),
            denied: self.some_denied(),
            state: if self.rules.fault.is_some() { Health::Degraded } else { status.state },
            warnings: status.warnings.clone(),
            interfaces: status
                .interfaces
                .iter()
                .map(|interface| (interface.name.clone(), interface.mode.name()))
                .collect(),
            version: env!("CARGO_PKG_VERSION"),
            host: host_name(),
            instance: self.instance.as_ref().map(ToString::to_string),
            uptime_seconds: status.uptime_seconds + now.duration_since(at).as_secs(),
        };
        watching.status = Some((at, status));
        watching.before =
            Some(Before { sample, run_time, dropped: counts, others: least(&top.sources) });
        Ok(report)
    }

    /// The first limits in force, without going through all of them.
    fn some_limits(&self) -> Shown<LimitReport> {
        let some = self.rules.layers().first(MAX);
        let shown = some.iter().map(|limit| self.rules.report_in_force(limit)).collect();
        Shown { total: self.rules.layers().count() as u64, shown }
    }

    /// The first entries of the deny list, those that bans have made before others.
    fn some_denied(&self) -> Shown<ListEntry> {
        let listed = self.rules.listed();
        let looked_at = listed.iter().take(MAX_ENTRIES);
        let mut denied: Vec<_> =
            looked_at.filter(|(_, listing)| listing.action == Action::Deny).collect();
        denied.sort_by_key(|(_, listing)| !listing.ban);
        denied.truncate(MAX);
        let shown =
            denied.into_iter().map(|(net, listing)| self.rules.entry(*net, listing)).collect();
        Shown { total: listed.len() as u64, shown }
    }
}

/// The name that the host has now; nothing if the kernel does not tell.
fn host_name() -> String {
    let names = nix::sys::utsname::uname();
    names.map(|names| names.nodename().to_string_lossy().into_owned()).unwrap_or_default()
}

fn cost(before: Option<RunTime>, now: Option<RunTime>) -> CostReport {
    let measured = before.zip(now).and_then(|(before, now)| now.per_packet_since(before));
    let hint = measured.is_none().then_some(MEASURE);
    CostReport { ns_per_packet: measured, hint }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn rates_begin_with_the_second_look() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut core = fake.core(&directory);
        fake.state().sources.insert("198.51.100.7".into(), (5, 100));
        let mut watching = Watching::default();
        let now = Instant::now();
        let report = core.overview(&mut watching, now).unwrap();
        assert_eq!((report.passed, report.dropped), (Flow::default(), Flow::default()));
        assert_eq!(report.offenders[0].dropped_pps, 0.0);
        // The clock of the fake stands still, so give it a second.
        let before = watching.before.as_mut().unwrap();
        before.sample.monotonic_ns = before.sample.monotonic_ns.saturating_sub(1_000_000_000);
        let moved = before.sample.monotonic_ns;
        fake.state().sources.insert("198.51.100.7".into(), (5, 350));
        let report = core.overview(&mut watching, now + Duration::from_secs(1)).unwrap();
        let seconds = (core.sample().unwrap().monotonic_ns - moved) as f64 / 1e9;
        let wanted = if seconds > 0.0 { 250.0 / report.seconds } else { 0.0 };
        assert_eq!(report.offenders[0].dropped_pps, wanted);
        assert!(report.offenders[0].commands.deny.as_ref().unwrap().contains("198.51.100.7"));
    }

    #[test]
    fn who_has_lost_nothing_is_no_offender() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut core = fake.core(&directory);
        fake.state().sources.insert("198.51.100.7".into(), (500, 0));
        fake.state().sources.insert("198.51.100.8".into(), (900, 0));
        let names = |listed: &[Offender]| -> Vec<_> {
            listed.iter().map(|it| it.entry.source.addr().to_string()).collect()
        };
        let report = core.overview(&mut Watching::default(), Instant::now()).unwrap();
        assert_eq!(names(&report.heaviest), ["198.51.100.8", "198.51.100.7"]);
        assert!(report.offenders.is_empty() && report.heaviest[0].commands.deny.is_none());
        fake.state().sources.insert("198.51.100.9".into(), (5, 7));
        core.top.look_now(&fake, 3);
        let report = core.overview(&mut Watching::default(), Instant::now()).unwrap();
        assert_eq!(names(&report.offenders), ["198.51.100.9"]);
        assert!(report.heaviest.is_empty() && !report.host.is_empty());
    }

    #[test]
    fn whoever_is_new_has_dropped_at_least_what_it_is_ahead_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut core = fake.core(&directory);
        fake.state().sources.insert("198.51.100.7".into(), (5, 100));
        let entry = core.top(1, Sort::Dropped).sources.remove(0);
        let sample = core.sample().unwrap();
        let mut before = Before { sample, run_time: None, dropped: HashMap::new(), others: 0 };
        assert_eq!(before.dropped_pps(&entry, 2.0), 50.0);
        before.others = 40;
        assert_eq!(before.dropped_pps(&entry, 2.0), 30.0);
        before.dropped.insert(key(&entry), (entry.since_ns, 90));
        assert_eq!(before.dropped_pps(&entry, 2.0), 5.0);
        for others in [90, 900] {
            before.dropped.insert(key(&entry), (entry.since_ns + 1, others));
            assert_eq!(before.dropped_pps(&entry, 2.0), 50.0, "a new bucket");
        }
        assert_eq!(before.dropped_pps(&entry, 0.0), 0.0);
    }
}
