//! Sums over sources: by prefix and by class.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{By, Print, Sort, Sums, text};

/// A line of `top --by prefix` or `top --by class`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupEntry {
    /// The prefix, or the class of packets.
    pub group: String,
    /// Sources with a bucket in it; of a prefix, a source counts for each class that it has one for.
    pub sources: u64,
    /// Of those, how many have had packets dropped since they got it.
    pub limited: u64,
    /// Packets of theirs that passed since they got it.
    pub passed: u64,
    /// Packets of theirs that were dropped since then.
    pub dropped: u64,
    /// Bytes that they have offered since then.
    pub bytes: u64,
    /// What they offer at present, packets per second.
    pub pps: f64,
    /// The same, bits per second.
    pub bps: f64,
    /// When the first of them got its bucket, RFC 3339.
    pub first_seen: Option<String>,
    /// The last packet of any of them, RFC 3339.
    pub last_seen: Option<String>,
}

impl GroupEntry {
    /// Tells the sums of a group.
    pub fn new(group: String, sums: &Sums) -> Self {
        Self {
            group,
            sources: sums.sources,
            limited: sums.limited,
            passed: sums.passed,
            dropped: sums.dropped,
            bytes: sums.bytes,
            pps: sums.pps,
            bps: sums.bps,
            first_seen: sums.first_seen.map(text::time),
            last_seen: sums.last_seen.map(text::time),
        }
    }
}

/// `top --by prefix` and `top --by class`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupsReport {
    /// What they are.
    pub by: By,
    /// The heaviest.
    pub groups: Vec<GroupEntry>,
    /// How many there are.
    pub known: u64,
    /// Sources with a bucket.
    pub tracked: u64,
}

impl GroupsReport {
    /// The `n` heaviest of `groups`; of equals, by name.
    pub fn heaviest(
        by: By,
        sort: Sort,
        n: usize,
        groups: impl IntoIterator<Item = (String, Sums)>,
    ) -> Self {
        let mut groups: Vec<_> = groups.into_iter().collect();
        let weight = |sums: &Sums| match sort {
            Sort::Dropped => sums.dropped as f64,
            Sort::Pps => sums.pps,
            Sort::Bits => sums.bps,
            Sort::Packets => (sums.passed + sums.dropped) as f64,
            Sort::Bytes => sums.bytes as f64,
        };
        groups.sort_by(|(a_name, a), (b_name, b)| {
            weight(b).total_cmp(&weight(a)).then_with(|| a_name.cmp(b_name))
        });
        let tracked = groups.iter().map(|(_, sums)| sums.sources).sum();
        let known = groups.len() as u64;
        let groups = groups.into_iter().take(n);
        let groups = groups.map(|(name, sums)| GroupEntry::new(name, &sums)).collect();
        Self { by, groups, known, tracked }
    }
}

impl Print for GroupsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let name = self.by.name();
        if !self.groups.is_empty() {
            let name = name.to_uppercase();
            let header = [
                name.as_str(),
                "FIRST SEEN",
                "LAST SEEN",
                "SOURCES",
                "LIMITED",
                "PPS",
                "BITS/S",
                "PASSED",
                "DROPPED",
                "BYTES",
            ];
            let mut table = text::table(&header, 3);
            for entry in &self.groups {
                table.add_row([
                    entry.group.clone(),
                    entry.first_seen.clone().unwrap_or_default(),
                    entry.last_seen.clone().unwrap_or_default(),
                    entry.sources.to_string(),
                    entry.limited.to_string(),
                    format!("{:.0}", entry.pps),
                    text::si(entry.bps),
                    entry.passed.to_string(),
                    entry.dropped.to_string(),
                    entry.bytes.to_string(),
                ]);
            }
            writeln!(out, "{}", table.trim_fmt())?;
        }
        let (shown, known, tracked) = (self.groups.len(), self.known, self.tracked);
        let plural = if self.by == By::Class { "classes" } else { "prefixes" };
        writeln!(out, "{shown} of {known} {plural}, {tracked} tracked sources")
    }
}
