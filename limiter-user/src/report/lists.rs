//! The allow and deny lists.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Print, text};
use crate::policy::lists::{Action, Listing};
use crate::policy::model::short_prefix;

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListEntry {
    /// The source or prefix.
    pub target: IpNet,
    /// What becomes of its packets.
    pub action: Action,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// When it was listed, RFC 3339.
    pub added: String,
    /// When the entry expires, RFC 3339.
    pub expires: Option<String>,
}

impl ListEntry {
    /// Tells what is listed about `target`.
    pub fn new(target: IpNet, listing: &Listing) -> Self {
        let time = |seconds: u32| text::time(UNIX_EPOCH + Duration::from_secs(seconds.into()));
        Self {
            target,
            action: listing.action,
            reason: listing.reason.as_deref().map(str::to_owned),
            added: time(listing.added),
            expires: listing.until.map(time),
        }
    }

    /// In a line, without the target.
    pub(super) fn summary(&self) -> String {
        let mut text = format!("since {}", self.added);
        if let Some(expires) = &self.expires {
            text.push_str(&format!(", until {expires}"));
        }
        if let Some(reason) = &self.reason {
            text.push_str(&format!(": {reason}"));
        }
        text
    }
}

/// `allow list` and `deny list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListReport {
    /// Which list.
    pub list: Action,
    /// Its entries, by address.
    pub entries: Vec<ListEntry>,
}

impl Print for ListReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.entries.is_empty() {
            let mut table = text::table(&["TARGET", "ADDED", "EXPIRES", "REASON"], 0);
            for entry in &self.entries {
                table.add_row([
                    short_prefix(&entry.target),
                    entry.added.clone(),
                    entry.expires.clone().unwrap_or_else(|| "never".into()),
                    entry.reason.clone().unwrap_or_default(),
                ]);
            }
            writeln!(out, "{}", table.trim_fmt())?;
        }
        writeln!(out, "{} on the {} list", self.entries.len(), self.list)
    }
}

/// `allow add`, `deny add`, and their `del`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListChanged {
    /// Which list.
    pub list: Action,
    /// Entries added, renewed or removed.
    pub changed: u64,
}

impl Print for ListChanged {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let entries = if self.changed == 1 { "entry" } else { "entries" };
        writeln!(out, "{} {entries} of the {} list changed", self.changed, self.list)
    }
}
