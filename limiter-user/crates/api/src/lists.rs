//! The allow and deny lists.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Applied, Diff, LimitOrigin, Print, Replaced, Rule, text};
use model::Reach;
use model::lists::{Action, Listing};
use model::target::short_prefix;

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

/// How the allow and deny lists differ.
pub type ListDiff = Diff<ListEntry>;

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

    /// What it does, as an answer to whoever has just asked for it: `denied 192.0.2.7 until 21:48:49 UTC
    /// (scanner)`.
    fn answer(&self, target: &str) -> String {
        format!("{} {target}{}", self.action.done(), self.terms())
    }

    /// Where, until when and why, after the name of the target.
    fn terms(&self) -> String {
        let scope = if self.scope == Reach::Cluster { " on all hosts of the cluster" } else { "" };
        let until = self.expires.as_deref().map(|expires| {
            let (date, time) = expires.split_once('T').unwrap_or(("", expires));
            let date =
                // The day is left out while it is that of the listing: most denials last minutes,
                // and the time is what is looked for.
                if self.added.starts_with(date) { String::new() } else { format!("{date} ") };
            format!(" until {date}{} UTC", time.split(['.', 'Z']).next().unwrap_or_default())
        });
        format!("{scope}{}{}", until.unwrap_or_default(), self.note())
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

    /// Why it was listed, after the name of the target.
    fn note(&self) -> String {
        let because = self.because();
        if because.is_empty() { because } else { format!(" ({because})") }
    }

    /// Why it is listed.
    // An operator who did not list the source must see that a limit has, or looks for a colleague
    // in vain.
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
                // The reason comes last: it is free text, and of any length.
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

/// What was done to entries of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListDone {
    /// They are there now, also where they were before.
    Added,
    /// They are gone.
    Removed,
}

/// `allow add`, `deny add`, and their `del` and `clear`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListChanged {
    /// Which list.
    pub list: Action,
    /// Entries added, renewed or removed.
    pub changed: u64,
    /// Which of these it was.
    pub done: ListDone,
    /// Of those added, entries in the place of others.
    pub replaced: u64,
    /// What has become of the first [`ListChanged::NAMED`] of them.
    pub first: ListDiff,
    /// What every change tells.
    #[serde(flatten)]
    pub applied: Applied<ListEntry>,
}

impl ListChanged {
    /// So many entries are named; of more only the number is told.
    // A script may list hundreds of thousands at once. Their names would bury the answer, and fill
    // the daemon's memory.
    pub const NAMED: usize = 5;

    /// What is told where there was nothing to remove.
    pub fn nothing(list: Action) -> Self {
        let (first, applied) = (ListDiff::default(), Applied::default());
        Self { list, changed: 0, done: ListDone::Removed, replaced: 0, first, applied }
    }

    /// Tells of each entry by its name.
    fn print_each(&self, out: &mut dyn Write) -> io::Result<()> {
        let list = self.list;
        for entry in &self.first.added {
            writeln!(out, "{}", entry.answer(&entry.name()))?;
        }
        for Replaced { old, new, .. } in &self.first.changed {
            let name = new.name();
            match self.done {
                ListDone::Added => {
                    writeln!(
                        out,
                        "{}; before: {}{}",
                        new.answer(&name),
                        old.action.done(),
                        old.terms()
                    )?;
                }
                ListDone::Removed => {
                    let now = format!("{}{}", new.action.done(), new.terms());
                    // The file or the cluster may list the same target. Then a removal uncovers
                    // that entry, and the source stays listed.
                    writeln!(out, "removed {name} from the {list} list; now {now}")?;
                }
            }
        }
        for entry in &self.first.removed {
            writeln!(out, "removed {} from the {list} list{}", entry.name(), entry.note())?;
        }
        Ok(())
    }

    /// Tells of all entries by their number.
    fn print_number(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { list, changed, replaced, first, .. } = self;
        let mut all = first.added.iter().chain(first.changed.iter().map(|changed| &changed.new));
        match (self.done, all.next()) {
            // All have the same terms, so those of the first stand for all.
            (ListDone::Added, Some(entry)) => {
                let answer = entry.answer(&format!("{changed} sources and prefixes"));
                let before = match replaced {
                    0 => String::new(),
                    _ => format!(", {replaced} of them were listed before"),
                };
                writeln!(out, "{answer}{before}")
            }
            _ => writeln!(out, "removed {changed} entries from the {list} list"),
        }
    }
}

impl Print for ListChanged {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        // No error: `clear` and `del` in a script have reached what they want. The file's entries
        // are not theirs to remove.
        if self.changed == 0 {
            return writeln!(out, "no entry of the {} list was set at run time", self.list);
        }
        self.applied.print(out, |out| match self.changed <= Self::NAMED as u64 {
            true => self.print_each(out),
            false => self.print_number(out),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ListDiff;

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
        let (list, done, first) = (Action::Deny, ListDone::Added, ListDiff::default());
        ListChanged { list, changed: 3, done, replaced: 1, first, applied }
            .print(&mut text)
            .unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "+ 192.0.2.1: deny until 1970-01-02T00:00:00.000Z: scanner\n\
             ~ 192.0.2.0/24: deny: old → allow: new\n\
             - 2001:db8::/48: allow\n\
             1 added, 1 changed, 1 removed; dry run, nothing was changed\n"
        );
    }

    #[test]
    fn an_answer_names_what_was_done() {
        let entry = |target: &str, until, reason: &str, cluster| {
            let reason = (!reason.is_empty()).then(|| reason.into());
            let listing =
                Listing { action: Action::Deny, reason, added: 0, until, ban: false, cluster };
            Some(ListEntry::new(target.parse().unwrap(), &listing))
        };
        let told = |done, changed, notes: Vec<(Option<ListEntry>, Option<ListEntry>)>| {
            let mut first = ListDiff::default();
            for (old, new) in notes {
                first.note(old, new);
            }
            let applied = Applied::default();
            let mut text = Vec::new();
            let replaced = first.changed.len() as u64;
            let list = Action::Deny;
            let report = ListChanged { list, changed, done, replaced, first, applied };
            report.print(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let short = entry("198.18.7.7/32", Some(78_529), "scanner", false);
        let net = entry("192.0.2.0/24", None, "", true);
        let long = entry("198.18.7.7/32", Some(90_000), "", false);
        assert_eq!(
            told(ListDone::Added, 2, vec![(None, short.clone()), (None, net.clone())]),
            "denied 198.18.7.7 until 21:48:49 UTC (scanner)\n\
             denied 192.0.2.0/24 on all hosts of the cluster\n"
        );
        assert_eq!(
            told(ListDone::Added, 1, vec![(short.clone(), long.clone())]),
            "denied 198.18.7.7 until 1970-01-02 01:00:00 UTC; before: denied until 21:48:49 UTC (scanner)\n"
        );
        assert_eq!(
            told(ListDone::Removed, 2, vec![(net.clone(), None), (short.clone(), long.clone())]),
            "removed 198.18.7.7 from the deny list; now denied until 1970-01-02 01:00:00 UTC\n\
             removed 192.0.2.0/24 from the deny list\n"
        );
        assert_eq!(
            told(ListDone::Removed, 1, vec![(short.clone(), None)]),
            "removed 198.18.7.7 from the deny list (scanner)\n"
        );
        assert_eq!(
            told(ListDone::Added, 200_000, vec![(None, short.clone()), (long, short.clone())]),
            "denied 200000 sources and prefixes until 21:48:49 UTC (scanner), 1 of them were listed before\n"
        );
        assert_eq!(
            told(ListDone::Removed, 200_000, vec![(short, None)]),
            "removed 200000 entries from the deny list\n"
        );
        assert_eq!(
            told(ListDone::Removed, 0, Vec::new()),
            "no entry of the deny list was set at run time\n"
        );
    }
}
