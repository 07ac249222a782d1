//! The API: HTTP and JSON over a Unix socket. Whoever may connect may look.

mod capture;
mod cluster;
mod cluster_keys;
mod events;
mod fleet;
mod handlers;
mod history;
mod lists;
pub mod metrics;
mod peer;
mod suggest;
mod top;
mod trials;
pub mod web;

use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};

pub(crate) use peer::Peer;

use api::error::{Failure, exit};
use control::{Access, Shared};

/// The largest body of a request, bytes.
const MAX_BODY: usize = 64 * 1024;

/// The largest list of limits, bytes: two million lines of the longest kind.
const MAX_LIST: usize = 128 * 1024 * 1024;

/// The routes of a daemon.
pub fn router(shared: Shared) -> Router {
    Router::new()
        .route("/v1/version", get(handlers::version))
        .route("/v1/status", get(handlers::status))
        .route("/v1/stats", get(handlers::stats))
        .route(
            "/v1/limits",
            get(handlers::limits).put(handlers::set_limit).delete(handlers::unset_limit),
        )
        .route("/v1/limits/import", post(handlers::import).layer(DefaultBodyLimit::max(MAX_LIST)))
        .route("/v1/trials", get(trials::trials).put(trials::start).delete(trials::stop))
        .route("/v1/reload", post(handlers::reload))
        .route(
            "/v1/config/diff",
            post(handlers::config_diff).layer(DefaultBodyLimit::max(MAX_LIST)),
        )
        .route("/v1/confirm", post(handlers::confirm))
        .route(
            "/v1/lists/{list}",
            get(lists::list).post(lists::add).layer(DefaultBodyLimit::max(MAX_LIST)),
        )
        .route(
            "/v1/lists/{list}/remove",
            post(lists::remove).layer(DefaultBodyLimit::max(MAX_LIST)),
        )
        .route("/v1/lists/{list}/clear", post(lists::clear))
        .route("/v1/suggest", get(suggest::suggest))
        .merge(metrics::routes())
        .merge(top::routes())
        .merge(fleet::routes())
        .merge(cluster::routes())
        .merge(cluster_keys::routes())
        .route("/v1/events", get(events::events).layer(Extension(events::Places::default())))
        .route("/v1/changes", get(events::changes))
        .route("/v1/history", get(history::history))
        .route("/v1/capture", post(capture::start))
        .route("/v1/capture/{id}", post(capture::fetch).delete(capture::stop))
        .route("/v1/sources/{address}", get(handlers::source))
        .route("/v1/interfaces", post(handlers::attach))
        .route("/v1/interfaces/{name}", get(handlers::occupant).delete(handlers::detach))
        .fallback(handlers::not_found)
        .method_not_allowed_fallback(handlers::wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(shared.clone(), metrics::timed))
        .with_state(shared)
}

/// The routes of a daemon, for those who may use them.
pub fn guarded(shared: Shared, access: Access) -> Router {
    router(shared).layer(middleware::from_fn_with_state(access, peer::check))
}

/// A failure as a response: its JSON, with a status that fits its code.
#[derive(Debug)]
pub(crate) struct Refusal(StatusCode, Failure);

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let status = match failure.code {
            exit::USAGE => StatusCode::BAD_REQUEST,
            exit::PRIVILEGE => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, failure)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

#[cfg(test)]
mod tests;
