//! Classes of packets: by protocol, ports, TCP flags, type and code of ICMP; later fragments; and where they go.
//!
//! A packet is in exactly one class: of those in use that match it, the most specific one. A condition
//! on flags goes before one on source ports, that before one on destination ports, that before one on the protocol;
//! of two port ranges the narrower goes first. Where packets go goes before all of that, the longest prefix first. Two
//! classes of which that does not tell are not used together: see [`Classes`].
//!
//! Limits of each destination by itself have classes of their own: a packet is in one of those beside the other one.

mod error;
mod text;
mod used;

use std::cmp::{Ordering, Reverse};
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Deserialize;

pub use error::{ClassError, ClassPart};
pub use text::ClassText;
pub use used::{Classes, MAX_CLASSES, MAX_NESTED, MAX_OF_DESTINATIONS};

/// The number of TCP.
pub const TCP: u8 = 6;
/// The number of UDP.
pub const UDP: u8 = 17;
/// The number of ICMP.
pub const ICMP: u8 = 1;
/// The number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// Packets of one kind. [`Class::ANY`] is every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Class {
    /// The protocol above IP; for IPv6, what the last header says. With ports alone, TCP and UDP.
    pub protocol: Option<u8>,
    /// What is asked of what follows the IP header.
    pub kind: Option<Kind>,
    /// What is asked of TCP flags; then the protocol is TCP.
    pub flags: Option<Flags>,
    /// What is asked of the address that they go to.
    pub destination: Option<Destination>,
}

/// What a limit has to do with the addresses that packets go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// It is for packets to addresses in a prefix.
    Within(IpNet),
    /// Each address has it by itself, whoever sends: whom it is for are destinations.
    Each,
}

/// Who has a limit by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Each source
    #[default]
    Source,
    /// Each address that packets go to
    Destination,
}

/// What is asked of a packet beside its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Destination ports, of TCP and UDP only. They alone go together with flags.
    To(Ports),
    /// Source ports, of TCP and UDP only.
    From(Ports),
    /// The type of ICMP or ICMPv6, and perhaps its code.
    Icmp {
        /// The type.
        kind: u8,
        /// The code; any, if `None`.
        code: Option<u8>,
    },
    /// Fragments but the first one: they have no ports.
    Fragments,
}

impl Kind {
    fn contains(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::To(own), Self::To(other)) | (Self::From(own), Self::From(other)) => {
                own.contains(other)
            }
            (Self::Icmp { kind: own, code: None }, Self::Icmp { kind, .. }) => own == kind,
            _ => self == other,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::To(own), Self::To(other)) | (Self::From(own), Self::From(other)) => {
                own.overlaps(other)
            }
            (Self::To(_), Self::From(_)) | (Self::From(_), Self::To(_)) => true,
            _ => self.contains(other) || other.contains(self),
        }
    }
}

/// What a packet shows of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The protocol above IP.
    pub protocol: u8,
    /// Its source port; `None` if it cannot be read.
    pub from: Option<u16>,
    /// Its destination port, likewise.
    pub port: Option<u16>,
    /// Its TCP flags, likewise.
    pub flags: Option<u8>,
    /// Type and code of ICMP, likewise.
    pub icmp: Option<[u8; 2]>,
    /// Whether it is a fragment, and not the first one.
    pub later_fragment: bool,
    /// Where it goes; `None` if that cannot be read.
    pub destination: Option<IpAddr>,
}

/// Ports, 1 to 65535. A packet whose port cannot be read is in no range: a later fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    /// The first one.
    pub first: u16,
    /// The last one, not below the first.
    pub last: u16,
}

impl Ports {
    /// Whether packets of `protocol` can have them.
    fn check(self, part: ClassPart, protocol: Option<u8>) -> Result<(), ClassError> {
        let never = |why, hint| Err(ClassError::Never { part, why, hint });
        if self.first == 0 {
            return never("0 is not a port that packets are sent to", "ports are 1 to 65535");
        }
        if self.first > self.last {
            return never(
                "the range ends before it begins",
                "write the lower port first, for instance 1000-2000",
            );
        }
        if !matches!(protocol, None | Some(TCP | UDP)) {
            return never(
                "only TCP and UDP have ports",
                "leave the port out, or choose tcp or udp",
            );
        }
        Ok(())
    }

    /// Whether every port of `other` is among these.
    const fn contains(&self, other: &Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    const fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A condition on TCP flags, FIN being bit 0: those in `mask` are as in `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flags {
    /// Which flags matter; at least one.
    pub mask: u8,
    /// Which of those are set.
    pub value: u8,
}

impl Flags {
    /// A first packet of a connection: `syn,!ack`.
    pub const SYN: Self = Self { mask: 0b1_0010, value: 0b0_0010 };

    /// Whether whatever fulfils `other` fulfils this.
    const fn contains(&self, other: &Self) -> bool {
        other.mask & self.mask == self.mask && other.value & self.mask == self.value
    }

    const fn overlaps(&self, other: &Self) -> bool {
        (self.value ^ other.value) & self.mask & other.mask == 0
    }
}

impl Class {
    /// Every packet.
    pub const ANY: Self = Self { protocol: None, kind: None, flags: None, destination: None };

    /// The packets that fulfil all these conditions. With flags, the protocol is TCP; with a type of ICMP, it is ICMP
    /// unless it is ICMPv6.
    ///
    /// # Errors
    /// [`ClassError::Never`] if no packet can, [`ClassError::Apart`] if a kind does not go together with flags.
    pub fn new(
        protocol: Option<u8>,
        kind: Option<Kind>,
        flags: Option<Flags>,
    ) -> Result<Self, ClassError> {
        // Refused here rather than compiled: a class that no packet can be in would look like
        // protection.
        let never = |part, why, hint| Err(ClassError::Never { part, why, hint });
        match kind {
            Some(Kind::To(ports)) => ports.check(ClassPart::Ports, protocol)?,
            Some(Kind::From(ports)) => ports.check(ClassPart::From, protocol)?,
            Some(Kind::Icmp { .. }) if !matches!(protocol, None | Some(ICMP | ICMPV6)) => {
                return never(
                    ClassPart::Icmp,
                    "only ICMP and ICMPv6 have such a type",
                    "leave the type out, or choose icmp or icmpv6",
                );
            }
            _ => {}
        }
        let Some(Flags { mask, value }) = flags else {
            let is_icmp = matches!(kind, Some(Kind::Icmp { .. }));
            let protocol = protocol.or(is_icmp.then_some(ICMP));
            return Ok(Self { protocol, kind, flags, destination: None });
        };
        if !matches!(kind, None | Some(Kind::To(_))) {
            return Err(ClassError::Apart { part: ClassPart::Flags });
        }
        if !matches!(protocol, None | Some(TCP)) {
            return never(
                ClassPart::Flags,
                "only TCP has flags",
                "leave the flags out, or choose tcp",
            );
        }
        if mask == 0 || value & !mask != 0 {
            return never(
                ClassPart::Flags,
                "the flags contradict each other",
                "name each flag once, for instance syn,!ack",
            );
        }
        // The protocol is filled in, so that `tcp/syn` and `*/syn` are one class and cannot
        // overlap as two.
        Ok(Self { protocol: Some(TCP), kind, flags, destination: None })
    }

    /// The same packets, as far as they go there.
    #[must_use]
    pub const fn to(self, destination: Option<Destination>) -> Self {
        Self { destination, ..self }
    }

    /// Whether each destination has limits of this class by itself.
    pub const fn is_of_destinations(&self) -> bool {
        matches!(self.destination, Some(Destination::Each))
    }

    /// The prefix that packets of this class go to.
    pub const fn prefix(&self) -> Option<IpNet> {
        match self.destination {
            Some(Destination::Within(net)) => Some(net),
            _ => None,
        }
    }

    /// Whether it is every packet.
    pub fn is_any(&self) -> bool {
        *self == Self::ANY
    }

    /// Whether every packet of `other` is in this one, and both are of sources or both of destinations.
    pub fn contains(&self, other: &Self) -> bool {
        fn within<T>(own: &Option<T>, other: &Option<T>, contains: fn(&T, &T) -> bool) -> bool {
            own.as_ref().is_none_or(|own| other.as_ref().is_some_and(|other| contains(own, other)))
        }
        within(&self.protocol, &other.protocol, |own, other| own == other)
            && within(&self.kind, &other.kind, Kind::contains)
            && within(&self.flags, &other.flags, Flags::contains)
            && self.is_of_destinations() == other.is_of_destinations()
            && within(&self.prefix(), &other.prefix(), |own, other| own.contains(other))
    }

    /// Whether it asks for a port.
    const fn has_ports(&self) -> bool {
        matches!(self.kind, Some(Kind::To(_) | Kind::From(_)))
    }

    /// Whether a packet can be in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        fn both<T>(one: &Option<T>, other: &Option<T>, overlap: fn(&T, &T) -> bool) -> bool {
            one.as_ref().zip(other.as_ref()).is_none_or(|(one, other)| overlap(one, other))
        }
        // Ports without a protocol are of TCP and UDP.
        let ported = |one: &Self, other: &Self| {
            !one.has_ports() || matches!(other.protocol, None | Some(TCP | UDP))
        };
        // Later fragments have no flags.
        let flagged =
            |one: &Self, other: &Self| one.flags.is_none() || other.kind != Some(Kind::Fragments);
        both(&self.protocol, &other.protocol, |one, other| one == other)
            && ported(self, other)
            && ported(other, self)
            && flagged(self, other)
            && flagged(other, self)
            && both(&self.kind, &other.kind, Kind::overlaps)
            && both(&self.flags, &other.flags, Flags::overlaps)
            && both(&self.prefix(), &other.prefix(), |one, other| {
                one.contains(other) || other.contains(one)
            })
    }

    /// What is in both, wherever it goes. `None` if no class is that: with source ports, a type of ICMP or fragments
    /// goes a protocol alone.
    pub(super) fn intersection(&self, other: &Self) -> Option<Self> {
        let kind = match (self.kind, other.kind) {
            (Some(Kind::To(one)), Some(Kind::To(other))) => Some(Kind::To(Ports {
                first: one.first.max(other.first),
                last: one.last.min(other.last),
            })),
            (Some(one), Some(other)) if one.contains(&other) => Some(other),
            (Some(one), Some(other)) if other.contains(&one) => Some(one),
            (Some(_), Some(_)) => return None,
            (one, other) => one.or(other),
        };
        let flags = match (self.flags, other.flags) {
            (Some(one), Some(other)) => {
                Some(Flags { mask: one.mask | other.mask, value: one.value | other.value })
            }
            (one, other) => one.or(other),
        };
        let is_any = |class: &Self| class.to(None).is_any();
        if is_any(self) || is_any(other) {
            return Some(if is_any(self) { other.to(None) } else { self.to(None) });
        }
        Self::new(self.protocol.or(other.protocol), kind, flags).ok()
    }

    /// Whether a packet is in it.
    pub fn matches(&self, packet: &Shown) -> bool {
        // Other protocols use these bytes for other things: an ICMP type would be taken for a
        // port. And a later fragment, counted to each range, would use up limits of ports that it does not go to.
        let has = |is: bool| is && !packet.later_fragment;
        let port = |port: Option<u16>| port.filter(|_| has(matches!(packet.protocol, TCP | UDP)));
        let flags = packet.flags.filter(|_| has(packet.protocol == TCP));
        let icmp = packet.icmp.filter(|_| has(matches!(packet.protocol, ICMP | ICMPV6)));
        let within = |own: Ports, port: Option<u16>| {
            port.is_some_and(|port| (own.first..=own.last).contains(&port))
        };
        self.protocol.is_none_or(|own| own == packet.protocol)
            && self.flags.is_none_or(|own| flags.is_some_and(|flags| flags & own.mask == own.value))
            && self.kind.is_none_or(|own| match own {
                Kind::To(own) => within(own, port(packet.port)),
                Kind::From(own) => within(own, port(packet.from)),
                Kind::Icmp { kind, code } => {
                    icmp.is_some_and(|[is, of]| is == kind && code.is_none_or(|code| code == of))
                }
                Kind::Fragments => packet.later_fragment,
            })
            && self
                .prefix()
                .is_none_or(|net| packet.destination.is_some_and(|to| net.contains(&to)))
    }

    /// Orders classes as a packet is to try them: the most specific first. Of classes that are used
    /// together and that a packet can both be in, the first in this order has it.
    pub fn cmp_precedence(&self, other: &Self) -> Ordering {
        let rank = |class: &Self| {
            // More flags in the mask are fewer packets, so of two nested conditions the narrower
            // one comes first.
            let flags = class.flags.map_or(0, |flags| flags.mask.count_ones());
            let width = |ports: Option<Ports>| ports.map_or(u16::MAX, |it| it.last - it.first);
            let (from, to, kind) = match class.kind {
                Some(Kind::From(ports)) => (Some(ports), None, 0),
                Some(Kind::To(ports)) => (None, Some(ports), 0),
                Some(Kind::Icmp { code: Some(_), .. }) => (None, None, 2),
                Some(Kind::Icmp { .. } | Kind::Fragments) => (None, None, 1),
                None => (None, None, 0),
            };
            let protocol = Reverse(class.protocol.is_some());
            let destination = class.prefix().map(|net| net.prefix_len());
            let rest = (Reverse(flags), width(from), width(to), Reverse(kind), protocol);
            (class.is_of_destinations(), Reverse(destination), rest)
        };
        // Equal only where they are the same: [`Classes`] searches by this order, and would take
        // one class for another of the same rank.
        rank(self).cmp(&rank(other)).then_with(|| self.cmp(other))
    }

    /// Whether the precedence of two classes that overlap follows from what they say.
    // Ports 1-100 and 50-200 have no narrower one. A packet to port 70 would be limited by
    // whichever was set first.
    fn is_ordered_with(&self, other: &Self) -> bool {
        fn nested<T: PartialEq>(one: &T, other: &T, contains: fn(&T, &T) -> bool) -> bool {
            contains(one, other) || contains(other, one)
        }
        // The tables tell where a packet goes apart from the rest, by which they have to know what is in both.
        if self.destination != other.destination {
            return self.intersection(other).is_some();
        }
        match (&self.flags, &other.flags) {
            (Some(one), Some(other)) if one != other => {
                return nested(one, other, Flags::contains);
            }
            // Flags say what a packet is for, ports only where it goes: a limit on SYNs must not
            // end at port 443.
            (Some(_), None) | (None, Some(_)) => return true,
            _ => {}
        }
        match (&self.kind, &other.kind) {
            // Answers that nobody asked for come from one port, and go to any.
            (Some(Kind::To(_)), Some(Kind::From(_))) | (Some(Kind::From(_)), Some(Kind::To(_))) => {
                true
            }
            (Some(one), Some(other)) => nested(one, other, Kind::contains),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests;
