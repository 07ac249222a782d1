//! Clients that open connections, and the server that accepts what a limiter lets through.

use std::{
    collections::VecDeque,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{JoinHandle, sleep},
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};
use tests::{Lab, lab::RX_V4};

/// The port that clients come to.
pub(crate) const PORT: u16 = 80;
/// So long a client waits for an answer. The kernel would ask again after a second.
const TIMEOUT: Duration = Duration::from_millis(300);
/// How often clients and server look what is to be done.
const TICK: Duration = Duration::from_millis(1);

/// A server that closes what it accepts, and remembers when that was.
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Server {
    /// Listens in `host`; times are since `begun`.
    pub(crate) fn start(host: &Lab, address: Ipv4Addr, port: u16, begun: Instant) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = host.receiver.spawn_inside(move || {
            let listener = TcpListener::bind((address, port)).expect("a free port");
            listener.set_nonblocking(true).expect("a socket that does not wait");
            let mut times = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok(_) => times.push(begun.elapsed()),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(TICK),
                    Err(error) => panic!("cannot accept: {error}"),
                }
            }
            times
        });
        Self { stop, thread }
    }

    /// When connections were accepted.
    pub(crate) fn stop(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the server ends")
    }
}

/// Clients at one address that open connections to a host, whatever becomes of them.
pub(crate) struct Clients {
    /// Connections a second.
    rate: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Clients {
    /// None come yet.
    pub(crate) fn start(host: &Lab) -> Self {
        let (rate, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (wanted, stopped) = (Arc::clone(&rate), Arc::clone(&stop));
        let thread = host.sender.spawn_inside(move || connect(&wanted, &stopped));
        Self { rate, stop, thread }
    }

    /// From now on so many come a second.
    pub(crate) fn come(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("clients end");
    }
}

fn connect(rate: &AtomicU64, stop: &AtomicBool) {
    let server = SocketAddr::from((RX_V4, PORT)).into();
    let mut open = VecDeque::new();
    let (mut last, mut due) = (Instant::now(), 0.0);
    while !stop.load(Ordering::Relaxed) {
        sleep(TICK);
        let now = Instant::now();
        due += rate.load(Ordering::Relaxed) as f64 * (now - last).as_secs_f64();
        last = now;
        while due >= 1.0 {
            due -= 1.0;
            let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None);
            let socket = socket.expect("a socket");
            // Its port is free again at once.
            socket.set_linger(Some(Duration::ZERO)).expect("a socket takes it");
            // It is under way, or there is no room for one more.
            let _ = socket.connect(&server);
            open.push_back((now, socket));
        }
        while open.front().is_some_and(|(begun, _)| now - *begun > TIMEOUT) {
            open.pop_front();
        }
    }
}
