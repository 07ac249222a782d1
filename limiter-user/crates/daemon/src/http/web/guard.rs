//! What a request has to get past: its host, who sent it, and what that may do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::assets;
use super::tokens::{Role, Tokens};
use crate::http::{Refusal, is_look};
use api::error::{Failure, exit};
use api::requests::TopQuery;
use control::{Actor, acting};

/// Requests that may be at work at the same time; others wait. The core does one thing after the other anyway: many
/// from here would keep the commands of an operator waiting behind them.
const MAX_AT_WORK: usize = 4;

/// How long a request may take, its body included, until the answer begins.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The largest body of a request, bytes.
const MAX_BODY_LEN: usize = 16 * 1024;

/// How long somebody with a wrong token waits for the answer: one connection tries two a second.
pub(super) const PENALTY: Duration = Duration::from_millis(500);

/// The most sources that a request can ask for: an answer is kept until it is read.
const MAX_SOURCES: usize = 100;

/// Nothing but what comes from here, and nothing inline: should a text from elsewhere, such as a reason on a list, ever
/// become a part of the page, no script in it would run.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'";

/// What browsers may do with an answer.
const BROWSER_RULES: [(&str, &str); 6] = [
    ("content-security-policy", POLICY),
    // What is not a script by its type is none, whatever it looks like.
    ("x-content-type-options", "nosniff"),
    // Browsers that do not know frame-ancestors: a page above this one could lead clicks to its buttons.
    ("x-frame-options", "DENY"),
    // With `no-referrer` they would send `Origin: null` for our own form, which is refused.
    ("referrer-policy", "same-origin"),
    // Other sites can neither load an answer into their process, nor keep a handle on the window of this page.
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// A list of what is open, not of what is closed: a new route of the API stays off TCP until
// somebody names it here.
enum RequiredRole {
    /// Nothing: it tells nothing of this host.
    Nothing,
    Role(Role),
    /// It is not for here: it may take much memory, or is for the socket alone.
    Never,
}

/// What `method` on `path` needs. What is not named here is not for TCP.
fn needs(method: &Method, path: &str) -> RequiredRole {
    let looks = is_look(method);
    match path {
        "/login" | "/logout" => RequiredRole::Nothing,
        _ if looks && assets::is_public(path) => RequiredRole::Nothing,
        "/" | "/metrics" | "/v1/version" | "/v1/status" | "/v1/stats" | "/v1/top" | "/v1/live"
        | "/v1/session" | "/v1/history" | "/v1/changes" | "/v1/cluster/peers"
            if looks =>
        {
            RequiredRole::Role(Role::Reader)
        }
        _ if looks && path.starts_with("/v1/sources/") => RequiredRole::Role(Role::Reader),
        "/v1/limits" if matches!(*method, Method::PUT | Method::DELETE) => {
            RequiredRole::Role(Role::Admin)
        }
        "/v1/lists/deny" | "/v1/lists/deny/remove" if *method == Method::POST => {
            RequiredRole::Role(Role::Admin)
        }
        _ => RequiredRole::Never,
    }
}

/// Whether requests may have `host` as their host. A name of somebody else can be bound to our address once its page is
/// open (DNS rebinding): the browser would take our answers for that page's own. Addresses need no list, as none
/// can be bound to another.
fn is_own(host: &str, names: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || port.starts_with(':') => {
                return address.parse::<std::net::Ipv6Addr>().is_ok();
            }
            _ => return false,
        },
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.parse::<std::net::Ipv4Addr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Whether a browser sends this for a page of ours, or it is no browser. Old browsers send only one of the two headers.
/// The scheme of the origin may be another: a proxy may do TLS in front of us.
fn is_from_here(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
    let site = text("sec-fetch-site").is_none_or(|site| matches!(site, "same-origin" | "none"));
    let host = text("host").unwrap_or_default();
    let own = |origin: &str| origin.split_once("://").is_some_and(|(_, name)| name == host);
    site && text("origin").is_none_or(own)
}

pub(super) struct Authorizer {
    pub(super) tokens: Tokens,
    pub(super) hosts: Vec<String>,
    pub(super) loopback: bool,
    pub(super) tls: bool,
    /// The cookie's name. Cookies are for a host, whatever the port: those of another instance here have another name.
    pub(super) cookie: String,
    work: Semaphore,
}

impl Authorizer {
    pub(super) fn new(
        tokens: Tokens,
        hosts: Vec<String>,
        port: u16,
        loopback: bool,
        tls: bool,
    ) -> Self {
        let cookie = format!("limiter_{port}");
        Self { tokens, hosts, loopback, tls, cookie, work: Semaphore::new(MAX_AT_WORK) }
    }

    /// What the session's cookie says.
    pub(super) fn cookie_of<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let all = headers.get_all(header::COOKIE).iter();
        let mut cookies = all.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(';'));
        cookies.find_map(|cookie| cookie.trim().strip_prefix(&self.cookie)?.strip_prefix('='))
    }

    /// What whoever sent this may do; the error is a token that is wrong.
    pub(super) fn role(&self, headers: &HeaderMap, now: Instant) -> Result<Option<Role>, ()> {
        if let Some(given) = headers.get(header::AUTHORIZATION) {
            let token = given.as_bytes().split_at_checked(7).and_then(|(scheme, token)| {
                scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
            });
            // On a loopback address a wrong token would else pass for none, and its sender take
            // the reader's answer for success.
            return token.and_then(|token| self.tokens.role_of(token)).map(Some).ok_or(());
        }
        let session = self.cookie_of(headers).and_then(|id| self.tokens.session(id, now));
        Ok(session.max(self.tokens.anybody(self.loopback)))
    }

    /// Why a request is refused, if it is.
    fn refuses(&self, request: &Request, now: Instant) -> Option<Response> {
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let refuse = |status, text, hint| Some(refusal(status, text, hint));
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        // Before anything else: a page that has bound its name to us should not even learn what is
        // served.
        if !host.is_some_and(|host| is_own(host, &self.hosts)) {
            let hint = "name it by its address, or run the daemon with --http-host NAME";
            return refuse(StatusCode::MISDIRECTED_REQUEST, "this host has another name", hint);
        }
        // SameSite keeps our cookie from forms of other sites, but not from those of another port of this host.
        if !is_look(method) && !is_from_here(headers) {
            let hint = "changes are made from the dashboard's own page";
            return refuse(StatusCode::FORBIDDEN, "the request comes from another site", hint);
        }
        let wanted = match needs(method, uri.path()) {
            RequiredRole::Nothing => return None,
            RequiredRole::Never => {
                let hint = "the daemon's Unix socket has the whole API";
                return refuse(StatusCode::NOT_FOUND, "this is not served over TCP", hint);
            }
            RequiredRole::Role(role) => role,
        };
        let Ok(role) = self.role(headers, now) else {
            return Some(unauthorized("the token is wrong"));
        };
        if role >= Some(wanted) {
            return asks_too_much(uri);
        }
        // 403 where no token would help: 401 would ask for one that does not exist.
        if role.is_some() || (wanted == Role::Admin && !self.tokens.has_admin()) {
            let hint = match self.tokens.has_admin() {
                true => "sign in with the token of --http-admin-token-file",
                false => "run the daemon with --http-admin-token-file FILE to allow changes",
            };
            return refuse(StatusCode::FORBIDDEN, "nothing may be changed from here", hint);
        }
        // Only the page itself: a client of the API must see that a token is needed.
        if uri.path() == "/" {
            return Some(Redirect::to("/login").into_response());
        }
        Some(unauthorized("a token is needed"))
    }
}

/// Refuses what would take much memory.
fn asks_too_much(uri: &Uri) -> Option<Response> {
    if uri.path() != "/v1/top" {
        return None;
    }
    // What cannot be read is refused by the route, in its own words.
    let Ok(Query(TopQuery { n, .. })) = Query::<TopQuery>::try_from_uri(uri) else { return None };
    let hint = format!("ask for 1 to {MAX_SOURCES}, or use the daemon's Unix socket");
    let refused = || refusal(StatusCode::BAD_REQUEST, "so many sources are not listed here", &hint);
    (n > MAX_SOURCES).then(refused)
}

pub(super) fn refusal(status: StatusCode, text: &str, hint: &str) -> Response {
    Refusal(status, Failure::new(exit::USAGE, text).hint(hint)).into_response()
}

fn unauthorized(text: &str) -> Response {
    let hint = "send `Authorization: Bearer TOKEN`, or sign in at /login";
    let mut response = refusal(StatusCode::UNAUTHORIZED, text, hint);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Lets a request through if it may be made, and adds to every answer what a browser may do with it.
pub(super) async fn check(
    State(authorizer): State<Arc<Authorizer>>,
    request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = match authorizer.refuses(&request, Instant::now()) {
        Some(refused) => {
            // Before it has a place at work: who guesses keeps nobody else waiting.
            if refused.status() == StatusCode::UNAUTHORIZED {
                tokio::time::sleep(PENALTY).await;
            }
            // Not louder, or whoever can connect could fill the log.
            tracing::debug!("refused over TCP: {method} {path} ({})", refused.status());
            refused
        }
        None => {
            let late = |_| {
                let hint = "try again; if it stays so, look at the daemon's log";
                refusal(StatusCode::REQUEST_TIMEOUT, "it has taken too long", hint)
            };
            timeout(TIMEOUT, at_work(&authorizer, request, next)).await.unwrap_or_else(late)
        }
    };
    if !is_look(&method) && response.status().is_success() {
        tracing::info!("over the dashboard: {method} {path}");
    }
    let headers = response.headers_mut();
    for (name, value) in BROWSER_RULES {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // What is told of sources must not stay behind in a browser's cache.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn at_work(authorizer: &Authorizer, request: Request, next: Next) -> Response {
    // All of it first: who sends slowly keeps nobody else waiting.
    let (head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY_LEN).await else {
        let hint = format!("send all of at most {MAX_BODY_LEN} bytes");
        return refusal(StatusCode::PAYLOAD_TOO_LARGE, "the body cannot be read", &hint);
    };
    let public = needs(&head.method, head.uri.path()) == RequiredRole::Nothing;
    let request = Request::from_parts(head, Body::from(body));
    // It is never closed. Who signs in, or in vain, keeps nobody else waiting either.
    let _permit = if public { None } else { authorizer.work.acquire().await.ok() };
    acting(Actor::Dashboard, next.run(request)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names_are_refused() {
        let names = ["Limiter.example.net".to_owned()];
        for own in [
            "127.0.0.1:9090",
            "127.0.0.1",
            "localhost:9090",
            "LOCALHOST",
            "[::1]:9090",
            "[2001:db8::1]",
            "limiter.example.net:443",
        ] {
            assert!(is_own(own, &names), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:9090",
            "localhost.evil.example",
            "",
            "[::1",
            "[evil]:80",
            "[::1]evil",
            "127.0.0.1.evil.example",
            "limiter.example.net.evil",
            "1.2.3",
        ] {
            assert!(!is_own(foreign, &names), "{foreign}");
        }
    }

    #[test]
    fn other_sites_are_told_apart() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                (header::HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            pairs.collect::<HeaderMap>()
        };
        let host = ("host", "127.0.0.1:9090");
        for from_here in [
            &[host][..],
            &[host, ("origin", "http://127.0.0.1:9090")],
            &[host, ("origin", "https://127.0.0.1:9090"), ("sec-fetch-site", "same-origin")],
        ] {
            assert!(is_from_here(&headers(from_here)), "{from_here:?}");
        }
        for elsewhere in [
            &[host, ("origin", "http://evil.example")][..],
            &[host, ("origin", "null")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("origin", "http://127.0.0.1:9091"), ("sec-fetch-site", "same-site")],
        ] {
            assert!(!is_from_here(&headers(elsewhere)), "{elsewhere:?}");
        }
    }

    #[test]
    fn only_what_is_named_is_served() {
        let (reader, admin) = (RequiredRole::Role(Role::Reader), RequiredRole::Role(Role::Admin));
        for (method, path, wanted) in [
            (Method::GET, "/", reader),
            (Method::GET, "/assets/app.js", RequiredRole::Nothing),
            (Method::POST, "/assets/app.js", RequiredRole::Never),
            (Method::POST, "/login", RequiredRole::Nothing),
            (Method::GET, "/v1/status", reader),
            (Method::GET, "/metrics", reader),
            (Method::GET, "/v1/sources/192.0.2.1", reader),
            (Method::GET, "/v1/limits", RequiredRole::Never),
            (Method::PUT, "/v1/limits", admin),
            (Method::DELETE, "/v1/limits", admin),
            (Method::POST, "/v1/lists/deny", admin),
            (Method::POST, "/v1/lists/allow", RequiredRole::Never),
            (Method::POST, "/v1/lists/deny/clear", RequiredRole::Never),
            (Method::POST, "/v1/limits/import", RequiredRole::Never),
            (Method::POST, "/v1/reload", RequiredRole::Never),
            (Method::POST, "/v1/interfaces", RequiredRole::Never),
            (Method::DELETE, "/v1/interfaces/eth0", RequiredRole::Never),
            (Method::GET, "/v1/capture", RequiredRole::Never),
        ] {
            assert_eq!(needs(&method, path), wanted, "{method} {path}");
        }
    }
}
