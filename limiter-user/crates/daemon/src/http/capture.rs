//! `/v1/capture…`. What is in packets is private: no route of these is a mere look, so all need an admin.

use axum::Json;
use axum::extract::{Path, State};

use super::answer::{Answer, Parsed, change};
use api::{CaptureBatch, CaptureRequest, CaptureStarted};
use control::Host;

pub(super) async fn start(
    State(host): State<Host>,
    Parsed(Json(request)): Parsed<Json<CaptureRequest>>,
) -> Answer<CaptureStarted> {
    let filter = request.filter()?;
    change(&host, move |core| core.captures.start(&mut core.rules, &filter)).await
}

pub(super) async fn fetch(
    State(host): State<Host>,
    Parsed(Path(id)): Parsed<Path<u64>>,
) -> Answer<CaptureBatch> {
    change(&host, move |core| core.captures.samples(&mut core.rules, id)).await
}

pub(super) async fn stop(
    State(host): State<Host>,
    Parsed(Path(id)): Parsed<Path<u64>>,
) -> Answer<CaptureBatch> {
    change(&host, move |core| core.captures.stop(&mut core.rules, id)).await
}
