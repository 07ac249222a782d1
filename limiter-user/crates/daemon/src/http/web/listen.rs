//! The listener, and each connection to it.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::guard::Authorizer;
use super::tokens::Tokens;
use super::{AbortOnDrop, routes};
use api::error::{Failure, exit};
use control::Host;
use settings::web::WebConfig;

/// Connections at once; further ones are closed.
// Each takes a descriptor, of which a process has 1024 by default, and a pinned map needs one,
// too.
const MAX_CONNECTIONS: usize = 128;

/// How long the head of a request may take, and a connection be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may take nothing of what is there for it.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 128;

/// The largest head of a request, bytes.
const MAX_HEAD_LEN: usize = 16 * 1024;

/// Headers in a request.
const MAX_HEADERS: usize = 64;

/// What the kernel keeps for a client that does not read, bytes: it doubles this.
// Small, as 128 clients that read nothing would otherwise hold megabytes of the kernel's memory each.
const SEND_BUFFER: usize = 16 * 1024;

/// A listening socket, and all that its connections need.
pub struct Web {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    authorizer: Authorizer,
    address: SocketAddr,
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::AddrInUse => format!(
            "`ss -ltnp sport = :{}` tells who listens there; give another --http-listen",
            address.port()
        ),
        ErrorKind::PermissionDenied => "give a port above 1023".into(),
        _ => "give another --http-listen, or leave it out".into(),
    };
    Failure::new(exit::USAGE, format!("cannot listen on {address}: {error}")).hint(hint)
}

/// What encrypts connections. The provider is named because rustls panics where the features of a build leave it open.
fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, Failure> {
    let wrong = |flag: &str, path: &Path, error: &dyn std::fmt::Display| {
        let text = format!("{flag}: cannot use {}: {error}", path.display());
        Failure::new(exit::USAGE, text).hint("give PEM files, the certificate with its chain")
    };
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong("--http-tls-cert", cert, &error))?;
    // A file without any certificate is no error to the reader of PEM.
    if chain.is_empty() {
        return Err(wrong("--http-tls-cert", cert, &"there is no certificate in it"));
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| wrong("--http-tls-key", key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| wrong("--http-tls-key", key, &error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Reads the tokens and the certificate that `config` has files for.
fn read(config: &WebConfig) -> Result<(Tokens, Option<TlsAcceptor>), Failure> {
    let tls = match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => Some(acceptor(cert, key)?),
        _ => None,
    };
    Ok((Tokens::read(config)?, tls))
}

/// Whether the files that `config` names can be used, where the dashboard is served.
///
/// # Errors
/// What is wrong with one of them.
pub fn check_files(config: &WebConfig) -> Result<(), Failure> {
    config.listen.map_or(Ok(()), |_| read(config).map(drop))
}

impl Web {
    /// Listens on `address`, which no interface of this host need have yet, as `config` says for the rest. Reads the
    /// tokens and the certificate.
    ///
    /// # Errors
    /// If the address is taken, or a file cannot be used.
    pub fn bind(config: &WebConfig, address: SocketAddr) -> Result<Self, Failure> {
        config.check().map_err(|(_, failure)| failure)?;
        // Before the port is taken: with a file that cannot be used there is nothing to listen for.
        let (tokens, tls) = read(config)?;
        let listener = control::listen::bind(Type::STREAM, address)
            .and_then(|socket| socket.listen(BACKLOG).map(|()| socket.into()))
            .map_err(|error| cannot_listen(address, &error))?;
        let loopback = address.ip().is_loopback();
        let hosts = config.hosts.clone();
        let authorizer = Authorizer::new(tokens, hosts, address.port(), loopback, tls.is_some());
        Ok(Self { listener, tls, authorizer, address })
    }

    /// Serves from now on, in a task. Its connections end with it.
    ///
    /// # Errors
    /// If the listener cannot be used.
    pub fn spawn(self, host: &Host) -> Result<AbortOnDrop, Failure> {
        let registered = self.listener.set_nonblocking(true);
        let listener =
            registered
                .and_then(|()| tokio::net::TcpListener::from_std(self.listener))
                .map_err(|error| Failure::new(exit::NEGATIVE, format!("cannot serve: {error}")))?;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        tracing::info!("the dashboard is at {scheme}://{}/", self.address);
        let app = routes(host.clone(), Arc::new(self.authorizer));
        Ok(AbortOnDrop(tokio::spawn(accept(listener, self.tls, app))))
    }
}

/// Accepts connections for ever. `axum::serve` would, but it bounds neither their number nor how slowly a client may
/// send or read: a few of those who send a byte now and then would keep everybody else out.
async fn accept(listener: tokio::net::TcpListener, tls: Option<TlsAcceptor>, app: Router) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // The set keeps what each task has returned until somebody asks.
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Of a connection that is gone already, or for want of descriptors: then the next try would fail at once,
                // and this loop would take a whole CPU.
                tracing::debug!("cannot accept a connection: {error}");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Closed instead of waiting: the backlog would fill behind it, and nobody's page would
        // open.
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            tracing::debug!("closed a connection: there are {MAX_CONNECTIONS} already");
            continue;
        };
        let (tls, app) = (tls.clone(), app.clone());
        connections.spawn(async move {
            let _permit = permit;
            connection(stream, tls, app).await;
        });
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, app: Router) {
    let socket = SockRef::from(&stream);
    // A client that has vanished is noticed, and one that does not read costs 32 KiB of the kernel rather than megabytes.
    // Both only save: a connection works without.
    let _ = socket.set_tcp_user_timeout(Some(STALL_TIMEOUT));
    let _ = socket.set_send_buffer_size(SEND_BUFFER);
    // Events are small, and Nagle's algorithm would hold them back.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(STALL_TIMEOUT));
    let stream = Box::pin(stream);
    match tls {
        None => exchange(stream, app).await,
        Some(acceptor) => match timeout(HEAD_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => exchange(stream, app).await,
            Ok(Err(error)) => tracing::debug!("no TLS came about: {error}"),
            Err(_) => tracing::debug!("TLS has taken too long"),
        },
    }
}

async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, app: Router) {
    // HTTP/2 would carry any number of requests in one connection, and connections are what is
    // bounded here.
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_LEN)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    if let Err(error) = served.await {
        tracing::debug!("a connection has ended: {error}");
    }
}
