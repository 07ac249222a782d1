//! The number before a unit, exactly, and the prefixes of units.

use super::UnitError;

/// Digits after the decimal point that a number may have.
const MAX_DECIMALS: usize = 9;

/// Digits before the decimal point that a number may have.
const MAX_DIGITS: usize = 20;

/// Prefixes of units, the longer of two that match first.
pub(super) const PREFIXES: [(&str, u64); 9] = [
    ("ki", 1 << 10),
    ("mi", 1 << 20),
    ("gi", 1 << 30),
    ("ti", 1 << 40),
    ("k", 1_000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("", 1),
];

/// `digits / 10^decimals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) digits: u128,
    pub(super) decimals: u32,
}

impl Number {
    /// The denominator.
    pub(super) fn scale(self) -> u128 {
        10u128.pow(self.decimals)
    }
}

/// Splits `input` into its number and the rest, in lower case and without spaces around it.
pub(super) fn split(input: &str) -> Result<(Number, String), UnitError> {
    let text = input.trim().to_ascii_lowercase();
    // Before anything else: a minus sign would be taken for a missing number, and the hint would
    // not help.
    if text.starts_with('-') {
        return Err(UnitError::Negative { input: input.into() });
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let malformed = number.ends_with('.') || number.starts_with('.') || fraction.contains('.');
    if number.is_empty() || malformed {
        return Err(UnitError::NotANumber { input: input.into() });
    }
    // Zeros at the end are no digits that would have to fit.
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > MAX_DECIMALS {
        return Err(UnitError::NotWhole { input: input.into(), of: "billionths" });
    }
    let too_large = || UnitError::TooLarge { input: input.into(), bound: "20 digits" };
    let whole = whole.trim_start_matches('0');
    if whole.len() > MAX_DIGITS {
        return Err(too_large());
    }
    // As digits, never as a float: 0.1 has no exact one, and limits are compared for equality.
    let joined = format!("0{whole}{fraction}");
    let digits: u128 = joined.parse().map_err(|_| too_large())?;
    if digits == 0 {
        return Err(UnitError::Zero { input: input.into() });
    }
    Ok((Number { digits, decimals: fraction.len() as u32 }, unit.trim().to_owned()))
}

/// What `unit` multiplies by if it is a prefix followed by one of `bases`.
pub(super) fn multiplier(unit: &str, bases: &[&str]) -> Option<u64> {
    bases.iter().find_map(|base| {
        let prefix = unit.strip_suffix(base)?.trim_end();
        PREFIXES.iter().find(|(name, _)| *name == prefix).map(|(_, by)| *by)
    })
}

/// The prefix that `unit` begins with, for suggestions: `m` of `mbps`.
pub(super) fn prefix_of(unit: &str) -> &'static str {
    PREFIXES.iter().find(|(name, _)| unit.starts_with(name)).map_or("", |(name, _)| name)
}

/// Whether bits or bytes are meant by `unit` depends on whom one asks.
pub(super) fn is_ambiguous(unit: &str) -> bool {
    multiplier(unit, &["bps", "b"]).is_some()
}

/// The greatest common divisor; `gcd(a, 0) = a`.
pub(super) fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
