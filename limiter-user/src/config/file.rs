//! A configuration file, read and checked as a whole.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use toml::Spanned;
use toml::de::DeTable;

use super::keys::{DefaultLimit, Keys, Text};
use super::problem::{self, Place};
use crate::error::{Failure, exit};
use crate::policy::management::parse_management;
use crate::policy::units::parse_burst;
use crate::policy::{LimitSpec, Limits, Rate, Target};

/// The file that is read if none is named; it need not be there.
pub const DEFAULT_PATH: &str = "/etc/limiter/limiter.toml";

/// The largest file, bytes.
const LARGEST: u64 = 64 << 20;

/// What a file says. Everything that can be told without the rest of the configuration has been
/// checked.
#[derive(Clone, Debug, Default)]
pub struct ConfigFile {
    /// Its path; `None` if there is no file.
    pub path: Option<PathBuf>,
    pub(super) keys: Keys,
    limits: Limits,
    management: Vec<IpNet>,
    /// Where the value of each key and each limit's target is.
    values: BTreeMap<String, Place>,
    targets: BTreeMap<Target, Place>,
}

impl ConfigFile {
    /// Reads the file that was `named`, or else the one that is usual if it is there.
    ///
    /// # Errors
    /// If it cannot be read, or as [`ConfigFile::parse`].
    pub fn find(named: Option<&Path>) -> Result<Self, Failure> {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        match read(path) {
            Ok(text) => Self::parse(path, &text),
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) => Err(unreadable(path, &error)),
        }
    }

    /// Reads `text`, which is that of the file at `path`.
    ///
    /// # Errors
    /// The first thing that is wrong with it, by path, line and column.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, Failure> {
        let text = std::str::from_utf8(text).map_err(|error| {
            let valid = String::from_utf8_lossy(&text[..error.valid_up_to()]);
            let failure =
                Failure::new(exit::USAGE, "this is not UTF-8 text").hint("save the file as UTF-8");
            problem::at(path, &valid, valid.len(), failure)
        })?;
        let keys: Keys =
            toml::from_str(text).map_err(|error| problem::of_toml(path, text, &error))?;
        let mut file = Self { path: Some(path.into()), keys, ..Self::default() };
        let table = DeTable::parse(text).map_err(|error| problem::of_toml(path, text, &error))?;
        for (key, value) in table.get_ref().iter() {
            let place = Place::of(text, value.span().start);
            file.values.insert(key.get_ref().as_ref().to_owned(), place);
        }
        for address in &file.keys.management.addresses {
            let net = parse_management(address.get_ref())
                .map_err(|failure| problem::at(path, text, address.span().start, failure))?;
            file.management.push(net);
        }
        file.read_limits(path, text)?;
        Ok(file)
    }

    fn read_limits(&mut self, path: &Path, text: &str) -> Result<(), Failure> {
        let wrong = |byte: usize, failure: Failure| problem::at(path, text, byte, failure);
        let mut add = |target: Target, byte: usize, limit: LimitSpec| {
            match self.targets.entry(target) {
                Entry::Vacant(entry) => entry.insert(Place::of(text, byte)),
                Entry::Occupied(entry) => {
                    let first = entry.get().line;
                    let message =
                        format!("{} has a limit already, in line {first}", target.short());
                    let failure = Failure::new(exit::USAGE, message);
                    return Err(wrong(byte, failure.hint("keep one limit for each target")));
                }
            };
            self.limits.set(limit);
            Ok(())
        };
        if let Some(default) = &self.keys.limits.default {
            let byte = default.span().start;
            let limit = match default.get_ref() {
                DefaultLimit::Rate(rate) => {
                    let rate = Spanned::new(default.span(), Text(rate.clone()));
                    amount(Target::Default, byte, &rate, None)
                }
                DefaultLimit::Amount(table) => {
                    amount(Target::Default, byte, &table.rate, table.burst.as_ref())
                        .map(|limit| limit.enforced(table.enforce))
                }
            };
            add(Target::Default, byte, limit.map_err(|(byte, failure)| wrong(byte, failure))?)?;
        }
        for entry in &self.keys.limit {
            let byte = entry.target.span().start;
            let target: Target = entry
                .target
                .get_ref()
                .parse()
                .map_err(|error| wrong(byte, Failure::from(error)))?;
            let limit = amount(target, byte, &entry.rate, entry.burst.as_ref())
                .map(|limit| limit.enforced(entry.enforce));
            add(target, byte, limit.map_err(|(byte, failure)| wrong(byte, failure))?)?;
        }
        Ok(())
    }

    /// The text of the file at `path`, which is checked to be a configuration.
    ///
    /// # Errors
    /// As [`ConfigFile::find`].
    pub fn text(path: &Path) -> Result<String, Failure> {
        let text = read(path).map_err(|error| unreadable(path, &error))?;
        Self::parse(path, &text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The socket that it names.
    pub fn socket(&self) -> Option<&Path> {
        self.keys.socket.as_deref()
    }

    /// The directory of pins that it names.
    pub fn pin_dir(&self) -> Option<&Path> {
        self.keys.pin_dir.as_deref()
    }

    /// Its limits.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Its management addresses.
    pub(super) fn management(&self) -> impl Iterator<Item = IpNet> {
        self.management.iter().copied()
    }

    /// The path, as it is told.
    pub fn name(&self) -> String {
        self.path.as_ref().map_or("no file".into(), |path| path.display().to_string())
    }

    /// Where a key's value is, if the file has it.
    pub(super) fn place_of(&self, key: &str) -> Option<Place> {
        self.values.get(key).copied()
    }

    /// Where a limit's target is.
    pub fn place_of_limit(&self, target: &Target) -> Option<Place> {
        self.targets.get(target).copied()
    }

    /// A failure that lies in a place of this file.
    pub(super) fn blame(&self, place: Place, failure: Failure) -> Failure {
        let Place { line, column } = place;
        Failure { code: exit::USAGE, ..failure }.context(format!("{}:{line}:{column}", self.name()))
    }
}

/// A limit, or what is wrong with which byte.
fn amount(
    target: Target,
    byte: usize,
    rate_text: &Spanned<Text>,
    burst_text: Option<&Spanned<Text>>,
) -> Result<LimitSpec, (usize, Failure)> {
    let at = |text: &Spanned<Text>| text.span().start;
    let rate: Rate =
        rate_text.get_ref().0.parse().map_err(|error| (at(rate_text), Failure::from(error)))?;
    let burst = burst_text
        .map(|text| parse_burst(&text.get_ref().0, rate.unit()))
        .transpose()
        .map_err(|error| (burst_text.map_or(byte, at), Failure::from(error)))?;
    // With a burst of its own the rate is good: what does not fit is the burst.
    let blamed = burst_text.map_or(at(rate_text), at);
    LimitSpec::new(target, rate, burst).map_err(|error| {
        let failure = Failure::from(error);
        let hint = failure.hint.as_deref().map(in_file);
        (blamed, Failure { hint, ..failure })
    })
}

/// What a hint says of the flag `--burst`, for the key.
fn in_file(hint: &str) -> String {
    hint.replace("--burst 1514byte", "burst = \"1514byte\"").replace("--burst ", "burst = ")
}

/// Reads a file's bytes.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = File::open(path)?.take(LARGEST + 1).read_to_end(&mut text)?;
    if read as u64 > LARGEST {
        return Err(io::Error::other("it is larger than 64 MiB"));
    }
    Ok(text)
}

/// The failure of a file that cannot be read.
fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::PermissionDenied => exit::PRIVILEGE,
        _ => exit::USAGE,
    };
    Failure::new(code, format!("cannot read {}: {error}", path.display()))
        .hint("name a file with --config; `limiter config default` prints one to begin with")
}
