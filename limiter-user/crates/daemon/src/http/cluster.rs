//! `/v1/cluster/…`: founding and leaving a cluster, its keys, and what its hosts know together.

use std::net::IpAddr;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};

use super::answer::{Answer, Parsed, Refusal, conflict};
use super::top::{check_count, not_listed, not_summed};
use ::cluster::escrow::Forget;
use ::cluster::queries::MAX_PLACES;
use api::error::{Failure, exit};
use api::requests::{ForgetHost, GroupsQuery, LeaveQuery, TopQuery};
use api::{
    ClusterDistinctReport, ClusterForgotten, ClusterFounded, ClusterGroupsReport, ClusterLeft,
    ClusterSourceReport, ClusterTopReport, KeysReport, PeersReport, SharesAsked, SharesTold,
};
use control::Host;
use control::cluster::{Cluster, views};
use model::traffic::GroupBy;

/// The cluster. Where there is none the failure says why it has not started, or has `code` and `hint` where this
/// host is to be in none.
async fn find<'a>(host: &'a Host, code: u8, hint: &str) -> Result<&'a Cluster, Failure> {
    if let Some(cluster) = host.cluster() {
        return Ok(cluster);
    }
    let none = || Failure::new(code, "this host is in no cluster").hint(hint);
    Err(host.why_no_cluster().await.unwrap_or_else(none))
}

async fn to_change(host: &Host) -> Result<&Cluster, Failure> {
    find(host, exit::NEGATIVE, "`limiter config default` says how to be in one").await
}

async fn with_keys(host: &Host) -> Result<&Cluster, Failure> {
    let hint = "give [cluster] listen in the configuration, and restart the daemon";
    find(host, exit::USAGE, hint).await
}

async fn to_query(host: &Host) -> Result<&Cluster, Refusal> {
    let hint = "give it one: see [cluster] in `limiter config default`";
    find(host, exit::NEGATIVE, hint).await.map_err(conflict)
}

pub(super) async fn init(State(host): State<Host>) -> Answer<ClusterFounded> {
    to_change(&host).await?.init().await.map(Json).map_err(conflict)
}

pub(super) async fn leave(
    State(host): State<Host>,
    Parsed(Query(LeaveQuery { seconds })): Parsed<Query<LeaveQuery>>,
) -> Answer<ClusterLeft> {
    // Bounded here as well: others than our own client may ask.
    let timeout = Duration::from_secs(seconds.clamp(1, LeaveQuery::MAX));
    to_change(&host).await?.leave(timeout).await.map(Json).map_err(conflict)
}

pub(super) async fn forget(
    State(host): State<Host>,
    Parsed(Json(ForgetHost { name, now, dry_run })): Parsed<Json<ForgetHost>>,
) -> Answer<ClusterForgotten> {
    let how = if now { Forget::Now } else { Forget::AfterLease };
    let cluster = to_change(&host).await?;
    cluster.forget(&name, how, dry_run).await.map(Json).map_err(conflict)
}

pub(super) async fn shares(
    State(host): State<Host>,
    Parsed(Json(asked)): Parsed<Json<SharesAsked>>,
) -> Answer<SharesTold> {
    to_query(&host).await?.shares_of(asked).await.map(Json).map_err(conflict)
}

pub(super) async fn keys(State(host): State<Host>) -> Answer<KeysReport> {
    Ok(Json(with_keys(&host).await?.keys.report()))
}

pub(super) async fn rotate(State(host): State<Host>) -> Answer<KeysReport> {
    let keys = &with_keys(&host).await?.keys;
    // The answer is what was there before: the client waits until the number is another one. Read afterwards, it
    // could be the new one already.
    let before = keys.report();
    keys.rotate().await.map_err(conflict)?;
    Ok(Json(before))
}

pub(super) async fn peers(State(host): State<Host>) -> Answer<PeersReport> {
    Ok(Json(views::peers(to_query(&host).await?).await?))
}

pub(super) async fn top(
    State(host): State<Host>,
    Parsed(Query(TopQuery { by, n, sort, live })): Parsed<Query<TopQuery>>,
) -> Answer<ClusterTopReport> {
    check_count(n)?;
    if by != GroupBy::Source {
        return Err(not_listed(by, "ask for by=source, or ask each host by itself").into());
    }
    Ok(Json(views::top(to_query(&host).await?, n.min(MAX_PLACES), sort, live).await?))
}

pub(super) async fn groups(
    State(host): State<Host>,
    Parsed(Query(GroupsQuery { by, n, sort })): Parsed<Query<GroupsQuery>>,
) -> Answer<ClusterGroupsReport> {
    check_count(n)?;
    if !matches!(by, GroupBy::Prefix | GroupBy::Class) {
        return Err(not_summed(by).into());
    }
    Ok(Json(views::groups(to_query(&host).await?, by, n.min(MAX_PLACES), sort).await?))
}

pub(super) async fn distinct(State(host): State<Host>) -> Answer<ClusterDistinctReport> {
    Ok(Json(views::distinct(to_query(&host).await?).await?))
}

pub(super) async fn source(
    State(host): State<Host>,
    Parsed(Path(address)): Parsed<Path<IpAddr>>,
) -> Answer<ClusterSourceReport> {
    Ok(Json(views::source(to_query(&host).await?, address).await?))
}
