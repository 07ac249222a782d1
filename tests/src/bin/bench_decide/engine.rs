//! Decisions alone, without a face: the key table beside the kernel's engine, which is the same code on another table.

use std::{thread, time::Instant};

use decide::{
    act::Act,
    key::{Secret, Space},
    states::States,
    table::{self, Table},
};
use limiter_common::{
    abi::Policy,
    atomic::AtomicU64,
    engine::memory::Memory,
    hash::HashKey,
    key::SourceKey,
    sketch::{Shape, Window},
    table::WAYS,
};
use model::meter::{Limit, Meter};
use serde::Serialize;
use tests::machine::median;

use crate::client::Random;

/// Decisions of a measurement, for each thread.
const DECISIONS: u64 = 2_000_000;
/// Rounds; each measures everything once.
const ROUNDS: usize = 5;

/// What a decision costs, about one of so many keys at random.
#[derive(Debug, Serialize)]
pub(crate) struct Decision {
    pub(crate) keys: u64,
    /// ns: the median of all rounds.
    pub(crate) decide_ns: f64,
    /// The same of the kernel's engine, on vectors in place of maps.
    pub(crate) kernel_ns: f64,
    /// Decisions of two threads beside those of one.
    pub(crate) two_threads: f64,
    pub(crate) bytes_a_key: f64,
}

struct Keys {
    states: States<Vec<AtomicU64>>,
    meter: Meter,
    keys: u64,
}

/// When decisions begin, in ticks of 2 ns: some time after 1970.
const START: u64 = 1 << 59;

impl Keys {
    fn new(keys: u64) -> Self {
        let words = table::bytes(keys) / size_of::<AtomicU64>();
        let memory: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let table = Table::create(memory, Secret([1, 2]), 0).expect("the memory is of its size");
        let limit =
            Limit { burst: Some(100), ..Limit::new(1_000, std::time::Duration::from_secs(60)) };
        let meter = Meter::new(&limit).expect("there can be such a limit");
        Self { states: States { table, side: None, shared: None, synced: None }, meter, keys }
    }

    fn ask(&self, key: u64, now: u64) {
        let hash = self.states.table.secret().hash(Space::Named, &key.to_le_bytes());
        let _ = std::hint::black_box(self.states.ask(hash, &self.meter, Act::Take, 1, now));
    }

    /// ns a decision of each of some threads.
    fn measure(&self, threads: u64, round: u64) -> f64 {
        let begun = Instant::now();
        thread::scope(|scope| {
            for number in 0..threads {
                scope.spawn(move || {
                    let mut random = Random::new(number + 1 + round * threads);
                    for at in 0..DECISIONS {
                        // A µs later each time.
                        self.ask(random.below(self.keys), START + (round * DECISIONS + at) * 500);
                    }
                });
            }
        });
        begun.elapsed().as_nanos() as f64 / DECISIONS as f64
    }
}

struct Kernel {
    memory: Memory,
    keys: u64,
}

impl Kernel {
    fn new(keys: u64, policy: Policy) -> Self {
        let sets = (2 * keys as u32).div_ceil(WAYS).next_power_of_two();
        let shape = Shape { mask: (1 << 16) - 1, depth: 4 };
        let words = std::array::from_fn(|n| (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let key = HashKey { words };
        Self { memory: Memory::new(policy, sets, shape, Window { shift: 27 }, key, 1), keys }
    }

    fn ask(&self, key: u64) {
        let source = SourceKey::from_ipv4((key as u32 + 1).to_be_bytes());
        std::hint::black_box(self.memory.packet(source, 100));
        self.memory.advance(1_000);
    }

    fn measure(&self, round: u64) -> f64 {
        let mut random = Random::new(round + 1);
        let begun = Instant::now();
        (0..DECISIONS).for_each(|_| self.ask(random.below(self.keys)));
        begun.elapsed().as_nanos() as f64 / DECISIONS as f64
    }
}

/// Measures decisions about one of so many keys. The kernel's engine has the same limit.
pub(crate) fn measure(keys: u64, policy: Policy) -> Decision {
    let (ours, kernel) = (Keys::new(keys), Kernel::new(keys, policy));
    // All of them have a bucket before.
    (0..keys).for_each(|key| ours.ask(key, START));
    (0..3 * keys).for_each(|key| kernel.ask(key % keys));
    let (mut one, mut two, mut engine) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        one.push(ours.measure(1, 2 * round));
        engine.push(kernel.measure(round));
        two.push(ours.measure(2, 2 * round + 1));
    }
    Decision {
        keys,
        decide_ns: median(&one),
        kernel_ns: median(&engine),
        two_threads: 2.0 * median(&one) / median(&two),
        bytes_a_key: table::bytes(keys) as f64 / keys as f64,
    }
}
