//! `/v1/cluster/…`: founding and leaving a cluster, its keys, and what its hosts know together.

use std::net::IpAddr;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};

use super::answer::{Answer, Parsed, Refusal, conflict};
use super::top::{check_count, not_summed};
use ::cluster::queries::MAX_PLACES;
use api::error::{Failure, exit};
use api::requests::{GroupsQuery, LeaveQuery, TopQuery};
use api::{
    ClusterDistinctReport, ClusterFounded, ClusterGroupsReport, ClusterLeft, ClusterSourceReport,
    ClusterTopReport, KeysReport, PeersReport,
};
use control::Shared;
use control::cluster::{Cluster, views};
use model::traffic::GroupBy;

/// The cluster. Where there is none the failure says why it has not started, or has `code` and `hint` where this
/// host is to be in none.
fn find<'a>(shared: &'a Shared, code: u8, hint: &str) -> Result<&'a Cluster, Failure> {
    let none = || Failure::new(code, "this host is in no cluster").hint(hint);
    shared.cluster().ok_or_else(|| shared.why_no_cluster().unwrap_or_else(none))
}

fn to_change(shared: &Shared) -> Result<&Cluster, Failure> {
    find(shared, exit::NEGATIVE, "`limiter config default` says how to be in one")
}

fn with_keys(shared: &Shared) -> Result<&Cluster, Failure> {
    let hint = "give [cluster] listen in the configuration, and restart the daemon";
    find(shared, exit::USAGE, hint)
}

fn to_query(shared: &Shared) -> Result<&Cluster, Refusal> {
    let hint = "give it one: see [cluster] in `limiter config default`";
    find(shared, exit::NEGATIVE, hint).map_err(conflict)
}

pub(super) async fn init(State(shared): State<Shared>) -> Answer<ClusterFounded> {
    to_change(&shared)?.init().await.map(Json).map_err(conflict)
}

pub(super) async fn leave(
    State(shared): State<Shared>,
    Parsed(Query(LeaveQuery { seconds })): Parsed<Query<LeaveQuery>>,
) -> Answer<ClusterLeft> {
    // Bounded here as well: others than our own client may ask.
    let timeout = Duration::from_secs(seconds.clamp(1, LeaveQuery::MAX));
    to_change(&shared)?.leave(timeout).await.map(Json).map_err(conflict)
}

pub(super) async fn keys(State(shared): State<Shared>) -> Answer<KeysReport> {
    Ok(Json(with_keys(&shared)?.keys.report()))
}

pub(super) async fn rotate(State(shared): State<Shared>) -> Answer<KeysReport> {
    let keys = &with_keys(&shared)?.keys;
    // The answer is what was there before: the client waits until the number is another one. Read afterwards, it
    // could be the new one already.
    let before = keys.report();
    keys.rotate().await.map_err(conflict)?;
    Ok(Json(before))
}

pub(super) async fn peers(State(shared): State<Shared>) -> Answer<PeersReport> {
    Ok(Json(views::peers(to_query(&shared)?).await?))
}

pub(super) async fn top(
    State(shared): State<Shared>,
    Parsed(Query(TopQuery { n, sort, live })): Parsed<Query<TopQuery>>,
) -> Answer<ClusterTopReport> {
    check_count(n)?;
    // More than that no host may ask another one for at once.
    Ok(Json(views::top(to_query(&shared)?, n.min(MAX_PLACES), sort, live).await?))
}

pub(super) async fn groups(
    State(shared): State<Shared>,
    Parsed(Query(GroupsQuery { by, n, sort })): Parsed<Query<GroupsQuery>>,
) -> Answer<ClusterGroupsReport> {
    check_count(n)?;
    if !matches!(by, GroupBy::Prefix | GroupBy::Class) {
        return Err(not_summed(by).into());
    }
    Ok(Json(views::groups(to_query(&shared)?, by, n.min(MAX_PLACES), sort).await?))
}

pub(super) async fn distinct(State(shared): State<Shared>) -> Answer<ClusterDistinctReport> {
    Ok(Json(views::distinct(to_query(&shared)?).await?))
}

pub(super) async fn source(
    State(shared): State<Shared>,
    Parsed(Path(address)): Parsed<Path<IpAddr>>,
) -> Answer<ClusterSourceReport> {
    Ok(Json(views::source(to_query(&shared)?, address).await?))
}
