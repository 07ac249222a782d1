//! The routes of the cluster's keys.

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};

use super::handlers::{Answer, conflict};
use api::KeysReport;
use api::error::{Failure, exit};
use control::Shared;
use control::cluster::Cluster;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/v1/cluster/keys", get(keys))
        .route("/v1/cluster/keys/rotate", post(rotate))
}

fn cluster(shared: &Shared) -> Result<&Cluster, Failure> {
    shared.cluster().ok_or_else(|| {
        shared.why_no_cluster().unwrap_or_else(|| {
            Failure::new(exit::USAGE, "this host is in no cluster")
                .hint("give [cluster] listen in the configuration, and restart the daemon")
        })
    })
}

async fn keys(State(shared): State<Shared>) -> Answer<KeysReport> {
    Ok(Json(cluster(&shared)?.keys.report()))
}

async fn rotate(State(shared): State<Shared>) -> Answer<KeysReport> {
    let keys = &cluster(&shared)?.keys;
    // What is there before: who asks waits for another number.
    let before = keys.report();
    keys.rotate().await.map_err(conflict)?;
    Ok(Json(before))
}
