//! A limit as commands, requests, files and lists word it.

use std::{fmt, mem};

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::algorithm::{Algorithm, AlgorithmError};
use super::ban::BanInput;
use super::invalid::Invalid;
use super::scope::{OnError, Partition, Reach, Scope};
use super::target::{Selector, Target};
use super::units::{Rate, Unit, UnitError, parse_burst};
use crate::limit::{Limit, ModelError, enforced, is_nothing};

/// What is said of a limit. It is the body of `PUT /v1/limits`; options, files and lists make one too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// A misspelled `enforce` or `ban` must not make another limit than was meant.
#[serde(deny_unknown_fields)]
pub struct LimitInput {
    /// `default`, an address or a prefix; a class and `aggregate` may follow: `default udp:53 aggregate`.
    #[serde(default = "default_target")]
    pub target: String,
    /// A rate, such as `1000pps`, or a list of one of packets and one of bytes.
    pub rate: OneOrMany,
    /// A burst, such as `2000` or `64kbyte`, or a list with one for each rate, which is told by its unit; 120 % of a
    /// second's rate if left out.
    #[serde(default, skip_serializing_if = "OneOrMany::is_empty")]
    pub burst: OneOrMany,
    /// How it is kept: `token-bucket`, which is meant if left out, `fixed-window` or `sliding-window`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    /// Whether what is over the limit is dropped, rather than only counted.
    #[serde(default = "enforced")]
    pub enforce: bool,
    /// What becomes of a source that goes on to be far over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban: Option<BanInput>,
    /// Where it holds: `local`, which is meant if left out, `cluster` or `strict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Reach>,
    /// Of a limit for the cluster, what becomes of the shares of hosts that cannot be reached: `auto`, which is meant if
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
    /// Of a strict limit, what a host admits while the store leases nothing: `lease`, which is meant if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// Of a limit that is `aggregate`, how much of its burst is kept for known sources, percent, 0..=90: for those
    /// that have a bucket and owe no more than an eighth of their burst.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub reserve: u8,
}

/// The target that is meant if none is named.
pub fn default_target() -> String {
    Selector::Default.to_string()
}

impl Default for LimitInput {
    /// For every source, without a rate.
    fn default() -> Self {
        Self {
            target: default_target(),
            rate: OneOrMany::default(),
            burst: OneOrMany::default(),
            algorithm: None,
            enforce: true,
            ban: None,
            scope: None,
            partition: None,
            on_error: None,
            reserve: 0,
        }
    }
}

/// A text, or several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OneOrMany(pub Vec<String>);

impl OneOrMany {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> FromIterator<&'a str> for OneOrMany {
    fn from_iter<I: IntoIterator<Item = &'a str>>(texts: I) -> Self {
        Self(texts.into_iter().map(str::to_owned).collect())
    }
}

// A single rate is written as a single string, so that requests look like the command.
impl Serialize for OneOrMany {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => serializer.serialize_str(one),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or a list of strings")
            }

            fn visit_unit<E: de::Error>(self) -> Result<OneOrMany, E> {
                Ok(OneOrMany::default())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![text.into()]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<OneOrMany, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(list)).map(OneOrMany)
            }
        }

        deserializer.deserialize_any(Either)
    }
}
/// What is wrong with a limit: one of its rates or bursts by its number, the ban, where it holds, or for
/// whom it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A rate.
    Rate(usize),
    /// A burst.
    Burst(usize),
    /// The algorithm.
    Algorithm,
    /// The ban.
    Ban,
    /// The scope.
    Scope,
    /// The reserve.
    Reserve,
    /// The target.
    Target,
}

/// A refusal, and what is to blame.
type Refused = (Part, Invalid);

fn refuse(part: Part, message: impl Into<String>, hint: &str) -> Refused {
    (part, Invalid::new(message).with_hint(hint))
}

impl LimitInput {
    /// The limit that is meant.
    ///
    /// # Errors
    /// What cannot be read, or does not go together.
    pub fn limit(&self) -> Result<Limit, Invalid> {
        self.limit_for(self.target.parse()?).map_err(|(_, error)| error)
    }

    /// The limit that is meant, of a target that was read already.
    ///
    /// # Errors
    /// As [`LimitInput::limit`], and what is to blame.
    pub fn limit_for(&self, target: Target) -> Result<Limit, (Part, Invalid)> {
        let mut rates = Vec::with_capacity(2);
        for (place, text) in self.rate.0.iter().enumerate() {
            let rate: Rate =
                text.parse().map_err(|error: UnitError| (Part::Rate(place), error.into()))?;
            // Here rather than in `Limit::and`, as only here it is known which of the texts is to
            // blame.
            if rates.iter().any(|other: &Rate| other.unit() == rate.unit()) {
                return Err(refuse(
                    Part::Rate(place),
                    format!("{} and {rate} both count {}", rates[0], rate.unit().name()),
                    "give one rate of packets and one of bytes, for instance 1000pps and 10mbit",
                ));
            }
            rates.push(rate);
        }
        // All rates before any burst: a burst finds its rate by its unit, in whatever order they
        // stand.
        let bursts = self.bursts(&rates)?;
        let [first, also] = [0, 1].map(|place| {
            let burst = bursts.iter().copied().find(|(_, of, _)| *of == place);
            rates.get(place).map(|rate| (*rate, burst))
        });
        let Some((rate, burst)) = first else {
            let hint = "give a rate, for instance 1000pps or 10mbit";
            return Err(refuse(Part::Rate(0), "there is no rate", hint));
        };
        // With a burst of its own a rate is good: what does not fit is the burst.
        let blamed = |rate, burst: Option<(usize, usize, u64)>| {
            burst.map_or(Part::Rate(rate), |(place, ..)| Part::Burst(place))
        };
        let amount = |burst: Option<(usize, usize, u64)>| burst.map(|(.., amount)| amount);
        // Before the amount, which would otherwise be blamed for a target that cannot have any.
        target.check().map_err(|error| (Part::Target, error.into()))?;
        let algorithm = self.algorithm.as_deref().map_or(Ok(Algorithm::TokenBucket), str::parse);
        let algorithm =
            algorithm.map_err(|error: AlgorithmError| (Part::Algorithm, error.into()))?;
        let mut limit = Limit::by(target, algorithm, rate, amount(burst)).map_err(|error| {
            let of_many = matches!(error, ModelError::WindowOfMany { .. });
            (if of_many { Part::Algorithm } else { blamed(0, burst) }, error.into())
        })?;
        if let Some((rate, burst)) = also {
            limit =
                limit.and(rate, amount(burst)).map_err(|error| (blamed(1, burst), error.into()))?;
        }
        let ban = |error: Invalid| (Part::Ban, error);
        let wanted = self.ban.as_ref().map(BanInput::read).transpose();
        let wanted = wanted.map_err(|error| ban(error.into()))?;
        let limit =
            limit.enforced(self.enforce).banning(wanted).map_err(|error| ban(error.into()))?;
        let scope = Scope::read(self.scope, self.partition, self.on_error);
        let scope = scope.map_err(|error| (Part::Scope, error.into()))?;
        let limit = limit.scoped(scope).map_err(|error| (Part::Scope, error.into()))?;
        limit.reserving(self.reserve).map_err(|error| (Part::Reserve, error.into()))
    }

    /// Takes an option as a line of a list has it: `no-enforce`, `ban-unverified` or `NAME=VALUE`.
    ///
    /// # Errors
    /// If its value makes no sense, or it is there twice. `None` if there is no such option.
    pub(super) fn take_word(&mut self, word: &str) -> Option<Result<(), Invalid>> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let twice = match name {
            "scope" => named(name, value, Reach::ALL, Reach::name)
                .map(|scope| self.scope.replace(scope).is_some()),
            "partition" => named(name, value, Partition::ALL, Partition::name)
                .map(|partition| self.partition.replace(partition).is_some()),
            "on-error" => named(name, value, OnError::ALL, OnError::name)
                .map(|on_error| self.on_error.replace(on_error).is_some()),
            "algorithm" => Ok(self.algorithm.replace(value.into()).is_some()),
            "reserve" => match value.parse() {
                Ok(percent) => Ok(mem::replace(&mut self.reserve, percent) != 0),
                Err(_) => Err(Invalid::new(format!("what is reserve={value}?"))
                    .with_hint("give a number of percent, for instance reserve=20")),
            },
            NO_ENFORCE if value.is_empty() => Ok(!mem::replace(&mut self.enforce, false)),
            "ban-after" => Ok(self.ban().after.replace(value.into()).is_some()),
            "ban-factor" => Ok(self.ban().factor.replace(value.into()).is_some()),
            "ban-for" => Ok(self.ban().lasts.replace(value.into()).is_some()),
            BAN_UNVERIFIED if value.is_empty() => {
                Ok(mem::replace(&mut self.ban().unverified, true))
            }
            _ => return None,
        };
        Some(twice.and_then(|twice| match twice {
            true => Err(Invalid::new(format!("{name} is there twice")).with_hint(EXAMPLE)),
            false => Ok(()),
        }))
    }

    fn ban(&mut self) -> &mut BanInput {
        self.ban.get_or_insert_default()
    }

    /// Each burst: its place, the place of the rate that it is for, and packets or bytes.
    fn bursts(&self, rates: &[Rate]) -> Result<Vec<(usize, usize, u64)>, Refused> {
        let mut bursts: Vec<(usize, usize, u64)> = Vec::with_capacity(2);
        for (place, text) in self.burst.0.iter().enumerate() {
            let wrong = |error: UnitError| (Part::Burst(place), Invalid::from(error));
            let read = |rate: &Rate| parse_burst(text, rate.unit());
            // A burst belongs to the rate whose unit it can be read in, whatever the order of both.
            let of = match rates {
                [] | [_] => 0,
                // No burst can be read both ways.
                several => several.iter().position(|rate| read(rate).is_ok()).unwrap_or(0),
            };
            let Some(rate) = rates.get(of) else { continue };
            let amount = read(rate).map_err(wrong)?;
            if bursts.iter().any(|(_, other, _)| *other == of) {
                let unit = rate.unit().name();
                return Err(refuse(
                    Part::Burst(place),
                    format!("there are two bursts of {unit} for one rate of {unit}"),
                    "give one burst for each rate",
                ));
            }
            bursts.push((place, of, amount));
        }
        Ok(bursts)
    }
}

/// How a line of a list should look.
pub(super) const EXAMPLE: &str = "write TARGET RATE [BURST], for instance 198.51.100.7 1000pps 2000; see `limiter limit import --help`";

/// What an option's value names.
fn named<T: Copy, const N: usize>(
    option: &str,
    value: &str,
    all: [T; N],
    name: fn(T) -> &'static str,
) -> Result<T, Invalid> {
    all.into_iter().find(|one| name(*one) == value).ok_or_else(|| {
        let names = all.map(|one| format!("{option}={}", name(one)));
        Invalid::new(format!("what is {option}={value}?"))
            .with_hint(format!("write {}, or leave it out", names.join(" or ")))
    })
}

/// The option for a ban that asks for no evidence.
pub(super) const BAN_UNVERIFIED: &str = "ban-unverified";

/// The option for a limit that is only counted.
pub(super) const NO_ENFORCE: &str = "no-enforce";

impl Unit {
    /// What is counted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Explain as _;

    fn input(rates: &[&str], bursts: &[&str]) -> LimitInput {
        let [rate, burst] = [rates, bursts].map(|texts| texts.iter().copied().collect());
        LimitInput { rate, burst, ..LimitInput::default() }
    }

    #[test]
    fn rates_come_in_any_order_and_bursts_find_theirs() {
        let wanted = input(&["1000pps", "10mbit"], &["2000", "64kbyte"]);
        let wanted = wanted.limit_for(Target::DEFAULT).unwrap();
        assert_eq!((wanted.rate.unit(), wanted.burst), (Unit::Packets, 2000));
        assert_eq!(
            wanted.also.map(|also| (also.rate.to_string(), also.burst)),
            Some(("10mbit".into(), 64_000))
        );
        for (rates, bursts) in [
            (["10mbit", "1000pps"], ["2000", "64kbyte"]),
            (["10mbit", "1kpps"], ["64kbyte", "2k"]),
            (["1000pps", "10mbit"], ["64kbyte", "2000"]),
        ] {
            assert_eq!(input(&rates, &bursts).limit_for(Target::DEFAULT).unwrap(), wanted);
        }
        let one = input(&["10mbit", "1000pps"], &["64kbyte"]).limit_for(Target::DEFAULT).unwrap();
        assert_eq!((one.burst, one.also.map(|also| also.burst)), (1200, Some(64_000)));
    }

    #[test]
    fn what_does_not_go_together_is_blamed() {
        let lasts = BanInput { lasts: Some("10m".into()), ..BanInput::default() };
        let ban = Some(lasts.clone());
        let shared = "10.0.0.0/8 aggregate".parse().unwrap();
        for (input, target, part, about) in [
            (input(&[], &[]), Target::DEFAULT, Part::Rate(0), "no rate"),
            (input(&["5"], &[]), Target::DEFAULT, Part::Rate(0), "no unit"),
            (input(&["5pps", "5mbps"], &[]), Target::DEFAULT, Part::Rate(1), "ambiguous"),
            (
                input(&["5pps", "7pps"], &[]),
                Target::DEFAULT,
                Part::Rate(1),
                "5pps and 7pps both count packets",
            ),
            (
                input(&["5pps", "1mbit", "1pps"], &[]),
                Target::DEFAULT,
                Part::Rate(2),
                "both count packets",
            ),
            (
                input(&["5pps"], &["5", "6"]),
                Target::DEFAULT,
                Part::Burst(1),
                "two bursts of packets",
            ),
            (input(&["5pps"], &["64kbyte"]), Target::DEFAULT, Part::Burst(0), "kbyte"),
            (
                input(&["5pps", "1mbit"], &["5", "6"]),
                Target::DEFAULT,
                Part::Burst(1),
                "two bursts of packets",
            ),
            (input(&["5pps", "1mbit"], &["5", "6foo"]), Target::DEFAULT, Part::Burst(1), "foo"),
            (
                input(&["1mbit", "5pps"], &["5", "9byte"]),
                Target::DEFAULT,
                Part::Burst(1),
                "full frame",
            ),
            (
                LimitInput {
                    ban: Some(BanInput { after: Some("5s".into()), ..lasts.clone() }),
                    ..input(&["5pps"], &[])
                },
                shared,
                Part::Ban,
                "share",
            ),
            (
                LimitInput { partition: Some(Partition::Conservative), ..input(&["5pps"], &[]) },
                Target::DEFAULT,
                Part::Scope,
                "no partition policy",
            ),
            (
                LimitInput { ban, enforce: false, ..input(&["5pps"], &[]) },
                Target::DEFAULT,
                Part::Ban,
                "not enforced",
            ),
            (
                LimitInput {
                    ban: Some(BanInput { lasts: Some("ten".into()), ..lasts }),
                    ..input(&["5pps"], &[])
                },
                Target::DEFAULT,
                Part::Ban,
                "ten",
            ),
        ] {
            let (blamed, error) = input.limit_for(target).unwrap_err();
            assert_eq!(blamed, part, "{input:?}: {error}");
            assert!(error.to_string().contains(about), "{error}");
            assert!(error.hint().is_some());
        }
    }
}
