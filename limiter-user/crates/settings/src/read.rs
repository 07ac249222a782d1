//! Values of the file that are written as flags are: read by the same functions, in the same words.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serializer};

use crate::problem;
use crate::web::parse_listen;
use api::error::{Failure, exit};
use cluster::config::{Seed, parse_listen as parse_cluster_listen};
use model::management::parse_management;
use model::units::parse_duration;
use model::{Explain as _, GroupLimit, Invalid};

fn text<'de, D: Deserializer<'de>, T, E: Display>(
    deserializer: D,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    read(&String::deserialize(deserializer)?).map_err(de::Error::custom)
}

pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    text(deserializer, |text| {
        parse_duration(text).map_err(|error| format!("{error}: {}", error.hint()))
    })
}

pub(super) fn as_duration<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

/// Reads a limit of groups as a flag has it.
pub(super) fn parse_group_limit(text: &str) -> Result<GroupLimit, String> {
    text.parse().map_err(|error: Invalid| match error.hint() {
        Some(hint) => format!("{error}: {hint}"),
        None => error.to_string(),
    })
}

pub(super) fn group_limit<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<GroupLimit>, D::Error> {
    text(deserializer, parse_group_limit).map(Some)
}

pub(super) fn listen<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    text(deserializer, parse_listen).map(Some)
}

pub(super) fn cluster_listen<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    text(deserializer, parse_cluster_listen).map(Some)
}

/// What a list has.
// One reader for flag, variable and file: the same mistake gets the same words wherever it is
// made.
pub(super) trait Element: Sized {
    fn read(text: &str) -> Result<Self, Failure>;
}

impl Element for IpNet {
    fn read(text: &str) -> Result<Self, Failure> {
        Ok(parse_management(text)?)
    }
}

impl Element for Seed {
    fn read(text: &str) -> Result<Self, Failure> {
        text.parse().map_err(|problem: String| {
            // clap has room for one text, so the hint is behind a colon there.
            let (message, hint) = problem.split_once(": ").unwrap_or((&problem, ""));
            Failure::new(exit::USAGE, message).hint(hint)
        })
    }
}

/// An element that is read while the deserializer still knows its place, which an error then has.
struct Placed<T>(T);

impl<'de, T: Element> Deserialize<'de> for Placed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A visitor, as errors of `Vec<String>` would name the place of the list, not that of the
        // wrong element.
        struct Reader<T>(PhantomData<T>);

        impl<T: Element> Visitor<'_> for Reader<T> {
            type Value = Placed<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Placed<T>, E> {
                T::read(text).map(Placed).map_err(problem::hinted)
            }
        }

        deserializer.deserialize_str(Reader(PhantomData))
    }
}

pub(super) fn list<'de, D: Deserializer<'de>, T: Element>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let elements = Vec::<Placed<T>>::deserialize(deserializer)?;
    Ok(elements.into_iter().map(|element| element.0).collect())
}
