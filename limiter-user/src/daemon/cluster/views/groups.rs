//! The heaviest prefixes and classes of all hosts.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::fleet::{FIRST, PATIENCE, Round};
use crate::cluster::HostId;
use crate::cluster::link::task::monotonic;
use crate::cluster::views::groups::{Groups, merge, union};
use crate::cluster::views::{Answer, MOST_PLACES, Question, top};
use crate::daemon::cluster::Cluster;
use crate::error::{Failure, exit};
use crate::report::{By, ClusterGroupEntry, ClusterGroupsReport, GroupEntry, Sort};

/// The `n` heaviest groups of all hosts together.
///
/// # Errors
/// If too many questions are open.
pub async fn groups(
    cluster: &Cluster,
    by: By,
    n: usize,
    sort: Sort,
) -> Result<ClusterGroupsReport, Failure> {
    let began = monotonic();
    let until = began.after(PATIENCE);
    let mut found: Option<ClusterGroupsReport> = None;
    for wanted in top::rounds(n) {
        let first = began.after(FIRST).max(monotonic().after(PATIENCE / 4)).min(until);
        let question = Question::Groups { by, sort, n: wanted as u32 };
        let mut round = Round::of(cluster, question, first).await?;
        let named = told(&mut round);
        let (told, bar) = of_all(cluster, sort, &named, &mut round, until).await?;
        let better = list(by, n, sort, &round, &named, &told, bar);
        // A host that was not heard this time may have been before.
        if found.as_ref().is_none_or(|former| former.hosts.len() <= better.hosts.len()) {
            found = Some(better);
        }
        let exact = found.as_ref().is_some_and(|found| found.exact);
        if exact || wanted >= MOST_PLACES || until.since(monotonic()) < PATIENCE / 4 {
            break;
        }
    }
    let took_seconds = monotonic().since(began).as_secs_f64();
    let none = || Failure::new(exit::USAGE, "no list is that long");
    found.map(|found| ClusterGroupsReport { took_seconds, ..found }).ok_or_else(none)
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
    until: crate::cluster::Moment,
) -> Result<(BTreeMap<HostId, Groups>, f64), Failure> {
    // Mostly they have told all that they have.
    if named.values().all(|groups| groups.left_out == 0) {
        return Ok((named.clone(), 0.0));
    }
    let (nets, bar) = union(sort, named, SystemTime::now());
    let mut points = Round::of(cluster, Question::GroupsOf { nets, sort }, until).await?;
    let mut told = told(&mut points);
    // A host that was not heard at first is not asked for what it alone has: it is left out.
    told.retain(|host, _| named.contains_key(host));
    for (host, groups) in named {
        if let std::collections::btree_map::Entry::Vacant(place) = told.entry(*host) {
            let why = points.unanswered.remove(host).unwrap_or_default();
            let said = format!("only its own heaviest are counted: {why}");
            round.unanswered.insert(*host, said);
            // What is left out of it is in the bar already.
            place.insert(Groups { bar: 0.0, ..groups.clone() });
        }
    }
    let more: f64 = told.values().map(|groups| groups.bar).sum();
    Ok((told, bar + more))
}

fn list(
    by: By,
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
    let least = n.checked_sub(1).and_then(|last| merged.get(last));
    let exact = whole && (bar <= 0.0 || least.is_some_and(|it| it.sums.weight(sort) >= bar));
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
