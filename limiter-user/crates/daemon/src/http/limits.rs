//! `/v1/limits` and `/v1/limits/import`

use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::{Json, RequestExt};
use http_body_util::BodyExt;

use super::answer::{Answer, Parsed, Refusal, answer, conflict, unreadable};
use api::error::Failure;
use api::requests::{ChangeQuery, TargetQuery};
use api::{LimitList, LimitRemoved, LimitSet, LimitsImported};
use control::{Shared, no_such_limit};
use model::{LimitInput, Target, list::Reader};

pub(super) async fn list(State(shared): State<Shared>) -> Answer<LimitList> {
    answer(&shared, |core| Ok(core.limits())).await
}

pub(super) async fn set(
    State(shared): State<Shared>,
    Parsed(Query(query)): Parsed<Query<ChangeQuery>>,
    Parsed(Json(request)): Parsed<Json<LimitInput>>,
) -> Answer<LimitSet> {
    // Again, though the command has done so: anybody may write to the socket.
    let limit = request.limit().map_err(Failure::from)?;
    answer(&shared, move |core| core.set(&limit, &query.how())).await
}

pub(super) async fn import(
    State(shared): State<Shared>,
    Parsed(Query(query)): Parsed<Query<ChangeQuery>>,
    request: Request,
) -> Answer<LimitsImported> {
    // Read as it comes, so that a long list is never in memory as text.
    let mut body = request.into_limited_body();
    let mut reader = Reader::default();
    while let Some(frame) = body.frame().await {
        if let Ok(text) = frame.map_err(unreadable)?.into_data() {
            reader.push(&text).map_err(Failure::from)?;
        }
    }
    answer(&shared, move |core| core.import(reader.finish()?, &query.how())).await
}

pub(super) async fn unset(
    State(shared): State<Shared>,
    Parsed(Query(query)): Parsed<Query<TargetQuery>>,
) -> Answer<LimitRemoved> {
    let target: Target = query.target.parse().map_err(Failure::from)?;
    let removed = shared.with(move |core| core.unset(&target, &query.how())).await;
    let removed = removed.map_err(conflict)?;
    // 404 and not a success: a target that was mistyped would seem to be unlimited now.
    removed.map(Json).ok_or_else(|| Refusal(StatusCode::NOT_FOUND, no_such_limit(&target)))
}
