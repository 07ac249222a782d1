//! The heaviest prefixes and classes of all hosts.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::super::Cluster;
use super::round::{Found, Round, Search};
use api::error::Failure;
use api::{ClusterGroupEntry, ClusterGroupsReport, GroupEntry};
use cluster::queries::groups::{Groups, merge, union};
use cluster::queries::{Answer, Question};
use cluster::{HostId, Moment};
use model::traffic::{GroupBy, Sort};

/// The `n` heaviest groups of all hosts together.
///
/// # Errors
/// If too many questions are open.
pub async fn groups(
    cluster: &Cluster,
    by: GroupBy,
    n: usize,
    sort: Sort,
) -> Result<ClusterGroupsReport, Failure> {
    let mut search = Search::of(n);
    // Most lists are certain after the first turn. Only close races need longer ones.
    while let Some((wanted, first)) = search.next() {
        let question = Question::Groups { by, sort, n: wanted as u32 };
        let mut round = Round::of(cluster, question, first).await?;
        let named = told(&mut round);
        let (told, bar) = of_all(cluster, sort, &named, &mut round, search.until).await?;
        let list = list(by, n, sort, &round, &named, &told, bar);
        search.take(Found { hosts: named.len(), exact: list.exact, list });
    }
    let (list, took_seconds) = search.list()?;
    Ok(ClusterGroupsReport { took_seconds, ..list })
}

fn told(round: &mut Round) -> BTreeMap<HostId, Groups> {
    round.take(|answer| match answer {
        Answer::Groups(groups) => Some(groups),
        _ => None,
    })
}

/// What each host has of all that any has named, and what a group that is not among it may weigh at most.
async fn of_all(
    cluster: &Cluster,
    sort: Sort,
    named: &BTreeMap<HostId, Groups>,
    round: &mut Round,
    until: Moment,
) -> Result<(BTreeMap<HostId, Groups>, f64), Failure> {
    // Mostly they have told all that they have.
    if named.values().all(|groups| groups.left_out == 0) {
        return Ok((named.clone(), 0.0));
    }
    // The second round asks every host for all that any has named, so that sums are exact.
    let (nets, bar) = union(sort, named);
    let mut points = Round::of(cluster, Question::GroupsOf { nets, sort }, until).await?;
    let told = told(&mut points);
    // What is left out of what a host has named itself is in the bar already.
    let own = |groups: &Groups| Groups { bar: 0.0, ..groups.clone() };
    let told = round.complete(named, told, points, own);
    // Each host may have left out another group, so what they leave out adds up.
    let more: f64 = told.values().map(|groups| groups.bar).sum();
    Ok((told, bar + more))
}

fn list(
    by: GroupBy,
    n: usize,
    sort: Sort,
    round: &Round,
    named: &BTreeMap<HostId, Groups>,
    told: &BTreeMap<HostId, Groups>,
    bar: f64,
) -> ClusterGroupsReport {
    let rows = told.values().map(|groups| groups.rows.as_slice());
    let merged = merge(sort, rows, SystemTime::now());
    let whole = told.values().all(|groups| groups.left_out == 0);
    // A list that is shorter than wanted has no last line that a bar could be compared with.
    let least = n.checked_sub(1).and_then(|last| merged.get(last));
    let exact = whole
        && (bar <= 0.0 || least.is_some_and(|it| it.sums.tally.weight(sort).sorted_by >= bar));
    // A number of groups is only told if all are known: a lower bound would be taken for it.
    let complete = named.values().all(|groups| groups.left_out == 0);
    ClusterGroupsReport {
        by,
        hosts: named.keys().map(|host| round.name(*host)).collect(),
        unanswered: round.unanswered(),
        exact,
        unlisted_at_most: if exact { 0.0 } else { bar },
        known: complete.then_some(merged.len() as u64),
        tracked: named.values().map(|groups| groups.tracked).fold(0, u64::saturating_add),
        took_seconds: 0.0,
        groups: merged
            .into_iter()
            .take(n)
            .map(|merged| ClusterGroupEntry {
                entry: GroupEntry::new(merged.name, &merged.sums),
                hosts: merged.hosts,
            })
            .collect(),
    }
}
