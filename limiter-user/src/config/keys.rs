//! What a configuration file may say, as it is written.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::cli::Malformed;
use crate::daemon::OnExit;
use crate::dataplane::{Mode, OnFull};

/// The configuration of `limiter run`. Every key can be left out.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// Interfaces to attach to, besides those attached already.
    pub interfaces: Option<Vec<String>>,
    /// In the driver, or in the network stack where the driver cannot (several times slower).
    pub mode: Option<Mode>,
    /// Whether to take the place of another XDP program.
    pub replace: Option<bool>,
    /// The daemon's socket, for the daemon and for its clients.
    pub socket: Option<PathBuf>,
    /// The group that may use the socket, if it exists; else only root.
    pub socket_group: Option<String>,
    /// The group whose members may also change something; without it, only root may.
    pub admin_group: Option<String>,
    /// Where limits are stored.
    pub state_dir: Option<PathBuf>,
    /// Where maps and links are pinned, on a BPF file system.
    pub pin_dir: Option<PathBuf>,
    /// Whether the limits stay in force when the daemon ends.
    pub on_exit: Option<OnExit>,
    /// The sketch's error, relative to all packets of a window: its width is e/ε.
    pub sketch_epsilon: Option<f64>,
    /// The probability that the sketch's error is larger: its depth is ln 1/δ.
    pub sketch_delta: Option<f64>,
    /// The sketch's window, such as `134ms`; rounded to a power of two of nanoseconds.
    #[serde(default, deserialize_with = "duration")]
    #[schemars(with = "Option<String>")]
    pub sketch_window: Option<Duration>,
    /// Sources that can be limited at once, rounded up to a power of two; 80 bytes each.
    pub max_sources: Option<u32>,
    /// Limits of single sources that can be set.
    pub max_limits: Option<u32>,
    /// Sources that can be on the allow and deny lists.
    pub max_listed: Option<u32>,
    /// Leading bits of an IPv4 address that make a source.
    pub ipv4_prefix: Option<u8>,
    /// Leading bits of an IPv6 address that make a source.
    pub ipv6_prefix: Option<u8>,
    /// What happens to IP packets whose source cannot be read.
    pub malformed: Option<Malformed>,
    /// What happens to a source for which the bucket table has no place.
    pub on_full: Option<OnFull>,
    /// From where the host is managed.
    #[serde(default)]
    pub management: ManagementTable,
    /// Limits that are not for a prefix.
    #[serde(default)]
    pub limits: LimitsTable,
    /// Limits of the sources in a prefix.
    #[serde(default)]
    pub limit: Vec<LimitTable>,
}

/// `[management]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManagementTable {
    /// Addresses and prefixes that are never limited.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<Spanned<String>>,
}

/// `[limits]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsTable {
    /// The limit of every source that no prefix covers.
    #[schemars(with = "Option<DefaultLimit>")]
    pub default: Option<Spanned<DefaultLimit>>,
}

/// A rate alone, or a rate and a burst.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum DefaultLimit {
    /// A rate, such as `1000pps`.
    Rate(String),
    /// A rate and a burst.
    Amount(AmountTable),
}

/// `{ rate = …, burst = … }`
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AmountTable {
    /// How much each source may send, such as `1000pps` or `10mbit`.
    #[schemars(with = "String")]
    pub rate: Spanned<Text>,
    /// How much at once, such as `2000` or `64kbyte`; 120 % of a second's rate if left out.
    #[schemars(with = "Option<Burst>")]
    pub burst: Option<Spanned<Text>>,
    /// Whether what is over the limit is dropped, rather than only counted.
    #[serde(default = "enforced")]
    pub enforce: bool,
}

/// `[[limit]]`
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitTable {
    /// An address or a prefix; each source in it gets the limit, and the longest match wins.
    #[serde(rename = "for")]
    #[schemars(with = "String")]
    pub target: Spanned<String>,
    /// How much each source may send, such as `1000pps` or `10mbit`.
    #[schemars(with = "String")]
    pub rate: Spanned<Text>,
    /// How much at once, such as `2000` or `64kbyte`; 120 % of a second's rate if left out.
    #[schemars(with = "Option<Burst>")]
    pub burst: Option<Spanned<Text>>,
    /// Whether what is over the limit is dropped, rather than only counted.
    #[serde(default = "enforced")]
    pub enforce: bool,
}

const fn enforced() -> bool {
    true
}

/// A burst as the schema has it.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "it describes what is read as `Text`")]
enum Burst {
    /// Packets.
    Packets(u64),
    /// Packets (`2k`), or a size (`64kbyte`).
    Text(String),
}

/// Text, or a number as it was written: what is wrong with a number is told by whoever reads the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub String);

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string such as \"1000pps\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(text.into()))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Text, E> {
        Ok(Text(number.to_string()))
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

impl<'de> Deserialize<'de> for DefaultLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        // Told apart by hand, so that an error says what is wrong and where.
        impl<'de> Visitor<'de> for Either {
            type Value = DefaultLimit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate such as \"1000pps\", or { rate = \"1000pps\", burst = 2000 }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DefaultLimit, E> {
                Ok(DefaultLimit::Rate(text.into()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<DefaultLimit, E> {
                Ok(DefaultLimit::Rate(number.to_string()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<DefaultLimit, A::Error> {
                AmountTable::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(DefaultLimit::Amount)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let read = humantime::parse_duration(&text);
    read.map(Some).map_err(|error| {
        de::Error::custom(format!("{text:?} is not a duration such as \"134ms\": {error}"))
    })
}
