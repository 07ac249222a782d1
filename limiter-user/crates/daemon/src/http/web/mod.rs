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

pub use listen::{Web, check_files};

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use axum::routing::{get, post};
use tokio::task::JoinHandle;

use self::guard::Authorizer;
use self::live::Hub;
use control::Host;

/// The routes: those of the API, of which `authorizer` lets only some through, and those of the page.
fn routes(host: Host, authorizer: Arc<Authorizer>) -> Router {
    let hub = Hub::new(host.clone());
    let sessions = Router::new()
        .route("/login", get(assets::login).post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/v1/session", get(login::session))
        .with_state(Arc::clone(&authorizer));
    super::router(host)
        .merge(Router::new().route("/v1/live", get(live::live)).with_state(hub))
        .merge(assets::routes())
        .merge(sessions)
        // Around everything, the page's own routes as well: what `guard` does not name is not served over TCP.
        .layer(middleware::from_fn_with_state(authorizer, guard::check))
}

/// A task that ends with this. tokio lets a task run on whose handle is dropped.
#[derive(Debug)]
pub struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests;
