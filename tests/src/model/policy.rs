//! What a limit means.

use super::bucket::{Charge, Charges};

/// Moments and durations are in sixteenths of a nanosecond.
pub(super) const TICKS: i128 = 16;
/// The largest gate, and that of sources without a limit.
pub(super) const MAX_GATE: u64 = 16;
/// The shortest frame with an IPv4 header.
const MIN_LEN: u64 = 34;

/// How much in how long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    /// As an operator writes it.
    pub text: &'static str,
    /// Whether bytes are counted rather than packets.
    pub bytes: bool,
    /// Packets or bytes in `period`.
    pub amount: u64,
    /// ns.
    pub period: u64,
}

/// A rate and how much may come at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tier {
    /// In the long run.
    pub rate: Rate,
    /// At once, in the rate's unit.
    pub burst: u64,
}

impl Tier {
    /// The gate with a window of `window` ns and frames of up to `frame` bytes: an eighth of the burst at
    /// the most, and no more than what is earned in half a window, and one.
    fn gate(&self, window: u64, frame: u64) -> u64 {
        let earned =
            u128::from(self.rate.amount) * u128::from(window) / u128::from(self.rate.period);
        let earned = u64::try_from(earned).expect("a reasonable rate");
        let frame = if self.rate.bytes { frame } else { 1 };
        (self.burst / frame / 8).min(1 + earned / frame / 2).clamp(1, MAX_GATE)
    }

    fn duration(&self, units: u64) -> i128 {
        let whole = i128::from(units) * i128::from(self.rate.period) * TICKS;
        // Rounded up: never more than the limit.
        (whole + i128::from(self.rate.amount) - 1) / i128::from(self.rate.amount)
    }

    /// What a frame of `length` bytes costs, and how much a bucket holds; each may be up to so much
    /// by rounding.
    fn charge(&self, length: usize) -> Charge {
        if self.rate.bytes {
            let cost = self.duration(length as u64);
            let burst = self.duration(self.burst);
            // The cost of each frame may be rounded up once more, and the bucket has room for it.
            let rounding = i128::from(self.burst / MIN_LEN) + 2;
            Charge { cost: (cost, cost + 1), burst: (burst, burst + rounding) }
        } else {
            let cost = self.duration(1);
            let burst = cost * i128::from(self.burst);
            Charge { cost: (cost, cost), burst: (burst, burst) }
        }
    }
}

/// What a frame takes from a bucket without a limit.
const FREE: Charge = Charge { cost: (0, 0), burst: (1 << 54, 1 << 54) };

/// A limit, or none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Policy {
    first: Option<Tier>,
    /// What holds at the same time.
    second: Option<Tier>,
    /// Whether what is over it is dropped, rather than only counted.
    pub enforce: bool,
    /// Sources with fewer packets in the window need no bucket.
    pub gate: u64,
}

impl Policy {
    /// No limit.
    pub const UNLIMITED: Self = Self { first: None, second: None, enforce: true, gate: MAX_GATE };

    /// A limit of one tier, or of two that hold at the same time, with a window of `window` ns and frames
    /// of up to `frame` bytes.
    #[must_use]
    pub fn new(first: Tier, second: Option<Tier>, window: u64, frame: u64) -> Self {
        let gates =
            [Some(first), second].into_iter().flatten().map(|tier| tier.gate(window, frame));
        let gate = gates.min().unwrap_or(MAX_GATE);
        Self { first: Some(first), second, enforce: true, gate }
    }

    /// What a frame of `length` bytes takes from each tier.
    #[must_use]
    pub fn charges(&self, length: usize) -> Charges {
        let first = self.first.map_or(FREE, |tier| tier.charge(length));
        (first, self.second.map(|tier| tier.charge(length)))
    }

    /// Packets a second, of 1,514 bytes where bytes are counted; infinite where nothing is enforced.
    pub(super) fn per_second(&self) -> f64 {
        let rate = |tier: Tier| {
            let Rate { amount, period, bytes, .. } = tier.rate;
            amount as f64 / period as f64 * 1e9 / if bytes { 1514.0 } else { 1.0 }
        };
        let tiers = [self.first, self.second].into_iter().flatten().filter(|_| self.enforce);
        tiers.map(rate).fold(f64::INFINITY, f64::min)
    }

    /// What the shortest frame takes.
    pub(super) fn least_charges(&self) -> Charges {
        self.charges(MIN_LEN as usize)
    }
}
