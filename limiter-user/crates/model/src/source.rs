//! What is known of a source.

use std::time::SystemTime;

use ipnet::IpNet;
use limiter_common::evidence::Evidence;
use serde::{Deserialize, Serialize};

use crate::{Class, Limit, Tier};

/// How a source fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    /// It sends too little to deserve a bucket.
    Light,
    /// It has a bucket and stays within its limit.
    Conforming,
    /// It has used its bucket up, and packets were dropped.
    Limited,
}

impl SourceState {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Conforming => "conforming",
            Self::Limited => "limited",
        }
    }
}

/// A source as the kernel knows it.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its address and how many bits of it count.
    pub source: IpNet,
    /// Whether it is a group of sources: a prefix whose sources are limited together as far as they have no buckets.
    pub is_group: bool,
    /// The packets that this is about; [`Class::ANY`] for those that no limit of a class applies to.
    pub class: Class,
    /// How it fares.
    pub state: SourceState,
    /// The limit in force for it.
    pub limit: Option<Limit>,
    /// Packets or bytes it may send at once; `None` without bucket or limit.
    // A fraction: a bucket earns continuously, and 0.9 of a token lets no packet through.
    pub tokens: Option<f64>,
    /// Bytes it may send at once, where packets and bytes are limited.
    pub also_tokens: Option<f64>,
    /// Packets in the sketch's window; a source with a bucket is no longer counted there.
    pub estimate: u32,
    /// Packets passed since it got its bucket.
    pub passed: u64,
    /// Packets dropped since then.
    pub dropped: u64,
    /// Bytes offered since then.
    pub bytes: u64,
    /// What was looked up of it since then, where its limit bans on evidence only.
    pub evidence: Option<Evidence>,
    /// What a shadow limit would have dropped of it.
    pub shadow: Option<SourceShadow>,
    /// What this host may use of a limit of the cluster.
    pub share: Option<HeldShare>,
    /// When it got its bucket, ns since boot; 0 without one. Tells whether it is still the same bucket.
    pub since_ns: u64,
    /// The same as wall-clock time.
    pub first_seen: Option<SystemTime>,
    /// Its last packet since then.
    pub last_seen: Option<SystemTime>,
}

/// What a shadow limit would have dropped of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceShadow {
    /// The limit.
    pub tier: Tier,
    /// Packets that it has judged.
    pub packets: u64,
    /// Of those, how many it would have dropped.
    pub would_drop: u64,
}

/// What a bucket may use of a limit of the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldShare {
    /// At present, as a part of the limit.
    pub share: f64,
    /// The least of it, which does not end.
    pub floor: f64,
    /// When it falls to the floor, if it is more.
    pub until: Option<SystemTime>,
}

/// What a bucket counts of its source, since the source got it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Packets passed; below the gate none is counted.
    pub passed: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Bytes offered.
    pub bytes: u64,
    /// When the source got the bucket, ns since boot; tells whether it is still the same one.
    pub since_ns: u64,
}

impl Counts {
    /// Packets offered: passed and dropped.
    pub const fn packets(&self) -> u64 {
        self.passed + self.dropped
    }
}

/// A source with a bucket, as far as sums over many need it.
#[derive(Clone, Copy, Debug)]
// Less than a [`Source`]: a look at a million buckets looks no limit up.
pub struct Member {
    /// Its address and how many bits of it count.
    pub source: IpNet,
    /// As [`Source::class`].
    pub class: Class,
    /// What its bucket counts.
    pub counts: Counts,
    /// When it got its bucket.
    pub first_seen: SystemTime,
    /// Its last packet since then.
    pub last_seen: SystemTime,
}
