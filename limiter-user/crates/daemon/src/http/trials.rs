//! `/v1/trials`: limits that are tried.

use axum::Json;
use axum::extract::{Query, State};

use super::answer::{Answer, Parsed, answer, answer_or_conflict};
use api::error::{Failure, exit};
use api::requests::{TopQuery, TrialQuery, TrialRequest, TrialsQuery};
use api::{TrialStarted, TrialStopped, TrialsReport};
use control::Shared;
use model::Target;

pub(super) async fn start(
    State(shared): State<Shared>,
    Parsed(Json(request)): Parsed<Json<TrialRequest>>,
) -> Answer<TrialStarted> {
    let limit = request.limit()?;
    answer(&shared, move |core| core.start_trial(&limit)).await
}

pub(super) async fn stop(
    State(shared): State<Shared>,
    Parsed(Query(query)): Parsed<Query<TrialQuery>>,
) -> Answer<TrialStopped> {
    let target: Target = query.target.parse().map_err(Failure::from)?;
    answer_or_conflict(&shared, move |core| core.stop_trial(&target)).await
}

pub(super) async fn list(
    State(shared): State<Shared>,
    Parsed(Query(TrialsQuery { n })): Parsed<Query<TrialsQuery>>,
) -> Answer<TrialsReport> {
    // As `top::check_count`, but none of the sources is an answer too: the trials themselves.
    if n > TopQuery::MAX {
        let failure = Failure::new(exit::USAGE, format!("{n} sources cannot be listed"));
        return Err(failure.hint(format!("ask for {} at the most", TopQuery::MAX)).into());
    }
    answer(&shared, move |core| Ok(core.trials(n))).await
}
