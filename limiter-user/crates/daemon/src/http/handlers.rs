//! The daemon as a whole: its state, its configuration, interfaces, and single sources.

use std::net::IpAddr;
use std::time::Instant;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;

use super::answer::{Answer, Parsed, Refusal, answer, change};
use api::error::{Failure, exit};
use api::requests::{AttachRequest, ChangeOptions, ChangeQuery, ConfigText, ConfirmQuery};
use api::{
    AttachReport, ChangesReport, ConfirmReport, DetachReport, LeasesBrought, LeasesWanted,
    OccupantReport, ReloadReport, SourceReport, StatsReport, StatusReport, VersionReport,
};
use control::rules::{confirm, reload};
use control::{Host, RATE_INTERVAL};
use settings::ConfigFile;

pub(super) async fn version() -> Json<VersionReport> {
    Json(VersionReport::of_this_binary(dataplane::has_program()))
}

pub(super) async fn status(State(host): State<Host>) -> Answer<StatusReport> {
    let mut status = host.with(|core| core.status()).await?;
    // The audit is a task of the cluster: the core does not know what it finds.
    if let Some(cluster) = host.cluster() {
        status.set_overage(cluster.overage.borrow().to_vec());
    }
    Ok(Json(status))
}

pub(super) async fn stats(State(host): State<Host>) -> Answer<StatsReport> {
    let stats = host.with(|core| core.stats()).await?;
    Ok(Json(stats.with(host.latency())))
}

pub(super) async fn changes(State(host): State<Host>) -> Answer<ChangesReport> {
    answer(&host, |core| Ok(core.rules.events.changes())).await
}

pub(super) async fn reload(
    State(host): State<Host>,
    Parsed(Query(query)): Parsed<Query<ChangeQuery>>,
) -> Answer<ReloadReport> {
    change(&host, move |core| reload::reload(&mut core.rules, &query.how())).await
}

pub(super) async fn config_diff(
    State(host): State<Host>,
    Parsed(Json(text)): Parsed<Json<Option<ConfigText>>>,
) -> Answer<ReloadReport> {
    let parse = |text: ConfigText| ConfigFile::parse(&text.path, text.text.as_bytes());
    let file = text.map(parse).transpose()?;
    let how = ChangeOptions { dry_run: true, ..ChangeOptions::default() };
    change(&host, move |core| match file {
        Some(file) => reload::compare_with(&core.rules, file),
        None => reload::reload(&mut core.rules, &how),
    })
    .await
}

pub(super) async fn confirm(
    State(host): State<Host>,
    Parsed(Query(ConfirmQuery { abort })): Parsed<Query<ConfirmQuery>>,
) -> Answer<ConfirmReport> {
    change(&host, move |core| {
        if abort { confirm::abort(&mut core.rules) } else { confirm::confirm(&mut core.rules) }
    })
    .await
}

pub(super) async fn source(
    State(host): State<Host>,
    Parsed(Path(address)): Parsed<Path<IpAddr>>,
) -> Answer<SourceReport> {
    let report = host.with(move |core| core.source(address)).await?;
    let began = Instant::now();
    // The kernel counts and has no rates: these take a second look.
    tokio::time::sleep(RATE_INTERVAL).await;
    let later = host.with(move |core| core.source(address)).await?;
    Ok(Json(report.with_rates(&later, began.elapsed())))
}

pub(super) async fn leases(
    State(host): State<Host>,
    Parsed(Json(brought)): Parsed<Json<LeasesBrought>>,
) -> Answer<LeasesWanted> {
    let none = || Failure::new(exit::NEGATIVE, "the daemon gets no leases yet");
    let desk = host.leases().ok_or_else(none)?;
    Ok(Json(desk.bring(brought).await?))
}

pub(super) async fn attach(
    State(host): State<Host>,
    Parsed(Json(request)): Parsed<Json<AttachRequest>>,
) -> Answer<AttachReport> {
    let AttachRequest { name, mode, replace } = request;
    change(&host, move |core| core.interfaces.attach(&mut core.rules, &name, mode, replace)).await
}

pub(super) async fn occupant(
    State(host): State<Host>,
    Parsed(Path(name)): Parsed<Path<String>>,
) -> Answer<OccupantReport> {
    answer(&host, move |core| core.occupant(&name)).await
}

pub(super) async fn detach(
    State(host): State<Host>,
    Parsed(Path(name)): Parsed<Path<String>>,
) -> Answer<DetachReport> {
    change(&host, move |core| core.interfaces.detach(&mut core.rules, &name)).await
}

pub(super) async fn not_found() -> Refusal {
    Refusal(StatusCode::NOT_FOUND, Failure::new(exit::USAGE, "the API has no such resource"))
}

pub(super) async fn wrong_method() -> Refusal {
    let failure = Failure::new(exit::USAGE, "the resource has no such method");
    Refusal(StatusCode::METHOD_NOT_ALLOWED, failure)
}
