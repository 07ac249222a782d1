//! The route of limits that are proposed.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use tokio::sync::Semaphore;

use super::Refusal;
use super::handlers::{Answer, unreadable};
use api::error::{Failure, exit};
use api::{SuggestQuery, SuggestReport};
use control::{Shared, suggest as watch};

/// Who may watch at the same time: each takes memory for all sources.
static WATCHES: Semaphore = Semaphore::const_new(2);

pub(super) async fn suggest(
    State(shared): State<Shared>,
    query: Result<Query<SuggestQuery>, QueryRejection>,
) -> Answer<SuggestReport> {
    let Query(query) = query.map_err(unreadable)?;
    let question = query.question()?;
    let Ok(_permit) = WATCHES.try_acquire() else {
        let failure = Failure::new(exit::NEGATIVE, "others are being answered just now")
            .hint("ask again in a while: each answer takes as long as its --over");
        return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, failure));
    };
    Ok(Json(watch(&shared, question).await.map_err(|failure| match failure.code {
        exit::NEGATIVE => Refusal(StatusCode::CONFLICT, failure),
        _ => failure.into(),
    })?))
}
