//! `limiter-serve` with sockets and states of its own, and a client for its HTTP face.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::{
    Namespace,
    cli::built_binary,
    process::{Background, wait_for},
    resp::Resp,
};

const TIMEOUT: Duration = Duration::from_secs(20);

/// The process, killed on drop. Its log is printed if the test panics.
#[derive(Debug)]
pub struct Serve {
    process: Background,
    home: TempDir,
    arguments: Vec<String>,
    keys: u64,
}

/// The port of its gRPC face in a namespace.
pub const GRPC: u16 = 8_081;

/// The keys that it has room for.
const KEYS: u64 = 100_000;

impl Serve {
    /// Starts it with the text of a file of rules, and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(rules: &str, arguments: &[&str]) -> Self {
        Self::start_in(None, rules, arguments)
    }

    /// The same in a namespace, where its gRPC face is at [`GRPC`].
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn start_in(namespace: Option<&Namespace>, rules: &str, arguments: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        fs::write(home.path().join("rules.yaml"), rules).expect("the rules are written");
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let process = launch(namespace, home.path(), &arguments, KEYS);
        let serve = Self { process, home, arguments, keys: KEYS };
        serve.wait_ready();
        serve
    }

    /// Kills it in the middle of what it does, and starts it again.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn kill_and_restart(&mut self) {
        self.process.signal(libc::SIGKILL);
        wait_for("its end", TIMEOUT, || self.process.try_wait());
        self.restart();
    }

    /// Starts it again after it has ended, with room for other many keys.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn restart_with(&mut self, keys: u64) {
        self.keys = keys;
        self.restart();
    }

    fn restart(&mut self) {
        self.process = launch(None, self.home.path(), &self.arguments, self.keys);
        self.wait_ready();
    }

    /// Writes other rules, has them read, and waits until the log tells how that went.
    ///
    /// # Panics
    /// If the log does not tell `expected`.
    pub fn reload(&self, rules: &str, expected: &str) {
        fs::write(self.path("rules.yaml"), rules).expect("the rules are written");
        self.process.signal(libc::SIGHUP);
        wait_for(expected, TIMEOUT, || self.log().contains(expected).then_some(()));
    }

    /// The process.
    #[must_use]
    pub const fn process(&mut self) -> &mut Background {
        &mut self.process
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// A file of its folder: `grpc.sock`, `http.sock`, `resp.sock`.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A client of its RESP face.
    ///
    /// # Panics
    /// If it takes no connection.
    #[must_use]
    pub fn resp(&self) -> Resp {
        Resp::unix(&self.path("resp.sock")).expect("it takes a connection")
    }

    /// Sends an HTTP request with a body, and more lines in its head.
    ///
    /// # Panics
    /// If there is no answer.
    #[must_use]
    pub fn http(&self, method: &str, target: &str, head: &str, body: &str) -> HttpAnswer {
        let length = body.len();
        self.send(&format!(
            "{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-length: {length}\r\n{head}\r\n{body}"
        ))
    }

    /// Sends an HTTP request as it is.
    ///
    /// # Panics
    /// If there is no answer.
    #[must_use]
    pub fn send(&self, request: &str) -> HttpAnswer {
        let mut stream = UnixStream::connect(self.path("http.sock")).expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket has a timeout");
        stream.write_all(request.as_bytes()).expect("it reads the request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        HttpAnswer::read(&answer)
    }

    /// Sends a GET request.
    ///
    /// # Panics
    /// If there is no answer.
    #[must_use]
    pub fn get(&self, target: &str) -> HttpAnswer {
        self.http("GET", target, "", "")
    }

    fn wait_ready(&self) {
        // gRPC comes a moment later: its clients try again.
        let ready = || UnixStream::connect(self.path("http.sock")).is_ok().then_some(());
        wait_for("limiter-serve", TIMEOUT, ready);
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

fn launch(
    namespace: Option<&Namespace>,
    home: &Path,
    arguments: &[String],
    keys: u64,
) -> Background {
    let log = File::options().create(true).append(true).open(home.join("log")).expect("a log");
    let unix = |name: &str| format!("unix:{}", home.join(name).display());
    let binary = built_binary("limiter-serve");
    let (mut command, grpc): (Command, _) = match namespace {
        None => (tools::own(binary), unix("grpc.sock")),
        Some(namespace) => (namespace.own(binary), format!("127.0.0.1:{GRPC}")),
    };
    command
        .arg("--rules")
        .arg(home.join("rules.yaml"))
        .arg("--state-dir")
        .arg(home.join("state"))
        .args(["--resp", &unix("resp.sock"), "--http", &unix("http.sock")])
        .args(["--grpc", &grpc, "--keys", &keys.to_string()])
        .args(arguments)
        .stderr(log);
    Background::start(&mut command)
}

/// What is answered to a GET request at a port of the loopback interface, sent from an address there; nothing if the
/// connection is closed.
///
/// # Panics
/// If nobody takes the connection.
#[must_use]
pub fn ask(
    namespace: &Namespace,
    from: Ipv4Addr,
    port: u16,
    path: &str,
    headers: &[(&str, &str)],
) -> Option<HttpAnswer> {
    let lines = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    let lines: String = lines.collect();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines}\r\n");
    let answer = namespace.run_inside(move || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((from, 0)).into()).expect("an address of this host");
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        socket.connect(&to.into()).expect("a connection");
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket has a timeout");
        // A connection over the limit is closed at once, perhaps before the request is sent.
        let mut answer = String::new();
        let asked = stream.write_all(request.as_bytes());
        let read = asked.and_then(|()| stream.read_to_string(&mut answer));
        read.map(|_| answer).unwrap_or_default()
    });
    (!answer.is_empty()).then(|| HttpAnswer::read(&answer))
}

/// An answer over HTTP.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The head's other lines.
    pub head: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl HttpAnswer {
    /// Reads one.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|status| status.parse().ok()).expect("a status");
        let head = lines.filter_map(|line| line.split_once(": "));
        let head = head.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        Self { status, head: head.collect(), body: body.to_owned() }
    }

    /// A header, by its name in small letters.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.head.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body, which is JSON.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
