//! One source on all hosts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::Cluster;
use super::super::link::monotonic;
use super::round::{Round, TIMEOUT};
use api::error::Failure;
use api::{ClusterSourceReport, HostSource, SourceSums};
use cluster::queries::{Answer, Question, SourceInfo};
use model::source::SourceState;

/// What all hosts know of the source that `address` belongs to.
pub async fn source(cluster: &Cluster, address: IpAddr) -> Result<ClusterSourceReport, Failure> {
    let until = monotonic().after(TIMEOUT);
    let mut round = Round::of(cluster, Question::Source(address), until).await?;
    let known = round.take(|answer| match answer {
        Answer::Source(known) => Some(known),
        _ => None,
    });
    // All hosts have the same prefix lengths, and this one surely has an answer.
    let own = known.get(&cluster.me).map(|known| known.source);
    let mut hosts: Vec<_> =
        known.iter().flat_map(|(host, known)| of_host(round.name(*host), known)).collect();
    hosts.sort_by(|one, other| (&one.host, one.class).cmp(&(&other.host, other.class)));
    Ok(ClusterSourceReport {
        source: own.unwrap_or_else(|| address.into()),
        sums: sums_of(&hosts),
        hosts,
        unanswered: round.unanswered(),
    })
}

fn of_host(host: String, known: &SourceInfo) -> impl Iterator<Item = HostSource> {
    known.buckets.iter().map(move |held| HostSource {
        host: host.clone(),
        // Most sources have one bucket for all packets. A class in each line would only be noise.
        class: (!held.class.is_any()).then_some(held.class),
        state: held.state,
        limit: held.limit.clone(),
        estimate: held.estimate,
        got: held.got,
        share: held.share.map(|[share, _]| share),
        floor: held.share.map(|[_, floor]| floor),
        listed: known.listed,
    })
}

fn sums_of(hosts: &[HostSource]) -> Vec<SourceSums> {
    let mut sums: BTreeMap<_, SourceSums> = BTreeMap::new();
    for host in hosts {
        let none = || SourceSums { class: host.class, ..SourceSums::default() };
        let sum = sums.entry(host.class).or_insert_with(none);
        // A host that only estimates a light source holds no bucket of it.
        sum.hosts += usize::from(host.state != SourceState::Light);
        sum.got.add(&host.got);
        // Nothing where no host has a share: zero would read as a source that may send nothing.
        if let Some(share) = host.share {
            sum.share = Some(sum.share.unwrap_or_default() + share);
        }
    }
    sums.into_values().collect()
}
