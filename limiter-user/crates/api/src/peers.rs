//! The hosts of a cluster.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::fleet::print_unanswered;
use super::{ClusterDistinctReport, Print, Terminal, Unanswered, text};
use model::Partition;
use model::digest::Percentiles;

/// How a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// It is the one that was asked.
    This,
    /// It answers.
    Alive,
    /// Others have not heard of it for a while, and it may be gone.
    Suspect,
    /// It is a member, and does not answer.
    Silent,
    /// It was there, and is not any more.
    Gone,
}

impl PeerState {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::This => "this",
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Silent => "silent",
            Self::Gone => "gone",
        }
    }
}

/// Packets that a host has not listened to, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedReport {
    /// The reason, as metrics call it.
    pub reason: String,
    /// The same in words.
    pub meaning: String,
    /// How many, since its daemon started.
    pub packets: u64,
}

/// How a host's clock is, and how long packets take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClockReport {
    /// How far its wall clock is ahead of that of the host that was asked, ms.
    pub ahead_ms: f64,
    /// What that may be off by, ms: half of the round trip.
    // As in NTP: the answer may have been given at any moment of the round trip.
    pub error_ms: f64,
    /// How long a question and its answer were on their way, ms.
    pub round_trip_ms: f64,
}

/// What a host says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerDetails {
    /// The version of its program.
    pub version: String,
    /// The version of the protocol between hosts.
    pub protocol: u32,
    /// The version of the layout of its maps.
    pub abi: u32,
    /// How long its daemon has run, seconds.
    pub uptime_seconds: u64,
    /// The part of each limit that is its own, 0 to 1.
    pub home: f64,
    /// The part that it may use without asking others, 0 to 1.
    pub floor: f64,
    /// Sources that it shares with others.
    pub keys: u64,
    /// Those of them that are over its share.
    pub limited: u64,
    /// Sources beside them that have their floor there and no more: more send at once than it has the time to
    /// divide among hosts.
    #[serde(default)]
    // A field, not a sentence of its own status: so another host's answer names the owner that is
    // the reason.
    pub left_out: u64,
    /// Sources that it has grants of.
    pub grants_held: u64,
    /// Grants of sources that it owns which others may go by.
    pub grants_given: u64,
    /// Sources that it owns of which it has borrowed from other regions.
    #[serde(default)]
    pub loans_borrowed: u64,
    /// Sources that it owns of which it has lent to other regions.
    #[serde(default)]
    pub loans_lent: u64,
    /// A hash of the limits that the cluster has, as it knows them.
    pub limits: String,
    /// Whether the host that was asked knows the same limits, and has the same ones of the cluster in its file.
    pub limits_same: bool,
    /// Members that are there as far as it knows, itself included.
    pub members: u64,
    /// Frames of others that it has listened to.
    pub received: u64,
    /// Frames that it has sent.
    pub sent: u64,
    /// Frames that could not be sent, or that it had no time for.
    pub lost: u64,
    /// Packets that it has not listened to.
    pub refused: Vec<RefusedReport>,
    /// Round trips of its questions to others lately, ms.
    pub lag_ms: Option<Percentiles>,
}

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its name in the cluster.
    pub host: String,
    /// The number of its share ledger, in hexadecimal: no other host has it.
    pub id: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its region, `default` where none is configured.
    pub region: String,
    /// Its part of limits, beside those of others.
    pub weight: u32,
    /// How it is.
    pub state: PeerState,
    /// How long ago it went, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_seconds: Option<f64>,
    /// What it says of itself, if it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<PeerDetails>,
    /// Its clock, if it is another host and answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockReport>,
}

impl PeerReport {
    /// What is to be said of sources that the host does not divide with others.
    pub fn left_out(&self) -> Option<String> {
        let details = self.details.as_ref().filter(|details| details.left_out > 0)?;
        Some(format!(
            "{} leaves {} sources at their floor: more send at once than it has the time to divide among hosts, which \
             are {} at present",
            self.host, details.left_out, details.keys
        ))
    }
}

/// Hosts that are near to each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegionReport {
    /// Its name.
    pub region: String,
    /// Its hosts that are there.
    pub hosts: u64,
    /// Those of them that answer; what follows is theirs.
    pub answering: u64,
    /// The sum of their home shares: the region's own part of each limit, 0 to 1.
    pub home: f64,
    /// Sources of which it has borrowed from other regions.
    pub loans_borrowed: u64,
    /// Sources of which it has lent to other regions.
    pub loans_lent: u64,
}

/// What was used of a limit of the cluster in the last seconds, by the source that used most of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverageReport {
    /// The limit's target.
    pub limit: String,
    /// Packets that all hosts let through, over what one bucket of the whole limit would have. Above 1 it
    /// was exceeded.
    pub ratio: f64,
    /// What `ratio` may be at the most: 1, but for limits that hosts may exceed while others are lost.
    pub bound: f64,
    /// What becomes of the limit while hosts cannot reach each other.
    #[serde(default)]
    pub partition: Partition,
    /// Packets that passed.
    pub passed: u64,
    /// In how long a time, seconds.
    pub seconds: f64,
}

/// What counting by other clocks can be off by, as a factor; the alert rule has the same.
const MARGIN: f64 = 1.02;

impl OverageReport {
    /// That hosts let more through than they may, if they do by more than counting can be off by.
    pub fn warning(&self) -> Option<String> {
        let Self { limit, ratio, bound, seconds, .. } = self;
        // By its own bound: under `available` each side of a partition may use all of the limit,
        // which is no fault.
        (*ratio > MARGIN * bound).then(|| {
            let [ratio, bound] = [ratio * 100.0, bound * 100.0];
            format!(
                "the hosts of the cluster let {ratio:.0} % of the limit for {limit} through in {seconds:.0} s, {bound:.0} \
                 % may be: `limiter peers` tells whether limits differ, and the HOME of all hosts is more than \
                 100 % if a state directory was copied or restored"
            )
        })
    }

    /// It in a few words.
    pub fn summary(&self) -> String {
        let Self { limit, ratio, bound, partition, .. } = self;
        let [ratio, bound] = [ratio * 100.0, bound * 100.0];
        let note = match partition {
            Partition::Available => ", available: 100 % for each side of a partition".to_owned(),
            usual if *usual == Partition::default() => String::new(),
            other => format!(", {}", other.name()),
        };
        format!("{limit}: {ratio:.1} % used of what may be ({bound:.0} %{note})")
    }
}

/// A host with the same key that belongs to another cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherCluster {
    /// The cluster's number.
    pub cluster: String,
    /// The host's name.
    pub host: String,
    /// Where it listens.
    pub address: SocketAddr,
}

/// `peers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeersReport {
    /// The cluster's number; `None` for a host that has not been let into one.
    pub cluster: Option<String>,
    /// The hosts, in the order of their names.
    pub peers: Vec<PeerReport>,
    /// Their regions, in the order of their names.
    #[serde(default)]
    pub regions: Vec<RegionReport>,
    /// Members that did not answer.
    pub unanswered: Vec<Unanswered>,
    /// What is to be said of the host that was asked in its cluster, as in its status.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Hosts with the same key that belong to another cluster.
    #[serde(default)]
    // Two clusters of one key each let the whole of every limit through, which nothing else shows.
    pub other_clusters: Vec<OtherCluster>,
    /// The sum of the home shares of those that answer: the rest of each limit lies idle, or is on its way.
    pub home: f64,
    /// Whether all that answer know the same limits.
    pub limits_same: bool,
    /// Round trips between hosts lately, of all that answer, ms.
    pub lag_ms: Option<Percentiles>,
    /// What was used of limits of the cluster lately, as this host has counted.
    pub overage: Vec<OverageReport>,
    /// Distinct sources that hosts have seen together.
    pub distinct: ClusterDistinctReport,
}

fn percent(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}

impl RegionReport {
    /// The regions of hosts.
    pub fn from_peers(peers: &[PeerReport]) -> Vec<Self> {
        let mut regions = BTreeMap::<&str, Self>::new();
        for peer in peers {
            let region = regions.entry(&peer.region).or_default();
            // Who is gone is listed still, but no more expected to answer.
            region.hosts += u64::from(peer.state != PeerState::Gone);
            if let Some(details) = &peer.details {
                // Sums are of those that answered, and the table says so: zeros for silent hosts
                // would look like lost shares.
                region.answering += 1;
                region.home += details.home;
                region.loans_borrowed += details.loans_borrowed;
                region.loans_lent += details.loans_lent;
            }
        }
        let named = |(name, region): (&str, Self)| Self { region: name.into(), ..region };
        regions.into_iter().map(named).collect()
    }

    fn row(&self) -> [String; 5] {
        let hosts = if self.answering < self.hosts {
            format!("{}, {} answer", self.hosts, self.answering)
        } else {
            self.hosts.to_string()
        };
        let [borrowed, lent] =
            [self.loans_borrowed, self.loans_lent].map(|count| count.to_string());
        [self.region.clone(), hosts, percent(self.home), borrowed, lent]
    }
}

impl PeerReport {
    fn row(&self) -> [String; 14] {
        let of = |tell: &dyn Fn(&PeerDetails) -> String| {
            self.details.as_ref().map_or_else(|| "-".to_owned(), tell)
        };
        let clock = self.clock.map_or_else(
            || "-".to_owned(),
            |clock| format!("{:+.1} ± {:.1}", clock.ahead_ms, clock.error_ms),
        );
        let lag = |details: &PeerDetails| {
            let lag = details.lag_ms.map(|lag| format!("{:.1} / {:.1}", lag.p50, lag.p99));
            lag.unwrap_or_else(|| "-".into())
        };
        // Who is gone keeps its row: its home share may lie idle, and the operator asks why.
        let state = match self.gone_seconds {
            Some(seconds) => format!("gone for {}", text::seconds(seconds as u64)),
            None => self.state.name().into(),
        };
        [
            self.host.clone(),
            self.address.to_string(),
            state,
            self.region.clone(),
            // Early in the table: hosts with different limits let more through than any of them
            // allows.
            of(&|details| if details.limits_same { "same" } else { "differ" }.into()),
            of(&|details| format!("{} / {}", details.version, details.protocol)),
            self.weight.to_string(),
            of(&|details| percent(details.home)),
            of(&|details| percent(details.floor)),
            of(&|details| details.keys.to_string()),
            of(&|details| details.limited.to_string()),
            of(&|details| format!("{} / {}", details.grants_held, details.grants_given)),
            clock,
            of(&lag),
        ]
    }
}

impl Print for PeersReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_on(out, None)
    }

    fn print_on(&self, out: &mut dyn Write, terminal: Option<&Terminal>) -> io::Result<()> {
        let columns = [
            ("HOST", text::KEEP),
            ("ADDRESS", 6),
            ("STATE", 1),
            ("REGION", 7),
            ("LIMITS", 2),
            ("VERSION", 9),
            ("WEIGHT", 10),
            ("HOME", 3),
            ("FLOOR", 13),
            ("SHARED", 11),
            ("LIMITED", 8),
            ("GRANTS HELD/GIVEN", 12),
            ("CLOCK MS", 4),
            ("LAG P50/P99 MS", 5),
        ];
        let rows = self.peers.iter().map(PeerReport::row);
        writeln!(out, "{}", text::fitted(&columns, 6, rows, terminal))?;
        // Where all are in one region, that says nothing which the table of hosts does not.
        if self.regions.len() > 1 {
            let header = ["REGION", "HOSTS", "HOME", "SOURCES BORROWED", "SOURCES LENT"];
            let mut table = text::table(&header, 1);
            for region in &self.regions {
                table.add_row(region.row());
            }
            writeln!(out, "\n{}\n", table.trim_fmt())?;
        }
        for peer in &self.peers {
            for refused in peer.details.iter().flat_map(|details| &details.refused) {
                let RefusedReport { meaning, packets, .. } = refused;
                writeln!(out, "{}: {packets} packets rejected: {meaning}", peer.host)?;
            }
        }
        if let Some(Percentiles { p50, p90, p99, max, .. }) = self.lag_ms {
            writeln!(
                out,
                "round trips between hosts: half within {p50:.1} ms, 90 % {p90:.1} ms, 99 % {p99:.1} ms, \
                 the longest {max:.1} ms"
            )?;
        }
        // More than 100 % means that a state directory was copied or went back; less, that a host
        // is missing.
        writeln!(out, "{} of each limit is with hosts that answer", percent(self.home))?;
        self.distinct.print_counts(out)?;
        for overage in &self.overage {
            writeln!(out, "limit for {}", overage.summary())?;
        }
        if self.cluster.is_none() {
            writeln!(out, "this host has not been let into a cluster yet")?;
        }
        for warning in &self.warnings {
            writeln!(out, "warning: {warning}")?;
        }
        print_unanswered(out, &self.unanswered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(host: &str, region: &str, home: Option<f64>) -> PeerReport {
        let details = home.map(|home| PeerDetails {
            version: "1".into(),
            protocol: 1,
            abi: 1,
            uptime_seconds: 1,
            home,
            floor: 0.0,
            keys: 0,
            limited: 0,
            left_out: 0,
            grants_held: 0,
            grants_given: 0,
            loans_borrowed: 2,
            loans_lent: 1,
            limits: String::new(),
            limits_same: true,
            members: 3,
            received: 0,
            sent: 0,
            lost: 0,
            refused: Vec::new(),
            lag_ms: None,
        });
        PeerReport {
            host: host.into(),
            id: host.into(),
            address: ([192, 0, 2, 1], 7700).into(),
            region: region.into(),
            weight: 100,
            state: if host == "gone" { PeerState::Gone } else { PeerState::Alive },
            gone_seconds: None,
            details,
            clock: None,
        }
    }

    #[test]
    fn hosts_with_too_much_to_do_are_named() {
        let mut crowded = peer("a", "eu", Some(0.25));
        assert_eq!(crowded.left_out(), None);
        crowded.details.iter_mut().for_each(|details| details.left_out = 7);
        assert!(crowded.left_out().unwrap().starts_with("a leaves 7 sources at their floor"));
        assert_eq!(peer("b", "eu", None).left_out(), None);
    }

    #[test]
    fn a_terminal_gets_the_columns_that_fit() {
        let report: PeersReport = serde_json::from_value(serde_json::json!({
            "cluster": null,
            "peers": [peer("edge-frankfurt-1", "eu", Some(0.25)), peer("b", "us", None)],
            "unanswered": [], "home": 0.25, "limits_same": true, "lag_ms": null, "overage": [],
            "distinct": { "groups": [], "unanswered": [] },
        }))
        .unwrap();
        let header = |terminal: Option<&Terminal>| {
            let mut text = Vec::new();
            report.print_on(&mut text, terminal).unwrap();
            String::from_utf8(text).unwrap().lines().next().unwrap().to_owned()
        };
        let now = std::time::SystemTime::UNIX_EPOCH;
        let complete = header(None);
        assert!(complete.len() > 130 && complete.contains("GRANTS HELD/GIVEN"), "{complete}");
        let narrow = header(Some(&Terminal { width: 80, now }));
        assert!(narrow.len() <= 80 && narrow.ends_with("LAG P50/P99 MS"), "{narrow}");
        assert_eq!(header(Some(&Terminal { width: 200, now })), complete);
    }

    #[test]
    fn regions_have_what_their_hosts_have() {
        let peers = [
            peer("a", "eu", Some(0.25)),
            peer("b", "us", Some(0.5)),
            peer("c", "eu", Some(0.125)),
            peer("d", "us", None),
            peer("gone", "us", None),
        ];
        let regions = RegionReport::from_peers(&peers);
        let eu = RegionReport {
            region: "eu".into(),
            hosts: 2,
            answering: 2,
            home: 0.375,
            loans_borrowed: 4,
            loans_lent: 2,
        };
        assert_eq!(regions[0], eu);
        assert_eq!(regions[1].row(), ["us", "2, 1 answer", "50.00 %", "2", "1"]);
        assert_eq!(regions.len(), 2);
    }
}
