//! Which packets a limit is for.

use std::cmp::Reverse;

use super::packet::Kind;

/// Packets of one kind.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Class {
    /// As an operator writes it.
    pub text: &'static str,
    /// The protocol above IP.
    pub protocol: Option<u8>,
    /// The first and the last destination port.
    pub ports: Option<(u16, u16)>,
    /// TCP flags that matter, and those of them that are set.
    pub flags: Option<(u8, u8)>,
}

impl Class {
    /// The class of packets that fulfil these conditions.
    #[must_use]
    pub const fn new(
        text: &'static str,
        protocol: Option<u8>,
        ports: Option<(u16, u16)>,
        flags: Option<(u8, u8)>,
    ) -> Self {
        Self { text, protocol, ports, flags }
    }

    /// Whether a packet fulfils all of its conditions.
    fn holds(&self, kind: &Kind) -> bool {
        let port = |(first, last): (u16, u16)| kind.port.is_some_and(|p| first <= p && p <= last);
        let flags = |(mask, set): (u8, u8)| kind.flags.is_some_and(|flags| flags & mask == set);
        kind.protocol.is_some()
            && (self.protocol.is_none() || self.protocol == kind.protocol)
            && self.ports.is_none_or(port)
            && self.flags.is_none_or(flags)
    }

    /// Whether every packet of `other` is in this one too.
    fn contains(&self, other: &Self) -> bool {
        let ports = |(first, last)| other.ports.is_some_and(|(f, l)| first <= f && l <= last);
        let flags =
            |(mask, set)| other.flags.is_some_and(|(m, s)| m & mask == mask && s & mask == set);
        (self.protocol.is_none() || self.protocol == other.protocol)
            && self.ports.is_none_or(ports)
            && self.flags.is_none_or(flags)
    }

    /// Orders classes by who has a packet that is in several: flags go before ports, ports before the
    /// protocol, and what is narrower before what is wider.
    pub(super) fn rank(&self) -> (Reverse<u32>, u32, bool) {
        let flags = self.flags.map_or(0, |(mask, _)| mask.count_ones());
        let ports = self.ports.map_or(u32::MAX, |(first, last)| u32::from(last - first));
        (Reverse(flags), ports, self.protocol.is_none())
    }
}

/// The classes whose limits are asked for a packet, of those `used`, which come by their rank: its own, then
/// the wider ones.
pub(super) fn asked<'a>(
    used: &'a [Class],
    kind: &Kind,
) -> impl Iterator<Item = Class> + Clone + 'a {
    let own = used.iter().find(|class| class.holds(kind));
    own.into_iter().flat_map(|own| used.iter().filter(|class| class.contains(own)).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_class_has_a_packet_and_wider_ones_follow() {
        let mut used = [
            Class::new("udp", Some(17), None, None),
            Class::new("*:53", None, Some((53, 53)), None),
            Class::new("udp:50-60", Some(17), Some((50, 60)), None),
            Class::new("tcp", Some(6), None, None),
            Class::new("tcp:80-443", Some(6), Some((80, 443)), None),
            Class::new("tcp/syn,!ack", Some(6), None, Some((0x12, 2))),
        ];
        used.sort_by_key(Class::rank);
        let texts = |protocol, port, flags| -> Vec<&str> {
            let kind = Kind { protocol: Some(protocol), port, flags };
            asked(&used, &kind).map(|class| class.text).collect()
        };
        // *:53 has it; neither udp nor its ports contain all of that.
        assert_eq!(texts(17, Some(53), None), ["*:53"]);
        assert_eq!(texts(17, Some(54), None), ["udp:50-60", "udp"]);
        assert_eq!(texts(17, None, None), ["udp"]);
        assert_eq!(texts(6, Some(80), Some(2)), ["tcp/syn,!ack", "tcp"]);
        assert_eq!(texts(6, Some(80), Some(0x12)), ["tcp:80-443", "tcp"]);
        assert!(texts(1, None, None).is_empty());
    }
}
