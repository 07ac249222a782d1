//! The real daemon's program run on frames one by one, without a wire (`BPF_PROG_TEST_RUN`), and the
//! sketch's clock set by hand.
//!
//! While the program is driven the daemon stands still, which it is not needed for: nothing but the
//! test changes the maps.

use std::{
    cell::RefCell,
    fs, io,
    mem::{offset_of, size_of},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::Path,
    time::Duration,
};

use aya::{
    maps::{Array, Map, MapData, PerCpuArray},
    programs::{
        ProgramInfo,
        links::{FdLink, PinnedLink},
        loaded_programs,
    },
};
use limiter_common::abi::{Config, Counters, Layout, Reason, VERDICTS};
use serde_json::Value;

use crate::{Daemon, process::wait_for};

/// `BPF_PROG_TEST_RUN` of the kernel's `enum bpf_cmd`.
const PROG_TEST_RUN: libc::c_long = 10;
/// `XDP_DROP` and `XDP_PASS` of the kernel's `enum xdp_action`.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

/// The part of the kernel's `union bpf_attr` that a test run takes.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    verdict: u32,
    size_in: u32,
    size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context: [u64; 3],
    flags: u32,
    cpu: u32,
    batch: u32,
    padding: u32,
}

/// The bytes of [`Config`].
type Words = [u8; size_of::<Config>()];

/// A daemon's program.
pub struct Program {
    /// The one at work, with its number: the first use of a feature puts another one in its place.
    at_work: RefCell<(u32, OwnedFd)>,
    link: FdLink,
    config: Array<MapData, Words>,
    counters: PerCpuArray<MapData, Counters>,
    /// Packets by reason, as of the last look.
    counted: [u64; VERDICTS],
    pid: u32,
}

impl Program {
    /// The program of a daemon that is attached somewhere.
    ///
    /// # Panics
    /// If the daemon names none, or the kernel does not give it away.
    #[must_use]
    pub fn new(daemon: &Daemon) -> Self {
        let id = id(daemon);
        let map = |name: &str| open(&daemon.pins().join(name));
        let counters = PerCpuArray::try_from(map("counters"));
        let mut program = Self {
            at_work: RefCell::new((id, open_program(id))),
            link: link(daemon.pins()),
            config: Array::try_from(map("config")).expect("an array of the configuration"),
            counters: counters.expect("an array of counters"),
            counted: [0; VERDICTS],
            pid: daemon.pid(),
        };
        program.counted = program.count();
        program
    }

    /// Packets by reason.
    fn count(&self) -> [u64; VERDICTS] {
        let cpus = self.counters.get(&0, 0).expect("the counters can be read");
        std::array::from_fn(|place| cpus.iter().map(|cpu| cpu.verdicts[place].packets).sum())
    }

    /// Judges a frame as [`Program::passes`], and tells under which verdict and reason it is counted.
    ///
    /// # Panics
    /// As [`Program::passes`], and if it is not counted exactly once under a reason of its verdict.
    pub fn judge(&mut self, frame: &[u8]) -> (&'static str, &'static str) {
        let passed = self.passes(frame);
        let counted = self.count();
        let before = std::mem::replace(&mut self.counted, counted);
        let more: Vec<u64> = counted.iter().zip(before).map(|(now, then)| now - then).collect();
        let place = more.iter().position(|packets| *packets == 1).unwrap_or(0);
        assert!(more[place] == 1 && more.iter().sum::<u64>() == 1, "{more:?} for {frame:02x?}");
        let reason = Reason::from_u32(place as u32);
        assert_eq!(passed, reason.passes(), "{reason:?}: {frame:02x?}");
        (if passed { "pass" } else { "drop" }, reason.name())
    }

    /// Judges a frame of at least 14 bytes: whether it passes.
    ///
    /// # Panics
    /// If the kernel refuses to run it, or the program answers with anything but pass or drop.
    #[must_use]
    pub fn passes(&self, frame: &[u8]) -> bool {
        match self.run(frame, 1).verdict {
            XDP_PASS => true,
            XDP_DROP => false,
            other => panic!("verdict {other} on {frame:02x?}"),
        }
    }

    /// Judges a frame of at least 14 bytes so many times, and tells how long one time takes in the mean, ns,
    /// with what it takes to run the program again.
    ///
    /// # Panics
    /// If the kernel refuses to run it.
    #[must_use]
    pub fn ns(&self, frame: &[u8], repeat: u32) -> u32 {
        self.run(frame, repeat).duration
    }

    fn run(&self, frame: &[u8], repeat: u32) -> TestRun {
        let mut at_work = self.at_work.borrow_mut();
        let id = self.link.info().expect("the kernel knows the link").program_id();
        if id != at_work.0 {
            *at_work = (id, open_program(id));
        }
        let mut attributes = TestRun {
            program: at_work.1.as_raw_fd().cast_unsigned(),
            size_in: u32::try_from(frame.len()).expect("a frame"),
            data_in: frame.as_ptr() as u64,
            repeat,
            ..TestRun::default()
        };
        let (address, size) = (&raw mut attributes, size_of::<TestRun>());
        // SAFETY: the attributes and the frame that they point to live for the length of the call;
        // the kernel writes only within `size` bytes of the former, all of them integers.
        let result = unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, address, size) };
        assert!(
            result == 0,
            "cannot run the program on {} bytes: {}",
            frame.len(),
            io::Error::last_os_error()
        );
        attributes
    }

    /// How many of `count` frames like `frame` pass.
    #[must_use]
    pub fn passing(&self, frame: &[u8], count: u64) -> u64 {
        (0..count).map(|_| u64::from(self.passes(frame))).sum()
    }

    fn word(&mut self, offset: usize, value: u64) {
        let mut words = self.config.get(&0, 0).expect("the configuration can be read");
        words[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
        self.config.set(0, words, 0).expect("the configuration can be written");
    }

    /// Kinds of keys that packets do not look for: see [`limiter_common::abi::keys`].
    ///
    /// # Panics
    /// If the configuration cannot be read.
    #[must_use]
    pub fn absent(&self) -> u64 {
        let words = self.config.get(&0, 0).expect("the configuration can be read");
        let word = words[offset_of!(Config, absent)..].first_chunk().expect("a whole word");
        u64::from_ne_bytes(*word)
    }

    /// Sets what the program adds to the time since boot to get the sketch's time, ns. Lasts while
    /// the daemon stands still, and must not be called while frames are judged elsewhere.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn set_clock_offset(&mut self, offset: u64) {
        self.word(offset_of!(Config, clock_offset), offset);
    }

    /// Forgets how many events have been sent lately.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn forget_events(&mut self) {
        self.word(offset_of!(Config, limited_event_tat), 0);
        self.word(offset_of!(Config, set_full_event_tat), 0);
    }

    /// Stops the daemon until [`Program::resume_daemon`].
    ///
    /// # Panics
    /// If it does not stop.
    pub fn pause_daemon(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.pid);
        wait_for("the daemon to stand still", Duration::from_secs(5), || {
            let mut tasks = fs::read_dir(&tasks).expect("the daemon's threads");
            tasks.all(|task| is_stopped(&task.expect("a thread").path())).then_some(())
        });
    }

    /// Lets the daemon go on.
    pub fn resume_daemon(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill takes plain numbers; the daemon is a child that is not reaped while it is
        // driven, so the id is still its own.
        unsafe { libc::kill(self.pid.cast_signed(), signal) };
    }
}

fn is_stopped(task: &Path) -> bool {
    let status = fs::read_to_string(task.join("status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:\tT"))
}

/// The program with a number.
fn open_program(id: u32) -> OwnedFd {
    let info = find(id);
    let fd = info.fd().and_then(|fd| Ok(fd.as_fd().try_clone_to_owned()?));
    fd.unwrap_or_else(|error| panic!("cannot open program {id}: {error}"))
}

/// The link by which a daemon is attached.
fn link(pins: &Path) -> FdLink {
    let names = fs::read_dir(pins).expect("the pins can be listed").filter_map(Result::ok);
    let mut links = names.filter(|it| it.file_name().to_string_lossy().starts_with("link"));
    let path = links.next().expect("the daemon is attached somewhere").path();
    PinnedLink::from_pin(&path).map(FdLink::from).expect("a link")
}

fn open(path: &Path) -> Map {
    let map = MapData::from_pin(path).and_then(Map::from_map_data);
    map.unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()))
}

/// The kernel's id of a daemon's program.
///
/// # Panics
/// If it is not attached to anything.
#[must_use]
pub fn id(daemon: &Daemon) -> u32 {
    id_where(daemon, |_| true)
}

/// That of the first interface of the kind.
fn id_where(daemon: &Daemon, is_it: impl Fn(&Value) -> bool) -> u32 {
    let status = daemon.cli().run(&["status"]).json;
    let mut interfaces = status["interfaces"].as_array().into_iter().flatten();
    let id = interfaces.find(|it| is_it(it)).and_then(|it| it["program_id"].as_u64());
    id.and_then(|id| u32::try_from(id).ok()).unwrap_or_else(|| panic!("no program in {status:#}"))
}

/// What the kernel tells of a daemon's program.
///
/// # Panics
/// If it is not attached to anything.
#[must_use]
pub fn info(daemon: &Daemon) -> ProgramInfo {
    find(id(daemon))
}

/// What the kernel tells of a daemon's program on an interface.
///
/// # Panics
/// If it is not attached there.
#[must_use]
pub fn info_on(daemon: &Daemon, interface: &str) -> ProgramInfo {
    find(id_where(daemon, |it| it["name"] == interface))
}

/// What the kernel tells of the program with a number.
fn find(id: u32) -> ProgramInfo {
    let mut programs = loaded_programs().filter_map(Result::ok);
    let info = programs.find(|program| program.id() == id);
    info.unwrap_or_else(|| panic!("the kernel has no program {id}"))
}

/// What a daemon's maps were made with, the secret of the hash included.
///
/// # Panics
/// If it is not pinned.
#[must_use]
pub fn layout(daemon: &Daemon) -> Layout {
    let layout: Array<_, Layout> =
        open(&daemon.pins().join("layout")).try_into().expect("an array of layouts");
    layout.get(&0, 0).expect("the layout can be read")
}

/// ns since boot, as the program counts them.
///
/// # Panics
/// If the kernel has no such clock.
#[must_use]
pub fn now_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// What the program's coarse clock shows at least, ns since boot: what the kernel's showed a tick ago.
///
/// # Panics
/// If the kernel has no such clock.
#[must_use]
pub fn coarse_ns() -> u64 {
    let mut tick = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `tick` is writable for the length of the call.
    let result = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut tick) };
    assert!(result == 0, "no coarse clock");
    clock(libc::CLOCK_MONOTONIC_COARSE) - tick.tv_nsec.cast_unsigned()
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the length of the call.
    let result = unsafe { libc::clock_gettime(which, &raw mut time) };
    assert!(result == 0, "no monotonic clock");
    let (seconds, ns) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
    seconds * 1_000_000_000 + ns
}

/// Keeps the calling thread on the CPU it is on, so that per-CPU state is in one place.
///
/// # Panics
/// If the kernel refuses.
pub fn stay_on_cpu() {
    // SAFETY: takes nothing and only reads.
    let cpu = unsafe { libc::sched_getcpu() };
    let cpu = usize::try_from(cpu).expect("a CPU");
    // SAFETY: all bits zero is an empty set of CPUs.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number came from the kernel; the macro checks it against the set's size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set lives for the length of the call, whose size is given; 0 is this thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    assert!(result == 0, "cannot stay on CPU {cpu}: {}", io::Error::last_os_error());
}
