//! The token bucket as one word: the generic cell rate algorithm (ITU-T I.371, virtual scheduling).
//!
//! A bucket is its *theoretical arrival time* (TAT): the moment at which it will be full again. A
//! packet that costs `c` is admitted iff `max(tat, now) + c − now ≤ tolerance`, and then moves the
//! TAT to `max(tat, now) + c`. That equals a token bucket of `burst` tokens refilled continuously:
//! no remainder is ever dropped, and one compare-and-swap updates it.
//!
//! Time is in [`Ticks`]: 1/16 ns since boot. Whole nanoseconds would lose up to 0.5 % of a limit of
//! 7 Mpps to rounding; 62 bits of sixteenths last 9 years of uptime.

/// Time or duration in units of 1/16 ns.
pub type Ticks = u64;

/// Ticks in a nanosecond.
pub const TICKS_PER_NS: u64 = 16;

/// The longest tolerance (burst / rate) a policy may have: 13 days. Keeps every sum below 2^63.
pub const MAX_TOLERANCE: Ticks = 1 << 54;

/// The most ticks that one packet may cost: the same bound, so that the sum cannot overflow.
pub const MAX_COST: Ticks = MAX_TOLERANCE;

/// Converts nanoseconds since boot to ticks.
#[inline(always)]
pub const fn ticks(ns: u64) -> Ticks {
    ns.wrapping_mul(TICKS_PER_NS)
}

/// Judges a packet of `cost` at time `now` against a bucket at `tat`: what its TAT becomes if the packet
/// conforms; `None` if it does not, and the bucket stays as it is.
///
/// A debt beyond the tolerance is what packets have overdrawn on several CPUs at once. It is paid back like
/// any other.
///
/// `cost ≤ MAX_COST`, `tolerance ≤ MAX_TOLERANCE`; `tat` may be anything.
#[inline(always)]
pub const fn decide(tat: Ticks, now: Ticks, cost: Ticks, tolerance: Ticks) -> Option<Ticks> {
    let debt = tat.saturating_sub(now);
    // The first comparison is no part of the second: with any `tat` the sum might overflow.
    if debt > tolerance || debt + cost > tolerance { None } else { Some(now + debt + cost) }
}

/// The same, but a packet that costs more than the tolerance takes all of a bucket that is full, and owes the rest: in any
/// T, max(burst, largest frame) + rate · T.
// Denied, such a frame would never pass: bursts go by what is on the wire, frames by what offloads have merged.
#[inline(always)]
pub const fn decide_whole(tat: Ticks, now: Ticks, cost: Ticks, tolerance: Ticks) -> Option<Ticks> {
    let taken = if cost < tolerance { cost } else { tolerance };
    match decide(tat, now, taken, tolerance) {
        Some(next) => Some(next + (cost - taken)),
        None => None,
    }
}

/// The TAT of a bucket whose policy has changed to one of `tolerance`: an empty bucket of that owes no more,
/// or its source would wait as long as under the former one.
#[inline(always)]
// Only for changed policies. At each packet it would forgive what CPUs have overdrawn together
// (P2).
pub fn clamped(tat: Ticks, now: Ticks, tolerance: Ticks) -> Ticks {
    tat.min(now + tolerance)
}

/// Judges a packet that costs `cost` at the share of its bucket, which holds a packet more than `tolerance`: as
/// [`decide`], but it is admitted as long as the debt *before* it is no more than that.
///
/// `cost` ≤ 2^55; a packet that costs more than [`MAX_COST`] is never admitted.
#[inline(always)]
pub const fn decide_shared(tat: Ticks, now: Ticks, cost: Ticks, tolerance: Ticks) -> Option<Ticks> {
    let debt = tat.saturating_sub(now);
    // The debt before the packet, as a share has room for one packet at least, however small it is.
    if debt > tolerance || cost > MAX_COST { None } else { Some(now + debt + cost) }
}

/// How much time the bucket has in credit: tolerance − debt, 0 when empty.
pub const fn credit(tat: Ticks, now: Ticks, tolerance: Ticks) -> Ticks {
    tolerance.saturating_sub(tat.saturating_sub(now))
}

#[cfg(test)]
mod tests;
