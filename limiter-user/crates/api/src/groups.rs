//! Sums over sources: by prefix and by class.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::fleet::print_unanswered;
use super::{Print, Terminal, Unanswered, text};
use model::{
    rollup::{Sums, Tally},
    traffic::{GroupBy, Sort},
};

/// A line of `top --by prefix` or `top --by class`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupEntry {
    /// The prefix, or the class of packets.
    pub group: String,
    /// What its sources have counted.
    #[serde(flatten)]
    pub tally: Tally,
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
            tally: sums.tally,
            first_seen: sums.first_seen.map(text::time),
            last_seen: sums.last_seen.map(text::time),
        }
    }
}

/// `top --by prefix` and `top --by class`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupsReport {
    /// What they are.
    pub by: GroupBy,
    /// The heaviest, in the order of `sort`.
    pub groups: Vec<GroupEntry>,
    /// How many there are.
    pub known: u64,
    /// Sources with a bucket.
    pub tracked: u64,
}

impl GroupsReport {
    /// The `n` heaviest of `groups`; of those that weigh the same in all respects, by name.
    pub fn heaviest(
        by: GroupBy,
        sort: Sort,
        n: usize,
        groups: impl IntoIterator<Item = (String, Sums)>,
    ) -> Self {
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by(|(a_name, a), (b_name, b)| {
            let (a, b) = (a.tally.weight(sort), b.tally.weight(sort));
            // The name decides at last, so that equal groups do not change places from look to
            // look.
            a.heavier_first(&b).then_with(|| a_name.cmp(b_name))
        });
        // Before the list is cut: it is of all groups.
        let tracked = groups.iter().map(|(_, sums)| sums.tally.sources).sum();
        let known = groups.len() as u64;
        let groups = groups.into_iter().take(n);
        let groups = groups.map(|(name, sums)| GroupEntry::new(name, &sums)).collect();
        Self { by, groups, known, tracked }
    }
}

/// The table of groups; `hosts` tells on how many hosts each one has a bucket, if it is of all.
fn print_groups<'a>(
    out: &mut dyn Write,
    by: GroupBy,
    groups: impl Iterator<Item = (&'a GroupEntry, Option<usize>)>,
    terminal: Option<&Terminal>,
) -> io::Result<()> {
    let groups: Vec<_> = groups.collect();
    let Some((_, of_hosts)) = groups.first() else { return Ok(()) };
    let name = by.name().to_uppercase();
    let [first, last] = text::seen_headers(terminal);
    let mut columns = vec![
        (name.as_str(), text::KEEP),
        (first, 9),
        (last, 8),
        ("SOURCES", 3),
        ("LIMITED", 6),
        ("PPS", 2),
        ("BITS/S", 5),
        ("PASSED", 7),
        ("DROPPED", 1),
        ("BYTES", 10),
    ];
    // After the moments.
    const HOSTS: usize = 3;
    if of_hosts.is_some() {
        columns.insert(HOSTS, ("HOSTS", 4));
    }
    let rows = groups.iter().map(|(entry, hosts)| {
        let tally = &entry.tally;
        let mut row = vec![
            entry.group.clone(),
            text::since(entry.first_seen.as_ref(), terminal),
            text::since(entry.last_seen.as_ref(), terminal),
            tally.sources.to_string(),
            tally.limited.to_string(),
            format!("{:.0}", tally.pps),
            text::si(tally.bps),
            tally.passed.to_string(),
            tally.dropped.to_string(),
            tally.bytes.to_string(),
        ];
        if let Some(hosts) = hosts {
            row.insert(HOSTS, hosts.to_string());
        }
        row
    });
    writeln!(out, "{}", text::fitted(&columns, 3, rows, terminal))
}

const fn plural(by: GroupBy) -> &'static str {
    if matches!(by, GroupBy::Class) { "classes" } else { "prefixes" }
}

impl Print for GroupsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_on(out, None)
    }

    fn print_on(&self, out: &mut dyn Write, terminal: Option<&Terminal>) -> io::Result<()> {
        print_groups(out, self.by, self.groups.iter().map(|entry| (entry, None)), terminal)?;
        let (shown, known, tracked) = (self.groups.len(), self.known, self.tracked);
        writeln!(out, "{shown} of {known} {}, {tracked} tracked sources", plural(self.by))
    }
}

/// A line of `top --cluster --by prefix` or `top --cluster --by class`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterGroupEntry {
    /// The sums over all hosts that answered. A source counts on each host where it has a bucket.
    #[serde(flatten)]
    pub entry: GroupEntry,
    /// Hosts where something of it has a bucket.
    pub hosts: usize,
}

/// `top --cluster --by prefix` and `top --cluster --by class`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterGroupsReport {
    /// What they are.
    pub by: GroupBy,
    /// The heaviest of all hosts together.
    pub groups: Vec<ClusterGroupEntry>,
    /// Names of hosts that answered.
    pub hosts: Vec<String>,
    /// Members that did not, or not in full: what they have is not in the sums.
    pub unanswered: Vec<Unanswered>,
    /// Whether these are the heaviest for certain, with all that hosts have of them, of the hosts that answered.
    pub exact: bool,
    /// If not: what a group that is not listed may have at most, in what is sorted by.
    pub unlisted_at_most: f64,
    /// How many there are; `None` where hosts have too many to tell of all.
    pub known: Option<u64>,
    /// Buckets on all hosts; a source counts on each host where it has one.
    pub tracked: u64,
    /// How long the answer took, seconds.
    pub took_seconds: f64,
}

impl Print for ClusterGroupsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_on(out, None)
    }

    fn print_on(&self, out: &mut dyn Write, terminal: Option<&Terminal>) -> io::Result<()> {
        let groups = self.groups.iter().map(|group| (&group.entry, Some(group.hosts)));
        print_groups(out, self.by, groups, terminal)?;
        let (hosts, all) = (self.hosts.len(), self.hosts.len() + self.unanswered.len());
        write!(out, "{} ", self.groups.len())?;
        // Hosts with too many rows name the heaviest only, and a sum of those would be no number
        // of groups.
        if let Some(known) = self.known {
            write!(out, "of {known} ")?;
        }
        writeln!(out, "{}, {} buckets on {hosts} of {all} hosts", plural(self.by), self.tracked)?;
        if !self.exact {
            let most = self.unlisted_at_most;
            writeln!(out, "one that is not listed may have up to {most:.0}")?;
        }
        print_unanswered(out, &self.unanswered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_is_dropped_the_group_that_sends_most_comes_first() {
        let sums = |pps: f64, passed: u64, dropped: u64| Sums {
            tally: Tally { sources: 1, pps, passed, dropped, ..Tally::default() },
            ..Sums::default()
        };
        let groups = [
            ("a", sums(1.0, 10, 0)),
            ("b", sums(5.0, 3, 0)),
            ("c", sums(1.0, 20, 0)),
            ("d", sums(0.0, 1, 1)),
            ("e", sums(5.0, 3, 0)),
        ];
        let groups = groups.map(|(name, sums)| (name.to_owned(), sums));
        let report = GroupsReport::heaviest(GroupBy::Prefix, Sort::Dropped, 4, groups);
        let names: Vec<_> = report.groups.iter().map(|entry| entry.group.as_str()).collect();
        assert_eq!(names, ["d", "b", "e", "c"]);
    }
}
