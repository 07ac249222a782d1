//! The allow and deny lists.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Applied, LimitOrigin, Print, Rule, text};
use crate::policy::Reach;
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
    /// Whether a limit's ban has made it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ban: bool,
    /// Where it holds.
    #[serde(default)]
    pub scope: Reach,
    /// Where it comes from.
    #[serde(default)]
    pub origin: LimitOrigin,
}

impl Rule for ListEntry {
    type Target = IpNet;

    fn target(&self) -> IpNet {
        self.target
    }

    fn name(&self) -> String {
        short_prefix(&self.target)
    }

    fn summary(&self) -> String {
        let until = self.expires.as_ref().map(|expires| format!(" until {expires}"));
        let reason = self.reason.as_ref().map(|reason| format!(": {reason}"));
        format!("{}{}{}", self.action, until.unwrap_or_default(), reason.unwrap_or_default())
    }
}

impl ListEntry {
    /// Tells what was listed at run time about `target`.
    pub fn new(target: IpNet, listing: &Listing) -> Self {
        let time = |seconds: u32| text::time(UNIX_EPOCH + Duration::from_secs(seconds.into()));
        Self {
            target,
            action: listing.action,
            reason: listing.reason.as_deref().map(str::to_owned),
            added: time(listing.added),
            expires: listing.until.map(time),
            ban: listing.ban,
            scope: if listing.cluster { Reach::Cluster } else { Reach::Local },
            origin: LimitOrigin::Runtime,
        }
    }

    /// In a line, without the target.
    pub(super) fn history(&self) -> String {
        let mut text = format!("since {}", self.added);
        if let Some(expires) = &self.expires {
            text.push_str(&format!(", until {expires}"));
        }
        let because = self.because();
        if !because.is_empty() {
            text.push_str(&format!(": {because}"));
        }
        if self.origin == LimitOrigin::File {
            text.push_str(" (configuration file)");
        }
        text
    }

    /// Why it is listed.
    fn because(&self) -> String {
        let reason = self.reason.clone().unwrap_or_default();
        if self.ban { format!("banned, {reason}") } else { reason }
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
            let mut table =
                text::table(&["TARGET", "ADDED", "EXPIRES", "SCOPE", "FROM", "REASON"], 0);
            for entry in &self.entries {
                table.add_row([
                    short_prefix(&entry.target),
                    entry.added.clone(),
                    entry.expires.clone().unwrap_or_else(|| "never".into()),
                    entry.scope.name().into(),
                    entry.origin.name().into(),
                    entry.because(),
                ]);
            }
            writeln!(out, "{}", table.trim_fmt())?;
        }
        writeln!(out, "{} on the {} list", self.entries.len(), self.list)
    }
}

/// `allow add`, `deny add`, and their `del`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListChanged {
    /// Which list.
    pub list: Action,
    /// Entries added, renewed or removed.
    pub changed: u64,
    /// What every change tells.
    #[serde(flatten)]
    pub applied: Applied<ListEntry>,
}

impl Print for ListChanged {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.applied.print_dry_run(out)? {
            return Ok(());
        }
        let entries = if self.changed == 1 { "entry" } else { "entries" };
        writeln!(out, "{} {entries} of the {} list changed", self.changed, self.list)?;
        self.applied.print_confirm(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ListDiff;

    #[test]
    fn a_dry_run_says_what_comes_and_goes() {
        let entry = |target: &str, action, reason: &str, until| {
            let reason = (!reason.is_empty()).then(|| reason.into());
            let listing = Listing { action, reason, added: 0, until, ban: false, cluster: false };
            Some(ListEntry::new(target.parse().unwrap(), &listing))
        };
        let mut diff = ListDiff::default();
        diff.note(None, entry("192.0.2.1/32", Action::Deny, "scanner", Some(86_400)));
        diff.note(
            entry("192.0.2.0/24", Action::Deny, "old", None),
            entry("192.0.2.0/24", Action::Allow, "new", None),
        );
        diff.note(entry("2001:db8::/48", Action::Allow, "", None), None);
        let applied = Applied { dry_run: Some(diff), ..Applied::default() };
        let mut text = Vec::new();
        ListChanged { list: Action::Deny, changed: 3, applied }.print(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "+ 192.0.2.1: deny until 1970-01-02T00:00:00.000Z: scanner\n\
             ~ 192.0.2.0/24: deny: old → allow: new\n\
             - 2001:db8::/48: allow\n\
             1 added, 1 changed, 1 removed; dry run, nothing was changed\n"
        );
    }
}
