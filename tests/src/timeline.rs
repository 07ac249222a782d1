//! When packets got past XDP, one by one, by the kernel's own clock: what a whole fleet has admitted in
//! any span of time can be told from it.

use std::{
    collections::VecDeque,
    io,
    mem::{self, MaybeUninit},
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{
    Lab, Observer,
    lab::RX,
    observer::Then,
    packet_socket::{self, Receives},
};

/// Room for packets that wait to be read.
const BUFFER: libc::c_int = 64 << 20;
/// Bytes of a frame that are looked at: Ethernet and IPv4 headers.
const HEADERS: usize = 34;

/// Sources and times of packets that have passed.
type Notes = Mutex<Vec<(Ipv4Addr, Duration)>>;

/// Notes when packets of one IPv4 source pass on a host.
#[derive(Debug)]
pub struct Timeline<'lab> {
    stop: Arc<AtomicBool>,
    notes: Arc<Notes>,
    thread: JoinHandle<()>,
    /// Ends the packets after they were noted.
    end: Observer<'lab>,
    /// Whose packets are noted; nothing for all.
    source: Option<Ipv4Addr>,
}

impl<'lab> Timeline<'lab> {
    /// Begins to note packets of `source` on the receiver of `lab`. They go no further.
    ///
    /// # Panics
    /// If the socket cannot be made.
    #[must_use]
    pub fn new(lab: &'lab Lab, source: Ipv4Addr) -> Self {
        Self::begin(lab, Some(source))
    }

    /// The same of all IPv4 sources.
    ///
    /// # Panics
    /// As [`Timeline::new`].
    #[must_use]
    pub fn of_all(lab: &'lab Lab) -> Self {
        Self::begin(lab, None)
    }

    fn begin(lab: &'lab Lab, source: Option<Ipv4Addr>) -> Self {
        let end = Observer::new(lab, Then::Discard, &[]);
        let stop = Arc::new(AtomicBool::new(false));
        let socket = lab.receiver.run_inside(|| packet_socket().expect("a packet socket"));
        let notes = Arc::new(Notes::default());
        let (flag, to) = (Arc::clone(&stop), Arc::clone(&notes));
        let thread = std::thread::spawn(move || note(&socket, source, &flag, &to));
        Self { stop, notes, thread, end, source }
    }

    /// How many packets have passed so far.
    #[must_use]
    pub fn passed(&self) -> u64 {
        let counts = self.end.read();
        self.source.map_or(0, |source| counts.from(source))
    }

    /// How many packets of any source have passed so far.
    #[must_use]
    pub fn passed_of(&self, source: IpAddr) -> u64 {
        self.end.read().from(source)
    }

    /// How many packets have passed from `from` until `to` since the epoch, of those that are noted so far.
    ///
    /// # Panics
    /// If the thread has.
    #[must_use]
    pub fn passed_within(&self, from: Duration, to: Duration) -> usize {
        let notes = self.notes.lock().expect("the thread that notes");
        notes.iter().filter(|(_, time)| (from..to).contains(time)).count()
    }

    /// The times of all packets, since the epoch, ascending.
    ///
    /// # Panics
    /// If the thread has.
    #[must_use]
    pub fn stop(self) -> Vec<Duration> {
        self.stop_all().into_iter().map(|(_, time)| time).collect()
    }

    /// The same, with whose packets they are.
    ///
    /// # Panics
    /// As [`Timeline::stop`].
    #[must_use]
    pub fn stop_all(self) -> Vec<(Ipv4Addr, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the thread that notes");
        let mut times = mem::take(&mut *self.notes.lock().expect("the thread that notes"));
        times.sort_unstable_by_key(|(_, time)| *time);
        times
    }
}

/// The most packets in any span of time that is so long, as times of many hosts tell together.
#[must_use]
pub fn busiest(times: &[Vec<Duration>], span: Duration) -> u64 {
    let mut all: Vec<_> = times.iter().flatten().copied().collect();
    all.sort_unstable();
    let mut window = VecDeque::new();
    let mut most = 0;
    for time in all {
        window.push_back(time);
        while window.front().is_some_and(|&first| time - first >= span) {
            window.pop_front();
        }
        most = most.max(window.len());
    }
    most as u64
}

/// How far all hosts together went beyond a bucket of `burst` tokens that gets `rate` a second, at worst,
/// over any span of time: 0 if they did not.
#[must_use]
pub fn excess(times: &[Vec<Duration>], rate: f64, burst: f64) -> f64 {
    let mut all: Vec<_> = times.iter().flatten().copied().collect();
    all.sort_unstable();
    let Some(&(mut last)) = all.first() else { return 0.0 };
    let (mut debt, mut worst) = (0.0_f64, 0.0_f64);
    for time in all {
        debt = (debt - (time - last).as_secs_f64() * rate).max(0.0) + 1.0;
        last = time;
        worst = worst.max(debt - burst);
    }
    worst
}

fn packet_socket() -> io::Result<OwnedFd> {
    // Those of one protocol would be handed over after the hook at which packets end.
    let socket = packet_socket::open(RX, Receives::All)?;
    let wait = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
    set(&socket, libc::SO_RCVBUFFORCE, &BUFFER)?;
    set(&socket, libc::SO_TIMESTAMPNS, &1_i32)?;
    set(&socket, libc::SO_RCVTIMEO, &wait)?;
    Ok(socket)
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as u32;
    // SAFETY: the value is of the length that is given.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const *value).cast(),
            length,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Notes packets of `source`, or of all, until it is told to stop and there are none left.
fn note(socket: &OwnedFd, source: Option<Ipv4Addr>, stop: &AtomicBool, notes: &Notes) {
    loop {
        match receive(socket) {
            Some((from, time)) if source.is_none_or(|source| source == from) => {
                notes.lock().expect("those who read do not panic").push((from, time));
            }
            Some(_) => {}
            None if stop.load(Ordering::Relaxed) => return,
            None => {}
        }
    }
}

/// The next packet's source and time; `None` if there is none for a moment.
fn receive(socket: &OwnedFd) -> Option<(Ipv4Addr, Duration)> {
    let mut frame = [0_u8; HEADERS];
    let mut control = [MaybeUninit::<u64>::uninit(); 8];
    let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
    // SAFETY: zeros are a valid, empty header.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the header's pointers are to buffers of the lengths beside them, which live on.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
    if length < HEADERS as isize {
        return None;
    }
    let mut time = None;
    // SAFETY: the kernel has filled the header; the macros walk the control messages in it.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !message.is_null() {
        // SAFETY: a message of the kernel's, whole.
        let what = unsafe { &*message };
        if (what.cmsg_level, what.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            // SAFETY: data of this type are a time; it need not be aligned.
            let spec =
                unsafe { libc::CMSG_DATA(message).cast::<libc::timespec>().read_unaligned() };
            time = Some(Duration::new(spec.tv_sec as u64, spec.tv_nsec as u32));
        }
        // SAFETY: as above.
        message = unsafe { libc::CMSG_NXTHDR(&raw const header, message) };
    }
    let is_ipv4 = frame[12..14] == (libc::ETH_P_IP as u16).to_be_bytes();
    let source = if is_ipv4 { [frame[26], frame[27], frame[28], frame[29]] } else { [0; 4] };
    Some((source.into(), time?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(ms: u64, count: u64, from: u64) -> Vec<Duration> {
        (0..count).map(|i| Duration::from_millis(from + i * ms)).collect()
    }

    #[test]
    fn the_busiest_second_is_found_over_all_hosts() {
        let times = [every(10, 300, 0), every(10, 100, 1500)];
        assert_eq!(busiest(&times, Duration::from_secs(1)), 200);
        assert_eq!(busiest(&[], Duration::from_secs(1)), 0);
    }

    #[test]
    fn what_goes_beyond_a_bucket_is_told() {
        // 200 a second for two seconds: 400 of a burst of 100 and 200 more.
        let worst = excess(&[every(10, 200, 0), every(10, 200, 5)], 100.0, 100.0);
        assert!((worst - 100.0).abs() < 2.0, "{worst}");
        assert!(excess(&[every(10, 500, 0)], 100.0, 1.0).abs() < 0.01);
    }
}
