//! How far many runs are, by the work that they are rather than by their number: one of a hundred hosts with a
//! thousand sources takes as long as ten thousand of three hosts with four.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::scenario::Scenario;
use super::scheme::SchemeKind;

/// A group of runs that differ by their seeds.
pub(super) struct Group {
    /// What it is called: `chaos (escrow, 10 hosts)`.
    pub(super) name: String,
    pub(super) scheme: SchemeKind,
    /// What one run costs, relative to those of the other groups.
    pub(super) cost: f64,
    /// Runs.
    pub(super) runs: usize,
}

impl Group {
    pub(super) fn new(scenario: &Scenario, scheme: SchemeKind, runs: usize) -> Self {
        let name = format!("{} ({}, {} hosts)", scenario.name, scheme.name(), scenario.hosts);
        Self { name, scheme, cost: cost(scenario, scheme), runs }
    }
}

/// About how much work a run is. The factors are µs of a slow build on a slow machine; only their ratios count.
fn cost(scenario: &Scenario, scheme: SchemeKind) -> f64 {
    let (hosts, keys) = (scenario.hosts as f64, scenario.demand.keys as f64);
    let seconds = scenario.duration.seconds();
    let packets = 0.4 * hosts * keys * seconds / scenario.tick.seconds();
    match scheme {
        SchemeKind::None | SchemeKind::Static => packets,
        // Everyone tells everyone of every source.
        SchemeKind::Debit | SchemeKind::Proportional => {
            packets + 20.0 * hosts * hosts * keys * seconds
        }
        // Sources have owners.
        SchemeKind::Escrow | SchemeKind::Flat => packets + 1000.0 * hosts * keys * seconds,
        SchemeKind::Membership => 100.0 * hosts * hosts,
    }
}

/// The order in which runs are best made, as `(group, number of the run in it)`: one short run of each scheme,
/// by which the time of others can be told; then heavy ones first, so that none is left for the end.
pub(super) fn order(groups: &[Group]) -> Vec<(usize, usize)> {
    let mut by_cost: Vec<usize> = (0..groups.len()).filter(|i| groups[*i].runs > 0).collect();
    by_cost.sort_by(|one, other| groups[*other].cost.total_cmp(&groups[*one].cost));
    let mut shortest = BTreeMap::new();
    for &i in &by_cost {
        // From heavy to light, so that the lightest one of a scheme is what stays.
        shortest.insert(groups[i].scheme.name(), i);
    }
    let first: Vec<_> = shortest.into_values().map(|i| (i, 0)).collect();
    let all = by_cost.iter().flat_map(|&i| (0..groups[i].runs).map(move |number| (i, number)));
    first.iter().copied().chain(all.filter(|run| !first.contains(run))).collect()
}

/// How far the runs are.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Runs that are done.
    pub done: usize,
    /// All runs.
    pub runs: usize,
    /// The work that is done, 0 to 1.
    pub part: f64,
    /// About how long the rest takes; `None` until that can be told.
    pub left: Option<Duration>,
    /// What has been running for longest; empty in the end.
    pub running: String,
}

/// Measures how far the runs are.
pub(super) struct Meter<'a> {
    groups: &'a [Group],
    threads: usize,
    /// Runs of each group that are done, and seconds that they took.
    done: Vec<(usize, f64)>,
    /// The groups of the runs that are being made, and since when, the longest first.
    running: Vec<((usize, usize), Instant)>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(groups: &'a [Group], threads: usize) -> Self {
        Self { groups, threads, done: vec![(0, 0.0); groups.len()], running: Vec::new() }
    }

    pub(super) fn begin(&mut self, run: (usize, usize), now: Instant) {
        self.running.push((run, now));
    }

    pub(super) fn end(&mut self, run: (usize, usize), now: Instant) {
        let Some(place) = self.running.iter().position(|(other, _)| *other == run) else { return };
        let (_, since) = self.running.remove(place);
        let (runs, seconds) = &mut self.done[run.0];
        *runs += 1;
        *seconds += (now - since).as_secs_f64();
    }

    /// Seconds for each unit of cost, of the groups that `which` accepts; `None` if none of it is done.
    fn pace(&self, which: impl Fn(&Group) -> bool) -> Option<f64> {
        let groups = self.groups.iter().zip(&self.done).filter(|(group, _)| which(group));
        let (cost, seconds) = groups.fold((0.0, 0.0), |(cost, all), (group, (runs, seconds))| {
            (cost + group.cost * *runs as f64, all + seconds)
        });
        (cost > 0.0).then(|| seconds / cost)
    }

    /// How long a run of a group takes, s: as others of it, else as others of its scheme, else as any.
    fn expected(&self, group: usize) -> Option<f64> {
        let (runs, seconds) = self.done[group];
        if runs > 0 {
            return Some(seconds / runs as f64);
        }
        let Group { scheme, cost, .. } = self.groups[group];
        let pace = self.pace(|other| other.scheme == scheme).or_else(|| self.pace(|_| true))?;
        Some(pace * cost)
    }

    pub(super) fn progress(&self, now: Instant) -> Progress {
        let done = self.done.iter().map(|(runs, _)| runs).sum();
        let runs = self.groups.iter().map(|group| group.runs).sum();
        let running = self.running.first().map(|((group, _), _)| self.groups[*group].name.clone());
        let (part, left) = self.estimate(now).unzip();
        // A sum of estimates need not come to one by itself.
        let part = if done == runs { 1.0 } else { part.unwrap_or(0.0) };
        Progress { done, runs, part, left, running: running.unwrap_or_default() }
    }

    /// The part of the work that is done, and how long the rest takes.
    fn estimate(&self, now: Instant) -> Option<(f64, Duration)> {
        let mut behind: f64 = self.done.iter().map(|(_, seconds)| seconds).sum();
        let (mut ahead, mut longest) = (0.0, 0.0_f64);
        let mut begun = vec![0; self.groups.len()];
        for ((group, _), since) in &self.running {
            begun[*group] += 1;
            let elapsed = now.saturating_duration_since(*since).as_secs_f64();
            behind += elapsed;
            // What takes longer than it should goes on for a while.
            let rest = (self.expected(*group)? - elapsed).max(elapsed / 10.0);
            (ahead, longest) = (ahead + rest, longest.max(rest));
        }
        for (i, group) in self.groups.iter().enumerate() {
            let runs = group.runs - self.done[i].0 - begun[i];
            if runs > 0 {
                let each = self.expected(i)?;
                (ahead, longest) = (ahead + each * runs as f64, longest.max(each));
            }
        }
        // One run is one thread's: more of them do not make it any shorter.
        let left = longest.max(ahead / self.threads as f64);
        Some((behind / (behind + ahead).max(f64::MIN_POSITIVE), Duration::from_secs_f64(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, scheme: SchemeKind, cost: f64, runs: usize) -> Group {
        Group { name: name.into(), scheme, cost, runs }
    }

    #[test]
    fn heavy_runs_come_first_after_one_short_one_of_each_scheme() {
        let groups = [
            group("small", SchemeKind::Static, 1.0, 2),
            group("heavy", SchemeKind::Escrow, 1000.0, 2),
            group("middle", SchemeKind::Escrow, 10.0, 1),
            group("none", SchemeKind::None, 5.0, 0),
        ];
        assert_eq!(order(&groups), [(2, 0), (0, 0), (1, 0), (1, 1), (0, 1)]);
    }

    #[test]
    fn work_counts_rather_than_runs() {
        let groups = [
            group("heavy", SchemeKind::Escrow, 90.0, 1),
            group("small", SchemeKind::Escrow, 1.0, 10),
        ];
        let mut meter = Meter::new(&groups, 1);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!((meter.progress(start).part, meter.progress(start).left), (0.0, None));
        meter.begin((1, 0), at(0));
        meter.end((1, 0), at(100));
        // One of ten small ones is done: 1 % of the work, and 9.9 s are left.
        meter.begin((0, 0), at(100));
        let found = meter.progress(at(100));
        assert_eq!((found.done, found.runs, found.running.as_str()), (1, 11, "heavy"));
        assert!((found.part - 0.01).abs() < 1e-9, "{found:?}");
        assert!(
            found.left.unwrap().abs_diff(Duration::from_millis(9900)) < Duration::from_millis(1)
        );
        // Half of the heavy one.
        let found = meter.progress(at(4600));
        assert!((found.part - 0.46).abs() < 1e-9, "{found:?}");
        // It took half as long as expected, which the small ones know nothing of.
        meter.end((0, 0), at(4600));
        let found = meter.progress(at(4600));
        assert!(
            found.left.unwrap().abs_diff(Duration::from_millis(900)) < Duration::from_millis(1)
        );
        for number in 1..10 {
            meter.begin((1, number), at(4600));
            meter.end((1, number), at(4700));
        }
        let found = meter.progress(at(5500));
        assert_eq!((found.done, found.part, found.left), (11, 1.0, Some(Duration::ZERO)));
        assert_eq!(found.running, "");
    }

    #[test]
    fn one_long_run_bounds_what_many_threads_can_save() {
        let groups = [group("a", SchemeKind::None, 1.0, 1), group("b", SchemeKind::None, 100.0, 1)];
        let mut meter = Meter::new(&groups, 64);
        let start = Instant::now();
        meter.begin((0, 0), start);
        meter.end((0, 0), start + Duration::from_secs(1));
        let left = meter.progress(start + Duration::from_secs(1)).left.unwrap();
        assert_eq!(left.as_secs(), 100);
    }

    #[test]
    fn what_takes_long_costs_much() {
        let named = |name: &str| super::super::named(name).unwrap();
        let (spread, overhead) = (named("spread"), named("overhead"));
        assert!(cost(&overhead, SchemeKind::Escrow) > 1000.0 * cost(&spread, SchemeKind::Escrow));
        assert!(cost(&spread, SchemeKind::Escrow) > cost(&spread, SchemeKind::Static));
    }
}
