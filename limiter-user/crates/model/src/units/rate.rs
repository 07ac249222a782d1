//! Rates.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::number::{PREFIXES, gcd, is_ambiguous, multiplier, prefix_of, split};
use super::{Unit, UnitError};

const SECOND_NS: u64 = 1_000_000_000;

/// The periods a rate is told by, and how they are written after the slash.
const PERIODS: [(u64, &[&str]); 3] = [
    (SECOND_NS, &["s", "sec", "second"]),
    (60 * SECOND_NS, &["minute", "min", "m"]),
    (3600 * SECOND_NS, &["hour", "h"]),
];

/// The highest rate of packets, per second. Above it a packet costs less than a nanosecond, and no
/// interface comes near it.
const MAX_PACKETS: u128 = 1_000_000_000;

/// The highest rate of bytes, per second.
const MAX_BYTES: u128 = 1_000_000_000_000;

/// Packet prefixes from the largest. Up to 9999, packets are told without one.
const PACKET_PREFIXES: [(&str, u64); 3] = [("g", 1_000_000_000), ("m", 1_000_000), ("k", 1_000)];

/// A rate, exact: `amount` packets or bytes in `period_ns`.
///
/// `400/minute` is 400 in 60 s, `2.5kpps` 2500 in one second, `10mbit` 1,250,000 bytes in one
/// second, and `10bit/s` 5 bytes in 4 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// A fraction, not a float: the kernel's cost of a packet is computed from it, and rounding there
// would be the operator's loss (P2).
pub struct Rate {
    amount: u64,
    period_ns: u64,
    unit: Unit,
}

impl Rate {
    /// A rate that was taken apart by the methods below.
    pub const fn from_parts(amount: u64, period_ns: u64, unit: Unit) -> Self {
        Self { amount, period_ns, unit }
    }

    /// Packets or bytes in [`Rate::period_ns`]; at least 1.
    pub const fn amount(&self) -> u64 {
        self.amount
    }

    /// The period in nanoseconds; at least one second.
    pub const fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// What is counted.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// Packets or bytes per second, for display.
    pub fn per_second(&self) -> f64 {
        self.amount as f64 * SECOND_NS as f64 / self.period_ns as f64
    }

    /// How many packets or bytes are earned in `ns`, rounded up.
    pub fn earned_in(&self, ns: u64) -> u128 {
        // Wide, as 10^12 bytes times an hour in ns does not fit 64 bits.
        (u128::from(self.amount) * u128::from(ns)).div_ceil(u128::from(self.period_ns))
    }

    /// The period's name and how many of it make `period_ns`, which has no prime factors but 2 and
    /// 5 (so that the rate is a finite decimal per named period).
    fn named_period(&self) -> (&'static str, u64) {
        let smooth = |mut n: u64| {
            for factor in [2, 5] {
                while n.is_multiple_of(factor) {
                    n /= factor;
                }
            }
            n == 1
        };
        // A minute is no such multiple of a second, nor an hour of a minute: only one fits.
        PERIODS
            .iter()
            .find(|(ns, _)| self.period_ns.is_multiple_of(*ns) && smooth(self.period_ns / ns))
            .map_or(("s", self.period_ns / SECOND_NS), |(ns, names)| {
                (names[0], self.period_ns / ns)
            })
    }

    fn parse_unit(
        input: &str,
        unit: &str,
        value: &str,
    ) -> Result<(Unit, u64, u64, u64), UnitError> {
        let (measure, period) = match unit.split_once('/') {
            Some((measure, period)) => (measure.trim_end(), Some(period.trim_start())),
            None => (unit, None),
        };
        let unknown = || UnitError::UnknownUnit {
            input: input.into(),
            unit: unit.into(),
            suggestion:
                "a rate is in pps, kpps, packets/s, /minute, /hour, kbit, mbit, gbit, kbyte/s, \
                         mbyte/s or gbyte/s (ki, mi, gi for powers of 1024)"
                    .into(),
        };
        // Refused rather than decided: a factor of eight is the difference between protected and
        // not.
        if is_ambiguous(measure) {
            let prefix = prefix_of(measure);
            return Err(UnitError::Ambiguous {
                input: input.into(),
                unit: unit.into(),
                suggestion: format!("write {value}{prefix}bit or {value}{prefix}byte/s"),
            });
        }
        let period_ns = match period {
            None => SECOND_NS,
            Some(period) => PERIODS
                .iter()
                .find(|(_, names)| names.contains(&period))
                .map(|(ns, _)| *ns)
                .ok_or_else(unknown)?,
        };
        if let Some(by) = multiplier(measure, &["bits", "bit"]) {
            return Ok((Unit::Bytes, by, 8, period_ns));
        }
        if let Some(by) = multiplier(measure, &["bytes", "byte"]) {
            return Ok((Unit::Bytes, by, 1, period_ns));
        }
        if let Some(by) = multiplier(measure, &["pps"]) {
            // `pps/minute` says "per" twice; nobody knows which one was meant.
            return if period.is_none() {
                Ok((Unit::Packets, by, 1, period_ns))
            } else {
                Err(unknown())
            };
        }
        match multiplier(measure, &["packets", "packet", "p", ""]) {
            Some(by) if period.is_some() => Ok((Unit::Packets, by, 1, period_ns)),
            Some(_) => Err(UnitError::NoUnit {
                input: input.into(),
                suggestion: format!(
                    "write {value}{measure}pps or {value}{measure}/minute for packets, {value}{measure}bit or \
                     {value}{measure}byte/s for bytes"
                ),
            }),
            None => Err(unknown()),
        }
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(input: &str) -> Result<Self, UnitError> {
        let (number, unit_text) = split(input)?;
        let lower = input.trim().to_ascii_lowercase();
        let value = lower.strip_suffix(unit_text.as_str()).unwrap_or(&lower).trim_end();
        let (unit, by, per, base_ns) = Self::parse_unit(input, &unit_text, value)?;
        let bound = match unit {
            Unit::Packets => "1gpps",
            Unit::Bytes => "1tbyte/s",
        };
        let too_large = || UnitError::TooLarge { input: input.into(), bound };
        let numerator = number.digits.checked_mul(u128::from(by)).ok_or_else(too_large)?;
        let denominator = number.scale() * u128::from(per);
        // In lowest terms, so that equal rates are equal however they were written.
        let common = gcd(numerator, denominator);
        let amount = u64::try_from(numerator / common).map_err(|_| too_large())?;
        // A rate whose fraction does not fit is refused. Rounded, it would not be what `limit
        // list` then shows.
        let period_ns = u64::try_from(denominator / common * u128::from(base_ns))
            .map_err(|_| UnitError::NotWhole { input: input.into(), of: "packets or bits" })?;
        let rate = Self { amount, period_ns, unit };
        let (most, least) = match unit {
            Unit::Packets => (MAX_PACKETS, None),
            Unit::Bytes => (MAX_BYTES, Some("1byte/s")),
        };
        if u128::from(amount) * u128::from(SECOND_NS) > most * u128::from(period_ns) {
            return Err(too_large());
        }
        match least {
            Some(bound) if u128::from(amount) * u128::from(SECOND_NS) < u128::from(period_ns) => {
                Err(UnitError::TooSmall { input: input.into(), bound })
            }
            _ => Ok(rate),
        }
    }
}

/// Writes `amount / scale` as a decimal; `scale` has no prime factors but 2 and 5.
fn decimal(f: &mut fmt::Formatter<'_>, amount: u128, scale: u128) -> fmt::Result {
    write!(f, "{}", amount / scale)?;
    let mut rest = amount % scale;
    if rest != 0 {
        f.write_str(".")?;
    }
    // Ends, as the scale has no other factors: any other fraction would go on for ever.
    while rest != 0 {
        rest *= 10;
        write!(f, "{}", rest / scale)?;
        rest %= scale;
    }
    Ok(())
}

impl fmt::Display for Rate {
    /// Writes the rate in its largest exact unit; it parses to the same rate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (period, scale) = self.named_period();
        let per_second = period == "s";
        match self.unit {
            Unit::Packets => {
                // Below that, a prefix saves no digits and hides the exact number: 1000pps, not
                // 1kpps.
                let whole = scale == 1 && self.amount >= 10_000;
                let (prefix, by) = PACKET_PREFIXES
                    .iter()
                    .find(|(_, by)| whole && self.amount.is_multiple_of(*by))
                    .map_or(("", 1), |(prefix, by)| (*prefix, *by));
                decimal(f, u128::from(self.amount / by), u128::from(scale))?;
                if per_second { write!(f, "{prefix}pps") } else { write!(f, "{prefix}/{period}") }
            }
            Unit::Bytes => {
                let bits = u128::from(self.amount) * 8;
                let scale = u128::from(scale);
                let units = PREFIXES.iter().flat_map(|&(prefix, by)| {
                    [(prefix, "byte", 8 * u128::from(by)), (prefix, "bit", u128::from(by))]
                });
                // The largest that fits has the fewest digits: the number stays exact.
                let (prefix, name, size) = units
                    .filter(|(.., size)| bits.is_multiple_of(size * scale))
                    .max_by_key(|(.., size)| *size)
                    .unwrap_or(("", "bit", 1));
                decimal(f, bits / size, scale)?;
                match name {
                    "bit" if per_second => write!(f, "{prefix}bit"),
                    _ => write!(f, "{prefix}{name}/{period}"),
                }
            }
        }
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
