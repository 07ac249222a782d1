//! Limits that are counted in windows.

use std::vec::Vec;

use proptest::prelude::*;

use super::memory::{DEFAULT_SLOT, Memory};
use super::tests::{limiter, packet, policy, source};
use super::*;
use crate::abi::{CompiledTier, Terms, Tier};
use crate::algorithm::{self, Algorithm as _};
use crate::gcra::{TICKS_PER_NS, ticks};
use crate::table::WAYS;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = SECOND / 1000;

/// So many packets in each window of a second.
pub(super) fn window(limit: u64, slides: bool) -> algorithm::Window {
    let new = if slides { algorithm::Window::sliding } else { algorithm::Window::fixed };
    new(limit, 512, SECOND * TICKS_PER_NS).expect("a limit that a window can count")
}

fn tier(limit: u64, slides: bool) -> CompiledTier {
    let tier = Tier::of_packets(1, 0).in_window(window(limit, slides));
    CompiledTier { tier, terms: Terms::UNLIMITED, gate: 1 }
}

pub(super) fn counted(limit: u64, slides: bool) -> Policy {
    Policy::new(tier(limit, slides))
}

/// Of `count` packets at once, how many pass.
fn at_once(memory: &Memory, count: u32) -> u32 {
    (0..count).filter(|_| packet(memory, 1).passes()).count() as u32
}

proptest! {
    /// Packets that come on two CPUs at any time: each is admitted exactly if the algorithm admits it, as a denial is
    /// remembered for no longer than it lasts.
    #[test]
    fn packets_are_judged_as_by_the_algorithm_alone(
        limit in 1..40u64,
        slides: bool,
        gaps in prop::collection::vec((prop_oneof![Just(0), 0..30 * MS, 0..900 * MS], 0..2usize), 1..300),
    ) {
        let memory = limiter(counted(limit, slides), 8, 1 << 10, 2);
        let (alone, mut state) = (window(limit, slides), [0]);
        for (gap, cpu) in gaps {
            memory.advance(gap);
            let expected = alone.take(&mut state, ticks(memory.time()), 1);
            let passes = memory.cpu(cpu).packet(source(1), 100).passes();
            prop_assert_eq!(passes, expected, "at {} ms", memory.time() / MS);
        }
    }

    #[test]
    fn two_tiers_hold_at_once(gaps in prop::collection::vec(0..200 * MS, 1..200), slides: bool) {
        // 5 packets and 1000 bytes.
        let bytes = Tier::of_bytes(1, 0, 0).in_window(window(1000, slides));
        let bytes = CompiledTier { tier: bytes, terms: Terms::UNLIMITED, gate: 1 };
        let memory = limiter(counted(5, slides).and(bytes), 8, 1 << 10, 1);
        let (alone, mut states) = ([window(5, slides), window(1000, slides)], [[0], [0]]);
        for (number, gap) in gaps.into_iter().enumerate() {
            memory.advance(gap);
            let (now, length) = (ticks(memory.time()), if number % 3 == 0 { 60 } else { 400 });
            let costs = [1, u64::from(length)];
            let expected = (0..2).all(|tier| alone[tier].room(&states[tier], now) >= costs[tier]);
            if expected {
                (0..2).for_each(|tier| alone[tier].charge(&mut states[tier], now, costs[tier]));
            }
            let passes = memory.cpu(0).packet(source(1), length).passes();
            prop_assert_eq!(passes, expected, "at {} ms", memory.time() / MS);
        }
    }
}

#[test]
fn a_denial_is_remembered_until_shortly_before_the_window_ends() {
    let memory = limiter(counted(3, false), 8, 1 << 10, 2);
    assert_eq!(at_once(&memory, 5), 3);
    // 100 ms at the most, and then again: no clock is read meanwhile.
    let reads = memory.clock_reads();
    assert_eq!((at_once(&memory, 100), memory.clock_reads()), (0, reads));
    memory.advance(985 * MS);
    assert_eq!(at_once(&memory, 1), 0);
    assert_eq!(
        memory.drops_until(0, source(1)),
        memory.time() + 5 * MS,
        "the coarse clock is late"
    );
    memory.advance(15 * MS);
    assert_eq!(at_once(&memory, 5), 3);
}

#[test]
fn a_denial_is_remembered_for_as_long_as_any_tier_denies() {
    let bytes = Tier::of_bytes(1, 0, 0).in_window(window(1000, false));
    let bytes = CompiledTier { tier: bytes, terms: Terms::UNLIMITED, gate: 1 };
    let memory = limiter(counted(5, false).and(bytes), 8, 1 << 10, 1);
    let passes = [500, 500, 60].map(|length| memory.cpu(0).packet(source(1), length).passes());
    assert_eq!(passes, [true, true, false]);
    // There is room for three packets, but for no byte.
    assert!(memory.drops_until(0, source(1)) > memory.time() + 50 * MS);
}

#[test]
fn a_bucket_makes_room_when_its_window_has_ended_and_not_before() {
    // One set, in which six ways are theirs: the rest is for other limits.
    let memory = limiter(counted(4, false), 1, 1 << 10, 1);
    for number in 1..WAYS - 1 {
        (0..5).for_each(|_| {
            packet(&memory, number);
        });
    }
    assert_eq!(packet(&memory, 50), Reason::PassedSetFull);
    memory.advance(999 * MS);
    assert_eq!(packet(&memory, 50), Reason::PassedSetFull);
    memory.advance(2 * MS);
    assert_eq!(packet(&memory, 50), Reason::Conforming);
    assert_eq!(
        (memory.internal(Internal::Evictions), memory.internal(Internal::BusyEvictions)),
        (1, 0)
    );
}

#[test]
fn what_a_source_sent_before_it_had_a_bucket_counts_if_it_is_of_this_window() {
    let sent = |late: u64| {
        let gated = Policy { gate: 3, ..counted(10, false) };
        let memory = limiter(gated, 8, 1 << 14, 1);
        memory.advance(late);
        (0..).take_while(|_| packet(&memory, 1).passes()).count()
    };
    // Two pass below the gate; the third gets a bucket that owes them.
    assert_eq!(sent(500 * MS), 10);
    // The window has just begun: they cannot be told from those of the one before.
    assert_eq!(sent(0), 12);
}

#[test]
fn a_shadow_may_be_a_window_beside_a_token_bucket() {
    let memory = limiter(policy(1000, 1000).with_shadow(tier(5, true), 7), 8, 1 << 10, 1);
    assert_eq!(at_once(&memory, 20), 20);
    let shadow = |memory: &Memory| {
        let identity = memory.identity_of(source(1)).unwrap();
        [&identity.shadow_packets, &identity.would_drop].map(atomic::load)
    };
    assert_eq!(shadow(&memory), [20, 15]);
    memory.advance(2 * SECOND);
    assert_eq!(at_once(&memory, 5), 5);
    assert_eq!(shadow(&memory), [25, 15]);
}

/// A limit that changes takes along what was used up of it.
#[test]
fn as_much_is_used_up_after_a_change_of_the_algorithm() {
    // A token bucket of a second's rate, and both windows.
    let policies = [policy(10, 10), counted(10, false), counted(10, true), counted(20, true)];
    for former in policies {
        for changed in policies {
            if former == changed {
                continue;
            }
            let mut memory = limiter(former, 8, 1 << 10, 1);
            let all = former.first.window().map_or(10, |window| window.limit);
            memory.advance(10 * MS);
            assert_eq!(at_once(&memory, all / 2), all / 2);
            memory.policies.push(changed);
            memory.publish(2, DEFAULT_SLOT + 1);
            let all = changed.first.window().map_or(10, |window| window.limit);
            let left = at_once(&memory, 40);
            assert!(left.abs_diff(all / 2) <= 1, "{former:?} to {changed:?}: {left} of {all}");
            // And none of it comes back by a change that changes nothing.
            memory.publish(3, DEFAULT_SLOT + 1);
            assert_eq!(at_once(&memory, 5), 0);
        }
    }
}

/// CPUs that meet on a window, in every way that shuttle thinks of.
mod schedules {
    use std::sync::Arc;

    use super::super::schedule_tests::{at_once as together, in_turn};
    use super::*;
    use crate::atomic::AtomicU64;
    use crate::schedule::explore;

    #[test]
    fn cpus_get_a_window_together_and_no_packet_more() {
        for slides in [false, true] {
            explore(1500, move || {
                let memory = limiter(counted(3, slides), 8, 1 << 6, 3);
                assert!(packet(&memory, 1).passes());
                memory.advance(2 * SECOND);
                let memory = Arc::new(memory);
                assert_eq!(together(&memory, &[&[1, 1], &[1, 1], &[1, 1]]), 3);
                assert_eq!(at_once(&memory, 2), 0);
                memory.advance(SECOND);
                // What they added beyond the limit was admitted to nobody, and ends with its window.
                assert_eq!(at_once(&memory, 5), if slides { 0 } else { 3 });
            });
        }
    }

    /// Two sources want the bucket of a third one, which uses it.
    #[test]
    fn a_bucket_that_is_being_filled_is_closed_to_windows_too() {
        for limit in [counted(8, false), counted(8, true).and(tier(9, true))] {
            explore(3000, move || {
                let memory = limiter(limit, 1, 1 << 6, 3);
                assert!(packet(&memory, 7).passes());
                memory.advance(3 * SECOND);
                for number in 100..100 + WAYS - 3 {
                    assert_eq!(in_turn(&memory, number, 3), 3);
                }
                let memory = Arc::new(memory);
                assert_eq!(together(&memory, &[&[7], &[8], &[9]]), 3);
                memory.assert_sound();
            });
        }
    }

    /// All that three CPUs add at an edge is counted in the window that it was admitted in.
    #[test]
    fn an_edge_costs_nobody_a_packet_and_brings_nobody_one() {
        let limit = window(3, false);
        let edge = 100 * SECOND * TICKS_PER_NS;
        explore(3000, move || {
            let word = Arc::new(AtomicU64::new(limit.decide(0, edge - 5, 1).unwrap()));
            let cpus: Vec<_> = [edge - 1, edge, edge + 1]
                .into_iter()
                .map(|now| {
                    let word = Arc::clone(&word);
                    shuttle::thread::spawn(move || {
                        // As a charge does it whose comparisons all fail.
                        let before = atomic::load(&word);
                        match limit.decide(before, now, 1) {
                            Some(next) if atomic::replace(&word, before, next) => Some(now),
                            _ => match limit.added(atomic::add(&word, 1), now, 1) {
                                Some(true) => Some(now),
                                // Another window's: nothing is admitted, and the engine tries again.
                                _ => None,
                            },
                        }
                    })
                })
                .collect();
            let admitted: Vec<_> =
                cpus.into_iter().filter_map(|cpu| cpu.join().expect("a CPU ends")).collect();
            let last = atomic::load(&word);
            let counted = u64::from(limit.limit) - limit.room(&[last], edge + 2);
            // Whoever has the clock of the former window may be admitted to this one, as time never goes back.
            let here = admitted.iter().filter(|now| **now >= edge).count() as u64;
            assert!(counted >= here, "{admitted:?}: {counted}");
            assert!(counted <= 3, "{counted}");
        });
    }
}
