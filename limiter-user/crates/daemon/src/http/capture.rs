//! The routes of captures. What is in packets is private: none of them is a mere look.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};

use super::handlers::{Answer, conflict, unreadable};
use api::{CaptureBatch, CaptureRequest, CaptureStarted};
use control::Shared;

pub(super) async fn start(
    State(shared): State<Shared>,
    request: Result<Json<CaptureRequest>, JsonRejection>,
) -> Answer<CaptureStarted> {
    let Json(request) = request.map_err(unreadable)?;
    let filter = request.filter()?;
    let started = shared.with(move |core| core.start_capture(&filter)).await;
    Ok(Json(started.map_err(conflict)?))
}

pub(super) async fn fetch(
    State(shared): State<Shared>,
    id: Result<Path<u64>, PathRejection>,
) -> Answer<CaptureBatch> {
    let Path(id) = id.map_err(unreadable)?;
    Ok(Json(shared.with(move |core| core.captured(id)).await.map_err(conflict)?))
}

pub(super) async fn stop(
    State(shared): State<Shared>,
    id: Result<Path<u64>, PathRejection>,
) -> Answer<CaptureBatch> {
    let Path(id) = id.map_err(unreadable)?;
    Ok(Json(shared.with(move |core| core.stop_capture(id)).await.map_err(conflict)?))
}
