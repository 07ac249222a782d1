//! HTTP: `/v1/decide` for anybody who can send a request, as a proxy for `forward_auth` does, and `/json` for those who
//! speak the messages of `envoyproxy/ratelimit`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{CentralReport, KeyReport, TopKeysReport};
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use decide::act::Act;
use decide::decider::{Decision, Item, Key, Status};
use decide::key::Entry;
use listen::token::Token;
use model::Invalid;
use model::meter::{Choice, Limit};
use model::overrides::{Descriptor, split};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sfv::{KeyRef, ListSerializer, StringRef, key_ref};
use tokio::time::timeout;

use crate::latency::Face;
use crate::metrics;
use crate::push_down::Proxies;
use crate::rls;
use crate::service::Service;

/// The largest body of a request, bytes.
const MAX_BODY: usize = 256 * 1024;

/// How long a body may take to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The most keys of a request.
const MAX_ITEMS: usize = 64;

/// The longest key, bytes.
const MAX_KEY: usize = 8 * 1024;

/// The header in which proxies tell who asks.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// What the answer is that is no.
const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

const POLICY_HEADER: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT_HEADER: HeaderName = HeaderName::from_static("ratelimit");

/// What is asked about one key.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Ask {
    /// The key.
    key: Option<String>,
    /// The header of the request that has it.
    key_from: Option<String>,
    /// The key of a descriptor: its rules hold.
    rule: Option<String>,
    /// The domain of the rule.
    domain: Option<String>,
    act: Option<Act>,
    cost: Option<u64>,
    /// Units in a period; a limit of the request.
    limit: Option<u64>,
    period: Option<String>,
    burst: Option<u64>,
    algorithm: Option<Choice>,
    granularity: Option<u64>,
    /// The status of a no.
    deny_status: Option<u16>,
}

/// Many keys: all of them are charged, or none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskMany {
    items: Vec<Ask>,
    deny_status: Option<u16>,
}

/// Why there is no decision.
#[derive(Debug)]
struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    fn new(detail: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, detail: detail.into() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or_default();
        let body = json!({ "title": title, "status": self.status.as_u16(), "detail": self.detail });
        problem(self.status, &body)
    }
}

/// Problem details (RFC 9457).
fn problem(status: StatusCode, body: &impl Serialize) -> Response {
    let kind = HeaderValue::from_static("application/problem+json");
    let mut answer = (status, Json(body)).into_response();
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

/// The routes. With a token, whoever does not show it is refused.
pub(crate) fn routes(service: Arc<Service>, token: Option<Arc<Token>>) -> Router {
    let routes = Router::new()
        .route("/v1/decide", get(decide_one).post(decide_many))
        .route("/v1/rules", get(rules))
        .route("/v1/top", get(top))
        .route("/v1/keys", get(key))
        .route("/v1/store", get(store))
        .route("/json", post(json))
        .route("/metrics", get(page));
    guarded(routes, token)
        .route("/healthz", get(async || "ok"))
        .layer(middleware::from_fn(bounded))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(service)
}

/// Routes of which nobody gets an answer who does not show the token, if there is one.
pub(crate) fn guarded<S: Clone + Send + Sync + 'static>(
    routes: Router<S>,
    token: Option<Arc<Token>>,
) -> Router<S> {
    match token {
        None => routes,
        Some(token) => routes.layer(middleware::from_fn_with_state(token, check)),
    }
}

/// Refuses requests that are too long, or take too long to come.
pub(crate) async fn bounded(request: Request, next: Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let refused = if length.is_some_and(|length| length > MAX_BODY) {
        let detail = format!("a body has {MAX_BODY} bytes at most");
        Problem { status: StatusCode::PAYLOAD_TOO_LARGE, detail }
    } else {
        match timeout(BODY_TIMEOUT, next.run(request)).await {
            Ok(response) => return response,
            Err(_) => {
                let detail = format!("the body took more than {} s", BODY_TIMEOUT.as_secs());
                Problem { status: StatusCode::REQUEST_TIMEOUT, detail }
            }
        }
    };
    refused.into_response()
}

/// Lets those through who have shown the token.
async fn check(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    if shown.is_some_and(|shown| token.is(shown)) {
        return next.run(request).await;
    }
    let detail = "send `Authorization: Bearer TOKEN`".into();
    let mut answer = Problem { status: StatusCode::UNAUTHORIZED, detail }.into_response();
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}

async fn decide_one(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    ask: Result<Query<Ask>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(ask) = ask.map_err(|error| Problem::new(error.body_text()))?;
    answer(&service, &headers, &[&ask], ask.deny_status).await
}

async fn decide_many(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    ask: Result<Query<Ask>, QueryRejection>,
    body: Bytes,
) -> Result<Response, Problem> {
    if body.is_empty() {
        return decide_one(State(service), headers, ask).await;
    }
    let many: AskMany =
        serde_json::from_slice(&body).map_err(|error| Problem::new(error.to_string()))?;
    let asks: Vec<&Ask> = many.items.iter().collect();
    answer(&service, &headers, &asks, many.deny_status).await
}

async fn answer(
    service: &Service,
    headers: &HeaderMap,
    asks: &[&Ask],
    deny_status: Option<u16>,
) -> Result<Response, Problem> {
    let start = Instant::now();
    let denied = match deny_status.map(StatusCode::from_u16) {
        None => DENIED,
        Some(Ok(status)) if status.is_client_error() => status,
        Some(_) => return Err(Problem::new("deny_status is from 400 to 499")),
    };
    if asks.len() > MAX_ITEMS {
        return Err(Problem::new(format!("{MAX_ITEMS} items at most")));
    }
    let proxies = service.push_downs.trusted();
    let keys = asks.iter().map(|ask| ask.key(headers, proxies)).collect::<Result<Vec<_>, _>>()?;
    let entries: Vec<[Entry<'_>; 1]> = asks
        .iter()
        .zip(&keys)
        .map(|(ask, key)| [(ask.rule.as_deref().unwrap_or_default(), &**key)])
        .collect();
    let items = asks.iter().zip(&entries).map(|(ask, entries)| ask.item(entries));
    let items = items.collect::<Result<Vec<_>, _>>()?;
    let decision = service.decide(&items).await;
    let decision = decision.map_err(|error| Problem::new(error.to_string()))?;
    for (ask, status) in asks.iter().zip(&decision.statuses) {
        ask.must_be_known(service, status)?;
    }
    let response = tell(&decision, denied);
    service.latencies.count(Face::Http, 1, start.elapsed());
    Ok(response)
}

impl Ask {
    fn key<'a>(
        &'a self,
        headers: &'a HeaderMap,
        proxies: &Proxies,
    ) -> Result<Cow<'a, str>, Problem> {
        let key: Cow<'_, str> = match (&self.key, &self.key_from) {
            (Some(key), None) => key.into(),
            (None, Some(name)) if name.eq_ignore_ascii_case(FORWARDED_FOR) => {
                let lines = headers.get_all(FORWARDED_FOR).iter();
                let client = proxies.client(lines.map(|line| line.to_str().unwrap_or_default()));
                let problem = || Problem::new("no address of a client in X-Forwarded-For");
                client.ok_or_else(problem)?.to_string().into()
            }
            (None, Some(name)) => {
                let value = headers.get(name).and_then(|value| value.to_str().ok());
                let problem = || Problem::new(format!("no header {name} in the request"));
                value.ok_or_else(problem)?.into()
            }
            _ => return Err(Problem::new("give key, or key_from with the name of a header")),
        };
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(Problem::new(format!("a key has 1 to {MAX_KEY} bytes")));
        }
        Ok(key)
    }

    fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or("default")
    }

    fn item<'a>(&'a self, entries: &'a [Entry<'a>; 1]) -> Result<Item<'a>, Problem> {
        let key = match (&self.rule, self.limit) {
            (Some(_), None) => Key::Descriptor { domain: self.domain(), entries },
            (None, Some(_)) => Key::Named(entries[0].1.as_bytes()),
            _ => return Err(Problem::new("give a rule, or a limit with its period")),
        };
        let cost = self.cost.unwrap_or(1);
        let act = match self.act.unwrap_or(Act::Take) {
            Act::Take if cost == 0 => Act::Peek,
            act => act,
        };
        Ok(Item { key, limit: self.limit()?, act, cost })
    }

    fn limit(&self) -> Result<Option<Limit>, Problem> {
        let Some(requests) = self.limit else {
            let rest = self.period.is_some() || self.burst.is_some() || self.algorithm.is_some();
            return match rest || self.granularity.is_some() {
                true => Err(Problem::new("period, burst, algorithm and granularity need a limit")),
                false => Ok(None),
            };
        };
        let window = match &self.period {
            None => Duration::from_secs(1),
            Some(period) => humantime::parse_duration(period)
                .map_err(|error| Problem::new(format!("period {period:?}: {error}")))?,
        };
        let algorithm = self.algorithm.unwrap_or_default();
        let (burst, granularity) = (self.burst, self.granularity);
        Ok(Some(Limit { requests, window, algorithm, burst, granularity }))
    }

    /// An error for a rule that there is not: a typing error would else let everybody through.
    fn must_be_known(&self, service: &Service, status: &Status) -> Result<(), Problem> {
        match &self.rule {
            Some(rule) if status.rule.is_none() && status.terms.is_none() => {
                if service.rules().has_key(self.domain(), rule) {
                    return Ok(());
                }
                let detail = format!("no rule {rule} in domain {}", self.domain());
                Err(Problem { status: StatusCode::NOT_FOUND, detail })
            }
            _ => Ok(()),
        }
    }
}

/// Whole seconds, no fewer than there are.
fn seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

fn policy(status: &Status) -> &str {
    match &status.rule {
        None => "key",
        Some(rule) if rule.name.is_empty() => &rule.path,
        Some(rule) => &rule.name,
    }
}

/// `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10).
fn limit_headers(decision: &Decision) -> Option<(String, String)> {
    const QUOTA: &KeyRef = key_ref("q");
    const WINDOW: &KeyRef = key_ref("w");
    const REMAINING: &KeyRef = key_ref("r");
    const RESET: &KeyRef = key_ref("t");
    // Numbers there have 15 digits at most.
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let (mut policies, mut limits) = (ListSerializer::new(), ListSerializer::new());
    for status in &decision.statuses {
        let Some(terms) = status.terms else { continue };
        let Ok(name) = StringRef::from_str(policy(status)) else { continue };
        let window = seconds(terms.limit.window);
        let _ = policies
            .bare_item(name)
            .parameter(QUOTA, number(terms.limit.requests))
            .parameter(WINDOW, number(window));
        let limit = limits.bare_item(name).parameter(REMAINING, number(status.remaining));
        if let Some(reset) = status.reset {
            let _ = limit.parameter(RESET, number(seconds(reset)));
        }
    }
    Some((policies.finish()?, limits.finish()?))
}

/// What is told of a key.
#[derive(Serialize)]
struct Told<'a> {
    allowed: bool,
    remaining: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    period_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    /// It is over the limit, and the rule is a shadow.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
}

impl<'a> Told<'a> {
    fn new(status: &'a Status) -> Self {
        let limit = status.terms.map(|terms| terms.limit);
        Self {
            allowed: !status.over,
            remaining: status.remaining,
            limit: limit.map(|limit| limit.requests),
            period_s: limit.map(|limit| limit.window.as_secs_f64()),
            reset_s: status.reset.map(|reset| reset.as_secs_f64()),
            rule: status.rule.as_ref().map(|rule| rule.path.as_str()),
            shadow: status.shadowed,
        }
    }
}

#[derive(Serialize)]
struct Allowed<'a> {
    allowed: bool,
    items: Vec<Told<'a>>,
}

/// Problem details of a request over a limit.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Denied<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    violated_policies: Vec<&'a str>,
    items: Vec<Told<'a>>,
}

/// The answer to a request.
fn tell(decision: &Decision, denied: StatusCode) -> Response {
    let items = decision.statuses.iter().map(Told::new).collect();
    let mut answer = if decision.over {
        let over = decision.statuses.iter().filter(|status| status.over);
        let body = Denied {
            r#type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
            title: "Request cannot be satisfied as assigned quota has been exceeded",
            status: denied.as_u16(),
            violated_policies: over.map(policy).collect(),
            items,
        };
        problem(denied, &body)
    } else {
        Json(Allowed { allowed: true, items }).into_response()
    };
    let headers = answer.headers_mut();
    if let Some((policies, limits)) = limit_headers(decision) {
        for (name, value) in [(POLICY_HEADER, policies), (LIMIT_HEADER, limits)] {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
    }
    let waits = decision.statuses.iter().filter(|status| status.over).map(|status| status.reset);
    // Without a time, trying again never helps.
    if let (true, Some(waits)) = (decision.over, waits.collect::<Option<Vec<_>>>()) {
        let wait = waits.into_iter().max().unwrap_or_default();
        headers.insert(header::RETRY_AFTER, seconds(wait).max(1).into());
    }
    answer
}

async fn json(State(service): State<Arc<Service>>, body: Bytes) -> Result<Response, Problem> {
    let start = Instant::now();
    let request: rls::RateLimitRequest =
        serde_json::from_slice(&body).map_err(|error| Problem::new(error.to_string()))?;
    let answer = rls::answer(&service, &request, false).await;
    let answer = answer.map_err(|error| Problem::new(error.to_string()))?;
    service.latencies.count(Face::Http, 1, start.elapsed());
    let status = if answer.is_over() { DENIED } else { StatusCode::OK };
    Ok((status, Json(answer.json())).into_response())
}

async fn rules(State(service): State<Arc<Service>>) -> Json<Value> {
    let rules = service.rules();
    let rules = rules.all().iter().map(|rule| {
        let limit = rule.terms.map(|terms| {
            json!({ "requests": terms.limit.requests, "period_s": terms.limit.window.as_secs() })
        });
        let push_down_s = rule.push_down.map(|push_down| push_down.span.as_secs());
        json!({ "rule": rule.path, "name": rule.name, "limit": limit, "shadow": rule.shadow, "quota": rule.quota,
            "push_down_s": push_down_s, "scope": rule.scope.name(), "on_error": rule.scope.on_error(),
            "promise": rule.terms.map(|terms| rule.scope.promise(&terms.limit)) })
    });
    Json(json!({ "rules": rules.collect::<Vec<_>>() }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TopQuery {
    n: usize,
}

impl Default for TopQuery {
    fn default() -> Self {
        Self { n: 20 }
    }
}

async fn top(
    State(service): State<Arc<Service>>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Result<Json<TopKeysReport>, Problem> {
    let Query(query) = query.map_err(|error| Problem::new(error.body_text()))?;
    Ok(Json(service.top.report(query.n)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyQuery {
    /// The text of a descriptor: `["api","user","7"]`.
    r#for: String,
}

async fn key(
    State(service): State<Arc<Service>>,
    query: Result<Query<KeyQuery>, QueryRejection>,
) -> Result<Json<KeyReport>, Problem> {
    let Query(query) = query.map_err(|error| Problem::new(error.body_text()))?;
    let descriptor: Descriptor =
        query.r#for.parse().map_err(|error: Invalid| Problem::new(error.to_string()))?;
    let parts = descriptor.parts();
    let (domain, entries) = split(&parts);
    let key = Key::Descriptor { domain, entries: &entries };
    let item = Item { key, limit: None, act: Act::Peek, cost: 1 };
    let decision = service.decide(&[item]).await;
    let decision = decision.map_err(|error| Problem::new(error.to_string()))?;
    let status = decision.statuses.into_iter().next().unwrap_or_default();
    let of_rule = status.rule.as_ref().and_then(|rule| rule.terms);
    Ok(Json(KeyReport {
        descriptor,
        own: status.terms.is_some() && status.terms != of_rule,
        rule: status.rule.map(|rule| rule.path.clone()),
        limit: status.terms.map(|terms| terms.limit.to_string()),
        remaining: status.remaining,
        reset_s: status.reset.map(|reset| reset.as_secs_f64()),
    }))
}

async fn store(State(service): State<Arc<Service>>) -> Result<Json<CentralReport>, Problem> {
    match &service.central {
        Some(central) => Ok(Json(central.report(service.stance()))),
        None => {
            let detail = "no store is known: limiter-serve has no --store".into();
            Err(Problem { status: StatusCode::NOT_FOUND, detail })
        }
    }
}

async fn page(State(service): State<Arc<Service>>) -> Result<Response, Problem> {
    let failed = |_| Problem {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        detail: "metrics cannot be written".into(),
    };
    let page = metrics::page(&service).map_err(failed)?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], page).into_response())
}
