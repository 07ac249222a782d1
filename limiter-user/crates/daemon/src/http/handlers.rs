//! What each route does.

use std::net::IpAddr;
use std::time::Instant;

use axum::Json;
use axum::RequestExt;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use http_body_util::BodyExt;

use super::Refusal;
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::requests::{AttachRequest, ChangeQuery, ConfigText, ConfirmQuery, TargetQuery};
use api::{
    AttachReport, ConfirmReport, DetachReport, LimitList, LimitRemoved, LimitSet, LimitsImported,
    OccupantReport, ReloadReport, SourceReport, StatsReport, StatusReport, VersionReport,
};
use control::{RATE_INTERVAL, Shared, no_such_limit};
use model::{LimitInput, Target, list};
use settings::ConfigFile;

pub(super) type Answer<T> = Result<Json<T>, Refusal>;

pub(super) fn unreadable(rejection: impl std::fmt::Display) -> Refusal {
    Failure::new(exit::USAGE, format!("cannot read the request: {rejection}"))
        .hint("the client and the daemon should have the same version")
        .into()
}

/// An interface that is not in the state that the request needs.
pub(super) fn conflict(failure: Failure) -> Refusal {
    if failure.code == exit::NEGATIVE {
        return Refusal(StatusCode::CONFLICT, failure);
    }
    failure.into()
}

pub(super) async fn version() -> Json<VersionReport> {
    Json(VersionReport::of_this_binary(dataplane::has_program()))
}

pub(super) async fn status(State(shared): State<Shared>) -> Answer<StatusReport> {
    let mut status = shared.with(|core| core.status()).await?;
    if let Some(cluster) = shared.cluster() {
        status.set_overage(cluster.overage.borrow().to_vec());
    }
    Ok(Json(status))
}

pub(super) async fn stats(State(shared): State<Shared>) -> Answer<StatsReport> {
    let stats = shared.with(|core| core.stats()).await?;
    Ok(Json(stats.with(shared.latency())))
}

pub(super) async fn limits(State(shared): State<Shared>) -> Answer<LimitList> {
    Ok(Json(shared.with(|core| Ok(core.limits())).await?))
}

pub(super) async fn set_limit(
    State(shared): State<Shared>,
    query: Result<Query<ChangeQuery>, QueryRejection>,
    request: Result<Json<LimitInput>, JsonRejection>,
) -> Answer<LimitSet> {
    let how = query.map_err(unreadable)?.how();
    let Json(request) = request.map_err(unreadable)?;
    let limit = request.limit().map_err(Failure::from)?;
    Ok(Json(shared.with(move |core| core.set(&limit, &how)).await?))
}

pub(super) async fn import(
    State(shared): State<Shared>,
    query: Result<Query<ChangeQuery>, QueryRejection>,
    request: Request,
) -> Answer<LimitsImported> {
    let how = query.map_err(unreadable)?.how();
    // Read as it comes, so that a long list is never in memory as text.
    let mut body = request.into_limited_body();
    let mut reader = list::Reader::default();
    while let Some(frame) = body.frame().await {
        if let Ok(text) = frame.map_err(unreadable)?.into_data() {
            reader.push(&text).map_err(Failure::from)?;
        }
    }
    Ok(Json(shared.with(move |core| core.import(reader.finish()?, &how)).await?))
}

pub(super) async fn unset_limit(
    State(shared): State<Shared>,
    query: Result<Query<TargetQuery>, QueryRejection>,
) -> Answer<LimitRemoved> {
    let Query(query) = query.map_err(unreadable)?;
    let target: Target = query.target.parse().map_err(Failure::from)?;
    let removed = shared.with(move |core| core.unset(&target, &query.how())).await;
    let removed = removed.map_err(conflict)?;
    removed.map(Json).ok_or_else(|| Refusal(StatusCode::NOT_FOUND, no_such_limit(&target)))
}

pub(super) async fn reload(
    State(shared): State<Shared>,
    query: Result<Query<ChangeQuery>, QueryRejection>,
) -> Answer<ReloadReport> {
    let how = query.map_err(unreadable)?.how();
    Ok(Json(shared.with(move |core| core.reload(&how)).await?))
}

pub(super) async fn config_diff(
    State(shared): State<Shared>,
    request: Result<Json<Option<ConfigText>>, JsonRejection>,
) -> Answer<ReloadReport> {
    let Json(text) = request.map_err(unreadable)?;
    let compared = shared.with(move |core| match text {
        Some(ConfigText { path, text }) => {
            core.compare_with(ConfigFile::parse(&path, text.as_bytes())?)
        }
        None => core.reload(&ChangeOptions { dry_run: true, ..ChangeOptions::default() }),
    });
    Ok(Json(compared.await?))
}

pub(super) async fn confirm(
    State(shared): State<Shared>,
    query: Result<Query<ConfirmQuery>, QueryRejection>,
) -> Answer<ConfirmReport> {
    let Query(ConfirmQuery { abort }) = query.map_err(unreadable)?;
    let done = shared.with(move |core| if abort { core.abort() } else { core.confirm() }).await;
    Ok(Json(done.map_err(conflict)?))
}

pub(super) async fn source(
    State(shared): State<Shared>,
    address: Result<Path<IpAddr>, PathRejection>,
) -> Answer<SourceReport> {
    let Path(address) = address.map_err(unreadable)?;
    let report = shared.with(move |core| core.source(address)).await?;
    let began = Instant::now();
    tokio::time::sleep(RATE_INTERVAL).await;
    let later = shared.with(move |core| core.source(address)).await?;
    Ok(Json(report.with_rates(&later, began.elapsed())))
}

pub(super) async fn attach(
    State(shared): State<Shared>,
    request: Result<Json<AttachRequest>, JsonRejection>,
) -> Answer<AttachReport> {
    let Json(AttachRequest { name, mode, replace }) = request.map_err(unreadable)?;
    let attached = shared.with(move |core| core.attach(&name, mode, replace)).await;
    Ok(Json(attached.map_err(conflict)?))
}

pub(super) async fn occupant(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Answer<OccupantReport> {
    let Path(name) = name.map_err(unreadable)?;
    Ok(Json(shared.with(move |core| core.occupant(&name)).await?))
}

pub(super) async fn detach(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Answer<DetachReport> {
    let Path(name) = name.map_err(unreadable)?;
    let detached = shared.with(move |core| core.detach(&name)).await;
    Ok(Json(detached.map_err(conflict)?))
}

pub(super) async fn not_found() -> Refusal {
    Refusal(StatusCode::NOT_FOUND, Failure::new(exit::USAGE, "the API has no such resource"))
}

pub(super) async fn wrong_method() -> Refusal {
    Refusal(
        StatusCode::METHOD_NOT_ALLOWED,
        Failure::new(exit::USAGE, "the resource has no such method"),
    )
}
