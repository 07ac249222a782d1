//! `/v1/sketch`: what the data plane estimates, for files that leave the host.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use tokio::sync::Semaphore;

use super::answer::{Answer, Parsed, Refusal, answer, conflict};
use api::SketchCells;
use api::error::{Failure, exit};
use api::requests::SketchCellsRequest;
use control::Host;

/// Who may save at the same time: each takes 16 bytes for every bucket, for two epochs of the sketch.
static SAVES: Semaphore = Semaphore::const_new(2);

pub(super) async fn save(State(host): State<Host>) -> Result<impl IntoResponse, Refusal> {
    let Ok(_permit) = SAVES.try_acquire() else {
        let failure = Failure::new(exit::NEGATIVE, "others save the sketch just now");
        let failure = failure.hint("save it again in a moment");
        return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, failure));
    };
    let sketch = control::save_sketch(&host).await.map_err(conflict)?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], sketch.bytes()))
}

// A POST, which `peer::check` leaves to those who may change something: whoever knows the cells of many addresses can
// compute which sources collide.
pub(super) async fn cells(
    State(host): State<Host>,
    Parsed(Json(request)): Parsed<Json<SketchCellsRequest>>,
) -> Answer<SketchCells> {
    answer(&host, move |core| control::sketch_cells(core, &request)).await
}
