//! Sends packets through a wire, or hands them to a program at once, and takes the time.

use std::{
    ffi::CString,
    io,
    net::IpAddr,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use aya::{
    Ebpf, TestRun as _, TestRunAttrs, TestRunOptions,
    maps::{Array, Map, MapData, ProgramArray},
    programs::ProgramFd,
};
use memmap2::MmapOptions;
use tests::{Lab, frame, lab::TX, sender, zipf::Zipf};

use crate::{
    cell::{Family, Pattern},
    layout::{
        PATTERN_ONE, PATTERN_RANDOM, PATTERN_ROUND_ROBIN, PATTERN_SEQUENCE, SEQUENCE_PAIRS, Traffic,
    },
    object,
};

/// Frames per batch inside the kernel, well below the 256 places of a veth queue.
const BATCH: u32 = 64;
/// Length of an IPv4 frame; an IPv6 frame has the same payload.
const LENGTH_IPV4: usize = 64;
const LENGTH_IPV6: usize = 84;

// SAFETY: a C structure of integers that leaves no padding: 7 × 8 + 6 × 4 bytes.
unsafe impl aya::Pod for Traffic {}
// SAFETY: a C structure of two integers of the same size.
unsafe impl aya::Pod for crate::layout::Limit {}

/// Packets through a wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    /// Frames received per second, in millions.
    pub(crate) mpps: f64,
    /// Share of the frames that found no room in the receiver's queue.
    pub(crate) lost: f64,
}

/// What makes packets, on as many CPUs as a pattern has.
pub(crate) struct Generator {
    sources: Vec<Source>,
    /// Drops at once: what is left then is the generator's own cost.
    bare: ProgramFd,
}

impl Generator {
    /// A generator that runs on the last CPUs: the others have the most of other work.
    ///
    /// # Panics
    /// If the kernel refuses it, or there are fewer than `cpus`.
    pub(crate) fn new(cpus: usize) -> Self {
        let last = available_cpus() - 1;
        let sources: Vec<_> = (0..cpus).map(|index| Source::new(index, last - index)).collect();
        let bare = object::handle(&mut sources[0].object(), "drop_all");
        Self { sources, bare }
    }

    /// Sends `frames` frames to the receiver of `lab`.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub(crate) fn send(&self, lab: &Lab, pattern: Pattern, family: Family, frames: u32) -> Live {
        let before = (lab.received(), lab.lost_on_wire());
        let frames = frames / pattern.cpus() as u32;
        let sent = self.on_all(pattern, |source| {
            lab.sender.spawn_inside(move || {
                let attributes = TestRunAttrs::new().xdp_live_frames(BATCH);
                source.run("generator", attributes, pattern, family, device(), frames).1
            })
        });
        let received = (lab.received() - before.0) as f64;
        let lost = (lab.lost_on_wire() - before.1) as f64;
        let all: f64 = sent.iter().map(|traffic| traffic.frames as f64).sum();
        // Each by its own time: whoever is done first leaves the rest to the others.
        let speed = |it: &Traffic| it.stamped as f64 * 1e3 / (it.last - it.first) as f64;
        let speed: f64 = sent.iter().map(speed).sum();
        Live { mpps: speed * received / all, lost: lost / all }
    }

    /// ns per packet of `program`, including what it takes to write a source address into the packet
    /// and to get to the program; then without that.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub(crate) fn cost(
        &self,
        program: &ProgramFd,
        pattern: Pattern,
        family: Family,
        runs: u32,
    ) -> (f64, f64) {
        let [ns, own] = [program, &self.bare].map(|program| {
            // Its time is thrown away: it fills caches and branch predictors.
            self.call(program, pattern, family, runs / 4);
            self.call(program, pattern, family, runs)
        });
        (ns, ns - own)
    }

    /// ns per run of `program`, the mean over all CPUs.
    fn call(&self, program: &ProgramFd, pattern: Pattern, family: Family, runs: u32) -> f64 {
        let ns = self.on_all(pattern, |source| {
            source.set_callee(program);
            std::thread::spawn(move || {
                source.run("caller", TestRunAttrs::new(), pattern, family, 0, runs).0
            })
        });
        ns.iter().sum::<f64>() / ns.len() as f64
    }

    /// Starts what each CPU of `pattern` does, and waits for all of it.
    fn on_all<T>(&self, pattern: Pattern, start: impl Fn(Source) -> JoinHandle<T>) -> Vec<T> {
        let sources = self.sources[..pattern.cpus()].iter().cloned();
        let threads: Vec<_> = sources.map(start).collect();
        let done = threads.into_iter().map(JoinHandle::join);
        done.map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    }
}

/// What makes packets on one CPU.
#[derive(Clone)]
struct Source {
    object: Arc<Mutex<Ebpf>>,
    /// Which of the CPUs that send.
    index: usize,
    cpu: usize,
}

impl Source {
    fn new(index: usize, cpu: usize) -> Self {
        let mut object = object::load("BUCKETS", 1);
        fill_sequence(&object);
        object::program(&mut object, "generator");
        object::program(&mut object, "caller");
        Self { object: Arc::new(Mutex::new(object)), index, cpu }
    }

    fn object(&self) -> MutexGuard<'_, Ebpf> {
        self.object.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_callee(&self, program: &ProgramFd) {
        let mut object = self.object();
        let callee = object.map_mut("CALLEE").expect("a map of programs");
        let mut callee: ProgramArray<_> = callee.try_into().expect("a map of programs");
        callee.set(0, program, 0).expect("a program that can be called");
    }

    /// Runs a program on this CPU; gives ns per run and what it did.
    fn run(
        &self,
        name: &str,
        attributes: TestRunAttrs,
        pattern: Pattern,
        family: Family,
        ifindex: u32,
        repeat: u32,
    ) -> (f64, Traffic) {
        // `BPF_PROG_TEST_RUN` runs on the CPU of its caller.
        sender::pin(Some(self.cpu));
        let mut object = self.object();
        let (mut traffic, template) = prepare(pattern, family, ifindex, repeat);
        // Each CPU has sources of its own, as where a device spreads flows over queues, and as many as one
        // alone: fewer would lie in nearer caches.
        let first = u64::from(traffic.sources) * self.index as u64;
        match family {
            Family::Ipv4 => traffic.base_low += first,
            Family::Ipv6 => traffic.base_high += first,
        }
        let map = object.map_mut("TRAFFIC").expect("a map of traffic");
        let mut map: Array<&mut MapData, Traffic> = map.try_into().expect("an array");
        map.set(0, traffic, 0).expect("traffic can be stored");
        let options = TestRunOptions {
            data_in: Some(&template),
            repeat,
            attrs: attributes,
            ..TestRunOptions::default()
        };
        let result = object::program(&mut object, name).test_run(options);
        let result =
            result.unwrap_or_else(|error| panic!("the kernel does not run {name}: {error}"));
        let map = object.map("TRAFFIC").expect("a map of traffic");
        let map: Array<&MapData, Traffic> = map.try_into().expect("an array");
        let traffic = map.get(&0, 0).expect("traffic can be read");
        assert_eq!(traffic.frames, u64::from(repeat), "{name} made another number of frames");
        (result.duration.as_nanos() as f64, traffic)
    }
}

/// CPUs that there are.
pub(crate) fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The traffic at its start, and the frame that it varies.
fn prepare(pattern: Pattern, family: Family, ifindex: u32, seed: u32) -> (Traffic, Vec<u8>) {
    let (number, sources) = match pattern {
        Pattern::One => (PATTERN_ONE, 1),
        Pattern::Many
        | Pattern::Conforming
        | Pattern::Aggregate
        | Pattern::AggregateTwo
        | Pattern::FixedWindow
        | Pattern::SlidingWindow
        | Pattern::Class => (PATTERN_ROUND_ROBIN, 1 << 16),
        Pattern::Zipf => (PATTERN_SEQUENCE, 1),
        Pattern::Random | Pattern::Listed => (PATTERN_RANDOM, 1 << 24),
    };
    let base = family.base();
    let (length, header) = match base {
        IpAddr::V4(_) => (LENGTH_IPV4, frame::ETHERNET..frame::ETHERNET + frame::IPV4),
        IpAddr::V6(_) => (LENGTH_IPV6, frame::ETHERNET..frame::ETHERNET + frame::IPV6),
    };
    let mut template = frame::udp(base, length);
    // Without its source and checksum, the header adds up to what the program starts from. UDP over
    // IPv4 does without a checksum.
    if base.is_ipv4() {
        template[frame::ETHERNET + 10..frame::ETHERNET + 16].fill(0);
    }
    template[header.end + 6..header.end + 8].fill(0);
    let (base_high, base_low) = match base {
        IpAddr::V4(base) => (0, u64::from(u32::from(base))),
        IpAddr::V6(base) => ((base.to_bits() >> 64) as u64, base.to_bits() as u64),
    };
    let traffic = Traffic {
        random: u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        base_high,
        base_low,
        ifindex,
        pattern: number,
        sources,
        ip_version: if base.is_ipv4() { 4 } else { 6 },
        ip_sum: frame::sum(&template[header]),
        ..Traffic::default()
    };
    (traffic, template)
}

/// Index of the sending device in the namespace of the calling thread.
fn device() -> u32 {
    let name = CString::new(TX).expect("a name without zero bytes");
    // SAFETY: the name is a live C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert!(index != 0, "no device {TX}: {}", io::Error::last_os_error());
    index
}

/// Makes the sequence of sources of [`Pattern::Zipf`].
fn fill_sequence(object: &Ebpf) {
    let Some(Map::Array(map)) = object.map("SEQUENCE") else { panic!("no sequence") };
    let length = SEQUENCE_PAIRS as usize * size_of::<u64>();
    let descriptor = map.fd().as_fd().as_raw_fd();
    // SAFETY: the map was just made with this length, lives on in the kernel while it is mapped, and
    // nothing else writes it.
    let memory = unsafe { MmapOptions::new().len(length).map_mut(descriptor) };
    let mut memory = memory.expect("the sequence can be mapped");
    let mut zipf = Zipf::new(7);
    for number in memory.chunks_exact_mut(size_of::<u32>()) {
        number.copy_from_slice(&zipf.source().to_ne_bytes());
    }
}
