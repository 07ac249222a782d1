//! The algorithms beside those of the Python package `limits`: the same requests at the same times.
//!
//! Where verdicts differ, the difference is the one that `docs/design/windows.md` names, and no other.

use std::{io::Write as _, process::Stdio};

use limiter_common::{
    algorithm::{Algorithm, SlidingLog, Window},
    gcra::{TICKS_PER_NS, Ticks},
};
use serde_json::{Value, json};

const SECOND: Ticks = 1_000_000_000 * TICKS_PER_NS;
const LIMIT: u64 = 10;
/// Seconds. A power of two: then all that theirs computes with floating point is exact.
const WINDOW: u64 = 64;
/// Steps in a second, likewise.
const STEPS: u64 = 1 << 10;

/// Requests of a fixed sequence: when, in steps, and what each costs.
fn requests(seed: u64) -> Vec<(u64, u64)> {
    let (mut random, mut at) = (seed, 1_000 * WINDOW * STEPS + 7);
    let mut next = |below: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut requests = Vec::new();
    for _ in 0..400 {
        at += match next(4) {
            0 => 0,
            1 => 1 + next(STEPS),
            _ => next(16 * STEPS),
        };
        requests.push((at, 1 + u64::from(next(8) == 0) * next(4)));
    }
    requests
}

/// What theirs says of each.
fn theirs(strategy: &str, requests: &[(u64, u64)]) -> Vec<bool> {
    let hits: Vec<_> =
        requests.iter().map(|(at, cost)| json!([*at as f64 / STEPS as f64, cost])).collect();
    let case = json!({"strategy": strategy, "limit": LIMIT, "window": WINDOW, "hits": hits});
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/limits_verdicts.py");
    let mut python = tools::own(tools::environment().join("bin/python"));
    let started = python.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut python = started.expect("`cargo xtask setup` brings the package");
    let mut stdin = python.stdin.take().expect("a pipe");
    write!(stdin, "{case}").expect("it reads the requests");
    drop(stdin);
    let output = python.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let verdicts: Value = serde_json::from_slice(&output.stdout).expect("it answers");
    let verdicts = verdicts.as_array().expect("a list");
    verdicts.iter().map(|verdict| verdict.as_bool().expect("a verdict")).collect()
}

/// What ours says of each, if it believes theirs: what they admit is charged, so that a difference stays one.
fn differences(
    ours: &dyn Algorithm,
    requests: &[(u64, u64)],
    theirs: &[bool],
) -> Vec<(u64, u64, bool)> {
    let mut state = vec![0; ours.words()];
    let mut different = Vec::new();
    for (&(at, cost), &admitted) in requests.iter().zip(theirs) {
        let now = at * (SECOND / STEPS);
        if (cost <= ours.room(&state, now)) != admitted {
            different.push((at, cost, admitted));
        }
        if admitted {
            ours.charge(&mut state, now, cost);
        }
    }
    different
}

#[test]
fn the_log_is_theirs_but_for_what_is_exactly_as_old_as_the_window() {
    let log = SlidingLog::new(LIMIT, WINDOW * SECOND).expect("a log");
    let mut ties = 0;
    for seed in 0..20 {
        let requests = requests(seed);
        let theirs = theirs("moving-window", &requests);
        for (at, _, admitted) in differences(&log, &requests, &theirs) {
            // In theirs it still counts.
            assert!(!admitted && requests.iter().any(|(before, _)| at - before == WINDOW * STEPS));
            ties += 1;
        }
    }
    // Chance makes none: one by design.
    let requests: Vec<_> = (0..=LIMIT).map(|i| (WINDOW * STEPS * (1 + i / LIMIT), 1)).collect();
    let theirs = theirs("moving-window", &requests);
    ties += differences(&log, &requests, &theirs).len();
    assert!(ties > 0);
}

#[test]
fn the_fixed_window_is_theirs_where_a_request_begins_each_window_and_none_is_refused_for_its_size()
{
    let window = Window::fixed(LIMIT, 0, WINDOW * SECOND).expect("a window");
    for seed in 0..20 {
        let mut requests = requests(seed);
        // Theirs begins with the first request that finds none, and charges what it denies.
        let (first, last) = (requests[0].0, requests[requests.len() - 1].0);
        requests.iter_mut().for_each(|(_, cost)| *cost = 1);
        let edges = first / (WINDOW * STEPS)..=last / (WINDOW * STEPS);
        requests.extend(edges.map(|edge| (edge * WINDOW * STEPS, 1)));
        requests.sort_unstable();
        let theirs = theirs("fixed-window", &requests);
        assert_eq!(differences(&window, &requests, &theirs), []);
    }
}

#[test]
fn the_sliding_window_is_theirs_but_for_the_part_of_a_request_that_they_forget() {
    let window = Window::sliding(LIMIT, 0, WINDOW * SECOND).expect("a window");
    let (mut different, mut denied) = (0, 0);
    for seed in 0..20 {
        let requests = requests(seed);
        let theirs = theirs("sliding-window-counter", &requests);
        denied += theirs.iter().filter(|admitted| !**admitted).count();
        let mut state = [0];
        for (&(at, cost), &admitted) in requests.iter().zip(&theirs) {
            let now = at * (SECOND / STEPS);
            let room = window.room(&state, now);
            // They round what is weighted down, so that there is room for one more where it is no whole number.
            assert!(!admitted || cost <= room + 1, "at {at}: {cost} of {room}");
            assert!(admitted || cost > room, "at {at}: {cost} of {room}");
            different += usize::from(admitted && cost > room);
            if admitted {
                window.charge(&mut state, now, cost);
            }
        }
    }
    println!("{different} of 8000 verdicts differ, {denied} are denials");
    assert!(different > 0 && denied > 500, "{different} {denied}");
}
