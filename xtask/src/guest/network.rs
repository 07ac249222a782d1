//! A private network of guests: a hub of Unix sockets in this process. It reaches nothing of the host.

use std::{
    net::Ipv4Addr,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// The longest frame that the hub hands on, bytes.
const FRAME: usize = 65_536;

/// A hub: what one guest sends, all others receive.
#[derive(Debug)]
pub(crate) struct Network {
    sockets: TempDir,
    /// Where the emulators receive.
    cards: Arc<Mutex<Vec<PathBuf>>>,
}

/// A network card on the hub.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    /// Where its emulator receives.
    card: PathBuf,
    /// Where the hub receives what the emulator sends.
    hub: PathBuf,
    mac: [u8; 6],
}

impl Network {
    pub(crate) fn new() -> Result<Self> {
        // Not below the build output: a socket's path may have 107 bytes.
        let sockets = tempfile::tempdir().context("cannot make a folder for sockets")?;
        Ok(Self { sockets, cards: Arc::default() })
    }

    /// Adds a card, for one guest.
    pub(crate) fn add_card(&self) -> Result<Card> {
        let mut cards = self.cards.lock().unwrap_or_else(PoisonError::into_inner);
        let number = u8::try_from(cards.len()).context("too many cards")?;
        // This back end came with QEMU 7.2, that of Debian 12.
        let path = |end: &str| self.sockets.path().join(format!("{number}.{end}"));
        let card =
            Card { card: path("card"), hub: path("hub"), mac: [0x52, 0x54, 0, 0x77, 0, number] };
        let receiver = UnixDatagram::bind(&card.hub).context("cannot make a port of the hub")?;
        let sender = sender()?;
        cards.push(card.card.clone());
        let (all, own) = (Arc::clone(&self.cards), card.card.clone());
        thread::spawn(move || repeat(&receiver, &sender, &all, &own));
        Ok(card)
    }
}

/// Hands frames on for as long as the process lives.
fn repeat(receiver: &UnixDatagram, sender: &UnixDatagram, all: &Mutex<Vec<PathBuf>>, own: &Path) {
    let mut frame = vec![0; FRAME];
    while let Ok(length) = receiver.recv(&mut frame) {
        // A copy, so that the lock is not held while a socket takes its time.
        let cards = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for card in cards.iter().filter(|&card| card != own) {
            // A guest that is away or does not keep up loses frames, as on any wire.
            let _ = sender.send_to(&frame[..length], card);
        }
    }
}

/// A socket that rather loses a frame than waits.
fn sender() -> Result<UnixDatagram> {
    let socket = UnixDatagram::unbound().context("cannot make a socket")?;
    socket.set_nonblocking(true).context("cannot make a socket that does not wait")?;
    Ok(socket)
}

impl Card {
    /// What the emulator has to be told of the card with this number.
    pub(super) fn arguments(&self, number: usize) -> [String; 4] {
        let mac = self.mac.map(|byte| format!("{byte:02x}")).join(":");
        let (card, hub) = (self.card.display(), self.hub.display());
        [
            "-netdev".into(),
            format!(
                "dgram,id=net{number},local.type=unix,local.path={card},remote.type=unix,remote.path={hub}"
            ),
            "-device".into(),
            format!("virtio-net-pci,netdev=net{number},mac={mac}"),
        ]
    }

    /// Starts to send the card a small UDP packet from each of `sources` to `to` at every interval, whether
    /// or not its guest is up. What it cannot take waits in a queue, or is lost if that is full.
    pub(crate) fn send_to_it(
        &self,
        sources: &[Ipv4Addr],
        to: Ipv4Addr,
        interval: Duration,
    ) -> Result<Sender> {
        let frames: Vec<_> = sources.iter().map(|&from| udp(self.mac, from, to)).collect();
        let (socket, card) = (sender()?, self.card.clone());
        let shared = Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
        let theirs = Arc::clone(&shared);
        thread::spawn(move || {
            let mut next = Instant::now();
            while !theirs.0.load(Ordering::Relaxed) {
                let sent = frames.iter().filter(|frame| socket.send_to(frame, &card).is_ok());
                theirs.1.fetch_add(sent.count() as u64, Ordering::Relaxed);
                next += interval;
                // To a moment and not for a span: what sending takes would otherwise lower the rate.
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        Ok(Sender { shared })
    }
}

/// Sends until it is dropped.
#[derive(Debug)]
pub(crate) struct Sender {
    /// Whether to stop, and how many packets have been sent.
    shared: Arc<(AtomicBool, AtomicU64)>,
}

impl Sender {
    /// How many packets were sent, of all sources.
    pub(crate) fn sent(&self) -> u64 {
        self.shared.1.load(Ordering::Relaxed)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.0.store(true, Ordering::Relaxed);
    }
}

/// An Ethernet frame with an empty UDP packet to the discard port.
fn udp(mac: [u8; 6], from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    ip.extend(from.octets());
    ip.extend(to.octets());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = [0xc0, 0, 0, 9, 0, 8, 0, 0];
    let ethernet = [&mac[..], &[0x52, 0x54, 0, 0x77, 1, 0], &[8, 0]].concat();
    let mut frame = [ethernet, ip, udp.to_vec()].concat();
    // The least that Ethernet has, without its checksum.
    frame.resize(60, 0);
    frame
}

/// RFC 1071, of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // Folded to 16 bits above.
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

    /// What the emulator of a card has.
    fn emulator(card: &Card) -> UnixDatagram {
        let socket = UnixDatagram::bind(&card.card).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket
    }

    #[test]
    fn what_one_sends_all_others_receive() {
        let network = Network::new().unwrap();
        let cards = [0; 3].map(|_| network.add_card().unwrap());
        let emulators = [emulator(&cards[0]), emulator(&cards[1]), emulator(&cards[2])];
        emulators[0].send_to(b"first", &cards[0].hub).unwrap();
        emulators[1].send_to(b"second", &cards[1].hub).unwrap();
        let mut buffer = [0; 100];
        let mut of = |at: usize, count: usize| {
            let mut heard: Vec<_> = std::iter::repeat_with(|| {
                let length = emulators[at].recv(&mut buffer).unwrap();
                String::from_utf8_lossy(&buffer[..length]).into_owned()
            })
            .take(count)
            .collect();
            heard.sort();
            heard
        };
        assert_eq!(of(2, 2), ["first", "second"]);
        assert_eq!(of(0, 1), ["second"]);
        assert_eq!(of(1, 1), ["first"]);
    }

    #[test]
    fn a_sender_sends_before_anybody_listens_and_until_it_is_dropped() {
        let network = Network::new().unwrap();
        let card = network.add_card().unwrap();
        let sender = card.send_to_it(&[A, B], B, Duration::from_millis(1)).unwrap();
        let socket = emulator(&card);
        let mut buffer = [0; 100];
        let mut sources = std::collections::BTreeSet::new();
        while sources.len() < 2 {
            assert_eq!(socket.recv(&mut buffer).unwrap(), 60);
            sources.insert(<[u8; 4]>::try_from(&buffer[26..30]).unwrap());
        }
        assert_eq!(sources, [A.octets(), B.octets()].into());
        while sender.sent() < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        drop(sender);
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        while socket.recv(&mut buffer).is_ok() {}
    }

    #[test]
    fn frames_have_good_checksums() {
        let frame = udp([1; 6], A, B);
        assert_eq!(checksum(&frame[14..34]), 0);
        assert_eq!(frame[..6], [1; 6]);
        // The example of RFC 1071.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }
}
