//! What can be wrong with a class.

use super::{Class, MAX_CLASSES, MAX_NESTED, MAX_OF_DESTINATIONS};
use crate::prefix::PrefixError;

/// A condition of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassPart {
    /// The protocol.
    Protocol,
    /// The destination ports.
    Ports,
    /// The TCP flags.
    Flags,
    /// The source ports.
    From,
    /// Type and code of ICMP.
    Icmp,
    /// That it is a later fragment.
    Fragments,
    /// Where it goes.
    Destination,
}

/// Why a class was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassError {
    /// No protocol.
    #[error("{input:?} is not a protocol")]
    Protocol {
        /// What was read.
        input: String,
    },
    /// No port and no range of ports.
    #[error("{input:?} is neither a port nor a range of ports")]
    Ports {
        /// What was read.
        input: String,
    },
    /// No TCP flag.
    #[error("{input:?} is not a TCP flag")]
    Flag {
        /// What was read.
        input: String,
    },
    /// No type of ICMP.
    #[error("{input:?} is not a type of ICMP")]
    Icmp {
        /// What was read.
        input: String,
    },
    /// No destination.
    #[error(transparent)]
    Destination(PrefixError),
    /// Conditions that do not go together.
    #[error("source ports, a type of ICMP and fragments go with a protocol alone")]
    Apart {
        /// One of them.
        part: ClassPart,
    },
    /// No packet can be in it.
    #[error("no packet can match: {why}")]
    Never {
        /// The condition to blame.
        part: ClassPart,
        /// Why not.
        why: &'static str,
        /// What to write instead.
        hint: &'static str,
    },
    /// A packet can be in both of two classes, and nothing tells which of them it is in.
    #[error("the class {new} overlaps {old}, which is in use, and neither is the narrower one")]
    Overlap {
        /// The one that came later.
        new: Class,
        /// The one that is in use.
        old: Class,
    },
    /// There are too many different classes.
    #[error(
        "with {new} there would be more than {MAX_CLASSES} different classes in use, or more than \
         {MAX_OF_DESTINATIONS} of destinations"
    )]
    TooMany {
        /// The one that is too many.
        new: Class,
    },
    /// A class lies in too many others.
    #[error("with {new}, {class} would lie in {MAX_NESTED} other classes in use")]
    TooDeep {
        /// The one that came later.
        new: Class,
        /// The narrowest one.
        class: Class,
    },
}

crate::invalid::input_error!(ClassError);

impl ClassError {
    /// The condition that it is about.
    pub const fn part(&self) -> Option<ClassPart> {
        match self {
            Self::Protocol { .. } => Some(ClassPart::Protocol),
            Self::Ports { .. } => Some(ClassPart::Ports),
            Self::Flag { .. } => Some(ClassPart::Flags),
            Self::Icmp { .. } => Some(ClassPart::Icmp),
            Self::Destination(_) => Some(ClassPart::Destination),
            Self::Apart { part } => Some(*part),
            Self::Never { part, .. } => Some(*part),
            // These are about two classes or more, so no single key of a file is to blame.
            Self::Overlap { .. } | Self::TooMany { .. } | Self::TooDeep { .. } => None,
        }
    }

    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Protocol { .. } => {
                "write tcp, udp, icmp, icmpv6, sctp, gre, esp or another protocol's number, 0 to 255"
                    .into()
            }
            Self::Ports { .. } => "write a port such as 53, or a range such as 1000-2000".into(),
            Self::Flag { .. } => {
                "flags are fin, syn, rst, psh, ack, urg, ece and cwr, with ! for \"not set\": syn,!ack"
                    .into()
            }
            Self::Icmp { .. } => {
                "write a type such as 8, or a type and a code such as 3/4, each 0 to 255".into()
            }
            Self::Destination(error) => error.hint(),
            Self::Apart { .. } => "leave out the other conditions, or set two limits".into(),
            Self::Never { hint, .. } => (*hint).into(),
            Self::Overlap { .. } => {
                "choose conditions that exclude each other, or of which one includes the other, \
                 apart from destinations; `limiter limit list` shows what is in use"
                    .into()
            }
            Self::TooMany { .. } => {
                "combine classes, or remove some with `limiter limit unset`".into()
            }
            Self::TooDeep { .. } => "leave out one of the wider classes".into(),
        }
    }
}
