//! Signing in with a token, out again, and who one is.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use super::assets;
use super::guard::{Authorizer, PENALTY, refusal};
use super::tokens::{Role, SESSION};

/// What the form sends.
#[derive(Deserialize)]
pub(super) struct Credentials {
    token: String,
}

/// What the page may offer.
#[derive(Serialize)]
pub(super) struct SessionReport {
    /// Whether changes are allowed.
    admin: bool,
    /// Whether signing in with a token would allow them.
    can_become_admin: bool,
    /// Whether there is a session that can be ended.
    signed_in: bool,
    /// Whether `/v1/history` is there.
    history: bool,
    /// Whether `/v1/changes` is there.
    changes: bool,
}

/// Whether the API has a route: it has no method of this name, so nothing is done.
async fn has(api: &Router, path: &'static str) -> bool {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::TRACE;
    *request.uri_mut() = Uri::from_static(path);
    let answer = api.clone().oneshot(request).await;
    answer.is_ok_and(|answer| answer.status() == StatusCode::METHOD_NOT_ALLOWED)
}

pub(super) async fn page() -> impl IntoResponse {
    assets::html(assets::LOGIN)
}

/// A cookie that scripts cannot read and other sites cannot use.
fn cookie(gate: &Authorizer, value: &str, seconds: u64) -> Option<HeaderValue> {
    let secure = if gate.tls { "; Secure" } else { "" };
    let text = format!(
        "{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}",
        gate.cookie
    );
    HeaderValue::from_str(&text).ok()
}

pub(super) async fn log_in(
    State(gate): State<Arc<Authorizer>>,
    form: Result<Form<Credentials>, FormRejection>,
) -> Response {
    let Ok(Form(Credentials { token })) = form else {
        let hint = "send the token as the form's field `token`";
        return refusal(StatusCode::BAD_REQUEST, "the form cannot be read", hint);
    };
    let Some(role) = gate.tokens.role_of(token.trim().as_bytes()) else {
        tracing::warn!("somebody has tried to sign in at the dashboard with a wrong token");
        tokio::time::sleep(PENALTY).await;
        return Redirect::to("/login?wrong").into_response();
    };
    let session = gate.tokens.begin(role, Instant::now());
    let Some(cookie) = session.and_then(|id| cookie(&gate, &id, SESSION.as_secs())) else {
        let hint = "look at the daemon's log";
        return refusal(StatusCode::INTERNAL_SERVER_ERROR, "no session could be made", hint);
    };
    ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response()
}

pub(super) async fn log_out(State(gate): State<Arc<Authorizer>>, headers: HeaderMap) -> Response {
    if let Some(id) = gate.cookie_of(&headers) {
        gate.tokens.end(id);
    }
    let mut response = Redirect::to("/").into_response();
    if let Some(cookie) = cookie(&gate, "", 0) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

pub(super) async fn session(
    State(gate): State<Arc<Authorizer>>,
    Extension(api): Extension<Router>,
    headers: HeaderMap,
) -> Json<SessionReport> {
    let now = Instant::now();
    let admin = gate.role(&headers, now) == Ok(Some(Role::Admin));
    let session = gate.cookie_of(&headers).and_then(|id| gate.tokens.session(id, now));
    Json(SessionReport {
        admin,
        can_become_admin: gate.tokens.has_admin() && !admin,
        signed_in: session.is_some(),
        history: has(&api, "/v1/history").await,
        changes: has(&api, "/v1/changes").await,
    })
}
