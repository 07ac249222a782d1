//! `/v1/limits` and `/v1/limits/import`

use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::{Json, RequestExt};
use http_body_util::BodyExt;

use super::answer::{Answer, Parsed, Refusal, answer, change, conflict, unreadable};
use api::error::Failure;
use api::requests::{ChangeQuery, TargetQuery};
use api::{LimitList, LimitRemoved, LimitSet, LimitsImported};
use control::Host;
use control::rules::limits;
use model::{LimitInput, Target, list::Reader};

pub(super) async fn list(State(host): State<Host>) -> Answer<LimitList> {
    answer(&host, |core| Ok(limits::list(&core.rules))).await
}

pub(super) async fn set(
    State(host): State<Host>,
    Parsed(Query(query)): Parsed<Query<ChangeQuery>>,
    Parsed(Json(request)): Parsed<Json<LimitInput>>,
) -> Answer<LimitSet> {
    // Again, though the command has done so: anybody may write to the socket.
    let limit = request.limit().map_err(Failure::from)?;
    change(&host, move |core| limits::set(&mut core.rules, &limit, &query.how())).await
}

pub(super) async fn import(
    State(host): State<Host>,
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
    let limits = reader.finish().map_err(Failure::from)?;
    change(&host, move |core| limits::import(&mut core.rules, limits, &query.how())).await
}

pub(super) async fn unset(
    State(host): State<Host>,
    Parsed(Query(query)): Parsed<Query<TargetQuery>>,
) -> Answer<LimitRemoved> {
    let target: Target = query.target.parse().map_err(Failure::from)?;
    let removed =
        host.with(move |core| limits::unset(&mut core.rules, &target, &query.how())).await;
    let removed = removed.map_err(conflict)?;
    removed.map(Json).ok_or_else(|| Refusal(StatusCode::NOT_FOUND, limits::no_such_limit(&target)))
}
