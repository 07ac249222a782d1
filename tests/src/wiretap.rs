//! What goes over the network between hosts, recorded to be sent once more, as it was or changed.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::FromRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{Namespace, hosts::PORT};

/// Datagrams that are kept, at most.
const MAX: usize = 1 << 16;

/// Headers of IPv4 without options, and of UDP.
const HEADERS: usize = 20 + 8;

/// How often what is due is sent.
const TICK: Duration = Duration::from_millis(1);

/// Records what others send to the daemon in a namespace.
#[derive(Debug)]
pub struct Wiretap {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Vec<u8>>>,
}

impl Wiretap {
    /// Begins to record what comes to `host`.
    ///
    /// # Panics
    /// If there can be no socket for it.
    #[must_use]
    pub fn new(host: &Namespace) -> Self {
        let socket = host.run_inside(|| packet_socket().expect("a packet socket"));
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        Self { stop, thread: std::thread::spawn(move || record(&socket, &flag)) }
    }

    /// Ends, and gives the datagrams that came, in their order.
    ///
    /// # Panics
    /// If the thread has.
    #[must_use]
    pub fn stop(self) -> Vec<Vec<u8>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the thread that records")
    }
}

/// One that gets IPv4 packets that come to any device, without the header of the link.
fn packet_socket() -> io::Result<UdpSocket> {
    let protocol = i32::from((libc::ETH_P_IP as u16).to_be());
    // SAFETY: socket takes numbers only.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM, protocol) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's. Of a socket for UDP only what all sockets can do is
    // used: waiting, and receiving.
    let socket = unsafe { UdpSocket::from_raw_fd(socket) };
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    Ok(socket)
}

fn record(socket: &UdpSocket, stop: &AtomicBool) -> Vec<Vec<u8>> {
    let (mut kept, mut packet) = (Vec::new(), [0; 2048]);
    while !stop.load(Ordering::Relaxed) && kept.len() < MAX {
        let Ok(length) = socket.recv(&mut packet) else { continue };
        // Version 4 without options, UDP, to the port of daemons.
        let is_theirs =
            packet[0] == 0x45 && packet[9] == 17 && packet[22..24] == PORT.to_be_bytes();
        if is_theirs && length >= HEADERS {
            let udp = usize::from(u16::from_be_bytes([packet[24], packet[25]])).saturating_sub(8);
            kept.push(packet[HEADERS..length.min(HEADERS + udp)].to_vec());
        }
    }
    kept
}

/// Datagrams that are being sent to a host.
#[derive(Debug)]
pub struct Pelting {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Pelting {
    /// Begins to send these to the daemon at `to`, in turn, `rate` a second, until there are `count`.
    ///
    /// # Panics
    /// Without a datagram.
    #[must_use]
    pub fn start(
        from: &Namespace,
        to: Ipv4Addr,
        datagrams: Vec<Vec<u8>>,
        rate: f64,
        count: u64,
    ) -> Self {
        assert!(!datagrams.is_empty(), "nothing to send");
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = from.spawn_inside(move || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
            let to = SocketAddr::from((to, PORT));
            let (begun, mut sent) = (Instant::now(), 0);
            while sent < count && !flag.load(Ordering::Relaxed) {
                let due = ((begun.elapsed().as_secs_f64() * rate) as u64).min(count);
                while sent < due {
                    let datagram = &datagrams[sent as usize % datagrams.len()];
                    // What finds no room is sent again.
                    sent += u64::from(socket.send_to(datagram, to).is_ok());
                }
                std::thread::sleep(TICK);
            }
            sent
        });
        Self { stop, thread }
    }

    /// Waits until all are sent. Returns how many that were.
    ///
    /// # Panics
    /// If the thread has.
    #[must_use]
    pub fn join(self) -> u64 {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Ends it early.
    ///
    /// # Panics
    /// As [`Pelting::join`].
    #[must_use]
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.join()
    }
}
