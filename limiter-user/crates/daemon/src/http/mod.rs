//! The API: HTTP and JSON over a Unix socket. Whoever may connect may look.

mod answer;
mod capture;
mod cluster;
mod events;
mod handlers;
mod history;
mod limits;
mod lists;
mod metrics;
mod overrides;
mod peer;
mod shadows;
mod sketch;
mod suggest;
mod top;
pub mod web;

use axum::extract::DefaultBodyLimit;
use axum::http::Method;
use axum::middleware;
use axum::routing::{get, post};
use axum::{Extension, Router};

pub(crate) use answer::Refusal;
pub(crate) use peer::Peer;

use control::{Access, Host};

/// The largest body of a request, bytes.
const MAX_BODY: usize = 64 * 1024;

/// The largest list of limits, bytes: two million lines of the longest kind.
const MAX_LIST: usize = 128 * 1024 * 1024;

/// The routes of a daemon.
pub fn router(host: Host) -> Router {
    let long_body = || DefaultBodyLimit::max(MAX_LIST);
    Router::new()
        .route("/v1/version", get(handlers::version))
        .route("/v1/status", get(handlers::status))
        .route("/v1/stats", get(handlers::stats))
        .route("/metrics", get(metrics::metrics))
        .route("/v1/limits", get(limits::list).put(limits::set).delete(limits::unset))
        .route("/v1/limits/import", post(limits::import).layer(long_body()))
        .route("/v1/shadows", get(shadows::list).put(shadows::start).delete(shadows::stop))
        .route("/v1/reload", post(handlers::reload))
        // A POST, as a GET has no body. `peer::check` names it as the one POST that readers may
        // make.
        .route("/v1/config/diff", post(handlers::config_diff).layer(long_body()))
        .route("/v1/confirm", post(handlers::confirm))
        .route("/v1/lists/{list}", get(lists::list).post(lists::add).layer(long_body()))
        // Not a DELETE: RFC 9110 (9.3.5) gives its body no meaning, and the targets are the body.
        .route("/v1/lists/{list}/remove", post(lists::remove).layer(long_body()))
        .route("/v1/lists/{list}/clear", post(lists::clear))
        .route("/v1/leases", post(handlers::leases).layer(long_body()))
        .route("/v1/overrides", get(overrides::list).post(overrides::set).layer(long_body()))
        .route("/v1/overrides/remove", post(overrides::unset).layer(long_body()))
        .route(
            "/v1/overrides/follow",
            get(overrides::follow).layer(Extension(events::Places::default())),
        )
        .route("/v1/sketch", get(sketch::save))
        .route("/v1/sketch/cells", post(sketch::cells))
        .route("/v1/suggest", get(suggest::suggest))
        .route("/v1/top", get(top::sources))
        .route("/v1/groups", get(top::groups))
        .route("/v1/ports", get(top::ports))
        .route("/v1/cluster/init", post(cluster::init))
        .route("/v1/cluster/leave", post(cluster::leave))
        .route("/v1/cluster/forget", post(cluster::forget))
        .route("/v1/cluster/shares", post(cluster::shares).layer(long_body()))
        .route("/v1/cluster/keys", get(cluster::keys))
        .route("/v1/cluster/keys/rotate", post(cluster::rotate))
        .route("/v1/cluster/peers", get(cluster::peers))
        .route("/v1/cluster/top", get(cluster::top))
        .route("/v1/cluster/groups", get(cluster::groups))
        .route("/v1/cluster/distinct", get(cluster::distinct))
        .route("/v1/cluster/sources/{address}", get(cluster::source))
        .route("/v1/events", get(events::events).layer(Extension(events::Places::default())))
        .route("/v1/changes", get(handlers::changes))
        .route("/v1/history", get(history::history))
        .route("/v1/capture", post(capture::start))
        .route("/v1/capture/{id}", post(capture::fetch).delete(capture::stop))
        .route("/v1/sources/{address}", get(handlers::source))
        .route("/v1/interfaces", post(handlers::attach))
        .route("/v1/interfaces/{name}", get(handlers::occupant).delete(handlers::detach))
        // axum's own answers are empty, and a client reads every failure as JSON.
        .fallback(handlers::not_found)
        .method_not_allowed_fallback(handlers::wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(host.clone(), metrics::timed))
        .with_state(host)
}

/// The routes of a daemon, for those who may use them.
pub fn guarded(host: Host, access: Access) -> Router {
    router(host).layer(middleware::from_fn_with_state(access, peer::check))
}

/// Whether a request changes nothing. `Method::is_safe` would also let `OPTIONS` and `TRACE` past the guards.
fn is_look(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

#[cfg(test)]
mod tests;
