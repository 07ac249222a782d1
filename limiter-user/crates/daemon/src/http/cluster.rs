//! The routes of the cluster.

use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::post;

use super::handlers::{Answer, conflict, unreadable};
use api::error::{Failure, exit};
use api::requests::LeaveQuery;
use api::{ClusterFounded, ClusterLeft};
use control::Shared;
use control::cluster::Cluster;

/// All of them.
pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/v1/cluster/init", post(init)).route("/v1/cluster/leave", post(leave))
}

/// The cluster that this host is to be in.
fn cluster_of(shared: &Shared) -> Result<&Cluster, Failure> {
    let none = || {
        Failure::new(exit::NEGATIVE, "this host is in no cluster")
            .hint("`limiter config default` says how to be in one")
    };
    shared.cluster().ok_or_else(|| shared.why_no_cluster().unwrap_or_else(none))
}

async fn init(State(shared): State<Shared>) -> Answer<ClusterFounded> {
    Ok(Json(cluster_of(&shared)?.init().await.map_err(conflict)?))
}

async fn leave(
    State(shared): State<Shared>,
    query: Result<Query<LeaveQuery>, QueryRejection>,
) -> Answer<ClusterLeft> {
    let Query(LeaveQuery { seconds }) = query.map_err(unreadable)?;
    let cluster = cluster_of(&shared)?;
    let patience = Duration::from_secs(seconds.clamp(1, LeaveQuery::MAX));
    Ok(Json(cluster.leave(patience).await.map_err(conflict)?))
}
