//! Parts of a limit: what the buckets of a limit that the hosts of a cluster have in common may use.
//!
//! A host's bucket runs at a share s of its limit: it earns s · rate and holds 1 + (s + h) · (burst − N) / 2
//! packets, where N hosts share the limit and h is the host's home share. So half of the burst moves with the rate,
//! and half stays at home: a source that comes to a host for the first time finds it there, long before its share
//! comes. Each host has one packet beside, as s · burst < 1 would admit nobody, ever.
//!
//! In a bucket that counts time, a packet costs 1/s times as much. The tolerance is (burst − N) / 2 / rate, or
//! nothing where that is less, and a packet is admitted as long as the debt before it is no more than the tolerance
//! and the *burst floor*, which is a packet's cost times h · (burst − N) / 2. A limit in bytes counts its largest
//! frame as a packet. A limit that sources share has neither burst floor nor packet: its bucket holds s · burst.
//!
//! What a bucket holds is 1 + burst floor + s · (tolerance − debt) / cost. A bucket whose debt is beyond the tolerance
//! is *overdrawn*: the less its share, the more packets are missing while it is in debt for the same time.
//! So its debt becomes longer when its share becomes smaller, also where nobody writes that: see [`Lapse`].
//!
//! The share is a [`Grant`], which ends by itself, or else the floor, which does not. The floor is that of
//! the policy, and no more than the bucket's own, which it got when it was made: so only who changes the
//! bucket's words in the right order ([`crate::share_change`]) can raise the share of a bucket, and then it has no more
//! tokens than before.

use crate::atomic::{self, AtomicU64};
use crate::gcra::{MAX_TOLERANCE, Ticks, ticks};

/// The most ticks that a packet may cost under the whole limit: almost five minutes.
pub const MAX_SHARED_COST: Ticks = 1 << 42;

/// The largest frame there is, bytes: no packet under a limit in bytes costs more.
pub const LARGEST_FRAME: u32 = 0xffff;

/// How many floors are a home share.
pub const FLOORS: u64 = 20;

/// The burst floor of a bucket of a host with a `home` share in units of 2^-15, in a tier with a `tolerance`: that part
/// of it, of five minutes at the most. In ticks of the whole limit.
#[inline(always)]
#[must_use]
pub const fn burst_floor(home: u16, tolerance: Ticks) -> Ticks {
    // A longer one is no part of what is divided.
    let divided = if tolerance > MAX_SHARED_COST { MAX_SHARED_COST } else { tolerance };
    (divided * home as u64) >> FRACTION
}

/// What a packet costs that no bucket has the room for.
// Above any tolerance, and small enough to be added to a time.
pub const NEVER: Ticks = 2 * MAX_TOLERANCE;

/// Fraction bits of the mantissa.
// The rounding of a share costs its host 0.003 % of it, less than a clock drifts.
const FRACTION: u32 = 15;

/// The largest exponent: a share below 2^-21 is nothing.
const MAX_EXPONENT: u32 = 20;

/// What a packet's cost is multiplied by under a share: its inverse, as `exponent:5 | mantissa:16`, of
/// which the mantissa's top bit is set. So the greater number is the smaller share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Multiplier(pub u32);

impl Multiplier {
    /// The whole limit.
    pub const WHOLE: Self = Self(1 << FRACTION);
    /// No part of it: every packet costs [`NEVER`].
    pub const NOTHING: Self = Self((1 << Self::BITS) - 1);
    /// How many bits it has.
    pub const BITS: u32 = 21;
    /// The bit that every one has.
    const VALID: u32 = 1 << FRACTION;

    /// That of a share in units of 2^-32; of a smaller one rather than of a larger one, by less than
    /// 2^-15 of it.
    #[must_use]
    pub const fn from_units(units: u64) -> Self {
        if units >= 1 << 32 {
            return Self::WHOLE;
        }
        if units < 1 << 11 {
            return Self::NOTHING;
        }
        // 2^exponent ≤ 2^32 / units < 2^(exponent + 1).
        let mut exponent = units.leading_zeros() - 32;
        if units.is_power_of_two() {
            exponent = 32 - units.trailing_zeros();
        }
        let mut mantissa = (1u64 << (32 + FRACTION - exponent)).div_ceil(units) as u32;
        if mantissa > 0xffff {
            exponent += 1;
            mantissa = Self::VALID;
        }
        if exponent > MAX_EXPONENT { Self::NOTHING } else { Self(exponent << 16 | mantissa) }
    }

    /// What a packet costs that costs `cost` under the whole limit, rounded up; [`NEVER`] if that is more
    /// than [`MAX_SHARED_COST`].
    #[inline(always)]
    #[must_use]
    pub const fn cost(self, cost: Ticks) -> Ticks {
        let exponent = self.0 >> 16 & 31;
        // The bounds that the product below needs; policies that need more are refused when they
        // are compiled.
        if exponent > MAX_EXPONENT || cost > MAX_SHARED_COST {
            return NEVER;
        }
        // 42 bits, 16 and 5 make 63.
        let shift = MAX_EXPONENT - exponent;
        let product = (cost * (self.0 & 0xffff) as u64) << (MAX_EXPONENT - FRACTION);
        let raised = (product + ((1u64 << shift) - 1)) >> shift;
        if raised > NEVER { NEVER } else { raised }
    }

    /// Whether it is of no share at all.
    #[must_use]
    pub const fn is_nothing(self) -> bool {
        self.0 >> 16 & 31 > MAX_EXPONENT
    }

    /// The home share of whom this is the floor of, in units of 2^-15, rounded down: [`FLOORS`] floors, all of the limit
    /// at the most.
    #[must_use]
    pub const fn home(self) -> u16 {
        if self.is_nothing() || self.0 == 0 {
            return 0;
        }
        let home = (FLOORS << (2 * FRACTION)) / self.scaled();
        if home > Self::VALID as u64 { Self::VALID as u16 } else { home as u16 }
    }

    /// Itself times 2^15.
    pub(crate) const fn scaled(self) -> u64 {
        ((self.0 & 0xffff) as u64) << (self.0 >> 16 & 31)
    }

    /// The part of the limit, 0 to 1.
    #[must_use]
    pub fn part(self) -> f64 {
        if self.is_nothing() { 0.0 } else { (1u64 << FRACTION) as f64 / self.scaled() as f64 }
    }
}

/// The share of a bucket for a time: `end:43 | multiplier:21`, the end in [`UNIT_NS`] since boot. A word
/// without a multiplier gives nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant(pub u64);

/// log2 of the units that a grant's end is in, ns.
// A millisecond: a grant lasts half a second, and 43 bits of it suffice for 292 years.
const UNIT_SHIFT: u32 = 20;

/// The units that a grant's end is in, ns: it ends up to this much early, never late.
pub const UNIT_NS: u64 = 1 << UNIT_SHIFT;

impl Grant {
    /// Nothing.
    pub const NOTHING: Self = Self(0);

    /// A share until `until_ns` since boot.
    #[must_use]
    pub const fn new(multiplier: Multiplier, until_ns: u64) -> Self {
        Self(until_ns >> UNIT_SHIFT << Multiplier::BITS | multiplier.0 as u64)
    }

    /// What a bucket starts with that is made at `now_ns`: nothing, in a word that no bucket in its place
    /// had before.
    #[inline(always)]
    #[must_use]
    pub const fn nothing_at(now_ns: u64) -> Self {
        // All bits of the time, but for the one that every multiplier has.
        // A daemon that was about to change the former source's share then fails at its
        // compare-and-swap.
        let (low, high) = (now_ns & (Multiplier::VALID as u64 - 1), now_ns >> FRACTION & 31);
        Self(now_ns >> UNIT_SHIFT << Multiplier::BITS | high << 16 | low)
    }

    /// Whether it gives something at `now_ns`.
    #[inline(always)]
    #[must_use]
    pub const fn holds(self, now_ns: u64) -> bool {
        self.0 & Multiplier::VALID as u64 != 0 && now_ns >> UNIT_SHIFT < self.0 >> Multiplier::BITS
    }

    /// What it gives.
    #[inline(always)]
    #[must_use]
    pub const fn multiplier(self) -> Multiplier {
        Multiplier(self.0 as u32 & Multiplier::NOTHING.0)
    }

    /// The same, ended at `now_ns` at the latest.
    #[must_use]
    pub const fn ended(self, now_ns: u64) -> Self {
        if self.until_ns() <= now_ns { self } else { Self::new(self.multiplier(), now_ns) }
    }

    /// Whether a packet at `ns` may have met it: as [`Grant::holds`], and in the unit after its end.
    #[inline(always)]
    #[must_use]
    pub const fn met(self, ns: u64) -> bool {
        self.0 & Multiplier::VALID as u64 != 0 && ns >> UNIT_SHIFT <= self.0 >> Multiplier::BITS
    }

    /// When it ends, ns since boot.
    #[inline(always)]
    #[must_use]
    pub const fn until_ns(self) -> u64 {
        self.0 >> Multiplier::BITS << UNIT_SHIFT
    }
}

/// What a bucket may use of its limit: of a source's, with the index of its slot, or of a limit that sources share.
/// Packets touch it where the policy is the cluster's, and when a bucket is made.
#[derive(Debug, Default)]
// Aligned, so that none lies across two cache lines.
#[repr(C, align(16))]
pub struct ShareSlot {
    /// A [`Grant`]. The daemon writes it, and whoever makes the bucket.
    pub grant: AtomicU64,
    /// The [`Multiplier`] of the bucket's own floor; 0 if it never was under a limit of the cluster.
    pub floor: AtomicU64,
}

impl ShareSlot {
    /// What it says, under a policy with a `floor` and the `home` share that this is of.
    #[inline(always)]
    #[must_use]
    pub fn held(&self, floor: Multiplier, home: u16) -> Held {
        let own = atomic::load(&self.floor) as u32;
        Held::new(Grant(atomic::load(&self.grant)), own, floor, home)
    }
}

/// What a bucket may use, as its words say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// For a time.
    pub grant: Grant,
    /// Without end; 0 for all of a limit that is this host's alone.
    pub floor: u32,
    /// The home share that tells the burst floor, in units of 2^-15.
    pub home: u16,
}

impl Held {
    /// A limit that is this host's alone.
    pub const LOCAL: Self = Self { grant: Grant::NOTHING, floor: 0, home: 0 };

    /// What a bucket may use that has a `grant` and an `own` floor, under a policy with a `floor` and the `home` share
    /// that this is of.
    #[inline(always)]
    #[must_use]
    pub fn new(grant: Grant, own: u32, floor: Multiplier, home: u16) -> Self {
        // The policy's floor may have become smaller, or the limit the cluster's, since then. A larger home share is none
        // of the bucket's before its floor is raised, which takes account of it.
        let home = if own > floor.0 { 0 } else { home };
        Self { grant, floor: own.max(floor.0), home }
    }

    /// What packets cost at `now_ns`.
    #[inline(always)]
    #[must_use]
    pub const fn at(self, now_ns: u64) -> CostMultiplier {
        let Self { grant, floor, home } = self;
        let granted = grant.multiplier().0;
        // Never less than the floor, or the end of a grant could raise the share.
        let is_granted = floor != 0 && grant.holds(now_ns) && granted < floor;
        CostMultiplier { share: if is_granted { granted } else { floor }, home }
    }
}

/// A bucket's share has become smaller since its last packet, and nobody has said so: its grant has ended, or
/// the floor of its policy is a smaller one. If it was overdrawn when that happened, it still is by as many
/// tokens, which take longer now.
///
/// The last packet tells whether that is still to be counted: the next one writes the longer debt, and only
/// then that it was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapse {
    /// When it happened, or earlier; far in the future if it did not.
    pub at: Ticks,
    /// What the bucket had, and what it has.
    pub from: Multiplier,
    /// See `from`.
    pub to: Multiplier,
}

impl Lapse {
    /// Nothing has happened.
    // Beyond any time, and a tolerance more does not overflow.
    pub const NONE: Self = Self { at: 1 << 62, from: Multiplier::WHOLE, to: Multiplier::WHOLE };

    /// What happened until `now_ns` to a bucket whose last packet was at `last_ns` and whose floor was `floor`
    /// then (0: its limit was this host's alone), while it may have what `held` says now.
    #[inline(always)]
    #[must_use]
    pub const fn new(floor: u32, held: Held, last_ns: u64, now_ns: u64) -> Self {
        let Held { grant, floor: own, .. } = held;
        let was = if floor == 0 { Multiplier::WHOLE.0 } else { floor };
        let granted = grant.multiplier().0;
        let met = grant.met(last_ns) && granted < was;
        let from = if met { granted } else { was };
        // It has as much as then, or more: debts become longer only where a share becomes smaller.
        if met && grant.holds(now_ns) || from >= own {
            return Self::NONE;
        }
        let at = if met { grant.until_ns() } else { last_ns };
        Self { at: ticks(at), from: Multiplier(from), to: Multiplier(own) }
    }

    /// Whether it is of no effect on a bucket at `tat`.
    #[inline(always)]
    #[must_use]
    pub const fn spares(&self, tat: Ticks, tolerance: Ticks) -> bool {
        tat <= self.at + tolerance
    }

    /// The theoretical arrival time of a bucket that was at `tat`, rounded up by less than a factor of two of
    /// what is missing of its packet, but to no more than `most`, which the largest one costs.
    #[inline(always)]
    #[must_use]
    pub const fn apply(&self, tat: Ticks, tolerance: Ticks, most: Ticks) -> Ticks {
        if self.spares(tat, tolerance) {
            return tat;
        }
        let end = self.at + tolerance;
        let longer = (self.to.0 >> 16 & 31).wrapping_sub(self.from.0 >> 16 & 31)
            + (self.to.0 & 0xffff > self.from.0 & 0xffff) as u32;
        // A bound that the verifier sees. From more than half of the limit to nothing it is 32.
        let longer = longer & 63;
        let missing = tat - end;
        // What was charged after the end may have made it more than that already.
        let most = if missing > most { missing } else { most };
        end + if missing > most >> longer { most } else { missing << longer }
    }
}

/// What makes a cost of the whole limit that of a bucket's share: a [`Multiplier`], or 0 where a limit is
/// this host's alone. And the home share in units of 2^-15, which tells the burst floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostMultiplier {
    share: u32,
    home: u16,
}

impl CostMultiplier {
    /// That of a limit that is this host's alone.
    pub const LOCAL: Self = Self { share: 0, home: 0 };

    /// That of a share, on a host with a `home` share.
    #[inline(always)]
    #[must_use]
    pub const fn from_share(share: Multiplier, home: u16) -> Self {
        Self { share: share.0, home }
    }

    /// The share as a word.
    #[inline(always)]
    pub(crate) const fn word(self) -> u64 {
        self.share as u64
    }

    /// Whether the limit is the cluster's.
    #[inline(always)]
    #[must_use]
    pub const fn is_cluster(self) -> bool {
        self.share != 0
    }

    /// The share.
    #[must_use]
    pub const fn multiplier(self) -> Multiplier {
        if self.share == 0 { Multiplier::WHOLE } else { Multiplier(self.share) }
    }

    /// What a packet costs.
    #[inline(always)]
    #[must_use]
    pub const fn cost(self, cost: Ticks) -> Ticks {
        if self.share == 0 { cost } else { Multiplier(self.share).cost(cost) }
    }

    /// The debt up to which a source's bucket has a packet more, in a tier with a `tolerance`: that and the burst floor
    /// at the share, rounded down. No more than 20 times as long, as no share is less than the floor.
    #[inline(always)]
    #[must_use]
    pub const fn room(self, tolerance: Ticks) -> Ticks {
        if self.share == 0 {
            return tolerance;
        }
        // 42 bits and 16 make 58.
        let longer = burst_floor(self.home, tolerance) * (self.share & 0xffff) as u64;
        tolerance + (longer >> FRACTION << (self.share >> 16 & 31))
    }
}

#[cfg(test)]
mod tests;
