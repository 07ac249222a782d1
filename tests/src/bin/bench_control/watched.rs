//! What it costs that somebody watches very many sources: the daemon's time, and the data plane's speed.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use tests::{Daemon, DaemonOptions, Flood, Lab, Sources, machine::median, process::cpu_time};

/// Sources that send, in turn.
const SOURCES: u32 = 1 << 20;

/// Sources that are tracked at the least.
const WANTED: u64 = 1_000_000;

/// Times that nobody watches and then somebody does.
const ROUNDS: usize = 5;

/// How long each of both takes.
const SPAN: Duration = Duration::from_secs(8);

/// Between two looks of `top`, as it makes them.
const REFRESH: Duration = Duration::from_secs(1);

/// Where the dashboard is, in the receiver's namespace.
const DASHBOARD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9190);

/// One span of time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Span {
    /// Share of one CPU that the daemon took.
    pub(crate) cpu: f64,
    /// Millions of packets per second.
    pub(crate) mpps: f64,
}

/// What watching costs.
#[derive(Debug, Serialize)]
pub(crate) struct Watched {
    /// Sources that there were.
    pub(crate) tracked: u64,
    /// Medians while nobody watches.
    pub(crate) alone: Span,
    /// Medians while `top` and a dashboard are refreshed each second.
    pub(crate) watched: Span,
    /// Answers to `top`, and messages to the dashboard, per second.
    pub(crate) refreshes: [f64; 2],
    /// Both, round by round.
    pub(crate) rounds: Vec<[Span; 2]>,
}

/// Tracks a million sources that go on sending, and watches them now and then.
///
/// # Panics
/// If fewer are tracked, or the daemon does not answer.
pub(crate) fn measure(lab: &Lab) -> Watched {
    let listen = DASHBOARD.to_string();
    // As in `top`: in a full table many sources would get no bucket.
    let options = ["--max-sources", "2097152", "--http-listen", &listen];
    let daemon = Daemon::start_with(lab, DaemonOptions::with(&options));
    let cli = daemon.cli();
    // Too slow for a gate: each source gets a bucket by its first packet.
    cli.limit("1pps", Some("8"), None);
    let sources = Sources::RoundRobin(Ipv4Addr::new(10, 0, 0, 0).into(), SOURCES);
    // Twice, in case a queue was full.
    let _flooded = Flood::new(sources, 2 * u64::from(SOURCES)).send(lab);
    let tracked = cli.ok(&["top", "--once"])["tracked"].as_u64().expect("a number of sources");
    assert!(tracked >= WANTED, "only {tracked} of {SOURCES} sources are tracked");
    let mut rounds = Vec::new();
    let mut refreshes = [0.0; 2];
    for _ in 0..ROUNDS {
        // What the last one left is forgotten by then.
        thread::sleep(Duration::from_secs(2));
        // Both in each round, so that a change of the machine's speed is in both.
        let alone = span(lab, &daemon, sources);
        let viewers = Viewers::start(lab, &daemon);
        let watched = span(lab, &daemon, sources);
        for (sum, count) in refreshes.iter_mut().zip(viewers.stop()) {
            *sum += count / ROUNDS as f64;
        }
        rounds.push([alone, watched]);
    }
    assert!(refreshes.iter().all(|each| *each > 0.7), "not watched each second: {refreshes:?}");
    let middle = |of: fn(&Span) -> f64, which: usize| {
        median(&rounds.iter().map(|round| of(&round[which])).collect::<Vec<_>>())
    };
    let medians =
        |which| Span { cpu: middle(|span| span.cpu, which), mpps: middle(|span| span.mpps, which) };
    Watched { tracked, alone: medians(0), watched: medians(1), refreshes, rounds }
}

/// Measures for a while, under traffic of the sources.
fn span(lab: &Lab, daemon: &Daemon, sources: Sources) -> Span {
    let flooding = Flood::new(sources, u64::MAX).on_cpu(0).start(lab);
    let (before, start) = (cpu_time(daemon.pid()), Instant::now());
    thread::sleep(SPAN);
    let (after, length) = (cpu_time(daemon.pid()), start.elapsed());
    let flooded = flooding.stop();
    let seconds = (flooded.last - flooded.first).as_secs_f64();
    Span {
        cpu: (after - before).as_secs_f64() / length.as_secs_f64(),
        mpps: flooded.packets as f64 / seconds / 1e6,
    }
}

/// Who watches.
struct Viewers {
    stop: Arc<AtomicBool>,
    counts: [Arc<AtomicU64>; 2],
    threads: Vec<thread::JoinHandle<()>>,
    since: Instant,
}

impl Viewers {
    fn start(lab: &Lab, daemon: &Daemon) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let counts: [Arc<AtomicU64>; 2] = Default::default();
        let [tops, messages] = counts.clone();
        let (socket, stopped) = (daemon.socket(), Arc::clone(&stop));
        let top = thread::spawn(move || look(&socket, &stopped, &tops));
        let stopped = Arc::clone(&stop);
        let page = lab.receiver.spawn_inside(move || listen(&stopped, &messages));
        Self { stop, counts, threads: vec![top, page], since: Instant::now() }
    }

    /// Ends it; how many answers and messages came in a second.
    fn stop(self) -> [f64; 2] {
        let seconds = self.since.elapsed().as_secs_f64();
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a viewer sees something");
        }
        self.counts.map(|count| count.load(Ordering::Relaxed) as f64 / seconds)
    }
}

/// Asks as `limiter top` does.
fn look(socket: &Path, stop: &AtomicBool, count: &AtomicU64) {
    let socket = PathBuf::from(socket);
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let mut stream = UnixStream::connect(&socket).expect("the daemon's socket");
        stream
            .write_all(
                b"GET /v1/top?n=100&sort=pps&live=true HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            )
            .expect("the daemon reads a request");
        // The daemon closes the connection, which is how the end of an answer is known here.
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the daemon's answer is text");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        count.fetch_add(1, Ordering::Relaxed);
        thread::sleep(REFRESH.saturating_sub(start.elapsed()));
    }
}

/// Listens as the dashboard does.
fn listen(stop: &AtomicBool, count: &AtomicU64) {
    let mut stream = TcpStream::connect(DASHBOARD).expect("the daemon listens");
    let request = format!("GET /v1/live HTTP/1.1\r\nHost: {DASHBOARD}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the daemon reads a request");
    // So that the end is noticed between two messages.
    stream.set_read_timeout(Some(REFRESH / 4)).expect("a timeout that is not zero");
    let (mut buffer, mut last) = ([0; 16 * 1024], 0);
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => panic!("the daemon ended the stream"),
            Ok(length) => {
                // Messages end with an empty line, which may come in two parts.
                for byte in &buffer[..length] {
                    count.fetch_add(u64::from(last == b'\n' && *byte == b'\n'), Ordering::Relaxed);
                    last = *byte;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("cannot read the stream: {error}"),
        }
    }
}
