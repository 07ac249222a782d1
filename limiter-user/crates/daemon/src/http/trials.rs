//! The routes of limits that are tried.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};

use super::handlers::{Answer, conflict, unreadable};
use api::error::{Failure, exit};
use api::requests::{TopQuery, TrialQuery, TrialRequest, TrialsQuery};
use api::{TrialStarted, TrialStopped, TrialsReport};
use control::Shared;
use model::Target;

pub(super) async fn start(
    State(shared): State<Shared>,
    request: Result<Json<TrialRequest>, JsonRejection>,
) -> Answer<TrialStarted> {
    let Json(request) = request.map_err(unreadable)?;
    let limit = request.limit()?;
    Ok(Json(shared.with(move |core| core.start_trial(&limit)).await?))
}

pub(super) async fn stop(
    State(shared): State<Shared>,
    query: Result<Query<TrialQuery>, QueryRejection>,
) -> Answer<TrialStopped> {
    let Query(query) = query.map_err(unreadable)?;
    let target: Target = query.target.parse().map_err(Failure::from)?;
    let stopped = shared.with(move |core| core.stop_trial(&target)).await;
    Ok(Json(stopped.map_err(conflict)?))
}

pub(super) async fn trials(
    State(shared): State<Shared>,
    query: Result<Query<TrialsQuery>, QueryRejection>,
) -> Answer<TrialsReport> {
    let Query(TrialsQuery { n }) = query.map_err(unreadable)?;
    if n > TopQuery::MAX {
        let failure = Failure::new(exit::USAGE, format!("{n} sources cannot be listed"));
        return Err(failure.hint(format!("ask for {} at the most", TopQuery::MAX)).into());
    }
    Ok(Json(shared.with(move |core| Ok(core.trials(n))).await?))
}
