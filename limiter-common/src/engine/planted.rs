//! Charges with the bugs that the engine once had. A check that does not find them checks nothing.

use super::memory::{Cpu, DEFAULT_SLOT};
use super::{Arrival, Attempt, Processor as _, State as _};
use crate::abi::{Reason, Tier};
use crate::atomic::{self, AtomicU64};
use crate::gcra::{Ticks, clamped, decide, ticks};
use crate::table::{CLAIMED, is_claimed};

/// Charges the packet in hand to the bucket in a slot, as [`super::steps::charge`].
pub(super) type Charge = fn(&Cpu<'_>, &Arrival, u32) -> Option<Attempt<Reason>>;

/// Looks the policy of the bucket in a slot up again, as [`super::steps::renew`].
pub(super) type Renew = fn(&Cpu<'_>, &Arrival, u32) -> Option<Attempt<()>>;

/// Forgives what CPUs have overdrawn together: whoever comes next finds a bucket that is just empty.
// Two CPUs cannot overdraw, and loom goes through the orders of two.
#[cfg(not(loom))]
pub(super) fn forgives(cpu: &Cpu<'_>, packet: &Arrival, index: u32) -> Option<Attempt<Reason>> {
    let (slot, tier) = (cpu.slot(index)?, &cpu.policy(DEFAULT_SLOT)?.first);
    let now = ticks(cpu.now());
    let tat = atomic::load(&slot.tat);
    if !is_claimed(tat) {
        atomic::replace(&slot.tat, tat, clamped(tat, now, tier.tolerance));
    }
    let judge = |tat, cost, tier: &Tier| decide(tat, now, cost, tier.tolerance);
    charge(cpu, packet, index, judge, |word, cost, _| {
        atomic::add(word, cost);
    })
}

/// Neither denies nor charges what another CPU was faster with.
#[cfg(loom)]
pub(super) fn overdraws(cpu: &Cpu<'_>, packet: &Arrival, index: u32) -> Option<Attempt<Reason>> {
    let now = ticks(cpu.now());
    let judge = |tat, cost, tier: &Tier| decide(tat, now, cost, tier.tolerance);
    charge(cpu, packet, index, judge, |_, _, _| {})
}

/// Charges the time for which the bucket was idle, once for each CPU that meets another one.
pub(super) fn charges_idle_time(
    cpu: &Cpu<'_>,
    packet: &Arrival,
    index: u32,
) -> Option<Attempt<Reason>> {
    let now = ticks(cpu.now());
    charge(
        cpu,
        packet,
        index,
        |tat, cost, tier| decide(tat, now, cost, tier.tolerance),
        |word, cost, seen| {
            atomic::add(word, now.saturating_sub(seen) + cost);
        },
    )
}

/// Charges a bucket that another CPU is filling for somebody else, which opens it to a third one.
pub(super) fn opens_the_lock(
    cpu: &Cpu<'_>,
    packet: &Arrival,
    index: u32,
) -> Option<Attempt<Reason>> {
    let now = ticks(cpu.now());
    charge(
        cpu,
        packet,
        index,
        |tat, cost, tier| {
            if is_claimed(tat) { Some(tat) } else { decide(tat, now, cost, tier.tolerance) }
        },
        |word, cost, _| {
            // As a mark of all ones did, to which nothing can be added without that it wraps.
            let locked = atomic::load(word) & CLAIMED;
            atomic::add(word, cost + locked);
        },
    )
}

/// Writes the policy of its source into a slot that another source may have got meanwhile.
pub(super) fn keeps_its_policy(cpu: &Cpu<'_>, packet: &Arrival, index: u32) -> Option<Attempt<()>> {
    atomic::store(&cpu.slot(index)?.policy, super::lookup::resolve(cpu, packet).0);
    Some(Attempt::Done(()))
}

/// Charges by one compare-and-swap, and if that fails by `otherwise`, which gets what was there before.
fn charge(
    cpu: &Cpu<'_>,
    packet: &Arrival,
    index: u32,
    judge: impl Fn(Ticks, Ticks, &Tier) -> Option<Ticks>,
    otherwise: impl Fn(&AtomicU64, Ticks, Ticks),
) -> Option<Attempt<Reason>> {
    let (slot, tier) = (cpu.slot(index)?, &cpu.policy(DEFAULT_SLOT)?.first);
    let cost = tier.cost(packet.length);
    let tat = atomic::load(&slot.tat);
    if is_claimed(tat) || atomic::load(&slot.tag) != packet.hash.0 {
        return Some(Attempt::Contended);
    }
    let Some(next) = judge(tat, cost, tier) else { return Some(Attempt::Done(Reason::OverLimit)) };
    if !atomic::replace(&slot.tat, tat, next) {
        if judge(atomic::load(&slot.tat), cost, tier).is_none() {
            return Some(Attempt::Done(Reason::OverLimit));
        }
        otherwise(&slot.tat, cost, tat);
    }
    Some(Attempt::Done(Reason::Conforming))
}
