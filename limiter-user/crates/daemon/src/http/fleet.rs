//! What the hosts of a cluster know together.

use std::net::IpAddr;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::routing::get;
use axum::{Json, Router};

use super::handlers::{Answer, conflict, unreadable};
use super::{Refusal, top};
use api::error::{Failure, exit};
use api::requests::{GroupsQuery, TopQuery};
use api::{
    ClusterDistinctReport, ClusterGroupsReport, ClusterSourceReport, ClusterTopReport, PeersReport,
};
use cluster::views::MAX_PLACES;
use control::Shared;
use control::cluster::{Cluster, views};
use model::traffic::GroupBy;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/v1/cluster/peers", get(peers))
        .route("/v1/cluster/top", get(heaviest))
        .route("/v1/cluster/groups", get(groups))
        .route("/v1/cluster/distinct", get(distinct))
        .route("/v1/cluster/sources/{address}", get(source))
}

/// The cluster that the host is in.
fn cluster(shared: &Shared) -> Result<&Cluster, Refusal> {
    shared.cluster().ok_or_else(|| {
        let none = || {
            Failure::new(exit::NEGATIVE, "this host is in no cluster")
                .hint("give it one: see [cluster] in `limiter config default`")
        };
        conflict(shared.why_no_cluster().unwrap_or_else(none))
    })
}

async fn peers(State(shared): State<Shared>) -> Answer<PeersReport> {
    Ok(Json(views::peers(cluster(&shared)?).await?))
}

async fn heaviest(
    State(shared): State<Shared>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Answer<ClusterTopReport> {
    let Query(TopQuery { n, sort, live }) = query.map_err(unreadable)?;
    top::check(n)?;
    Ok(Json(views::top(cluster(&shared)?, n.min(MAX_PLACES), sort, live).await?))
}

async fn groups(
    State(shared): State<Shared>,
    query: Result<Query<GroupsQuery>, QueryRejection>,
) -> Answer<ClusterGroupsReport> {
    let Query(GroupsQuery { by, n, sort }) = query.map_err(unreadable)?;
    top::check(n)?;
    if !matches!(by, GroupBy::Prefix | GroupBy::Class) {
        return Err(top::not_summed(by).into());
    }
    Ok(Json(views::groups(cluster(&shared)?, by, n.min(MAX_PLACES), sort).await?))
}

async fn distinct(State(shared): State<Shared>) -> Answer<ClusterDistinctReport> {
    Ok(Json(views::distinct(cluster(&shared)?).await?))
}

async fn source(
    State(shared): State<Shared>,
    address: Result<Path<IpAddr>, PathRejection>,
) -> Answer<ClusterSourceReport> {
    let Path(address) = address.map_err(unreadable)?;
    Ok(Json(views::source(cluster(&shared)?, address).await?))
}
