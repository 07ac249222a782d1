use std::boxed::Box;
use std::format;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// What has been admitted, from which a definition decides anew each time.
#[derive(Default)]
struct History(Vec<(Ticks, u64)>);

impl History {
    /// Units admitted at `from` or later, and before `to`.
    fn units(&self, from: i128, to: i128) -> u64 {
        let within = |time: &Ticks| (from..to).contains(&i128::from(*time));
        self.0.iter().filter(|(time, _)| within(time)).map(|(_, units)| units).sum()
    }

    /// The most units within `window`, wherever it begins.
    fn most(&self, window: Ticks) -> u64 {
        let ends = self.0.iter().map(|(time, _)| i128::from(*time) + 1);
        ends.map(|end| self.units(end - i128::from(window), end)).max().unwrap_or(0)
    }
}

/// A limit, to be taken literally.
#[derive(Clone, Copy, Debug)]
struct Limit {
    units: u64,
    window: Ticks,
    burst: u64,
    parts: u64,
}

/// Whether a request has room by the definition of an algorithm, in exact numbers.
type Definition = fn(&Limit, &History, Ticks, u64) -> bool;

fn by_bucket(limit: &Limit, history: &History, now: Ticks, cost: u64) -> bool {
    // The cost of a unit is rounded up to whole ticks.
    let interval = i128::from(limit.window.div_ceil(limit.units));
    let full = interval * i128::from(limit.burst);
    let (mut level, mut last) = (full, 0);
    for (time, units) in &history.0 {
        level = (level + i128::from(time - last)).min(full) - interval * i128::from(*units);
        last = *time;
    }
    (level + i128::from(now - last)).min(full) >= interval * i128::from(cost)
}

fn by_fixed_window(limit: &Limit, history: &History, now: Ticks, cost: u64) -> bool {
    let start = i128::from(now - now % limit.window);
    history.units(start, start + i128::from(limit.window)) + cost <= limit.units
}

fn by_sliding_window(limit: &Limit, history: &History, now: Ticks, cost: u64) -> bool {
    let (window, start) = (i128::from(limit.window), i128::from(now - now % limit.window));
    let previous = i128::from(history.units(start - window, start));
    let current = i128::from(history.units(start, start + window) + cost);
    let covered = window - (i128::from(now) - start);
    current * window + previous * covered <= i128::from(limit.units) * window
}

fn by_sub_windows(limit: &Limit, history: &History, now: Ticks, cost: u64) -> bool {
    let part = limit.window / limit.parts;
    let first = i128::from(now / part) - i128::from(limit.parts);
    history.units(first * i128::from(part), i128::MAX) + cost <= limit.units
}

fn by_log(limit: &Limit, history: &History, now: Ticks, cost: u64) -> bool {
    history.units(i128::from(now) - i128::from(limit.window) + 1, i128::MAX) + cost <= limit.units
}

/// All algorithms with a limit.
fn all(limit: &Limit) -> Vec<(&'static str, Box<dyn Algorithm>, Definition)> {
    let Limit { units, window, burst, parts } = *limit;
    vec![
        ("token bucket", Box::new(TokenBucket::new(units, window, burst).unwrap()), by_bucket),
        ("fixed window", Box::new(Window::fixed(units, 0, window).unwrap()), by_fixed_window),
        ("sliding window", Box::new(Window::sliding(units, 0, window).unwrap()), by_sliding_window),
        ("sub-windows", Box::new(SubWindows::new(units, window, parts).unwrap()), by_sub_windows),
        ("log", Box::new(SlidingLog::new(units, window).unwrap()), by_log),
    ]
}

/// Has an algorithm and its definition decide on the same requests, and looks at all that it says meanwhile.
fn compare(
    name: &str,
    algorithm: &dyn Algorithm,
    definition: Definition,
    limit: &Limit,
    requests: impl IntoIterator<Item = (Ticks, u64)>,
) {
    let (mut state, mut history) = (vec![0; algorithm.words()], History::default());
    for (now, cost) in requests {
        let expected = definition(limit, &history, now, cost);
        let before = state.clone();
        let (room, wait) = (algorithm.room(&state, now), algorithm.wait(&state, now, cost));
        let context = || format!("{name}, {limit:?}, {cost} at {now} after {:?}", history.0);
        assert_eq!(cost <= room, expected, "room {room}: {}", context());
        assert_eq!(state, before, "a look changes nothing");
        assert_eq!(wait == Some(0), expected, "wait {wait:?}: {}", context());
        if let Some(wait @ 1..) = wait {
            let then = now + wait;
            assert!(definition(limit, &history, then, cost), "too early by {wait}: {}", context());
            assert!(!definition(limit, &history, then - 1, cost), "late by {wait}: {}", context());
        }
        assert_eq!(algorithm.take(&mut state, now, cost), expected, "{}", context());
        if expected {
            history.0.push((now, cost));
        }
    }
    assert!(history.most(limit.window) <= algorithm.bound(), "{name}: {:?}", history.0);
}

#[test]
fn each_is_its_definition_whatever_comes_within_three_windows() {
    for units in 1..=3 {
        // The shortest window that a word has room for, in parts of its own.
        let limit = Limit { units, window: 16, burst: 2, parts: 4 };
        // Two ticks and three for each request, so that they meet edges and the ticks beside them.
        for pattern in 0..1_u32 << 18 {
            // A third of them tells as much: the rest differ only in what comes after the last edge.
            if pattern % 3 != units as u32 % 3 {
                continue;
            }
            let at = |step: u32| Ticks::from(step * 5 / 2 + 15);
            let requests: Vec<_> = (0..18)
                .filter(|step| pattern >> step & 1 == 1)
                .map(|step| (at(step), 1 + u64::from(step % 5 == 4)))
                .collect();
            for (name, algorithm, definition) in all(&limit) {
                let (mut state, mut history) = (vec![0; algorithm.words()], History::default());
                for (now, cost) in requests.iter().copied() {
                    let expected = definition(&limit, &history, now, cost);
                    let admitted = algorithm.take(&mut state, now, cost);
                    assert_eq!(admitted, expected, "{name}, {limit:?}: {requests:?}");
                    if expected {
                        history.0.push((now, cost));
                    }
                }
                assert!(history.most(limit.window) <= algorithm.bound(), "{name}: {requests:?}");
            }
        }
    }
}

/// Requests that come at once, close together, or windows apart.
fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![Just(0), 1..50u64, 1..2_000u64, 50_000..150_000u64];
    prop::collection::vec((gap, 0..6u64), 1..120)
}

fn limits() -> impl Strategy<Value = Limit> {
    let parts = prop::sample::select(vec![2u64, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60]);
    (1..60u64, 700..1_500u64, 1..40u64, parts).prop_map(|(units, sixtieth, burst, parts)| Limit {
        units,
        window: 60 * sixtieth,
        burst,
        parts,
    })
}

proptest! {
    #[test]
    fn each_is_its_definition(limit in limits(), start in 0..1_u64 << 40, gaps in requests()) {
        let mut now = start;
        let at = |(gap, cost)| {
            now += gap;
            (now, cost)
        };
        let requests: Vec<_> = gaps.into_iter().map(at).collect();
        for (name, algorithm, definition) in all(&limit) {
            compare(name, &*algorithm, definition, &limit, requests.iter().copied());
        }
    }

    #[test]
    fn what_is_owed_has_an_end(limit in limits(), start in 0..1_u64 << 40, gaps in requests()) {
        for (name, algorithm, _) in all(&limit) {
            let (mut state, mut now) = (vec![0; algorithm.words()], start);
            prop_assert!(algorithm.renews(&state) <= now);
            for &(gap, cost) in &gaps {
                now += gap;
                // Twice, so that there is no room for the second one, nearly always.
                (0..2).for_each(|_| algorithm.owe(&mut state, now, cost));
                let room = algorithm.room(&state, now);
                prop_assert!(room <= algorithm.capacity().saturating_sub(cost), "{name}: {room}");
                let Some(wait) = algorithm.wait(&state, now, 1) else { continue };
                let earns = limit.window.div_ceil(limit.units);
                let longest = (2 * limit.window).max(earns * (limit.burst + 1));
                prop_assert!(wait <= longest, "{name}: {wait} of {longest}");
                prop_assert!(algorithm.room(&state, now + wait) >= 1, "{name}");
                let renews = algorithm.renews(&state).max(now);
                prop_assert_eq!(algorithm.room(&state, renews), algorithm.capacity(), "{}", name);
                prop_assert!(renews - now <= 2 * longest, "{name}");
            }
        }
    }

    /// Where the counts of the window before are rounded, too.
    #[test]
    fn no_limit_is_exceeded_in_any_window(
        units in 1..1_u64 << 20,
        window in (1_u64 << 33)..1 << 40,
        gaps in prop::collection::vec((0..1_u64 << 38, 0..1_u64 << 19), 1..60),
    ) {
        let limit = Limit { units, window: window / 60 * 60, burst: units, parts: 60 };
        for (name, algorithm, _) in all(&limit) {
            if name == "log" {
                continue;
            }
            let (mut state, mut history) = (vec![0; algorithm.words()], History::default());
            let mut now = 1 << 41;
            for &(gap, cost) in &gaps {
                now += gap;
                let cost = cost.min(units);
                if algorithm.take(&mut state, now, cost) {
                    history.0.push((now, cost));
                }
            }
            prop_assert!(history.most(limit.window) <= algorithm.bound(), "{}", name);
        }
    }

    #[test]
    fn what_is_refunded_can_be_taken_again(limit in limits(), gaps in requests(), refund in 1..60u64) {
        for (name, algorithm, _) in all(&limit) {
            let mut state = vec![0; algorithm.words()];
            let (mut now, mut latest) = (limit.window, 0);
            for &(gap, cost) in &gaps {
                now += gap;
                if algorithm.take(&mut state, now, cost) {
                    latest = cost;
                }
            }
            let room = algorithm.room(&state, now);
            let mut refunded = state.clone();
            algorithm.refund(&mut refunded, now, refund);
            let more = algorithm.room(&refunded, now);
            prop_assert!(more >= room && more <= room + refund, "{}: {} {}", name, room, more);
            // What was charged at this moment comes back whole.
            if algorithm.take(&mut state, now, latest.min(room)) {
                algorithm.refund(&mut state, now, latest.min(room));
                prop_assert_eq!(algorithm.room(&state, now), room, "{}", name);
            }
        }
    }

    /// An hour back, as a wall clock may be set: nobody gets more than within the time that has really passed.
    #[test]
    fn a_clock_that_goes_back_admits_nobody_twice(limit in limits(), gaps in requests(), back in 1..1_u64 << 20) {
        for (name, algorithm, _) in all(&limit) {
            let mut state = vec![0; algorithm.words()];
            let mut now = 1_u64 << 30;
            while algorithm.take(&mut state, now, 1) {}
            now -= back;
            let mut again = 0;
            for &(gap, cost) in &gaps {
                now += gap;
                if now >= 1 << 30 {
                    break;
                }
                again += if algorithm.take(&mut state, now, cost) { cost } else { 0 };
            }
            prop_assert_eq!(again, 0, "{}", name);
        }
    }

    /// Eviction compares the word with the time, and nothing else.
    #[test]
    fn a_word_in_the_past_is_as_good_as_new(
        units in 1..100_000u64, sliding: bool, window in (1_u64 << 32)..1 << 36, at: u64, cost in 1..50u64,
    ) {
        let new = if sliding { Window::sliding } else { Window::fixed };
        let limit = new(units, 0, window).unwrap();
        let now = (1 << 40) + at % (1 << 40);
        // At least a unit of what is kept of the window before.
        let cost = cost.min(units).max(units / 256).max(1);
        let word = limit.decide(0, now, cost).unwrap();
        prop_assert!(word > now);
        let edge = now - now % window + if sliding { 2 * window } else { window };
        // Just before, something counts still; afterwards nothing, and soon the word says so.
        let room = |now| limit.room(&[word], now);
        prop_assert!(word > edge - 1 && room(edge - 1) < units);
        prop_assert_eq!(room(edge), units);
        let count_bits = u32::from(limit.current_bits) + u32::from(limit.previous_bits);
        prop_assert!(word <= edge + (2 << count_bits));
    }
}

#[test]
fn a_limit_that_an_algorithm_cannot_have_is_refused() {
    let second = 1_000_000_000 * crate::gcra::TICKS_PER_NS;
    assert_eq!(TokenBucket::new(0, second, 1), Err(Unfit::Nothing));
    assert_eq!(TokenBucket::new(1, second, u64::MAX), Err(Unfit::TooLarge));
    assert_eq!(Window::fixed(10, 0, 0), Err(Unfit::Nothing));
    assert_eq!(Window::fixed(MAX_LIMIT, 1, second), Err(Unfit::TooLarge));
    assert_eq!(Window::sliding(1 << 25, 0, second), Err(Unfit::TooFine));
    assert!(Window::sliding((1 << 24) - 1, 0, second).is_ok());
    assert!(Window::fixed(MAX_LIMIT, 0, second).is_ok());
    for parts in [0, 1, 7, 61, 120] {
        assert_eq!(SubWindows::new(10, 60 * second, parts), Err(Unfit::Parts), "{parts}");
    }
    assert_eq!(SubWindows::new(10, 0, 2), Err(Unfit::Nothing));
    assert_eq!(SlidingLog::new(MAX_LIMIT + 1, second), Err(Unfit::TooLarge));
}

#[test]
fn a_request_of_more_than_can_be_counted_is_denied() {
    let limit = Limit { units: 10, window: 60_000, burst: 10, parts: 6 };
    for (name, algorithm, _) in all(&limit) {
        let (mut state, now) = (vec![0; algorithm.words()], 60_001);
        assert!(algorithm.take(&mut state, now, 3), "{name}");
        for cost in [u64::MAX, u64::MAX - 2, u64::MAX / 2] {
            assert_eq!(algorithm.wait(&state, now, cost), None, "{name}");
            assert!(!algorithm.take(&mut state, now, cost), "{name}: {cost}");
            assert_eq!(algorithm.room(&state, now), 7, "{name}");
        }
        algorithm.owe(&mut state, now, u64::MAX);
        assert_eq!(algorithm.room(&state, now), 0, "{name}");
    }
}

/// Several CPUs charge the same word as the kernel program does: at last by an addition that nothing can fail.
#[test]
fn what_others_add_beyond_the_limit_is_admitted_to_nobody() {
    let limit = Window::fixed(3, 8, 1 << 20).unwrap();
    let mut word = 0;
    for _ in 0..2 {
        word = limit.decide(word, 5, 1).unwrap();
    }
    // Both see room for one.
    let admitted = [(); 2].map(|()| {
        let before = word;
        word += 1;
        limit.decide(before, 5, 1).is_some()
    });
    assert_eq!(admitted, [true, false]);
    assert_eq!((limit.room(&[word], 5), limit.room(&[word], 1 << 20)), (0, 3));
}

#[test]
fn the_queue_delays_by_what_is_before() {
    let bucket = LeakyBucket::new(10, 1000, 5).unwrap();
    let mut word = 0;
    for before in 0..5 {
        assert_eq!(bucket.delay(word, 2000), before * 100);
        word = bucket.decide(word, 2000, 1).unwrap();
    }
    assert_eq!(bucket.decide(word, 2000, 1), None);
    assert_eq!(bucket.delay(word, 2450), 50);
}
