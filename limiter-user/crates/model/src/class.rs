//! Classes of packets: by protocol, destination port and TCP flags.
//!
//! A packet is in exactly one class: of those in use that match it, the most specific one. A condition
//! on flags goes before one on ports, that before one on the protocol; of two port ranges the narrower
//! goes first. Two classes of which that does not tell are not used together: see [`Classes`].

mod error;
mod text;
mod used;

use std::cmp::{Ordering, Reverse};

pub use error::{ClassError, ClassPart};
pub use text::ClassText;
pub use used::{Classes, MAX_CLASSES, MAX_NESTED};

/// The number of TCP.
pub const TCP: u8 = 6;
/// The number of UDP.
pub const UDP: u8 = 17;

/// Packets of one kind. [`Class::ANY`] is every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Class {
    /// The protocol above IP; for IPv6, what the last header says. With `ports` alone, TCP and UDP.
    pub protocol: Option<u8>,
    /// Destination ports, of TCP and UDP only.
    pub ports: Option<Ports>,
    /// What is asked of TCP flags; then the protocol is TCP.
    pub flags: Option<Flags>,
}

/// Destination ports, 1 to 65535. A packet whose port cannot be read is in no range: a later fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    /// The first one.
    pub first: u16,
    /// The last one, not below the first.
    pub last: u16,
}

impl Ports {
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
    pub const ANY: Self = Self { protocol: None, ports: None, flags: None };

    /// The packets that fulfil all these conditions. With flags, the protocol is TCP.
    ///
    /// # Errors
    /// [`ClassError::Never`] if no packet can.
    pub fn new(
        protocol: Option<u8>,
        ports: Option<Ports>,
        flags: Option<Flags>,
    ) -> Result<Self, ClassError> {
        // Refused here rather than compiled: a class that no packet can be in would look like
        // protection.
        let never = |part, why, hint| Err(ClassError::Never { part, why, hint });
        if let Some(Ports { first, last }) = ports {
            if first == 0 {
                return never(
                    ClassPart::Ports,
                    "0 is not a port that packets are sent to",
                    "ports are 1 to 65535",
                );
            }
            if first > last {
                return never(
                    ClassPart::Ports,
                    "the range ends before it begins",
                    "write the lower port first, for instance 1000-2000",
                );
            }
            if !matches!(protocol, None | Some(TCP | UDP)) {
                return never(
                    ClassPart::Ports,
                    "only TCP and UDP have ports",
                    "leave the port out, or choose tcp or udp",
                );
            }
        }
        if let Some(Flags { mask, value }) = flags {
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
            return Ok(Self { protocol: Some(TCP), ports, flags });
        }
        Ok(Self { protocol, ports, flags })
    }

    /// Whether it is every packet.
    pub fn is_any(&self) -> bool {
        *self == Self::ANY
    }

    /// Whether every packet of `other` is in this one.
    pub fn contains(&self, other: &Self) -> bool {
        fn within<T>(own: &Option<T>, other: &Option<T>, contains: fn(&T, &T) -> bool) -> bool {
            own.as_ref().is_none_or(|own| other.as_ref().is_some_and(|other| contains(own, other)))
        }
        within(&self.protocol, &other.protocol, |own, other| own == other)
            && within(&self.ports, &other.ports, Ports::contains)
            && within(&self.flags, &other.flags, Flags::contains)
    }

    /// Whether a packet can be in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        fn both<T>(one: &Option<T>, other: &Option<T>, overlap: fn(&T, &T) -> bool) -> bool {
            one.as_ref().zip(other.as_ref()).is_none_or(|(one, other)| overlap(one, other))
        }
        // Ports without a protocol are of TCP and UDP.
        let ported = |one: &Self, other: &Self| {
            one.ports.is_none() || matches!(other.protocol, None | Some(TCP | UDP))
        };
        both(&self.protocol, &other.protocol, |one, other| one == other)
            && ported(self, other)
            && ported(other, self)
            && both(&self.ports, &other.ports, Ports::overlaps)
            && both(&self.flags, &other.flags, Flags::overlaps)
    }

    /// Whether a packet is in it that has this protocol, destination port (`None` if it has none or is
    /// a fragment without) and TCP flags (`None` likewise).
    pub fn matches(&self, protocol: u8, port: Option<u16>, flags: Option<u8>) -> bool {
        // Other protocols use these bytes for other things: an ICMP type would be taken for a
        // port.
        let ported = matches!(protocol, TCP | UDP);
        let port = port.filter(|_| ported);
        let flags = flags.filter(|_| protocol == TCP);
        self.protocol.is_none_or(|own| own == protocol)
            && self
                .ports
                // A later fragment has no port. Counted to each range, it would use up limits of
                // ports that it does not go to.
                .is_none_or(|own| port.is_some_and(|port| (own.first..=own.last).contains(&port)))
            && self.flags.is_none_or(|own| flags.is_some_and(|flags| flags & own.mask == own.value))
    }

    /// Orders classes as a packet is to try them: the most specific first. Of classes that are used
    /// together and that a packet can both be in, the first in this order has it.
    pub fn cmp_precedence(&self, other: &Self) -> Ordering {
        let rank = |class: &Self| {
            // More flags in the mask are fewer packets, so of two nested conditions the narrower
            // one comes first.
            let flags = class.flags.map_or(0, |flags| flags.mask.count_ones());
            let ports = class.ports.map_or(u16::MAX, |ports| ports.last - ports.first);
            (Reverse(flags), ports, Reverse(class.protocol.is_some()))
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
        match (&self.flags, &other.flags) {
            (Some(one), Some(other)) if one != other => {
                return nested(one, other, Flags::contains);
            }
            // Flags say what a packet is for, ports only where it goes: a limit on SYNs must not
            // end at port 443.
            (Some(_), None) | (None, Some(_)) => return true,
            _ => {}
        }
        match (&self.ports, &other.ports) {
            (Some(one), Some(other)) => nested(one, other, Ports::contains),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests;
