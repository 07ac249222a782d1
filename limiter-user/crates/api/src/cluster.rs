//! The cluster.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::Print;

/// `cluster key generate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyGenerated {
    /// The file with the new key.
    pub file: String,
    /// Whether there was another file.
    pub replaced: bool,
}

impl Print for KeyGenerated {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let replaced = if self.replaced { ", in the place of another" } else { "" };
        writeln!(out, "{}: a new key{replaced}; copy it to all hosts of the cluster", self.file)
    }
}

/// A host in its cluster, of `status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The host's name there.
    pub name: String,
    /// Whether it belongs to a cluster yet.
    pub joined: bool,
    /// The cluster's number, if it belongs to one.
    #[serde(default)]
    pub cluster: Option<String>,
    /// Hosts that are there, this one included.
    pub members: u64,
    /// The host's weight, as the others know it.
    pub weight: u32,
    /// The host's home share, as a part of each limit of the cluster.
    pub home: f64,
    /// What it has given away of that and has not come to others yet.
    pub on_the_way: f64,
    /// What it may use of each source's limit without asking.
    pub floor: f64,
    /// Sources under limits of the cluster that send enough to matter.
    pub sources: u64,
    /// Those of them that are over what they may use here.
    pub limited: u64,
    /// Sources beside them that have their floor here and no more: more send at once than the host has the time to
    /// divide among hosts.
    #[serde(default)]
    pub left_out: u64,
    /// Sources beside them that have half of the host's own part here, because it has no room to divide them.
    #[serde(default)]
    pub untracked: u64,
    /// Keys of `limiter-serve` that need a share.
    #[serde(default)]
    pub keys: u64,
    /// Decisions of `limiter-serve` for which no share could be had, since its start.
    #[serde(default)]
    pub alone: u64,
    /// Messages about shares that were sent.
    pub messages: u64,
    /// Messages that were not sent, because what had to be done before could not be.
    pub withheld: u64,
    /// Whether the host has handed over all its shares.
    pub left: bool,
    /// Addresses of other hosts, members and seeds, whose frames to this host no limit applies to.
    #[serde(default)]
    pub unlimited_peers: u64,
}

impl ClusterStatus {
    /// What of other hosts is not limited, in a line.
    pub(super) fn frames(&self) -> String {
        // Said in every status: an attacker who forges these addresses gets the budget of a host.
        format!("frames from {} addresses of hosts are not limited", self.unlimited_peers)
    }

    /// It in a line.
    pub(super) fn summary(&self) -> String {
        let Self { name, members, home, sources, limited, untracked, keys, alone, .. } = self;
        let home = 100.0 * home;
        let untracked = match untracked {
            0 => String::new(),
            _ => format!(", {untracked} more than can be shared"),
        };
        let keys = match (keys, alone) {
            (0, 0) => String::new(),
            (_, 0) => format!(", {keys} keys"),
            _ => format!(", {keys} keys, {alone} decisions on keys without a share"),
        };
        match (self.joined, self.left) {
            (_, true) => format!("{name} has left"),
            (false, _) => format!("{name} belongs to none yet"),
            _ => format!(
                "{name}, {members} hosts, {home:.1} % of limits at home, {sources} sources shared, {limited} \
                 limited{untracked}{keys}"
            ),
        }
    }
}

/// `cluster init`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFounded {
    /// The host's name.
    pub name: String,
    /// The cluster's number.
    pub cluster: String,
}

impl Print for ClusterFounded {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { name, cluster } = self;
        writeln!(
            out,
            "{name} has founded the cluster {cluster}, and has all of its limits; other hosts join it with {name} as seed"
        )
    }
}

/// `cluster forget`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterForgotten {
    /// The host's name.
    pub name: String,
    /// What it had of each limit, as a part of it.
    pub share: f64,
    /// For how long it may use that yet if it is still up, s; until it can be told if null.
    pub lease_seconds: Option<f64>,
    /// Whether the others have it now.
    pub done: bool,
}

impl Print for ClusterForgotten {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { name, share, lease_seconds, done } = self;
        let share = 100.0 * share;
        if *done {
            return writeln!(out, "the others have the {share:.1} % of each limit that {name} had");
        }
        let when = match lease_seconds {
            Some(seconds) => format!(
                "when its home lease has ended, in at most {seconds:.0} s, and more than half of the hosts are there"
            ),
            None => "when more than half of the hosts are there".to_owned(),
        };
        writeln!(out, "the others get the {share:.1} % of each limit that {name} had {when}")
    }
}

/// `cluster leave`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterLeft {
    /// The host's name.
    pub name: String,
    /// Hosts that were there to take its shares.
    pub others: u64,
    /// Whether it had all of the cluster's limits, so that the cluster is no more.
    pub disbanded: bool,
    /// How long it took.
    pub seconds: f64,
}

impl Print for ClusterLeft {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { name, others, disbanded, seconds } = self;
        // Nobody took its shares, so nothing of the cluster is left: the next host must found one,
        // not join.
        if *disbanded {
            return writeln!(out, "{name} was the last host of its cluster, which is no more");
        }
        writeln!(
            out,
            "{name} left the cluster in {seconds:.1} s; its share went to {others} other hosts. Packets under limits \
             of the cluster are dropped here: stop the daemon, or restart it to come back"
        )
    }
}
