//! What a limit means.

use super::bucket::Charge;

/// Moments and durations are in sixteenths of a nanosecond.
pub(super) const TICKS: i128 = 16;
/// The largest gate, and that of sources without a limit.
pub(super) const MAX_GATE: u64 = 16;
/// The shortest frame with an IPv4 header.
const SHORTEST: u64 = 34;

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

/// A limit, or none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Policy {
    rate: Option<Rate>,
    burst: u64,
    /// Sources with fewer packets in the window need no bucket.
    pub gate: u64,
}

impl Policy {
    /// No limit.
    pub const UNLIMITED: Self = Self { rate: None, burst: 0, gate: MAX_GATE };

    /// At most `burst` at once and `rate` over time, with a window of `window` ns and frames of up to
    /// `frame` bytes: the gate is an eighth of the burst at the most, and no more than what is
    /// earned in half a window, and one.
    #[must_use]
    pub fn new(rate: Rate, burst: u64, window: u64, frame: u64) -> Self {
        let earned = u128::from(rate.amount) * u128::from(window) / u128::from(rate.period);
        let earned = u64::try_from(earned).expect("a reasonable rate");
        let frame = if rate.bytes { frame } else { 1 };
        let gate = (burst / frame / 8).min(1 + earned / frame / 2).clamp(1, MAX_GATE);
        Self { rate: Some(rate), burst, gate }
    }

    fn duration(&self, units: u64) -> i128 {
        self.rate.map_or(0, |rate| {
            let whole = i128::from(units) * i128::from(rate.period) * TICKS;
            // Rounded up: never more than the limit.
            (whole + i128::from(rate.amount) - 1) / i128::from(rate.amount)
        })
    }

    /// What a frame of `length` bytes costs, and how much a bucket holds; each may be up to so much
    /// by rounding.
    #[must_use]
    pub fn charge(&self, length: usize) -> Charge {
        match self.rate {
            None => Charge { cost: (0, 0), burst: (1 << 54, 1 << 54) },
            Some(rate) if rate.bytes => {
                let cost = self.duration(length as u64);
                let burst = self.duration(self.burst);
                // The cost of each frame may be rounded up once more, and the bucket has room for it.
                let rounding = i128::from(self.burst / SHORTEST) + 2;
                Charge { cost: (cost, cost + 1), burst: (burst, burst + rounding) }
            }
            Some(_) => {
                let cost = self.duration(1);
                let burst = cost * i128::from(self.burst);
                Charge { cost: (cost, cost), burst: (burst, burst) }
            }
        }
    }

    /// What the shortest frame costs.
    #[must_use]
    pub fn least_cost(&self) -> (i128, i128) {
        self.charge(SHORTEST as usize).cost
    }
}
