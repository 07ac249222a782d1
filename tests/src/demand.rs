//! Clients that ask `limiter-serve` about a key, and a judge of what they got.

use std::{
    io::{Read as _, Write as _},
    ops::Range,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread::{JoinHandle, sleep},
    time::{Duration, Instant},
};

use crate::serve::Serve;

const TIMEOUT: Duration = Duration::from_secs(20);

/// The status of an answer about a key of a rule in the domain `api`; nothing if nobody is there.
#[must_use]
pub fn status_of(serve: &Path, rule: &str, key: &str) -> Option<u16> {
    let mut stream = UnixStream::connect(serve).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let path = format!("/v1/decide?domain=api&rule={rule}&key={key}");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.get(9..12)?.parse().ok()
}

/// When a request was sent that was admitted, and when it was answered, seconds.
pub type Admitted = (f64, f64);

/// A client that asks a host about the key `one` of a rule, so many times a second.
#[derive(Debug)]
pub struct Client {
    rate: Arc<AtomicU32>,
    thread: JoinHandle<Vec<Admitted>>,
}

impl Client {
    /// Begins to ask; times are those since `begun`.
    #[must_use]
    pub fn start(serve: &Serve, rule: &'static str, begun: Instant, rate: u32) -> Self {
        let rate = Arc::new(AtomicU32::new(rate));
        let (socket, paced): (PathBuf, _) = (serve.path("http.sock"), Arc::clone(&rate));
        let thread = std::thread::spawn(move || {
            let (mut admitted, mut due) = (Vec::new(), Instant::now());
            loop {
                let rate = paced.load(Ordering::Relaxed);
                if rate == u32::MAX {
                    return admitted;
                }
                // Who falls behind does not catch up.
                due = due.max(Instant::now() - Duration::from_millis(20));
                due += Duration::from_secs(1) / rate.max(20);
                sleep(due.saturating_duration_since(Instant::now()));
                let sent = begun.elapsed().as_secs_f64();
                if rate > 0 && status_of(&socket, rule, "one") == Some(200) {
                    admitted.push((sent, begun.elapsed().as_secs_f64()));
                }
            }
        });
        Self { rate, thread }
    }

    /// Asks so many times a second from now on.
    pub fn set(&self, rate: u32) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// Ends: what was admitted.
    ///
    /// # Panics
    /// If it has panicked.
    #[must_use]
    pub fn end(self) -> Vec<Admitted> {
        self.set(u32::MAX);
        self.thread.join().expect("a client that ends")
    }
}

/// How many were admitted in a time, seconds.
#[must_use]
pub fn count(admitted: &[Admitted], time: Range<f64>) -> f64 {
    admitted.iter().filter(|(sent, _)| time.contains(sent)).count() as f64
}

/// Whether all hosts together kept to a limit in any interval. `more` is what they may have beyond that in an interval,
/// seconds.
///
/// # Panics
/// If they did not.
pub fn assert_kept(
    all: &[Vec<Admitted>],
    (burst, rate): (f64, f64),
    more: impl Fn(Range<f64>) -> f64,
) {
    let mut all = all.concat();
    all.sort_by(|one, other| one.1.total_cmp(&other.1));
    for &(begin, _) in &all {
        // Those that were certainly decided on in between.
        let mut sum = 0.0;
        for &(_, end) in all.iter().filter(|(sent, _)| *sent >= begin) {
            sum += 1.0;
            let most = burst + rate * (end - begin) + more(begin..end);
            assert!(sum <= most, "{sum} of {most:.1} from {begin:.3} to {end:.3}");
        }
    }
}

/// Sleeps until so long after `begun`.
pub fn until(begun: Instant, seconds: f64) {
    sleep(Duration::from_secs_f64(seconds).saturating_sub(begun.elapsed()));
}
