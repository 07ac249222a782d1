//! The dashboard, and the API for looking, over TCP: for browsers, and for whoever collects metrics.
//!
//! Off unless it is asked for. On a loopback address everyone on the machine may look; elsewhere a
//! token and TLS are needed. Changes take a token of their own. Everything is bounded: connections,
//! their headers, bodies and idle times, pages that are kept up to date, and requests at work.

mod assets;
mod guard;
mod listen;
mod live;
mod login;
mod tokens;

pub use listen::{Serving, Web, check_files};

use std::sync::Arc;

use axum::middleware;
use axum::routing::{get, post};
use axum::{Extension, Router};

use self::guard::Authorizer;
use self::live::Hub;
use control::Shared;

/// The routes: those of the API, of which the gate lets only some through, and those of the page.
fn routes(shared: Shared, gate: Arc<Authorizer>) -> Router {
    let hub = Hub::new(shared.clone());
    let api = super::router(shared);
    api.clone()
        .merge(Router::new().route("/v1/live", get(live::live)).with_state(hub))
        .merge(assets::routes())
        .merge(
            Router::new()
                .route("/login", get(login::page).post(login::log_in))
                .route("/logout", post(login::log_out))
                .route("/v1/session", get(login::session))
                .layer(Extension(api))
                .with_state(Arc::clone(&gate)),
        )
        .layer(middleware::from_fn_with_state(gate, guard::check))
}

#[cfg(test)]
mod tests;
