//! Which parts of XDP a driver says it has: the `netdev` family of generic netlink, Linux 6.3.

use std::io;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable, NlasIterator, ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

// linux/netdev.h
const DEV_GET: u8 = 1;
const A_IFINDEX: u16 = 1;
const A_XDP_FEATURES: u16 = 3;

/// Programs can pass and drop: `NETDEV_XDP_ACT_BASIC`.
pub const BASIC: u64 = 1;

/// Programs take frames in several buffers: `NETDEV_XDP_ACT_RX_SG`.
pub const RX_SG: u64 = 1 << 5;

/// Programs can run on the card: `NETDEV_XDP_ACT_HW_OFFLOAD`.
pub const HW_OFFLOAD: u64 = 1 << 4;

/// A `NETDEV_CMD_DEV_GET`, or the answer.
#[derive(Debug)]
struct Device(Vec<(u16, Vec<u8>)>);

impl GenlFamily for Device {
    fn family_name() -> &'static str {
        "netdev"
    }

    fn command(&self) -> u8 {
        DEV_GET
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Device {
    fn attributes(&self) -> Vec<DefaultNla> {
        self.0.iter().map(|(kind, value)| DefaultNla::new(*kind, value.clone())).collect()
    }
}

impl Emitable for Device {
    fn buffer_len(&self) -> usize {
        self.attributes().as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes().as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Device {
    fn parse_with_param(bytes: &[u8], _: GenlHeader) -> Result<Self, DecodeError> {
        let attributes = NlasIterator::new(bytes)
            .map(|attribute| attribute.map(|a| (a.kind(), a.value().to_vec())));
        Ok(Self(attributes.collect::<Result<_, _>>()?))
    }
}

/// Sends one message and returns the first answer. Without `NLM_F_ACK` there is only one: the reply or the error.
fn ask<F>(socket: &Socket, message: GenlMessage<F>) -> io::Result<F>
where
    GenlMessage<F>: NetlinkSerializable + NetlinkDeserializable,
    NetlinkPayload<GenlMessage<F>>: From<GenlMessage<F>>,
    F: std::fmt::Debug,
{
    let mut packet = NetlinkMessage::from(message);
    packet.header.flags = NLM_F_REQUEST;
    packet.finalize();
    let mut buffer = vec![0; packet.buffer_len()];
    packet.serialize(&mut buffer);
    socket.send(&buffer, 0)?;
    let (bytes, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<GenlMessage<F>>::deserialize(&bytes).map_err(io::Error::other)?;
    match answer.payload {
        NetlinkPayload::InnerMessage(message) => Ok(message.payload),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        other => Err(io::Error::other(format!("unexpected answer: {other:?}"))),
    }
}

/// The XDP features of an interface, a set of `NETDEV_XDP_ACT_…`.
///
/// # Errors
/// On kernels before 6.3, which have no such family.
pub fn xdp_features(ifindex: u32) -> io::Result<u64> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    // Connected to the kernel, it takes no message of another process for the answer.
    socket.connect(&SocketAddr::new(0, 0))?;
    let family = GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName(Device::family_name().into())],
    };
    let family = ask(&socket, GenlMessage::from_payload(family))?;
    let id = family.nlas.iter().find_map(|attribute| match attribute {
        GenlCtrlAttrs::FamilyId(id) => Some(*id),
        _ => None,
    });
    let absent = || io::Error::from(io::ErrorKind::NotFound);
    let device = Device(vec![(A_IFINDEX, ifindex.to_ne_bytes().to_vec())]);
    let mut message = GenlMessage::from_payload(device);
    // The number of a generic family differs from boot to boot, so it has to be asked for by its
    // name.
    message.set_resolved_family_id(id.ok_or_else(absent)?);
    let Device(attributes) = ask(&socket, message)?;
    // A kernel that leaves this out tells as little as one without the family.
    let (_, value) =
        attributes.into_iter().find(|(kind, _)| *kind == A_XDP_FEATURES).ok_or_else(absent)?;
    Ok(u64::from_ne_bytes(value.try_into().map_err(|_| absent())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Interface;

    #[test]
    fn loopback_has_no_native_xdp() {
        let lo = Interface::named("lo").unwrap();
        match xdp_features(lo.index) {
            Ok(features) => assert_eq!(features & BASIC, 0, "{features:#x}"),
            // An old kernel has no such family.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}"),
        }
        assert!(xdp_features(u32::MAX >> 1).is_err(), "there is no such interface");
    }
}
