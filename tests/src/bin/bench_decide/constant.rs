//! Servers that answer a constant over the same faces: what a decision costs beyond them.

use std::{convert::Infallible, io};

use hyper::{Request, Response, body::Bytes, header, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tonic::service::Routes;

use crate::{face::command, grpc::ConstantService};

/// The answer of `CL.THROTTLE`.
const REPLY: &[u8] = b"*5\r\n:0\r\n:100\r\n:99\r\n:-1\r\n:1\r\n";

/// The answer of `/v1/decide`, as long as the real one.
const BODY: &str = r#"{"allowed":true,"items":[{"allowed":true,"limit":1000,"period_s":60.0,"remaining":99,"reset_s":0.06,"rule":"bench.user"}]}"#;

/// Serves RESP, HTTP and gRPC at three ports, for ever.
pub(crate) async fn serve([resp, http, grpc]: [u16; 3]) -> io::Result<()> {
    let listen = |port| TcpListener::bind(("127.0.0.1", port));
    let (resp, http, grpc) = (listen(resp).await?, listen(http).await?, listen(grpc).await?);
    loop {
        tokio::select! {
            accepted = resp.accept() => drop(tokio::spawn(serve_resp(accepted?.0))),
            accepted = http.accept() => drop(tokio::spawn(serve_http(accepted?.0))),
            accepted = grpc.accept() => drop(tokio::spawn(serve_grpc(accepted?.0))),
        }
    }
}

async fn serve_resp(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // All commands of the benchmark have one length: nothing is parsed.
    let mut length = Vec::new();
    command("CL.THROTTLE", &mut length, 0);
    let (mut input, mut replies, mut open) = (vec![0; 64 * 1024], Vec::new(), 0);
    loop {
        let read = stream.read(&mut input).await?;
        if read == 0 {
            return Ok(());
        }
        open += read;
        replies.clear();
        while open >= length.len() {
            open -= length.len();
            replies.extend_from_slice(REPLY);
        }
        stream.write_all(&replies).await?;
    }
}

async fn serve_http(stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let answer = service_fn(async |_: Request<hyper::body::Incoming>| {
        let response = Response::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .header("ratelimit-policy", "\"bench.user\";q=1000;w=60")
            .header("ratelimit", "\"bench.user\";r=99;t=1")
            .body(http_body_util::Full::new(Bytes::from_static(BODY.as_bytes())));
        Ok::<_, Infallible>(response.expect("the headers are constants"))
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}

async fn serve_grpc(stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let app = Routes::new(ConstantService).into_axum_router();
    let service = hyper_util::service::TowerToHyperService::new(app);
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}
