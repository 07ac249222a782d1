//! What the kernel says of an interface, over netlink.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkLayerType, LinkMessage, LinkXdp, XdpAttached};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::Error;
use limiter_common::abi::LinkKind;
use model::interface::Mode;

/// The usual MTU of Ethernet.
const ETHERNET_MTU: u32 = 1500;

/// An interface.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// The largest packet, bytes without the Ethernet header.
    pub mtu: u32,
    /// What its frames are.
    pub layer: LinkLayerType,
    /// Packets received since it was made.
    pub rx_packets: u64,
    /// The XDP program on it: where and which.
    pub program: Option<(Option<Mode>, u32)>,
}

/// Sends a request and collects the links of the answer.
pub fn request(message: LinkMessage, set: bool) -> io::Result<Vec<LinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let payload = if set {
        RouteNetlinkMessage::SetLink(message)
    } else {
        RouteNetlinkMessage::GetLink(message)
    };
    let mut packet = NetlinkMessage::from(payload);
    // A change is only known to be refused if its answer is asked for; a dump ends with a message
    // of its own.
    packet.header.flags = NLM_F_REQUEST | if set { NLM_F_ACK } else { NLM_F_DUMP };
    packet.finalize();
    let mut buffer = vec![0; packet.buffer_len()];
    packet.serialize(&mut buffer);
    socket.send(&buffer, 0)?;

    let mut links = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(io::Error::other)?;
            match answer.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    links.push(link);
                }
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    return Err(error.to_io());
                }
                NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(links),
                _ => {}
            }
            // A dump has several messages in a datagram, each aligned to four bytes (NLMSG_ALIGNTO).
            let length = (answer.header.length as usize).next_multiple_of(4);
            // At least four: a length of zero would be read for ever.
            rest = rest.get(length.max(4)..).unwrap_or_default();
        }
    }
}

/// Tells when interfaces come, go, change their names or change otherwise.
pub struct LinkEvents(Socket);

impl LinkEvents {
    /// Tells of what happens from now on.
    pub fn new() -> io::Result<Self> {
        // RTNLGRP_LINK of linux/rtnetlink.h.
        const LINKS: u32 = 1;
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.add_membership(LINKS)?;
        // Whoever waits does so for the descriptor, with all else that a daemon waits for.
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// The names of interfaces that the next message is about.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if nothing has happened. Any other one: something may have.
    pub fn read(&self) -> io::Result<BTreeSet<String>> {
        let (bytes, _) = self.0.recv_from_full()?;
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes);
        let links = match message.map_err(io::Error::other)?.payload {
            NetlinkPayload::InnerMessage(
                RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link),
            ) => Some(link),
            _ => None,
        };
        Ok(links.map(|link| Interface::parse(link).name).into_iter().collect())
    }
}

impl AsRawFd for LinkEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Interface {
    fn parse(link: LinkMessage) -> Self {
        let header = link.header;
        let mut interface =
            Self { index: header.index, layer: header.link_layer_type, ..Self::default() };
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => interface.name = name,
                LinkAttribute::Mtu(mtu) => interface.mtu = mtu,
                LinkAttribute::Stats64(stats) => interface.rx_packets = stats.rx_packets,
                LinkAttribute::Xdp(xdp) => interface.program = program(&xdp),
                _ => {}
            }
        }
        interface
    }

    /// Which programs serve its frames: the first one that its driver takes.
    ///
    /// # Errors
    /// If none does: [`Error::Layer`].
    pub fn link_kinds(&self, mode: Mode) -> Result<&'static [LinkKind], Error> {
        use LinkLayerType as Layer;
        match self.layer {
            // In one buffer as long as the driver has its frames so: that costs a call less, and no peer merges packets.
            Layer::Ether | Layer::Loopback if mode == Mode::Native && self.mtu > ETHERNET_MTU => {
                Ok(&[LinkKind::Ethernet, LinkKind::Jumbo])
            }
            Layer::Ether | Layer::Loopback => Ok(&[LinkKind::Ethernet]),
            Layer::None
            | Layer::Ppp
            | Layer::Rawip
            | Layer::Tunnel
            | Layer::Tunnel6
            | Layer::Sit
            | Layer::Ipgre
            | Layer::Ip6gre => Ok(&[LinkKind::Ip]),
            other => Err(Error::Layer { name: self.name.clone(), layer: format!("{other:?}") }),
        }
    }

    /// What its frames are; `None` if no program reads them.
    pub fn link_kind(&self) -> Option<LinkKind> {
        self.link_kinds(Mode::Generic).ok()?.first().copied()
    }

    /// All interfaces of this network namespace.
    pub fn all() -> Result<Vec<Self>, Error> {
        let links = request(LinkMessage::default(), false).map_err(Error::Netlink)?;
        Ok(links.into_iter().map(Self::parse).collect())
    }

    /// The interface called `name`.
    ///
    /// # Errors
    /// [`Error::UnknownInterface`] with the names that exist.
    pub fn named(name: &str) -> Result<Self, Error> {
        let mut all = Self::all()?;
        match all.iter().position(|interface| interface.name == name) {
            Some(at) => Ok(all.swap_remove(at)),
            None => Err(Error::UnknownInterface {
                name: name.into(),
                known: all.into_iter().map(|interface| interface.name).collect(),
            }),
        }
    }

    /// Removes an XDP program that was attached over netlink, in `mode`.
    pub fn clear_xdp(&self, mode: Mode) -> io::Result<()> {
        // XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE and XDP_FLAGS_HW_MODE of linux/if_link.h.
        let flags = match mode {
            Mode::Generic => 1 << 1,
            Mode::Native => 1 << 2,
            Mode::Offload => 1 << 3,
        };
        let mut message = LinkMessage::default();
        message.header.index = self.index;
        // The kernel removes a program where it gets -1 in the place of one, and only that of the
        // mode which the flag names.
        message.attributes.push(LinkAttribute::Xdp(vec![LinkXdp::Fd(-1), LinkXdp::Flags(flags)]));
        request(message, true).map(drop)
    }
}

/// Where a program is, and which.
pub fn program(xdp: &[LinkXdp]) -> Option<(Option<Mode>, u32)> {
    let mode = xdp.iter().find_map(|attribute| match attribute {
        LinkXdp::Attached(XdpAttached::Driver) => Some(Mode::Native),
        LinkXdp::Attached(XdpAttached::SocketBuffer) => Some(Mode::Generic),
        LinkXdp::Attached(XdpAttached::Hardware) => Some(Mode::Offload),
        _ => None,
    });
    let id = xdp.iter().find_map(|attribute| match attribute {
        LinkXdp::ProgId(id)
        | LinkXdp::DrvProgId(id)
        | LinkXdp::SkbProgId(id)
        | LinkXdp::HwProgId(id) => Some(*id),
        _ => None,
    })?;
    Some((mode, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_and_nonsense_is_not() {
        let lo = Interface::named("lo").unwrap();
        assert!(lo.index > 0 && lo.mtu >= 1280 && lo.program.is_none());
        let Err(Error::UnknownInterface { known, .. }) = Interface::named("nonsense0") else {
            panic!("there is no such interface")
        };
        assert!(known.contains(&"lo".to_string()));
    }
}
