//! Asks the daemon.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use nix::unistd::{Gid, Group};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::address::Address;
use crate::error::{Failure, exit};
use model::chain;
use model::instance::Instance;

/// How long an answer may take, if nothing else is said.
// A bulk import of another client holds the core for seconds, and its successor waits.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The largest answer, bytes: a list of a million limits.
// Bounded all the same: whatever listens on that path must not fill this program's memory.
const MAX_ANSWER: usize = 512 << 20;

/// The longest line of a stream, bytes.
const MAX_LINE: usize = 1 << 20;

/// A client of the daemon on one socket, or of `limiter-serve`. Every request has its own connection.
#[derive(Clone, Debug)]
pub struct Client {
    server: Server,
    // Only for hints. Which daemon is asked is decided by the socket's path alone.
    instance: Option<Instance>,
    patience: Duration,
}

/// Who is asked.
#[derive(Clone, Debug)]
enum Server {
    Daemon(PathBuf),
    Serve(Address),
}

impl fmt::Display for Server {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon(socket) => write!(to, "the daemon on {}", socket.display()),
            Self::Serve(address) => write!(to, "limiter-serve at {address}"),
        }
    }
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Server {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Daemon(path) | Self::Serve(Address::Unix(path)) => {
                Box::new(UnixStream::connect(path).await?)
            }
            Self::Serve(Address::Tcp(address)) => Box::new(TcpStream::connect(address).await?),
            Self::Serve(Address::Off) => return Err(ErrorKind::AddrNotAvailable.into()),
        })
    }
}

impl Client {
    /// A client of the daemon that serves `socket`.
    pub fn new(socket: &Path) -> Self {
        Self { server: Server::Daemon(socket.into()), instance: None, patience: TIMEOUT }
    }

    /// A client of the `limiter-serve` whose HTTP face is at `address`.
    pub fn of_serve(address: Address) -> Self {
        Self { server: Server::Serve(address), instance: None, patience: TIMEOUT }
    }

    /// Says of which instance the daemon is, for what it tells when there is none.
    #[must_use]
    pub fn of(self, instance: Option<Instance>) -> Self {
        Self { instance, ..self }
    }

    /// Waits so long for an answer.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Gets a resource.
    ///
    /// # Errors
    /// Code 3 if no daemon answers, 4 if the socket may not be used, or what the daemon says.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// Gets a resource that is no JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_bytes(&self, path: &str) -> Result<Bytes, Failure> {
        self.answer(Method::GET, path, Bytes::new()).await
    }

    /// Deletes a resource.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::DELETE, path, Bytes::new()).await
    }

    /// Sends `body` to a resource.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| self.broken(&error.to_string()))?;
        self.ask(method, path, body.into()).await
    }

    /// Sends text to a resource.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn send_text<T: DeserializeOwned>(
        &self,
        path: &str,
        text: String,
    ) -> Result<T, Failure> {
        self.ask(Method::POST, path, text.into()).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Failure> {
        let answer = self.answer(method, path, body).await?;
        serde_json::from_slice(&answer).map_err(|error| self.broken(&error.to_string()))
    }

    async fn answer(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, Failure> {
        // A daemon that hangs still accepts, as the kernel does that for it: only a time tells.
        let exchange = timeout(self.patience, self.exchange(method, path, body));
        let (status, answer) = exchange.await.map_err(|_| self.silent())??;
        if status.is_success() {
            return Ok(answer);
        }
        Err(self.refused(status, &answer))
    }

    /// Gets a resource that has no end, and hands its lines to `each` until that says that it is enough.
    ///
    /// # Errors
    /// As [`Client::get`], what `each` fails with, or code 3 if the daemon hangs up.
    pub async fn lines(
        &self,
        path: &str,
        mut each: impl FnMut(&[u8]) -> Result<ControlFlow<()>, Failure>,
    ) -> Result<(), Failure> {
        let request = self.request(Method::GET, path, Bytes::new());
        let (response, connection) =
            timeout(self.patience, request).await.map_err(|_| self.silent())??;
        // Only the head has a time limit. Quiet hours between two events are no fault of the
        // daemon.
        let (status, mut body) = (response.status(), response.into_body());
        if !status.is_success() {
            let answer = Limited::new(body, MAX_ANSWER).collect().await;
            let answer = answer.map_err(|error| self.broken(&error.to_string()))?.to_bytes();
            return Err(self.refused(status, &answer));
        }
        let mut rest = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.lost(&error))?;
            rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                // A frame may hold several lines, or end within one.
                let line: Vec<_> = rest.drain(..=end).collect();
                if each(&line[..end])?.is_break() {
                    return Ok(());
                }
            }
            // Whatever answers on the socket must not fill this program's memory.
            if rest.len() > MAX_LINE {
                return Err(self.broken("a line of it does not end"));
            }
        }
        connection.abort();
        let message = format!("{} has ended the stream", self.server);
        Err(Failure::new(exit::UNREACHABLE, message)
            .hint("see whether it has ended: its log tells"))
    }

    fn refused(&self, status: StatusCode, answer: &[u8]) -> Failure {
        // The daemon's own failures come as JSON, with its hint and exit code: a script sees the
        // same as in the daemon.
        serde_json::from_slice(answer)
            // Not every answer is the daemon's: a library refuses what is not HTTP at all.
            .unwrap_or_else(|_| self.broken(&format!("it answers with status {status}")))
    }

    fn silent(&self) -> Failure {
        let message = format!("{} does not answer within {:?}", self.server, self.patience);
        Failure::new(exit::UNREACHABLE, message).hint("its log may tell why; restart it")
    }

    fn lost(&self, error: &hyper::Error) -> Failure {
        let message = format!("{} hung up: {}", self.server, chain(error));
        Failure::new(exit::UNREACHABLE, message).hint("its log may tell why")
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let (response, connection) = self.request(method, path, body).await?;
        let status = response.status();
        let answer = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|error| self.broken(&error.to_string()))?;
        connection.abort();
        Ok((status, answer.to_bytes()))
    }

    /// Sends a request. Returns the response, and the task that its connection is.
    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(Response<Incoming>, JoinHandle<hyper::Result<()>>), Failure> {
        let lost = |error: hyper::Error| self.lost(&error);
        let stream = self.server.connect().await.map_err(|error| self.unreachable(&error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        // Ends with the exchange; what goes wrong on it is told by the request too.
        let connection = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            // HTTP/1.1 asks for one. The socket is reached by its path, so nobody reads it.
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|error| self.broken(&error.to_string()))?;
        let response = sender.send_request(request).await.map_err(lost)?;
        Ok((response, connection))
    }

    fn unreachable(&self, error: &io::Error) -> Failure {
        let Server::Daemon(path) = &self.server else {
            return Failure::new(exit::UNREACHABLE, format!("no {}: {error}", self.server))
                .hint("start it, or name the address of its HTTP face with --serve");
        };
        let socket = path.display();
        match error.kind() {
            // A code of its own: a daemon is there, so a script that starts one on code 3 must not
            // do that.
            ErrorKind::PermissionDenied => Failure::new(
                exit::PRIVILEGE,
                format!("the socket {socket} may not be used: {error}"),
            )
            // What a client may ask is decided by the permissions of the socket alone.
            .hint(who_may_use(path)),
            _ => Failure::new(exit::UNREACHABLE, format!("no daemon answers on {socket}: {error}"))
                .hint(absent(self.instance.as_ref(), &crate::instances::known())),
        }
    }

    fn broken(&self, problem: &str) -> Failure {
        let message = format!("{} cannot be understood: {problem}", self.server);
        Failure::new(exit::NEGATIVE, message)
            .hint("the client and the daemon should have the same version: see `limiter version`")
    }
}

/// What to do about a daemon that does not answer, on a machine where instances are `known`.
fn absent(instance: Option<&Instance>, known: &BTreeSet<Instance>) -> String {
    let others: Vec<_> =
        known.iter().filter(|name| Some(*name) != instance).map(ToString::to_string).collect();
    // A daemon of another instance may run: its name is the likely answer to why this one is
    // absent.
    let others = if others.is_empty() {
        String::new()
    } else {
        format!("; there are traces of other instances: {}", others.join(", "))
    };
    match instance {
        Some(name) => format!("is `limiter --instance {name} run` running?{others}"),
        None => {
            format!("start it with `limiter run`, or name its --socket or --instance{others}")
        }
    }
}

/// As whom to run in order to use a socket, as far as that can be told.
fn who_may_use(socket: &Path) -> String {
    let id = std::fs::metadata(socket).ok().map(|metadata| metadata.gid());
    // The group of this very socket, not that of the configuration, which may have changed since.
    let group = id.and_then(|id| Group::from_gid(Gid::from_raw(id)).ok().flatten());
    match (id, group) {
        (Some(0), _) => "run as root".into(),
        (_, Some(group)) => format!("run as root, or as a member of the group {}", group.name),
        (_, None) => "run as root, or as a member of the socket's group".into(),
    }
}

/// `text` as a segment of a path or a value of a query.
// What a name has of `&`, `?` or `/` would otherwise end its value: an operator's reason would
// become options.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        // A colon is allowed in a query, and IPv6 addresses are full of them.
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(socket: &Path) -> Failure {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(Client::new(socket).get::<serde_json::Value>("/v1/status"))
            .unwrap_err()
    }

    #[test]
    fn without_a_daemon_the_code_is_3() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("limiter.sock");
        assert_eq!(ask(&socket).code, exit::UNREACHABLE);
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let failure = ask(&socket);
        assert_eq!(failure.code, exit::UNREACHABLE);
        assert!(failure.hint.unwrap().contains("limiter run"));
    }

    #[test]
    fn an_absent_instance_is_named_and_so_are_others() {
        let [edge, dmz] = ["edge", "dmz"].map(|name| name.parse::<Instance>().unwrap());
        let known = [edge.clone(), dmz].into();
        let hint = absent(Some(&edge), &known);
        assert!(hint.starts_with("is `limiter --instance edge run` running?"), "{hint}");
        assert!(hint.ends_with("instances: dmz"), "{hint}");
        let hint = absent(None, &known);
        assert!(hint.contains("`limiter run`") && hint.ends_with(": dmz, edge"), "{hint}");
        assert!(!absent(None, &BTreeSet::new()).contains("traces"));
    }

    #[test]
    fn a_daemon_that_hangs_up_is_unreachable() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("limiter.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || drop(listener.accept().unwrap()));
        assert_eq!(ask(&socket).code, exit::UNREACHABLE);
        server.join().unwrap();
    }

    #[test]
    fn what_urls_give_meaning_to_is_escaped() {
        assert_eq!(escape("2001:db8::/48"), "2001:db8::%2F48");
        assert_eq!(escape("a b?&#é"), "a%20b%3F%26%23%C3%A9");
    }
}
