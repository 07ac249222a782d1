//! Durations as people write them: `90s`, `10m`, `12h`, `7d`.

use std::time::Duration;

/// Why a duration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// A number alone.
    #[error("{input:?} has no unit")]
    NoUnit {
        /// What was read.
        input: String,
    },
    /// A minus sign.
    #[error("{input:?} is negative")]
    Negative {
        /// What was read.
        input: String,
    },
    /// Something else.
    #[error("{input:?} is not a duration")]
    Malformed {
        /// What was read.
        input: String,
    },
}

crate::invalid::input_error!(DurationError);

impl DurationError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::NoUnit { input } => format!("write {input}s, {input}m or {input}h"),
            Self::Negative { input } => format!("write {}", input.trim_start_matches('-')),
            Self::Malformed { .. } => EXAMPLES.into(),
        }
    }
}

const EXAMPLES: &str = "write a number and a unit, such as 90s, 10m, 12h or 7d";

/// Reads a duration: numbers with units from `ns` to `years`, which add up.
///
/// # Errors
/// A number without a unit, a negative one, and all else that is no duration or too long.
pub fn parse_duration(input: &str) -> Result<Duration, DurationError> {
    let text = input.trim();
    humantime::parse_duration(text).map_err(|_| {
        let input = text.to_owned();
        // The library's own words are for programmers ("expected number at 0"), so each mistake is
        // told anew.
        if text.strip_prefix('-').is_some_and(|rest| humantime::parse_duration(rest).is_ok()) {
            DurationError::Negative { input }
        // `inf` and `nan` are words here, not numbers without a unit.
        } else if text.parse::<f64>().is_ok_and(f64::is_finite) {
            DurationError::NoUnit { input }
        } else {
            DurationError::Malformed { input }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_duration_is_told_in_our_words() {
        assert_eq!(parse_duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("134ms"), Ok(Duration::from_millis(134)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        for (text, message, hint) in [
            ("12", "\"12\" has no unit", "write 12s, 12m or 12h"),
            ("-5m", "\"-5m\" is negative", "write 5m"),
            ("--reason", "\"--reason\" is not a duration", EXAMPLES),
            ("yesterday", "\"yesterday\" is not a duration", EXAMPLES),
            ("5 parsecs", "\"5 parsecs\" is not a duration", EXAMPLES),
            ("nan", "\"nan\" is not a duration", EXAMPLES),
            ("", "\"\" is not a duration", EXAMPLES),
            ("99999999999999999999s", "\"99999999999999999999s\" is not a duration", EXAMPLES),
        ] {
            let error = parse_duration(text).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.hint().as_str()), (message, hint));
        }
    }
}
