//! gRPC: Envoy's rate limit service, its rate limit quota service, and health.
//!
//! Their two methods are by hand what `tonic-build` makes: that needs no compiler of protobuf.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{self, State};
use axum::http;
use axum::routing::post;
use axum::{Router, response};
use futures_util::Stream;
use prost::Message;
use tokio::sync::watch;
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tonic_prost::ProstCodec;

use crate::latency::Face;
use crate::rlqs::{self, QuotaResponse, UsageReports};
use crate::rls::{self, RateLimitRequest, RateLimitResponse};
use crate::service::Service;

/// The largest message, bytes.
const MAX_MESSAGE: usize = 1024 * 1024;

/// The name that health is asked of, as `envoyproxy/ratelimit` has it.
const HEALTH_NAME: &str = "ratelimit";

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const QUOTA: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// Who answers.
#[derive(Clone)]
struct Methods {
    service: Arc<Service>,
    /// Whether answers have headers for the clients of the proxy.
    headers: bool,
    stop: watch::Receiver<bool>,
}

impl UnaryService<RateLimitRequest> for Methods {
    type Response = RateLimitResponse;
    type Future = Pin<Box<dyn Future<Output = Result<Response<RateLimitResponse>, Status>> + Send>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let (service, headers) = (Arc::clone(&self.service), self.headers);
        Box::pin(async move {
            let start = Instant::now();
            let answer = rls::answer(&service, request.get_ref(), headers).await;
            service.latencies.count(Face::Grpc, 1, start.elapsed());
            let refused = |error: rls::RlsError| Status::invalid_argument(error.to_string());
            answer.map(Response::new).map_err(refused)
        })
    }
}

impl StreamingService<UsageReports> for Methods {
    type Response = QuotaResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<QuotaResponse, Status>> + Send>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<UsageReports>>) -> Self::Future {
        let (service, stop) = (Arc::clone(&self.service), self.stop.clone());
        let answers: Self::ResponseStream =
            Box::pin(rlqs::serve(service, request.into_inner(), stop));
        ready(Ok(Response::new(answers)))
    }
}

/// What reads and writes messages, within bounds.
fn grpc<A: Message + 'static, Q: Message + Default + 'static>() -> Grpc<ProstCodec<A, Q>> {
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_MESSAGE)
}

async fn rate_limit(
    State(methods): State<Methods>,
    request: extract::Request,
) -> response::Response {
    let answer: http::Response<_> = grpc().unary(methods, request).await;
    answer.map(Body::new)
}

async fn quota(State(methods): State<Methods>, request: extract::Request) -> response::Response {
    let answer: http::Response<_> = grpc().streaming(methods, request).await;
    answer.map(Body::new)
}

/// The methods, and what tells of their health.
pub(crate) async fn routes(
    service: Arc<Service>,
    headers: bool,
    stop: watch::Receiver<bool>,
) -> (Router, HealthReporter) {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status(HEALTH_NAME, ServingStatus::Serving).await;
    let methods = Router::new()
        .route(RATE_LIMIT, post(rate_limit))
        .route(QUOTA, post(quota))
        .with_state(Methods { service, headers, stop });
    (Routes::new(health_service).into_axum_router().merge(methods), health)
}

/// Tells that this server is about to end, so that proxies take another one.
pub(crate) async fn drain(health: &HealthReporter) {
    for name in [HEALTH_NAME, ""] {
        health.set_service_status(name, ServingStatus::NotServing).await;
    }
}
