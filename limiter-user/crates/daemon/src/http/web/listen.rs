//! The listener, and each connection to it.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use listen::tls::{self, TlsAcceptor};
use listen::{Connection, Listener, Terms};
use socket2::Type;

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

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 128;

/// The largest head of a request, bytes.
const MAX_HEAD_LEN: usize = 16 * 1024;

/// Headers in a request.
const MAX_HEADERS: usize = 64;

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

/// What encrypts connections.
fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, Failure> {
    tls::acceptor(cert, key, None, &[]).map_err(|error| {
        let flag = if error.path == key { "--http-tls-key" } else { "--http-tls-cert" };
        Failure::new(exit::USAGE, format!("{flag}: {error}"))
            .hint("give PEM files, the certificate with its chain")
    })
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
        let (stall, grace) = (listen::STALL_TIMEOUT, Duration::ZERO);
        let terms = Terms { tls: self.tls, most: MAX_CONNECTIONS, stall, grace };
        let serve = move |stream| exchange(stream, app.clone());
        let served = listen::accept(Listener::Tcp(listener), terms, pending(), serve);
        Ok(AbortOnDrop(tokio::spawn(served)))
    }
}

async fn exchange(stream: Connection, app: Router) {
    // HTTP/2 would carry any number of requests in one connection, and connections are what is
    // bounded here.
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(listen::HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_LEN)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    if let Err(error) = served.await {
        tracing::debug!("a connection has ended: {error}");
    }
}
