//! The same requests at the same times: the store decides as a host does.

use std::{thread::sleep, time::Duration};

use decide::act::{Act, Standing};
use model::meter::{Choice, Limit, Meter, span};
use tests::Store;

use super::script::{
    Host, MS, Random, SECOND, Script, US, alone, each, future, limit, question, standing,
};

const DAY: Duration = Duration::from_secs(86_400);

/// A key and its limit, on a host and in the store. Two of a name share a bucket.
struct Pair {
    name: String,
    limit: Limit,
}

/// What there was of each kind.
#[derive(Debug, Default)]
struct Seen {
    admitted: u32,
    denied: u32,
    later: u32,
}

fn pairs(limits: impl IntoIterator<Item = Limit>) -> Vec<Pair> {
    let named = |(i, limit): (usize, Limit)| Pair { name: format!("{i}"), limit };
    limits.into_iter().enumerate().map(named).collect()
}

impl Pair {
    /// What is asked: an act and its cost.
    fn request(&self, random: &mut Random) -> (Act, u64) {
        let (act, cost) = (random.act(), random.cost(self.limit.requests));
        // Sub-windows of a host that owe something admit a request for nothing, and say that it has to wait.
        let least = u64::from(self.limit.algorithm == Choice::SubWindows);
        // What costs more than all of a bucket costs a tick more. The store has none for buckets that take so long to fill.
        let is_long = self.limit.algorithm == Choice::TokenBucket && self.limit.window > 50 * DAY;
        let cost = if is_long { cost.min(self.limit.requests) } else { cost };
        (act, cost.max(least))
    }

    /// Whether a host says the same.
    fn check(&self, host: &Host, (act, cost): (Act, u64), now: Duration, ours: Standing) {
        let theirs = host.ask(&self.name, &self.limit, act, cost, now);
        // The store tells whole µs, none too few.
        let us =
            |standing: Standing| standing.wait.map(|wait| span(wait).as_nanos().div_ceil(1_000));
        let told = |standing: Standing| (standing.admitted, standing.remaining, us(standing));
        let request = format!("{act:?} {cost} of {} at {now:?}", self.limit);
        assert_eq!(told(ours), told(theirs), "{request}: {ours:?}, and a host {theirs:?}");
        if self.limit.algorithm == Choice::TokenBucket {
            let us = |standing: Standing| span(standing.renews).as_nanos().div_ceil(1_000);
            assert_eq!(us(ours), us(theirs), "{request}: {ours:?}, and a host {theirs:?}");
            return;
        }
        // A host's words round up when they end. What the store says is exact: all has room then, and not before.
        let renews = span(ours.renews);
        let remaining = |at| host.ask(&self.name, &self.limit, Act::Peek, 1, at).remaining;
        let capacity = Meter::new(&self.limit).expect("a limit");
        let capacity = capacity.algorithm().expect("an algorithm").capacity();
        assert_eq!(remaining(now + renews), capacity, "{request}: {ours:?}");
        assert!(renews.is_zero() || remaining(now + renews - US) < capacity, "{request}: {ours:?}");
    }
}

/// Asks about all keys at once, each in a decision of its own, at times that `next` sets.
fn run(
    script: &mut Script,
    pairs: &[Pair],
    steps: usize,
    mut next: impl FnMut(&mut Random) -> Option<Duration>,
) -> Seen {
    let (host, mut random, mut seen) = (Host::new(), Random(7), Seen::default());
    for _ in 0..steps {
        let time = next(&mut random);
        let requests: Vec<_> = pairs.iter().map(|pair| pair.request(&mut random)).collect();
        let asked: Vec<_> = pairs
            .iter()
            .zip(&requests)
            .map(|(pair, &(act, cost))| alone(question(&pair.name, &pair.limit, act, cost)))
            .collect();
        let answers = match time {
            Some(now) => script.decide_at(now, &asked),
            None => script.decide(&asked),
        };
        for ((pair, request), answer) in pairs.iter().zip(requests).zip(&answers.all) {
            let (standing, charged) = standing(*answer);
            pair.check(&host, request, answers.now, standing);
            let takes = request.0 == Act::Take && standing.admitted;
            let (act, cost) = request;
            let expected = if takes { cost } else { 0 };
            assert!(
                charged == expected || act == Act::Owe && charged <= cost,
                "{act:?}: {charged}"
            );
            seen.admitted += u32::from(takes);
            seen.denied += u32::from(!standing.admitted);
            seen.later += u32::from(standing.wait.is_some_and(|wait| wait > 0));
        }
    }
    println!("{seen:?}");
    seen
}

#[test]
fn the_store_decides_as_a_host_by_its_own_clock() {
    let limits = [
        limit(Choice::TokenBucket, 7, 100 * MS),
        Limit { burst: Some(1), ..limit(Choice::TokenBucket, 3, 50 * MS) },
        Limit { burst: Some(20), ..limit(Choice::TokenBucket, 1_000, 300 * MS) },
        limit(Choice::FixedWindow, 5, 10 * MS),
        limit(Choice::FixedWindow, 20, 100 * MS),
        limit(Choice::FixedWindow, 300, 300 * MS),
        limit(Choice::SlidingWindow, 4, 20 * MS),
        limit(Choice::SlidingWindow, 20, 100 * MS),
        limit(Choice::SlidingWindow, 500, 300 * MS),
        limit(Choice::SubWindows, 5, 10 * MS),
        Limit { granularity: Some(4), ..limit(Choice::SubWindows, 20, 100 * MS) },
        Limit { granularity: Some(60), ..limit(Choice::SubWindows, 60, 300 * MS) },
        limit(Choice::SlidingLog, 3, 10 * MS),
        limit(Choice::SlidingLog, 20, 100 * MS),
        limit(Choice::SlidingLog, 100, 300 * MS),
    ];
    let store = Store::start();
    let seen = run(&mut Script::new(&store), &pairs(limits), 600, |random| {
        // Most requests come soon after each other, and some when all is as good as new.
        match random.below(40) {
            0 => sleep(Duration::from_millis(50 + random.below(300))),
            1..20 => sleep(Duration::from_micros(random.below(8_000))),
            _ => {}
        }
        None
    });
    assert!(seen.admitted > 2_000 && seen.denied > 1_000 && seen.later > 500, "{seen:?}");
}

/// Steps of a clock about as long as a `window`.
fn steps(random: &mut Random, window: Duration) -> Duration {
    let window = window.as_micros() as u64;
    Duration::from_micros(match random.below(20) {
        0..5 => 0,
        5 => 1,
        6..14 => random.below(window / 10),
        14..17 => window / 10,
        17 => random.below(window),
        18 => window,
        _ => random.below(3 * window),
    })
}

#[test]
fn the_store_decides_as_a_host_at_any_time() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let short = [
        limit(Choice::TokenBucket, 7, SECOND),
        limit(Choice::TokenBucket, 1_000_000, SECOND),
        Limit { burst: Some(1), ..limit(Choice::TokenBucket, 3, SECOND) },
        Limit { burst: Some(300), ..limit(Choice::TokenBucket, 11, SECOND) },
        limit(Choice::FixedWindow, 1, SECOND),
        limit(Choice::FixedWindow, 20, SECOND),
        limit(Choice::FixedWindow, 1_000_000, SECOND / 2),
        limit(Choice::SlidingWindow, 1, SECOND),
        limit(Choice::SlidingWindow, 20, SECOND / 2),
        limit(Choice::SlidingWindow, 511, SECOND / 4),
        limit(Choice::SubWindows, 20, SECOND),
        Limit { granularity: Some(2), ..limit(Choice::SubWindows, 20, SECOND) },
        Limit { granularity: Some(60), ..limit(Choice::SubWindows, 200, SECOND * 6) },
        limit(Choice::SlidingLog, 1, SECOND),
        limit(Choice::SlidingLog, 20, SECOND),
        limit(Choice::SlidingLog, 120, SECOND),
    ];
    let mut now = future() + US * 7;
    let seen = run(&mut script, &pairs(short), 1_500, |random| {
        now += steps(random, SECOND);
        Some(now)
    });
    assert!(seen.admitted > 8_000 && seen.denied > 3_000 && seen.later > 3_000, "{seen:?}");
    assert_eq!(store.ask("FLUSHALL"), "OK");
    script.remembers_since(Duration::ZERO);
    // Near the longest that there can be. Units of whole µs: those of buckets that take longer than seven weeks to fill are
    // rounded up to that. No more units than the store can weigh in µs.
    let long = [
        limit(Choice::TokenBucket, 1_000, 365 * DAY),
        limit(Choice::TokenBucket, 3, 365 * DAY),
        limit(Choice::TokenBucket, 7, 30 * DAY),
        limit(Choice::TokenBucket, 1_000_000, DAY),
        limit(Choice::FixedWindow, 2_000_000, 365 * DAY),
        limit(Choice::SlidingWindow, 100, 365 * DAY),
        limit(Choice::SubWindows, 1_000_000, 360 * DAY),
        limit(Choice::SlidingLog, 20, 365 * DAY),
    ];
    let seen = run(&mut script, &pairs(long), 1_000, |random| {
        now += steps(random, 30 * DAY);
        Some(now)
    });
    assert!(seen.admitted > 2_000 && seen.denied > 1_000 && seen.later > 1_000, "{seen:?}");
}

#[test]
fn a_bucket_is_adopted_by_another_limit_and_owes_more_if_the_clock_goes_back() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    // All of one name: whoever asks next has the others' debts.
    let limits = [(7, 7), (100, 3), (1, 50), (20, 20)].map(|(requests, burst)| Pair {
        name: "one".to_owned(),
        limit: Limit { burst: Some(burst), ..limit(Choice::TokenBucket, requests, SECOND) },
    });
    let mut now = future();
    let seen = run(&mut script, &limits, 3_000, |random| {
        now += steps(random, SECOND);
        if random.below(30) == 0 {
            now -= steps(random, SECOND);
        }
        Some(now)
    });
    assert!(seen.admitted > 1_000 && seen.denied > 1_000, "{seen:?}");
}

#[test]
fn a_clock_that_goes_back_admits_no_more() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    for limit in each(10, SECOND) {
        let bound = Meter::new(&limit).expect("a limit");
        let bound = bound.algorithm().expect("an algorithm").bound();
        let (mut random, mut time, mut behind) = (Random(3), future(), Duration::ZERO);
        let (mut admitted, mut steady) = (Vec::new(), 0);
        for _ in 0..2_000 {
            time += Duration::from_micros(random.below(150_000));
            if random.below(20) == 0 {
                // Step by step, and so that it seems to have stopped.
                behind += Duration::from_micros(random.below(500_000));
            }
            let mut ask = |name, at| {
                let asked = [alone(question(name, &limit, Act::Take, 1))];
                standing(script.decide_at(at, &asked).all[0]).0.admitted
            };
            if ask("behind", time - behind) {
                admitted.push(time);
            }
            steady += usize::from(ask("steady", time));
        }
        // In real time, and not by the clock.
        for (i, &first) in admitted.iter().enumerate() {
            let within = admitted[i..].iter().take_while(|&&at| at - first < SECOND).count();
            assert!(within as u64 <= bound, "{limit}: {within} in a second");
        }
        println!("{limit}: {} admitted, {steady} by a clock that does not", admitted.len());
        assert!((steady / 3..steady).contains(&admitted.len()), "{limit}: {}", admitted.len());
    }
}

#[test]
fn a_window_stands_still_until_the_clock_has_caught_up() {
    let store = Store::start();
    let (mut script, host, mut random) = (Script::with_clock(&store), Host::new(), Random(13));
    let mut now = future();
    let (mut admitted, mut denied) = (0, 0);
    for _ in 0..2_000 {
        now += steps(&mut random, SECOND / 4);
        if random.below(10) == 0 {
            now -= steps(&mut random, SECOND);
        }
        for algorithm in [Choice::FixedWindow, Choice::SlidingWindow] {
            let limit = limit(algorithm, 20, SECOND);
            // On a host what is given back in a window begins it as well. In the store there is nothing to begin with.
            let (act, cost) = if random.below(4) == 0 { (Act::Peek, 3) } else { (Act::Take, 1) };
            let asked = [alone(question(algorithm.name(), &limit, act, cost))];
            let (ours, _) = standing(script.decide_at(now, &asked).all[0]);
            let theirs = host.ask(algorithm.name(), &limit, act, cost, now);
            let told =
                |of: Standing| (of.admitted, of.remaining, of.wait.map(|wait| wait.div_ceil(500)));
            assert_eq!(told(ours), told(theirs), "{act:?} {cost} of {limit} at {now:?}");
            admitted += u32::from(ours.admitted);
            denied += u32::from(!ours.admitted);
        }
    }
    assert!(admitted > 1_000 && denied > 500, "{admitted} {denied}");
}

#[test]
fn a_bucket_that_takes_years_to_fill_has_all_of_its_units() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let (year, now) = (365 * DAY, future());
    for requests in [7, 13, 22, 29, 365, 1_000] {
        let limit = Limit::new(requests, year);
        let name = requests.to_string();
        let take = alone(question(&name, &limit, Act::Take, 1));
        for left in (0..requests).rev() {
            let (ours, charged) =
                standing(script.decide_at(now, std::slice::from_ref(&take)).all[0]);
            assert_eq!((charged, ours.remaining), (1, left), "{limit}");
        }
        let (ours, charged) = standing(script.decide_at(now, &[take]).all[0]);
        // Up to a µs a unit longer than the year's part.
        let (wait, part) = (ours.wait.map(span), year / requests as u32);
        assert!(charged == 0 && wait.is_some_and(|wait| (part..=part + US).contains(&wait)));
        assert!((year..=year + US * requests as u32).contains(&span(ours.renews)), "{ours:?}");
    }
}

/// What a sliding window of any size admits, in whole numbers without an end.
struct Exact {
    limit: u128,
    window: u128,
    index: u128,
    previous: u128,
    current: u128,
}

impl Exact {
    fn room(&mut self, now: Duration) -> u128 {
        let now = now.as_micros();
        let index = now / self.window;
        if index != self.index {
            self.previous = if index == self.index + 1 { self.current } else { 0 };
            (self.index, self.current) = (index, 0);
        }
        let weight = (self.previous * (self.window - now % self.window)).div_ceil(self.window);
        self.limit.saturating_sub(self.current + weight)
    }
}

#[test]
fn a_large_sliding_window_is_exact_or_a_little_strict() {
    // A host has nine bits for the window before. The store has all, until a count times a window has more than 52.
    let (million, max) = (1_000_000, (1 << 31) - 1);
    for (requests, window, most) in
        [(1_000, SECOND, 0), (100_000, SECOND * 60, 0), (million, DAY, 1), (max, 365 * DAY, 2_048)]
    {
        let store = Store::start();
        let mut script = Script::with_clock(&store);
        let limit = limit(Choice::SlidingWindow, requests, window);
        let mut random = Random(5);
        let mut now = future();
        let window = window.as_micros();
        let mut exact = Exact { limit: requests.into(), window, index: 0, previous: 0, current: 0 };
        let (mut strict, mut denied) = (0, 0);
        for _ in 0..1_000 {
            now += steps(&mut random, limit.window);
            let room = exact.room(now);
            let cost = 1 + random.below(requests / 3);
            let asked = alone(question("k", &limit, Act::Take, cost));
            let (ours, charged) = standing(script.decide_at(now, &[asked]).all[0]);
            exact.current += u128::from(charged);
            let left = exact.room(now);
            assert!(u128::from(ours.remaining) <= left, "{limit} at {now:?}: {ours:?} of {left}");
            assert!(left - u128::from(ours.remaining) <= most, "{limit}: {ours:?} of {left}");
            assert!(ours.admitted || u128::from(cost) + most > room, "{limit}: {cost} of {room}");
            strict += u128::from(u128::from(ours.remaining) < left);
            denied += u32::from(!ours.admitted);
            if !ours.admitted {
                // When it says, and not before.
                let wait = span(ours.wait.expect("it is within the limit"));
                let peek = [alone(question("k", &limit, Act::Peek, cost))];
                let mut admits = |at| standing(script.decide_at(at, &peek).all[0]).0.admitted;
                assert!(admits(now + wait) && !admits(now + wait - US), "{limit}: {ours:?}");
            }
        }
        println!("{limit}: {strict} of 1000 are stricter, {denied} are denials");
        assert!(denied > 100 && (most > 0 || strict == 0));
    }
}

#[test]
fn a_sliding_window_weighs_what_no_double_can() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let (requests, window) = ((1 << 31) - 1, 365 * DAY);
    let limit = limit(Choice::SlidingWindow, requests, window);
    let (length, after) = (window.as_micros() as u64, 11_862_450_774_017);
    // All of the window before, times this part of it, is one more than a multiple of its length: rounded, it would be that.
    let product = u128::from(requests) * u128::from(length - after);
    assert_eq!(product % u128::from(length), 1);
    let begin = Duration::from_micros((future().as_micros() as u64).next_multiple_of(length));
    let take = [alone(question("k", &limit, Act::Take, requests))];
    assert_eq!(standing(script.decide_at(begin, &take).all[0]).1, requests);
    let later = begin + window + Duration::from_micros(after);
    let (ours, _) = standing(script.decide_at(later, &take).all[0]);
    let weight = product.div_ceil(length.into());
    assert!(
        u128::from(ours.remaining) <= u128::from(requests) - weight,
        "{ours:?}, {weight} weigh"
    );
}
