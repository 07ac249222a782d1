//! The dashboard's listener: who gets in, and what clients that behave badly can do, which is nothing.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream, cli::answer, cli::limiter_binary, frame,
    lab::RX_V4, observer::Then, process, v4,
};

const READER: &str = "0123456789abcdef-reader";
const ADMIN: &str = "0123456789abcdef-admin";
const LOCAL: &str = "127.0.0.1:9090";

/// A secret in a file that only its owner can read.
fn secret(path: &Path, text: &str) -> String {
    fs::write(path, text).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its permissions");
    path.display().to_string()
}

/// The status of an answer to curl, and its body.
fn curl(lab: &Lab, arguments: &[&str]) -> (u16, String) {
    let mut command = lab.receiver.command(&tools::CURL);
    command.args(["-s", "-k", "--max-time", "20", "-w", "\n%{http_code}"]).args(arguments);
    let output = process::output(&mut command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap_or(("", "0"));
    (status.parse().unwrap_or(0), body.to_owned())
}

/// `limiter run` that must fail before it touches anything.
fn failing(lab: &Lab, home: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = lab.receiver.own(limiter_binary());
    let pins = home.join("pins");
    command.env("LIMITER_CONFIG", "/dev/null");
    command.arg("--json").arg("--socket").arg(home.join("other.sock")).arg("run");
    command.arg("--state-dir").arg(home.join("state")).arg("--pin-dir").arg(&pins).args(arguments);
    let answer = answer(&mut command);
    assert!(!pins.exists() && !home.join("state").exists(), "nothing was touched");
    (answer.code, answer.json["error"].to_string())
}

/// `limiter config check` of a file with an address, a token, a certificate and its key.
fn check(home: &Path, [listen, token, cert, key]: [&str; 4]) -> (i32, String) {
    let file = home.join("limiter.toml");
    let text = format!(
        "http_listen = \"{listen}\"\nhttp_token_file = \"{token}\"\nhttp_tls_cert = \"{cert}\"\n\
         http_tls_key = \"{key}\"\n"
    );
    fs::write(&file, text).expect("a configuration");
    let mut command = tools::own(limiter_binary());
    let answer = answer(command.args(["--json", "config", "check"]).arg(&file));
    (answer.code, answer.json["error"].to_string())
}

#[test]
fn other_hosts_need_tls_and_a_token() {
    let lab = Lab::new(1);
    let home = tempfile::tempdir().expect("a temporary folder");
    let address = format!("{RX_V4}:9443");
    let (code, error) = failing(&lab, home.path(), &["--http-listen", &address]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("no token") && error.contains("openssl rand"), "{error}");
    let token = secret(&home.path().join("token"), &format!("{READER}\n"));
    let with_token = ["--http-listen", &address, "--http-token-file", &token];
    let (code, error) = failing(&lab, home.path(), &with_token);
    assert!(
        code == 2 && error.contains("no certificate") && error.contains("openssl req"),
        "{error}"
    );
    let (cert, key) = (home.path().join("tls.crt"), home.path().join("tls.key"));
    process::run(
        tools::OPENSSL
            .command()
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "2", "-subj", "/CN=limiter", "-addext"])
            .arg(format!("subjectAltName=IP:{RX_V4}"))
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&cert),
    );
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let tls = ["--http-tls-cert", &cert, "--http-tls-key", &key];
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).expect("permissions");
    let (code, error) = check(home.path(), [&address, &token, &cert, &key]);
    assert!(code == 2 && error.contains("chmod 600"), "{error}");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("permissions");
    let (code, error) = check(home.path(), [&address, &token, &key, &cert]);
    assert!(code == 2 && error.contains("--http-tls-cert"), "{error}");
    assert_eq!(check(home.path(), [&address, &token, &cert, &key]).0, 0);

    let admin = secret(&home.path().join("admin"), ADMIN);
    let options = [&with_token[..], &tls, &["--http-admin-token-file", &admin]].concat();
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&options));
    let url = format!("https://{address}");
    let status = format!("{url}/v1/status");
    assert_eq!(curl(&lab, &[&status]).0, 401);
    assert_eq!(curl(&lab, &[&format!("http://{address}/v1/status")]).0, 0, "no plain text");
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    let begin = Instant::now();
    assert_eq!(curl(&lab, &["-H", &bearer("0123456789abcdef-wrong!"), &status]).0, 401);
    assert!(begin.elapsed() >= Duration::from_millis(500), "guessing takes time");
    let (code, body) = curl(&lab, &["-H", &bearer(READER), &status]);
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, &body["state"]), (200, &"ok".into()));
    assert_eq!(curl(&lab, &["--cacert", &cert, "-H", &bearer(READER), &status]).0, 200);
    // The name that a foreign page has bound to this address.
    let evil = ["-H", &bearer(READER), "-H", "Host: evil.example:9443", &status];
    assert_eq!(curl(&lab, &evil).0, 421);
    let limits = format!("{url}/v1/limits");
    let body = r#"{"target":"198.51.100.7","rate":"10pps"}"#;
    let put = |token: &str, more: &[&str]| {
        let token = bearer(token);
        let fixed = [
            "-X",
            "PUT",
            "-H",
            "Content-Type: application/json",
            "-d",
            body,
            "-H",
            &token,
            &limits,
        ];
        curl(&lab, &[&fixed[..], more].concat()).0
    };
    assert_eq!(put(READER, &[]), 403);
    assert_eq!(put(ADMIN, &["-H", "Origin: https://evil.example"]), 403);
    assert!(daemon.cli().limits().is_empty());
    assert_eq!(put(ADMIN, &[]), 200);
    assert_eq!(daemon.cli().limits().len(), 1);
    let login = curl(&lab, &["-i", "-d", &format!("token={READER}"), &format!("{url}/login")]).1;
    assert!(login.contains("HttpOnly; SameSite=Strict") && login.contains("Secure"), "{login}");
    assert!(
        login.to_lowercase().contains("content-security-policy: default-src 'none'"),
        "{login}"
    );
}

#[test]
fn an_address_without_a_port_is_refused_before_anything_is_touched() {
    let lab = Lab::new(1);
    let home = tempfile::tempdir().expect("a temporary folder");
    let (code, error) = failing(&lab, home.path(), &["--http-listen", "127.0.0.1"]);
    assert!(code == 2 && error.contains("127.0.0.1:9090"), "{error}");
}

fn connect() -> TcpStream {
    let stream = TcpStream::connect(LOCAL.parse::<SocketAddr>().expect("an address"));
    let stream = stream.expect("the daemon listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream
}

/// Asks for the live data. Returns the connection and the answer's status.
fn listen_live() -> (TcpStream, u16) {
    let mut stream = connect();
    let request = format!("GET /v1/live HTTP/1.1\r\nHost: {LOCAL}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("an answer");
    let status = std::str::from_utf8(&head[9..]).ok().and_then(|text| text.parse().ok());
    (stream, status.expect("a status"))
}

/// Open descriptors of a process.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Resident memory of a process, KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).expect("a size")
}

#[test]
fn clients_that_behave_badly_disturb_nobody() {
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--http-listen", LOCAL]));
    let limit = daemon.cli().limit("1000pps", Some("100"), None);
    let pid = daemon.pid();
    let idle = (descriptors(pid), resident(pid));

    // A hundred pages: some are served, the others are told why not.
    let pages = lab.receiver.run_inside(|| (0..100).map(|_| listen_live()).collect::<Vec<_>>());
    let count = |status| pages.iter().filter(|(_, it)| *it == status).count();
    println!("of 100 pages {} are served", count(200));
    assert_eq!((count(200), count(503)), (32, 68));

    // Meanwhile everything works, also over TCP, and the limit holds.
    assert_eq!(curl(&lab, &[&format!("http://{LOCAL}/v1/status")]).0, 200);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sent = Sender::new(&lab).send(vec![Stream::new(frame::udp(v4(66), 100), 10_000.0, 30_000)]);
    limit.assert_admitted("with 100 pages", observer.read().from(v4(66)), [&sent[0]]);
    daemon.assert_accounted(&lab);

    // They get what goes on.
    for (mut page, status) in pages {
        if status == 200 {
            let mut text = vec![0; 4096];
            let read = page.read(&mut text).expect("events");
            assert!(String::from_utf8_lossy(&text[..read]).contains("event-stream"));
        }
        // And vanish.
    }
    process::wait_for("the places of pages that are gone", Duration::from_secs(10), || {
        let (_, status) = lab.receiver.run_inside(listen_live);
        (status == 200).then_some(())
    });

    // Half a request, a head that never ends, one that is too large, and one that never reads.
    let times = lab.receiver.run_inside(|| {
        let mut deaf = socket_that_reads_nothing();
        let timed = |send: &dyn Fn(&mut TcpStream)| {
            let (mut stream, begin) = (connect(), Instant::now());
            send(&mut stream);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            (begin.elapsed(), String::from_utf8_lossy(&answer).into_owned())
        };
        let silent = timed(&|_| {});
        let trickle = timed(&|stream| {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: ");
            for _ in 0..40 {
                std::thread::sleep(Duration::from_millis(400));
                if stream.write_all(b"x").is_err() {
                    return;
                }
            }
        });
        let large = timed(&|stream| {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ");
            let _ = stream.write_all(&[b'x'; 64 * 1024]);
            let _ = stream.write_all(b"\r\n\r\n");
        });
        let body = timed(&|stream| {
            let head = format!("POST /login HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Type: \
                application/x-www-form-urlencoded\r\nConnection: close\r\nContent-Length: 9000\r\n\r\n");
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&[b'x'; 1024]);
        });
        // By now it has been closed, or soon will be.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_secs(1));
            if deaf.write_all(b"x").is_err() {
                return (silent, trickle, large, body, true);
            }
        }
        (silent, trickle, large, body, false)
    });
    let (silent, trickle, large, body, deaf_is_closed) = times;
    println!("silent {:?}, trickling {:?}, large head {:?}", silent.0, trickle.0, large.0);
    for (name, (time, _)) in [("silent", &silent), ("trickling", &trickle)] {
        assert!(*time < Duration::from_secs(18), "{name}: {time:?}");
    }
    assert!(
        large.1.is_empty() || large.1.contains(" 431 ") || large.1.contains(" 400 "),
        "{}",
        large.1
    );
    assert!(body.1.contains(" 408 ") && body.0 < Duration::from_secs(40), "{body:?}");
    assert!(deaf_is_closed, "who reads nothing is let go");

    // Nothing of it is left.
    process::wait_for("closed connections", Duration::from_secs(20), || {
        (descriptors(pid) <= idle.0 + 1).then_some(())
    });
    let grown = resident(pid).saturating_sub(idle.1);
    println!("descriptors {} → {}, memory +{grown} KiB", idle.0, descriptors(pid));
    assert!(grown < 20_000, "{grown} KiB more");
}

/// A page with a small window that asks for live data and never reads it.
fn socket_that_reads_nothing() -> TcpStream {
    use std::os::fd::AsRawFd as _;
    let stream = connect();
    let size: libc::c_int = 2048;
    // SAFETY: the descriptor is open, and the kernel reads one integer.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const size).cast(),
            size_of_val(&size) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    let mut asking = stream.try_clone().expect("a second handle");
    let request = format!("GET /v1/live HTTP/1.1\r\nHost: {LOCAL}\r\n\r\n");
    asking.write_all(request.as_bytes()).expect("a request");
    stream
}
