//! Limits in two units, shared, of classes, and shadows.

use std::collections::HashMap;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::memory::Memory;
use super::*;
use crate::abi::{CompiledTier, Terms, Tier};
use crate::class::{
    CHAINS_AT, COVERS_ALL, MAX_NESTING, OTHER_TABLE, PROTOCOLS_AT, UDP_TABLE, set_entry,
};
use crate::evidence::Evidence;
use crate::gcra::{TICKS_PER_NS, decide, ticks};
use crate::hash::HashKey;
use crate::shared::TOTAL_SLOT;
use crate::table::WAYS;

const SECOND: u64 = 1_000_000_000;

/// So many packets a second, of which the first needs a bucket.
fn packets(rate: u64, burst: u64) -> CompiledTier {
    let fixed = SECOND * TICKS_PER_NS / rate;
    CompiledTier {
        tier: Tier::of_packets(fixed, fixed * burst),
        terms: Terms::of_bucket(rate, SECOND, burst, Terms::PACKETS),
        gate: 1,
    }
}

/// So many bytes a second.
fn bytes(rate: u64, burst: u64) -> CompiledTier {
    let per_byte = SECOND * TICKS_PER_NS / rate;
    CompiledTier {
        tier: Tier::of_bytes(per_byte, 0, per_byte * burst),
        terms: Terms::of_bucket(rate, SECOND, burst, Terms::BYTES),
        gate: 1,
    }
}

fn limiter(default: Policy) -> Memory {
    let words =
        [1u64, 3, 5, 7, 11, 13, 17, 19, 23, 29].map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let shape = Shape { mask: (1 << 12) - 1, depth: 2 };
    Memory::new(default, 64, shape, Window { shift: 27 }, HashKey { words }, 1)
}

fn source(number: u32) -> SourceKey {
    SourceKey::from_ipv4(number.to_be_bytes())
}

/// What was looked up of a source.
fn evidence(memory: &Memory, source: SourceKey) -> Evidence {
    memory.identity_of(source).unwrap().class().evidence()
}

#[test]
fn samples_are_of_packets_over_a_limit_that_asks_for_evidence() {
    let limit = Policy::new(packets(10, 10));
    for (policy, seeks) in [(limit.seeking_evidence(), true), (limit, false)] {
        let memory = limiter(policy);
        for _ in 0..10 {
            assert_eq!(memory.packet(source(1), 100), Reason::Conforming);
        }
        assert_eq!(evidence(&memory, source(1)).sampled, 0);
        for _ in 0..1000 {
            memory.packet(source(1), 100);
            memory.advance(SECOND / 1000);
        }
        // What the drop cache drops is no sample: with each token, and each 100 ms, there is one.
        let sampled = evidence(&memory, source(1)).sampled;
        assert_eq!(sampled > 0, seeks);
        assert!(sampled == 0 || (9..100).contains(&sampled), "{sampled}");
        assert_eq!(memory.identity_of(source(1)).unwrap().class().class(), 0);
    }
}

#[test]
fn samples_measure_bytes_where_bytes_are_limited() {
    let sampled = |length| {
        let memory = limiter(Policy::new(bytes(1, 2000)).seeking_evidence());
        for _ in 0..20_000 {
            memory.packet(source(1), length);
            memory.advance(200_000_000);
        }
        evidence(&memory, source(1)).sampled
    };
    let (small, large) = (f64::from(sampled(64)), f64::from(sampled(1024)));
    assert!((14.0..18.0).contains(&(large / small)), "{large} {small}");
}

#[test]
fn a_source_does_not_inherit_evidence() {
    let memory = limiter(Policy::new(packets(10, 10)).seeking_evidence());
    memory.packet(source(1), 100);
    let cpu = memory.cpu(0);
    for index in 0..64 * WAYS {
        note_sample(&cpu, index, true);
    }
    let found = evidence(&memory, source(1));
    assert_eq!((found.sampled, found.connected), (1, 1));
    // Its bucket is full again, and goes to one of so many others.
    memory.advance(10 * SECOND);
    for other in 2..2000 {
        memory.packet(source(other), 100);
        assert_eq!(evidence(&memory, source(other)), Evidence::default());
    }
    assert!(memory.bucket(source(1)).is_none());
}

/// A bucket without clocks, CPUs and gates.
#[derive(Clone, Copy)]
struct Exact {
    tier: Tier,
    tat: u64,
}

impl Exact {
    const fn new(compiled: CompiledTier) -> Self {
        Self { tier: compiled.tier, tat: 0 }
    }

    fn admits(&self, now_ns: u64, length: u32) -> Option<u64> {
        decide(self.tat, ticks(now_ns), self.tier.cost(length), self.tier.tolerance)
    }
}

/// What several buckets say of a packet that needs all of them.
fn admit(buckets: &mut [Exact], now_ns: u64, length: u32) -> bool {
    let next: Vec<_> = buckets.iter().map(|bucket| bucket.admits(now_ns, length)).collect();
    let admitted = next.iter().all(Option::is_some);
    if admitted {
        for (bucket, next) in buckets.iter_mut().zip(next) {
            bucket.tat = next.unwrap_or_default();
        }
    }
    admitted
}

fn stream() -> impl Strategy<Value = Vec<(u32, u64, u32, u32)>> {
    let gap = prop_oneof![Just(0u64), 1u64..3_000_000, 1_000_000u64..300_000_000];
    prop::collection::vec((0u32..4, gap, 60u32..1500, 1u32..12), 1..150)
}

proptest! {
    /// A packet passes if and only if both buckets have its tokens, but that a source that was over its
    /// limit may have to wait for the coarse clock.
    #[test]
    fn both_units_are_kept(stream in stream(), rate in 20u64..2000, mbit in 1u64..8) {
        let tiers = [packets(rate, rate / 4 + 1), bytes(mbit * 125_000, 20_000)];
        let memory = limiter(Policy::new(tiers[0]).and(tiers[1]));
        let mut exact: HashMap<u32, ([Exact; 2], bool)> = HashMap::new();
        for (number, gap, length, count) in stream {
            memory.advance(gap);
            let (buckets, denied) =
                exact.entry(number).or_insert((tiers.map(Exact::new), false));
            for _ in 0..count {
                let at_coarse = admit(&mut buckets.clone(), memory.coarse_time(), length);
                let passed = memory.packet(source(number), length).passes();
                if !passed && *denied && !at_coarse {
                    // The tokens stay in the buckets.
                    continue;
                }
                prop_assert_eq!(passed, admit(buckets, memory.time(), length));
                *denied |= !passed;
            }
        }
    }

    /// What sources share is kept to the packet, whoever sends; what the prefix admits still needs the
    /// total's tokens, and is charged to the prefix.
    #[test]
    fn shared_limits_are_exact_and_in_series(stream in stream(), rate in 20u64..1900) {
        let mut memory = limiter(Policy::unlimited(16));
        let (prefix, total) = (packets(rate, rate / 5 + 1), bytes(rate * 700, 30_000));
        memory.policies.extend([Policy::new(prefix), Policy::new(total)]);
        memory.share(0, [0, 0, 0, 0], 31, 2);
        memory.share_all(3);
        let (mut prefix, mut total) = ([Exact::new(prefix)], [Exact::new(total)]);
        // Tokens that the coarse clock has not reached yet stay in the bucket.
        let later = |bucket: &[Exact; 1], memory: &Memory, length| {
            !admit(&mut bucket.clone(), memory.coarse_time(), length)
        };
        for (number, gap, length, count) in stream {
            memory.advance(gap);
            for _ in 0..count {
                let now = memory.time();
                let reason = memory.packet(source(number), length);
                // Sources 0 and 1 are in the prefix.
                let expected = if number < 2 && reason == Reason::OverShared && later(&prefix, &memory, length)
                    || number < 2 && !admit(&mut prefix, now, length)
                {
                    Reason::OverShared
                } else if reason == Reason::OverTotal && later(&total, &memory, length)
                    || !admit(&mut total, now, length)
                {
                    Reason::OverTotal
                } else {
                    Reason::BelowGate
                };
                prop_assert_eq!(reason.passes(), expected.passes());
                if !reason.passes() {
                    prop_assert_eq!(reason, expected);
                }
            }
        }
    }

    /// A shadow changes no verdict, and counts what a bucket of its own would have dropped.
    #[test]
    fn a_shadow_touches_nothing(stream in stream(), rate in 20u64..2000, tried in 10u64..3000) {
        let live = Policy::new(packets(rate, rate / 8 + 1)).observing();
        let shadow = packets(tried, tried / 8 + 1);
        let (plain, with_shadow) = (limiter(live), limiter(live.with_shadow(shadow, 7)));
        let mut exact: HashMap<u32, ([Exact; 1], u64)> = HashMap::new();
        for (number, gap, length, count) in stream {
            let (bucket, dropped) = exact.entry(number).or_insert(([Exact::new(shadow)], 0));
            plain.advance(gap);
            with_shadow.advance(gap);
            for _ in 0..count {
                let reasons = [&plain, &with_shadow].map(|memory| memory.packet(source(number), length));
                prop_assert_eq!(reasons[0], reasons[1]);
                *dropped += u64::from(!admit(bucket, with_shadow.time(), length));
            }
        }
        let counted: HashMap<_, _> = with_shadow.shadow_drops().collect();
        for (number, (_, dropped)) in exact {
            prop_assert_eq!(counted.get(&source(number)).copied(), Some(dropped));
        }
    }
}

/// An IPv4 frame with a UDP header.
fn udp(source: u32, port: u16) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(source.to_be_bytes());
    frame.extend([192, 0, 2, 1, 0x30, 0x39]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 8, 0, 0]);
    frame
}

/// UDP is class 1, to port 53 class 2, which class 1 is wider than.
fn classes(memory: &mut Memory, bank: u32, covers: u8) {
    let tables = memory.class_tables(bank);
    let (udp, other) = (&tables[UDP_TABLE as usize], &tables[OTHER_TABLE as usize]);
    for port in 0..=u16::MAX {
        set_entry(udp, u32::from(port), 1);
    }
    set_entry(udp, 53, 2);
    set_entry(other, PROTOCOLS_AT + 17, 1);
    for (class, chain) in [(1, [1 | covers, 0]), (2, [2, 1 | covers])] {
        for (step, asked) in (0..).zip(chain) {
            set_entry(other, CHAINS_AT + class * MAX_NESTING + step, asked);
        }
    }
}

#[test]
fn a_packet_is_charged_to_the_first_class_that_covers_its_source() {
    let mut memory = limiter(Policy::new(packets(1, 30)));
    memory.policies.extend([Policy::new(packets(1, 10)), Policy::new(packets(1, 5))]);
    classes(&mut memory, 0, 0);
    // Sources 7 and 8 have a limit of UDP, source 8 one of port 53 besides.
    memory.limits.extend([((1, source(7)), 2), ((1, source(8)), 2), ((2, source(8)), 3)]);
    let passed = |memory: &Memory, number, ports: &[u16]| {
        let frames = (0..100).map(|i| udp(number, ports[i % ports.len()]));
        frames.filter(|frame| memory.cpu(0).frame(frame).passes()).count()
    };
    assert_eq!(passed(&memory, 7, &[53, 80]), 10, "one bucket for all UDP");
    assert_eq!((passed(&memory, 8, &[53]), passed(&memory, 8, &[80])), (5, 10), "one for each");
    assert_eq!(passed(&memory, 9, &[53, 80]), 30, "no limit of a class covers it");
    // Now one of UDP covers everyone.
    memory.class_defaults.insert(1, 2);
    classes(&mut memory, 1, COVERS_ALL as u8);
    memory.publish(2, memory::DEFAULT_SLOT);
    assert_eq!(passed(&memory, 10, &[53, 80]), 10);
    assert_eq!(memory.tracked().count(), 5, "source 9 has a bucket for what is in no class");
}

#[test]
fn a_class_shares_its_limit_and_packets_of_others_do_not() {
    let mut memory = limiter(Policy::unlimited(16));
    memory.policies.extend([Policy::new(packets(1, 10)), Policy::new(packets(1, 25)).observing()]);
    // The other bank has no classes.
    classes(&mut memory, 1, 0);
    memory.share(1, [0, 0, 0, 0], 0, 2);
    let reasons = |memory: &Memory, port| {
        let mut reasons: HashMap<Reason, u32> = HashMap::new();
        for number in 1..=40 {
            *reasons.entry(memory.cpu(0).frame(&udp(number, port))).or_default() += 1;
        }
        reasons
    };
    // Port 53 is another class, whose next wider one shares the limit.
    let dns = reasons(&memory, 53);
    assert_eq!((dns.get(&Reason::BelowGate), dns.get(&Reason::OverShared)), (Some(&10), Some(&30)));
    assert_eq!(reasons(&memory, 80).get(&Reason::OverShared), Some(&40));
    // A total that is not enforced.
    memory.advance(100 * SECOND);
    memory.share_all(3);
    let mixed = reasons(&memory, 80);
    assert_eq!(
        (mixed.get(&Reason::BelowGate), mixed.get(&Reason::OverShared)),
        (Some(&10), Some(&30))
    );
    assert_eq!(memory.shared_counts(TOTAL_SLOT)[..2], [10, 0]);
}

/// Lets UDP to each of `chains` ask these classes, one after the other.
fn chains(memory: &mut Memory, chains: &[(u16, [u8; MAX_NESTING as usize])]) {
    let tables = memory.class_tables(0);
    for (port, chain) in chains {
        set_entry(&tables[UDP_TABLE as usize], u32::from(*port), *port as u8);
        for (step, asked) in (0..).zip(*chain) {
            let at = CHAINS_AT + u32::from(*port) * MAX_NESTING + step;
            set_entry(&tables[OTHER_TABLE as usize], at, asked);
        }
    }
}

#[test]
fn a_class_asks_no_class_beyond_its_chain() {
    let mut memory = limiter(Policy::unlimited(16));
    memory.policies.push(Policy::new(packets(1, 10)));
    let everybody = COVERS_ALL as u8;
    // Where the chain of class 1 ends, that of class 2 begins.
    chains(&mut memory, &[(1, [1, 3, 4, 5]), (2, [2 | everybody, 0, 0, 0])]);
    memory.class_defaults.insert(2, 2);
    memory.share(2, [0, 0, 0, 0], 0, 2);
    let passed = |memory: &Memory, port| {
        (0..50).filter(|_| memory.cpu(0).frame(&udp(7, port)).passes()).count()
    };
    assert_eq!((passed(&memory, 1), passed(&memory, 2)), (50, 10));
}

#[test]
fn packets_look_for_no_shared_limit_of_a_kind_that_there_is_not() {
    let mut memory = limiter(Policy::unlimited(16));
    memory.policies.push(Policy::new(packets(1, 10)));
    chains(&mut memory, &[(1, [1, 0, 0, 0])]);
    let looks = |memory: &Memory| {
        let before = memory.shared_looks();
        memory.cpu(0).frame(&udp(7, 1));
        memory.shared_looks() - before
    };
    memory.share_all(2);
    assert_eq!(looks(&memory), 0);
    memory.share(1, [10, 0, 0, 0], 8, 2);
    assert_eq!(looks(&memory), 1);
    memory.share(0, [10, 0, 0, 0], 8, 2);
    assert_eq!(looks(&memory), 2);
}

#[test]
fn a_packet_shares_the_limit_of_the_first_class_that_has_one() {
    let mut memory = limiter(Policy::unlimited(16));
    memory.policies.extend([Policy::new(packets(1, 10)), Policy::new(packets(1, 5))]);
    chains(&mut memory, &[(1, [1, 0, 0, 0]), (2, [2, 1, 0, 0]), (3, [3, 0, 0, 0])]);
    memory.share(1, [0, 0, 0, 0], 0, 3);
    memory.share(2, [0, 0, 0, 0], 0, 2);
    let passed = |memory: &Memory, port| {
        (0..50).filter(|_| memory.cpu(0).frame(&udp(7, port)).passes()).count()
    };
    // Class 2 is charged to its own limit alone, class 3 to none.
    assert_eq!([3, 2, 1].map(|port| passed(&memory, port)), [50, 10, 5]);
}
