//! The heaviest sources of all hosts.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::super::Cluster;
use super::round::{Found, Round, Search};
use api::error::Failure;
use api::{ClusterTopEntry, ClusterTopReport, TopEntry, moment};
use cluster::HostId;
use cluster::queries::{Answer, Candidates, Counted, Question, SourceClass, groups, top};
use model::traffic::{Sort, Totals};

/// The `n` heaviest sources of all hosts together.
///
/// # Errors
/// If too many questions are open.
pub async fn top(
    cluster: &Cluster,
    n: usize,
    sort: Sort,
    live: bool,
) -> Result<ClusterTopReport, Failure> {
    let mut search = Search::of(n);
    while let Some((wanted, first)) = search.next() {
        let question = Question::Candidates { sort, n: wanted as u32, live };
        let mut round = Round::of(cluster, question, first).await?;
        let named = round.take(|answer| match answer {
            Answer::Candidates(candidates) => Some(candidates),
            _ => None,
        });
        // All hosts are asked for all named sources: one that is light here may be heavy in sum.
        let union = top::union(sort, wanted, &named);
        let points = Round::of(cluster, Question::Points(union.places), search.until).await?;
        let list = sums(cluster, sort, n, round, points, &named, union.bar).await?;
        search.take(Found { hosts: named.len(), exact: list.exact, list });
    }
    let (list, took_seconds) = search.list()?;
    Ok(ClusterTopReport { took_seconds, ..list })
}

/// The list, from what hosts have named and what they have counted.
async fn sums(
    cluster: &Cluster,
    sort: Sort,
    n: usize,
    mut round: Round,
    mut points: Round,
    named: &BTreeMap<HostId, Candidates>,
    bar: f64,
) -> Result<ClusterTopReport, Failure> {
    let counted = points.take(|answer| match answer {
        Answer::Points(counted) => Some(counted),
        _ => None,
    });
    let counted = round.complete(named, counted, points, |candidates| candidates.sources.clone());
    let merged = top::merge(sort, &counted);
    let exact = top::is_exact(sort, n, &merged, bar);
    // Cut before the core is asked: to look up limits of sources that nobody sees would take its
    // time.
    let listed: Vec<_> = merged.into_iter().take(n).collect();
    let entries = cluster.shared.with(move |core| {
        let entries = listed.into_iter().map(|merged| {
            let limit = crate::views::limit_at(&core.rules, &merged.sum.place);
            // Hosts may have limits of their own. The list shows this host's, and marks where
            // another one differs.
            let same = limit.as_ref().map_or(0, |(_, number)| *number) == merged.sum.limit;
            ClusterTopEntry {
                entry: entry(&merged.sum, limit.map(|(limit, _)| limit)),
                hosts: merged.hosts,
                limit_differs: merged.differs || !same,
            }
        });
        Ok(entries.collect())
    });
    Ok(ClusterTopReport {
        sources: entries.await?,
        hosts: named.keys().map(|host| round.name(*host)).collect(),
        unanswered: round.unanswered(),
        exact,
        // The certificate: without it a list that is not exact would look like one that is.
        unlisted_at_most: if exact { 0.0 } else { bar },
        tracked: named.values().map(|candidates| candidates.tracked).sum(),
        totals: named.values().map(|candidates| candidates.totals).fold(None, add),
        took_seconds: 0.0,
    })
}

fn add(sum: Option<Totals>, more: Option<Totals>) -> Option<Totals> {
    let (Some(sum), Some(more)) = (sum, more) else { return sum.or(more) };
    Some(Totals {
        passed_pps: sum.passed_pps + more.passed_pps,
        dropped_pps: sum.dropped_pps + more.dropped_pps,
        passed_bps: sum.passed_bps + more.passed_bps,
        dropped_bps: sum.dropped_bps + more.dropped_bps,
        // The shortest: a rate over all hosts is only as steady as its weakest part.
        seconds: sum.seconds.min(more.seconds),
    })
}

fn entry(sum: &Counted, limit: Option<api::LimitReport>) -> TopEntry {
    let at = |ms| moment(groups::moment(ms, SystemTime::now()));
    let SourceClass { source, class } = sum.place;
    TopEntry {
        group: false,
        source,
        class: (!class.is_any()).then_some(class),
        state: sum.state,
        limit,
        passed: sum.passed,
        dropped: sum.dropped,
        bytes: sum.bytes,
        uncounted: sum.uncounted,
        first_seen: at(sum.first_seen_ms),
        last_seen: at(sum.last_seen_ms),
        pps: sum.pps,
        bps: sum.bps,
        pps_seconds: sum.seconds,
        // Several hosts have buckets of it.
        since_ns: 0,
    }
}
