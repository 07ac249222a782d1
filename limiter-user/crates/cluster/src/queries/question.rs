//! What is asked, and what is answered.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::groups::Groups;
use crate::wire::bytes::Malformed;
use model::Class;
use model::lists::Action;
use model::source::SourceState;
use model::traffic::{GroupBy, Sort, Totals, Usage};

/// Which form questions and answers have.
/// Postcard writes neither names nor types: bytes of another form would be read as wrong numbers.
const FORM: u8 = 1;

/// Sources that are asked for at once, at most.
pub const MAX_PLACES: usize = 2000;

/// Limits of a configuration file that are told at most.
pub const MAX_FILE_LIMITS: usize = 1000;

/// Characters of a text, at most.
const MAX_LEN: usize = 400;

/// What a host asks another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Whether it is there: how long a packet takes, what its clock says.
    Ping,
    /// What it is, and how it does.
    Host,
    /// The heaviest of the sources that it has.
    Candidates {
        /// By what.
        sort: Sort,
        /// How many, at most [`MAX_PLACES`].
        n: u32,
        /// Whether those of the latest look will do, as for whoever watches.
        live: bool,
    },
    /// What it has counted of these sources.
    Points(Vec<SourceClass>),
    /// What it knows of the source that this address belongs to.
    Source(IpAddr),
    /// How many distinct sources it has seen.
    Distinct,
    /// The heaviest groups of sources that it has.
    Groups {
        /// What they are: [`GroupBy::Prefix`] or [`GroupBy::Class`].
        by: GroupBy,
        /// By what.
        sort: Sort,
        /// How many families of prefixes (see [`model::rollup::family`]), at most [`MAX_PLACES`].
        n: u32,
    },
    /// What it has of these families of prefixes; if they are too many the heaviest by `sort`.
    GroupsOf {
        /// Them.
        nets: Vec<IpNet>,
        /// By what.
        sort: Sort,
    },
    /// The limits of the cluster that its configuration file has, unless their hash is this one.
    FileLimits(u64),
}

/// A source and a class of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceClass {
    /// The source.
    pub source: IpNet,
    /// The packets; [`Class::ANY`] for those that no limit of a class applies to.
    pub class: Class,
}

/// What a host says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// It is there.
    Pong,
    /// To [`Question::Host`].
    Host(Box<Host>),
    /// To [`Question::Candidates`].
    Candidates(Candidates),
    /// To [`Question::Points`]: those that have a bucket.
    Points(Vec<Counted>),
    /// To [`Question::Source`].
    Source(Box<SourceInfo>),
    /// To [`Question::Distinct`]; `None` if that is not counted.
    Distinct(Option<Distinct>),
    /// It cannot say, and why.
    Trouble(String),
    /// To [`Question::Groups`] and [`Question::GroupsOf`].
    Groups(Groups),
    /// To [`Question::FileLimits`]: in the order of their targets, the first [`MAX_FILE_LIMITS`] at most; `None` if
    /// they are as the host that asks knows them.
    FileLimits(Option<Vec<FileLimit>>),
}

/// A limit of the cluster that a configuration file has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLimit {
    /// Its target: sources, and the class of their packets.
    pub target: String,
    /// All that it says, in words.
    pub limit: String,
}

/// The heaviest sources of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidates {
    /// The heaviest first.
    pub sources: Vec<Counted>,
    /// Sources that have a bucket there, these among them.
    pub tracked: u64,
    /// What all sources together get there.
    pub totals: Option<Totals>,
}

/// What a host has counted of a source since that got its bucket there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// The source.
    pub place: SourceClass,
    /// How it fares there.
    pub state: SourceState,
    /// A number that stands for the limit in force for it there; 0 if there is none.
    pub limit: u64,
    /// Packets passed.
    pub passed: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Bytes offered.
    pub bytes: u64,
    /// What `passed` may be too low by.
    pub uncounted: u64,
    /// Packets per second.
    pub pps: f64,
    /// Bits per second.
    pub bps: f64,
    /// How long a time these are the average of, s.
    pub seconds: f64,
    /// When it got its bucket, ms since 1970.
    pub first_seen_ms: Option<u64>,
    /// Its last packet, ms since 1970.
    pub last_seen_ms: Option<u64>,
}

/// What a host knows of a source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// The source.
    pub source: IpNet,
    /// What its list says of it.
    pub listed: Option<Action>,
    /// Its buckets, of packets of no class first; that one is always there, if only as light.
    pub buckets: Vec<BucketInfo>,
}

/// What a host knows of a source's packets of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketInfo {
    /// The packets.
    pub class: Class,
    /// How the source fares.
    pub state: SourceState,
    /// The limit in force for it, in words.
    pub limit: Option<String>,
    /// Packets in the sketch's window, of a source without a bucket.
    pub estimate: u32,
    /// What it has got, rates being those of a quarter of a second.
    pub got: Usage,
    /// The part of the cluster's limit that the host may use for it, and without end; `None` for a limit of
    /// its own.
    pub share: Option<[f64; 2]>,
}

/// What a host is, and how it does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its version.
    pub version: String,
    /// The version of the protocol of the cluster.
    pub protocol: u32,
    /// The version of the layout of its maps.
    pub abi: u32,
    /// How long its daemon has run, s.
    pub uptime_s: u64,
    /// Its home share, as a part of each limit.
    pub home: f64,
    /// What it may use without grants.
    pub floor: f64,
    /// Sources under limits of the cluster that it asks grants for.
    pub keys: u64,
    /// Those of them that were over its share at its latest look.
    pub limited: u64,
    /// Sources beside them that have their floor and no more, because it has no time for so many.
    pub left_out: u64,
    /// Sources that it has grants of, and grants that it has given to others.
    pub grants: [u64; 2],
    /// Sources of which it has borrowed from other regions, and of which it has lent to them.
    pub loans: [u64; 2],
    /// A hash of the limits that the cluster has, as it knows them.
    pub limits: u64,
    /// A hash of the limits of the cluster that its configuration file has.
    pub file_limits: u64,
    /// Members that are there as far as it knows, itself included.
    pub members: u64,
    /// Frames of others that it has listened to.
    pub received: u64,
    /// Frames that it has sent.
    pub sent: u64,
    /// Frames that could not be sent, or that nobody took.
    pub lost: u64,
    /// Packets that it has not listened to, by the place of the reason among all reasons.
    pub rejected: Vec<(u8, u64)>,
    /// Round trips of its questions, ms: a t-digest.
    pub lag: Vec<u8>,
}

/// The distinct sources that a host has seen in a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distinct {
    /// What the key of its hash is known by. Registers of another key do not merge.
    pub key: u64,
    /// Which window it is.
    pub window: u16,
    /// The registers, six bits each.
    pub ranks: Vec<u8>,
}

fn put(value: &impl Serialize) -> Vec<u8> {
    // What is written has a length, and a vector has room.
    postcard::to_extend(value, vec![FORM]).unwrap_or_default()
}

fn get<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    let (&FORM, bytes) = bytes.split_first().ok_or(Malformed)? else { return Err(Malformed) };
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|_| Malformed)?;
    // Bytes left over are those of another type, of which only the beginning happens to fit.
    if rest.is_empty() { Ok(value) } else { Err(Malformed) }
}

impl Question {
    /// As bytes.
    pub fn bytes(&self) -> Vec<u8> {
        put(self)
    }

    /// Reads one.
    ///
    /// # Errors
    /// If it is none, or asks for too much.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let question: Self = get(bytes)?;
        // Each place costs the answerer work: a faulty member must not order any amount of it.
        let fits = match &question {
            Self::Candidates { n, .. } => *n as usize <= MAX_PLACES,
            Self::Points(places) => places.len() <= MAX_PLACES,
            Self::Groups { by, n, .. } => {
                *n as usize <= MAX_PLACES && matches!(by, GroupBy::Prefix | GroupBy::Class)
            }
            Self::GroupsOf { nets, .. } => nets.len() <= MAX_PLACES,
            _ => true,
        };
        if fits { Ok(question) } else { Err(Malformed) }
    }
}

impl Answer {
    /// As bytes.
    pub fn bytes(&self) -> Vec<u8> {
        put(self)
    }

    /// Reads one.
    ///
    /// # Errors
    /// If it is none, or says what cannot be.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let answer: Self = get(bytes)?;
        if answer.makes_sense() { Ok(answer) } else { Err(Malformed) }
    }

    /// Whether numbers are numbers, and texts are fit for a terminal.
    fn makes_sense(&self) -> bool {
        // A member may run a faulty version: one NaN would spoil the order of a merged list, and an escape sequence
        // would reach an operator's terminal.
        match self {
            Self::Pong | Self::Distinct(_) => true,
            Self::Host(host) => is_fit(&host.version) && are_numbers(&[host.home, host.floor]),
            Self::Candidates(Candidates { sources, totals, .. }) => {
                are_counted(sources)
                    && totals.is_none_or(|it| {
                        let rates = [it.passed_pps, it.dropped_pps, it.passed_bps, it.dropped_bps];
                        are_numbers(&rates) && are_numbers(&[it.seconds])
                    })
            }
            Self::Points(sources) => are_counted(sources),
            Self::Source(known) => known.buckets.iter().all(|bucket| {
                let share = bucket.share.unwrap_or_default();
                let Usage { passed_pps, dropped_pps, bps, .. } = bucket.got;
                are_numbers(&[passed_pps, dropped_pps, bps, share[0], share[1]])
                    && bucket.limit.as_deref().is_none_or(is_fit)
            }),
            Self::Trouble(text) => is_fit(text),
            Self::FileLimits(limits) => {
                let limits = limits.as_deref().unwrap_or_default();
                limits.len() <= MAX_FILE_LIMITS
                    && limits.iter().all(|it| is_fit(&it.target) && is_fit(&it.limit))
            }
            Self::Groups(Groups { rows, bar, .. }) => {
                are_numbers(&[*bar])
                    && rows.iter().all(|row| are_numbers(&[row.tally.pps, row.tally.bps]))
            }
        }
    }
}

fn are_counted(sources: &[Counted]) -> bool {
    sources.iter().all(|it| are_numbers(&[it.pps, it.bps, it.seconds]))
}

fn are_numbers(values: &[f64]) -> bool {
    values.iter().all(|value| value.is_finite() && *value >= 0.0)
}

fn is_fit(text: &str) -> bool {
    text.len() <= MAX_LEN && !text.contains(char::is_control)
}
