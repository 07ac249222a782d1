//! Shared limits on many CPUs, each of which holds tokens.

use std::vec::Vec;

use proptest::prelude::*;

use super::memory::{Memory, TICK_NS};
use super::*;
use crate::abi::{CompiledTier, PolicyWord, Terms, Tier};
use crate::batch::{BATCHES_PER_CPU, MAX_HELD};
use crate::drop_cache::MIN_TOLERANCE;
use crate::gcra::{TICKS_PER_NS, Ticks, decide, ticks};
use crate::hash::HashKey;
use crate::share::{Grant, Multiplier};
use crate::share_change::{Bucket, Outcome};
use crate::shared::TOTAL_SLOT;

const MS: u64 = 1_000_000;
const LENGTH: u32 = 100;

/// So many packets a millisecond, and the burst in milliseconds.
fn packets(rate: u64, burst_ms: u64) -> Tier {
    let fixed = MAX_HELD / rate;
    Tier::of_packets(fixed, burst_ms * MAX_HELD)
}

/// So many bytes a millisecond.
fn bytes(rate: u64, burst_ms: u64) -> Tier {
    Tier::of_bytes(MAX_HELD / rate, 0, burst_ms * MAX_HELD)
}

fn compiled(tier: Tier) -> CompiledTier {
    CompiledTier { tier, terms: Terms::UNLIMITED, gate: 1 }
}

fn policy_of(tiers: &[Tier]) -> Policy {
    let policy = Policy::new(compiled(tiers[0]));
    tiers.get(1).map_or(policy, |second| policy.and(compiled(*second)))
}

/// Sources have no limits.
fn limiter(sets: u32, cpus: u32) -> Memory {
    let words = core::array::from_fn(|n| (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let shape = Shape { mask: (1 << 10) - 1, depth: 2 };
    let unlimited = Policy::unlimited(1);
    Memory::new(unlimited, sets, shape, Window { shift: 27 }, HashKey { words }, cpus)
}

/// All share `policy`.
fn total(policy: Policy, cpus: u32) -> Memory {
    let mut memory = limiter(1, cpus);
    memory.policies.push(policy);
    memory.share_all(2);
    memory
}

fn send(memory: &Memory, cpu: usize, length: u32) -> bool {
    memory.cpu(cpu).packet(SourceKey::from_ipv4([10, 0, 0, 1]), length).passes()
}

/// Packets that pass of `count`, on all CPUs in turn.
fn flood(memory: &Memory, count: usize) -> usize {
    (0..count).filter(|number| send(memory, *number, LENGTH)).count()
}

/// A bucket for all, without CPUs.
struct Exact<'a> {
    tiers: &'a [Tier],
    more: Ticks,
    tats: [Ticks; 2],
}

impl<'a> Exact<'a> {
    /// With room for so much `more` than the burst.
    fn new(tiers: &'a [Tier], more: Ticks) -> Self {
        Self { tiers, more, tats: [0; 2] }
    }

    fn admit(&mut self, now_ns: u64, length: u32) -> bool {
        let mut tats = self.tats;
        for (tier, tat) in self.tiers.iter().zip(&mut tats) {
            let tolerance = tier.tolerance + self.more;
            match decide(*tat, ticks(now_ns), tier.cost(length), tolerance) {
                Some(next) => *tat = next,
                None => return false,
            }
        }
        self.tats = tats;
        true
    }
}

/// What happens: time passes, then so many packets of a length come on a CPU, or what CPUs hold is taken back.
type Step = (u64, usize, u32, u32, bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![Just(0u64), 1u64..100_000, 1u64..30 * MS];
    prop::collection::vec(
        (gap, 0usize..8, 60u32..1515, 1u32..40, prop::bool::weighted(0.1)),
        1..150,
    )
}

fn tiers() -> impl Strategy<Value = Vec<Tier>> {
    let first = (1u64..60, 1u64..100).prop_map(|(rate, burst)| packets(rate, burst));
    let second = (500u64..50_000, 4u64..100).prop_map(|(rate, burst)| bytes(rate, burst));
    (first, prop::option::of(second), any::<bool>()).prop_map(|(first, second, swapped)| {
        let mut tiers: Vec<_> = [first].into_iter().chain(second).collect();
        if swapped {
            tiers.reverse();
        }
        tiers
    })
}

proptest! {
    /// In any time, whichever CPUs packets come on, no more passes than burst + rate · T and twice what CPUs may
    /// hold.
    #[test]
    fn no_more_passes_than_is_promised(tiers in tiers(), cpus in 1u32..9, steps in steps()) {
        let memory = total(policy_of(&tiers), cpus);
        // A bucket admits all of a stream just if no time has more than its burst and rate.
        let mut bound = Exact::new(&tiers, 2 * MAX_HELD);
        let mut small = Exact::new(&tiers, tiers.iter().map(|tier| tier.tolerance / 8).min().unwrap_or(0));
        for (gap, cpu, length, count, is_taken_back) in steps {
            memory.advance(gap);
            if is_taken_back {
                memory.take_back();
            }
            for _ in 0..count {
                if send(&memory, cpu, length) {
                    prop_assert!(bound.admit(memory.time(), length));
                    if tiers.len() == 1 {
                        prop_assert!(small.admit(memory.time(), length));
                    }
                }
            }
        }
    }

    /// Together they are within their limit, and none loses a packet, whatever idle CPUs hold.
    #[test]
    fn who_conforms_loses_nothing(tiers in tiers(), cpus in 1u32..9, steps in steps()) {
        let memory = total(policy_of(&tiers), cpus);
        let mut exact = Exact::new(&tiers, 0);
        for (gap, cpu, length, count, is_taken_back) in steps {
            memory.advance(gap);
            if is_taken_back {
                memory.take_back();
            }
            for _ in 0..count {
                if exact.admit(memory.time(), length) {
                    prop_assert!(send(&memory, cpu, length));
                }
            }
        }
        let [_, dropped, _] = memory.shared_counts(TOTAL_SLOT);
        prop_assert_eq!(dropped, 0);
    }

    /// When all is taken back the bucket owes what has passed, and no tick more or less.
    #[test]
    fn what_is_taken_back_was_never_drawn(tiers in tiers(), cpus in 1u32..9, steps in steps()) {
        let memory = total(policy_of(&tiers), cpus);
        let shared = &memory.shared[TOTAL_SLOT as usize];
        // The clock stands still, or what is held meanwhile would be earned again.
        let start = ticks(memory.time());
        let mut used = [0; 2];
        let (mut passed, mut offered) = (0, 0);
        for (_, cpu, length, count, is_taken_back) in steps {
            for _ in 0..count {
                offered += u64::from(length);
                if send(&memory, cpu, length) {
                    passed += 1;
                    for (tier, used) in tiers.iter().zip(&mut used) {
                        *used += tier.cost(length);
                    }
                }
            }
            if is_taken_back {
                memory.take_back();
                let words = [&shared.tat, &shared.second_tat].map(atomic::load);
                for (word, used) in words.into_iter().zip(used).take(tiers.len()) {
                    prop_assert_eq!(word.saturating_sub(start), used);
                }
            }
        }
        let counts = memory.shared_counts(TOTAL_SLOT);
        prop_assert_eq!((counts[0], counts[2]), (passed, offered));
    }
}

#[test]
fn a_frame_longer_than_the_burst_passes_when_the_bucket_is_full() {
    let memory = total(policy_of(&[bytes(1000, 4)]), 2);
    assert!(send(&memory, 0, 60_000));
    assert!(!send(&memory, 1, 60));
    memory.advance(56 * MS);
    assert!(!send(&memory, 0, 4_000), "it owes the rest");
    memory.advance(4 * MS);
    assert!(send(&memory, 1, 60_000));
}

#[test]
fn a_flood_gets_all_that_the_limit_earns() {
    for (rate, cpus) in [(1, 4), (20, 1), (20, 4), (100, 16)] {
        let memory = total(policy_of(&[packets(rate, 100)]), cpus);
        flood(&memory, 200 * rate as usize);
        let mut passed = 0;
        for _ in 0..2000 {
            memory.advance(MS / 2);
            passed += flood(&memory, 2 * rate as usize);
        }
        let earned = 1000 * rate as usize;
        // One tick of the clock may be missing at the end.
        let tick = (TICK_NS / MS) as usize * rate as usize;
        assert!(
            passed + 2 * tick >= earned && passed <= earned + 2 * rate as usize,
            "{passed} of {earned}"
        );
    }
}

#[test]
fn a_denial_is_remembered_without_the_bucket() {
    let memory = total(policy_of(&[packets(10, 100)]), 2);
    flood(&memory, 5000);
    let shared = &memory.shared[TOTAL_SLOT as usize];
    // Whatever is in the bucket now: nobody looks until the next tick of the clock.
    atomic::store(&shared.tat, 0);
    assert_eq!(flood(&memory, 100), 0);
    memory.advance(TICK_NS);
    assert_eq!(flood(&memory, 100), 100);
}

/// The policy of the [`total`], as it is for sources together.
fn shared_policy(memory: &Memory) -> &Policy {
    memory.policies.last().expect("the total has one")
}

/// What has been drawn from both tiers of the total's bucket, which was full.
fn drawn(memory: &Memory) -> [Ticks; 2] {
    let shared = &memory.shared[TOTAL_SLOT as usize];
    [&shared.tat, &shared.second_tat]
        .map(|tat| atomic::load(tat).saturating_sub(ticks(memory.time())))
}

#[test]
fn a_cpu_draws_tokens_for_many_packets_at_once() {
    // The last one is too slow for batches.
    let tiers = [packets(999, 100), packets(666, 100), packets(1, 100)];
    for tiers in [&tiers[..1], &tiers[..2], &tiers[1..2], &tiers[1..]] {
        let memory = total(policy_of(tiers), 2);
        let sharing = shared_policy(&memory).sharing;
        let batches = [sharing.first_batch, sharing.second_batch].map(Ticks::from);
        let mut held = [0; 2];
        let mut expected = [0; 2];
        for number in 0..if tiers.contains(&packets(1, 100)) { 100 } else { 5000 } {
            // What is left is kept when the next batch is drawn.
            let mut draws = false;
            for (tier, at) in tiers.iter().zip(0..) {
                let cost = tier.fixed;
                if held[at] < cost {
                    let lot = if batches[at] > cost { batches[at] } else { cost - held[at] };
                    held[at] += lot;
                    expected[at] += lot;
                    draws = true;
                }
                held[at] -= cost;
            }
            let reads = memory.clock_reads();
            assert!(send(&memory, 0, LENGTH), "{number}");
            assert_eq!(drawn(&memory), expected, "{number}");
            // Its source's bucket asks the clock once.
            assert_eq!(memory.clock_reads() - reads, 1 + u64::from(draws), "{number}");
        }
    }
}

#[test]
fn a_packet_beyond_the_last_batch_takes_what_it_costs() {
    // There is no room for a whole batch at the end.
    let mut tier = packets(999, 32);
    tier.tolerance += MAX_HELD / 7;
    let memory = total(policy_of(&[tier]), 2);
    let policy = shared_policy(&memory);
    let passed = (0..50_000).take_while(|_| send(&memory, 0, LENGTH)).count() as u64;
    let cost = policy.first.fixed;
    assert_eq!(passed, policy.first.tolerance / cost, "all that the bucket has");
    // Nothing is held for nobody.
    let [taken, _] = drawn(&memory);
    assert_eq!(taken, passed * cost);
}

#[test]
fn a_tier_is_left_alone_if_the_other_one_has_nothing() {
    let memory = total(policy_of(&[packets(10, 100), packets(999, 100)]), 2);
    assert!(flood(&memory, 5000) < 1100);
    let before = drawn(&memory);
    let cpu = memory.cpu(0);
    let until = &cpu.batch(TOTAL_SLOT).unwrap().until_ns;
    for _ in 0..2000 {
        // Not by what it remembers.
        atomic::store(until, 0);
        assert!(!send(&memory, 0, LENGTH));
    }
    assert_eq!(drawn(&memory), before);
}

#[test]
fn what_a_cpu_holds_is_its_packets_whatever_the_bucket_says() {
    let memory = total(policy_of(&[packets(999, 100), packets(1, 100)]), 2);
    assert!(send(&memory, 0, LENGTH));
    // The second tier has to be drawn from for the next packet, the first one does not.
    let first = &memory.shared[TOTAL_SLOT as usize].tat;
    atomic::store(first, ticks(memory.time()) + 1000 * MAX_HELD);
    assert!(send(&memory, 0, LENGTH));
}

/// For how long a denial is remembered where all share `policy`, at a reserve in percent; ms.
fn remembered(policy: Policy, reserve: u32) -> u64 {
    let mut memory = limiter(1, 2);
    memory.policies.push(policy.shared_by_sources(2, reserve));
    memory.share_all(2);
    // Of sources that are not known.
    let mut sources = (0..).map(|number: u32| SourceKey::from_ipv4(number.to_be_bytes()));
    sources.find(|source| !memory.packet(*source, LENGTH).passes());
    let cpu = memory.cpu(0);
    let until = atomic::load(&cpu.batch(TOTAL_SLOT).unwrap().until_ns);
    until.saturating_sub(memory.time()) / MS
}

#[test]
fn a_denial_is_remembered_until_the_next_token_of_the_tier_that_denies_longer() {
    let tier =
        |period_ms: u64, burst_ms: u64| Tier::of_packets(period_ms * MAX_HELD, burst_ms * MAX_HELD);
    let (slow, fast) = (tier(50, 1000), tier(20, 400));
    assert_eq!([0, 50].map(|reserve| remembered(policy_of(&[slow]), reserve)), [50, 50]);
    assert_eq!(remembered(policy_of(&[slow, fast]), 0), 50);
    assert_eq!(remembered(policy_of(&[fast, slow]), 0), 50);
    // A tier that could be full before somebody looks.
    let least = MIN_TOLERANCE / MAX_HELD;
    let narrow = tier(50, 100);
    for (burst, expected) in [(least, 50), (least - 1, 0)] {
        assert_eq!(remembered(policy_of(&[narrow, tier(1, burst)]), 0), expected, "{burst}");
        assert_eq!(remembered(policy_of(&[tier(1, burst), narrow]), 0), expected, "{burst}");
    }
}

#[test]
fn a_shared_limit_that_is_not_enforced_drops_nothing() {
    let memory = total(policy_of(&[packets(2, 100)]).observing(), 2);
    let mut reasons = (0..1000).map(|_| memory.packet(SourceKey::from_ipv4([10, 0, 0, 1]), LENGTH));
    assert!(reasons.by_ref().take(200).all(|reason| reason == Reason::Conforming));
    assert_eq!(reasons.last(), Some(Reason::WouldDrop));
    assert!(memory.shared_counts(TOTAL_SLOT)[1] > 700);
}

#[test]
fn a_denial_ends_when_it_says() {
    // So few packets that a CPU holds none.
    let memory = total(policy_of(&[packets(2, 100)]), 2);
    assert!(send(&memory, 0, LENGTH));
    let cpu = memory.cpu(0);
    let until = &cpu.batch(TOTAL_SLOT).unwrap().until_ns;
    for (ahead, passes) in [(1, false), (0, true)] {
        atomic::store(until, memory.coarse_time() + ahead);
        assert_eq!(send(&memory, 0, LENGTH), passes);
    }
}

#[test]
fn limits_that_take_turns_are_exact_and_count() {
    let mut memory = limiter(1, 2);
    memory.policies.push(policy_of(&[packets(100, 100)]));
    // The places of the first and of the last are one.
    let slots: Vec<u32> = (0..=BATCHES_PER_CPU)
        .map(|number| memory.share(0, [10, (number >> 8) as u8, number as u8, 0], 24, 2))
        .collect();
    let ends = [slots[0], slots[BATCHES_PER_CPU as usize]];
    assert_eq!(ends[0] % BATCHES_PER_CPU, ends[1] % BATCHES_PER_CPU);
    let of = |end: usize| SourceKey::from_ipv4([10, end as u8, 0, 1]);
    let mut passed = [0; 2];
    for number in 0..40_000 {
        let end = number % 2;
        passed[end] += u64::from(memory.cpu(number / 2).packet(of(end), LENGTH).passes());
    }
    for (end, passed) in passed.into_iter().enumerate() {
        // The clock stands still: the burst, and what CPUs may hold.
        assert!((10_000..=10_200).contains(&passed), "{passed}");
        assert_eq!(memory.shared_counts(ends[end]), [passed, 20_000 - passed, 20_000 * 100]);
    }
}

#[test]
fn another_policy_gets_no_tokens_of_the_former_one() {
    let mut memory = total(policy_of(&[packets(100, 100)]), 2);
    assert_eq!(flood(&memory, 2), 2);
    memory.policies.push(policy_of(&[packets(10, 100)]).shared_by_sources(2, 0));
    let shared = &memory.shared[TOTAL_SLOT as usize];
    let slot = memory.policies.len() as u32 - 1;
    atomic::store(&shared.policy, PolicyWord::new(1, slot).0);
    atomic::store(&shared.tat, ticks(memory.time()) + 200 * MAX_HELD);
    assert_eq!(flood(&memory, 100), 0, "they were of the former policy");
    assert_eq!(memory.shared_counts(TOTAL_SLOT)[..2], [2, 100], "it counts on");
}

/// A host whose total is 10 packets a millisecond, of which a part is for known sources, which may send 2 each.
fn with_reserve(reserve: u32) -> Memory {
    // Room for all: who loses its bucket is a newcomer again.
    let mut memory = limiter(1 << 13, 2);
    memory.policies.push(policy_of(&[packets(10, 100)]).shared_by_sources(2, reserve));
    memory.policies.push(policy_of(&[packets(2, 100)]));
    memory.share_all(2);
    memory.publish(2, 3);
    memory
}

/// Packets of a source that are dropped, which sends one a millisecond, while newcomers send 50.
fn dropped_beside_newcomers(memory: &Memory) -> usize {
    let known = SourceKey::from_ipv4([192, 0, 2, 1]);
    assert!((0..4).all(|_| memory.packet(known, LENGTH).passes()));
    let mut dropped = 0;
    for round in 0..500u32 {
        for number in 0..50 {
            memory
                .cpu(number as usize)
                .packet(SourceKey::from_ipv4((round * 50 + number).to_be_bytes()), LENGTH);
        }
        dropped += usize::from(!memory.cpu(round as usize).packet(known, LENGTH).passes());
        memory.advance(MS);
    }
    dropped
}

#[test]
fn a_reserve_is_for_known_sources() {
    assert!(dropped_beside_newcomers(&with_reserve(0)) > 200);
    let memory = with_reserve(10);
    assert_eq!(dropped_beside_newcomers(&memory), 0);
    let [passed, dropped, _] = memory.shared_counts(TOTAL_SLOT);
    // Newcomers get all the rest: 10 a millisecond, and 90 % of the burst.
    assert!((5_700..=5_930).contains(&passed) && passed + dropped == 25_504, "{passed}, {dropped}");
}

#[test]
fn a_source_is_known_that_has_a_bucket_and_owes_little() {
    let memory = with_reserve(50);
    let [new, heavy, light] = [1, 2, 3].map(|last| SourceKey::from_ipv4([192, 0, 2, last]));
    // A burst is 200 packets, of which an eighth may be owed.
    assert!((0..2).all(|_| memory.packet(light, LENGTH).passes()));
    assert!((0..60).all(|_| memory.packet(heavy, LENGTH).passes()));
    atomic::store(&memory.shared[0].tat, ticks(memory.time()) + 60 * MAX_HELD);
    memory.take_back();
    atomic::store(&memory.shared[0].tat, ticks(memory.time()) + 60 * MAX_HELD);
    for round in 0..3 {
        assert_eq!(memory.packet(heavy, LENGTH), Reason::OverTotal);
        assert_eq!(
            memory.packet(SourceKey::from_ipv4([10, 0, round, 1]), LENGTH),
            Reason::OverTotal
        );
    }
    assert!((0..20).all(|_| memory.packet(light, LENGTH).passes()));
    assert_eq!(memory.packet(new, LENGTH), Reason::OverTotal);
    // The reserve is a limit, too.
    atomic::store(&memory.shared[0].tat, ticks(memory.time()) + 101 * MAX_HELD);
    assert_eq!(memory.packet(light, LENGTH), Reason::OverTotal);
    assert_eq!(TICKS_PER_NS * MS, MAX_HELD);
}

#[test]
fn the_second_packet_of_a_bucket_may_be_known_if_no_tier_owes_much() {
    let once = SourceKey::from_ipv4([192, 0, 2, 1]);
    let is_known = |policy: Policy, owes: [u64; 2]| {
        let mut memory = with_reserve(50);
        memory.policies[3] = policy;
        assert!(memory.packet(once, LENGTH).passes());
        let (_, bucket) = memory.bucket(once).unwrap();
        let at = |packets| ticks(memory.time()) + packets * bucket.policy.first.fixed;
        atomic::store(bucket.tats[0], at(owes[0]));
        atomic::store(bucket.tats[1], at(owes[1]));
        atomic::store(&memory.shared[0].tat, ticks(memory.time()) + 60 * MAX_HELD);
        memory.take_back();
        atomic::store(&memory.shared[0].tat, ticks(memory.time()) + 60 * MAX_HELD);
        memory.packet(once, LENGTH).passes()
    };
    let tier = packets(2, 100);
    let (one, two) = (policy_of(&[tier]), policy_of(&[tier, tier]));
    assert!(is_known(one, [1, 100]) && is_known(two, [1, 1]));
    assert!(!is_known(one, [100, 1]) && !is_known(two, [100, 1]) && !is_known(two, [1, 100]));
}

#[test]
fn a_burst_that_is_soon_full_waits_for_no_tick() {
    let memory = total(policy_of(&[packets(2, 10)]), 2);
    memory.advance(MS);
    while send(&memory, 0, LENGTH) {}
    memory.advance(MS / 2);
    assert!(memory.coarse_time() + MS < memory.time() && send(&memory, 0, LENGTH));
}

/// What each of two hosts has of a total of the cluster without end.
const FLOOR: u64 = 1 << 27;

/// A host of a cluster, all of whose sources share `policy`.
fn cluster_host(policy: Policy, cpus: u32) -> Memory {
    let floor = Multiplier::from_units(FLOOR);
    let memory = total(policy.shared_by_hosts(floor, [0; 2]).shared_by_sources(cpus, 0), cpus);
    atomic::store(&memory.shared[TOTAL_SLOT as usize].share.floor, u64::from(floor.0));
    memory
}

/// Gives a host a share of its total until a moment.
fn give(memory: &Memory, units: u64, until_ns: u64) {
    let shared = &memory.shared[TOTAL_SLOT as usize];
    let bucket = Bucket::of_shared(shared, shared_policy(memory));
    let grant = Grant::new(Multiplier::from_units(units), until_ns);
    let tag = atomic::load(&shared.policy);
    match bucket.change(tag, Some(grant), || memory.time()) {
        Outcome::Lowered(lowered) => lowered.give_back(&bucket),
        outcome => assert!(matches!(outcome, Outcome::Done), "{outcome:?}"),
    }
}

/// What happens to two hosts: time passes, one gets packets on a CPU, and it gets this part of 256 of what is beside the
/// floors, for so many ms, the other one the rest.
type Move = (u64, usize, usize, u32, Option<(u64, u64)>);

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let gap = prop_oneof![Just(0u64), 1u64..100_000, 1u64..30 * MS];
    let share = prop::option::weighted(0.4, (0u64..=256, 1u64..60));
    prop::collection::vec((gap, 0usize..2, 0usize..4, 1u32..400, share), 1..120)
}

proptest! {
    /// Shares move to and fro and end, and all that passes is within the limit, but for what CPUs hold.
    #[test]
    fn hosts_pass_no_more_than_a_total_together(tiers in tiers(), cpus in 1u32..5, moves in moves()) {
        let hosts = [0, 1].map(|_| cluster_host(policy_of(&tiers), cpus));
        let mut bound = Exact::new(&tiers, 3 * MAX_HELD);
        for (gap, host, cpu, count, share) in moves {
            hosts.iter().for_each(|memory| memory.advance(gap));
            if let Some((part, lasts)) = share {
                let (now, rest) = (hosts[0].time(), (1 << 32) - 2 * FLOOR);
                let mine = rest * part / 256;
                // First who has less than before, as the daemons do.
                hosts.iter().for_each(|memory| give(memory, FLOOR, now));
                give(&hosts[host], FLOOR + mine, now + lasts * MS);
                give(&hosts[1 - host], FLOOR + rest - mine, now + lasts * MS);
            }
            for _ in 0..count {
                if send(&hosts[host], cpu, LENGTH) {
                    prop_assert!(bound.admit(hosts[host].time(), LENGTH));
                }
            }
        }
    }
}

#[test]
fn a_host_gets_its_share_of_a_total() {
    for (units, part) in [(1 << 31, 0.5), (1 << 32, 1.0), (FLOOR, 1.0 / 32.0)] {
        let memory = cluster_host(policy_of(&[packets(100, 100)]), 2);
        give(&memory, units, memory.time() + 100_000 * MS);
        flood(&memory, 20_000);
        let mut passed = 0;
        for _ in 0..2000 {
            memory.advance(MS);
            passed += flood(&memory, 200);
        }
        let expected = 200_000.0 * part;
        assert!((passed as f64 / expected - 1.0).abs() < 0.02, "{units}: {passed}");
    }
}

#[test]
fn a_grant_of_a_total_ends_by_itself() {
    let memory = cluster_host(policy_of(&[packets(100, 100)]), 2);
    give(&memory, 1 << 32, memory.time() + 100 * MS);
    flood(&memory, 20_000);
    memory.advance(500 * MS);
    let passed = flood(&memory, 20_000);
    // It is full again after 100 ms, and a thirty-second part of that is left.
    assert!((300..=520).contains(&passed), "{passed}");
}
