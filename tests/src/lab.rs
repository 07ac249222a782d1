//! Two namespaces and the wire between them: what is sent on `tx0` arrives on `rx0`, where the
//! limiter is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{thread, time::Duration};

use crate::{
    Namespace,
    offload::{self, Offload},
    process,
};

/// Device in the sending namespace.
pub const TX: &str = "tx0";
/// Device in the receiving namespace, which the limiter protects.
pub const RX: &str = "rx0";
/// Device in the sending namespace on the other wire, if there is one.
pub const TX2: &str = "tx1";
/// Device in the receiving namespace on the other wire.
pub const RX2: &str = "rx1";
/// MAC address of [`TX`].
pub const TX_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// MAC address of [`RX`].
pub const RX_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// IPv4 address of [`RX`], on 192.0.2.0/24.
pub const RX_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// IPv6 address of [`RX`], on 2001:db8:0:1::/64.
pub const RX_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1);
/// IPv4 address of [`TX`].
pub const TX_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// IPv6 address of [`TX`].
pub const TX_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 2);

/// A sending and a receiving host with a wire between them. Nothing but the tests' own traffic is
/// on it: neighbours are static and the kernel's own IPv6 messages are off.
#[derive(Debug)]
pub struct Lab {
    /// The host that attacks.
    pub sender: Namespace,
    /// The host that is protected.
    pub receiver: Namespace,
}

impl Default for Lab {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Lab {
    /// Builds the world with `queues` receive queues per device. A frame sent from CPU c arrives in
    /// queue c modulo `queues`.
    ///
    /// # Panics
    /// Without root's privileges, or if a device cannot be made.
    #[must_use]
    pub fn new(queues: u32) -> Self {
        let lab = Self { sender: Namespace::new("tx"), receiver: Namespace::new("rx") };
        let queues = queues.to_string();
        let queues = ["numtxqueues", &queues, "numrxqueues", &queues];
        let mut link = lab.sender.ip(&["link", "add", TX]);
        link.args(queues).args(["type", "veth", "peer", "name", RX, "netns", lab.receiver.name()]);
        process::run(link.args(queues));
        lab.receiver.configure(RX, &RX_MAC, (RX_V4.into(), RX_V6.into()));
        lab.sender.configure(TX, &TX_MAC, (TX_V4.into(), TX_V6.into()));
        lab.know_neighbour(&lab.sender, TX, &RX_MAC, &[RX_V4.into(), RX_V6.into()]);
        lab.know_neighbour(&lab.receiver, RX, &TX_MAC, &[TX_V4.into(), TX_V6.into()]);
        // Real programs must send what a wire would carry: no frames above the MTU, valid checksums.
        for (host, device) in [(&lab.sender, TX), (&lab.receiver, RX)] {
            for offload in [Offload::TxChecksum, Offload::Tso, Offload::Gso, Offload::Gro] {
                offload::set(host, device, offload, false);
            }
        }
        lab
    }

    /// Puts another wire between the hosts, from [`TX2`] to [`RX2`], without addresses.
    ///
    /// # Panics
    /// If a device cannot be made.
    pub fn add_wire(&self) {
        let mut link = self.sender.ip(&["link", "add", TX2, "type", "veth", "peer", "name", RX2]);
        process::run(link.args(["netns", self.receiver.name()]));
        for (host, device) in [(&self.receiver, RX2), (&self.sender, TX2)] {
            host.sysctl(&format!("net/ipv6/conf/{device}/addr_gen_mode"), "1");
            process::run(host.ip(&["link", "set", device, "up"]));
        }
    }

    /// Gives the sending host one more address of its own, reachable from the receiver.
    ///
    /// # Panics
    /// If the address cannot be added.
    pub fn add_sender_address(&self, address: IpAddr) {
        let (prefix, length) = if address.is_ipv4() { ("/24", "/32") } else { ("/64", "/128") };
        let local = format!("{address}{prefix}");
        process::run(self.sender.ip(&["address", "add", &local, "dev", TX]).args(nodad(address)));
        let route = format!("{address}{length}");
        process::run(self.receiver.ip(&["route", "replace", &route, "dev", RX]));
        self.know_neighbour(&self.receiver, RX, &TX_MAC, &[address]);
    }

    fn know_neighbour(&self, host: &Namespace, device: &str, mac: &[u8; 6], of: &[IpAddr]) {
        for address in of {
            let address = address.to_string();
            let arguments = ["neighbour", "replace", &address, "lladdr", &text(mac), "dev", device];
            process::run(host.ip(&arguments).args(["nud", "permanent"]));
        }
    }

    /// Frames that [`RX`] has received since it was made, those that XDP dropped included.
    ///
    /// # Panics
    /// If `ip` does not say.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.statistic(&self.receiver, RX, "rx", "packets")
    }

    /// Waits until `expected` frames were received, and makes sure that it does not become more.
    ///
    /// # Panics
    /// If it is another number.
    pub fn assert_received(&self, expected: u64) {
        process::wait_for(format!("{expected} frames"), Duration::from_secs(2), || {
            (self.received() >= expected).then_some(())
        });
        thread::sleep(Duration::from_millis(100));
        assert_eq!(self.received(), expected);
    }

    /// Frames that were sent but did not find room in the receiver's queue.
    ///
    /// # Panics
    /// If `ip` does not say.
    #[must_use]
    pub fn lost_on_wire(&self) -> u64 {
        self.statistic(&self.sender, TX, "tx", "dropped")
    }

    fn statistic(&self, host: &Namespace, device: &str, direction: &str, what: &str) -> u64 {
        let text = process::run(host.ip(&["-json", "-statistics", "link", "show", device]));
        let links: serde_json::Value = serde_json::from_str(&text).expect("ip prints JSON");
        links[0]["stats64"][direction][what].as_u64().unwrap_or_else(|| {
            panic!("ip says nothing about {direction} {what} of {device}: {text}")
        })
    }
}

impl Namespace {
    fn configure(&self, device: &str, mac: &[u8; 6], (v4, v6): (IpAddr, IpAddr)) {
        self.sysctl(&format!("net/ipv6/conf/{device}/addr_gen_mode"), "1");
        for (address, length) in [(v4, 24), (v6, 64)] {
            let address_text = format!("{address}/{length}");
            let mut command = self.ip(&["address", "add", &address_text, "dev", device]);
            process::run(command.args(nodad(address)));
        }
        process::run(self.ip(&["link", "set", device, "address", &text(mac), "up"]));
    }
}

fn nodad(address: IpAddr) -> &'static [&'static str] {
    if address.is_ipv6() { &["nodad"] } else { &[] }
}

fn text(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
