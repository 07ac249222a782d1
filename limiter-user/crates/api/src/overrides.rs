//! Limits of single descriptors, which `limiter-serve` keeps.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{Applied, Diff, ListDone, Print, Rule, text};
use model::Reach;
use model::meter::Limit;
use model::overrides::{Descriptor, Override};

/// The limit of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideEntry {
    /// Whose limit it is.
    #[serde(rename = "for")]
    pub descriptor: Descriptor,
    /// The limit.
    pub limit: Limit,
    /// When it was set, RFC 3339.
    pub added: String,
    /// When it ends, RFC 3339.
    pub expires: Option<String>,
    /// Where it holds.
    pub scope: Reach,
}

impl OverrideEntry {
    /// Tells what was set for `descriptor`.
    pub fn new(descriptor: &Descriptor, set: &Override) -> Self {
        let time = |seconds: u32| text::time(UNIX_EPOCH + Duration::from_secs(seconds.into()));
        Self {
            descriptor: descriptor.clone(),
            limit: set.limit,
            added: time(set.added),
            expires: set.until.map(time),
            scope: if set.cluster { Reach::Cluster } else { Reach::Local },
        }
    }
}

impl Rule for OverrideEntry {
    type Target = Descriptor;

    fn target(&self) -> Descriptor {
        self.descriptor.clone()
    }

    fn name(&self) -> String {
        self.descriptor.to_string()
    }

    fn summary(&self) -> String {
        let scope = if self.scope == Reach::Cluster { " on all hosts of the cluster" } else { "" };
        let until = self.expires.as_ref().map(|expires| format!(" until {expires}"));
        format!("{}{scope}{}", self.limit, until.unwrap_or_default())
    }
}

/// `rule list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverridesReport {
    /// The limits, by descriptor.
    pub overrides: Vec<OverrideEntry>,
}

impl Print for OverridesReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.overrides.is_empty() {
            let mut table = text::table(&["DESCRIPTOR", "LIMIT", "ADDED", "EXPIRES", "SCOPE"], 0);
            for entry in &self.overrides {
                table.add_row([
                    entry.name(),
                    entry.limit.to_string(),
                    entry.added.clone(),
                    entry.expires.clone().unwrap_or_else(|| "never".into()),
                    entry.scope.name().into(),
                ]);
            }
            writeln!(out, "{}", table.trim_fmt())?;
        }
        writeln!(out, "{} descriptors have limits of their own", self.overrides.len())
    }
}

/// `rule set`, `rule import` and `rule unset`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverridesChanged {
    /// Limits set or removed.
    pub changed: u64,
    /// Which of these it was.
    pub done: ListDone,
    /// What has become of the first [`OverridesChanged::NAMED`] of them.
    pub first: Diff<OverrideEntry>,
    /// What every change tells.
    #[serde(flatten)]
    pub applied: Applied<OverrideEntry>,
}

impl OverridesChanged {
    /// So many are named; of more only the number is told, as there may be a million.
    pub const NAMED: usize = 5;
}

impl Print for OverridesChanged {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.applied.print(out, |out| match (self.done, self.changed <= Self::NAMED as u64) {
            (_, true) => self.first.print(out),
            (ListDone::Added, false) => writeln!(out, "{} limits set", self.changed),
            (ListDone::Removed, false) => writeln!(out, "{} limits removed", self.changed),
        })
    }
}

/// A line of `GET /v1/overrides/follow`: what a descriptor has from now on. One without a descriptor follows on all that
/// there are, before those that change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// Whose limit it is.
    #[serde(rename = "for")]
    pub descriptor: Option<Descriptor>,
    /// Its limit; none if it has none of its own any more.
    pub limit: Option<Limit>,
    /// When it ends, seconds since 1970.
    pub until: Option<u32>,
}

impl Followed {
    /// What becomes of a descriptor.
    pub fn new(descriptor: &Descriptor, to: Option<&Override>) -> Self {
        Self {
            descriptor: Some(descriptor.clone()),
            limit: to.map(|to| to.limit),
            until: to.and_then(|to| to.until),
        }
    }
}
