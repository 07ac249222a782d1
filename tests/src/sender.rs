//! Sends crafted frames through a packet socket, each stream at its own pace, and keeps the time of
//! every frame.
//!
//! A frame sent on a veth device is received in the same system call, on the same CPU, so its send
//! time is also the time at which XDP sees it, to a few microseconds.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    Lab,
    lab::TX,
    packet_socket::{self, Receives},
};

/// Frames that are due are sent together at most this often, which leaves the CPU to others between.
const TICK: Duration = Duration::from_micros(100);

/// Frames to send at a steady rate.
#[derive(Clone, Debug)]
pub struct Stream {
    frames: Vec<Vec<u8>>,
    turn: Turn,
    rate: f64,
    count: u64,
    burst: u64,
}

/// Which of a stream's frames is sent.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// One after the other.
    EachFrame,
    /// The first one in the first second of sending, and so on; the last one from then on.
    EachSecond,
}

impl Stream {
    /// `count` frames at `rate` frames per second, all like `frame`.
    #[must_use]
    pub fn new(frame: Vec<u8>, rate: f64, count: u64) -> Self {
        Self::cycle(vec![frame], rate, count)
    }

    /// `count` frames at `rate` frames per second, taken from `frames` in turn.
    ///
    /// # Panics
    /// Without a frame, or if the rate is not positive.
    #[must_use]
    pub fn cycle(frames: Vec<Vec<u8>>, rate: f64, count: u64) -> Self {
        assert!(!frames.is_empty() && rate > 0.0, "a stream needs a frame and a rate");
        Self { frames, turn: Turn::EachFrame, rate, count, burst: 1 }
    }

    /// `count` frames at `rate` frames per second, in each second the next one of `frames`, so that a
    /// receiver can tell in which second it was sent. After that many seconds it is the last one.
    ///
    /// # Panics
    /// As [`Stream::cycle`].
    #[must_use]
    pub fn by_second(frames: Vec<Vec<u8>>, rate: f64, count: u64) -> Self {
        Self { turn: Turn::EachSecond, ..Self::cycle(frames, rate, count) }
    }

    /// Sends the first `burst` frames at once, and the rest at the stream's rate.
    #[must_use]
    pub fn with_burst(self, burst: u64) -> Self {
        Self { burst: burst.max(1), ..self }
    }

    /// Frame `index`, which is sent so long after the start.
    fn frame(&self, index: usize, time: Duration) -> &[u8] {
        match self.turn {
            Turn::EachFrame => &self.frames[index % self.frames.len()],
            Turn::EachSecond => &self.frames[second(time, self.frames.len())],
        }
    }

    /// When frame `index` is due, from the start.
    fn due(&self, index: u64) -> Duration {
        let paced = (index + 1).saturating_sub(self.burst);
        Duration::from_secs_f64(paced as f64 / self.rate)
    }
}

/// The second of `count` that a time is in; later ones are in the last.
fn second(time: Duration, count: usize) -> usize {
    usize::try_from(time.as_secs()).unwrap_or(usize::MAX).min(count.saturating_sub(1))
}

/// What a stream sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The moment that `times` count from.
    pub start: Instant,
    /// Send time of each frame, ascending.
    pub times: Vec<Duration>,
}

impl Sent {
    /// Frames sent.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.times.len() as u64
    }

    /// Frames sent in each of `count` seconds, later ones in the last: those that
    /// [`Stream::by_second`] took the same frame for.
    #[must_use]
    pub fn by_second(&self, count: usize) -> Vec<u64> {
        let mut seconds = vec![0; count];
        for time in &self.times {
            seconds[second(*time, count)] += 1;
        }
        seconds
    }

    /// Time from the first frame to the last, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        match (self.times.first(), self.times.last()) {
            (Some(first), Some(last)) => (*last - *first).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// Mean rate in frames per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.packets() as f64 / self.seconds().max(f64::MIN_POSITIVE)
    }

    /// All of them as if one stream had sent them.
    ///
    /// # Panics
    /// Without any.
    #[must_use]
    pub fn together<'sent>(all: impl IntoIterator<Item = &'sent Self>) -> Self {
        let all: Vec<_> = all.into_iter().collect();
        let start = all.iter().map(|sent| sent.start).min().expect("something was sent");
        let of = |sent: &&Self| {
            let later = sent.start - start;
            sent.times.iter().map(|time| later + *time).collect::<Vec<_>>()
        };
        let mut times: Vec<_> = all.iter().flat_map(of).collect();
        times.sort_unstable();
        Self { start, times }
    }
}

/// A sender on the sending host of a lab.
#[derive(Debug)]
pub struct Sender<'lab> {
    lab: &'lab Lab,
    cpu: Option<usize>,
    device: &'static str,
}

/// A device to send frames on.
#[derive(Debug)]
pub struct Wire(OwnedFd);

impl Wire {
    /// Sends a frame.
    ///
    /// # Panics
    /// If the socket refuses it.
    pub fn send(&self, frame: &[u8]) {
        let sent = packet_socket::send(&self.0, frame);
        assert!(sent, "a frame is refused: {}", io::Error::last_os_error());
    }
}

impl<'lab> Sender<'lab> {
    /// A sender that may run on any CPU.
    #[must_use]
    pub fn new(lab: &'lab Lab) -> Self {
        Self { lab, cpu: None, device: TX }
    }

    /// Keeps the sender on one CPU, which also chooses the receive queue.
    #[must_use]
    pub fn on_cpu(self, cpu: usize) -> Self {
        Self { cpu: Some(cpu), ..self }
    }

    /// Sends on another device than [`TX`].
    #[must_use]
    pub fn on_device(self, device: &'static str) -> Self {
        Self { device, ..self }
    }

    /// Sends all streams from one thread and returns when the last has ended.
    ///
    /// # Panics
    /// If the socket refuses a frame.
    #[must_use]
    pub fn send(&self, streams: Vec<Stream>) -> Vec<Sent> {
        self.start(streams).join()
    }

    /// Opens the device for frames that are sent one by one, each at once.
    ///
    /// # Panics
    /// If the socket cannot be made.
    #[must_use]
    pub fn wire(&self) -> Wire {
        let device = self.device;
        let socket = self.lab.sender.run_inside(|| packet_socket::open(device, Receives::Nothing));
        Wire(socket.expect("a packet socket"))
    }

    /// Starts to send in the background.
    #[must_use]
    pub fn start(&self, streams: Vec<Stream>) -> Sending {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (cpu, device) = (self.cpu, self.device);
        let (to, seconds) = mpsc::channel();
        let thread = self.lab.sender.spawn_inside(move || {
            pin(cpu);
            send_all(device, &streams, &stopped, &to)
        });
        Sending { thread, stop, seconds }
    }
}

/// Streams being sent.
#[derive(Debug)]
pub struct Sending {
    thread: JoinHandle<Vec<Sent>>,
    stop: Arc<AtomicBool>,
    /// Frames that each stream has sent, at the end of each second.
    seconds: mpsc::Receiver<Vec<u64>>,
}

impl Sending {
    /// Waits for the end of the next second, and returns how many frames each stream has sent by then.
    /// `None` once all streams have ended.
    #[must_use]
    pub fn next_second(&self) -> Option<Vec<u64>> {
        self.seconds.recv().ok()
    }

    /// Whether every stream has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until every stream has ended.
    ///
    /// # Panics
    /// If the sender did.
    #[must_use]
    pub fn join(self) -> Vec<Sent> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Ends the streams where they are.
    ///
    /// # Panics
    /// If the sender did.
    #[must_use]
    pub fn stop(self) -> Vec<Sent> {
        Self::stop_all([self])
    }

    /// The same, for many senders at the same moment.
    ///
    /// # Panics
    /// If one of them did.
    #[must_use]
    pub fn stop_all(all: impl IntoIterator<Item = Self>) -> Vec<Sent> {
        let stop = |sending: &Self| sending.stop.store(true, Ordering::Relaxed);
        // All are told before the first one is waited for.
        let told: Vec<_> = all.into_iter().inspect(stop).collect();
        told.into_iter().flat_map(Self::join).collect()
    }
}

/// Keeps the calling thread on `cpu`.
///
/// # Panics
/// If there is no such CPU.
pub fn pin(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    // SAFETY: an all-zero cpu_set_t is the empty set; CPU_SET checks its index against the set's
    // size, and sched_setaffinity reads the set that it is given the size of.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    assert!(result == 0, "cannot run on CPU {cpu}: {}", io::Error::last_os_error());
}

fn send_all(
    device: &str,
    streams: &[Stream],
    stop: &AtomicBool,
    seconds: &mpsc::Sender<Vec<u64>>,
) -> Vec<Sent> {
    let socket = open(device).expect("a packet socket on the sending device");
    // SAFETY: PR_SET_TIMERSLACK takes one number: sleeps of this thread end on time.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let start = Instant::now();
    let empty = |stream: &Stream| Sent {
        start,
        times: Vec::with_capacity(usize::try_from(stream.count.min(1 << 24)).unwrap_or(0)),
    };
    let mut sent: Vec<Sent> = streams.iter().map(empty).collect();
    let mut second = 0;
    loop {
        // The earliest frame of any stream that has frames left.
        let next = streams
            .iter()
            .zip(&sent)
            .enumerate()
            .filter(|(_, (stream, sent))| sent.packets() < stream.count)
            .map(|(at, (stream, sent))| (stream.due(sent.packets()), at))
            .min();
        let Some((due, at)) = next else { break };
        let now = start.elapsed();
        if now.as_secs() > second {
            second = now.as_secs();
            // Most have nobody who asks.
            let _unread = seconds.send(sent.iter().map(Sent::packets).collect());
        }
        if due > now {
            std::thread::sleep((due - now).max(TICK));
            if stop.load(Ordering::Relaxed) {
                break;
            }
            continue;
        }
        let times = &mut sent[at].times;
        send_frame(&socket, streams[at].frame(times.len(), now));
        times.push(now);
        if times.len().is_multiple_of(1024) && stop.load(Ordering::Relaxed) {
            break;
        }
    }
    sent
}

/// Hands one frame to the device, again and again while its queue is full.
fn send_frame(socket: &OwnedFd, frame: &[u8]) {
    loop {
        if packet_socket::send(socket, frame) {
            return;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR) => std::thread::yield_now(),
            _ => panic!("cannot send a frame of {} bytes: {error}", frame.len()),
        }
    }
}

/// Opens a packet socket that sends on `device` and receives nothing.
fn open(device: &str) -> io::Result<OwnedFd> {
    let socket = packet_socket::open(device, Receives::Nothing)?;
    let one: libc::c_int = 1;
    // SAFETY: the option's value is live and of the length given.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const one).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if set == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}
