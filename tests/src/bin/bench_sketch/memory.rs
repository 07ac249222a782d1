//! The kernel's memory as vectors, with a clock that the simulation sets.

use std::{cell::Cell, sync::atomic::AtomicU64};

use limiter_common::{
    abi::{Config, Event, Internal, Policy, PolicyWord, VERDICTS},
    atomic,
    engine::State,
    hash::{Hash, HashKey},
    key::{PrefixMasks, SourceKey},
    sketch::{Shape, Window},
    table::{Identity, Slot, WAYS},
};

use crate::contenders::hash_key;

/// How far the coarse clock lags, as on a kernel with 250 ticks a second.
const TICK_NS: u64 = 4_000_000;

/// The slot of the policy that holds for everybody.
const DEFAULT_SLOT: u32 = 1;

/// A limiter without a kernel, on two CPUs as far as it knows.
pub(crate) struct Memory {
    config: Config,
    fingerprints: Vec<AtomicU64>,
    slots: Vec<Slot>,
    identities: Vec<Identity>,
    cells: Vec<AtomicU64>,
    policies: [Policy; 2],
    shape: Shape,
    window: Window,
    key: HashKey,
    now: Cell<u64>,
    internal: [Cell<u64>; VERDICTS],
    events: Cell<u64>,
}

impl Memory {
    /// An empty table of `sources` places (a power of two) and a sketch of `shape`.
    pub(crate) fn new(limit: Policy, sources: u32, shape: Shape, window: Window) -> Self {
        let config = Config::default();
        atomic::store(&config.min_gate, u64::from(limit.gate));
        atomic::store(&config.policy, PolicyWord::new(1, DEFAULT_SLOT).0);
        Self {
            config,
            fingerprints: (0..sources / WAYS).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..sources).map(|_| Slot::default()).collect(),
            identities: (0..sources).map(|_| Identity::default()).collect(),
            cells: (0..shape.cells()).map(|_| AtomicU64::new(0)).collect(),
            policies: [Policy::unlimited(limit.gate), limit],
            shape,
            window,
            key: hash_key(),
            now: Cell::new(0),
            internal: Default::default(),
            events: Cell::new(0),
        }
    }

    /// Sets the clock, ns since boot.
    pub(crate) fn set_time(&self, ns: u64) {
        self.now.set(ns);
    }

    /// How often `what` has happened.
    pub(crate) fn internal(&self, what: Internal) -> u64 {
        self.internal[what as usize].get()
    }

    /// Events that a daemon would have got.
    pub(crate) fn events(&self) -> u64 {
        self.events.get()
    }

    /// Every source with a bucket, and its packets since it has one.
    pub(crate) fn tracked(&self) -> impl Iterator<Item = (SourceKey, u64)> + '_ {
        self.slots
            .iter()
            .zip(&self.identities)
            .filter(|(slot, _)| atomic::load(&slot.tag) != 0)
            .map(|(slot, identity)| {
                (identity.key(), atomic::load(&slot.passed) + atomic::load(&slot.dropped))
            })
    }
}

impl State for Memory {
    fn masks(&self) -> PrefixMasks {
        PrefixMasks::default()
    }
    fn hash(&self, key: SourceKey) -> Hash {
        self.key.hash(key)
    }
    fn shape(&self) -> Shape {
        self.shape
    }
    fn window(&self) -> Window {
        self.window
    }
    fn set_mask(&self) -> u32 {
        self.fingerprints.len() as u32 - 1
    }
    fn cpus(&self) -> u32 {
        2
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
        self.policies.get(slot as usize)
    }
    fn lookup(&self, _: SourceKey) -> Option<u32> {
        None
    }
    fn now(&self) -> u64 {
        self.now.get()
    }
    fn now_coarse(&self) -> u64 {
        let now = self.now.get();
        now - now % TICK_NS
    }
    fn note(&self, what: Internal) -> u64 {
        let count = &self.internal[what as usize];
        count.set(count.get() + 1);
        count.get()
    }
    fn send(&self, _: Event) -> bool {
        self.events.set(self.events.get() + 1);
        true
    }
}
