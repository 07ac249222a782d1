//! The tables of limits and lists in a configuration file, as they are written.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use model::ban::BanInput;
use model::class::By;
use model::input::Part;
use model::{Algorithm, LimitInput, OnError, Partition, Reach};

/// `[limits]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
// Unknown keys are refused everywhere: with a misspelled `enforce` a limit that was to count would
// drop.
#[serde(deny_unknown_fields)]
pub(super) struct LimitsTable {
    /// The limit of every source that no prefix covers.
    #[schemars(with = "Option<DefaultLimit>")]
    pub(super) default: Option<Spanned<DefaultLimit>>,
}

/// A rate alone, or a rate and a burst.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub(super) enum DefaultLimit {
    /// A rate, such as `1000pps`.
    Rate(String),
    /// A rate and a burst.
    Amount(Box<AmountTable>),
}

/// Declares a table that says how much a limit is, after what else is in it. Not by serde's `flatten`: it would lose
/// where each value stands in the file.
macro_rules! amount_table {
    ($(#[$doc:meta])* $name:ident { $($other:tt)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name {
            $($other)*
            /// How much each source may send, such as `1000pps` or `10mbit`, or one of each unit.
            #[schemars(with = "OneOrTwo<String>")]
            pub(super) rate: Spanned<OneOrMany>,
            /// How much at once, such as `2000` or `64kbyte`; 120 % of a second's rate if left out.
            #[schemars(with = "Option<OneOrTwo<Burst>>")]
            pub(super) burst: Option<Spanned<OneOrMany>>,
            /// How it is kept: `token-bucket`, which is meant if left out, `fixed-window` or `sliding-window`.
            #[schemars(with = "Option<Algorithm>")]
            pub(super) algorithm: Option<Spanned<String>>,
            /// Whether what is over the limit is dropped, rather than only counted.
            #[serde(default = "enforced")]
            pub(super) enforce: bool,
            /// Denies sources that go on to be far over the limit.
            #[schemars(with = "Option<BanInput>")]
            pub(super) ban: Option<Spanned<BanInput>>,
            /// Where it holds: on this host alone, which is meant if left out, on all of the cluster together, or on all that
            /// use the same central store.
            #[schemars(with = "Option<Reach>")]
            pub(super) scope: Option<Spanned<Reach>>,
            /// Of a limit for the cluster: what becomes of the shares of hosts that cannot be reached.
            #[schemars(with = "Option<Partition>")]
            pub(super) partition: Option<Spanned<Partition>>,
            /// Of a strict limit: what a host admits while the store leases nothing.
            #[schemars(with = "Option<OnError>")]
            pub(super) on_error: Option<Spanned<OnError>>,
            /// Of a limit that all sources share: how much of its burst is kept for known sources, percent, 0 to 90.
            #[schemars(with = "Option<u8>")]
            pub(super) reserve: Option<Spanned<u8>>,
        }

        impl Amounts for $name {
            fn input(&self) -> LimitInput {
                LimitInput {
                    rate: self.rate.get_ref().texts().collect(),
                    burst: self.burst.iter().flat_map(|burst| burst.get_ref().texts()).collect(),
                    algorithm: self.algorithm.as_ref().map(|name| name.get_ref().clone()),
                    enforce: self.enforce,
                    ban: self.ban.as_ref().map(|ban| ban.get_ref().clone()),
                    scope: self.scope.as_ref().map(|scope| *scope.get_ref()),
                    partition: self.partition.as_ref().map(|partition| *partition.get_ref()),
                    on_error: self.on_error.as_ref().map(|on_error| *on_error.get_ref()),
                    reserve: self.reserve.as_ref().map_or(0, |reserve| *reserve.get_ref()),
                    ..LimitInput::default()
                }
            }

            fn begins(&self, part: Part) -> Option<usize> {
                match part {
                    Part::Rate(place) => Some(begins(&self.rate, place)),
                    Part::Burst(place) => self.burst.as_ref().map(|burst| begins(burst, place)),
                    Part::Algorithm => self.algorithm.as_ref().map(|name| name.span().start),
                    Part::Ban => self.ban.as_ref().map(|ban| ban.span().start),
                    Part::Scope => {
                        let scope = self.scope.as_ref().map(|scope| scope.span().start);
                        let partition = self.partition.as_ref().map(|it| it.span().start);
                        scope.or(partition).or(self.on_error.as_ref().map(|it| it.span().start))
                    }
                    Part::Reserve => self.reserve.as_ref().map(|reserve| reserve.span().start),
                    // Whoever reads a limit knows where its target is, and the default has none.
                    Part::Target => None,
                }
            }
        }
    };
}

/// How much a limit is, as it is written.
pub(super) trait Amounts {
    /// What is said of the limit, without its target.
    fn input(&self) -> LimitInput;

    /// The byte of the file at which a part of it begins, if it is written.
    fn begins(&self, part: Part) -> Option<usize>;
}

/// Where the text at `place` of a list begins; all of it, if it is no list.
fn begins(list: &Spanned<OneOrMany>, place: usize) -> usize {
    let text = match list.get_ref() {
        OneOrMany::One(_) => None,
        OneOrMany::List(list) => list.get(place),
    };
    text.map_or(list.span().start, |text| text.span().start)
}

amount_table! {
    /// `{ rate = …, burst = … }`
    AmountTable {}
}

impl AmountTable {
    /// A rate of which nothing more is said.
    pub(super) const fn new(rate: Spanned<OneOrMany>) -> Self {
        Self {
            rate,
            burst: None,
            algorithm: None,
            enforce: true,
            ban: None,
            scope: None,
            partition: None,
            on_error: None,
            reserve: None,
        }
    }
}

amount_table! {
    /// `[[limit]]`
    LimitTable {
        /// An address or a prefix; each source in it gets the limit, and the longest match wins.
        #[serde(rename = "for")]
        #[schemars(with = "String")]
        pub(super) target: Spanned<String>,
        /// Only for packets of this protocol: its name or number.
        #[schemars(with = "Option<NumberOrText>")]
        pub(super) proto: Option<Spanned<Text>>,
        /// Only for TCP and UDP packets to this port, or a range such as `1000-2000`.
        #[schemars(with = "Option<NumberOrText>")]
        pub(super) dport: Option<Spanned<Text>>,
        /// Only for TCP and UDP packets from this port, or a range; with a protocol alone.
        #[schemars(with = "Option<NumberOrText>")]
        pub(super) sport: Option<Spanned<Text>>,
        /// Only for this type of ICMP, or of ICMPv6 with that as the protocol: `8`, or with a code `3/4`.
        #[schemars(with = "Option<NumberOrText>")]
        pub(super) icmp: Option<Spanned<Text>>,
        /// Only for fragments but the first one of each packet; with a protocol alone.
        #[serde(default)]
        #[schemars(with = "Option<bool>")]
        pub(super) fragments: Option<Spanned<bool>>,
        /// Only for packets to this address or prefix.
        #[schemars(with = "Option<String>")]
        pub(super) dst: Option<Spanned<String>>,
        /// Who has the limit by itself: each `source`, or each `destination` in `for`, whoever sends.
        pub(super) by: Option<By>,
        /// Only for TCP packets with these flags, and without those after a `!`: `syn,!ack`.
        #[schemars(with = "Option<String>")]
        pub(super) tcp_flags: Option<Spanned<String>>,
        /// Short for the flags `syn,!ack`.
        #[serde(default)]
        #[schemars(with = "Option<bool>")]
        pub(super) syn: Option<Spanned<bool>>,
        /// Whether all sources share the limit, beside those that each has by itself.
        #[serde(default)]
        pub(super) aggregate: bool,
    }
}

/// `[[allow]]` and `[[deny]]`
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListTable {
    /// An address or a prefix, or a list of them; a single source goes before any prefix, and the
    /// longest prefix before others.
    #[serde(rename = "for")]
    #[schemars(with = "Targets")]
    pub(super) targets: Spanned<Targets>,
    /// Why, for whoever reads the list later.
    #[schemars(with = "Option<String>")]
    pub(super) reason: Option<Spanned<String>>,
    /// Whether IPv4 prefixes shorter than /8 and IPv6 prefixes shorter than /16 are meant; without it they are
    /// refused.
    #[serde(default)]
    // A slip such as 0.0.0.0/0 would shut everybody out, and again at each start.
    pub(super) yes: bool,
}

/// An address or a prefix, or a list of them.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub(super) enum Targets {
    /// One.
    One(String),
    /// Any number.
    Many(#[schemars(with = "Vec<String>")] Vec<Spanned<String>>),
}

impl<'de> Deserialize<'de> for Targets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        // Told apart by hand, so that an error says what is wrong and where.
        impl<'de> Visitor<'de> for Either {
            type Value = Targets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string such as \"198.51.100.0/24\", or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Targets, E> {
                Ok(Targets::One(text.into()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Targets, A::Error> {
                let mut all = Vec::new();
                while let Some(target) = seq.next_element()? {
                    all.push(target);
                }
                Ok(Targets::Many(all))
            }
        }

        deserializer.deserialize_any(Either)
    }
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

/// A protocol or ports, as the schema has them.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "it describes what is read as `Text`")]
enum NumberOrText {
    /// A protocol's number, or a port.
    Number(u16),
    /// A protocol's name, or a range of ports.
    Text(String),
}

/// One, or one of each unit, as the schema has it.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "it describes what is read as `OneOrMany`")]
enum OneOrTwo<T> {
    /// For packets or bytes.
    One(T),
    /// For packets and bytes.
    Two(Vec<T>),
}

/// A text, or a list of some.
#[derive(Clone, Debug)]
pub(super) enum OneOrMany {
    /// One.
    One(Text),
    /// A list, each with its place.
    List(Vec<Spanned<Text>>),
}

impl OneOrMany {
    /// Each of them.
    fn texts(&self) -> impl Iterator<Item = &str> {
        let all: Vec<_> = match self {
            Self::One(text) => vec![text],
            Self::List(list) => list.iter().map(Spanned::get_ref).collect(),
        };
        all.into_iter().map(|text| text.0.as_str())
    }
}

/// Text, or a number as it was written: what is wrong with a number is told by whoever reads the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text(pub String);

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string such as \"1000pps\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(text.into()))
    }

    // A bare number has no unit. It is taken here so that the answer is how to write one, not that
    // a string is expected.
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Text, E> {
        Ok(Text(number.to_string()))
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

// By hand, not `untagged`: that forgets where each value stands, and says only that no variant
// fits.
impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string such as \"1000pps\", or a list of two")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany, E> {
                TextVisitor.visit_str(text).map(OneOrMany::One)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<OneOrMany, E> {
                TextVisitor.visit_i64(number).map(OneOrMany::One)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany, A::Error> {
                let mut all = Vec::new();
                while let Some(text) = list.next_element()? {
                    all.push(text);
                }
                Ok(OneOrMany::List(all))
            }
        }

        deserializer.deserialize_any(Either)
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
                    .map(|table| DefaultLimit::Amount(Box::new(table)))
            }
        }

        deserializer.deserialize_any(Either)
    }
}
