//! The daemon's API without a client program: HTTP by hand on the Unix socket.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

/// Sends `body` with PUT to `path`.
///
/// # Panics
/// If the daemon does not answer, or refuses.
pub(crate) fn put(socket: &Path, path: &str, body: &serde_json::Value) {
    let body = body.to_string();
    let request = format!(
        "PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = UnixStream::connect(socket).expect("the daemon's socket");
    stream.write_all(request.as_bytes()).expect("the daemon reads a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the daemon's answer is text");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{request}\n{answer}");
}
