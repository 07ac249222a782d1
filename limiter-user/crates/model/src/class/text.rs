//! Classes as text: `udp:53`, `tcp:80-443`, `tcp/syn,!ack`, `icmp`, `47`, `*:53`, `udp:from-53`, `icmp:3/4`,
//! `udp:fragments`; with a prefix that packets go to, `udp:53@203.0.113.0/24`, or for each destination by itself,
//! `any@each`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{By, Class, ClassError, ClassPart, Destination, Flags, ICMP, ICMPV6, Kind, Ports};
use crate::prefix::{self, short_prefix};

/// Protocols that have a name.
// A table of its own, not /etc/protocols: a file of limits must mean the same on each host of a
// cluster.
const PROTOCOLS: [(&str, u8); 17] = [
    ("icmp", 1),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", super::TCP),
    ("udp", super::UDP),
    ("dccp", 33),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
    ("mpls", 137),
];

/// TCP flags, from bit 0 on.
const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

/// What every packet is called.
const ANY: &str = "any";
/// What stands before source ports.
const FROM: &str = "from-";
/// What later fragments are called.
const FRAGMENTS: &str = "fragments";
/// What each destination by itself is called.
const EACH: &str = "each";

/// The conditions of a class as options and files have them, each by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassText<'a> {
    /// A protocol's name or number.
    pub proto: Option<&'a str>,
    /// A port, or a range such as `1000-2000`.
    pub dport: Option<&'a str>,
    /// A source port, or a range.
    pub sport: Option<&'a str>,
    /// A type of ICMP such as `8`, or type and code such as `3/4`.
    pub icmp: Option<&'a str>,
    /// Later fragments.
    pub fragments: bool,
    /// Flags such as `syn,!ack`.
    pub tcp_flags: Option<&'a str>,
    /// Short for the flags `syn,!ack`.
    pub syn: bool,
    /// An address or a prefix that packets go to.
    pub dst: Option<&'a str>,
    /// Who has the limit by itself.
    pub by: By,
}

impl ClassText<'_> {
    /// The class that they make.
    ///
    /// # Errors
    /// If one cannot be read, or no packet fulfils all; [`ClassError::part`] tells which is to blame.
    pub fn read(&self) -> Result<Class, ClassError> {
        let protocol = self.proto.map(protocol).transpose()?;
        let flags = match self.tcp_flags {
            // Refused even where both say the same: which of them an operator believes in cannot
            // be known.
            Some(_) if self.syn => {
                return Err(ClassError::Never {
                    part: ClassPart::Flags,
                    why: "syn is short for the flags syn,!ack, and others are given too",
                    hint: "give one of the two",
                });
            }
            Some(flags) => Some(flags.parse()?),
            None => self.syn.then_some(Flags::SYN),
        };
        let to = self.dport.map(|text| Ok((ClassPart::Ports, Kind::To(text.parse()?))));
        let from = self.sport.map(|text| Ok((ClassPart::From, Kind::From(text.parse()?))));
        let icmp = self.icmp.map(|text| Ok((ClassPart::Icmp, icmp(text)?)));
        let fragments = self.fragments.then_some(Ok((ClassPart::Fragments, Kind::Fragments)));
        let mut kind = None;
        for next in [to, from, icmp, fragments].into_iter().flatten() {
            let (part, next) = next?;
            if kind.replace(next).is_some() {
                return Err(ClassError::Apart { part });
            }
        }
        Ok(Class::new(protocol, kind, flags)?.to(self.destination()?))
    }

    fn destination(&self) -> Result<Option<Destination>, ClassError> {
        match self.dst {
            Some(_) if self.by == By::Destination => Err(ClassError::Never {
                part: ClassPart::Destination,
                why: "each destination has a limit by itself, and one prefix is given too",
                hint: "name the destinations as the target: --for PREFIX --by destination",
            }),
            Some(text) => {
                let net = prefix::read(text).map_err(ClassError::Destination)?;
                Ok(Some(Destination::Within(net)))
            }
            None => Ok((self.by == By::Destination).then_some(Destination::Each)),
        }
    }
}

/// Reads a type of ICMP, and perhaps a code.
fn icmp(input: &str) -> Result<Kind, ClassError> {
    let number = |text: &str| {
        let text = text.trim();
        text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let (kind, code) = match input.split_once('/') {
        Some((kind, code)) => (number(kind), number(code).map(Some)),
        None => (number(input), Some(None)),
    };
    let kind = kind.zip(code).map(|(kind, code)| Kind::Icmp { kind, code });
    kind.ok_or_else(|| ClassError::Icmp { input: input.into() })
}

fn protocol(input: &str) -> Result<u8, ClassError> {
    let text = input.trim().to_ascii_lowercase();
    let named = PROTOCOLS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    // A plus sign would be a number to the library.
    let number = || text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    named.or_else(number).ok_or_else(|| ClassError::Protocol { input: input.into() })
}

impl FromStr for Ports {
    type Err = ClassError;

    fn from_str(input: &str) -> Result<Self, ClassError> {
        let port = |text: &str| {
            let text = text.trim();
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            // As for protocols: `+53` would parse.
            text.parse().ok().filter(|_| digits)
        };
        let (first, last) = input.split_once('-').unwrap_or((input, input));
        let ports = port(first).zip(port(last)).map(|(first, last)| Self { first, last });
        ports.ok_or_else(|| ClassError::Ports { input: input.into() })
    }
}

impl FromStr for Flags {
    type Err = ClassError;

    fn from_str(input: &str) -> Result<Self, ClassError> {
        let mut flags = Self { mask: 0, value: 0 };
        for word in input.split(',') {
            let word = word.trim();
            let (name, set) = word.strip_prefix('!').map_or((word, true), |name| (name, false));
            let name = name.to_ascii_lowercase();
            let place = FLAGS.iter().position(|flag| *flag == name);
            let place = place.ok_or_else(|| ClassError::Flag { input: word.into() })?;
            let (bit, before) = (1 << place, flags);
            flags.mask |= bit;
            flags.value |= if set { bit } else { 0 };
            let is = flags.value & bit != 0;
            // `syn,syn` is harmless and passes. `syn,!syn` would match nothing for ever.
            if before.mask & bit != 0 && (before.value & bit != 0) != set || is != set {
                return Err(ClassError::Never {
                    part: ClassPart::Flags,
                    why: "the flags contradict each other",
                    hint: "name each flag once, for instance syn,!ack",
                });
            }
        }
        Ok(flags)
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.last != self.first { write!(f, "-{}", self.last) } else { Ok(()) }
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (place, name) in FLAGS.iter().enumerate() {
            if self.mask & 1 << place == 0 {
                continue;
            }
            let not = if self.value & 1 << place == 0 { "!" } else { "" };
            write!(f, "{comma}{not}{name}")?;
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            None if self.kind.is_none() => f.write_str(ANY)?,
            None => f.write_str("*")?,
            Some(number) => match PROTOCOLS.iter().find(|(_, named)| *named == number) {
                Some((name, _)) => f.write_str(name)?,
                None => write!(f, "{number}")?,
            },
        }
        match self.kind {
            Some(Kind::To(ports)) => write!(f, ":{ports}")?,
            Some(Kind::From(ports)) => write!(f, ":{FROM}{ports}")?,
            Some(Kind::Icmp { kind, code: None }) => write!(f, ":{kind}")?,
            Some(Kind::Icmp { kind, code: Some(code) }) => write!(f, ":{kind}/{code}")?,
            Some(Kind::Fragments) => write!(f, ":{FRAGMENTS}")?,
            None => {}
        }
        if let Some(flags) = self.flags {
            write!(f, "/{flags}")?;
        }
        match &self.destination {
            Some(Destination::Within(net)) => write!(f, "@{}", short_prefix(net)),
            Some(Destination::Each) => write!(f, "@{EACH}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Class {
    type Err = ClassError;

    fn from_str(input: &str) -> Result<Self, ClassError> {
        if let Some((class, to)) = input.split_once('@') {
            let text = match to.eq_ignore_ascii_case(EACH) {
                true => ClassText { by: By::Destination, ..ClassText::default() },
                false => ClassText { dst: Some(to), ..ClassText::default() },
            };
            return Ok(class.parse::<Self>()?.to(text.destination()?));
        }
        let (head, flags) = match input.split_once('/') {
            Some((head, flags)) => (head, Some(flags)),
            None => (input, None),
        };
        let (name, ports) = match head.split_once(':') {
            Some((name, ports)) => (name, Some(ports)),
            None => (head, None),
        };
        if name.eq_ignore_ascii_case(ANY) && ports.is_none() && flags.is_none() {
            return Ok(Self::ANY);
        }
        // A star stands for "TCP and UDP" and so needs a port. Alone it would read like `any`, and
        // be two protocols.
        let proto = (name != "*" || ports.is_none()).then_some(name);
        let mut text = ClassText { proto, tcp_flags: flags, ..ClassText::default() };
        let is_icmp = matches!(protocol(name), Ok(ICMP | ICMPV6));
        match ports {
            Some(FRAGMENTS) => text.fragments = true,
            Some(ports) if ports.starts_with(FROM) => text.sport = ports.strip_prefix(FROM),
            // With the code, which looks like flags.
            Some(_) if is_icmp => {
                (text.icmp, text.tcp_flags) = (input.split_once(':').map(|(_, kind)| kind), None);
            }
            ports => text.dport = ports,
        }
        text.read()
    }
}

impl Serialize for Class {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Class {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
