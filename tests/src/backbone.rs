//! The wires between regions: what goes over them takes its time, is counted, and can be cut.

use std::{
    collections::VecDeque,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    Namespace,
    packet_socket::{self, Receives},
    process,
};

/// Frames that are on their way at most.
const MAX: usize = 1 << 16;
/// The longest frame that is carried, bytes.
const MAX_LEN: usize = 2048;

/// The bridge of a region.
#[must_use]
pub fn bridge(region: usize) -> String {
    format!("br{region}")
}

/// Carries frames from the bridge of each region to those of all others, as a hub with long wires does.
#[derive(Debug)]
pub struct Backbone {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Regions that are cut off, a bit for each.
    cut: AtomicU64,
    bytes: AtomicU64,
    frames: AtomicU64,
    lost: AtomicU64,
}

impl Backbone {
    /// Wires the bridges of so many regions, which have to be there, to each other: a frame takes `delay`.
    ///
    /// # Panics
    /// If a device cannot be made, or for more than 64 regions.
    #[must_use]
    pub fn new(middle: &Namespace, regions: usize, delay: Duration) -> Self {
        assert!(regions <= 64, "a bit for each region");
        for region in 0..regions {
            let (near, far) = (format!("up{region}"), far(region));
            let add = ["link", "add", &near, "type", "veth", "peer", "name", &far];
            process::run(middle.ip(&add));
            process::run(middle.ip(&["link", "set", &near, "master", &bridge(region), "up"]));
            process::run(middle.ip(&["link", "set", &far, "up"]));
        }
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        let thread = middle.spawn_inside(move || {
            let open = |region| {
                packet_socket::open(&far(region), Receives::All).expect("a packet socket on a wire")
            };
            let sockets: Vec<OwnedFd> = (0..regions).map(open).collect();
            carry(&sockets, delay, &its);
        });
        Self { shared, thread: Some(thread) }
    }

    /// Cuts a region off from all others, or ends that. What is on its way arrives.
    pub fn cut(&self, region: usize, cut: bool) {
        let bit = 1_u64 << region;
        if cut {
            self.shared.cut.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.shared.cut.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Bytes that regions have sent each other, with the headers of all layers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Frames that regions have sent each other.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.shared.frames.load(Ordering::Relaxed)
    }

    /// Frames that found no room, which is not meant to be.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Backbone {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // What it panicked with was printed.
            let _ = thread.join();
        }
    }
}

/// The end of a region's wire that frames are taken from.
fn far(region: usize) -> String {
    format!("far{region}")
}

/// A frame on its way: when it arrives, from which region, its bytes.
type Frame = (Instant, usize, Vec<u8>);

fn carry(sockets: &[OwnedFd], delay: Duration, shared: &Shared) {
    // SAFETY: PR_SET_TIMERSLACK takes one number: sleeps of this thread end on time.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut on_the_way: VecDeque<Frame> = VecDeque::new();
    let mut buffer = [0; MAX_LEN];
    while !shared.stop.load(Ordering::Relaxed) {
        wait(sockets, on_the_way.front().map(|(at, ..)| *at));
        let now = Instant::now();
        let cut = shared.cut.load(Ordering::Relaxed);
        let is_cut = |region: usize| cut & (1 << region) != 0;
        for (from, socket) in sockets.iter().enumerate() {
            while let Some(length) = receive(socket, &mut buffer) {
                if is_cut(from) {
                    continue;
                }
                if on_the_way.len() >= MAX {
                    shared.lost.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                shared.bytes.fetch_add(length as u64, Ordering::Relaxed);
                shared.frames.fetch_add(1, Ordering::Relaxed);
                on_the_way.push_back((now + delay, from, buffer[..length].to_vec()));
            }
        }
        while let Some((_, from, frame)) = on_the_way.pop_front_if(|(at, ..)| *at <= now) {
            let others = sockets.iter().enumerate().filter(|(to, _)| *to != from && !is_cut(*to));
            for (_, socket) in others {
                if !packet_socket::send(socket, &frame) {
                    shared.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Waits for a frame, or until one arrives; some milliseconds at most.
fn wait(sockets: &[OwnedFd], until: Option<Instant>) {
    const MAX: Duration = Duration::from_millis(20);
    let pause = until.map_or(MAX, |until| until.saturating_duration_since(Instant::now()));
    let pause = libc::timespec { tv_sec: 0, tv_nsec: pause.min(MAX).as_nanos() as i64 };
    let poll = |socket: &OwnedFd| {
        let fd = socket.as_raw_fd();
        libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
    };
    let mut polls: Vec<_> = sockets.iter().map(poll).collect();
    // SAFETY: the array is live and of the length given, and so is the time; no mask of signals is given.
    unsafe {
        libc::ppoll(polls.as_mut_ptr(), polls.len() as u64, &raw const pause, std::ptr::null());
    }
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    let (room, flags) = (buffer.len(), libc::MSG_DONTWAIT | libc::MSG_TRUNC);
    // SAFETY: the buffer is live and of the length given.
    let length = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), room, flags) };
    let length = usize::try_from(length).ok()?;
    assert!(length <= room, "a frame of {length} bytes between hosts");
    Some(length)
}
