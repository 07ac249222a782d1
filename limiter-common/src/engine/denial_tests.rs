//! What is remembered of a denial: by whom, for how long, and what it spares.

use super::memory::Memory;
use super::tests::{PERIOD, limiter, packet, policy, source, tier};
use super::*;
use crate::abi::CompiledTier;
use crate::drop_cache::{MAX_NS, MAX_SHARED_NS, MIN_TOLERANCE};
use crate::gcra::TICKS_PER_NS;
use crate::lists::Action;
use crate::share::Multiplier;

const MS: u64 = 1_000_000;

/// A source that has just been denied its first packet, at a tick of the coarse clock.
fn denied(policy: Policy) -> Memory {
    // Charged from the first packet on: what passes below a gate is charged for by an estimate.
    let memory = limiter(Policy { gate: 1, ..policy }, 8, 1 << 10, 2);
    while packet(&memory, 1).passes() {}
    memory
}

/// How long from the denial on a CPU drops everything, ns.
fn remembered(memory: &Memory, cpu: usize, denied_at: u64) -> u64 {
    memory.drops_until(cpu, source(1)).saturating_sub(denied_at)
}

/// Whether a packet on a CPU is denied without a look at the exact clock.
fn is_denied_without_a_clock(memory: &Memory, cpu: usize) -> bool {
    let reads = memory.clock_reads();
    assert_eq!(memory.cpu(cpu).packet(source(1), 100), Reason::OverLimit);
    memory.clock_reads() == reads
}

#[test]
fn a_cpu_remembers_a_denial_until_the_next_token() {
    // A token each 50 ms.
    let memory = denied(policy(20, 100));
    let at = memory.time();
    assert_eq!(remembered(&memory, 0, at), 50 * MS);
    assert!(is_denied_without_a_clock(&memory, 0));
    memory.advance(49 * MS);
    assert!(is_denied_without_a_clock(&memory, 0));
}

#[test]
fn who_may_have_a_full_bucket_before_somebody_looks_is_not_remembered() {
    let memory = denied(policy(1000, 39));
    assert_eq!(memory.drops_until(0, source(1)), 0);
    assert!(packet(&memory, 1) == Reason::OverLimit && memory.drops_until(0, source(1)) == 0);
}

#[test]
fn a_cpu_remembers_who_is_on_the_deny_list() {
    let mut memory = limiter(policy(20, 100), 8, 1 << 10, 2);
    memory.list(source(7), Entry::new(Action::Deny, 0));
    assert_eq!(packet(&memory, 7), Reason::Denied);
    assert_eq!(memory.drops_until(0, source(7)), memory.time() + MAX_NS);
    let looks = memory.list_looks();
    assert_eq!((packet(&memory, 7), memory.list_looks()), (Reason::Denied, looks));
}

#[test]
fn a_denial_in_a_slot_is_remembered_for_as_long_as_a_share_may_rest() {
    let memory = denied(policy(20, 100));
    let at = memory.time();
    // The other CPU, which finds it in the slot, in units of 8.4 ms: the last one that has begun ends after 41.9 ms.
    memory.advance(9 * MS);
    assert!(is_denied_without_a_clock(&memory, 1));
    assert_eq!(remembered(&memory, 1, at), 8 * MS + MAX_SHARED_NS);
    memory.advance(30 * MS);
    assert!(is_denied_without_a_clock(&memory, 1));
    assert_eq!(remembered(&memory, 1, at), 5 << 23);
}

#[test]
fn who_was_denied_waits_for_the_coarse_clock() {
    // A token each 6 ms: too soon for a note in the slot.
    let memory = denied(policy(166, 100));
    let at = memory.time();
    let token = remembered(&memory, 0, at);
    assert_eq!(token / MS, 6);
    memory.advance(5 * MS);
    assert!(is_denied_without_a_clock(&memory, 1));
    assert_eq!(remembered(&memory, 1, at), token);
    // The token is there, but by the coarse clock it is not.
    memory.advance(2 * MS);
    assert!(is_denied_without_a_clock(&memory, 1));
    memory.advance(MS);
    assert_eq!(memory.cpu(1).packet(source(1), 100), Reason::Conforming);
}

#[test]
fn a_bucket_of_two_tiers_is_judged_by_the_exact_clock() {
    let memory = denied(policy(166, 100).and(tier(166, 100)));
    memory.advance(5 * MS);
    assert!(!is_denied_without_a_clock(&memory, 1));
}

#[test]
fn of_two_tiers_the_one_that_denies_longer_is_remembered() {
    let remembered_of = |first: CompiledTier, second: CompiledTier| {
        let memory = denied(Policy::new(first).and(second));
        remembered(&memory, 0, memory.time())
    };
    let (fast, slow) = (tier(40, 100), tier(20, 100));
    assert_eq!(remembered_of(fast, slow), 50 * MS);
    assert_eq!(remembered_of(slow, fast), 50 * MS);
    // A tier that could be full before somebody looks: none is remembered for the other one, however long it denies.
    let of_ms = |ms: u64| tier(1_000_000_000 / PERIOD, ms);
    let least = MIN_TOLERANCE / TICKS_PER_NS / MS;
    let narrow = tier(20, 10);
    for (ms, expected) in [(least, 50 * MS), (least - 1, 0)] {
        assert_eq!(remembered_of(of_ms(ms), narrow), expected, "{ms}");
        assert_eq!(remembered_of(narrow, of_ms(ms)), expected, "{ms}");
    }
}

#[test]
fn a_denial_by_a_share_is_not_remembered_for_long() {
    // Of a whole limit, with a token each 50 ms, or each 5 ms.
    for (rate, expected) in [(20, MAX_SHARED_NS), (200, 5 * MS)] {
        let whole = Multiplier::from_units(1 << 32);
        let policy = policy(rate, 100);
        let memory = denied(policy.shared_by_hosts(whole, [policy.first.tolerance, 0]));
        assert_eq!(remembered(&memory, 0, memory.time()), expected, "{rate}");
    }
}
