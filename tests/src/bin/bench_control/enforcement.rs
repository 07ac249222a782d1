//! From the order to set a limit until a packet is judged by it.
//!
//! A source sends all the time, and is let through so rarely that nothing arrives. When its limit is
//! raised, the next frame shows it: by the time it arrives at a socket behind XDP.

use std::{
    io::ErrorKind,
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::json;
use tests::{
    Daemon, Lab, Sender, Stream, api, frame,
    lab::{RX_V4, TX_V4},
    machine::{median, percentile},
};

/// How often a limit is set.
pub(crate) const ROUNDS: usize = 50;

/// Frames per second of the source: how fine the moment is known.
const RATE: f64 = 10_000.0;

/// The port that crafted frames go to.
const PORT: u16 = 9;

/// How long a change may take before the benchmark gives up.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Nothing that was let through before is still on its way after this.
const QUIET: Duration = Duration::from_millis(20);

/// Times of setting a limit, ms.
#[derive(Debug, Serialize)]
pub(crate) struct Enforcement {
    /// By which way.
    pub(crate) how: &'static str,
    /// Median until a packet was judged by the new limit.
    pub(crate) median_ms: f64,
    /// 99th percentile of that.
    pub(crate) p99_ms: f64,
    /// Median until the command or the request had its answer.
    pub(crate) answered_ms: f64,
    /// Every time until a packet was judged by it.
    pub(crate) rounds: Vec<f64>,
}

/// Sets limits with the command line.
pub(crate) fn by_command(lab: &Lab, daemon: &Daemon, how: &'static str) -> Enforcement {
    let cli = daemon.cli();
    measure(lab, how, |rate, burst| {
        cli.limit(rate, Some(burst), Some(&TX_V4.to_string()));
    })
}

/// Sets limits with requests on the daemon's socket, without starting a program.
pub(crate) fn by_api(lab: &Lab, daemon: &Daemon) -> Enforcement {
    let socket = daemon.socket();
    measure(lab, "request", |rate, burst| {
        let limit = json!({ "target": TX_V4.to_string(), "rate": rate, "burst": burst });
        api::request(&socket, "PUT", "/v1/limits", &limit.to_string());
    })
}

fn measure(lab: &Lab, how: &'static str, set: impl Fn(&str, &str)) -> Enforcement {
    let socket = lab.receiver.run_inside(|| UdpSocket::bind((RX_V4, PORT)).expect("a free port"));
    let frame = frame::udp(TX_V4.into(), 64);
    let sending = Sender::new(lab).start(vec![Stream::new(frame, RATE, u64::MAX)]);
    let (mut rounds, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        // So rarely that nothing arrives: the first frame that does was judged by the new limit.
        set("1/hour", "1");
        // Frames of the former limit may still be on their way, and would pass for the new one's.
        wait_until_quiet(&socket);
        let (start, answered, enforced) = thread::scope(|scope| {
            // It watches before the limit is raised: the frame may arrive before the command has its answer.
            let watcher = scope.spawn(|| wait_for_frame(&socket));
            let start = Instant::now();
            // The source owes an hour: its first frame empties its new bucket, the next one passes.
            set("1000000pps", "1000000");
            let answered = Instant::now();
            (
                start,
                answered,
                watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            )
        });
        rounds.push((enforced - start).as_secs_f64() * 1e3);
        answers.push((answered - start).as_secs_f64() * 1e3);
    }
    let _sent = sending.stop();
    Enforcement {
        how,
        median_ms: median(&rounds),
        p99_ms: percentile(&rounds, 0.99),
        answered_ms: median(&answers),
        rounds,
    }
}

/// Returns when a frame arrives.
fn wait_for_frame(socket: &UdpSocket) -> Instant {
    assert!(receive(socket, TIMEOUT), "the limit is not in force {TIMEOUT:?} after it was set");
    Instant::now()
}

/// Reads what arrives until nothing does.
fn wait_until_quiet(socket: &UdpSocket) {
    let deadline = Instant::now() + TIMEOUT;
    while receive(socket, QUIET) {
        assert!(
            Instant::now() < deadline,
            "the limit is not in force {TIMEOUT:?} after it was set"
        );
    }
}

/// Reads a datagram; whether one came within `patience`.
fn receive(socket: &UdpSocket, patience: Duration) -> bool {
    socket.set_read_timeout(Some(patience)).expect("a time above zero");
    let mut buffer = [0; 64];
    match socket.recv(&mut buffer) {
        Ok(_) => true,
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => false,
        Err(error) => panic!("cannot receive: {error}"),
    }
}
