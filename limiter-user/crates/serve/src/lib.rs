//! `limiter-serve`: decisions for any key, over RESP, HTTP and gRPC.
//!
//! A process of its own, without privileges. What it decides is in the crate `decide`; the states of keys are in files that
//! it maps into memory.

mod central;
mod clock;
mod follow;
#[cfg(test)]
mod fuzz;
mod grpc;
mod http;
mod latency;
mod leases;
mod memory;
mod metrics;
mod options;
mod push_down;
mod quotas;
mod resp;
mod rlqs;
mod rls;
mod service;
mod shares;
mod synced;
mod top;

use std::fs;
use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use api::address::Address;
use api::error::{Failure, exit};
use axum::{Router, middleware};
use clap::{CommandFactory as _, Parser as _};
use decide::act::Act;
use decide::decider::{Item, Key, RequestError};
use decide::key::Entry;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use listen::tls::{self, TlsAcceptor};
use listen::token::Token;
use listen::{Connection, Listener, Terms};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;

use central::Central;
use options::Options;
use push_down::{Proxies, PushDowns};
use service::Service;

/// How long connections may go on when this ends.
const GRACE: Duration = Duration::from_secs(10);

/// Requests at once in a connection of HTTP/2.
const MAX_STREAMS: u32 = 1_024;

/// The largest head of a request, bytes, and the most headers in it.
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;

/// The command line, for pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Options::command()
}

/// Runs `limiter-serve` as its arguments say. Returns the exit code.
#[must_use]
pub fn main() -> u8 {
    let options = Options::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    // Whoever read the log may have gone. To say so on the same stderr would end the server.
    let log = log.log_internal_errors(false);
    log.with_ansi(io::stderr().is_terminal()).with_writer(io::stderr).init();
    let done = if options.check { check(&options) } else { run(options) };
    match done {
        Ok(()) => exit::OK,
        Err(failure) => {
            eprintln!("error: {failure}");
            if let Some(hint) = failure.hint {
                eprintln!("hint: {hint}");
            }
            failure.code
        }
    }
}

/// Reads the rules, and tells how many there are.
fn check(options: &Options) -> Result<(), Failure> {
    options.check_access()?;
    let mut tallies = decide::rules::Tallies::default();
    let partners =
        service::Partners { daemon: options.daemon.is_some(), store: options.store.is_some() };
    let rules = service::read_rules(&options.rules, partners, &mut tallies)?;
    println!("{} rules are fine", rules.all().len());
    Ok(())
}

fn run(options: Options) -> Result<(), Failure> {
    options.check_access()?;
    let failed = |error: io::Error| Failure::new(exit::NEGATIVE, format!("cannot serve: {error}"));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        // Before anything takes time: until then SIGHUP ends the process without a word.
        let hangup = signals(SignalKind::hangup())?;
        serve(&options, open(&options).await?, hangup).await
    })
}

/// The signals of a kind from now on.
fn signals(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind)
        .map_err(|error| Failure::new(exit::NEGATIVE, format!("cannot take signals: {error}")))
}

/// Opens the states of keys, and begins to speak with the store and the daemon.
async fn open(options: &Options) -> Result<Arc<Service>, Failure> {
    let proxies = Proxies::new(options.trusted_proxies.clone(), options.forwarded_depth);
    let proxies = Arc::new(proxies);
    let push_downs = match &options.daemon {
        None => PushDowns::off(proxies),
        Some(socket) => PushDowns::start(socket, proxies),
    };
    let central = match options.store() {
        None => None,
        Some(settings) => Some(Central::start(settings).await),
    };
    let service = Service::open(&options.place(), options.rules.clone(), push_downs, central)?;
    let service = Arc::new(service);
    synced::start(Arc::clone(&service));
    if let Some(socket) = &options.daemon {
        follow::start(Arc::clone(&service), socket.clone()).await;
        shares::start(Arc::clone(&service), socket.clone()).await;
        leases::start(Arc::clone(&service), socket.clone());
    }
    Ok(service)
}

/// `limiter-serve` without faces, in the process of who asks: benchmarks measure decisions so.
#[derive(Clone, Debug)]
pub struct Embedded(Arc<Service>);

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it is within its limit.
    pub admitted: bool,
    /// Whether its rule's `on_error` says so, as others did not answer.
    pub alone: bool,
}

impl Embedded {
    /// Starts with a command line, whose faces count for nothing.
    ///
    /// # Errors
    /// As the program: if there is something wrong with it.
    pub async fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let line = ["limiter-serve"].iter().chain(arguments);
        let wrong = |error: clap::Error| Failure::new(exit::USAGE, error.to_string());
        let options = Options::try_parse_from(line).map_err(wrong)?;
        open(&options).await.map(Self)
    }

    /// Asks for a unit of a descriptor.
    ///
    /// # Errors
    /// If there is nothing to decide.
    pub async fn ask(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Verdict, RequestError> {
        let key = Key::Descriptor { domain, entries };
        let item = Item { key, limit: None, act: Act::Take, cost: 1 };
        let decision = self.0.decide(&[item]).await?;
        let alone = decision.statuses.iter().any(|status| status.alone);
        Ok(Verdict { admitted: !decision.over, alone })
    }
}

/// What all faces are served with.
struct Common {
    token: Option<Arc<Token>>,
    connections: usize,
    stop: watch::Receiver<bool>,
}

async fn serve(options: &Options, service: Arc<Service>, hangup: Signal) -> Result<(), Failure> {
    let token = options.token_file.as_deref().map(Token::read).transpose()?.map(Arc::new);
    let (end, stop) = watch::channel(false);
    let common = Common { token, connections: options.connections as usize, stop };
    let mut faces = JoinSet::new();
    let (grpc, health) =
        grpc::routes(Arc::clone(&service), options.response_headers, common.stop.clone()).await;
    for (flag, address) in options.addresses() {
        let protocols: &[&str] = match flag {
            "--http" => &["http/1.1"],
            "--grpc" => &["h2"],
            _ => &[],
        };
        let Some(listener) = listen(flag, address)? else { continue };
        let is_tcp = matches!(address, Address::Tcp(_));
        // Whoever may open a Unix socket is a matter of its folder and file.
        let token = common.token.clone().filter(|_| is_tcp);
        let tls = if is_tcp { acceptor(options, protocols)? } else { None };
        // What is assigned to an Envoy is not to arrive later.
        let stall = if flag == "--grpc" { decide::quota::GRACE } else { listen::STALL_TIMEOUT };
        let terms = Terms { tls, most: common.connections, stall, grace: GRACE };
        let (mut until, stop) = (common.stop.clone(), common.stop.clone());
        let until = async move { all_are_to_end(&mut until).await };
        let service = Arc::clone(&service);
        tracing::info!("{} is served at {address}", flag.trim_start_matches('-'));
        match flag {
            "--resp" => {
                let serve = move |stream| {
                    resp::serve(stream, Arc::clone(&service), token.clone(), stop.clone())
                };
                faces.spawn(listen::accept(listener, terms, until, serve));
            }
            "--http" => {
                let app = http::routes(service, token);
                let serve = move |stream| serve_http1(stream, app.clone(), stop.clone());
                faces.spawn(listen::accept(listener, terms, until, serve));
            }
            _ => {
                let app = http::guarded(grpc.clone(), token);
                let app = app.layer(middleware::from_fn(http::bounded));
                let serve = move |stream| serve_http2(stream, app.clone(), stop.clone());
                faces.spawn(listen::accept(listener, terms, until, serve));
            }
        }
    }
    if faces.is_empty() {
        return Err(
            Failure::new(exit::USAGE, "all faces are off").hint("give --resp, --http or --grpc")
        );
    }
    let ends = [signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?];
    tell(&[NotifyState::Ready]);
    wait(&service, hangup, ends).await;
    tell(&[NotifyState::Stopping]);
    grpc::drain(&health).await;
    tracing::info!("no new connections; those that there are have {} s", GRACE.as_secs());
    let _ = end.send(true);
    while faces.join_next().await.is_some() {}
    Ok(())
}

async fn all_are_to_end(stop: &mut watch::Receiver<bool>) {
    // An error says that the sender is gone, and with it all else.
    let _ = stop.wait_for(|&end| end).await;
}

/// Reads rules again as often as SIGHUP comes, until this is to end.
async fn wait(service: &Service, mut hangup: Signal, mut ends: [Signal; 2]) {
    let [terminate, interrupt] = &mut ends;
    loop {
        tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            _ = hangup.recv() => {
                match NotifyState::monotonic_usec_now() {
                    Ok(now) => tell(&[NotifyState::Reloading, now]),
                    Err(error) => tracing::warn!("cannot tell of a reload: {error}"),
                }
                match service.reload() {
                    Ok(count) => tracing::info!("{count} rules are in force"),
                    Err(error) => tracing::error!("the rules stay as they were: {}", model::chain(&error)),
                }
                tell(&[NotifyState::Ready]);
            }
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell the service manager {states:?}: {error}");
    }
}

fn acceptor(options: &Options, protocols: &[&str]) -> Result<Option<TlsAcceptor>, Failure> {
    let (Some(cert), Some(key)) = (&options.tls_cert, &options.tls_key) else { return Ok(None) };
    let acceptor = tls::acceptor(cert, key, options.tls_client_ca.as_deref(), protocols);
    let failed = |error: tls::FileError| {
        Failure::new(exit::USAGE, error.to_string())
            .hint("give PEM files, the certificate with its chain")
    };
    acceptor.map(Some).map_err(failed)
}

fn listen(flag: &str, address: &Address) -> Result<Option<Listener>, Failure> {
    let failed = |error: io::Error| {
        Failure::new(exit::USAGE, format!("cannot listen on {address}: {error}"))
            .hint(format!("give another {flag}, or `{flag} off`"))
    };
    let listener = match address {
        Address::Off => return Ok(None),
        Address::Tcp(address) => listen_tcp(*address).map(Listener::Tcp),
        Address::Unix(path) => listen_unix(path).map(Listener::Unix),
    };
    listener.map(Some).map_err(failed)
}

fn listen_tcp(address: SocketAddr) -> io::Result<tokio::net::TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
    };
    // Connections of an earlier process may linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

fn listen_unix(path: &Path) -> io::Result<tokio::net::UnixListener> {
    // What a killed process has left. Anything but a socket stays, and is told.
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(path).is_err()
    {
        fs::remove_file(path)?;
    }
    let listener = tokio::net::UnixListener::bind(path)?;
    // Its user and group: the unit says which that is.
    fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

async fn serve_http1(stream: Connection, app: Router, stop: watch::Receiver<bool>) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(listen::HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .pipeline_flush(true);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    exchange(served, http1::Connection::graceful_shutdown, stop).await;
}

async fn serve_http2(stream: Connection, app: Router, stop: watch::Receiver<bool>) {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD as u32)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    exchange(served, http2::Connection::graceful_shutdown, stop).await;
}

/// Serves a connection until its client ends it, or all are to end and what it has asked is answered.
async fn exchange<S: Future<Output = hyper::Result<()>>>(
    served: S,
    end: impl FnOnce(Pin<&mut S>),
    mut stop: watch::Receiver<bool>,
) {
    let mut served = pin!(served);
    let ended = tokio::select! {
        // First: most often there is something to do.
        biased;
        ended = &mut served => ended,
        () = all_are_to_end(&mut stop) => {
            end(served.as_mut());
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection has ended: {error}");
    }
}
