//! Bursts: a number of packets, or a size.

use super::number::{PREFIXES, is_ambiguous, multiplier, prefix_of, split};
use super::{Unit, UnitError};

/// Reads a burst of a limit that counts `unit`: `2000`, `2k` or `2000 packets` of packets, `64kbyte`
/// or `1mbit` of bytes. Returns packets or bytes, at least 1.
pub fn parse_burst(input: &str, unit: Unit) -> Result<u64, UnitError> {
    let (number, measure) = split(input)?;
    let value = input.trim().to_ascii_lowercase();
    let value = value.strip_suffix(measure.as_str()).unwrap_or(&value).trim_end();
    let (by, per) = match unit {
        Unit::Packets => match multiplier(&measure, &["packets", "packet", "p", ""]) {
            Some(by) => (by, 1),
            None => {
                return Err(UnitError::UnknownUnit {
                    input: input.into(),
                    unit: measure,
                    suggestion: format!(
                        "the rate counts packets, so the burst does too: write {value} or {value}k"
                    ),
                });
            }
        },
        // The rate's unit decides: `2k` is a burst of packets, but could be bytes or bits of a
        // limit in bytes.
        Unit::Bytes => size_unit(input, &measure, value)?,
    };
    let whole = number.digits.checked_mul(u128::from(by)).ok_or_else(|| too_large(input))?;
    let divisor = number.scale() * per;
    // Not rounded: a burst of 12 bit is a mistake in the unit, and 1 byte would hide it.
    if !whole.is_multiple_of(divisor) {
        let of = if unit == Unit::Packets { "packets" } else { "bytes" };
        return Err(UnitError::NotWhole { input: input.into(), of });
    }
    u64::try_from(whole / divisor).map_err(|_| too_large(input))
}

fn too_large(input: &str) -> UnitError {
    UnitError::TooLarge { input: input.into(), bound: "what the rate earns in 13 days" }
}

/// What to multiply by, then divide by, to get bytes.
fn size_unit(input: &str, measure: &str, value: &str) -> Result<(u64, u128), UnitError> {
    if is_ambiguous(measure) {
        let prefix = prefix_of(measure);
        return Err(UnitError::Ambiguous {
            input: input.into(),
            unit: measure.into(),
            suggestion: format!("write {value}{prefix}byte or {value}{prefix}bit"),
        });
    }
    if let Some(by) = multiplier(measure, &["bytes", "byte"]) {
        return Ok((by, 1));
    }
    if let Some(by) = multiplier(measure, &["bits", "bit"]) {
        return Ok((by, 8));
    }
    // A bare number is a mistake that many make, and deserves an answer of its own.
    if multiplier(measure, &[""]).is_some() {
        let suggestion = format!(
            "the rate counts bytes, so the burst is a size: {value}{measure}byte, {value}kbyte"
        );
        return Err(UnitError::NoUnit { input: input.into(), suggestion });
    }
    Err(UnitError::UnknownUnit {
        input: input.into(),
        unit: measure.into(),
        suggestion: "the rate counts bytes, so the burst is a size: 64kbyte, 64kibyte or 1mbit"
            .into(),
    })
}

/// Writes a burst so that [`parse_burst`] reads it back: `2000 packets`, `64 kbyte`.
pub fn format_burst(amount: u64, unit: Unit) -> String {
    match unit {
        Unit::Packets if amount == 1 => "1 packet".into(),
        Unit::Packets => format!("{amount} packets"),
        Unit::Bytes => {
            // Up to 9999, bytes are told without a prefix.
            let fits =
                |(_, by): &&(&str, u64)| *by > 1 && amount >= 10_000 && amount.is_multiple_of(*by);
            // By size, as the table is in the order in which units are read: `ki` before `k`.
            match PREFIXES.iter().filter(fits).max_by_key(|(_, by)| *by) {
                Some((prefix, by)) => format!("{} {prefix}byte", amount / by),
                None => format!("{amount} bytes"),
            }
        }
    }
}
