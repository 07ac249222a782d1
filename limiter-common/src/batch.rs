//! Tokens of a shared limit that a CPU has drawn before it needs them.
//!
//! The bucket of a shared limit lies in one line for the whole host. So a CPU draws the tokens of many packets at once,
//! and charges packets to its own line until they are used up. All CPUs together hold what the limit earns in
//! [`MAX_HELD`] at the most, and the bucket holds as much more: what CPUs hold is missing to nobody. See
//! `docs/design/shared-and-shadow-limits.md`.

use crate::abi::{Policy, PolicyWord, Sharing, Tier};
use crate::atomic::{self, AtomicU64};
use crate::gcra::{TICKS_PER_NS, Ticks};
use crate::shared::{SHARED_SLOTS, Shared};

/// Places that each CPU has for batches, a power of two. Shared limits whose numbers are equal modulo this take turns.
pub const BATCHES_PER_CPU: u32 = 256;

/// What all CPUs together hold of a tier of a shared limit at the most: what it earns in a millisecond.
pub const MAX_HELD: Ticks = 1_000_000 * TICKS_PER_NS;

/// A full Ethernet frame without its check sequence, bytes.
pub const FULL_FRAME: u32 = 1514;

/// What a CPU draws at once of a tier whose bucket holds `tolerance`, on a host of so many `cpus`. It is 0 where that
/// would be less than two full frames: then each packet draws what it costs.
#[must_use]
pub const fn batch_of(tier: &Tier, cpus: u32) -> Ticks {
    // With a small burst, a small part of that: what CPUs hold may be used beyond it.
    let burst = tier.tolerance / 16;
    let most = if burst < MAX_HELD { burst } else { MAX_HELD };
    let batch = most / cpus as u64;
    if batch < 2 * tier.cost(FULL_FRAME) { 0 } else { batch }
}

impl Tier {
    /// Gives the tier room for what `cpus` CPUs hold; returns what each of them draws at once, and the tolerance that
    /// is left where `reserve` percent of the burst are kept.
    const fn share(&mut self, cpus: u32, reserve: u32) -> (u32, Ticks) {
        let batch = batch_of(self, cpus);
        let kept = self.tolerance / 100 * reserve as u64;
        // What idle CPUs hold must not be missing to those that are within the limit (P1).
        self.tolerance += batch * cpus as u64;
        (batch as u32, self.tolerance - kept)
    }
}

impl Policy {
    /// As a limit that sources share on a host of so many `cpus`, of whose burst `reserve` percent are for known ones.
    #[must_use]
    pub const fn shared_by_sources(mut self, cpus: u32, reserve: u32) -> Self {
        let (first_batch, first_common) = self.first.share(cpus, reserve);
        let (second_batch, second_common) = self.second.share(cpus, reserve);
        self.sharing =
            Sharing { first_batch, second_batch, first_common, second_common, reserve, padding: 0 };
        self
    }

    /// What so many `cpus` hold of a shared limit at the most, packets or bytes of each tier.
    #[cfg(any(test, feature = "user"))]
    pub fn held(&self, cpus: u32) -> [Option<u64>; 2] {
        let units = |batch: u32, tier: &Tier| {
            let ticks = u64::from(batch) * u64::from(cpus);
            let of_bytes = || (ticks << tier.shift).checked_div(tier.per_byte);
            ticks.checked_div(tier.fixed).or_else(of_bytes).unwrap_or(0)
        };
        let second =
            self.whole().has_second().then(|| units(self.sharing.second_batch, &self.second));
        [Some(units(self.sharing.first_batch, &self.first)), second]
    }
}

const _: () = assert!(cfg!(loom) || size_of::<Batch>() == 64);

/// Which shared limit tokens are of, under which policy: `version:26 | number:14`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(u64);

impl Holder {
    const BITS: u32 = 40;

    /// The shared limit in a slot under the policy that its word says.
    #[inline(always)]
    #[must_use]
    pub const fn new(slot: u32, policy: PolicyWord) -> Self {
        let version = policy.generation() as u64 * SHARED_SLOTS as u64;
        Self((version + slot as u64) & ((1 << Self::BITS) - 1))
    }

    /// The slot of the limit.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.0 as u32 % SHARED_SLOTS
    }
}

/// Tokens and whose they are, in one word: `holder:40 | ticks:24`. So they are taken in one step, whoever comes in
/// between, and never for another limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens(pub u64);

impl Tokens {
    const TICKS_BITS: u32 = 24;

    /// `ticks` of a limit, below 2^24.
    #[inline(always)]
    #[must_use]
    pub const fn new(holder: Holder, ticks: Ticks) -> Self {
        Self(holder.0 << Self::TICKS_BITS | ticks)
    }

    /// Whose they are.
    #[inline(always)]
    #[must_use]
    pub const fn holder(self) -> Holder {
        Holder(self.0 >> Self::TICKS_BITS)
    }

    /// How many there are.
    #[inline(always)]
    #[must_use]
    pub const fn ticks(self) -> Ticks {
        self.0 & ((1 << Self::TICKS_BITS) - 1)
    }

    /// How many there are for `holder`.
    #[inline(always)]
    #[must_use]
    pub const fn of(self, holder: Holder) -> Ticks {
        if self.holder().0 == holder.0 { self.ticks() } else { 0 }
    }
}

/// What a CPU holds of a shared limit, and its packets that the limit does not count yet. Only that CPU writes it, but
/// that the daemon takes tokens back.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Batch {
    /// [`Tokens`] of the first tier. Their holder is whom the other words are of.
    pub first: AtomicU64,
    /// [`Tokens`] of the second tier, if there is one.
    pub second: AtomicU64,
    /// The bucket has nothing for sources that are not known before this, ns since boot.
    pub until_ns: AtomicU64,
    /// Packets passed.
    pub passed: AtomicU64,
    /// Packets over the limit.
    pub dropped: AtomicU64,
    /// Bytes offered.
    pub bytes: AtomicU64,
    /// To a cache line.
    pub padding: [AtomicU64; 2],
}

impl Batch {
    /// Whose it is.
    #[inline(always)]
    pub fn holder(&self) -> Holder {
        Tokens(atomic::load(&self.first)).holder()
    }

    /// Counts a packet of `length` bytes.
    #[inline(always)]
    pub fn count(&self, is_admitted: bool, length: u32) {
        // Load and store: only this CPU writes them.
        let more = |word, amount| atomic::store(word, atomic::load(word).wrapping_add(amount));
        more(if is_admitted { &self.passed } else { &self.dropped }, 1);
        more(&self.bytes, u64::from(length));
    }

    /// Makes room for `holder`: what is left for `former`, the limit that it was of, goes back.
    #[inline(always)]
    pub fn make_room(&self, former: &Shared, holder: Holder) {
        let was = self.holder();
        Self::clear(&self.second, was, holder, former, &former.second_tat);
        Self::clear(&self.first, was, holder, former, &former.tat);
        atomic::store(&self.until_ns, 0);
        // A limit whose policy alone has changed counts on.
        if was.slot() != holder.slot() {
            for (pending, total) in [
                (&self.passed, &former.passed),
                (&self.dropped, &former.dropped),
                (&self.bytes, &former.bytes),
            ] {
                atomic::add(total, atomic::load(pending));
                atomic::store(pending, 0);
            }
        }
    }

    /// Leaves nothing in a word, which is of `next` then. What was there for the limit `shared`, as `was` says, goes
    /// back to its word `tat`; what it held under a former policy is worth something else, and goes.
    #[inline(always)]
    fn clear(word: &AtomicU64, was: Holder, next: Holder, shared: &Shared, tat: &AtomicU64) {
        let seen = atomic::load(word);
        let ticks = Tokens(seen).of(was);
        let policy = PolicyWord(atomic::load(&shared.policy));
        // If this fails somebody has just taken them.
        if atomic::replace(word, seen, Tokens::new(next, 0).0)
            && ticks > 0
            && was == Holder::new(was.slot(), policy)
        {
            atomic::add(tat, ticks.wrapping_neg());
        }
    }
}

/// Returns what CPUs hold of those `limits` that `includes` names. Where one is just charging a packet, it owes that.
#[cfg(any(test, feature = "user"))]
pub fn take_back(batches: &[Batch], limits: &[Shared], includes: impl Fn(u32) -> bool) {
    for batch in batches {
        let holder = batch.holder();
        let Some(shared) = limits.get(holder.slot() as usize) else { continue };
        if includes(holder.slot()) {
            for (word, tat) in [(&batch.first, &shared.tat), (&batch.second, &shared.second_tat)] {
                let tokens = Tokens(atomic::load(word));
                if tokens.of(holder) > 0 {
                    Batch::clear(word, holder, holder, shared, tat);
                }
            }
        }
    }
}

/// Packets passed, packets over the limit and bytes offered that the limit in `slot` does not count yet.
#[cfg(any(test, feature = "user"))]
pub fn pending(batches: &[Batch], slot: u32) -> [u64; 3] {
    // Of each CPU there is one place for it.
    let places =
        batches.iter().skip((slot % BATCHES_PER_CPU) as usize).step_by(BATCHES_PER_CPU as usize);
    places.filter(|batch| batch.holder().slot() == slot).fold([0; 3], |sum, batch| {
        let more = [&batch.passed, &batch.dropped, &batch.bytes].map(atomic::load);
        core::array::from_fn(|index| sum[index].wrapping_add(more[index]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(fixed: u64, per_byte: u64, tolerance: u64) -> Tier {
        Tier { per_byte, ..Tier::of_packets(fixed, tolerance) }
    }

    #[test]
    fn a_batch_is_a_part_of_a_millisecond_or_nothing() {
        const MS: Ticks = MAX_HELD;
        // A million packets a second, for a second.
        assert_eq!(batch_of(&tier(MS / 1000, 0, 1000 * MS), 4), MS / 4);
        // Two packets a millisecond, and fewer.
        assert_eq!(batch_of(&tier(MS / 2, 0, 1000 * MS), 1), MS);
        assert_eq!(batch_of(&tier(MS / 2, 0, 1000 * MS), 2), 0);
        // A burst of eight milliseconds.
        assert_eq!(batch_of(&tier(MS / 1000, 0, 8 * MS), 2), MS / 4);
        // Ten full frames a millisecond.
        assert_eq!(batch_of(&tier(0, MS / 15140, 1000 * MS), 5), MS / 5);
        assert_eq!(batch_of(&tier(0, MS / 15140, 1000 * MS), 8), 0);
        // It fits its bits.
        assert_eq!(Tokens::new(Holder(0), batch_of(&Tier::UNLIMITED, 1)).ticks(), MS);
    }

    #[test]
    fn tokens_are_their_holders_alone() {
        let holder = Holder::new(SHARED_SLOTS - 1, PolicyWord::new(u32::MAX, 7));
        let tokens = Tokens::new(holder, (1 << 24) - 1);
        assert_eq!((tokens.holder(), tokens.of(holder)), (holder, (1 << 24) - 1));
        assert_eq!(holder.slot(), SHARED_SLOTS - 1);
        for other in [(SHARED_SLOTS - 1, 0), (0, u32::MAX)] {
            let other = Holder::new(other.0, PolicyWord::new(other.1, 7));
            assert_eq!(tokens.of(other), 0);
        }
    }
}
