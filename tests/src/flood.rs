//! Floods made in the kernel: the generator program is run with live frames, which reach the
//! receiver's XDP program at millions per second.
//!
//! The kernel takes redirected frames on a veth device only while the peer runs native XDP.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use aya::{TestRun as _, TestRunAttrs, TestRunOptions, maps::Array};

use crate::{
    Lab, frame,
    lab::{RX_V4, RX_V6, TX},
    object, sender,
};

#[path = "../ebpf/src/settings.rs"]
mod settings;
use settings::{PATTERN_FIXED, PATTERN_RANDOM, PATTERN_ROUND_ROBIN, Progress, Settings};

/// Frames per batch inside the kernel, well below the 256 places of a veth queue.
const BATCH: u32 = 64;
/// Runs per call. Between calls the flood can be stopped, and pauses for about 20 ms: the kernel
/// waits for a grace period at the end of each.
const CHUNK: u32 = 1 << 18;

// SAFETY: a C structure of integers that leaves no padding: 4 × 8 + 6 × 4 bytes.
unsafe impl aya::Pod for Settings {}
// SAFETY: a C structure of three integers of the same size.
unsafe impl aya::Pod for Progress {}

/// Whom the frames claim to be from. Of IPv6, each source is a /64 of its own.
#[derive(Clone, Copy, Debug)]
pub enum Sources {
    /// One source.
    One(IpAddr),
    /// This many, from the first on, in turn.
    RoundRobin(IpAddr, u32),
    /// Uniformly at random from the 2^bits addresses or prefixes from the first on.
    Random(IpAddr, u32),
}

impl Sources {
    /// First source, pattern and number of sources.
    fn parts(self) -> (IpAddr, u32, u32) {
        match self {
            Self::One(first) => (first, PATTERN_FIXED, 1),
            Self::RoundRobin(first, count) => (first, PATTERN_ROUND_ROBIN, count),
            Self::Random(first, bits) => (first, PATTERN_RANDOM, 1 << bits),
        }
    }
}

/// A flood to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    sources: Sources,
    packets: u64,
    length: usize,
    rate: Option<u64>,
    cpu: Option<usize>,
    destination: Option<Ipv4Addr>,
}

/// What a flood sent.
#[derive(Clone, Copy, Debug)]
pub struct Flooded {
    /// Frames handed to the device.
    pub packets: u64,
    /// When the first one was, on the monotonic clock.
    pub first: Duration,
    /// When the last one was.
    pub last: Duration,
}

impl Flooded {
    /// Time from the first frame to the last of all floods together, in seconds.
    ///
    /// # Panics
    /// Without a flood.
    #[must_use]
    pub fn span(floods: &[Self]) -> f64 {
        let first = floods.iter().map(|flood| flood.first).min().expect("a flood");
        let last = floods.iter().map(|flood| flood.last).max().expect("a flood");
        (last - first).as_secs_f64()
    }
}

impl Flood {
    /// `packets` frames of 64 bytes (IPv4) or 78 bytes (IPv6), as fast as they can be sent.
    #[must_use]
    pub fn new(sources: Sources, packets: u64) -> Self {
        let length = if sources.parts().0.is_ipv4() { 64 } else { 78 };
        Self { sources, packets, length, rate: None, cpu: None, destination: None }
    }

    /// Frames of `length` bytes, Ethernet header included.
    #[must_use]
    pub fn with_length(self, length: usize) -> Self {
        Self { length, ..self }
    }

    /// Evenly spaced, at most `rate` frames per second. It keeps a CPU busy all the same.
    #[must_use]
    pub fn at_rate(self, rate: u64) -> Self {
        Self { rate: Some(rate), ..self }
    }

    /// Sent from one CPU, which also chooses the receive queue.
    #[must_use]
    pub fn on_cpu(self, cpu: usize) -> Self {
        Self { cpu: Some(cpu), ..self }
    }

    /// From IPv4 sources to another address than the receiver's own.
    #[must_use]
    pub fn to(self, destination: Ipv4Addr) -> Self {
        Self { destination: Some(destination), ..self }
    }

    /// Sends all of it.
    ///
    /// # Panics
    /// If the generator was left out of this build, or the kernel refuses it.
    #[must_use]
    pub fn send(self, lab: &Lab) -> Flooded {
        self.start(lab).join()
    }

    /// Starts to send in the background.
    #[must_use]
    pub fn start(self, lab: &Lab) -> Flooding {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Flooding { thread: lab.sender.spawn_inside(move || self.run(&stopped)), stop }
    }

    fn run(self, stop: &AtomicBool) -> Flooded {
        sender::pin(self.cpu);
        let mut object = object::load();
        let (settings, template) = self.settings();
        Array::<_, Settings>::try_from(object.map_mut("SETTINGS").expect("a settings map"))
            .expect("an array of settings")
            .set(0, settings, 0)
            .expect("settings can be stored");
        let progress: Array<_, Progress> = object
            .take_map("PROGRESS")
            .and_then(|map| map.try_into().ok())
            .expect("an array of progress");
        let progress = || progress.get(&0, 0).expect("progress can be read");
        let program = object::program(&mut object, "generator");
        while progress().frames < self.packets && !stop.load(Ordering::Relaxed) {
            program
                .test_run(TestRunOptions {
                    data_in: Some(&template),
                    repeat: CHUNK,
                    attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                    ..TestRunOptions::default()
                })
                .expect("the kernel runs the generator");
        }
        let Progress { frames, first, last } = progress();
        let [first, last] = [first, last].map(Duration::from_nanos);
        Flooded { packets: frames, first, last }
    }

    /// The generator's settings, and the frame that it varies.
    fn settings(self) -> (Settings, Vec<u8>) {
        let (first, pattern, sources) = self.sources.parts();
        let blank: IpAddr = match first {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // Without its source and its checksums, the frame adds up to what the program starts from.
        let mut frame = frame::udp(blank, self.length);
        let v4 = self.destination.unwrap_or(RX_V4);
        if first.is_ipv4() {
            frame = frame::sent_to(frame, v4);
        }
        let header = frame::ETHERNET..frame::ETHERNET + if first.is_ipv4() { 20 } else { 40 };
        if first.is_ipv4() {
            frame[frame::ETHERNET + 10..frame::ETHERNET + 12].fill(0);
        }
        let segment = header.end..frame.len();
        frame[header.end + 6..header.end + 8].fill(0);
        let (base_high, base_low, ip_version, destination) = match first {
            IpAddr::V4(first) => (0, u64::from(u32::from(first)), 4, frame::sum(&v4.octets())),
            IpAddr::V6(first) => {
                let bits = first.to_bits();
                ((bits >> 64) as u64, bits as u64, 6, frame::sum(&RX_V6.octets()))
            }
        };
        let length = u32::try_from(segment.len()).expect("a frame is small");
        let settings = Settings {
            frames: self.packets,
            interval: self.rate.map_or(0, |rate| 1_000_000_000 / rate),
            base_high,
            base_low,
            ifindex: ifindex(),
            pattern,
            sources,
            ip_version,
            ip_sum: frame::sum(&frame[header]),
            udp_sum: destination + 17 + length + frame::sum(&frame[segment]),
        };
        (settings, frame)
    }
}

/// Index of the sending device in the namespace of the calling thread.
fn ifindex() -> u32 {
    let name = std::ffi::CString::new(TX).expect("a name without zero bytes");
    // SAFETY: the name is a live C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert!(index != 0, "no device {TX}: {}", std::io::Error::last_os_error());
    index
}

/// A flood being sent.
#[derive(Debug)]
pub struct Flooding {
    thread: JoinHandle<Flooded>,
    stop: Arc<AtomicBool>,
}

impl Flooding {
    /// Waits until all of it is sent.
    ///
    /// # Panics
    /// If the flood did.
    #[must_use]
    pub fn join(self) -> Flooded {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Ends it early.
    ///
    /// # Panics
    /// If the flood did.
    #[must_use]
    pub fn stop(self) -> Flooded {
        self.stop.store(true, Ordering::Relaxed);
        self.join()
    }
}
