//! Whether a limit was kept, and how much of it was used: the same judge for all modes.
//!
//! A decision is made at some time between its begin and its end. What is counted here was admitted for certain within an
//! interval, so a limit that is found broken is.
//!
//! Where answers change from those who keep a limit to `on_error`, and back, each of both has its burst. So a second with
//! such a change may have one more, and no other second. While a host answers from its floor, it may have that more.

use std::time::Duration;

use crate::{
    plan::{HOSTS, Limit, Mode},
    sample::Sample,
};

/// What is promised: no more than `burst + rate · T` in any interval T.
#[derive(Clone, Copy, Debug)]
struct Promise {
    burst: f64,
    /// Units a second.
    rate: f64,
    /// What is more at each change of who answers.
    change: f64,
    /// Units a second that hosts admit by themselves beside the others, while `on_error` answers.
    floors: f64,
}

/// The floor of a host, of its part in the limit.
const FLOOR: f64 = 1.0 / 20.0;

/// A second, ns.
const SECOND: u64 = 1_000_000_000;

/// The part of a burst that each host with `synced` may have admitted and not told yet, if a rule says nothing else.
const BUDGET: f64 = 0.1;

/// How far from a change a second may have one more burst, ns: what waits for the store in vain was asked before.
const NEAR: u64 = 50_000_000;

/// Answers by `on_error` with less time between them, ns, are one change to it and one back.
const PAUSE: u64 = 500_000_000;

impl Promise {
    /// Of a mode.
    fn new(mode: Mode, limit: Limit, has_floors: bool) -> Self {
        let budget = if mode == Mode::Synced { BUDGET * HOSTS as f64 } else { 0.0 };
        // The cluster's own promise has room for floors.
        let floors = if has_floors && mode.needs_store() { FLOOR } else { 0.0 };
        Self {
            burst: limit.burst * (1.0 + budget),
            rate: limit.rate,
            change: limit.burst,
            floors: limit.rate * floors,
        }
    }

    /// That for a whole run, in which `on_error` has answered at times.
    fn with(self, has_episodes: bool) -> Self {
        match has_episodes {
            false => self,
            true => Self { burst: self.burst + self.change, rate: self.rate + self.floors, ..self },
        }
    }

    /// By what part of it the worst second is more than this, 0 if none is.
    fn worst_second(self, admitted: &[(u64, u64)], episodes: &[Episode]) -> f64 {
        let over = |(begin, count): (u64, usize)| {
            let second = begin.saturating_sub(NEAR)..=begin + SECOND + NEAR;
            let changes = |(first, last): &Episode| second.contains(first) || second.contains(last);
            let overlaps =
                |(first, last): &Episode| first <= second.end() && last >= second.start();
            let change = if episodes.iter().any(changes) { self.change } else { 0.0 };
            let floors = if episodes.iter().any(overlaps) { self.floors } else { 0.0 };
            count as f64 / (self.burst + self.rate + change + floors) - 1.0
        };
        seconds(admitted).map(over).fold(0.0, f64::max)
    }

    /// Units beyond this in the worst interval of any length, at the least.
    fn excess(self, admitted: &[(u64, u64)]) -> f64 {
        // What has ended at the end, less what has begun before the begin, is within for certain.
        let (begun, ended) = sorted(admitted);
        let earned = |time: u64| self.rate * (time - begun[0]) as f64 / SECOND as f64;
        let (mut least, mut most, mut at) = (f64::INFINITY, 0.0_f64, 0);
        for (count, &end) in (1..).zip(&ended) {
            while at < begun.len() && begun[at] <= end {
                least = least.min(at as f64 - earned(begun[at]));
                at += 1;
            }
            most = most.max(f64::from(count) - earned(end) - least - self.burst);
        }
        most
    }
}

/// Begins and ends, each in their order.
fn sorted(admitted: &[(u64, u64)]) -> (Vec<u64>, Vec<u64>) {
    let (mut begun, mut ended): (Vec<_>, Vec<_>) = admitted.iter().copied().unzip();
    begun.sort_unstable();
    ended.sort_unstable();
    (begun, ended)
}

/// When each second begins that begins with a decision, and how many were admitted in it for certain.
fn seconds(admitted: &[(u64, u64)]) -> impl Iterator<Item = (u64, usize)> {
    // What takes longer is within no second for certain.
    let short: Vec<_> =
        admitted.iter().copied().filter(|(begun, ended)| ended - begun <= SECOND).collect();
    let (begun, ended) = sorted(&short);
    let mut by_end = 0;
    begun.into_iter().enumerate().map(move |(before, begin)| {
        while ended.get(by_end).is_some_and(|&end| end <= begin + SECOND) {
            by_end += 1;
        }
        // Of those that have ended by then, as many as have begun before are not counted.
        (begin, by_end.saturating_sub(before))
    })
}

/// A time in which `on_error` has answered on a host.
type Episode = (u64, u64);

/// When that was so.
fn episodes(samples: &[Sample]) -> Vec<Episode> {
    let alone = samples.iter().filter(|sample| sample.alone);
    let mut alone: Vec<_> = alone.map(|sample| (sample.begun, sample.ended())).collect();
    alone.sort_unstable();
    let mut episodes: Vec<Episode> = Vec::new();
    for (begun, ended) in alone {
        match episodes.last_mut() {
            Some((_, last)) if *last + PAUSE >= begun => *last = ended.max(*last),
            _ => episodes.push((begun, ended)),
        }
    }
    episodes
}

/// What the judge finds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    /// By what part of its promise the worst second of any key is more.
    pub(crate) worst_overage: f64,
    /// Units beyond the promise in the worst interval of any length; with one more burst, and floors, if `on_error` has
    /// answered.
    pub(crate) worst_excess: f64,
    /// What part of the limits was used.
    pub(crate) utilisation: f64,
    /// How often `on_error` has begun to answer on a host.
    pub(crate) episodes: usize,
}

/// What is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) mode: Mode,
    pub(crate) limit: Limit,
    /// Whether `on_error` answers from a host's floor.
    pub(crate) has_floors: bool,
    /// Keys that are judged.
    pub(crate) tracked: u32,
    /// Hosts on which there is demand for them.
    pub(crate) hosts: usize,
    /// From when on they are beyond their limit and have used their burst, ns, and until when.
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Case {
    /// Judges what hosts have decided.
    pub(crate) fn judge(&self, hosts: &[Vec<Sample>]) -> Verdict {
        let promise = Promise::new(self.mode, self.limit, self.has_floors);
        let episodes: Vec<Episode> = hosts.iter().flat_map(|samples| episodes(samples)).collect();
        let whole = promise.with(!episodes.is_empty());
        let mut verdict = Verdict { episodes: episodes.len(), ..Verdict::default() };
        let mut used = 0;
        for key in 0..self.tracked {
            let mut of_hosts: Vec<Vec<(u64, u64)>> =
                hosts.iter().map(|samples| admitted(samples, key)).collect();
            let within = |(_, ended): &&(u64, u64)| (self.from..self.to).contains(ended);
            used += of_hosts.iter().flatten().filter(within).count();
            if self.mode != Mode::Host {
                of_hosts = vec![of_hosts.concat()];
            }
            for times in of_hosts.iter().filter(|times| !times.is_empty()) {
                let over = promise.worst_second(times, &episodes);
                verdict.worst_overage = verdict.worst_overage.max(over);
                verdict.worst_excess = verdict.worst_excess.max(whole.excess(times));
            }
        }
        let limits =
            f64::from(self.tracked) * if self.mode == Mode::Host { self.hosts as f64 } else { 1.0 };
        let seconds = Duration::from_nanos(self.to - self.from).as_secs_f64();
        verdict.utilisation = used as f64 / (limits * self.limit.rate * seconds);
        verdict
    }
}

/// When decisions began and ended that have admitted a key.
fn admitted(samples: &[Sample], key: u32) -> Vec<(u64, u64)> {
    let its = samples.iter().filter(|sample| sample.admitted);
    let its = its.filter(|sample| sample.key.is_some_and(|found| u32::from(found) == key));
    its.map(|sample| (sample.begun, sample.ended())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TIGHT;

    const MS: u64 = 1_000_000;
    const PROMISE: Promise = Promise { burst: 10.0, rate: 100.0, change: 10.0, floors: 5.0 };

    fn every(ms: u64, count: u64, from: u64, took: u64) -> Vec<(u64, u64)> {
        (0..count).map(|at| from + at * ms).map(|at| (at * MS, (at + took) * MS)).collect()
    }

    fn most_in_a_second(admitted: &[(u64, u64)]) -> usize {
        seconds(admitted).map(|(_, count)| count).max().unwrap_or(0)
    }

    #[test]
    fn the_worst_second_is_found_wherever_it_begins() {
        let promise = PROMISE;
        // 100 a second keep to it, with ten at once also.
        let mut all = every(10, 500, 3, 0);
        let over = |all: &[_], episode: &[u64]| {
            let episode: Vec<_> = episode.iter().map(|ms| ms * MS).collect();
            promise.worst_second(
                all,
                episode.as_chunks().0.iter().map(|[a, b]| (*a, *b)).collect::<Vec<_>>().as_slice(),
            )
        };
        assert_eq!(over(&all, &[]), 0.0);
        all.extend([(2_500 * MS, 2_500 * MS); 10]);
        assert_eq!(most_in_a_second(&all), 111);
        all.extend([(2_600 * MS, 2_600 * MS); 21]);
        assert!((over(&all, &[]) - 0.2).abs() < 1e-9);
        // A change has a burst more where it is, and not elsewhere.
        assert!((over(&all, &[2_000, 3_000]) - (132.0 / 125.0 - 1.0)).abs() < 1e-9);
        assert!((over(&all, &[1_400, 3_700]) - (132.0 / 115.0 - 1.0)).abs() < 1e-9);
        assert!((over(&all, &[100, 1_400]) - 0.2).abs() < 1e-9);
        assert!((promise.excess(&all) - 22.0).abs() < 1.1, "{}", promise.excess(&all));
    }

    #[test]
    fn what_may_have_been_decided_at_another_time_is_not_counted() {
        let promise = PROMISE;
        // Thirty that were asked together, and each may have been decided at any time of 2 s.
        let late: Vec<_> = (0..30).map(|_| (0, 2_000 * MS)).collect();
        assert_eq!((most_in_a_second(&late), promise.excess(&late)), (0, 0.0));
        // Thirty that took 100 ms: within that the limit is 20.
        let slow: Vec<_> = (0..30).map(|_| (0, 100 * MS)).collect();
        assert!((promise.excess(&slow) - 10.0).abs() < 1e-9);
        assert_eq!(promise.worst_second(&slow, &[]), 0.0);
    }

    #[test]
    fn an_excess_of_a_long_interval_is_found() {
        let promise = PROMISE;
        // 125 a second: no second is above 110 by much, and ten seconds are.
        let all = every(8, 1_250, 0, 1);
        assert!((promise.excess(&all) - 240.0).abs() < 2.0, "{}", promise.excess(&all));
        assert!(promise.excess(&every(10, 1_000, 0, 1)).abs() < 1e-9);
    }

    fn samples(times: &[(u64, u64)], key: u16) -> Vec<Sample> {
        let sample = |(begun, ended): &(u64, u64)| Sample {
            begun: *begun,
            took: (ended - begun) as u32,
            key: Some(key),
            admitted: true,
            alone: false,
        };
        times.iter().map(sample).collect()
    }

    #[test]
    fn a_host_alone_has_a_limit_of_its_own_and_all_others_share_one() {
        let case = |mode| Case {
            mode,
            limit: TIGHT,
            has_floors: false,
            tracked: 1,
            hosts: 3,
            from: 2 * SECOND,
            to: 4 * SECOND,
        };
        // 100 a second on each of three hosts, and nothing of another key.
        let hosts: Vec<_> = (0..3).map(|host| samples(&every(10, 400, host, 0), 0)).collect();
        let alone = case(Mode::Host).judge(&hosts);
        assert_eq!((alone.worst_overage, alone.worst_excess, alone.utilisation), (0.0, 0.0, 1.0));
        let strict = case(Mode::Strict).judge(&hosts);
        assert!((strict.utilisation - 3.0).abs() < 1e-9);
        // About 300 in a second, where 130 are promised, and 139 of hosts that tell each other later.
        let near = |one: f64, promise: f64| (one - (301.0 / promise - 1.0)).abs() < 0.02;
        assert!(near(strict.worst_overage, 130.0), "{strict:?}");
        assert!(near(case(Mode::Synced).judge(&hosts).worst_overage, 139.0));
        assert!((strict.worst_excess - 770.0).abs() < 4.0, "{strict:?}");
        let none = case(Mode::Strict).judge(&[samples(&every(10, 400, 0, 0), 7)]);
        assert_eq!(none, Verdict::default());
    }

    #[test]
    fn answers_of_on_error_are_one_episode_while_they_go_on() {
        let mut all = samples(&every(100, 20, 1_000, 3), 0);
        all.extend(samples(&every(100, 5, 9_000, 2), 0));
        all.iter_mut().for_each(|sample| sample.alone = true);
        all.extend(samples(&every(10, 1_000, 0, 1), 0));
        let expected = [(1_000, 2_903), (9_000, 9_402)].map(|(from, to)| (from * MS, to * MS));
        assert_eq!(episodes(&all), expected);
    }
}
