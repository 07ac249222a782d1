//! Connections from anybody, within bounds: how many there are, how slow they may be, and TLS.

pub mod tls;
pub mod token;

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use tls::TlsAcceptor;

/// How long TLS may take to come about, and as a rule the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may take nothing of what is there for it, as a rule.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(15);

/// What the kernel keeps for a client that does not read, bytes: it doubles this.
// Small, as hundreds of clients that read nothing would otherwise hold megabytes of the kernel's memory each.
const SEND_BUFFER: usize = 16 * 1024;

/// Where clients come from.
#[derive(Debug)]
pub enum Listener {
    /// Any host that reaches the address.
    Tcp(TcpListener),
    /// This one.
    Unix(UnixListener),
}

/// Bytes in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

/// A connection of any kind.
pub type Connection = Pin<Box<dyn Stream>>;

impl Listener {
    async fn accept(&self, stall: Duration) -> io::Result<Connection> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                let socket = SockRef::from(&stream);
                // A client that has vanished is noticed, and one that does not read costs 32 KiB of the kernel rather than
                // megabytes. Both only save: a connection works without.
                let _ = socket.set_tcp_user_timeout(Some(stall));
                let _ = socket.set_send_buffer_size(SEND_BUFFER);
                // Answers are small, and Nagle's algorithm would hold them back.
                let _ = stream.set_nodelay(true);
                bounded(stream, stall)
            }
            Self::Unix(listener) => bounded(listener.accept().await?.0, stall),
        })
    }
}

/// A connection that ends if its client does not read.
fn bounded(stream: impl Stream + 'static, stall: Duration) -> Connection {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(stall));
    Box::pin(stream)
}

/// How a listener serves.
pub struct Terms {
    /// What encrypts its connections.
    pub tls: Option<TlsAcceptor>,
    /// Connections at once; further ones are closed.
    pub most: usize,
    /// How long a client may take nothing of what is there for it: its connection ends then.
    pub stall: Duration,
    /// How long connections may go on when it stops.
    pub grace: Duration,
}

/// Accepts connections until `stop` is ready, and has each of them served. They end with the returned future.
///
/// `axum::serve` bounds neither their number nor how slowly a client may send or read: a few of those who send a byte now
/// and then would keep everybody else out.
pub async fn accept<S, F>(
    listener: Listener,
    terms: Terms,
    stop: impl Future<Output = ()>,
    serve: S,
) where
    S: Fn(Connection) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let room = Arc::new(Semaphore::new(terms.most));
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        // The set keeps what each task has returned until somebody asks.
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept(terms.stall) => accepted,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                // Of a connection that is gone already, or for want of descriptors: then the next try would fail at once,
                // and this loop would take a whole CPU.
                tracing::debug!("cannot accept a connection: {error}");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Closed instead of waiting: the backlog would fill behind it, and nobody would be served.
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            tracing::debug!("closed a connection: there are {} already", terms.most);
            continue;
        };
        let (tls, serve) = (terms.tls.clone(), serve.clone());
        connections.spawn(async move {
            let _permit = permit;
            if let Some(stream) = encrypted(tls, stream).await {
                serve(stream).await;
            }
        });
    }
    drop(listener);
    let _ = timeout(terms.grace, async { while connections.join_next().await.is_some() {} }).await;
}

async fn encrypted(tls: Option<TlsAcceptor>, stream: Connection) -> Option<Connection> {
    let Some(acceptor) = tls else { return Some(stream) };
    match timeout(HEAD_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => return Some(Box::pin(stream)),
        Ok(Err(error)) => tracing::debug!("no TLS came about: {error}"),
        Err(_) => tracing::debug!("TLS has taken too long"),
    }
    None
}
