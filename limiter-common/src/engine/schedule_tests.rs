//! CPUs that meet in every way that shuttle thinks of.

use std::sync::Arc;
use std::vec::Vec;

use super::memory::{DEFAULT_SLOT, Memory};
use super::planted::{self, Charge, Renew};
use super::tests::{PERIOD, limiter, packet, policy, quick, source, tier};
use super::*;
use crate::abi::{Internal, PolicyWord, on_full};
use crate::schedule::{explore, finds};
use crate::table::{WAYS, Ways};

/// Schedules of a scenario, of each kind.
const SCHEDULES: usize = 1500;

/// Lets each CPU judge packets at once; returns how many passed on each.
fn each_at_once(memory: &Arc<Memory>, packets: &[&[u32]]) -> Vec<u64> {
    let cpus: Vec<_> = packets
        .iter()
        .zip(0..)
        .map(|(sources, number)| {
            let (memory, sources) = (Arc::clone(memory), sources.to_vec());
            shuttle::thread::spawn(move || {
                let cpu = memory.cpu(number);
                sources.into_iter().filter(|it| cpu.packet(source(*it), 100).passes()).count()
            })
        })
        .collect();
    cpus.into_iter().map(|cpu| cpu.join().expect("a CPU ends") as u64).collect()
}

/// The same; returns how many passed on all of them.
pub(super) fn at_once(memory: &Arc<Memory>, packets: &[&[u32]]) -> u64 {
    each_at_once(memory, packets).into_iter().sum()
}

/// Packets of a source that pass, of `count` one after the other.
pub(super) fn in_turn(memory: &Memory, number: u32, count: u32) -> u64 {
    (0..count).filter(|_| packet(memory, number).passes()).count() as u64
}

/// Three CPUs empty a bucket together: whatever they overdraw they pay back.
fn a_bucket_is_emptied(limit: Policy, planted: Option<Charge>) {
    let mut memory = limiter(limit, 1, 1 << 6, 3);
    memory.planted = planted;
    // It has a bucket, that is full again.
    assert!(packet(&memory, 7).passes());
    memory.advance(100 * PERIOD);
    let memory = Arc::new(memory);
    let passed = at_once(&memory, &[&[7, 7], &[7, 7], &[7, 7]]);
    assert!((3..=5).contains(&passed), "{passed} of 3");
    memory.advance(2 * PERIOD);
    assert_eq!(passed + in_turn(&memory, 7, 9), 5);
}

#[test]
fn whatever_cpus_overdraw_is_owed() {
    explore(SCHEDULES, || a_bucket_is_emptied(quick(3), None));
    explore(SCHEDULES, || a_bucket_is_emptied(quick(3).and(tier(1000, 3)), None));
    assert!(finds(SCHEDULES, || a_bucket_is_emptied(quick(3), Some(planted::forgives))));
}

/// Three CPUs meet on a bucket that was idle for long: it has all that its burst says.
fn a_bucket_was_idle(limit: Policy, planted: Option<Charge>) {
    let mut memory = limiter(limit, 1, 1 << 6, 3);
    memory.planted = planted;
    assert!(packet(&memory, 7).passes());
    memory.advance(100 * PERIOD);
    let memory = Arc::new(memory);
    assert_eq!(at_once(&memory, &[&[7], &[7], &[7]]), 3);
    assert_eq!(in_turn(&memory, 7, 9), 6);
}

#[test]
fn an_idle_bucket_owes_packets_alone() {
    explore(SCHEDULES, || a_bucket_was_idle(quick(9), None));
    explore(SCHEDULES, || a_bucket_was_idle(quick(9).and(tier(1000, 9)), None));
    let planted = || a_bucket_was_idle(quick(9), Some(planted::charges_idle_time));
    assert!(finds(SCHEDULES, planted));
}

/// A source gets the slot of another one, whose policy is being looked up.
fn a_slot_changes_hands(planted: Option<Renew>) {
    let mut memory = limiter(quick(8), 1, 1 << 6, 2);
    memory.planted_renewal = planted;
    memory.policies.push(policy(1, 8));
    memory.limits.insert((0, source(7)), 2);
    assert!(packet(&memory, 7).passes());
    memory.advance(2000 * PERIOD);
    // Two ways are for other limits. Everybody else owes too much to make room, so one bucket is to be had.
    for number in 100..100 + WAYS - 3 {
        assert_eq!(in_turn(&memory, number, 3), 3);
    }
    memory.publish(2, 1);
    let memory = Arc::new(memory);
    at_once(&memory, &[&[7], &[8]]);
    for (number, slot) in [(7, 2), (8, 1)] {
        if let Some(bucket) = memory.slot_of(source(number)) {
            let resolved = PolicyWord(atomic::load(&bucket.policy));
            assert_eq!(resolved.slot(), slot, "{number} has the limit of another source");
        }
    }
    // Its burst is 8, of which one packet has passed.
    if memory.bucket(source(8)).is_some() {
        assert_eq!(in_turn(&memory, 8, 9), 7);
    }
}

#[test]
fn who_gets_a_slot_while_a_policy_is_looked_up_keeps_its_own() {
    explore(SCHEDULES, || a_slot_changes_hands(None));
    assert!(finds(SCHEDULES, || a_slot_changes_hands(Some(planted::keeps_its_policy))));
}

/// Two sources want the bucket of a third one, which uses it.
fn a_way_is_wanted_by_many(planted: Option<Charge>) {
    let mut memory = limiter(quick(8), 1, 1 << 6, 4);
    memory.planted = planted;
    assert!(packet(&memory, 7).passes());
    memory.advance(100 * PERIOD);
    for number in 100..100 + WAYS - 3 {
        assert_eq!(in_turn(&memory, number, 3), 3);
    }
    let memory = Arc::new(memory);
    assert_eq!(at_once(&memory, &[&[7], &[8], &[9]]), 3);
    memory.assert_sound();
}

#[test]
fn a_bucket_that_is_being_filled_is_closed() {
    explore(SCHEDULES, || a_way_is_wanted_by_many(None));
    assert!(finds(30000, || a_way_is_wanted_by_many(Some(planted::opens_the_lock))));
}

#[test]
fn a_source_that_several_cpus_meet_first_gets_one_bucket() {
    explore(SCHEDULES, || {
        let memory = Arc::new(limiter(quick(4), 1, 1 << 6, 3));
        let passed = at_once(&memory, &[&[7, 7], &[7, 7], &[7]]);
        // A CPU that has made a second bucket yields, and may have found nothing in the first one yet.
        assert!((4..=5).contains(&passed), "{passed}");
        memory.assert_sound();
        assert_eq!(memory.tracked().count(), 1);
        // Nor did it have another one before, with what it owed.
        assert_eq!(memory.internal(Internal::Promotions), 1);
        assert_eq!(in_turn(&memory, 7, 9), 0);
    });
}

/// A source sends again while another one is about to get its bucket, which was full.
#[test]
fn a_bucket_that_is_in_use_again_stays() {
    explore(SCHEDULES, || {
        let memory = limiter(policy(1000, 16), 1, 1 << 6, 2);
        let passed = |number| assert_eq!(in_turn(&memory, number, 4), 4);
        passed(7);
        memory.advance(1000 * PERIOD);
        // Everybody else owes too much to make room.
        (101..100 + WAYS).for_each(passed);
        let memory = Arc::new(memory);
        // Below the gate is one packet, so who has no bucket any more needs none.
        at_once(&memory, &[&[7], &[8, 8]]);
        memory.assert_sound();
        assert_eq!(memory.internal(Internal::BusyEvictions), 0);
    });
}

/// A set of buckets under a limit of gate 1, all full, and a source that gets the one of the source 7 when it asks.
fn with_idle_buckets(limit: Policy) -> (Memory, u32) {
    let memory = limiter(limit, 1, 1 << 6, 2);
    assert!(packet(&memory, 7).passes());
    // Two ways are for other limits.
    (100..100 + WAYS - 3).for_each(|number| assert!(packet(&memory, number).passes()));
    memory.advance(1000 * PERIOD);
    let first = (0..WAYS).find(|way| Ways::new(DEFAULT_SLOT, 1).not(*way) == 0);
    let begins = |number| memory.cpu(0).hash(source(number)).0 as u32 % WAYS;
    let other = (200..).find(|&number| Some(begins(number)) == first);
    (memory, other.expect("one in eight"))
}

/// A source sends all the time that another CPU takes to get its bucket, which was full.
#[test]
fn who_makes_room_is_limited_meanwhile() {
    explore(SCHEDULES, || {
        let (memory, other) = with_idle_buckets(quick(8));
        let memory = Arc::new(memory);
        let passed = at_once(&memory, &[&[7; 16], &[other]]) - 1;
        memory.assert_sound();
        // It may meet the other one once between two looks.
        assert!((8..=9).contains(&passed), "{passed} of 8");
    });
}

#[test]
fn nobody_is_denied_for_who_has_got_its_slot() {
    explore(SCHEDULES, || {
        let (memory, other) = with_idle_buckets(policy(10, 5));
        let memory = Arc::new(memory);
        let passed = each_at_once(&memory, &[&[7], &[other; 7]]);
        assert_eq!(passed[0], 1);
        assert!(packet(&memory, 7).passes());
    });
}

#[test]
fn who_gets_a_slot_is_not_denied_for_who_had_it() {
    explore(SCHEDULES, || {
        let (memory, other) = with_idle_buckets(policy(10, 5));
        assert_eq!(in_turn(&memory, 7, 5), 5);
        // Those that are over their limit keep their buckets.
        (100..100 + WAYS - 3).for_each(|number| assert_eq!(in_turn(&memory, number, 6), 5));
        memory.advance(PERIOD);
        atomic::store(&memory.config.on_full, on_full::EVICT_OLDEST);
        let memory = Arc::new(memory);
        let passed = each_at_once(&memory, &[&[7], &[other; 2]]);
        assert_eq!(passed[1], 2);
        assert_eq!(in_turn(&memory, other, 2), 2);
    });
}

#[test]
fn sources_that_share_a_limit_get_it_together() {
    explore(SCHEDULES, || {
        let mut memory = limiter(Policy::unlimited(1), 1, 1 << 6, 3);
        memory.policies.push(quick(3));
        memory.share_all(2);
        let memory = Arc::new(memory);
        let passed = at_once(&memory, &[&[7, 7], &[8, 8], &[9, 9]]);
        assert!((3..=5).contains(&passed), "{passed} of 3");
        memory.advance(2 * PERIOD);
        assert_eq!(passed + in_turn(&memory, 7, 9), 5);
    });
}

/// CPUs draw batches, take from them and are asked for them back, all at once: whatever passed is charged, no more and
/// no less.
fn tokens_are_drawn_and_taken_back(limit: Policy, tiers: usize) {
    let mut memory = limiter(Policy::unlimited(1), 1, 1 << 6, 3);
    memory.policies.push(limit.shared_by_sources(3, 0));
    memory.share_all(2);
    let start = ticks(memory.time());
    let memory = Arc::new(memory);
    let daemon = {
        let memory = Arc::clone(&memory);
        shuttle::thread::spawn(move || (0..3).for_each(|_| memory.take_back()))
    };
    let passed = at_once(&memory, &[&[7, 7, 7], &[8, 8, 8], &[9, 9, 9]]);
    daemon.join().expect("the daemon ends");
    assert_eq!(passed, 9, "there is enough for all");
    memory.take_back();
    let (shared, policy) = (&memory.shared[0], &memory.policies[2]);
    let words = [(&shared.tat, &policy.first), (&shared.second_tat, &policy.second)];
    for (tat, tier) in words.into_iter().take(tiers) {
        let owed = atomic::load(tat).saturating_sub(start);
        assert_eq!(owed, passed * tier.cost(100));
    }
    assert_eq!(memory.shared_counts(0), [9, 0, 900]);
}

#[test]
fn tokens_that_cpus_hold_are_neither_lost_nor_used_twice() {
    // So many packets a millisecond that a CPU draws some at once.
    let one = Policy::new(tier(100_000, 9000));
    assert!(one.shared_by_sources(3, 0).sharing.first_batch > 0);
    explore(SCHEDULES, move || tokens_are_drawn_and_taken_back(one, 1));
    explore(SCHEDULES, move || tokens_are_drawn_and_taken_back(one.and(tier(100_000, 7000)), 2));
}
