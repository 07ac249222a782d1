use super::*;
use crate::abi::{POLICY_SLOTS, PolicyWord, on_full};
use crate::gate::gate;
use crate::gcra::{Cost, TICKS_PER_NS};
use crate::hash::HashKey;
use crate::table::WAYS;
use core::sync::atomic::Ordering;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Mutex;
use std::vec;
use std::vec::Vec;

/// How far the coarse clock lags, as on a kernel with 250 ticks a second.
const TICK_NS: u64 = 4_000_000;

/// The kernel's memory as vectors, with a clock that the test sets.
struct Memory {
    config: Config,
    fingerprints: Vec<AtomicU64>,
    slots: Vec<Slot>,
    identities: Vec<Identity>,
    cells: Vec<AtomicU64>,
    policies: Vec<Policy>,
    limits: HashMap<SourceKey, u32>,
    now: AtomicU64,
    shape: Shape,
    cpus: u32,
    internal: [AtomicU64; 16],
    events: Mutex<Vec<Event>>,
}

fn policy(rate: u64, burst: u64) -> Policy {
    let fixed = 1_000_000_000 * TICKS_PER_NS / rate;
    let per_window = rate * Window { shift: 27 }.ns() / 1_000_000_000;
    Policy {
        cost: Cost { fixed, per_byte: 0, shift: 0 },
        tolerance: fixed * burst,
        gate: gate(burst, per_window),
        unit: Policy::PACKETS,
        rate,
        period_ns: 1_000_000_000,
        burst,
    }
}

impl Memory {
    fn new(default: Policy, sets: u32, width: u32) -> Self {
        let shape = Shape { mask: width - 1, depth: 4 };
        let memory = Self {
            config: Config::default(),
            fingerprints: (0..sets).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..sets * WAYS).map(|_| Slot::default()).collect(),
            identities: (0..sets * WAYS).map(|_| Identity::default()).collect(),
            cells: (0..shape.cells()).map(|_| AtomicU64::new(0)).collect(),
            policies: vec![Policy::unlimited(16), default],
            limits: HashMap::new(),
            now: AtomicU64::new(5_000_000_000),
            shape,
            cpus: 1,
            internal: Default::default(),
            events: Mutex::default(),
        };
        memory.publish(1, 1);
        memory
    }

    fn publish(&self, generation: u32, slot: u32) {
        let least = self.policies[1..].iter().map(|p| p.gate).min().unwrap();
        atomic::store(&self.config.min_gate, u64::from(least));
        atomic::store(&self.config.policy, PolicyWord::new(generation, slot).0);
    }

    fn packet(&self, source: u32) -> Reason {
        limit(self, SourceKey::from_ipv4(source.to_be_bytes()), 100).unwrap()
    }

    fn internal(&self, what: Internal) -> u64 {
        self.internal[what as usize].load(Ordering::Relaxed)
    }
}

impl State for Memory {
    fn masks(&self) -> PrefixMasks {
        PrefixMasks::default()
    }
    fn hash(&self, key: SourceKey) -> Hash {
        let words = [(); 10];
        let mut x = 0x5eedu64;
        HashKey {
            words: words.map(|()| {
                x = (x ^ (x >> 31u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15u64).wrapping_add(77);
                x
            }),
        }
        .hash(key)
    }
    fn shape(&self) -> Shape {
        self.shape
    }
    fn window(&self) -> Window {
        Window { shift: 27 }
    }
    fn set_mask(&self) -> u32 {
        self.fingerprints.len() as u32 - 1
    }
    fn cpus(&self) -> u32 {
        self.cpus
    }
    fn config(&self) -> Option<&Config> {
        Some(&self.config)
    }
    fn fingerprints(&self, set: u32) -> Option<&AtomicU64> {
        self.fingerprints.get(set as usize)
    }
    fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)
    }
    fn identity(&self, index: u32) -> Option<&Identity> {
        self.identities.get(index as usize)
    }
    fn cell(&self, index: u32) -> Option<&AtomicU64> {
        self.cells.get(index as usize)
    }
    fn policy(&self, slot: u32) -> Option<&Policy> {
        assert!(slot < POLICY_SLOTS);
        self.policies.get(slot as usize)
    }
    fn lookup(&self, key: SourceKey) -> Option<u32> {
        self.limits.get(&key).copied()
    }
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
    fn now_coarse(&self) -> u64 {
        let now = self.now();
        now - now % TICK_NS
    }
    fn note(&self, what: Internal) -> u64 {
        self.internal[what as usize].fetch_add(1, Ordering::Relaxed) + 1
    }
    fn send(&self, event: Event) -> bool {
        self.events.lock().unwrap().push(event);
        true
    }
}

/// The exact bucket of a source, as if every packet were charged.
#[derive(Default)]
struct Exact {
    tat: u64,
    admitted: Vec<u64>,
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
        let memory = Memory::new(limit, sets, 1 << 12);
        let mut exact: HashMap<u32, Exact> = HashMap::new();
        let mut now = memory.now();
        for (source, gap, count) in stream {
            now += gap;
            memory.now.store(now, Ordering::Relaxed);
            let reference = exact.entry(source).or_default();
            for _ in 0..count {
                let reason = memory.packet(source);
                // A source that has only ever conformed must conform on.
                let start = reference.tat.max(now * TICKS_PER_NS);
                let next = start + limit.cost.fixed;
                if next - now * TICKS_PER_NS <= limit.tolerance {
                    reference.tat = next;
                    if memory.internal(Internal::SetFull) == 0 {
                        prop_assert!(reason.passes(), "conforming packet of {} dropped", source);
                    }
                } else if reason.passes() {
                    // Passed by the gate: the exact bucket is in debt for it, so that "conforming"
                    // above means conforming with respect to all that was admitted.
                    reference.tat = next;
                }
                if reason.passes() {
                    reference.admitted.push(now);
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
        let mut memory = Memory::new(policy(1000, burst), 256, 16);
        memory.cpus = 2;
        for round in 0..3u32 {
            for i in 0..others {
                memory.packet(seed * 1_000_000 + round * 1000 + i);
            }
            memory.now.fetch_add(7_000_000, Ordering::Relaxed);
        }
        memory.now.fetch_add(50_000_000, Ordering::Relaxed);
        for i in 0..burst {
            let reason = memory.packet(u32::MAX);
            prop_assert!(reason.passes(), "packet {} of {}: {:?}", i, burst, reason);
        }
    }
}

#[test]
fn random_sources_get_no_bucket_and_disturb_none() {
    let memory = Memory::new(policy(1000, 100), 1024, 1 << 16);
    let mut random = 88_172_645_463_325_252u64;
    let mut limited = 0;
    for i in 0..200_000u32 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        assert!(memory.packet(random as u32 | 1).passes());
        if i % 4 == 0 {
            limited += u32::from(memory.packet(2).passes());
        }
        memory.now.fetch_add(10_000, Ordering::Relaxed);
    }
    assert_eq!(memory.internal(Internal::Promotions), 1);
    // Two seconds at 1000 pps and a burst of 100, and at most the gate.
    assert!((2100..=2112).contains(&limited), "{limited}");
}

#[test]
fn a_source_on_many_cpus_gets_exactly_its_burst() {
    for round in 0..20 {
        let mut memory = Memory::new(policy(1, 1000), 64, 1 << 10);
        memory.cpus = 4;
        let passed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..1000).filter(|_| memory.packet(round).passes()).count())
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        // The clock stands still. A gate of 1 charges every packet; up to three other CPUs may lose
        // one charge each to a promotion in parallel.
        assert!((1000..=1003).contains(&passed), "round {round}: {passed}");
    }
}

#[test]
fn a_full_set_does_as_configured() {
    for (choice, expected) in [
        (on_full::PASS, Reason::PassedSetFull),
        (on_full::DROP, Reason::DroppedSetFull),
        (on_full::EVICT_OLDEST, Reason::Conforming),
    ] {
        let memory = Memory::new(policy(1, 8), 1, 1 << 10);
        atomic::store(&memory.config.on_full, choice);
        for source in 0..WAYS {
            assert_eq!(memory.packet(source), Reason::Conforming);
        }
        assert_eq!(memory.packet(99), expected);
        assert_eq!(memory.internal(Internal::SetFull), 1);
        assert_eq!(memory.events.lock().unwrap().len(), 1);
        let evicted = u64::from(choice == on_full::EVICT_OLDEST);
        assert_eq!(memory.internal(Internal::BusyEvictions), evicted);
        // Once the buckets are full again, one is replaced and nothing is lost.
        memory.now.fetch_add(1_100_000_000, Ordering::Relaxed);
        assert_eq!(memory.packet(100), Reason::Conforming);
        assert_eq!(memory.internal(Internal::Evictions), 1);
    }
}

#[test]
fn a_new_policy_applies_to_the_next_packet() {
    let mut memory = Memory::new(policy(1, 10), 64, 1 << 10);
    let source = SourceKey::from_ipv4(7u32.to_be_bytes());
    assert_eq!((0..20).filter(|_| memory.packet(7).passes()).count(), 10);
    // Slot 2 for this source alone: ten times the rate. The bucket stays empty, then fills faster.
    memory.policies.push(policy(10, 100));
    memory.limits.insert(source, 2);
    memory.publish(2, 1);
    assert_eq!(memory.packet(7), Reason::OverLimit);
    memory.now.fetch_add(1_000_000_000, Ordering::Relaxed);
    assert_eq!((0..20).filter(|_| memory.packet(7).passes()).count(), 10);
    // Unlimited: passes and stays tracked.
    memory.limits.insert(source, 0);
    memory.publish(3, 1);
    assert!((0..1000).all(|_| memory.packet(7) == Reason::Conforming));
    assert_eq!(memory.internal(Internal::Promotions), 1);
    // One event, for the first drop.
    assert_eq!(memory.events.lock().unwrap().len(), 1);
}

#[test]
fn events_of_a_kind_are_rationed() {
    let memory = Memory::new(policy(1, 1), 4096, 1 << 10);
    for source in 0..1000 {
        assert!(memory.packet(source).passes());
        assert_eq!(memory.packet(source), Reason::OverLimit);
    }
    assert_eq!(memory.events.lock().unwrap().len(), 100);
    assert_eq!(memory.internal(Internal::EventsSuppressed), 900);
}

#[test]
fn a_frame_is_judged_by_its_source_alone() {
    let memory = Memory::new(policy(1, 2), 64, 1 << 10);
    let mut frame = [0u8; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(judge(&memory, &frame[..]), Reason::NonIp);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    assert_eq!(judge(&memory, &frame[..]), Reason::PassedMalformed);
    atomic::store(&memory.config.malformed, 1);
    assert_eq!(judge(&memory, &frame[..]), Reason::DroppedMalformed);
    // A header that lies about its length: malformed, and limited like any other.
    frame[14] = 0x41;
    frame[26..30].copy_from_slice(&[198, 51, 100, 7]);
    let verdicts = [(); 3].map(|()| judge(&memory, &frame[..]));
    assert_eq!(verdicts, [Reason::Conforming, Reason::Conforming, Reason::OverLimit]);
    assert_eq!(memory.internal(Internal::Malformed), 3);
}

/// Four threads send `each` packets of one source; returns how many met each reason that `which`
/// picks.
fn on_four_cpus(memory: &Memory, source: u32, each: u32, which: Reason) -> usize {
    std::thread::scope(|scope| {
        let count = || (0..each).filter(|_| memory.packet(source) == which).count();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

#[test]
fn the_gate_lets_no_more_through_on_many_cpus() {
    let mut memory = Memory::new(policy(1000, 2_000_000), 64, 1 << 10);
    memory.cpus = 4;
    // Fifteen, and what each of the other CPUs had in flight.
    let below = on_four_cpus(&memory, 7, 500, Reason::BelowGate);
    assert!((15..=18).contains(&below), "{below}");
    // Once it has a bucket, a lost compare-and-swap must not send a packet to the gate, where the
    // sketch has forgotten the source long ago.
    for round in 0..20 {
        memory.now.fetch_add(1_000_000_000, Ordering::Relaxed);
        let below = on_four_cpus(&memory, 7, 20_000, Reason::BelowGate);
        assert_eq!(below, 0, "round {round}");
    }
    assert!(memory.internal(Internal::Contended) > 0, "the threads never met");
}
