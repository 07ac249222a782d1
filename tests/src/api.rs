//! The daemon's API without a client program: HTTP by hand on the Unix socket.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

/// Gets a resource in one of the formats that `accept` names. Returns the type of its content, and the
/// content.
///
/// # Panics
/// If the daemon does not answer, or refuses.
#[must_use]
pub fn get(socket: &Path, path: &str, accept: &str) -> (String, String) {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: {accept}\r\n\r\n"
    );
    let answer = exchange(socket, &request);
    let (head, content) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: "));
    (kind.unwrap_or_default().to_owned(), content.to_owned())
}

/// Sends a request with a JSON or a text body.
///
/// # Panics
/// If the daemon does not answer, or refuses.
pub fn request(socket: &Path, method: &str, path: &str, body: &str) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let _answer = exchange(socket, &request);
}

fn exchange(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("the daemon's socket");
    stream.write_all(request.as_bytes()).expect("the daemon reads a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the daemon's answer is text");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{request}\n{answer}");
    answer
}
