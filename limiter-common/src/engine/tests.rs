use super::memory::{DEFAULT_SLOT, Memory};
use super::*;
use crate::abi::{CompiledTier, EventKind, PolicyWord, TOTAL_STEP, Terms, Tier, on_full};
use crate::gate::gate;
use crate::gcra::TICKS_PER_NS;
use crate::hash::HashKey;
use crate::lists::{Action, Entry};
use crate::promotions::Budget;
use crate::shared::TOTAL_SLOT;
use crate::sketch::Total;
use crate::table::{CLAIMED, FILLED, WAYS, fingerprint};
use proptest::prelude::*;
use std::collections::HashMap;
use std::vec::Vec;

/// Nanoseconds in which a bucket of [`quick`] earns a packet.
pub(super) const PERIOD: u64 = 1_000_000;

pub(super) fn policy(rate: u64, burst: u64) -> Policy {
    Policy::new(tier(rate, burst))
}

/// A limit of 1000 packets a second under which each packet counts from the first.
pub(super) fn quick(burst: u64) -> Policy {
    Policy { gate: 1, ..policy(1000, burst) }
}

pub(super) fn tier(rate: u64, burst: u64) -> CompiledTier {
    let fixed = 1_000_000_000 * TICKS_PER_NS / rate;
    let per_window = rate * Window { shift: 27 }.ns() / 1_000_000_000;
    CompiledTier {
        tier: Tier::of_packets(fixed, fixed * burst),
        terms: Terms::of_bucket(rate, 1_000_000_000, burst, Terms::PACKETS),
        gate: gate(burst, per_window),
    }
}

pub(super) fn limiter(default: Policy, sets: u32, width: u32, cpus: u32) -> Memory {
    let mut x = 0x5eedu64;
    let words = [(); 10].map(|()| {
        x = (x ^ (x >> 31u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15u64).wrapping_add(77);
        x
    });
    let shape = Shape { mask: width - 1, depth: 4 };
    Memory::new(default, sets, shape, Window { shift: 27 }, HashKey { words }, cpus)
}

pub(super) fn source(number: u32) -> SourceKey {
    SourceKey::from_ipv4(number.to_be_bytes())
}

/// A packet of a source on the first CPU.
pub(super) fn packet(memory: &Memory, number: u32) -> Reason {
    memory.packet(source(number), 100)
}

/// The exact bucket of a source, as if every packet were charged.
#[derive(Default)]
struct Exact {
    tat: u64,
    admitted: Vec<u64>,
    /// Whether it was ever over its limit.
    denied: bool,
}

fn gap() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0u64),
        1u64..100_000,
        500_000u64..2_000_000,
        1u64..200_000_000,
        1u64..3_000_000_000
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// P1 and P2 at once, over a few sources in a tiny table: a packet that the exact bucket admits
    /// is never dropped, and nobody gets more than burst + rate·T + max(2, burst/8).
    #[test]
    fn nobody_conforming_is_dropped_and_nobody_gets_more(
        rate in prop_oneof![5u64..100, 100u64..10_000],
        burst in prop_oneof![1u64..20, 20u64..400],
        sets in prop_oneof![Just(1u32), Just(64)],
        stream in prop::collection::vec((0u32..10, gap(), 1u32..60), 1..300),
    ) {
        let limit = policy(rate, burst);
        // With one set of eight ways, ten sources evict one another.
        let memory = limiter(limit, sets, 1 << 12, 1);
        let mut exact: HashMap<u32, Exact> = HashMap::new();
        let mut now = memory.time();
        for (number, gap, count) in stream {
            now += gap;
            memory.set_time(now);
            let reference = exact.entry(number).or_default();
            for _ in 0..count {
                let reason = packet(&memory, number);
                let start = reference.tat.max(now * TICKS_PER_NS);
                let next = start + limit.first.fixed;
                let conforms_at = |ns: u64| next <= ns * TICKS_PER_NS + limit.first.tolerance;
                if conforms_at(now) {
                    // A source that was over its limit may have to wait for the coarse clock.
                    let must = !reference.denied || conforms_at(memory.coarse_time());
                    if must && memory.internal(Internal::SetFull) == 0 {
                        prop_assert!(reason.passes(), "conforming packet of {} dropped", number);
                    }
                    if reason.passes() {
                        reference.tat = next;
                    }
                } else if reason.passes() {
                    // Passed by the gate: the exact bucket is in debt for it, so that "conforming"
                    // above means conforming with respect to all that was admitted.
                    reference.tat = next;
                }
                if reason.passes() {
                    reference.admitted.push(now);
                } else {
                    reference.denied = true;
                }
            }
        }
        if memory.internal(Internal::SetFull) > 0 {
            return Ok(());
        }
        let allowance = 2.max(burst / 8);
        for (source, reference) in exact {
            let times = &reference.admitted;
            for (i, &from) in times.iter().enumerate().step_by(7) {
                for (j, &to) in times.iter().enumerate().skip(i) {
                    let most = burst + allowance + (to - from) * rate / 1_000_000_000 + 1;
                    let admitted = (j - i + 1) as u64;
                    prop_assert!(admitted <= most, "source {}: {} > {}", source, admitted, most);
                }
            }
        }
    }

    /// P1 under a saturated sketch: with 16 columns everything collides, still nobody pays for others.
    #[test]
    fn noise_costs_a_conforming_source_nothing(
        seed in 0u32..1000, others in 50u32..400, burst in 16u64..200,
    ) {
        let memory = limiter(policy(1000, burst), 256, 16, 2);
        for round in 0..3u32 {
            for i in 0..others {
                packet(&memory, seed * 1_000_000 + round * 1000 + i);
            }
            memory.advance(7_000_000);
        }
        memory.advance(50_000_000);
        for i in 0..burst {
            let reason = packet(&memory, u32::MAX);
            prop_assert!(reason.passes(), "packet {} of {}: {:?}", i, burst, reason);
        }
    }
}

/// A packet of a source, in a table of one set.
fn arrival(memory: &Memory, number: u32) -> Arrival {
    Arrival {
        source: source(number),
        classified: Classified::NONE,
        hash: memory.cpu(0).hash(source(number)),
        coarse_ns: memory.coarse_time(),
        wall_ns: memory.coarse_time(),
        published: PolicyWord::new(1, DEFAULT_SLOT),
        length: 100,
        set: 0,
    }
}

/// Adds a packet to the sketch: whether its source is below a gate of 3, and whether it is the source's first one.
fn add(memory: &Memory, number: u32) -> (bool, bool) {
    let packet = arrival(memory, number);
    let added = sketched::add(&memory.cpu(0), &memory.config, &packet, 3).unwrap();
    (added.below, added.first)
}

#[test]
fn a_slot_that_is_another_source_s_or_being_filled_is_not_charged() {
    let memory = limiter(policy(1, 8), 1, 1 << 10, 2);
    assert!(packet(&memory, 7).passes());
    let (tag, bucket) = memory.bucket(source(7)).unwrap();
    let tat = bucket.tats[0];
    let index = memory.slots.iter().position(|slot| atomic::load(&slot.tag) == tag).unwrap() as u32;
    let charge = |number| steps::charge(&memory.cpu(0), &arrival(&memory, number), index).unwrap();
    let before = atomic::load(tat);
    assert_eq!((charge(8), atomic::load(tat)), (Attempt::Contended, before));
    assert_eq!(charge(7), Attempt::Done(Reason::Conforming));
    atomic::store(tat, CLAIMED);
    assert_eq!((charge(7), atomic::load(tat)), (Attempt::Contended, CLAIMED));
}

#[test]
fn a_packet_below_the_gate_is_told_by_the_sketch_alone() {
    let memory = limiter(policy(1000, 1000), 8, 1 << 10, 1);
    let added = [(); 3].map(|()| add(&memory, 1));
    assert_eq!(added, [(true, true), (true, false), (false, false)]);
    // All sources in one cell of each row: who has not been there is below the gate, however full that is.
    let memory = limiter(policy(1000, 1000), 8, 1, 1);
    for _ in 0..9 {
        add(&memory, 1);
    }
    let fresh = (2..40).map(|number| add(&memory, number)).find(|(_, first)| *first);
    assert_eq!(fresh, Some((true, true)));
}

#[test]
fn the_sketch_knows_how_full_it_is() {
    let memory = limiter(policy(1000, 1000), 8, 1 << 16, 1);
    for number in 0..3 * TOTAL_STEP + 7 {
        add(&memory, number as u32);
    }
    let now = memory.cpu(0).window().position(memory.coarse_time());
    let total = Total::at(&memory.config.sketch_total, now).current();
    assert_eq!(u64::from(total), 3 * TOTAL_STEP);
}

#[test]
fn random_sources_get_no_bucket_and_disturb_none() {
    let memory = limiter(policy(1000, 100), 1024, 1 << 16, 1);
    let mut random = 88_172_645_463_325_252u64;
    let mut limited = 0;
    for i in 0..200_000u32 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        assert!(packet(&memory, random as u32 | 1).passes());
        if i % 4 == 0 {
            limited += u32::from(packet(&memory, 2).passes());
        }
        memory.advance(10_000);
    }
    assert_eq!(memory.internal(Internal::Promotions), 1);
    // Two seconds at 1000 pps and a burst of 100, and at most the gate; the tokens of the last tick
    // may be due yet.
    assert!((2096..=2112).contains(&limited), "{limited}");
}

#[test]
fn random_sources_get_no_bucket_where_they_fill_the_sketch_beyond_a_small_gate() {
    let memory = limiter(policy(50, 2000), 4096, 1 << 10, 1);
    assert_eq!(memory.policies[DEFAULT_SLOT as usize].gate, 4);
    // Two seconds of 75,000 a second: ten in a cell and epoch, of none of which another packet comes. One source
    // among them sends five in each epoch, which is more than passes below the gate.
    for i in 0..150_000u32 {
        assert!(packet(&memory, i << 8 | 1).passes());
        if i % 2000 == 0 {
            assert!(packet(&memory, 2).passes());
        }
        memory.advance(13_333);
    }
    let promotions = memory.internal(Internal::Promotions);
    assert!(promotions < 4_000, "{promotions}");
    assert!(memory.tracked().any(|(key, ..)| key == source(2)), "it sends more than its gate");
}

#[test]
fn what_a_bucket_knows_to_be_over_its_limit_is_dropped_on_any_cpu_until_it_has_a_token() {
    let memory = limiter(policy(20, 100), 8, 1 << 10, 3);
    while packet(&memory, 1).passes() {}
    let dropped = || memory.tracked().map(|(.., dropped)| dropped).sum::<u64>();
    assert_eq!(dropped(), 1);
    // A token every 50 ms.
    memory.advance(30_000_000);
    assert_eq!(memory.cpu(1).packet(source(1), 100), Reason::OverLimit);
    assert_eq!(dropped(), 2);
    memory.advance(24_000_000);
    assert_eq!(memory.cpu(2).packet(source(1), 100), Reason::Conforming);
    assert_eq!(memory.cpu(2).packet(source(1), 100), Reason::OverLimit);
}

#[test]
fn a_source_on_many_cpus_gets_exactly_its_burst() {
    for round in 0..20 {
        let memory = limiter(policy(1, 1000), 64, 1 << 10, 4);
        let passed: usize = std::thread::scope(|scope| {
            let threads = [0, 1, 2, 3].map(|number| {
                let cpu = memory.cpu(number);
                let passes = move |_: &u32| cpu.packet(source(round), 100).passes();
                scope.spawn(move || (0..1000).filter(passes).count())
            });
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        // The clock stands still. A gate of 1 charges every packet; up to three other CPUs may lose
        // one charge each to a promotion in parallel.
        assert!((1000..=1003).contains(&passed), "round {round}: {passed}");
    }
}

#[test]
fn a_cpu_that_is_stopped_while_it_fills_a_way_lets_nobody_pass() {
    // A virtual CPU may be stopped at any point, and the others go on for milliseconds.
    let stopped = |prepare: fn(&Memory)| {
        let memory = limiter(policy(1, 100), 1, 1 << 10, 2);
        prepare(&memory);
        (0..1000).filter(|_| packet(&memory, 1).passes()).count()
    };
    // Before its source is named: the others take another way.
    assert_eq!(stopped(|memory| atomic::store(&memory.slots[0].tat, CLAIMED)), 100);
    // After it, and before the way is opened: they open it.
    assert_eq!(
        stopped(|memory| {
            packet(memory, 1);
            let tat = &memory.slot_of(source(1)).unwrap().tat;
            atomic::store(tat, atomic::load(tat) | FILLED);
        }),
        99
    );
}

#[test]
fn neighbours_with_the_same_fingerprint_have_a_bucket_each() {
    let memory = limiter(policy(1, 100), 1, 1 << 10, 1);
    // A search that borrows takes an empty way for one with a fingerprint of 1, if the way below has that.
    let has_one = |number: &u32| fingerprint(memory.cpu(0).hash(source(*number))) == 1;
    let alike: Vec<u32> = (0..).filter(has_one).take(3).collect();
    for number in alike {
        assert_eq!((0..1000).filter(|_| packet(&memory, number).passes()).count(), 100, "{number}");
    }
    assert_eq!(memory.internal(Internal::Contended), 0);
}

#[test]
fn a_full_set_does_as_configured() {
    for (choice, expected) in [
        (on_full::PASS, Reason::PassedSetFull),
        (on_full::DROP, Reason::DroppedSetFull),
        (on_full::EVICT_OLDEST, Reason::Conforming),
    ] {
        let memory = limiter(policy(1, 8), 1, 1 << 10, 1);
        atomic::store(&memory.config.on_full, choice);
        // A limit of gate 1 leaves two ways to others. Each of these owes more than a packet or two.
        for source in 0..WAYS - 2 {
            assert!((0..3).all(|_| packet(&memory, source) == Reason::Conforming));
        }
        assert_eq!(packet(&memory, 99), expected);
        assert_eq!(memory.internal(Internal::SetFull), 1);
        assert_eq!((memory.events(), memory.last_event()), (1, Some(EventKind::SetFull)));
        let evicted = u64::from(choice == on_full::EVICT_OLDEST);
        assert_eq!(memory.internal(Internal::BusyEvictions), evicted);
        // Once the buckets are full again, one is replaced and nothing is lost.
        memory.advance(3_100_000_000);
        assert_eq!(packet(&memory, 100), Reason::Conforming);
        assert_eq!(memory.internal(Internal::Evictions), 1);
    }
}

#[test]
fn whoever_owes_a_packet_or_two_makes_room_and_whoever_is_limited_does_not() {
    for choice in [on_full::PASS, on_full::DROP, on_full::EVICT_OLDEST] {
        let memory = limiter(policy(1, 8), 1, 1 << 10, 1);
        atomic::store(&memory.config.on_full, choice);
        // One is over its limit, and will be full again long before the others.
        for _ in 0..9 {
            packet(&memory, 7);
        }
        memory.advance(7_000_000_000);
        for source in 0..1000 {
            assert_eq!(packet(&memory, 1000 + source), Reason::Conforming, "{choice}");
        }
        assert_eq!(memory.internal(Internal::SetFull), 0);
        let (_, passed, dropped) =
            memory.tracked().find(|(found, ..)| *found == source(7)).expect("it keeps its bucket");
        assert_eq!((passed, dropped), (8, 1));
        // All are over their limit: nobody makes room.
        for number in 1995..2000 {
            assert!((0..9).any(|_| !packet(&memory, number).passes()));
        }
        let tracked = memory.tracked().count();
        let full =
            if choice == on_full::DROP { Reason::DroppedSetFull } else { Reason::PassedSetFull };
        assert!((0..9).any(|number| packet(&memory, 3000 + number) == full), "{choice}");
        assert_eq!(memory.tracked().count(), tracked);
    }
}

/// A set in which six sources, all that there may be, each have sent so many packets.
fn filled(packets: u32) -> Memory {
    let memory = limiter(policy(1, 8), 1, 1 << 10, 1);
    for number in 0..WAYS - 2 {
        for _ in 0..packets {
            packet(&memory, number);
        }
    }
    assert_eq!(memory.tracked().count(), 6);
    memory
}

#[test]
fn whoever_is_limited_keeps_its_bucket_before_whoever_owes_more() {
    // All owe more than a packet or two. One is over its limit, and denies for so long that its slot notes it.
    for limited in 0..WAYS - 2 {
        let memory = filled(4);
        atomic::store(&memory.config.on_full, on_full::EVICT_OLDEST);
        while packet(&memory, limited).passes() {}
        assert!(!packet(&memory, limited).passes());
        for newcomer in 100..110 {
            for _ in 0..5 {
                packet(&memory, newcomer);
            }
        }
        assert_eq!(memory.internal(Internal::BusyEvictions), 10);
        assert!(memory.bucket(source(limited)).is_some(), "{limited}");
    }
}

#[test]
fn nobody_makes_room_where_all_are_limited() {
    let mut memory = limiter(policy(1, 8), 1, 1 << 10, 1);
    atomic::store(&memory.config.on_full, on_full::EVICT_OLDEST);
    // Two ways are for other limits.
    memory.policies.push(Policy { gate: 2, ..policy(1, 8) });
    memory.publish(2, DEFAULT_SLOT);
    for number in 0..WAYS {
        if number >= WAYS - 2 {
            memory.limits.insert((0, source(number)), 2);
        }
        // For so long that each slot notes it.
        assert!((0..20).any(|_| !packet(&memory, number).passes()), "{number}");
    }
    assert_eq!(memory.tracked().count(), WAYS as usize);
    for newcomer in 100..120 {
        assert_eq!(packet(&memory, newcomer), Reason::PassedSetFull);
    }
    assert!((0..WAYS).all(|number| memory.bucket(source(number)).is_some()));
}

#[test]
fn a_bucket_begins_with_the_floor_of_its_own_policy() {
    let floor = crate::share::Multiplier::from_units(1 << 31);
    let shared = quick(8).shared_by_hosts(floor, [0; 2]);
    let floor_of = |policy, features, left: u64| {
        let mut memory = limiter(policy, 1, 1 << 10, 1);
        memory.features = features;
        for slot in 0..WAYS {
            atomic::store(&memory.cpu(0).share(slot).unwrap().floor, left);
        }
        assert!(packet(&memory, 7).passes());
        atomic::load(&memory.bucket(source(7)).unwrap().1.share.floor)
    };
    assert_eq!(floor_of(shared, Features::ALL, 0), u64::from(floor.0));
    // What a source under a limit of the cluster has left means nothing to one that is not.
    assert_eq!(floor_of(quick(8), Features::ALL, 5), 0);
    // Nobody looks at the line where there never was such a limit, so nobody writes it.
    assert_eq!(floor_of(quick(8), Features::NONE, 5), 5);
}

#[test]
fn a_smaller_floor_is_noted_and_a_larger_one_is_not() {
    let floor = |units| crate::share::Multiplier::from_units(units);
    let of = |units| quick(8).shared_by_hosts(floor(units), [0; 2]);
    let mut memory = limiter(of(1 << 30), 1, 1 << 10, 1);
    assert!(packet(&memory, 7).passes());
    let noted = |memory: &Memory| {
        packet(memory, 7);
        atomic::load(&memory.bucket(source(7)).unwrap().1.share.floor)
    };
    // The daemon brings a larger one to the buckets itself.
    for (generation, units, expected) in [(2, 1 << 31, 1 << 30), (3, 1 << 29, 1 << 29)] {
        memory.policies[DEFAULT_SLOT as usize] = of(units);
        memory.publish(generation, DEFAULT_SLOT);
        assert_eq!(noted(&memory), u64::from(floor(expected).0), "{units}");
    }
}

#[test]
fn a_large_table_has_a_budget_of_promotions_that_fits_it() {
    let (sets, cpus) = (1 << 17, 64);
    let memory = limiter(quick(8), sets, 64, cpus);
    assert!(packet(&memory, 7).passes());
    let buckets = u64::from(sets) * u64::from(WAYS);
    assert!(buckets > crate::promotions::MIN_BUCKETS);
    let drawn = Budget::new(buckets, cpus.into()).draw(0, ticks(memory.time()));
    assert_eq!(memory.cpu(0).promotions().map(atomic::load), drawn);
}

#[test]
fn nobody_waits_for_a_slot_that_is_being_filled_where_all_others_are_limited() {
    for claimed in 0..WAYS - 2 {
        let memory = filled(20);
        atomic::store(&memory.slot_of(source(claimed)).unwrap().tat, CLAIMED);
        assert_eq!(packet(&memory, 100), Reason::PassedSetFull, "{claimed}");
    }
}

#[test]
fn a_bucket_that_has_just_become_full_is_no_loss() {
    let memory = filled(4);
    let (_, bucket) = memory.bucket(source(0)).unwrap();
    atomic::store(bucket.tats[0], ticks(memory.time()));
    assert!(packet(&memory, 100).passes());
    let counts = [Internal::Evictions, Internal::BusyEvictions].map(|what| memory.internal(what));
    assert_eq!(counts, [1, 0]);
}

#[test]
fn what_passed_below_the_gate_is_owed_by_all_tiers_and_the_shadow() {
    let gated = |rate, burst| CompiledTier { gate: 16, ..tier(rate, burst) };
    let sent = 200;
    for policy in [
        Policy::new(gated(1, 100)),
        Policy::new(gated(1, 1000)).and(gated(1, 100)),
        Policy::new(gated(1, 1000)).with_shadow(gated(1, 100), 1),
    ] {
        // So many columns that nothing may be other sources'.
        let memory = limiter(policy, 8, 1 << 16, 1);
        let passed = (0..sent).filter(|_| packet(&memory, 1).passes()).count();
        let would_pass = sent - memory.shadow_drops().next().unwrap().1 as usize;
        assert_eq!(passed.min(would_pass), 100);
    }
}

#[test]
fn what_a_source_has_earned_since_its_first_packet_is_not_owed() {
    // A token each 10 ms.
    let memory = limiter(Policy { gate: 16, ..policy(100, 200) }, 8, 1 << 16, 1);
    assert!(packet(&memory, 1).passes());
    // Between two ticks of the coarse clock.
    memory.advance(83_000_000);
    let passed = 1 + (0..500).filter(|_| packet(&memory, 1).passes()).count();
    assert!((208..=209).contains(&passed), "{passed}");
}

#[test]
fn a_flood_under_a_slow_limit_leaves_room_to_other_limits() {
    let mut memory = limiter(policy(1000, 1000), 1, 1 << 10, 1);
    memory.policies[1].gate = 2;
    // Slot 2: all that the flood sends is limited to a packet a minute.
    memory.policies.push(policy(1, 1));
    memory.publish(2, 1);
    for number in 0..100 {
        memory.limits.insert((0, source(1000 + number)), 2);
    }
    for number in 0..100 {
        // The second packet is over the limit, and makes the bucket one that stays.
        packet(&memory, 1000 + number);
        packet(&memory, 1000 + number);
    }
    assert!(memory.internal(Internal::SetFull) > 0, "the flood has not taken what it may");
    for number in [1, 2] {
        let passed = (0..3000).filter(|_| packet(&memory, number).passes()).count();
        assert!(passed <= 1002, "{number}: {passed}");
    }
}

#[test]
fn busy_sources_in_a_full_set_do_not_take_turns_with_one_bucket() {
    let mut memory = limiter(policy(100, 100), 1, 1 << 10, 1);
    memory.policies[1].gate = 2;
    // Slot 2: each source of the flood sends the one packet that it may, and comes no more.
    memory.policies.push(policy(1, 1));
    memory.publish(2, 1);
    for number in 0..WAYS {
        memory.limits.insert((0, source(1000 + number)), 2);
        packet(&memory, 1000 + number);
    }
    // More than the ways that the flood leaves free, each at five times its limit for a second. Their buckets will be
    // full long before those of the flood.
    let mut passed = [0; 4];
    for _ in 0..500 {
        for (number, passed) in (0..).zip(&mut passed) {
            memory.advance(500_000);
            *passed += u32::from(packet(&memory, number).passes());
        }
    }
    assert!(passed.iter().all(|passed| *passed <= 216), "{passed:?}");
}

#[test]
fn what_was_overdrawn_is_owed() {
    let memory = limiter(policy(10, 10), 64, 1 << 10, 4);
    let period = 100_000_000;
    let passes = |memory: &Memory| packet(memory, 7).passes();
    assert_eq!((0..20).filter(|_| passes(&memory)).count(), 10);
    // Three other CPUs had a packet each for which the last token was there a moment ago.
    let overdraw = |memory: &Memory| {
        let (_, bucket) = memory.bucket(source(7)).unwrap();
        atomic::add(bucket.tats[0], 3 * bucket.policy.first.fixed);
    };
    overdraw(&memory);
    // Neither a packet nor a change of lists or other limits forgives it.
    for generation in 2..5 {
        assert!(!passes(&memory));
        memory.publish(generation, 1);
        assert!(!passes(&memory));
        memory.advance(period);
    }
    assert!(!passes(&memory), "paid back, and empty");
    memory.advance(period);
    assert!(passes(&memory));
    assert!(!passes(&memory));
}

#[test]
fn a_source_owes_what_each_cpu_may_have_overdrawn_unless_its_limit_is_another_one() {
    let mut memory = limiter(policy(10, 10), 64, 1 << 10, 4);
    memory.policies.push(policy(10, 10));
    while packet(&memory, 7).passes() {}
    let (_, bucket) = memory.bucket(source(7)).unwrap();
    let (tolerance, cost) = (bucket.policy.first.tolerance, bucket.policy.first.fixed);
    let now = ticks(memory.time());
    // One packet for each of four CPUs, however far in debt it was.
    for (generation, slot, overdrawn) in [(2, 1, 4), (3, 1, 4), (4, 2, 0), (5, 2, 4)] {
        atomic::add(bucket.tats[0], 100 * cost);
        memory.publish(generation, slot);
        assert!(!packet(&memory, 7).passes());
        let owed = tolerance + overdrawn * cost;
        assert_eq!(atomic::load(bucket.tats[0]), now + owed, "{generation}");
    }
}

#[test]
fn a_change_of_limits_does_not_open_a_slot_that_is_being_filled() {
    let memory = limiter(policy(1, 8), 1, 1 << 10, 2);
    assert!(packet(&memory, 7).passes());
    let (_, bucket) = memory.bucket(source(7)).unwrap();
    atomic::store(bucket.tats[0], CLAIMED);
    memory.publish(2, DEFAULT_SLOT);
    packet(&memory, 7);
    assert_eq!(atomic::load(bucket.tats[0]), CLAIMED);
}

/// Asserts that a source which has overdrawn its ten packets a second by three waits for them, and for the next one.
fn pays_back_three(memory: &Memory) {
    let passes = || packet(memory, 7).passes();
    for _ in 0..4 {
        assert!(!passes());
        memory.advance(100_000_000);
    }
    assert!(passes());
    assert!(!passes());
}

#[test]
fn each_tier_owes_what_was_overdrawn_of_it() {
    // A packet costs a hundred times as much of the second tier as of the first.
    let both = policy(1000, 1000).and(tier(10, 10));
    let memory = limiter(both, 64, 1 << 10, 4);
    let passes = |memory: &Memory| packet(memory, 7).passes();
    assert_eq!((0..20).filter(|_| passes(&memory)).count(), 10);
    let (_, bucket) = memory.bucket(source(7)).unwrap();
    atomic::add(bucket.tats[1], 3 * both.second.fixed);
    memory.publish(2, 1);
    pays_back_three(&memory);
}

#[test]
fn a_charge_that_comes_late_does_not_open_a_slot_that_is_being_filled() {
    let memory = limiter(policy(1, 8), 1, 1 << 10, 2);
    // Two ways are for limits that are not as slow.
    let others = [1, 2, 3, 4, 5];
    for number in others.into_iter().chain([0]) {
        // The others owe too much to make room.
        let packets = if number == 0 { 1 } else { 3 };
        assert!((0..packets).all(|_| packet(&memory, number).passes()));
    }
    let (tag, bucket) = memory.bucket(source(0)).unwrap();
    atomic::store(bucket.tats[0], CLAIMED);
    atomic::add(bucket.tats[0], bucket.policy.first.fixed);
    assert_eq!(packet(&memory, 100), Reason::PassedSetFull);
    assert_eq!(atomic::load(bucket.tag), tag);
}

#[test]
fn shared_limits_owe_what_was_overdrawn() {
    let mut memory = limiter(Policy::unlimited(1), 64, 1 << 10, 4);
    memory.policies.push(policy(10, 10));
    memory.share_all(2);
    let passes = |memory: &Memory| packet(memory, 7).passes();
    assert_eq!((0..20).filter(|_| passes(&memory)).count(), 10);
    atomic::add(&memory.shared[0].tat, 3 * memory.policies[2].first.fixed);
    pays_back_three(&memory);
}

#[test]
fn a_new_policy_applies_to_the_next_packet() {
    let mut memory = limiter(policy(1, 10), 64, 1 << 10, 1);
    assert_eq!((0..20).filter(|_| packet(&memory, 7).passes()).count(), 10);
    // Slot 2 for this source alone: ten times the rate. The bucket stays empty, then fills faster.
    memory.policies.push(policy(10, 100));
    memory.limits.insert((0, source(7)), 2);
    memory.publish(2, 1);
    assert_eq!(packet(&memory, 7), Reason::OverLimit);
    memory.advance(1_000_000_000);
    assert_eq!((0..20).filter(|_| packet(&memory, 7).passes()).count(), 10);
    // Unlimited: passes and stays tracked.
    memory.limits.insert((0, source(7)), 0);
    memory.publish(3, 1);
    assert!((0..1000).all(|_| packet(&memory, 7) == Reason::Conforming));
    assert_eq!(memory.internal(Internal::Promotions), 1);
    // One event, for the first drop.
    assert_eq!(memory.events(), 1);
}

#[test]
fn events_of_a_kind_are_rationed() {
    let memory = limiter(policy(1, 1), 4096, 1 << 10, 1);
    for source in 0..1000 {
        assert!(packet(&memory, source).passes());
        assert_eq!(packet(&memory, source), Reason::OverLimit);
    }
    assert_eq!((memory.events(), memory.last_event()), (100, Some(EventKind::Limited)));
    assert_eq!(memory.internal(Internal::EventsSuppressed), 900);
    // A tenth of a second earns ten.
    memory.advance(100_000_000);
    for source in 1000..1020 {
        assert!(packet(&memory, source).passes());
        assert_eq!(packet(&memory, source), Reason::OverLimit);
    }
    assert_eq!((memory.events(), memory.internal(Internal::EventsLost)), (110, 0));
}

#[test]
fn a_frame_is_judged_by_its_source_alone() {
    let memory = limiter(policy(1, 2), 64, 1 << 10, 1);
    let mut frame = [0u8; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(judge(&memory.cpu(0), &frame[..]), Reason::NonIp);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    assert_eq!(judge(&memory.cpu(0), &frame[..]), Reason::PassedMalformed);
    atomic::store(&memory.config.drop_malformed, 1);
    assert_eq!(judge(&memory.cpu(0), &frame[..]), Reason::DroppedMalformed);
    // A header that lies about its length: malformed, and limited like any other.
    frame[14] = 0x41;
    frame[26..30].copy_from_slice(&[198, 51, 100, 7]);
    let verdicts = [(); 3].map(|()| judge(&memory.cpu(0), &frame[..]));
    assert_eq!(verdicts, [Reason::Conforming, Reason::Conforming, Reason::OverLimit]);
    assert_eq!(memory.internal(Internal::Malformed), 3);
}

/// Four threads send `each` packets of one source; returns how many met each reason that `which`
/// picks.
fn on_four_cpus(memory: &Memory, number: u32, each: u32, which: Reason) -> usize {
    std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3].map(|cpu| {
            let cpu = memory.cpu(cpu);
            let met = move |_: &u32| cpu.packet(source(number), 100) == which;
            scope.spawn(move || (0..each).filter(met).count())
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

#[test]
fn the_gate_lets_no_more_through_on_many_cpus() {
    let memory = limiter(policy(1000, 2_000_000), 64, 1 << 10, 4);
    // Fifteen, and what each of the other CPUs had in flight.
    let below = on_four_cpus(&memory, 7, 500, Reason::BelowGate);
    assert!((15..=18).contains(&below), "{below}");
    // Once it has a bucket, a lost compare-and-swap must not send a packet to the gate, where the
    // sketch has forgotten the source long ago.
    let mut round = 0;
    // On a busy machine one thread after the other may run: then they have not met yet.
    while round < 20 || memory.internal(Internal::Contended) == 0 {
        memory.advance(1_000_000_000);
        let below = on_four_cpus(&memory, 7, 20_000, Reason::BelowGate);
        assert_eq!(below, 0, "round {round}");
        round += 1;
        assert!(round < 2_000, "the threads never met");
    }
}

#[test]
fn a_denied_source_is_dropped_from_memory_and_counted_in_the_end() {
    // 100 pps: 2.5 ticks a token.
    let memory = limiter(policy(100, 100), 64, 1 << 10, 2);
    let end = memory.time() + 2_000_000_000;
    let (mut admitted, mut sent) = (0, 0u64);
    while memory.time() < end {
        for cpu in 0..2 {
            admitted += u64::from(memory.cpu(cpu).packet(source(7), 100).passes());
        }
        sent += 2;
        memory.advance(10_000);
    }
    // The burst, two seconds, and what went through below the gate, which the slot does not count.
    let below = 7;
    assert!((300..=300 + below).contains(&admitted), "{admitted}");
    let (_, passed, dropped) = memory.tracked().next().unwrap();
    assert_eq!(dropped, sent - admitted);
    assert!(admitted - passed <= below, "{admitted} {passed}");
}

#[test]
fn remembered_sources_make_room_for_one_another() {
    // Many more sources than a CPU remembers, all over their limit.
    let memory = limiter(policy(10, 10), 1024, 1 << 16, 1);
    let (sources, packets) = (4 * crate::drop_cache::DROP_CACHE_ENTRIES as u32, 100u64);
    for _ in 0..packets {
        for number in 0..sources {
            packet(&memory, number);
        }
        memory.advance(100_000);
    }
    let mut seen = 0;
    for (key, passed, dropped) in memory.tracked() {
        assert_eq!(passed + dropped, packets, "{key:?}");
        assert!((10..=11).contains(&passed), "{key:?} {passed}");
        seen += 1;
    }
    assert_eq!(seen, sources);
}

#[test]
fn waiting_for_the_coarse_clock_earns_nothing() {
    // 500 pps: two tokens a tick, so the bucket is in debt by the coarse clock most of the time. So
    // many sources that each is looked at in the table.
    let memory = limiter(policy(500, 64), 1024, 1 << 16, 1);
    let sources = 4 * crate::drop_cache::DROP_CACHE_ENTRIES as u32;
    let start = memory.time();
    while memory.time() < start + 1_000_000_000 {
        for number in 0..sources {
            packet(&memory, number);
        }
        memory.advance(700_000);
    }
    for (key, passed, _) in memory.tracked() {
        // Seven packets below the gate are not counted in the table.
        assert!((555..=565).contains(&passed), "{key:?} {passed}");
    }
}

#[test]
fn listed_sources_pass_or_are_dropped_whatever_they_send() {
    let mut memory = limiter(policy(1, 10), 64, 1 << 10, 1);
    let soon = (memory.time() / 1_000_000_000 + 2) as u32;
    memory.list(source(7), Entry::new(Action::Deny, 0));
    memory.list(source(8), Entry::new(Action::Allow, 0));
    memory.list(source(9), Entry::new(Action::Deny, soon));
    memory.list_prefix([198, 51, 100, 0], 24, Entry::new(Action::Deny, 0));
    memory.list_prefix([198, 51, 100, 128], 25, Entry::new(Action::Allow, 0));
    let inside = |last| u32::from_be_bytes([198, 51, 100, last]);
    for _ in 0..50 {
        assert_eq!(packet(&memory, 7), Reason::Denied);
        assert_eq!(packet(&memory, 8), Reason::Allowed);
        assert_eq!(packet(&memory, 9), Reason::Denied);
        assert_eq!(packet(&memory, inside(3)), Reason::Denied);
        assert_eq!(packet(&memory, inside(200)), Reason::Allowed);
        memory.advance(30_000_000);
    }
    // A neighbour is limited as ever.
    assert_eq!((0..20).filter(|_| packet(&memory, 10).passes()).count(), 10);
    assert_eq!(memory.internal(Internal::Promotions), 1);
    // Its time is over: it is an ordinary source again, also for the CPU that remembers it.
    memory.advance(600_000_000);
    assert_eq!(packet(&memory, 9), Reason::Conforming);
    assert_eq!(packet(&memory, 7), Reason::Denied);
}

#[test]
fn a_single_source_goes_before_its_prefixes() {
    let mut memory = limiter(policy(1, 10), 64, 1 << 10, 1);
    memory.list_prefix([198, 51, 100, 0], 24, Entry::new(Action::Deny, 0));
    let of = |last| SourceKey::from_ipv4([198, 51, 100, last]);
    memory.list(of(7), Entry::new(Action::Allow, 0));
    assert!((0..50).all(|_| memory.packet(of(7), 100) == Reason::Allowed));
    assert!((0..50).all(|_| memory.packet(of(8), 100) == Reason::Denied));
}

#[test]
fn packets_ask_no_filter_of_lists_that_are_empty() {
    let looks = |list: fn(&mut Memory), number| {
        let mut memory = limiter(policy(1, 10), 64, 1 << 10, 1);
        list(&mut memory);
        assert!(packet(&memory, number).passes());
        memory.list_looks()
    };
    let none: fn(&mut Memory) = |_| {};
    let single: fn(&mut Memory) = |memory| memory.list(source(7), Entry::new(Action::Allow, 0));
    let prefix: fn(&mut Memory) =
        |memory| memory.list_prefix([0, 1, 0, 0], 16, Entry::new(Action::Allow, 0));
    assert_eq!(looks(none, 7), 0);
    // The bitmap, then the filter, then the map.
    assert_eq!((looks(single, 1 << 16), looks(single, 7)), (1, 3));
    assert_eq!((looks(prefix, 7), looks(prefix, 1 << 16)), (1, 3));
    // The trie is the dearest, so neighbours of a listed network do not walk it.
    let narrow: fn(&mut Memory) =
        |memory| memory.list_prefix([0, 1, 2, 0], 24, Entry::new(Action::Allow, 0));
    let [near, within] = [1 << 16, 1 << 16 | 2 << 8 | 9];
    assert_eq!((looks(narrow, 7), looks(narrow, near), looks(narrow, within)), (1, 2, 3));
}

#[test]
fn what_is_dropped_or_allowed_takes_nothing_from_a_shared_limit() {
    let mut memory = limiter(quick(5), 64, 1 << 10, 1);
    memory.policies.push(quick(20));
    memory.share_all(2);
    memory.list(source(8), Entry::new(Action::Allow, 0));
    let passed = |number| (0..50).filter(|_| packet(&memory, number).passes()).count();
    assert_eq!((passed(7), passed(8)), (5, 50));
    assert_eq!(memory.shared_counts(TOTAL_SLOT)[..2], [5, 0]);
    // Full: who is allowed still passes.
    assert_eq!([1, 2, 3, 4].map(passed), [5, 5, 5, 0]);
    assert_eq!(passed(8), 50);
}

#[test]
fn a_source_with_a_bucket_is_looked_up_when_the_lists_change() {
    let mut memory = limiter(policy(1000, 100), 64, 1 << 10, 1);
    let tracked: Vec<_> = (0..20).map(|_| packet(&memory, 7)).collect();
    assert_eq!(tracked.last(), Some(&Reason::Conforming));
    let soon = (memory.time() / 1_000_000_000 + 2) as u32;
    for (generation, action, reason) in
        [(2, Action::Deny, Reason::Denied), (3, Action::Allow, Reason::Allowed)]
    {
        memory.list(source(7), Entry::new(action, soon));
        memory.publish(generation, DEFAULT_SLOT);
        // Every packet: it is not marked as one that is on no list.
        assert!((0..50).all(|_| packet(&memory, 7) == reason));
    }
    // Over, without a change.
    memory.advance(2_000_000_000);
    assert_eq!(packet(&memory, 7), Reason::Conforming);
    // Again in the generation in which it is marked, of which nobody has to hear yet.
    memory.list(source(7), Entry::new(Action::Deny, 0));
    assert_eq!(packet(&memory, 7), Reason::Conforming);
    memory.publish(4, DEFAULT_SLOT);
    assert_eq!(packet(&memory, 7), Reason::Denied);
}

#[test]
fn a_limit_that_is_not_enforced_drops_nothing_and_counts_the_same() {
    let enforced = policy(100, 100);
    let observed = enforced.observing();
    let counts = [enforced, observed].map(|policy| {
        let memory = limiter(policy, 64, 1 << 10, 1);
        let mut reasons: HashMap<Reason, u64> = HashMap::new();
        for _ in 0..5000 {
            *reasons.entry(packet(&memory, 7)).or_default() += 1;
            memory.advance(500_000);
        }
        let of = |reason| reasons.get(&reason).copied().unwrap_or_default();
        let (_, passed, dropped) = memory.tracked().next().unwrap();
        assert_eq!(dropped, of(Reason::OverLimit) + of(Reason::WouldDrop));
        assert_eq!(
            of(if policy.whole().observes() { Reason::OverLimit } else { Reason::WouldDrop }),
            0
        );
        (passed, dropped)
    });
    // But for the last tick.
    assert!(counts[0].1.abs_diff(counts[1].1) <= 1, "{counts:?}");
}

proptest! {
    /// Who uses no feature gets the same verdicts from a program without any.
    #[test]
    fn a_program_without_features_judges_as_one_with_all(
        rate in 5u64..10_000,
        burst in 1u64..200,
        packets in proptest::collection::vec((0u32..5, gap(), 34u32..1514, 0usize..2), 1..200),
    ) {
        let [mut without, with] = [(); 2].map(|()| limiter(policy(rate, burst), 2, 64, 2));
        without.features = Features::NONE;
        for (number, gap, length, cpu) in packets {
            let [one, other] = [&without, &with].map(|memory| {
                memory.advance(gap);
                memory.cpu(cpu).packet(source(number), length)
            });
            prop_assert_eq!(one, other);
        }
    }
}

#[test]
fn a_program_does_what_it_is_loaded_for() {
    // A packet a second, or two: each of the tiers is the narrower one in turn.
    let both = |first, second| quick(first).and(CompiledTier { gate: 1, ..tier(1000, second) });
    let passed = |features, policy| {
        let mut memory = limiter(policy, 4, 64, 1);
        memory.features = features;
        (0..100).filter(|_| packet(&memory, 1).passes()).count()
    };
    assert_eq!(passed(Features::ALL, both(20, 10)), 10);
    assert_eq!(passed(Features::SECOND_TIERS, both(20, 10)), 10);
    assert_eq!(passed(Features::NONE, both(20, 10)), 20);
    assert_eq!(passed(Features::NONE, both(10, 20)), 10);
    let passed = |features| {
        let mut memory = limiter(quick(100), 4, 64, 1);
        memory.features = features;
        memory.policies.extend([quick(40), quick(30)]);
        memory.share_all(2);
        memory.limit_groups(3, 48);
        memory.list(source(7), Entry::new(Action::Deny, 0));
        [1, 7].map(|number| (0..50).filter(|_| packet(&memory, number).passes()).count())
    };
    assert_eq!(passed(Features::NONE), [50, 50]);
    assert_eq!(passed(Features::AGGREGATES), [40, 0]);
    assert_eq!(passed(Features::LISTS), [50, 0]);
    assert_eq!(passed(Features::AGGREGATES.and(Features::LISTS)), [40, 0]);
    let needs = |policy: &Policy| Features::of_policy(policy);
    assert_eq!(needs(&both(1, 1).observing()), Features::SECOND_TIERS);
    assert_eq!(needs(&quick(1).with_shadow(tier(1, 1), 1)), Features::SHADOWS);
    assert!(Features::ALL.has(Features::LISTS.and(Features::CLASSES)));
    assert!(!Features::LISTS.has(Features::LISTS.and(Features::CLASSES)));
}

#[test]
fn a_flood_of_promotions_is_bounded_and_who_waits_passes() {
    use crate::promotions::MIN_BUCKETS;
    // Under a slow limit each new source wants a bucket at once, and owes nothing by the time of the next one.
    let memory = limiter(quick(8), 1 << 13, 64, 1);
    let flood = MIN_BUCKETS as u32 + 2000;
    let judged: Vec<Reason> = (0..flood).map(|at| packet(&memory, at)).collect();
    let deferred = judged.iter().filter(|reason| **reason == Reason::Deferred).count() as u64;
    let promoted = memory.internal(Internal::Promotions);
    assert!(judged.iter().all(|reason| reason.passes()));
    let asked = promoted + memory.internal(Internal::SetFull);
    // A promotion's cost is rounded down.
    assert!(asked <= MIN_BUCKETS + MIN_BUCKETS / 1000, "{asked}");
    assert!(deferred >= 1000, "{deferred}");
    // Half a second earns the whole budget, and the source that waited is limited from then on.
    memory.advance(500_000_000);
    let passed = (0..100).filter(|_| packet(&memory, flood - 1).passes()).count();
    assert_eq!(passed, 8);
}

proptest! {
    /// The search for a bucket and what the daemon calls held agree.
    #[test]
    fn a_newcomer_finds_no_room_where_all_buckets_are_held(
        packets in proptest::collection::vec(2u64..6, 8),
        pause in prop_oneof![Just(0u64), 1_000_000u64..8_000_000],
    ) {
        let memory = limiter(Policy { gate: 2, ..quick(4) }, 1, 64, 1);
        for (number, packets) in (0..).zip(packets) {
            // The first one passes below the gate.
            for _ in 0..=packets {
                packet(&memory, number);
            }
        }
        memory.advance(pause);
        let now = ticks(memory.time());
        let bucket = |number| memory.slot_of(source(number));
        let held = (0..8).filter(|number| bucket(*number).is_some_and(|slot| slot.is_held(now)));
        let is_full = held.count() == 8;
        let judged = [packet(&memory, 99), packet(&memory, 99)];
        prop_assert_eq!(judged.contains(&Reason::PassedSetFull), is_full);
        prop_assert_eq!(bucket(99).is_some(), !is_full);
    }
}
