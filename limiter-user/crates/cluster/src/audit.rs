//! Whether all hosts together let more through than a limit of the cluster allows: counted, not believed.
//!
//! Each host tells all others how many packets it has let through of the sources that use their limits
//! most: numbers that only grow, so that what is lost or comes twice does no harm. Each adds up what all have
//! let through in the last seconds, and compares that with what one bucket of the whole limit would have:
//! burst + rate · T. T reaches from before the first count of any host to after the last one, so an answer
//! above 1 says that the limit was exceeded, whatever the network does; while it is kept, the answer is a
//! little below what was used of it. A source is judged by the hosts that tell of it.
//!
//! Limits in bytes are not judged: a bucket counts the bytes that were offered, not those that passed. Nor is
//! what passes below the gates.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::wire::MAX_OPAQUE;
use super::wire::bytes::Malformed;
use super::{HostId, Moment};

/// How often hosts tell.
pub const PERIOD: Duration = Duration::from_secs(2);

/// Over how long a time it is judged.
pub const WINDOW: Duration = Duration::from_secs(10);

/// What a packet may take from the count that it tells to who hears it; more is no overage, as it makes the
/// time too short only if delays shrink by as much meanwhile.
const SLACK: Duration = Duration::from_millis(500);

/// Sources that a host tells of, at most.
pub const MAX_REPORTED: usize = 40;

/// Sources that a host counts, at most, and for how long after they have sent something.
const MAX_COUNTED: usize = 4096;
const IDLE: Duration = Duration::from_secs(30);

/// Hosts that are heard, at most.
const MAX_HOSTS: usize = 1024;

/// Which form it has.
const FORM: u8 = 1;

/// A limit and a source under it, by hashes that are the same on all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The limit.
    pub limit: u64,
    /// The source.
    pub source: u64,
}

/// What a host tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterReport {
    /// Which run of the host it is. In another one it counts from 0 again.
    pub run: u64,
    /// Later in each message.
    pub number: u64,
    /// Packets that it has let through since it counts them.
    pub passed: Vec<(Key, u64)>,
}

impl CounterReport {
    /// As it is sent.
    pub fn bytes(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![FORM]).unwrap_or_default()
    }

    /// Reads it.
    ///
    /// # Errors
    /// If it is none.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let (&FORM, bytes) = bytes.split_first().ok_or(Malformed)? else { return Err(Malformed) };
        let told: Self = postcard::from_bytes(bytes).map_err(|_| Malformed)?;
        if told.passed.len() > MAX_REPORTED { Err(Malformed) } else { Ok(told) }
    }
}

const _: () = assert!(1 + 10 + 10 + 1 + MAX_REPORTED * 30 <= 2 * MAX_OPAQUE);

/// What a host sees of a source at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Whose it is.
    pub key: Key,
    /// Packets that its bucket has let through.
    pub passed: u64,
    /// Which bucket that is: since when the source has it.
    pub since: u64,
    /// The limit's rate, packets per second.
    pub rate: f64,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    passed: u64,
    since: u64,
    /// Since it is counted.
    sum: u64,
    /// Of that, since the last message, as a part of what the limit allows in a second.
    fresh: f64,
    at: Moment,
}

/// Counts what this host lets through.
#[derive(Clone, Debug, Default)]
pub struct Counter {
    run: u64,
    number: u64,
    counted: BTreeMap<Key, Counted>,
}

impl Counter {
    /// Of a run with this random number.
    pub fn new(run: u64) -> Self {
        Self { run, ..Self::default() }
    }

    /// Which sources are counted.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.counted.keys().copied()
    }

    /// Notes what a bucket has let through.
    pub fn look(&mut self, now: Moment, seen: Observation) {
        let Observation { key, passed, since, rate } = seen;
        if let Some(counted) = self.counted.get_mut(&key) {
            // Another bucket begins at nothing.
            let same = counted.since == since && passed >= counted.passed;
            let more = if same { passed - counted.passed } else { passed };
            (counted.passed, counted.since) = (passed, since);
            counted.sum = counted.sum.saturating_add(more);
            counted.fresh += more as f64 / rate.max(1e-9);
            if more > 0 {
                counted.at = now;
            }
        } else if self.counted.len() < MAX_COUNTED {
            // What it has let through before is nobody's concern any more.
            let counted = Counted { passed, since, sum: 0, fresh: 0.0, at: now };
            self.counted.insert(key, counted);
        }
    }

    /// What to tell the others: the sources that have used the most of their limits lately.
    pub fn tell(&mut self, now: Moment) -> CounterReport {
        self.counted.retain(|_, counted| now.since(counted.at) < IDLE);
        self.number += 1;
        let mut most: Vec<_> = self.counted.iter().collect();
        most.sort_by(|(key, a), (other, b)| b.fresh.total_cmp(&a.fresh).then(key.cmp(other)));
        let passed =
            most.iter().take(MAX_REPORTED).map(|(key, counted)| (**key, counted.sum)).collect();
        for counted in self.counted.values_mut() {
            // Not to nothing: a source at the edge of the forty would be told of in turns, and never judged.
            counted.fresh /= 2.0;
        }
        CounterReport { run: self.run, number: self.number, passed }
    }
}

#[derive(Clone, Debug)]
struct Sample {
    at: Moment,
    number: u64,
    passed: BTreeMap<Key, u64>,
}

#[derive(Clone, Debug, Default)]
struct Host {
    run: u64,
    samples: VecDeque<Sample>,
}

/// What a limit allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowed {
    /// Packets per second.
    pub rate: f64,
    /// Packets at once.
    pub burst: f64,
}

/// What was found of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Of the source that used most: what passed on all hosts, over what one bucket would have let through.
    pub ratio: f64,
    /// Packets of it that passed.
    pub passed: u64,
    /// In how long a time at the most.
    pub seconds: f64,
}

/// Adds up what all hosts let through.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    hosts: BTreeMap<HostId, Host>,
}

impl Audit {
    /// A host, which may be this one, has told something.
    pub fn hear(&mut self, now: Moment, from: HostId, told: CounterReport) {
        if !self.hosts.contains_key(&from) && self.hosts.len() >= MAX_HOSTS {
            return;
        }
        let host = self.hosts.entry(from).or_default();
        // Its counts begin at nothing again: a difference to the former ones would mean nothing.
        if host.run != told.run {
            *host = Host { run: told.run, samples: VecDeque::new() };
        }
        if host.samples.back().is_some_and(|last| told.number <= last.number) {
            return;
        }
        let passed = told.passed.into_iter().collect();
        host.samples.push_back(Sample { at: now, number: told.number, passed });
        let old = |sample: &Sample| now.since(sample.at) > WINDOW;
        // A host tells every two seconds; more than that is a fault or a lie, and takes no memory.
        while host.samples.len() > 16 || host.samples.front().is_some_and(old) {
            host.samples.pop_front();
        }
    }

    /// Hosts that say nothing are forgotten.
    pub fn forget_old(&mut self, now: Moment) {
        self.hosts.retain(|_, host| {
            host.samples.back().is_some_and(|last| now.since(last.at) < 2 * WINDOW)
        });
    }

    /// What was used of each of these limits in the last [`WINDOW`].
    pub fn judge(&self, now: Moment, limits: &BTreeMap<u64, Allowed>) -> BTreeMap<u64, Found> {
        let mut sums: BTreeMap<Key, u64> = BTreeMap::new();
        let mut span: Option<(Moment, Moment)> = None;
        for host in self.hosts.values() {
            let recent = host.samples.iter().filter(|sample| now.since(sample.at) <= WINDOW);
            let (mut first, mut last): (BTreeMap<Key, u64>, BTreeMap<Key, u64>) =
                Default::default();
            for sample in recent {
                let (from, to) = span.unwrap_or((sample.at, sample.at));
                span = Some((from.min(sample.at), to.max(sample.at)));
                for (key, passed) in &sample.passed {
                    first.entry(*key).or_insert(*passed);
                    last.insert(*key, *passed);
                }
            }
            for (key, passed) in last {
                // What it had let through before the window began is not of the window.
                let before = first.get(&key).copied().unwrap_or(passed);
                let sum = sums.entry(key).or_default();
                *sum = sum.saturating_add(passed.saturating_sub(before));
            }
        }
        let Some((from, to)) = span else { return BTreeMap::new() };
        // One span for all hosts, the longest: too long a T only lowers the ratio, so above 1 means exceeded.
        let seconds = (to.since(from) + SLACK).as_secs_f64();
        let mut found: BTreeMap<u64, Found> = BTreeMap::new();
        for (key, passed) in sums {
            let Some(allowed) = limits.get(&key.limit) else { continue };
            let ratio = passed as f64 / (allowed.burst + allowed.rate * seconds).max(1e-9);
            let worst = found.entry(key.limit).or_insert(Found { ratio, passed, seconds });
            if ratio > worst.ratio {
                (worst.ratio, worst.passed) = (ratio, passed);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::SmallRng;

    use super::*;

    const KEY: Key = Key { limit: 7, source: 9 };
    const ALLOWED: Allowed = Allowed { rate: 1000.0, burst: 1200.0 };

    /// `hosts` hosts that each let through a part of the whole that moves at random, or each all of it.
    /// Returns the worst ratio that any of them found.
    fn world(seed: u64, hosts: usize, shared: bool, loss: f64, delay_ms: u64) -> f64 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut counters: Vec<_> = (0..hosts as u64).map(Counter::new).collect();
        let mut audits = vec![Audit::default(); hosts];
        let mut passed = vec![0.0_f64; hosts];
        let mut network: Vec<(u64, usize, usize, CounterReport)> = Vec::new();
        let limits = BTreeMap::from([(KEY.limit, ALLOWED)]);
        let (mut worst, mut who) = (0.0_f64, 0);
        for ms in 0..40_000_u64 {
            // A full burst at once, and then the rate: the most that one bucket lets through.
            let tokens = 1.0 + if ms == 9_000 { ALLOWED.burst } else { 0.0 };
            if ms % 700 == 0 {
                who = random.random_range(0..hosts);
            }
            for (host, passed) in passed.iter_mut().enumerate() {
                *passed += if shared && host != who { 0.0 } else { tokens };
            }
            for host in 0..hosts {
                let now = Moment(ms * 1_000_000);
                if ms % 100 == 0 {
                    let seen = Observation {
                        key: KEY,
                        passed: passed[host] as u64,
                        since: 1,
                        rate: 1000.0,
                    };
                    counters[host].look(now, seen);
                }
                if ms % 2000 == 137 * host as u64 % 2000 {
                    let told = counters[host].tell(now);
                    for to in 0..hosts {
                        let delay = if to == host { 0 } else { random.random_range(0..=delay_ms) };
                        if to == host || !random.random_bool(loss) {
                            network.push((ms + delay, host, to, told.clone()));
                        }
                    }
                    let found = audits[host].judge(now, &limits);
                    worst = found.values().map(|found| found.ratio).fold(worst, f64::max);
                }
            }
            network.retain(|(at, from, to, told)| {
                if *at <= ms {
                    audits[*to].hear(Moment(ms * 1_000_000), HostId(*from as u64), told.clone());
                }
                *at > ms
            });
        }
        worst
    }

    #[test]
    fn hosts_that_share_nothing_are_found_and_those_that_share_are_not() {
        let [shared, apart] = [true, false].map(|shared| world(1, 3, shared, 0.0, 5));
        println!("shared: {shared:.3}, each by itself: {apart:.3}");
        assert!((0.7..=1.0).contains(&shared) && apart > 1.5, "{shared} {apart}");
    }

    #[test]
    fn a_bucket_that_is_new_a_restart_and_what_comes_twice_count_once() {
        let mut counter = Counter::new(1);
        let seen = |passed, since| Observation { key: KEY, passed, since, rate: 10.0 };
        let now = Moment(1);
        counter.look(now, seen(500, 1));
        counter.look(now, seen(520, 1));
        counter.look(now, seen(5, 2));
        let told = counter.tell(now);
        assert_eq!(told.passed, [(KEY, 25)]);
        assert_eq!(CounterReport::read(&told.bytes()).unwrap(), told);
        assert!(counter.tell(now.after(2 * IDLE)).passed.is_empty());
        let mut audit = Audit::default();
        let limits = BTreeMap::from([(KEY.limit, Allowed { rate: 1.0, burst: 1.0 })]);
        let tell = |run, number, passed| CounterReport { run, number, passed: vec![(KEY, passed)] };
        for told in [tell(1, 1, 10), tell(1, 2, 20), tell(1, 2, 20), tell(1, 1, 10), tell(1, 3, 25)]
        {
            audit.hear(now, HostId(1), told);
        }
        assert_eq!(audit.judge(now, &limits)[&KEY.limit].passed, 15);
        audit.hear(now, HostId(1), tell(2, 1, 3));
        audit.hear(now, HostId(1), tell(2, 2, 4));
        assert_eq!(audit.judge(now, &limits)[&KEY.limit].passed, 1);
        assert!(audit.judge(now.after(2 * WINDOW), &limits).is_empty());
        audit.forget_old(now.after(2 * WINDOW));
        assert!(audit.hosts.is_empty());
    }

    #[test]
    fn those_that_use_most_of_their_limits_are_told_and_fit_into_a_packet() {
        let mut counter = Counter::new(u64::MAX);
        let now = Moment(1);
        for source in 0..10_000_u64 {
            let key = Key { limit: u64::MAX, source: u64::MAX - source };
            counter.look(now, Observation { key, passed: 0, since: 1, rate: 10.0 });
            counter.look(now, Observation { key, passed: source << 40, since: 1, rate: 10.0 });
        }
        let told = counter.tell(now);
        assert_eq!((told.passed.len(), counter.counted.len()), (MAX_REPORTED, MAX_COUNTED));
        assert_eq!(told.passed[0].1, (MAX_COUNTED as u64 - 1) << 40);
        assert!(told.bytes().len() <= MAX_OPAQUE, "{}", told.bytes().len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn nobody_is_accused_wrongly(
            seed: u64,
            hosts in 1usize..6,
            loss in 0.0..0.5f64,
            delay_ms in 0u64..500,
        ) {
            let worst = world(seed, hosts, true, loss, delay_ms);
            prop_assert!(worst <= 1.0, "{worst}");
        }

        #[test]
        fn bytes_of_others_do_no_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            byte: u8,
        ) {
            let _ = CounterReport::read(&bytes);
            let mut good = CounterReport { run: 1, number: 2, passed: vec![(KEY, 3); MAX_REPORTED] }.bytes();
            let at = at.index(good.len());
            good[at] = byte;
            if let Ok(told) = CounterReport::read(&good) {
                prop_assert!(told.passed.len() <= MAX_REPORTED);
                let mut audit = Audit::default();
                audit.hear(Moment(5), HostId(1), told);
                audit.judge(Moment(5), &BTreeMap::from([(KEY.limit, ALLOWED)]));
            }
        }
    }
}
