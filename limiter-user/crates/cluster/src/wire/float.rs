//! Parts of a limit in two bytes.
//!
//! Five bits of exponent, eleven of mantissa: below 2,048 units every number, above it 2,048 steps from
//! one power of two to the next, so an error under 0.05 %, up to some 1,000 times the limit. A part is
//! rounded to the side on which nobody gets more: what is given down, what is demanded up.

use model::Share;

/// Numbers that a mantissa tells apart.
const STEPS: u64 = 1 << 11;

/// The largest that is not above it.
pub fn down(share: Share) -> u16 {
    let units = share.units();
    if units < STEPS {
        return units as u16;
    }
    // The leading bit is always set here. It is not stored, as in IEEE 754: so eleven bits do for twelve.
    let shift = units.ilog2() - 11;
    // From 32 on there is no exponent for it.
    if shift > 30 {
        return u16::MAX;
    }
    let mantissa = (units >> shift) & (STEPS - 1);
    ((u64::from(shift + 1) << 11) | mantissa) as u16
}

/// The smallest that is not below it, or the largest of all.
pub fn up(share: Share) -> u16 {
    let code = down(share);
    // Codes rise with their shares, so the next code is the next larger share.
    code.saturating_add(u16::from(read(code) < share))
}

/// What such a number means.
pub fn read(code: u16) -> Share {
    let (exponent, mantissa) = (u32::from(code >> 11), u64::from(code) & (STEPS - 1));
    Share::from_units(if exponent == 0 { mantissa } else { (STEPS + mantissa) << (exponent - 1) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_code_is_itself_and_codes_rise() {
        for code in 0..=u16::MAX {
            assert_eq!(down(read(code)), code);
            assert_eq!(up(read(code)), code);
            assert!(code == 0 || read(code) > read(code - 1), "{code}");
        }
        assert_eq!(read(down(Share::WHOLE)), Share::WHOLE);
        assert_eq!(down(Share::from_units(u64::MAX)), u16::MAX);
        assert_eq!(up(Share::from_units(u64::MAX)), u16::MAX);
        // What is above the largest code has no code on its safe side.
        let largest = read(u16::MAX);
        assert_eq!(up(Share::from_units(largest.units() + 1)), u16::MAX);
    }

    proptest! {
        #[test]
        fn rounding_is_to_the_safe_side_and_little(units in 0..=read(u16::MAX).units()) {
            let share = Share::from_units(units);
            let (low, high) = (read(down(share)).units(), read(up(share)).units());
            prop_assert!(low <= units && units <= high);
            prop_assert!((high - low) as f64 <= units as f64 / 2048.0);
        }
    }
}
