//! What is measured: who keeps limits, under which load, and what happens meanwhile. Hosts are told in these words.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// Hosts with a load.
pub(crate) const HOSTS: usize = 3;
/// Decisions in flight on each host.
pub(crate) const TASKS: u32 = 64;
/// The domain of all limits, and its key in the store of when that began to know them.
pub(crate) const DOMAIN: &str = "modes";
pub(crate) const SINCE: &str = "limiter:{modes}:since";
/// Of how many keys a host keeps the states that each has alone.
pub(crate) const KEYS: u64 = 1_100_000;
/// Of how many keys it keeps what it knows of others' limits. Their table is of sizes that are powers of two.
pub(crate) const CLUSTER_KEYS: u64 = 1 << 21;

/// Who keeps a limit: the scopes of `limiter-serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    Host,
    Cluster,
    Synced,
    Strict,
}

impl Mode {
    pub(crate) const ALL: [Self; 4] = [Self::Host, Self::Cluster, Self::Synced, Self::Strict];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cluster => "cluster",
            Self::Synced => "synced",
            Self::Strict => "strict",
        }
    }

    pub(crate) const fn needs_store(self) -> bool {
        matches!(self, Self::Synced | Self::Strict)
    }

    /// The rule with one of the limits.
    pub(crate) fn rule(self, limit: Limit) -> String {
        format!("{}-{}", self.name(), limit.name)
    }
}

/// A limit that each mode has as a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    name: &'static str,
    unit: &'static str,
    requests: u64,
    pub(crate) burst: f64,
    /// Units a second.
    pub(crate) rate: f64,
}

/// Speed: nothing is denied, and each decision is charged in all modes, also at a host's floor in the cluster.
pub(crate) const WIDE: Limit =
    Limit { name: "wide", unit: "second", requests: 10_000_000, burst: 1e7, rate: 1e7 };
/// The judge: a limit that keys go beyond. A small burst, so that a second of twice the rate is seen.
pub(crate) const TIGHT: Limit =
    Limit { name: "tight", unit: "second", requests: 100, burst: 30.0, rate: 100.0 };
/// The same for one key that is asked about everywhere.
pub(crate) const HOT: Limit =
    Limit { name: "hot", unit: "second", requests: 400, burst: 100.0, rate: 400.0 };

/// The file of rules.
pub(crate) fn rules(on_error: &str) -> String {
    let mut text = format!("domain: {DOMAIN}\ndescriptors:\n");
    for mode in Mode::ALL {
        // The cluster cannot fall back to itself.
        let on_error = match mode {
            Mode::Host => String::new(),
            Mode::Cluster => ", on_error: floor".to_owned(),
            Mode::Synced | Mode::Strict => format!(", on_error: {on_error}"),
        };
        for limit in [WIDE, TIGHT, HOT] {
            let (rule, scope) = (mode.rule(limit), mode.name());
            let Limit { unit, requests, burst, .. } = limit;
            text += &format!(
                "  - key: {rule}\n    rate_limit: {{ unit: {unit}, requests_per_unit: {requests}, burst: {burst}, \
                 scope: {scope}{on_error} }}\n"
            );
        }
    }
    text
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Load {
    /// 1,000 keys on all hosts.
    Steady,
    /// The same, and ten times as much from a moment on.
    Step,
    /// The same, and only one host is asked.
    OneHot,
    /// One key on all hosts.
    AllHot,
    /// A million keys on all hosts.
    Million,
}

impl Load {
    pub(crate) const ALL: [Self; 5] =
        [Self::Steady, Self::Step, Self::OneHot, Self::AllHot, Self::Million];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Step => "step",
            Self::OneHot => "one-hot",
            Self::AllHot => "all-hot",
            Self::Million => "million",
        }
    }

    /// Hosts that are asked.
    pub(crate) const fn hosts(self) -> usize {
        if matches!(self, Self::OneHot) { 1 } else { HOSTS }
    }

    /// Keys that are asked about.
    pub(crate) const fn keys(self) -> u64 {
        match self {
            Self::AllHot => 1,
            Self::Million => 1_000_000,
            Self::Steady | Self::Step | Self::OneHot => 1_000,
        }
    }

    /// Keys that go beyond their limit while it is judged.
    pub(crate) const fn tracked(self) -> u32 {
        if matches!(self, Self::AllHot) { 1 } else { 5 }
    }

    pub(crate) const fn limit(self) -> Limit {
        if matches!(self, Self::AllHot) { HOT } else { TIGHT }
    }

    /// Of the decisions about keys that go beyond their limit, so many a second on each host that is asked: more than a
    /// host alone admits.
    pub(crate) fn demand(self) -> f64 {
        match self {
            Self::AllHot => 600.0,
            _ => 200.0 * f64::from(self.tracked()),
        }
    }

    /// The part of all decisions that is about such keys.
    pub(crate) const fn tracked_part(self) -> f64 {
        if matches!(self, Self::AllHot) { 1.0 } else { 2.0 / 3.0 }
    }
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    None,
    /// The store answers nothing, as its process is stopped.
    Paused,
    /// The store is killed, and started again without anything that it knew.
    Killed,
    /// The store's primary is killed, and its replica takes over.
    FailedOver,
    /// Each answer of the store comes 50 ms later.
    Slow,
    /// One host hears nothing of the store; in the mode `cluster`, nothing of the other hosts.
    Partitioned,
    /// The daemon of one host is killed, and started again.
    DaemonKilled,
}

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Paused => "paused",
            Self::Killed => "killed",
            Self::FailedOver => "failed-over",
            Self::Slow => "slow",
            Self::Partitioned => "partitioned",
            Self::DaemonKilled => "daemon-killed",
        }
    }
}

/// A host's process, by its command line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Where it gets its jobs.
    pub(crate) jobs: PathBuf,
    /// What `limiter-serve` is started with.
    pub(crate) arguments: Vec<String>,
    /// The store, for who asks it directly.
    pub(crate) store: String,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Asked {
    /// `limiter-serve`.
    Limiter,
    /// The store, by the same script, a call for each decision.
    Script(Connections),
    /// The store, for a sign of life.
    Ping(Connections),
}

/// How a host's tasks reach the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Connections {
    /// All by one connection, which has many calls under way.
    Shared,
    /// Each by its own.
    Each,
}

impl Connections {
    pub(crate) const ALL: [Self; 2] = [Self::Shared, Self::Each];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Each => "own",
        }
    }
}

/// When decisions begin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Pace {
    /// As soon as the last one of the task has ended.
    Closed,
    /// So many a second on this host, from so long after the begin on.
    Open(Vec<(Duration, f64)>),
}

/// What a host does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Asks about a key until the answers are those of who keeps the limits.
    Settle { rule: String, key: String },
    /// Asks as a load does.
    Load(Asking),
}

/// A load, as one host sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Asking {
    pub(crate) asked: Asked,
    pub(crate) rule: String,
    /// ns of the monotonic clock, which all processes share.
    pub(crate) begin: u64,
    pub(crate) length: Duration,
    pub(crate) tasks: u32,
    pub(crate) pace: Pace,
    /// Keys that are judged, `t<run>-0` and so on: no other load has them.
    pub(crate) tracked: u32,
    pub(crate) tracked_part: f64,
    pub(crate) run: u32,
    /// Keys that are not, `k0` and so on.
    pub(crate) others: u64,
    /// Where what was answered is written.
    pub(crate) file: PathBuf,
}
