//! The routes of the cluster.

use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::post;

use super::handlers::{Answer, conflict, unreadable};
use super::types::LeaveQuery;
use crate::daemon::Shared;
use crate::error::{Failure, exit};
use crate::report::ClusterLeft;

/// All of them.
pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/v1/cluster/leave", post(leave))
}

async fn leave(
    State(shared): State<Shared>,
    query: Result<Query<LeaveQuery>, QueryRejection>,
) -> Answer<ClusterLeft> {
    let Query(LeaveQuery { seconds }) = query.map_err(unreadable)?;
    let Some(cluster) = shared.cluster() else {
        let none = || {
            Failure::new(exit::NEGATIVE, "this host is in no cluster")
                .hint("`limiter config default` says how to be in one")
        };
        return Err(shared.why_no_cluster().unwrap_or_else(none).into());
    };
    let patience = Duration::from_secs(seconds.clamp(1, LeaveQuery::MOST));
    Ok(Json(cluster.leave(patience).await.map_err(conflict)?))
}
