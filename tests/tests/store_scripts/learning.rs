//! A store that has forgotten everything does not give everybody a full bucket.

use std::{thread::sleep, time::Duration};

use decide::{act::Act, central::Answers};
use model::meter::{Choice, Limit, span};
use tests::{Store, resp::Reply};

use super::script::{
    MS, Random, SECOND, Script, US, alone, each, future, marker, question, standing,
};

const REQUESTS: u64 = 30;
const WINDOW: Duration = Duration::from_millis(300);

/// The time of the marker.
fn since(script: &mut Script) -> Duration {
    let reply = script.client().call_bytes(&[b"GET", &marker()[..]]);
    let Reply::Bytes(text) = reply else { panic!("{reply:?}") };
    let text = std::str::from_utf8(&text).expect("digits");
    Duration::from_micros(text.parse().unwrap_or_else(|_| panic!("{text:?}")))
}

/// Asks for all that there is, again and again.
fn greedy(script: &mut Script, limits: &[Limit], time: Duration) -> Vec<Answers> {
    let asked: Vec<_> = limits
        .iter()
        .map(|limit| alone(question(limit.algorithm.name(), limit, Act::Take, 1)))
        .collect();
    let mut all = vec![script.decide(&asked)];
    while all.last().is_some_and(|last| last.now < all[0].now + time) {
        all.push(script.decide(&asked));
        sleep(MS);
    }
    all
}

#[test]
fn an_empty_store_admits_one_unit_and_what_was_earned_since() {
    let store = Store::start();
    let mut script = Script::new(&store);
    let limits = each(REQUESTS, WINDOW);
    // Everything is gone; what was used is kept, and when that began is not.
    for command in ["FLUSHALL", "DEL limiter:{t}:since"] {
        script.remembers_since(Duration::ZERO);
        greedy(&mut script, &limits, 50 * MS);
        store.ask(command);
        let answers = greedy(&mut script, &limits, WINDOW);
        let begin = since(&mut script);
        assert_eq!(begin, answers[0].now);
        for (at, limit) in limits.iter().enumerate() {
            let mut admitted = 0;
            for answers in &answers {
                let (standing, charged) = standing(answers.all[at]);
                admitted += charged;
                let passed = (answers.now - begin).as_micros();
                let earned = 1 + u128::from(REQUESTS) * passed / WINDOW.as_micros();
                if passed >= WINDOW.as_micros() {
                    // All of it is known again.
                    continue;
                }
                // A bucket earns at the rate, windows at the edges of their parts: to be no less is asked below.
                assert!(u128::from(admitted) <= earned, "{limit}: {admitted} after {passed} µs");
                assert!(u128::from(standing.remaining + admitted) <= earned, "{limit}");
            }
            if command == "FLUSHALL" {
                assert!(admitted >= REQUESTS / 2, "{limit}: {admitted}");
            } else {
                // What is known to be used counts as well.
                assert!(admitted > 0, "{limit}");
            }
        }
    }
    // The time never changes.
    let begin = since(&mut script);
    greedy(&mut script, &limits, 10 * MS);
    assert_eq!(since(&mut script), begin);
    assert_eq!(store.ask("TTL limiter:{t}:since"), -1);
}

#[test]
fn who_waits_as_long_as_told_while_a_store_learns_is_admitted() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let mut random = Random(9);
    for limit in each(REQUESTS, SECOND) {
        let (mut sooner, mut waits) = (0, 0);
        for round in 0..20 {
            let name = format!("{limit} {round}");
            let ask = |act, cost| [alone(question(&name, &limit, act, cost))];
            // Somewhere in a window, so that another one begins while it learns.
            let mut now = future() + Duration::from_micros(random.below(1_000_000));
            script.remembers_since(now);
            for _ in 0..20 {
                now += Duration::from_micros(random.below(60_000));
                let cost = 1 + random.below(8);
                let (taken, _) = standing(script.decide_at(now, &ask(Act::Take, cost)).all[0]);
                let mut admits =
                    |cost, at| standing(script.decide_at(at, &ask(Act::Peek, cost)).all[0]).0;
                let peek = admits(cost, now);
                assert_eq!((peek.remaining, peek.wait), (taken.remaining, taken.wait), "{limit}");
                let wait = span(peek.wait.expect("it is within the limit"));
                assert!(admits(cost, now + wait).admitted, "{limit} {cost} at {now:?}: {wait:?}");
                if !wait.is_zero() {
                    waits += 1;
                    sooner += u32::from(admits(cost, now + wait - US).admitted);
                }
                // When all counts no more: not even that the store has forgotten what was used.
                let renews = now + span(peek.renews);
                assert_eq!(admits(1, renews).remaining, REQUESTS, "{limit}");
            }
        }
        println!("{limit}: {sooner} of {waits} waits were too long");
        // What leaves a window while it waits may make room sooner than is told.
        assert!(waits > 50, "{limit}: {waits}");
        assert!(limit.algorithm != Choice::TokenBucket || sooner == 0, "{limit}: {sooner}");
    }
}

#[test]
fn a_marker_that_is_none_is_one_that_begins_now() {
    let store = Store::start();
    let mut script = Script::new(&store);
    let limit = Limit::new(100, SECOND);
    for (i, command) in [
        "SET limiter:{t}:since text",
        "SET limiter:{t}:since -5",
        // That of a clock that was ahead.
        "SET limiter:{t}:since 9000000000000000",
        "HSET limiter:{t}:since a b",
        "DEL limiter:{t}:since",
    ]
    .into_iter()
    .enumerate()
    {
        store.ask("DEL limiter:{t}:since");
        store.ask(command);
        let ask = || [alone(question(&i.to_string(), &limit, Act::Peek, 1))];
        let first = script.decide(&ask());
        assert_eq!(standing(first.all[0]).0.remaining, 1, "{command}");
        // Once, and not with each call.
        sleep(30 * MS);
        assert_eq!(since(&mut script), first.now, "{command}");
        let second = script.decide(&ask());
        let earned = 1 + (second.now - first.now).as_millis() as u64 / 10;
        assert_eq!(standing(second.all[0]).0.remaining, earned, "{command}");
    }
}
