//! The demonstration as a user runs it: what it prints, that it leaves nothing behind whatever ends it, and its
//! shell.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::{fs::PermissionsExt, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use tests::{
    cli::limiter_binary,
    cover::{NO_PROGRAM, cover},
    leftovers::{BPF_FOLDER, NAMESPACE_PREFIX, PIN_PREFIX},
    process::wait_for,
};

/// How long the demonstration may take to come to a point, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Where namespaces have their names.
const NAMESPACES: &str = "/run/netns";

fn demo(arguments: &[&str]) -> Command {
    let mut command = tools::own(env!("CARGO_BIN_EXE_demo"));
    // A process group of its own: what a terminal's Ctrl-C reaches.
    command.args(arguments).env("LIMITER_BIN", limiter_binary()).process_group(0);
    command
}

/// A demonstration that goes on.
struct Running {
    child: Child,
    /// The process that does the work, and that everything is named after.
    worker: u32,
    temporary: TempDir,
    lines: mpsc::Receiver<String>,
    reader: Option<JoinHandle<()>>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let mut command = demo(arguments);
        command.env("TMPDIR", temporary.path());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the demo starts");
        let stderr = child.stderr.take().expect("a pipe");
        let (to, lines) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let Ok(line) = line else { return };
                println!("demo: {line}");
                if to.send(line).is_err() {
                    return;
                }
            }
        });
        let worker = wait_for("the worker", TIMEOUT, || child_of(child.id()));
        Self { child, worker, temporary, lines, reader: Some(reader) }
    }

    /// Waits for a line that holds `text`.
    fn wait_line(&self, text: &str) -> String {
        let lines = std::iter::from_fn(|| self.lines.recv_timeout(TIMEOUT).ok());
        lines.into_iter().find(|line| line.contains(text)).unwrap_or_else(|| panic!("no {text}"))
    }

    fn send(&self, signal: i32, to_group: bool) {
        let pid = self.child.id().cast_signed();
        // SAFETY: kill takes plain numbers; the child is not reaped yet.
        let sent = unsafe { libc::kill(if to_group { -pid } else { pid }, signal) };
        assert_eq!(sent, 0, "the demo runs");
    }

    fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("a pipe")
    }

    /// Waits for the end, and asserts that nothing is left.
    fn end(mut self) -> ExitStatus {
        let child = &mut self.child;
        let status = wait_for("the end", TIMEOUT, || child.try_wait().expect("a child"));
        assert_eq!(named(NAMESPACES, NAMESPACE_PREFIX, self.worker), Vec::<PathBuf>::new());
        assert_eq!(named(BPF_FOLDER, PIN_PREFIX, self.worker), Vec::<PathBuf>::new());
        let files: Vec<_> = fs::read_dir(self.temporary.path()).expect("the folder").collect();
        assert!(files.is_empty(), "{files:?}");
        // SAFETY: kill takes plain numbers; signal 0 only asks whether there is such a group.
        let group = unsafe { libc::kill(-self.child.id().cast_signed(), 0) };
        assert_eq!(group, -1, "a process of the demo is left");
        self.reader.take().map(JoinHandle::join);
        status
    }
}

/// A child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let all = fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let parent = |child: &u32| {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    all.into_iter().find(|child| parent(child) == Some(pid))
}

/// What in a folder is named after a process.
fn named(folder: &str, prefix: &str, pid: u32) -> Vec<PathBuf> {
    let wanted = format!("{prefix}{pid}-");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_named = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&wanted))
    };
    entries.map(|entry| entry.path()).filter(is_named).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_result_is_one_document() {
    tests::require_root();
    let output = demo(&["--json"]).output().expect("the demo starts");
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    // Without a terminal a line a step.
    assert_eq!(stderr.lines().filter(|line| line.starts_with("sending for 5 s")).count(), 1);
    assert!(!stderr.contains("second 1 of 5"), "{stderr}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(json["ok"], true);
    assert_eq!(json["counters"]["total"], json["counters"]["received"]);
    let flood = &json["sources"][0];
    assert_eq!(flood["source"], "198.51.100.66");
    assert_eq!(flood["limit"], "1000pps burst 2000 packets");
    for (list, sources) in [("flood", 0..1), ("customers", 2..7)] {
        for what in ["offered", "admitted", "dropped"] {
            let seconds = json[list].as_array().expect("seconds");
            assert_eq!(seconds.len(), 5);
            let by_second: u64 = seconds.iter().filter_map(|second| second[what].as_u64()).sum();
            let by_source: u64 =
                sources.clone().filter_map(|row| json["sources"][row][what].as_u64()).sum();
            assert_eq!(by_second, by_source, "{list} {what}: {json:#}");
        }
    }
    // The burst passes in the first second, which may be a little short where the sender begins late.
    let admitted = |second: usize| json["flood"][second]["admitted"].as_u64().expect("a count");
    assert!(admitted(0) > 2 * admitted(1), "{json:#}");
    let dropped = |second: usize| json["customers"][second]["dropped"].as_u64();
    assert!((0..5).all(|second| dropped(second) == Some(0)), "{json:#}");
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    tests::require_root();
    // At once; while namespaces are built; while the daemon starts; while frames are sent.
    let running = Running::start(&[]);
    running.send(libc::SIGINT, false);
    assert_eq!(running.end().code(), Some(130));

    let running = Running::start(&[]);
    let worker = running.worker;
    wait_for("a namespace", TIMEOUT, || {
        (!named(NAMESPACES, NAMESPACE_PREFIX, worker).is_empty()).then_some(())
    });
    running.send(libc::SIGINT, true);
    assert_eq!(running.end().code(), Some(130));

    let running = Running::start(&["--cluster"]);
    let worker = running.worker;
    wait_for("pins", TIMEOUT, || (!named(BPF_FOLDER, PIN_PREFIX, worker).is_empty()).then_some(()));
    running.send(libc::SIGTERM, false);
    assert_eq!(running.end().code(), Some(143));

    let running = Running::start(&[]);
    running.wait_line("sending for 5 s");
    std::thread::sleep(Duration::from_millis(300));
    running.send(libc::SIGHUP, true);
    assert_eq!(running.end().code(), Some(129));
}

#[test]
fn a_killed_worker_leaves_nothing_behind() {
    tests::require_root();
    let running = Running::start(&[]);
    running.wait_line("limiter limit set");
    // SAFETY: kill takes plain numbers; the worker is not reaped while its parent removes what it made.
    unsafe { libc::kill(running.worker.cast_signed(), libc::SIGKILL) };
    assert_eq!(running.end().code(), Some(137));
}

/// Runs the demonstration with the file at `with` in the place of `nft`.
fn with_nft(with: &str) -> Output {
    let mut demo = demo(&[]);
    cover(&mut demo, &[(with, tools::NFT.find().expect("nft is installed"))]);
    demo.output().expect("the demo starts")
}

#[test]
fn what_is_missing_is_named_without_a_panic() {
    tests::require_root();
    let output = with_nft(NO_PROGRAM);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: cannot start `nft "), "{stderr}");
    assert!(stderr.contains("hint: `cargo xtask setup`"), "{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("RUST_BACKTRACE"), "{stderr}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let failing = folder.path().join("nft");
    fs::write(&failing, "#!/bin/sh\necho no such family >&2\nexit 3\n").expect("a program");
    fs::set_permissions(&failing, PermissionsExt::from_mode(0o755)).expect("a mode");
    let output = with_nft(failing.to_str().expect("a path in UTF-8"));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: `nft add table inet quiet"), "{stderr}");
    assert!(stderr.contains("failed (exit status: 3)\n  no such family\n"), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// What a GET of the page at `address` answers.
fn get(address: &str) -> String {
    let host = address.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(host).expect("the dashboard's port");
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn the_shell_has_a_client_traffic_and_a_dashboard() {
    tests::require_root();
    let mut running = Running::start(&["--shell"]);
    let answers = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| answers.path().join(name);
    let mut stdin = running.stdin();
    // It is read once the demonstration is over. The flood has to use up its burst again.
    writeln!(
        stdin,
        "cd {}; limiter limit list > list; limiter capture --dropped -c 1 -w drops.pcapng 2> captured\n\
         limiter top --once --json > top\n\
         until limiter show 198.51.100.66 --json > show; grep -q limited show; do :; done\n\
         ip link > link; mv link done",
        answers.path().display()
    )
    .expect("the shell's stdin");
    let address = running.wait_line("http://127.0.0.1:");
    let address = address.split_whitespace().last().expect("an address").to_owned();
    let page = get(&address);
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("<title>"), "{page}");
    wait_for("the commands", TIMEOUT, || file("done").exists().then_some(()));
    let read = |name: &str| fs::read_to_string(file(name)).expect("an answer");
    let json = |name: &str| serde_json::from_str::<Value>(&read(name)).expect("one document");
    assert!(json("top").to_string().contains("198.51.100.66"), "{}", read("top"));
    assert_eq!(json("show")["state"], "limited");
    assert!(read("list").contains("10mbit"), "{}", read("list"));
    assert!(
        fs::metadata(file("drops.pcapng")).expect("a capture").len() > 100,
        "{}",
        read("captured")
    );
    assert!(read("done").contains("rx0") && !read("done").contains("eth0"), "{}", read("done"));

    // What still runs in the shell, in a group of its own, ends with it.
    let script = "setsid sleep 1000 & echo $! > pid; mv pid sleeps; wait\n";
    stdin.write_all(script.as_bytes()).expect("the shell's stdin");
    wait_for("a program", TIMEOUT, || file("sleeps").exists().then_some(()));
    // Ctrl-C is for what runs in the shell, and not for the demo.
    running.send(libc::SIGINT, false);
    std::thread::sleep(Duration::from_millis(200));
    assert!(running.child.try_wait().expect("a child").is_none(), "the demo has ended");
    running.send(libc::SIGTERM, false);
    assert_eq!(running.end().code(), Some(143));
    assert!(
        !Path::new("/proc").join(read("sleeps").trim()).exists(),
        "a program of the shell is left"
    );
}
