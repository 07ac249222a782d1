//! The target of a limit: sources, and the class of their packets.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::class::{Class, ClassError};
use super::invalid::input_error;
use super::prefix::{self, PrefixError};

pub use super::prefix::{prefixes_of, short_prefix, source_of};

/// The sources of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selector {
    /// Every source that no prefix covers.
    Default,
    /// The sources in a prefix; the longest one that covers a source wins.
    Prefix(IpNet),
}

impl Selector {
    /// As short as `--for` takes it: a single address without its length.
    pub fn short(&self) -> String {
        match self {
            Self::Default => DEFAULT.into(),
            Self::Prefix(prefix) => short_prefix(prefix),
        }
    }
}

/// What tells one limit from another: for whom and for which packets it is, and whether each source
/// has it by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// For whom.
    pub whom: Selector,
    /// For which packets.
    pub class: Class,
    /// Whether all sources of `whom` share it as if they were one (`--aggregate`), beside the limits that
    /// each has by itself. With [`Selector::Default`]: all sources.
    pub aggregate: bool,
}

/// Why a target was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No address or prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// A target that is finer than what tells sources apart.
    #[error("{target} is part of a source: this daemon tells sources apart by {bits} bits")]
    FinerThanSource {
        /// The target.
        target: IpNet,
        /// Leading bits that make a source.
        bits: u8,
    },
    /// A single source that is to be limited as one.
    #[error("{} is a single source, which is limited as one anyway", short_prefix(single))]
    SingleAggregate {
        /// The source.
        single: IpNet,
    },
    /// A limit of each destination by itself that is shared.
    #[error("either each destination has the limit by itself, or they share it")]
    DestinationsAggregate,
    /// A class that cannot be.
    #[error(transparent)]
    Class(#[from] ClassError),
}

impl TargetError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Prefix(PrefixError::Unreadable { .. }) => {
                "write an address (198.51.100.7), a prefix (198.51.100.0/24, 2001:db8::/48) or default"
                    .into()
            }
            Self::Prefix(error) => error.hint(),
            Self::FinerThanSource { target, bits } => {
                let family = if target.addr().is_ipv4() { "ipv4" } else { "ipv6" };
                let source = source_of(target.addr(), *bits, *bits);
                format!(
                    "set the limit for {source}, or restart the daemon with --{family}-prefix {}",
                    target.prefix_len()
                )
            }
            Self::SingleAggregate { single } => {
                format!("leave aggregate out, or name a prefix wider than {single}")
            }
            Self::DestinationsAggregate => {
                "leave one of the two out; for all packets to a prefix: --dst PREFIX --aggregate".into()
            }
            Self::Class(error) => error.hint(),
        }
    }
}

input_error!(TargetError);

/// What everyone is called.
const DEFAULT: &str = "default";

/// What a limit is called that sources share.
const AGGREGATE: &str = "aggregate";

impl Target {
    /// Every source, each by itself, whatever it sends.
    pub const DEFAULT: Self = Self::new(Selector::Default);

    /// All packets of `whom`, each source by itself.
    pub const fn new(whom: Selector) -> Self {
        Self { whom, class: Class::ANY, aggregate: false }
    }

    /// The prefix that it is for; `None` for everyone.
    pub const fn prefix(&self) -> Option<IpNet> {
        match self.whom {
            Selector::Default => None,
            Selector::Prefix(net) => Some(net),
        }
    }

    /// The prefix of the sources that it is for; `None` for everyone, also where destinations have it.
    pub const fn sources(&self) -> Option<IpNet> {
        if self.class.is_of_destinations() { None } else { self.prefix() }
    }

    /// The target as short as it can be read: a single address without its length.
    pub fn short(&self) -> String {
        format!("{}{}", self.whom.short(), Kind(self))
    }

    /// Whether one bucket can be shared by what it is for.
    ///
    /// # Errors
    /// [`TargetError::SingleAggregate`] for a single address that is to be limited as one, and
    /// [`TargetError::DestinationsAggregate`].
    pub(super) fn check(&self) -> Result<(), TargetError> {
        match self.whom {
            _ if self.aggregate && self.class.is_of_destinations() => {
                Err(TargetError::DestinationsAggregate)
            }
            // Its own limit says the same, in the bucket table instead of a shared slot of which
            // there are few.
            Selector::Prefix(net) if self.aggregate && net.prefix_len() == net.max_prefix_len() => {
                Err(TargetError::SingleAggregate { single: net })
            }
            _ => Ok(()),
        }
    }

    /// Reads the words after whom a target is for. Returns what they mean, and the rest.
    ///
    /// # Errors
    /// A class that cannot be.
    pub(super) fn kind(rest: &str) -> Result<((Class, bool), &str), TargetError> {
        let (mut class, mut aggregate, mut rest) = (Class::ANY, false, rest.trim());
        let (word, further) = first_word(rest);
        // By its look: a class that is misspelt is to be refused as a class, not as a rate.
        if looks_like_class(word) {
            class = word.parse()?;
            rest = further;
        }
        let (word, further) = first_word(rest);
        if word.eq_ignore_ascii_case(AGGREGATE) {
            aggregate = true;
            rest = further;
        }
        Ok(((class, aggregate), rest))
    }
}

/// The first word of a text, and what follows it.
fn first_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim_start())
}

impl From<IpNet> for Target {
    fn from(net: IpNet) -> Self {
        Self::new(Selector::Prefix(net))
    }
}

/// The part of a target after whom it is for, with a space before it.
struct Kind<'a>(&'a Target);

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.class.is_any() {
            write!(f, " {}", self.0.class)?;
        }
        // In the order in which it is read: what is shown can be typed.
        if self.0.aggregate { write!(f, " {AGGREGATE}") } else { Ok(()) }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str(DEFAULT),
            Self::Prefix(prefix) => write!(f, "{prefix}"),
        }
    }
}

impl FromStr for Selector {
    type Err = TargetError;

    fn from_str(input: &str) -> Result<Self, TargetError> {
        let text = input.trim();
        if text.eq_ignore_ascii_case(DEFAULT) {
            return Ok(Self::Default);
        }
        Ok(Self::Prefix(prefix::read(input)?))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.whom, Kind(self))
    }
}

impl FromStr for Target {
    type Err = TargetError;

    /// Reads `default`, `198.51.100.0/24`, `default udp:53` or `10.0.0.0/8 tcp/syn,!ack aggregate`.
    fn from_str(input: &str) -> Result<Self, TargetError> {
        let text = input.trim();
        let (whom, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let whom = whom.parse()?;
        let ((class, aggregate), rest) = Self::kind(rest)?;
        if !rest.is_empty() {
            return Err(PrefixError::Unreadable { input: input.into() }.into());
        }
        let target = Self { whom, class, aggregate };
        target.check().map(|()| target)
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether a word after whom a limit is for is meant to be a class, rather than `aggregate` or a rate.
fn looks_like_class(word: &str) -> bool {
    // 40/minute is a rate, though 40 is a protocol.
    let named = |text: &str| text.starts_with(char::is_alphabetic) && text.parse::<Class>().is_ok();
    let known = word.parse::<Class>().is_ok();
    known || word.contains([':', '@']) || word.split_once('/').is_some_and(|(name, _)| named(name))
}
