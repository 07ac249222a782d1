//! Signing in with a token, out again, and who one is.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::{Deserialize, Serialize};

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
    /// Whether `/v1/history` and `/v1/changes` are there, which they are in every daemon so far. The page asks.
    history: bool,
    changes: bool,
}

/// A cookie that scripts cannot read and other sites cannot use.
fn cookie(authorizer: &Authorizer, value: &str, seconds: u64) -> Option<HeaderValue> {
    // A browser drops a `Secure` cookie that came without TLS: over plain HTTP nobody could sign in.
    let secure = if authorizer.tls { "; Secure" } else { "" };
    let name = &authorizer.cookie;
    let text =
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    HeaderValue::from_str(&text).ok()
}

pub(super) async fn log_in(
    State(authorizer): State<Arc<Authorizer>>,
    form: Result<Form<Credentials>, FormRejection>,
) -> Response {
    let Ok(Form(Credentials { token })) = form else {
        let hint = "send the token as the form's field `token`";
        return refusal(StatusCode::BAD_REQUEST, "the form cannot be read", hint);
    };
    let Some(role) = authorizer.tokens.role_of(token.trim().as_bytes()) else {
        tracing::warn!("somebody has tried to sign in at the dashboard with a wrong token");
        tokio::time::sleep(PENALTY).await;
        // A redirect after a POST: reloading the page does not send the token again.
        return Redirect::to("/login?wrong").into_response();
    };
    // The cookie has a number of its own, not the token: one that is stolen ends with its session.
    let session = authorizer.tokens.begin(role, Instant::now());
    let Some(cookie) = session.and_then(|id| cookie(&authorizer, &id, SESSION.as_secs())) else {
        let hint = "look at the daemon's log";
        return refusal(StatusCode::INTERNAL_SERVER_ERROR, "no session could be made", hint);
    };
    ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response()
}

pub(super) async fn log_out(
    State(authorizer): State<Arc<Authorizer>>,
    headers: HeaderMap,
) -> Response {
    if let Some(id) = authorizer.cookie_of(&headers) {
        // Here as well as in the browser: a cookie that was copied ends with the session.
        authorizer.tokens.end(id);
    }
    let mut response = Redirect::to("/").into_response();
    // The session has ended here; this only spares the browser a cookie that means nothing any more.
    if let Some(cookie) = cookie(&authorizer, "", 0) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

pub(super) async fn session(
    State(authorizer): State<Arc<Authorizer>>,
    headers: HeaderMap,
) -> Json<SessionReport> {
    let now = Instant::now();
    let admin = authorizer.role(&headers, now) == Ok(Some(Role::Admin));
    let session = authorizer.cookie_of(&headers).and_then(|id| authorizer.tokens.session(id, now));
    Json(SessionReport {
        admin,
        can_become_admin: authorizer.tokens.has_admin() && !admin,
        signed_in: session.is_some(),
        history: true,
        changes: true,
    })
}
