//! A client that speaks the protocol of Redis, over any stream.

use std::{
    fmt::Debug,
    io::{self, BufRead as _, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(20);

/// What a connection is made of.
trait Stream: Read + Write + Debug + Send {
    fn set_timeout(&self, limit: Duration) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }
}

impl Stream for TcpStream {
    fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }
}

/// A reply as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Any bytes, or a status.
    Bytes(Vec<u8>),
    /// An error, without the sign before it.
    Error(String),
    /// A number.
    Number(i64),
    /// A list.
    List(Vec<Self>),
    /// Nothing.
    Null,
}

impl From<Reply> for Value {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Bytes(bytes) => String::from_utf8_lossy(&bytes).into(),
            Reply::Error(text) => format!("-{text}").into(),
            Reply::Number(number) => number.into(),
            Reply::List(list) => list.into_iter().map(Self::from).collect(),
            Reply::Null => Self::Null,
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Resp {
    stream: BufReader<Box<dyn Stream>>,
}

impl Resp {
    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// If nobody takes the connection.
    pub fn unix(path: &Path) -> io::Result<Self> {
        Self::over(UnixStream::connect(path)?)
    }

    /// Connects to a port.
    ///
    /// # Errors
    /// If nobody takes the connection.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        // A command of two writes would wait for the acknowledgement of the first.
        stream.set_nodelay(true)?;
        Self::over(stream)
    }

    fn over(stream: impl Stream + 'static) -> io::Result<Self> {
        stream.set_timeout(TIMEOUT)?;
        Ok(Self { stream: BufReader::new(Box::new(stream)) })
    }

    /// Waits for a reply no longer than `limit`.
    ///
    /// # Panics
    /// If the limit is zero.
    #[must_use]
    pub fn with_timeout(self, limit: Duration) -> Self {
        self.stream.get_ref().set_timeout(limit).expect("a socket has a timeout");
        self
    }

    /// Sends bytes as they are.
    ///
    /// # Panics
    /// If the connection is closed.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("it reads");
    }

    /// Sends a command of texts with spaces between them, and reads the reply.
    ///
    /// # Panics
    /// If there is none.
    pub fn ask(&mut self, command: &str) -> Value {
        self.send(&encoded(command));
        self.reply()
    }

    /// Sends a command of any texts, and reads the reply.
    ///
    /// # Panics
    /// If there is none.
    pub fn call(&mut self, command: &[&str]) -> Value {
        self.try_call(command).expect("it answers")
    }

    /// The same where the server may be gone.
    ///
    /// # Errors
    /// If the connection breaks, or the reply is late.
    ///
    /// # Panics
    /// If what comes is no reply.
    pub fn try_call(&mut self, command: &[&str]) -> io::Result<Value> {
        self.stream.get_mut().write_all(&encoded_texts(command))?;
        self.try_reply()
    }

    /// Sends a command of any bytes, and reads the reply.
    ///
    /// # Panics
    /// If there is none.
    pub fn call_bytes(&mut self, command: &[impl AsRef<[u8]>]) -> Reply {
        self.send(&encoded_texts(command));
        self.read().expect("it answers")
    }

    /// Reads a reply: numbers, texts, lists, null; an error is a text that begins with `-`.
    ///
    /// # Panics
    /// If there is none.
    pub fn reply(&mut self) -> Value {
        self.try_reply().expect("it answers")
    }

    /// The same where the server may be gone.
    ///
    /// # Errors
    /// If the connection breaks, or the reply is late.
    ///
    /// # Panics
    /// If what comes is no reply.
    pub fn try_reply(&mut self) -> io::Result<Value> {
        self.read().map(Value::from)
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let whole = line.strip_suffix("\r\n").and_then(|line| line.split_at_checked(1));
        let Some((kind, rest)) = whole else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let number = || rest.parse::<i64>().unwrap_or_else(|_| panic!("no number: {line:?}"));
        Ok(match kind {
            "-" => Reply::Error(rest.to_owned()),
            "+" => Reply::Bytes(rest.into()),
            ":" => Reply::Number(number()),
            "*" | "$" if number() < 0 => Reply::Null,
            "*" => Reply::List((0..number()).map(|_| self.read()).collect::<io::Result<_>>()?),
            "$" => {
                let mut bytes = vec![0; usize::try_from(number()).unwrap_or_default() + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bytes(bytes)
            }
            _ => panic!("no reply: {line:?}"),
        })
    }

    /// Whether the connection is closed, with nothing more to read.
    pub fn is_closed(&mut self) -> bool {
        self.stream.fill_buf().is_ok_and(<[u8]>::is_empty)
    }
}

/// A command of texts with spaces between them, as clients write it.
#[must_use]
pub fn encoded(command: &str) -> Vec<u8> {
    encoded_texts(&command.split(' ').collect::<Vec<_>>())
}

/// A command of any texts, as clients write it.
#[must_use]
pub fn encoded_texts(command: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for text in command.iter().map(AsRef::as_ref) {
        bytes.extend(format!("${}\r\n", text.len()).bytes());
        bytes.extend(text);
        bytes.extend(b"\r\n");
    }
    bytes
}
