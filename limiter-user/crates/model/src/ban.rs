//! Sources that go on to be far over their limit are denied for a time, if there is evidence that they are real.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// What becomes of a source that offers `factor` times its limit for `after` seconds: it is denied for
/// `lasts` seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ban {
    /// How long it must be so far over its limit without a pause, seconds: 1 to 3600.
    #[serde(rename = "after_seconds")]
    pub after: u32,
    /// How many times its limit it must offer: 1 to 1,000,000.
    pub factor: u32,
    /// For how long it is denied, seconds: 1 to 30 days.
    #[serde(rename = "for_seconds")]
    pub lasts: u32,
    /// Whether it is denied without evidence that it is no forged address: see [`limiter_common::evidence`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub unverified: bool,
}

/// What `unverified` is if it is left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Longest times, seconds.
const MAX_AFTER: u32 = 60 * 60;
// A ban is a denial that nobody looked at. It ends, so that a shared address is not lost for good.
const MAX_BAN: u32 = 30 * 24 * 60 * 60;

/// The greatest factor.
// With rates of at most 10^12 a second, products of bans stay within 128 bits.
const GREATEST_FACTOR: u32 = 1_000_000;

/// Why a ban was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BanError {
    /// No duration.
    #[error("ban {name}: {input:?} is not a duration of whole seconds")]
    Duration {
        /// What it was to be.
        name: &'static str,
        /// What was read.
        input: String,
    },
    /// A duration out of range.
    #[error("ban {name}: {input} is out of range")]
    OutOfRange {
        /// What it was to be.
        name: &'static str,
        /// What was read.
        input: String,
        /// The range.
        range: &'static str,
    },
    /// No factor.
    #[error("ban factor: {input:?} is not a whole number")]
    Factor {
        /// What was read.
        input: String,
    },
    /// It does not say for how long.
    #[error("a ban without how long it lasts")]
    Endless,
    /// The limit is only counted.
    #[error("a limit that is not enforced cannot ban")]
    NotEnforced,
    /// The limit is not for single sources.
    #[error("a limit that many sources share cannot ban any of them")]
    Shared,
}

crate::invalid::input_error!(BanError);

impl BanError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Duration { .. } => "write a time such as 5s, 10m or 2h".into(),
            Self::OutOfRange { range, .. } => format!("choose {range}"),
            Self::Factor { .. } => {
                format!("write a number from 1 to {GREATEST_FACTOR}, for instance 10")
            }
            Self::Endless => "add for how long, such as 10m (--ban-for, or for = \"10m\")".into(),
            Self::NotEnforced => "leave either the ban or the lack of enforcement out".into(),
            Self::Shared => {
                "leave either the ban or aggregate out; a limit by destination cannot ban either"
                    .into()
            }
        }
    }
}

/// A ban as options, requests and files have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BanInput {
    /// How long a source must be so far over the limit, `1s` to `1h`; `5s` if left out.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How many times the limit it must offer; 10 if left out.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>")]
    pub factor: Option<String>,
    /// For how long it is denied, `1s` to `30days`.
    #[serde(default, rename = "for", deserialize_with = "text")]
    #[schemars(with = "String")]
    pub lasts: Option<String>,
    /// Whether it is denied also where nothing shows that it is no forged address; `false` if left out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unverified: bool,
}

/// Text, or a number as it was written: what is wrong with a number is told by whoever reads the text.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    struct Text;

    impl Visitor<'_> for Text {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string such as \"10m\"")
        }

        // JSON's `null` is an option left out, as clients send it that have a field for
        // everything.
        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(text.into()))
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
            Ok(Some(number.to_string()))
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
            Ok(Some(number.to_string()))
        }
    }

    deserializer.deserialize_any(Text)
}

impl BanInput {
    /// The ban that it makes.
    ///
    /// # Errors
    /// What cannot be read or is out of range, and what is missing.
    pub fn read(&self) -> Result<Ban, BanError> {
        let after = self.after.as_deref().map_or(Ok(Ban::AFTER), |text| {
            seconds("after", text, MAX_AFTER, "a time from 1s to 1h")
        })?;
        let factor = self.factor.as_deref().map_or(Ok(Ban::FACTOR), factor)?;
        // No default: how long somebody is shut out is for the operator to say.
        let lasts = self.lasts.as_deref().ok_or(BanError::Endless)?;
        let lasts = seconds("for", lasts, MAX_BAN, "a time from 1s to 30days")?;
        Ok(Ban { after, factor, lasts, unverified: self.unverified })
    }
}

fn seconds(
    name: &'static str,
    input: &str,
    most: u32,
    range: &'static str,
) -> Result<u32, BanError> {
    let malformed = || BanError::Duration { name, input: input.into() };
    let time = humantime::parse_duration(input.trim()).map_err(|_| malformed())?;
    if time.subsec_nanos() != 0 {
        // Sources are scanned once a second: a fraction would promise what cannot be kept.
        return Err(malformed());
    }
    u32::try_from(time.as_secs())
        .ok()
        .filter(|seconds| (1..=most).contains(seconds))
        .ok_or_else(|| BanError::OutOfRange { name, input: input.into(), range })
}

fn factor(input: &str) -> Result<u32, BanError> {
    let text = input.trim();
    // Parsing alone would take "+10", which reads like a difference.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits {
        return Err(BanError::Factor { input: input.into() });
    }
    text.parse().ok().filter(|factor| (1..=GREATEST_FACTOR).contains(factor)).ok_or_else(|| {
        BanError::OutOfRange { name: "factor", input: input.into(), range: "1 to 1000000" }
    })
}

impl Ban {
    /// How long a source must be over its limit if that is not said, seconds.
    pub const AFTER: u32 = 5;
    /// How many times if that is not said.
    pub const FACTOR: u32 = 10;

    /// The ban, if its numbers, which come from elsewhere, can be those of one.
    ///
    /// # Errors
    /// [`BanError::OutOfRange`].
    pub fn checked(self) -> Result<Self, BanError> {
        let Self { after, factor, lasts, unverified } = self;
        // By way of its text, so that numbers from elsewhere meet the same bounds with the same
        // words.
        let [after, factor, lasts] =
            [format!("{after}s"), factor.to_string(), format!("{lasts}s")].map(Some);
        BanInput { after, factor, lasts, unverified }.read()
    }
}

/// A time as it is written.
fn time(seconds: u32) -> String {
    humantime::format_duration(Duration::from_secs(seconds.into())).to_string().replace(' ', "")
}

impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, factor, lasts, unverified } = *self;
        let unverified = if unverified { ", unverified" } else { "" };
        write!(f, "ban {} after {} at {factor}×{unverified}", time(lasts), time(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_read_and_written() {
        let read = |after: Option<&str>, factor: Option<&str>, lasts: Option<&str>| {
            let [after, factor, lasts] = [after, factor, lasts].map(|text| text.map(Into::into));
            BanInput { after, factor, lasts, unverified: false }.read()
        };
        let ban = read(Some("90s"), Some("3"), Some("2h")).unwrap();
        assert_eq!(ban, Ban { after: 90, factor: 3, lasts: 7200, unverified: false });
        assert_eq!(ban.to_string(), "ban 2h after 1m30s at 3×");
        let usual = read(None, None, Some("30days")).unwrap();
        assert_eq!(usual, Ban { after: 5, factor: 10, lasts: 2_592_000, unverified: false });
        assert_eq!(usual.checked(), Ok(usual));
        let unverified = Ban { unverified: true, ..usual };
        assert_eq!(unverified.checked(), Ok(unverified));
        assert_eq!(unverified.to_string(), "ban 30days after 5s at 10×, unverified");
        assert!(Ban { factor: 0, ..usual }.checked().is_err());
        let input = |text| serde_json::from_str::<BanInput>(text).unwrap().read();
        assert_eq!(input(r#"{"for":"30days"}"#), Ok(usual));
        assert_eq!(input(r#"{"for":"30days","unverified":true}"#), Ok(unverified));
        for (after, factor, lasts, about) in [
            (None, None, None, "how long it lasts"),
            (Some("5s"), None, None, "how long it lasts"),
            (Some("5"), None, Some("10m"), "ban after: \"5\""),
            (Some("0s"), None, Some("10m"), "ban after: 0s is out of range"),
            (Some("1500ms"), None, Some("10m"), "whole seconds"),
            (Some("61m"), None, Some("10m"), "out of range"),
            (None, Some("0"), Some("10m"), "ban factor: 0 is out of range"),
            (None, Some("1000001"), Some("10m"), "out of range"),
            (None, Some("99999999999"), Some("10m"), "out of range"),
            (None, Some("2.5"), Some("10m"), "not a whole number"),
            (None, Some("-2"), Some("10m"), "not a whole number"),
            (None, Some(""), Some("10m"), "not a whole number"),
            (None, None, Some("31days"), "ban for: 31days is out of range"),
            (None, None, Some("-5m"), "ban for"),
        ] {
            let error = read(after, factor, lasts).unwrap_err();
            assert!(error.to_string().contains(about), "{error}");
            assert!(!error.hint().is_empty());
        }
    }
}
