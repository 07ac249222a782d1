//! `/v1/suggest`: limits that are proposed.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use tokio::sync::Semaphore;

use super::answer::{Answer, Parsed, Refusal, conflict};
use api::error::{Failure, exit};
use api::{SuggestQuery, SuggestReport};
use control::Host;

/// Who may watch at the same time: each takes memory for all sources.
static WATCHES: Semaphore = Semaphore::const_new(2);

pub(super) async fn suggest(
    State(host): State<Host>,
    Parsed(Query(query)): Parsed<Query<SuggestQuery>>,
) -> Answer<SuggestReport> {
    // Before a place is taken: what cannot be answered keeps nobody else waiting.
    let question = query.question()?;
    let Ok(_permit) = WATCHES.try_acquire() else {
        let failure = Failure::new(exit::NEGATIVE, "others are being answered just now")
            .hint("ask again in a while: each answer takes as long as its --over");
        return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, failure));
    };
    control::suggest(&host, question).await.map(Json).map_err(conflict)
}
