//! gRPC: `envoy.service.ratelimit.v3.RateLimitService`, and health.
//!
//! The service is by hand what `tonic-build` makes of one method: that needs no compiler of protobuf.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use tonic::body::Body;
use tonic::codegen::{Service as TowerService, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tonic_prost::ProstCodec;

use crate::metrics::Face;
use crate::rls::{RateLimitRequest, RateLimitResponse, answer};
use crate::service::Service;

/// The largest request, bytes.
const MAX_REQUEST: usize = 256 * 1024;

/// The name that health is asked of, as `envoyproxy/ratelimit` has it.
const HEALTH_NAME: &str = "ratelimit";

/// The one method.
const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[derive(Clone)]
struct RateLimitService {
    service: Arc<Service>,
    headers: bool,
}

impl NamedService for RateLimitService {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl TowerService<http::Request<Body>> for RateLimitService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != METHOD {
            return Box::pin(ready(Ok(Status::unimplemented("no such method").into_http())));
        }
        let method = self.clone();
        Box::pin(async move {
            let codec = ProstCodec::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_REQUEST);
            Ok(grpc.unary(method, request).await)
        })
    }
}

impl UnaryService<RateLimitRequest> for RateLimitService {
    type Response = RateLimitResponse;
    type Future = Ready<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let start = Instant::now();
        let answer = answer(&self.service, request.get_ref(), self.headers);
        self.service.latencies.count(Face::Grpc, 1, start.elapsed());
        ready(
            answer.map(Response::new).map_err(|error| Status::invalid_argument(error.to_string())),
        )
    }
}

/// The services, and what tells of their health.
pub(crate) async fn routes(service: Arc<Service>, headers: bool) -> (Router, HealthReporter) {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status(HEALTH_NAME, ServingStatus::Serving).await;
    let routes = Routes::new(RateLimitService { service, headers }).add_service(health_service);
    (routes.into_axum_router(), health)
}

/// Tells that this server is about to end, so that proxies take another one.
pub(crate) async fn drain(health: &HealthReporter) {
    for name in [HEALTH_NAME, ""] {
        health.set_service_status(name, ServingStatus::NotServing).await;
    }
}
