//! What the hosts of a cluster know together.

use model::traffic::Usage;
use std::io::{self, Write};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{LimitReport, Print, Terminal, TopEntry, text};
use model::Class;
use model::Distinct;
use model::lists::Action;
use model::source::SourceState;
use model::target::short_prefix;
use model::traffic::Totals;

/// A host that did not answer a question to all, or not in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// Its name in the cluster.
    pub host: String,
    /// What it said instead, or that it said nothing.
    pub problem: String,
}

/// Tells who did not answer.
// By name: a sum that lacks a host must not pass for that of the fleet.
pub(super) fn print_unanswered(out: &mut dyn Write, unanswered: &[Unanswered]) -> io::Result<()> {
    for Unanswered { host, problem } in unanswered {
        writeln!(out, "without {host}: {problem}")?;
    }
    Ok(())
}

/// A line of `top --cluster`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterTopEntry {
    /// The sums over all hosts that answered. Its limit is the one that the host has that was asked.
    #[serde(flatten)]
    pub entry: TopEntry,
    /// Hosts where it has a bucket.
    pub hosts: usize,
    /// Whether another host has another limit for it.
    // Hosts whose limits differ let more through together than any of them allows.
    pub limit_differs: bool,
}

/// `top --cluster`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterTopReport {
    /// The heaviest sources of all hosts together.
    pub sources: Vec<ClusterTopEntry>,
    /// Names of hosts that answered.
    pub hosts: Vec<String>,
    /// Members that did not, or not in full: what they have is not in the sums.
    pub unanswered: Vec<Unanswered>,
    /// Whether these are the heaviest for certain, of the hosts that answered.
    pub exact: bool,
    /// If not: what a source that is not listed may have at most, in what is sorted by.
    pub unlisted_at_most: f64,
    /// Buckets on all hosts; a source counts on each host where it has one.
    pub tracked: u64,
    /// What all sources together got on all hosts.
    pub totals: Option<Totals>,
    /// How long the answer took, seconds.
    pub took_seconds: f64,
}

impl Print for ClusterTopReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_on(out, None)
    }

    fn print_on(&self, out: &mut dyn Write, terminal: Option<&Terminal>) -> io::Result<()> {
        if !self.sources.is_empty() {
            let columns = [
                ("SOURCE", text::KEEP),
                ("CLASS", 9),
                ("STATE", 4),
                ("LIMIT", 7),
                ("HOSTS", 3),
                ("PPS", 2),
                ("BITS/S", 5),
                ("PASSED", 6),
                ("ERROR", 8),
                ("DROPPED", 1),
                ("BYTES", 10),
            ];
            let row = |ClusterTopEntry { entry, hosts, limit_differs }: &ClusterTopEntry| {
                let limit = entry.limit.as_ref().map_or("none".into(), LimitReport::rates);
                [
                    short_prefix(&entry.source),
                    entry.class.unwrap_or_default().to_string(),
                    entry.state.name().to_owned(),
                    if *limit_differs { format!("{limit}, differs") } else { limit },
                    hosts.to_string(),
                    format!("{:.0}", entry.pps),
                    text::si(entry.bps),
                    entry.passed.to_string(),
                    format!("+{}", entry.uncounted),
                    entry.dropped.to_string(),
                    entry.bytes.to_string(),
                ]
            };
            let rows = self.sources.iter().map(row);
            writeln!(out, "{}", text::fitted(&columns, 4, rows, terminal))?;
        }
        // Both numbers: sums over nine of ten hosts must not look like those of the fleet.
        let (hosts, all) = (self.hosts.len(), self.hosts.len() + self.unanswered.len());
        write!(
            out,
            "{} sources, {} buckets on {hosts} of {all} hosts",
            self.sources.len(),
            self.tracked
        )?;
        if let Some(Totals { passed_pps, dropped_pps, .. }) = &self.totals {
            write!(out, ", {passed_pps:.0} packets/s passed, {dropped_pps:.0} dropped")?;
        }
        writeln!(out)?;
        // The list's certificate: on each host, an unlisted source has at most what the last named
        // one has there.
        if !self.exact {
            writeln!(
                out,
                "a source that is not listed may have up to {:.0}",
                self.unlisted_at_most
            )?;
        }
        print_unanswered(out, &self.unanswered)
    }
}

/// What is told of it in a table: packets passed and dropped per second, bits, and the counts.
fn columns(got: &Usage) -> [String; 6] {
    [
        format!("{:.0}", got.passed_pps),
        format!("{:.0}", got.dropped_pps),
        text::si(got.bps),
        got.passed.to_string(),
        got.dropped.to_string(),
        got.bytes.to_string(),
    ]
}

/// What a host knows of a source's packets of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostSource {
    /// The host.
    pub host: String,
    /// The packets that this is about, if not all that no limit of a class applies to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// How it fares there.
    pub state: SourceState,
    /// The limit in force for it there.
    pub limit: Option<String>,
    /// Packets in the sketch's window, without a bucket.
    pub estimate: u32,
    /// What it has got.
    #[serde(flatten)]
    pub got: Usage,
    /// The part of the cluster's limit that the host may use for it at present; `None` if its limit is the
    /// host's own, or without a bucket.
    pub share: Option<f64>,
    /// The part that it may use without end.
    pub floor: Option<f64>,
    /// What the host's list says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<Action>,
}

/// What all hosts know of a source's packets of one class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceSums {
    /// As in [`HostSource`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// Hosts where it has a bucket.
    pub hosts: usize,
    /// What it has got.
    #[serde(flatten)]
    pub got: Usage,
    /// The part of the cluster's limit that all hosts together may use for it at present; at most 1.
    pub share: Option<f64>,
}

/// `show IP --cluster`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterSourceReport {
    /// The source that the address belongs to.
    pub source: IpNet,
    /// What each host knows.
    pub hosts: Vec<HostSource>,
    /// The sums, for each class of packets.
    pub sums: Vec<SourceSums>,
    /// Members that did not answer.
    pub unanswered: Vec<Unanswered>,
}

impl Print for ClusterSourceReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "source     {}", short_prefix(&self.source))?;
        let header = [
            "HOST",
            "CLASS",
            "STATE",
            "LIMIT",
            "SHARE",
            "PASSED/S",
            "DROPPED/S",
            "BITS/S",
            "PASSED",
            "DROPPED",
            "BYTES",
        ];
        let share = |share: Option<f64>| {
            share.map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", share * 100.0))
        };
        let mut table = text::table(&header, 4);
        for host in &self.hosts {
            let state = match host.listed {
                // A list goes before any bucket, so its word replaces the state of a bucket that
                // no packet asks.
                Some(Action::Allow) => "allowed",
                Some(Action::Deny) => "denied",
                None => host.state.name(),
            };
            let row = [
                host.host.clone(),
                host.class.unwrap_or_default().to_string(),
                state.to_owned(),
                host.limit.clone().unwrap_or_else(|| "none".into()),
                share(host.share),
            ];
            table.add_row(row.into_iter().chain(columns(&host.got)));
        }
        for sums in &self.sums {
            let row = [
                "all".to_owned(),
                sums.class.unwrap_or_default().to_string(),
                String::new(),
                String::new(),
                share(sums.share),
            ];
            table.add_row(row.into_iter().chain(columns(&sums.got)));
        }
        writeln!(out, "{}", table.trim_fmt())?;
        print_unanswered(out, &self.unanswered)
    }
}

/// Hosts whose registers merge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistinctGroup {
    /// Who they are, and what each of them has seen alone.
    pub hosts: Vec<DistinctHost>,
    /// Distinct sources that all of them have seen in their last full window.
    pub distinct: Distinct,
    /// How many windows apart theirs are, 0 or 1: with 1, it is at most what was seen in both.
    pub windows_apart: u16,
}

/// What one host has seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistinctHost {
    /// The host.
    pub host: String,
    /// Distinct sources.
    pub sources: f64,
}

/// Distinct sources in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterDistinctReport {
    /// Hosts whose registers merge, the most hosts first. More than one where hosts have another hash key,
    /// which maps keep that were made with an earlier key of the cluster or in no cluster, or another time.
    pub groups: Vec<DistinctGroup>,
    /// Hosts that did not answer, or do not count.
    pub unanswered: Vec<Unanswered>,
}

impl ClusterDistinctReport {
    /// Tells the numbers, without who did not answer.
    pub(super) fn print_counts(&self, out: &mut dyn Write) -> io::Result<()> {
        for (at, group) in self.groups.iter().enumerate() {
            let names: Vec<_> = group.hosts.iter().map(|host| host.host.as_str()).collect();
            write!(out, "{} on {}", group.distinct.summary(), names.join(", "))?;
            // Registers rotate by each host's clock. Of windows one apart, the union counts
            // sources of both: an upper bound.
            if group.windows_apart > 0 {
                write!(out, ", whose windows are one apart")?;
            }
            // Registers of different hashes cannot be merged: a source would be counted once for
            // each.
            if at > 0 {
                write!(out, ", counted apart: another hash key, or another time")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

impl Print for ClusterDistinctReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_counts(out)?;
        print_unanswered(out, &self.unanswered)
    }
}
