//! A configuration file, read and checked as a whole.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::args::RunArgs;
use super::problem;
use super::tables::{
    AmountTable, Amounts, DefaultLimit, LimitTable, LimitsTable, ListTable, OneOrMany, Targets,
    Text,
};
use api::error::{Failure, exit};
use model::Location;
use model::class::{ClassPart, ClassText};
use model::lists::{Action, Listing, Lists, check_wide, parse_target};
use model::target::short_prefix;
use model::{Classes, Limit, Limits, Selector, Target};

/// The largest file, bytes.
const LARGEST: u64 = 64 << 20;

/// What a file says. Everything that can be told without the rest of the configuration has been
/// checked.
#[derive(Clone, Debug, Default)]
pub struct ConfigFile {
    /// Its path; `None` if there is no file.
    pub path: Option<PathBuf>,
    /// Its keys, with the defaults of those that it lacks, and without limits and lists.
    pub(super) keys: RunArgs,
    limits: Limits,
    lists: Lists,
    /// As it was written.
    // Kept for the note about an unconfirmed reload, which restores the text, not the file.
    text: Arc<str>,
    /// Where the value of each key and each limit's target is.
    values: BTreeMap<String, Location>,
    targets: BTreeMap<Target, Location>,
    listed: BTreeMap<IpNet, Location>,
}

/// What a key of a table is called where keys have one name.
pub(super) fn name_of(table: &str, key: &str) -> String {
    // A table with one key.
    if table == "management" { table.to_owned() } else { format!("{table}_{key}") }
}

impl ConfigFile {
    /// Reads the file that was `named`, or else the `usual` one if it is there.
    ///
    /// # Errors
    /// If it cannot be read, or as [`ConfigFile::parse`].
    pub fn find(named: Option<&Path>, usual: &Path) -> Result<Self, Failure> {
        let path = named.unwrap_or(usual);
        match read(path) {
            Ok(text) => Self::parse(path, &text),
            // A daemon without a file is usual, but one that was named must be there.
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
        let mut keys: RunArgs =
            toml::from_str(text).map_err(|error| problem::of_toml(path, text, &error))?;
        // Read into types of their own below, so they need not be kept twice.
        let (limits, limit) = (mem::take(&mut keys.limits), mem::take(&mut keys.limit));
        let (allow, deny) = (mem::take(&mut keys.allow), mem::take(&mut keys.deny));
        let mut file = Self { path: Some(path.into()), keys, text: text.into(), ..Self::default() };
        // Parsed a second time, for the places alone: serde knows them only where a type asks for
        // it, and values are to be plain.
        let table = DeTable::parse(text).map_err(|error| problem::of_toml(path, text, &error))?;
        for (key, value) in table.get_ref().iter() {
            let place = Location::at(text, value.span().start);
            let key = key.get_ref().as_ref();
            if let DeValue::Table(table) = value.get_ref() {
                for (inner, value) in table.iter() {
                    let place = Location::at(text, value.span().start);
                    file.values.insert(name_of(key, inner.get_ref()), place);
                }
            }
            file.values.insert(key.to_owned(), place);
        }
        file.read_limits(path, text, &limits, &limit)?;
        file.read_lists(path, text, &allow, &deny)?;
        Ok(file)
    }

    fn read_lists(
        &mut self,
        path: &Path,
        text: &str,
        allow: &[ListTable],
        deny: &[ListTable],
    ) -> Result<(), Failure> {
        let wrong = |byte: usize, failure: Failure| problem::at(path, text, byte, failure);
        let allow = allow.iter().map(|table| (Action::Allow, table));
        let deny = deny.iter().map(|table| (Action::Deny, table));
        for (action, ListTable { targets, reason, yes }) in allow.chain(deny) {
            let begin = targets.span().start;
            let why = reason.as_ref().map(|reason| reason.get_ref().clone());
            let listing = Listing::new(action, None, why).map_err(|error| {
                let failure = Failure::from(error);
                // The model speaks of the option; here it is a key.
                let message = failure.message.replace("--reason", "reason");
                wrong(
                    reason.as_ref().map_or(begin, |r| r.span().start),
                    Failure { message, ..failure },
                )
            })?;
            let all: Vec<(usize, &str)> = match targets.get_ref() {
                Targets::One(target) => vec![(begin, target)],
                Targets::Many(all) => all
                    .iter()
                    .map(|target| (target.span().start, target.get_ref().as_str()))
                    .collect(),
            };
            if all.is_empty() {
                let failure = Failure::new(exit::USAGE, "there is no address to list");
                return Err(wrong(begin, failure.hint("give addresses or prefixes")));
            }
            for (byte, target) in all {
                let net = parse_target(target).map_err(|error| wrong(byte, error.into()))?;
                check_wide(action, [&net], *yes).map_err(|error| {
                    let hint = format!("write yes = true in this [[{action}]] if that is meant");
                    wrong(byte, Failure::from(error).hint(hint))
                })?;
                // Over both lists: a source that is allowed and denied would be whatever comes
                // last.
                match self.listed.entry(net) {
                    Entry::Vacant(entry) => entry.insert(Location::at(text, byte)),
                    Entry::Occupied(entry) => {
                        let message = format!(
                            "{} is listed already, in line {}",
                            short_prefix(&net),
                            entry.get().line
                        );
                        let failure = Failure::new(exit::USAGE, message);
                        return Err(wrong(byte, failure.hint("keep one entry for each target")));
                    }
                };
                self.lists.insert(net, listing.clone());
            }
        }
        Ok(())
    }

    fn read_limits(
        &mut self,
        path: &Path,
        text: &str,
        limits: &LimitsTable,
        limit: &[LimitTable],
    ) -> Result<(), Failure> {
        let wrong = |(byte, failure): Misplaced| problem::at(path, text, byte, failure);
        let mut classes = Classes::default();
        let mut add = |limit: Limit, byte: usize, class: usize| {
            match self.targets.entry(limit.target) {
                Entry::Vacant(entry) => entry.insert(Location::at(text, byte)),
                Entry::Occupied(entry) => {
                    let first = entry.get().line;
                    let message =
                        format!("{} has a limit already, in line {first}", limit.target.short());
                    let failure = Failure::new(exit::USAGE, message);
                    return Err(wrong((byte, failure.hint("keep one limit for each target"))));
                }
            };
            // One by one, so that the first limit that does not go with those before it is the one
            // to blame.
            let added = classes.add(limit.target.class);
            added.map_err(|error| wrong((class, error.into())))?;
            self.limits.set(limit);
            Ok(())
        };
        if let Some(default) = &limits.default {
            let byte = default.span().start;
            let limit = match default.get_ref() {
                DefaultLimit::Rate(rate) => {
                    let rate = Spanned::new(default.span(), OneOrMany::One(Text(rate.clone())));
                    read_limit(&AmountTable::new(rate), Target::DEFAULT, byte)
                }
                DefaultLimit::Amount(table) => read_limit(&**table, Target::DEFAULT, byte),
            };
            add(limit.map_err(wrong)?, byte, byte)?;
        }
        for entry in limit {
            let byte = entry.target.span().start;
            let (target, class) = target(entry).map_err(wrong)?;
            add(read_limit(entry, target, byte).map_err(wrong)?, byte, class)?;
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
        self.has("socket").then_some(&*self.keys.socket)
    }

    /// The directory of pins that it names.
    pub fn pin_dir(&self) -> Option<&Path> {
        self.has("pin_dir").then_some(&*self.keys.pin_dir)
    }

    /// Its limits.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Its entries of the allow and deny lists.
    pub const fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Where the target of an entry is.
    pub fn place_of_entry(&self, net: &IpNet) -> Option<Location> {
        self.listed.get(net).copied()
    }

    /// Its text, as it was written.
    pub fn source_text(&self) -> &str {
        &self.text
    }

    /// The path, as it is told.
    pub fn name(&self) -> String {
        self.path.as_ref().map_or("no file".into(), |path| path.display().to_string())
    }

    /// Whether it has a key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Where a key's value is, if the file has it.
    pub(super) fn place_of(&self, key: &str) -> Option<Location> {
        self.values.get(key).copied()
    }

    /// Where a limit's target is.
    pub fn place_of_limit(&self, target: &Target) -> Option<Location> {
        self.targets.get(target).copied()
    }

    /// A failure that lies in a place of this file, if that is known.
    pub(super) fn blame(&self, place: Option<Location>, failure: Failure) -> Failure {
        let Some(Location { line, column }) = place else { return failure };
        Failure { code: exit::USAGE, ..failure }.context(format!("{}:{line}:{column}", self.name()))
    }
}

/// What is wrong, and with which byte.
type Misplaced = (usize, Failure);

/// Whom and what a limit is for, and the first byte of what its class is told by.
fn target(entry: &LimitTable) -> Result<(Target, usize), Misplaced> {
    let byte = entry.target.span().start;
    let whom = entry.target.get_ref().parse::<Selector>();
    let whom = whom.map_err(|error| (byte, Failure::from(error)))?;
    let start = |text: &Option<Spanned<Text>>| text.as_ref().map(|text| text.span().start);
    fn word(text: &Option<Spanned<Text>>) -> Option<&str> {
        text.as_ref().map(|text| text.get_ref().0.as_str())
    }
    let yes = |is: &Option<Spanned<bool>>| {
        is.as_ref().filter(|is| *is.get_ref()).map(|is| is.span().start)
    };
    let (syn, fragments) = (yes(&entry.syn), yes(&entry.fragments));
    let class = ClassText {
        proto: word(&entry.proto),
        dport: word(&entry.dport),
        sport: word(&entry.sport),
        icmp: word(&entry.icmp),
        fragments: fragments.is_some(),
        tcp_flags: entry.tcp_flags.as_ref().map(|text| text.get_ref().as_str()),
        syn: syn.is_some(),
        dst: entry.dst.as_ref().map(|text| text.get_ref().as_str()),
        by: entry.by.unwrap_or_default(),
    };
    let dst = entry.dst.as_ref().map(|text| text.span().start);
    let [proto, dport, sport, icmp] =
        [&entry.proto, &entry.dport, &entry.sport, &entry.icmp].map(start);
    let flags = entry.tcp_flags.as_ref().map(|text| text.span().start).or(syn);
    let class = class.read().map_err(|error| {
        let blamed = match error.part() {
            Some(ClassPart::Protocol) => proto,
            Some(ClassPart::Ports) => dport.or(sport),
            Some(ClassPart::From) => sport,
            Some(ClassPart::Icmp) => icmp,
            Some(ClassPart::Fragments) => fragments,
            Some(ClassPart::Flags) => flags,
            Some(ClassPart::Destination) => dst,
            None => None,
        };
        (blamed.unwrap_or(byte), Failure::from(error))
    })?;
    // Flags go before ports, and those before the protocol: classes are most often at odds by what
    // goes first.
    let told = [dst, flags, sport, dport, icmp, fragments, proto].into_iter().flatten().next();
    Ok((Target { whom, class, aggregate: entry.aggregate }, told.unwrap_or(byte)))
}

/// The limit of `target`, which is written at `byte`.
fn read_limit(amounts: &impl Amounts, target: Target, byte: usize) -> Result<Limit, Misplaced> {
    amounts.input().limit_for(target).map_err(|(part, error)| {
        let failure = Failure::from(error);
        // Hints of the model are for the command line.
        let hint = failure.hint.as_deref().map(in_file);
        (amounts.begins(part).unwrap_or(byte), Failure { hint, ..failure })
    })
}

/// What a hint says of the flag `--burst`, for the key.
fn in_file(hint: &str) -> String {
    hint.replace("--burst 1514byte", "burst = \"1514byte\"").replace("--burst ", "burst = ")
}

/// Reads a file's bytes.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    // The path may be anything that can be read, such as /dev/zero.
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
