//! What a configuration file may say, as it is written.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::OnExit;
use crate::web::parse_listen;
use crate::{LogFormat, Malformed};
use cluster::config::parse_listen as parse_cluster_listen;
use model::ban::BanInput;
use model::units::parse_duration;
use model::{Partition, Reach};
use model::{interface::Mode, tables::OnFull};

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
    /// Where the dashboard is served, such as `127.0.0.1:9090`; nowhere if left out.
    #[serde(default, deserialize_with = "listen")]
    #[schemars(with = "Option<String>")]
    pub http_listen: Option<SocketAddr>,
    /// The file with the token that the dashboard asks for before it shows anything.
    pub http_token_file: Option<PathBuf>,
    /// The file with the token by which something can be changed over the dashboard.
    pub http_admin_token_file: Option<PathBuf>,
    /// The dashboard's certificate with its chain, PEM.
    pub http_tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub http_tls_key: Option<PathBuf>,
    /// Names by which the dashboard is reached, beside addresses and `localhost`.
    pub http_host: Option<Vec<String>>,
    /// The sketch's error, relative to all packets of a window: its width is e/ε.
    pub sketch_epsilon: Option<f64>,
    /// The probability that the sketch's error is larger: its depth is ln 1/δ.
    pub sketch_delta: Option<f64>,
    /// The sketch's window, such as `134ms`; rounded to a power of two of nanoseconds.
    #[serde(default, deserialize_with = "duration")]
    #[schemars(with = "Option<String>")]
    pub sketch_window: Option<Duration>,
    /// Sources that can be limited at once, rounded up to a power of two; 145 bytes each.
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
    /// How the log on stderr is written.
    pub log_format: Option<LogFormat>,
    /// Whether the kernel program writes to the log what happens to which source; for diagnosis.
    pub kernel_log: Option<bool>,
    /// From where the host is managed.
    #[serde(default)]
    pub management: ManagementTable,
    /// The cluster that the host belongs to: none if nothing is said.
    #[serde(default)]
    pub cluster: ClusterTable,
    /// Limits that are not for a prefix.
    #[serde(default)]
    pub limits: LimitsTable,
    /// Limits of the sources in a prefix.
    #[serde(default)]
    pub limit: Vec<LimitTable>,
    /// Sources that are let through whatever they send.
    #[serde(default)]
    pub allow: Vec<ListTable>,
    /// Sources that are dropped whatever they send.
    #[serde(default)]
    pub deny: Vec<ListTable>,
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

/// `[cluster]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterTable {
    /// The host's name there; its own if left out.
    pub name: Option<String>,
    /// The address and UDP port of this host that its peers come to, such as `192.0.2.10:7700`; without it
    /// the host is in no cluster.
    #[serde(default, deserialize_with = "cluster_listen")]
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// Hosts to ask for the others: addresses or DNS names with ports. This host may be among them.
    #[schemars(with = "Option<Vec<String>>")]
    pub seeds: Option<Vec<Spanned<String>>>,
    /// So many hosts that belong to no cluster found one when they see each other: 2 to 256. Without it one is
    /// founded by `limiter cluster init`.
    pub bootstrap_expect: Option<u32>,
    /// The file with the key that all hosts of the cluster have.
    pub key_file: Option<PathBuf>,
    /// The host's part of every limit, relative to those of the others: 1 to 1000.
    pub weight: Option<u32>,
    /// The region that the host is in: limits are shared within regions first.
    pub region: Option<String>,
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
    Amount(Box<AmountTable>),
}

/// `{ rate = …, burst = … }`
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AmountTable {
    /// How much each source may send, such as `1000pps` or `10mbit`, or one of each unit.
    #[schemars(with = "OneOrTwo<String>")]
    pub rate: Spanned<OneOrMany>,
    /// How much at once, such as `2000` or `64kbyte`; 120 % of a second's rate if left out.
    #[schemars(with = "Option<OneOrTwo<Burst>>")]
    pub burst: Option<Spanned<OneOrMany>>,
    /// Whether what is over the limit is dropped, rather than only counted.
    #[serde(default = "enforced")]
    pub enforce: bool,
    /// Denies sources that go on to be far over the limit.
    #[schemars(with = "Option<BanInput>")]
    pub ban: Option<Spanned<BanInput>>,
    /// Where it holds: on this host alone, which is meant if left out, or on all of the cluster together.
    #[schemars(with = "Option<Reach>")]
    pub scope: Option<Spanned<Reach>>,
    /// Of a limit for the cluster: what becomes of the shares of hosts that cannot be reached.
    #[schemars(with = "Option<Partition>")]
    pub partition: Option<Spanned<Partition>>,
}

/// `[[limit]]`
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitTable {
    /// An address or a prefix; each source in it gets the limit, and the longest match wins.
    #[serde(rename = "for")]
    #[schemars(with = "String")]
    pub target: Spanned<String>,
    /// Only for packets of this protocol: its name or number.
    #[schemars(with = "Option<NumberOrText>")]
    pub proto: Option<Spanned<Text>>,
    /// Only for TCP and UDP packets to this port, or a range such as `1000-2000`.
    #[schemars(with = "Option<NumberOrText>")]
    pub dport: Option<Spanned<Text>>,
    /// Only for TCP packets with these flags, and without those after a `!`: `syn,!ack`.
    #[schemars(with = "Option<String>")]
    pub tcp_flags: Option<Spanned<String>>,
    /// Short for the flags `syn,!ack`.
    #[serde(default)]
    #[schemars(with = "Option<bool>")]
    pub syn: Option<Spanned<bool>>,
    /// Whether all sources share the limit, beside those that each has by itself.
    #[serde(default)]
    pub as_one: bool,
    /// How much each source may send, such as `1000pps` or `10mbit`, or one of each unit.
    #[schemars(with = "OneOrTwo<String>")]
    pub rate: Spanned<OneOrMany>,
    /// How much at once, such as `2000` or `64kbyte`; 120 % of a second's rate if left out.
    #[schemars(with = "Option<OneOrTwo<Burst>>")]
    pub burst: Option<Spanned<OneOrMany>>,
    /// Whether what is over the limit is dropped, rather than only counted.
    #[serde(default = "enforced")]
    pub enforce: bool,
    /// Denies sources that go on to be far over the limit.
    #[schemars(with = "Option<BanInput>")]
    pub ban: Option<Spanned<BanInput>>,
    /// Where it holds: on this host alone, which is meant if left out, or on all of the cluster together.
    #[schemars(with = "Option<Reach>")]
    pub scope: Option<Spanned<Reach>>,
    /// Of a limit for the cluster: what becomes of the shares of hosts that cannot be reached.
    #[schemars(with = "Option<Partition>")]
    pub partition: Option<Spanned<Partition>>,
}

/// `[[allow]]` and `[[deny]]`
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTable {
    /// An address or a prefix, or a list of them; a single source goes before any prefix, and the
    /// longest prefix before others.
    #[serde(rename = "for")]
    #[schemars(with = "Targets")]
    pub targets: Spanned<Targets>,
    /// Why, for whoever reads the list later.
    #[schemars(with = "Option<String>")]
    pub reason: Option<Spanned<String>>,
    /// Whether IPv4 prefixes shorter than /8 and IPv6 prefixes shorter than /16 are meant; without it they are
    /// refused.
    #[serde(default)]
    pub yes: bool,
}

/// An address or a prefix, or a list of them.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Targets {
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
#[expect(dead_code, reason = "it describes what is read as `Several`")]
enum OneOrTwo<T> {
    /// For packets or bytes.
    One(T),
    /// For packets and bytes.
    Two(Vec<T>),
}

/// A text, or a list of some.
#[derive(Clone, Debug)]
pub enum OneOrMany {
    /// One.
    One(Text),
    /// A list, each with its place.
    List(Vec<Spanned<Text>>),
}

impl OneOrMany {
    /// Each of them, and where it begins, where all begin at `byte`.
    pub fn texts(&self, byte: usize) -> Vec<(&str, usize)> {
        match self {
            Self::One(text) => vec![(&text.0, byte)],
            Self::List(list) => {
                list.iter().map(|text| (text.get_ref().0.as_str(), text.span().start)).collect()
            }
        }
    }
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

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let read = parse_duration(&text).map(Some);
    read.map_err(|error| de::Error::custom(format!("{error}: {}", error.hint())))
}

fn cluster_listen<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_cluster_listen(&text).map(Some).map_err(de::Error::custom)
}

fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_listen(&text).map(Some).map_err(de::Error::custom)
}
