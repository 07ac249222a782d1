use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode, header};
use tower::ServiceExt;

use ::listen::token::Token;

use super::tokens::Tokens;
use super::*;
use control::fake::Fake;

const READER: &str = "reader-0123456789";
const ADMIN: &str = "admin-0123456789";

struct Page {
    router: Router,
    fake: Fake,
    _directory: tempfile::TempDir,
}

impl Page {
    fn new(reader: Option<&str>, admin: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let host = Host::new(fake.core(&directory));
        let token = |token: &str| Token::new(token.as_bytes());
        let tokens = Tokens::new(reader.map(token), admin.map(token));
        let authorizer = Authorizer::new(tokens, Vec::new(), 9090, true, false);
        Self { router: routes(host, Arc::new(authorizer)), fake, _directory: directory }
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:9090");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn status(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> u16 {
        self.ask(method, path, headers, body).await.status().as_u16()
    }
}

const LIMIT: &str = r#"{"target":"198.51.100.7","rate":"10pps"}"#;
const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn everyone_here_may_look_and_nobody_may_change() {
    let page = Page::new(None, None);
    let answer = page.ask("GET", "/", &[], "").await;
    assert_eq!(answer.status(), StatusCode::OK);
    let policy = answer.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert!(answer.headers().get("access-control-allow-origin").is_none());
    for path in ["/v1/status", "/v1/top?n=5", "/v1/session", "/assets/app.js", "/assets/uplot.js"] {
        assert_eq!(page.status("GET", path, &[], "").await, 200, "{path}");
    }
    assert_eq!(page.status("PUT", "/v1/limits", &[JSON], LIMIT).await, 403);
    assert_eq!(page.status("GET", "/v1/limits", &[], "").await, 404);
    assert_eq!(page.status("POST", "/v1/reload", &[], "").await, 404);
    assert_eq!(page.status("GET", "/v1/top?n=101", &[], "").await, 400);
    assert!(page.fake.state().limits.is_empty());
}

#[tokio::test]
async fn another_host_name_is_refused() {
    let page = Page::new(None, None);
    let refused = page.ask("GET", "/v1/status", &[("host", "evil.example:9090")], "").await;
    assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST);
    let text = to_bytes(refused.into_body(), 4096).await.unwrap();
    assert!(String::from_utf8_lossy(&text).contains("--http-host"));
}

#[tokio::test]
async fn a_token_is_asked_for() {
    let page = Page::new(Some(READER), Some(ADMIN));
    let to_login = page.ask("GET", "/", &[], "").await;
    assert_eq!(
        (to_login.status(), &to_login.headers()["location"]),
        (StatusCode::SEE_OTHER, &"/login".parse().unwrap())
    );
    let bearer = |token: &str| format!("Bearer {token}");
    assert_eq!(page.status("GET", "/v1/status", &[], "").await, 401);
    let wrong = bearer("reader-012345678x");
    assert_eq!(page.status("GET", "/v1/status", &[("authorization", &wrong)], "").await, 401);
    assert_eq!(page.status("GET", "/v1/status", &[("authorization", "Basic x")], "").await, 401);
    let (reader, admin) = (bearer(READER), bearer(ADMIN));
    let (reader, admin) = (("authorization", reader.as_str()), ("authorization", admin.as_str()));
    assert_eq!(page.status("GET", "/v1/status", &[reader], "").await, 200);
    assert_eq!(page.status("PUT", "/v1/limits", &[reader, JSON], LIMIT).await, 403);
    assert_eq!(page.status("PUT", "/v1/limits", &[JSON], LIMIT).await, 401);
    let elsewhere = ("origin", "http://evil.example");
    assert_eq!(page.status("PUT", "/v1/limits", &[admin, JSON, elsewhere], LIMIT).await, 403);
    assert!(page.fake.state().limits.is_empty());
    assert_eq!(page.status("PUT", "/v1/limits", &[admin, JSON], LIMIT).await, 200);
    assert_eq!(page.fake.state().limits.len(), 1);
    let deny = page.status("POST", "/v1/lists/deny?ttl_seconds=60", &[admin], "198.51.100.9").await;
    assert_eq!((deny, page.fake.state().lists.len()), (200, 1));
}

#[tokio::test]
async fn a_session_lasts_until_it_is_ended() {
    let page = Page::new(Some(READER), Some(ADMIN));
    let form = ("content-type", "application/x-www-form-urlencoded");
    let wrong = page.ask("POST", "/login", &[form], "token=nonsense").await;
    assert_eq!(wrong.headers()[header::LOCATION], "/login?wrong");
    assert!(wrong.headers().get(header::SET_COOKIE).is_none());
    let right = page.ask("POST", "/login", &[form], &format!("token={ADMIN}")).await;
    let cookie = right.headers()[header::SET_COOKIE].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains(ADMIN));
    let own = ("cookie", cookie.split(';').next().unwrap());
    assert_eq!(page.status("GET", "/", &[own], "").await, 200);
    let session = page.ask("GET", "/v1/session", &[own], "").await;
    let text = to_bytes(session.into_body(), 4096).await.unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(
        text.starts_with(r#"{"admin":true,"can_become_admin":false,"signed_in":true"#),
        "{text}"
    );
    assert_eq!(page.status("PUT", "/v1/limits", &[own, JSON], LIMIT).await, 200);
    assert_eq!(page.status("POST", "/logout", &[own], "").await, 303);
    assert_eq!(page.status("GET", "/v1/status", &[own], "").await, 401);
}
