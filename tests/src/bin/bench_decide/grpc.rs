//! gRPC, as its client sees it, and a server that answers a constant.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tonic::{
    Request, Response, Status,
    body::Body,
    client,
    codegen::{Service, http},
    server::{self, UnaryService},
    transport::Channel,
};
use tonic_prost::ProstCodec;

/// `envoy.service.ratelimit.v3.RateLimitRequest`, as far as it is sent here.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// `throttlecrab.ThrottleRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ThrottleRequest {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(int32, tag = "2")]
    max_burst: i32,
    #[prost(int32, tag = "3")]
    count_per_period: i32,
    #[prost(int32, tag = "4")]
    period: i32,
    #[prost(int32, tag = "5")]
    quantity: i32,
}

/// Any answer, of which one field is read: `overall_code` of the one service, `allowed` of the other.
#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(int32, tag = "1")]
    code: i32,
}

const LIMITER: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const THROTTLECRAB: &str = "/throttlecrab.RateLimiter/Throttle";

/// A client over one connection.
#[derive(Clone)]
pub(crate) struct Client {
    channel: Channel,
    is_throttlecrab: bool,
}

impl Client {
    pub(crate) async fn connect(port: u16, is_throttlecrab: bool) -> io::Result<Self> {
        let endpoint = Channel::from_shared(format!("http://127.0.0.1:{port}"));
        let channel = endpoint.map_err(io::Error::other)?.connect().await;
        Ok(Self { channel: channel.map_err(io::Error::other)?, is_throttlecrab })
    }

    pub(crate) async fn ask(self, key: u64) -> io::Result<()> {
        let key = format!("user{key:08}");
        if self.is_throttlecrab {
            let request = ThrottleRequest {
                key,
                max_burst: 99,
                count_per_period: 1_000,
                period: 60,
                quantity: 1,
            };
            return call(self.channel, THROTTLECRAB, request).await;
        }
        let entries = vec![Entry { key: "user".into(), value: key }];
        let descriptors = vec![Descriptor { entries }];
        call(self.channel, LIMITER, RateLimitRequest { domain: "bench".into(), descriptors }).await
    }
}

async fn call<M: prost::Message + 'static>(
    channel: Channel,
    path: &'static str,
    request: M,
) -> io::Result<()> {
    let mut grpc = client::Grpc::new(channel);
    grpc.ready().await.map_err(io::Error::other)?;
    let codec = ProstCodec::<M, Answer>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    let answer = grpc.unary(Request::new(request), path, codec).await;
    let answer = answer.map_err(io::Error::other)?.into_inner();
    if answer.code == 0 { Err(io::Error::other("no answer in the answer")) } else { Ok(()) }
}

/// What `limiter-serve` answers to the first request, always.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Constant {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<ConstantStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ConstantStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<ConstantLimit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<ConstantLimit>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ConstantLimit {
    #[prost(int64, tag = "1")]
    first: i64,
    #[prost(int32, tag = "2")]
    second: i32,
}

/// The server of it.
#[derive(Clone)]
pub(crate) struct ConstantService;

impl server::NamedService for ConstantService {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl Service<http::Request<Body>> for ConstantService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async {
            let mut grpc = server::Grpc::new(ProstCodec::default());
            Ok(grpc.unary(Self, request).await)
        })
    }
}

impl UnaryService<RateLimitRequest> for ConstantService {
    type Response = Constant;
    type Future = Ready<Result<Response<Constant>, Status>>;

    fn call(&mut self, _: Request<RateLimitRequest>) -> Self::Future {
        let limit = Some(ConstantLimit { first: 1_000, second: 2 });
        let status = ConstantStatus {
            code: 1,
            current_limit: limit.clone(),
            limit_remaining: 99,
            duration_until_reset: limit,
        };
        ready(Ok(Response::new(Constant { overall_code: 1, statuses: vec![status] })))
    }
}
