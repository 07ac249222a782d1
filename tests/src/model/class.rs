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
    /// The first and the last source port.
    pub from: Option<(u16, u16)>,
    /// The first and the last type and code of ICMP, as one number.
    pub icmp: Option<(u16, u16)>,
    /// Whether it is of fragments but first ones.
    pub later: bool,
    /// A prefix of what they go to, and its length of 128.
    pub to: Option<(u128, u32)>,
}

impl Class {
    /// All packets; of destinations alone.
    pub const ANY: Self = Self::new("", None, None, None);

    /// The class of packets that fulfil these conditions.
    #[must_use]
    pub const fn new(
        text: &'static str,
        protocol: Option<u8>,
        ports: Option<(u16, u16)>,
        flags: Option<(u8, u8)>,
    ) -> Self {
        Self { text, protocol, ports, flags, from: None, icmp: None, later: false, to: None }
    }

    /// With source ports.
    #[must_use]
    pub const fn from(self, first: u16, last: u16) -> Self {
        Self { from: Some((first, last)), ..self }
    }

    /// With types and codes of ICMP, as one number.
    #[must_use]
    pub const fn icmp(self, first: u16, last: u16) -> Self {
        Self { icmp: Some((first, last)), ..self }
    }

    /// Of fragments but first ones alone.
    #[must_use]
    pub const fn later(self) -> Self {
        Self { later: true, ..self }
    }

    /// To a prefix of so many bits of 128 alone.
    #[must_use]
    pub const fn to(self, network: u128, length: u32) -> Self {
        Self { to: Some((network, length)), ..self }
    }

    /// Whether it is of packets to this address.
    fn goes_to(&self, address: Option<u128>) -> bool {
        self.to.is_none_or(|(network, length)| {
            address.is_some_and(|at| (at ^ network).checked_shr(128 - length).unwrap_or(0) == 0)
        })
    }

    /// Whether a packet fulfils all of its conditions.
    fn holds(&self, kind: &Kind) -> bool {
        let within = |range: Option<(u16, u16)>, found: Option<u16>| {
            range.is_none_or(|(first, last)| found.is_some_and(|at| first <= at && at <= last))
        };
        let flags = |(mask, set): (u8, u8)| kind.flags.is_some_and(|flags| flags & mask == set);
        kind.protocol.is_some()
            && (self.protocol.is_none() || self.protocol == kind.protocol)
            && within(self.ports, kind.port)
            && within(self.from, kind.from)
            && within(self.icmp, kind.icmp.map(|(kind, code)| u16::from_be_bytes([kind, code])))
            && (!self.later || kind.later)
            && self.flags.is_none_or(flags)
            && self.goes_to(kind.to)
    }

    /// Whether a packet may fulfil them that shows no more than its protocol, or not even that, and where it goes.
    pub(super) fn may_hold(&self, kind: &Kind) -> bool {
        let ported = self.ports.is_some() || self.from.is_some();
        let may = kind.protocol.is_none_or(|protocol| {
            !self.later
                && self.protocol.is_none_or(|own| own == protocol)
                && (!ported || [6, 17].contains(&protocol))
        });
        may && self.goes_to(kind.to)
    }

    /// Whether every packet of `other` is in this one too.
    fn contains(&self, other: &Self) -> bool {
        let within = |range: Option<(u16, u16)>, other: Option<(u16, u16)>| {
            range.is_none_or(|(f, l)| other.is_some_and(|(first, last)| f <= first && last <= l))
        };
        let flags =
            |(mask, set)| other.flags.is_some_and(|(m, s)| m & mask == mask && s & mask == set);
        (self.protocol.is_none() || self.protocol == other.protocol)
            && within(self.ports, other.ports)
            && within(self.from, other.from)
            && within(self.icmp, other.icmp)
            && (!self.later || other.later)
            && self.flags.is_none_or(flags)
            && self.to.is_none_or(|(_, length)| {
                other.to.is_some_and(|(at, longer)| length <= longer && self.goes_to(Some(at)))
            })
    }

    /// Orders classes by who has a packet that is in several: destinations go before flags, those before source ports, those before destination
    /// ports, those before the protocol, and what is narrower before what is wider.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        let flags = self.flags.map_or(0, |(mask, _)| mask.count_ones());
        let width = |range: Option<(u16, u16)>| {
            range.map_or(u32::MAX, |(first, last)| u32::from(last - first))
        };
        let kind = match self.icmp {
            Some((first, last)) if first == last => 2,
            Some(_) => 1,
            None => u8::from(self.later),
        };
        let narrow = (Reverse(flags), width(self.from), width(self.ports), Reverse(kind));
        let to = Reverse(self.to.map_or(0, |(_, length)| length));
        // Of classes that no packet can both be in, that of the lower number.
        (to, narrow, self.protocol.is_none(), self.protocol, self.ports, self.from, self.icmp)
    }
}

/// The classes whose limits are asked for a packet, of those `used`, which come by their rank: its own, then
/// the wider ones. One that hides what it is is of the class that `strictest` chooses of those it may be in.
pub(super) fn asked<'a>(
    used: &'a [Class],
    kind: &Kind,
    strictest: impl Fn(Vec<&'a Class>) -> Option<&'a Class>,
) -> impl Iterator<Item = Class> + Clone + 'a {
    let own = match kind.hides() {
        true => strictest(used.iter().filter(|class| class.may_hold(kind)).collect()),
        false => used.iter().find(|class| class.holds(kind)),
    };
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
            let kind = Kind { protocol: Some(protocol), port, flags, ..Kind::default() };
            asked(&used, &kind, |classes| classes.into_iter().last())
                .map(|class| class.text)
                .collect()
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
