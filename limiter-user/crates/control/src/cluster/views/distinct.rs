//! How many sources all hosts have seen.

use std::collections::BTreeMap;

use limiter_common::hll::{Ranks, WINDOW_SHIFT};

use super::super::Cluster;
use super::super::link::monotonic;
use super::round::{Round, TIMEOUT};
use api::error::Failure;
use api::{ClusterDistinctReport, DistinctGroup, DistinctHost};
use cluster::queries::{Answer, Distinct, Question, distinct};
use cluster::{HostId, Moment};

/// How many distinct sources all hosts have seen.
pub async fn distinct(cluster: &Cluster) -> Result<ClusterDistinctReport, Failure> {
    distinct_until(cluster, monotonic().after(TIMEOUT)).await
}

pub(super) async fn distinct_until(
    cluster: &Cluster,
    until: Moment,
) -> Result<ClusterDistinctReport, Failure> {
    let mut round = Round::of(cluster, Question::Distinct, until).await?;
    let told = round.take(|answer| match answer {
        Answer::Distinct(distinct) => Some(distinct),
        _ => None,
    });
    let mut registers: BTreeMap<HostId, Distinct> = BTreeMap::new();
    for (host, distinct) in told {
        match distinct {
            Some(distinct) => drop(registers.insert(host, distinct)),
            // Named as missing: to count it as empty would make the sum look whole.
            None => drop(round.unanswered.insert(host, "it does not count sources".into())),
        }
    }
    // Hosts whose windows or hashes differ cannot be merged, and form groups of their own.
    let (groups, broken) = distinct::merge(&registers);
    for host in broken {
        round.unanswered.insert(host, "its registers make no sense".into());
    }
    let groups = groups.into_iter().map(|group| DistinctGroup {
        hosts: group
            .hosts
            .iter()
            .map(|(host, sources)| DistinctHost { host: round.name(*host), sources: *sources })
            .collect(),
        distinct: model::Distinct {
            sources: group.sources,
            standard_error: Ranks::STANDARD_ERROR,
            window_s: (1_u64 << WINDOW_SHIFT) as f64 / 1e9,
        },
        windows_apart: group.apart,
    });
    Ok(ClusterDistinctReport { groups: groups.collect(), unanswered: round.unanswered() })
}
