//! The log beside one in memory that remembers all.

use std::{collections::VecDeque, time::Duration};

use decide::act::Act;
use limiter_common::gcra::Ticks;
use model::meter::{Choice, span};
use tests::{Store, resp::Reply};

use super::script::{Random, SECOND, Script, US, alone, future, limit, question, standing};

/// When each unit was used.
struct Oracle {
    limit: usize,
    window: Duration,
    used: VecDeque<Duration>,
}

impl Oracle {
    fn forget(&mut self, now: Duration) {
        while self.used.front().is_some_and(|at| *at + self.window <= now) {
            self.used.pop_front();
        }
    }

    /// How long until so many have room.
    fn wait(&self, now: Duration, cost: usize) -> Option<Duration> {
        let missing = (self.used.len() + cost).saturating_sub(self.limit);
        let leaves = |missing: usize| self.used[missing - 1] + self.window - now;
        (cost <= self.limit).then(|| if missing == 0 { Duration::ZERO } else { leaves(missing) })
    }
}

#[test]
fn the_log_is_exact_and_its_entries_are_unique() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    // On a grid of an eighth of the window much is exactly as old as that, beside what is younger.
    for (requests, seed, grid) in
        [(1, 1, 1), (7, 2, 1), (100, 3, 1), (8, 4, 125_000), (20, 5, 125_000)]
    {
        let limit = limit(Choice::SlidingLog, requests, SECOND);
        let name = format!("log of {requests}, {grid}");
        let mut oracle = Oracle { limit: requests as usize, window: SECOND, used: VecDeque::new() };
        let (mut random, mut now, mut denied) = (Random(seed), future(), 0);
        for _ in 0..2_500 {
            now += Duration::from_micros(match random.below(8) {
                // Several in one µs, and steps that are shorter than what they cost.
                0..3 => 0,
                3..5 => random.below(3) * grid,
                _ if grid > 1 => random.below(2) * grid,
                5 => 1_000_000 / requests,
                _ => random.below(3_000_000 / requests),
            });
            oracle.forget(now);
            let cost = 1 + random.below(1 + requests / 10) as usize;
            let act = match random.below(10) {
                0 => Act::Refund,
                1 => Act::Owe,
                _ => Act::Take,
            };
            let room = oracle.wait(now, cost) == Some(Duration::ZERO);
            match act {
                Act::Refund => oracle.used.truncate(oracle.used.len().saturating_sub(cost)),
                Act::Take if !room => denied += 1,
                _ => {
                    oracle.used.extend((0..cost).map(|_| now));
                    // What was used beyond the limit keeps the latest of it.
                    let excess = oracle.used.len().saturating_sub(oracle.limit);
                    oracle.used.drain(..excess);
                }
            }
            let asked = alone(question(&name, &limit, act, cost as u64));
            let (ours, _) = standing(script.decide_at(now, &[asked]).all[0]);
            assert_eq!(ours.admitted, act == Act::Refund || room, "{act:?} {cost} at {now:?}");
            assert_eq!(ours.remaining as usize, oracle.limit - oracle.used.len());
            assert_eq!(ours.wait.map(span), oracle.wait(now, cost));
            let renews = oracle.used.back().map_or(Duration::ZERO, |at| *at + SECOND - now);
            assert_eq!(span(ours.renews as Ticks), renews);
        }
        assert!(denied > 300, "{denied}");
        // As many entries as units; they have no others, if one of them is charged.
        oracle.forget(now + SECOND / 2);
        let take = alone(question(&name, &limit, Act::Take, 1));
        let (ours, charged) =
            standing(script.decide_at(now + SECOND / 2, std::slice::from_ref(&take)).all[0]);
        let entries = oracle.used.len() as u64 + charged;
        if ours.admitted {
            assert_eq!(script.call("ZCARD KEY", &take), Reply::Number(entries as i64));
        }
        assert_eq!(ours.remaining, requests - entries);
    }
}

#[test]
fn the_log_of_a_clock_that_stands_has_an_entry_for_each_unit() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let limit = limit(Choice::SlidingLog, 100, SECOND);
    let now = future();
    let take = |cost| alone(question("log", &limit, Act::Take, cost));
    // All in one µs, then within the next ones, which their names have reached already; then in the past.
    for (i, at) in
        [now, now, now, now + US, now + 2 * US, now - SECOND, now].into_iter().enumerate()
    {
        script.decide_at(at, &[take(10)]);
        let entries = Reply::Number(10 * (i as i64 + 1));
        assert_eq!(script.call("ZCARD KEY", &take(1)), entries, "after {i}");
    }
    script.decide_at(now, &[take(30)]);
    let Reply::Number(bytes) = script.call("MEMORY USAGE KEY SAMPLES 0", &take(1)) else {
        panic!("no size")
    };
    println!("a log of 100 units: {bytes} bytes");
    // Numbers in a list: two of 8 bytes, and what tells their lengths.
    assert!(bytes < 3_000, "{bytes}");
}
