//! What all routes have in common: how a request is read, and how it is answered.

use std::fmt::Display;

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use api::error::{Failure, exit};
use control::{Core, Host};

pub(super) type Answer<T> = Result<Json<T>, Refusal>;

/// A failure as a response: its JSON, with a status.
#[derive(Debug)]
pub(crate) struct Refusal(pub(super) StatusCode, pub(super) Failure);

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self(failure.status(), failure)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

/// What axum's extractor `E` reads. Its own rejections are plain text, and a client reads every failure as JSON.
pub(super) struct Parsed<E>(pub(super) E);

impl<E, S> FromRequestParts<S> for Parsed<E>
where
    E: FromRequestParts<S, Rejection: Display>,
    S: Send + Sync,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        E::from_request_parts(parts, state).await.map(Self).map_err(unreadable)
    }
}

impl<E, S> FromRequest<S> for Parsed<E>
where
    E: FromRequest<S, Rejection: Display>,
    S: Send + Sync,
{
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        E::from_request(request, state).await.map(Self).map_err(unreadable)
    }
}

pub(super) fn unreadable(problem: impl Display) -> Refusal {
    Failure::new(exit::USAGE, format!("cannot read the request: {problem}"))
        // What our own client writes can only be unreadable to a daemon of another version.
        .hint("the client and the daemon should have the same version")
        .into()
}

/// A request that what is in force forbids: a no is a conflict with that, and no fault of the daemon.
pub(super) fn conflict(failure: Failure) -> Refusal {
    Refusal(failure.status_of_change(), failure)
}

/// Answers with what `work` on the core returns.
pub(super) async fn answer<T: Send + 'static>(
    host: &Host,
    work: impl FnOnce(&mut Core) -> Result<T, Failure> + Send + 'static,
) -> Answer<T> {
    Ok(Json(host.with(work).await?))
}

/// As [`answer`], for work that changes something, which what is in force may forbid.
pub(super) async fn change<T: Send + 'static>(
    host: &Host,
    work: impl FnOnce(&mut Core) -> Result<T, Failure> + Send + 'static,
) -> Answer<T> {
    host.with(work).await.map(Json).map_err(conflict)
}
