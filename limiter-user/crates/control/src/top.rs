//! The heaviest sources, or destinations, and how fast they are at present.
//!
//! A look at all sources reads nothing but their counts. It finds the heaviest by everything they can
//! be sorted by, whose views are taken then, and keeps the counts for the rates of a later look. While
//! somebody watches, there is one look a second for all who do, or fewer where there are so many sources
//! that looks would need more than a hundredth of a CPU; else there is none. What the sources that were
//! found have sent is read whenever somebody asks.

use std::cmp::Reverse;
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use limiter_common::gate::MAX_GATE;

use super::plane::{Plane, sample};
use super::rules::Rules;
use super::scan::{RATE_INTERVAL, Scan, Snapshot, Snapshots, weight};
use api::{Average, TopEntry, TopReport};
use model::source::{Member, Source};
use model::{
    rollup::Recent,
    traffic::{Sort, Totals, Whose},
};
use telemetry::Sample;

/// For so long after somebody has watched, there are looks.
const WATCHED: Duration = Duration::from_millis(2500);

/// A look comes so long after the one before at the least, and at the most.
const PERIOD: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3);

/// A look comes after so many times what the one before has taken.
const SHARE: u32 = 100;

/// What the clock that calls for looks may be off by.
const SLACK: Duration = Duration::from_millis(200);

/// A look finds so many at the least, so that it serves others too.
const AT_LEAST: usize = 64;

/// What the latest look has found.
struct Latest {
    at: Instant,
    /// When the next one is due, from its beginning on.
    next: Duration,
    n: usize,
    tracked: u64,
    /// Whether it knew rates, by which it told sources apart that weigh the same.
    has_rates: bool,
    buckets: [Vec<usize>; Sort::ALL.len()],
}

/// With fewer sources there is a look each second.
const MANY: u64 = 250_000;

/// How long after the beginning of a look at so many sources, which took `cost`, the next one is due.
fn period(tracked: u64, cost: Duration) -> Duration {
    let share = if tracked < MANY { Duration::ZERO } else { cost.saturating_mul(SHARE) };
    share.clamp(*PERIOD.start(), *PERIOD.end())
}

/// What is remembered while somebody looks.
pub struct Top {
    whose: Whose,
    looks: Snapshots,
    latest: Option<Latest>,
    /// When somebody watched last, and how many sources were asked for since somebody does.
    watched: Option<(Instant, usize)>,
}

impl Top {
    /// Nothing yet, of sources or of destinations.
    pub(super) fn new(whose: Whose) -> Self {
        Self { whose, looks: Snapshots::default(), latest: None, watched: None }
    }

    /// Frees counts that nobody will compare with.
    fn forget_old(&mut self) {
        self.looks.forget_old();
        self.latest.take_if(|latest| latest.at.elapsed() > latest.next + SLACK);
        self.watched.take_if(|(at, _)| at.elapsed() > WATCHED);
    }

    /// How long to wait before [`Top::watched`] can tell rates, if it cannot yet; takes the counts to compare
    /// with when there are none.
    pub fn prepare(&mut self, plane: &dyn Plane) -> Option<Duration> {
        self.forget_old();
        if self.looks.earlier(Instant::now()).is_some() {
            return None;
        }
        if self.looks.latest().is_none() {
            self.look(plane, AT_LEAST);
        }
        let latest = self.looks.latest()?;
        RATE_INTERVAL.checked_sub(latest.at.elapsed()).filter(|wait| !wait.is_zero())
    }

    /// Looks at all sources, for the `n` heaviest.
    fn look(&mut self, plane: &dyn Plane, n: usize) {
        let (now, now_ns) = (Instant::now(), plane.monotonic_ns());
        let mut kept = self.looks.room(now, now_ns, plane.buckets());
        if let Some(look) = &mut kept {
            look.counters = plane.counters().ok();
        }
        let earlier = self.looks.earlier(now);
        let has_rates = earlier.is_some();
        let mut scan = Scan::new(n, earlier, kept);
        plane.scan(self.whose, &mut scan);
        let found = scan.found();
        self.looks.keep(found.kept);
        let (tracked, buckets) = (found.tracked, found.buckets);
        let next = period(tracked, now.elapsed());
        self.latest = Some(Latest { at: now, next, n, tracked, has_rates, buckets });
    }

    /// The look that is due, if somebody watches. To be called each second.
    pub(super) fn look_if_watched(&mut self, plane: &dyn Plane) {
        self.forget_old();
        let is_due = |latest: &Latest| {
            latest.next == *PERIOD.start() || latest.at.elapsed() + SLACK >= latest.next
        };
        if let Some((_, n)) = self.watched
            && self.latest.as_ref().is_none_or(is_due)
        {
            self.look(plane, n);
        }
    }

    /// The `n` heaviest sources at the latest look, which is a second old, of a million sources up to
    /// three. Whoever calls this each second shares that look with all others who do; it costs a few
    /// microseconds for each source that is listed. Rates are as of [`Top::now`].
    pub fn watched(&mut self, rules: &Rules, n: usize, sort: Sort) -> TopReport {
        self.watch(&*rules.plane, n);
        self.heaviest(rules, n, sort)
    }

    /// Somebody watches the `n` heaviest: see [`Top::watched`].
    pub(super) fn watch(&mut self, plane: &dyn Plane, n: usize) {
        self.forget_old();
        let wanted = self.watched.map_or(AT_LEAST, |(_, wanted)| wanted).max(n);
        self.watched = Some((Instant::now(), wanted));
        let rates = self.looks.earlier(Instant::now()).is_some();
        let serves = |latest: &Latest| latest.n >= n && (latest.has_rates || !rates);
        if !self.latest.as_ref().is_some_and(serves) {
            self.look(plane, wanted);
        }
    }

    /// The `n` heaviest sources at present. Their rates are those since an earlier look of the last five
    /// seconds, to which [`Top::prepare`] sees; without one they are 0.
    pub fn now(&mut self, rules: &Rules, n: usize, sort: Sort) -> TopReport {
        self.look_now(&*rules.plane, n);
        self.heaviest(rules, n, sort)
    }

    /// Looks at present: see [`Top::now`].
    pub(super) fn look_now(&mut self, plane: &dyn Plane, n: usize) {
        self.forget_old();
        self.look(plane, n.max(AT_LEAST));
    }

    /// The sources that have these buckets, with their rates, the heaviest first.
    pub(super) fn looked_at(
        &self,
        plane: &dyn Plane,
        buckets: &[usize],
        sort: Sort,
    ) -> Vec<(Source, Average)> {
        let now = Instant::now();
        let earlier = self.looks.earlier(now);
        let mut heaviest = Vec::with_capacity(buckets.len());
        plane.sources_at(buckets, &mut |bucket, counts, source| {
            let average = |look: &Snapshot| {
                let offered = look.since(bucket, &counts);
                (offered, Average::new(offered, look.at.elapsed()))
            };
            let (offered, average) = earlier.map(average).unwrap_or_default();
            heaviest.push((Reverse(weight(sort, &counts, offered)), source, average));
        });
        heaviest.sort_unstable_by_key(|(weight, source, _)| (*weight, source.source));
        heaviest.into_iter().map(|(_, source, average)| (source, average)).collect()
    }

    /// The buckets of the `n` heaviest at the latest look, and how many sources had one.
    pub(super) fn latest(&self, n: usize, sort: Sort) -> (&[usize], u64) {
        let Some(latest) = &self.latest else { return (&[], 0) };
        let buckets = &latest.buckets[sort as usize];
        (&buckets[..n.min(buckets.len())], latest.tracked)
    }

    fn heaviest(&self, rules: &Rules, n: usize, sort: Sort) -> TopReport {
        let latest = self.latest.as_ref();
        let heaviest = self.looked_at(&*rules.plane, self.latest(n, sort).0, sort);
        let entries = heaviest.iter().map(|(source, average)| {
            let gate = source.limit.as_ref().map_or(MAX_GATE, |limit| rules.plane.gate_of(limit));
            let mut entry = TopEntry::new(source, gate, *average);
            if let Some(limit) = entry.limit.as_mut().filter(|_| !source.is_group) {
                rules.complete(limit);
            }
            entry
        });
        let sources = entries.collect();
        let sample = sample(&*rules.plane).ok();
        TopReport {
            sources,
            tracked: latest.map_or(0, |latest| latest.tracked),
            age_seconds: latest.map_or(0.0, |latest| latest.at.elapsed().as_secs_f64()),
            totals: sample.as_ref().and_then(|sample| self.totals(sample)),
            distinct: sample.and_then(|sample| sample.distinct),
        }
    }

    /// What passed and what was dropped until `now` since the look that rates are told by.
    pub(super) fn totals(&self, now: &Sample) -> Option<Totals> {
        let look = self.looks.earlier(Instant::now())?;
        let before = Sample { counters: look.counters?, ..now.clone() };
        Some(Totals::new(before.verdicts(), now.verdicts(), look.at.elapsed().as_secs_f64()))
    }

    /// Visits the sources that have buckets of these numbers: a few ten thousand at once, so that others
    /// get their turn. `None` instead of what each has offered since an earlier look if there is none.
    pub fn members(
        &self,
        plane: &dyn Plane,
        mut buckets: Range<usize>,
        visit: &mut dyn FnMut(Member, Option<Recent>),
    ) {
        let earlier = self.looks.earlier(Instant::now());
        let time = earlier.map(|look| look.at.elapsed());
        plane.members(&mut buckets, &mut |bucket, member| {
            let offered = earlier.map(|look| look.since(bucket, &member.counts));
            visit(member, offered.zip(time));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_take_a_hundredth_of_a_cpu_at_the_most() {
        let ms = Duration::from_millis;
        let periods =
            |tracked| [0, 10, 25, 30, 400].map(|cost| period(tracked, ms(cost)).as_millis());
        assert_eq!(periods(1_000_000), [1000, 1000, 2500, 3000, 3000]);
        assert_eq!(periods(1000), [1000; 5]);
    }
}
