//! The daemon as a whole: its state, its configuration, interfaces, and single sources.

use std::net::IpAddr;
use std::time::Instant;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;

use super::answer::{Answer, Parsed, Refusal, answer, answer_or_conflict};
use api::error::{Failure, exit};
use api::requests::{AttachRequest, ChangeOptions, ChangeQuery, ConfigText, ConfirmQuery};
use api::{
    AttachReport, ChangesReport, ConfirmReport, DetachReport, OccupantReport, ReloadReport,
    SourceReport, StatsReport, StatusReport, VersionReport,
};
use control::{RATE_INTERVAL, Shared};
use settings::ConfigFile;

pub(super) async fn version() -> Json<VersionReport> {
    Json(VersionReport::of_this_binary(dataplane::has_program()))
}

pub(super) async fn status(State(shared): State<Shared>) -> Answer<StatusReport> {
    let mut status = shared.with(|core| core.status()).await?;
    // The audit is a task of the cluster: the core does not know what it finds.
    if let Some(cluster) = shared.cluster() {
        status.set_overage(cluster.overage.borrow().to_vec());
    }
    Ok(Json(status))
}

pub(super) async fn stats(State(shared): State<Shared>) -> Answer<StatsReport> {
    let stats = shared.with(|core| core.stats()).await?;
    Ok(Json(stats.with(shared.latency())))
}

pub(super) async fn changes(State(shared): State<Shared>) -> Answer<ChangesReport> {
    answer(&shared, |core| Ok(core.changes())).await
}

pub(super) async fn reload(
    State(shared): State<Shared>,
    Parsed(Query(query)): Parsed<Query<ChangeQuery>>,
) -> Answer<ReloadReport> {
    answer(&shared, move |core| core.reload(&query.how())).await
}

pub(super) async fn config_diff(
    State(shared): State<Shared>,
    Parsed(Json(text)): Parsed<Json<Option<ConfigText>>>,
) -> Answer<ReloadReport> {
    answer(&shared, move |core| match text {
        Some(ConfigText { path, text }) => {
            core.compare_with(ConfigFile::parse(&path, text.as_bytes())?)
        }
        // Without a text it is the file of the daemon, read as a reload would read it.
        None => core.reload(&ChangeOptions { dry_run: true, ..ChangeOptions::default() }),
    })
    .await
}

pub(super) async fn confirm(
    State(shared): State<Shared>,
    Parsed(Query(ConfirmQuery { abort })): Parsed<Query<ConfirmQuery>>,
) -> Answer<ConfirmReport> {
    answer_or_conflict(&shared, move |core| if abort { core.abort() } else { core.confirm() }).await
}

pub(super) async fn source(
    State(shared): State<Shared>,
    Parsed(Path(address)): Parsed<Path<IpAddr>>,
) -> Answer<SourceReport> {
    let report = shared.with(move |core| core.source(address)).await?;
    let began = Instant::now();
    // The kernel counts and has no rates: these take a second look.
    tokio::time::sleep(RATE_INTERVAL).await;
    let later = shared.with(move |core| core.source(address)).await?;
    Ok(Json(report.with_rates(&later, began.elapsed())))
}

pub(super) async fn attach(
    State(shared): State<Shared>,
    Parsed(Json(request)): Parsed<Json<AttachRequest>>,
) -> Answer<AttachReport> {
    let AttachRequest { name, mode, replace } = request;
    answer_or_conflict(&shared, move |core| core.attach(&name, mode, replace)).await
}

pub(super) async fn occupant(
    State(shared): State<Shared>,
    Parsed(Path(name)): Parsed<Path<String>>,
) -> Answer<OccupantReport> {
    answer(&shared, move |core| core.occupant(&name)).await
}

pub(super) async fn detach(
    State(shared): State<Shared>,
    Parsed(Path(name)): Parsed<Path<String>>,
) -> Answer<DetachReport> {
    answer_or_conflict(&shared, move |core| core.detach(&name)).await
}

pub(super) async fn not_found() -> Refusal {
    Refusal(StatusCode::NOT_FOUND, Failure::new(exit::USAGE, "the API has no such resource"))
}

pub(super) async fn wrong_method() -> Refusal {
    let failure = Failure::new(exit::USAGE, "the resource has no such method");
    Refusal(StatusCode::METHOD_NOT_ALLOWED, failure)
}
