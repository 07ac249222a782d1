//! `/v1/capture…`. What is in packets is private: no route of these is a mere look, so all need an admin.

use axum::Json;
use axum::extract::{Path, State};

use super::answer::{Answer, Parsed, answer_or_conflict};
use api::{CaptureBatch, CaptureRequest, CaptureStarted};
use control::Shared;

pub(super) async fn start(
    State(shared): State<Shared>,
    Parsed(Json(request)): Parsed<Json<CaptureRequest>>,
) -> Answer<CaptureStarted> {
    let filter = request.filter()?;
    answer_or_conflict(&shared, move |core| core.start_capture(&filter)).await
}

pub(super) async fn fetch(
    State(shared): State<Shared>,
    Parsed(Path(id)): Parsed<Path<u64>>,
) -> Answer<CaptureBatch> {
    answer_or_conflict(&shared, move |core| core.captured(id)).await
}

pub(super) async fn stop(
    State(shared): State<Shared>,
    Parsed(Path(id)): Parsed<Path<u64>>,
) -> Answer<CaptureBatch> {
    answer_or_conflict(&shared, move |core| core.stop_capture(id)).await
}
