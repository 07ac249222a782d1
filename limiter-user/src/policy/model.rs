//! A limit: for whom, how much, and how much at once.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use limiter_common::gcra::{MAX_TOLERANCE, TICKS_PER_NS};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::units::{Rate, Unit, format_burst};

/// The smallest burst of a limit in bytes: one full Ethernet frame without its check sequence.
pub const FULL_FRAME: u64 = 1514;

/// Whom a limit is for. Each source inside a prefix gets the limit individually.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Every source that no prefix covers.
    Default,
    /// The sources in a prefix; the longest one that covers a source wins.
    Prefix(IpNet),
}

impl Target {
    /// The target as short as `--for` takes it: a single address without its length.
    pub fn short(&self) -> String {
        match self {
            Self::Default => "default".into(),
            Self::Prefix(prefix) => short_prefix(prefix),
        }
    }
}

/// A prefix without its length if it is a single address.
pub fn short_prefix(prefix: &IpNet) -> String {
    if prefix.prefix_len() == prefix.max_prefix_len() {
        prefix.addr().to_string()
    } else {
        prefix.to_string()
    }
}

/// Cuts an IPv4-mapped prefix (`::ffff:a.b.c.d/96+n`) down to IPv4: such packets are IPv4 sources.
fn unmapped(prefix: IpNet) -> IpNet {
    let IpNet::V6(v6) = prefix else { return prefix };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(address), Some(length)) => {
            Ipv4Net::new(address, length).map_or(prefix, |net| IpNet::V4(net.trunc()))
        }
        _ => prefix,
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Prefix(prefix) => write!(f, "{prefix}"),
        }
    }
}

impl FromStr for Target {
    type Err = ModelError;

    fn from_str(input: &str) -> Result<Self, ModelError> {
        let text = input.trim();
        if text.eq_ignore_ascii_case("default") {
            return Ok(Self::Default);
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Prefix(unmapped(IpNet::from(address))));
        }
        let prefix: IpNet = text.parse().map_err(|_| ModelError::Target { input: input.into() })?;
        if prefix.trunc() != prefix {
            return Err(ModelError::HostBits { input: input.into(), network: prefix.trunc() });
        }
        Ok(Self::Prefix(unmapped(prefix)))
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The source that an address belongs to, when sources are told apart by so many bits.
pub fn source_of(address: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> IpNet {
    match unmapped(IpNet::from(address)) {
        IpNet::V4(net) => Ipv4Net::new(net.addr(), ipv4_prefix)
            .map_or(IpNet::V4(net), |cut| IpNet::V4(cut.trunc())),
        IpNet::V6(net) => Ipv6Net::new(net.addr(), ipv6_prefix)
            .map_or(IpNet::V6(net), |cut| IpNet::V6(cut.trunc())),
    }
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LimitSpec {
    /// Whom it is for.
    pub target: Target,
    /// How much, in the long run.
    pub rate: Rate,
    /// How much at once, in the rate's unit.
    pub burst: u64,
    /// Whether what is over it is dropped, rather than only counted.
    pub enforce: bool,
}

/// Why a limit was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Neither an address nor a prefix.
    #[error("{input:?} is neither an IP address nor a prefix")]
    Target {
        /// What was read.
        input: String,
    },
    /// A prefix whose address has bits beyond its length.
    #[error("{input} has host bits set; did you mean {network}?")]
    HostBits {
        /// What was read.
        input: String,
        /// The network that the address lies in.
        network: IpNet,
    },
    /// A burst that no full-sized packet fits in.
    #[error("a burst of {} is smaller than one {what}", format_burst(*burst, *unit))]
    BurstTooSmall {
        /// The burst.
        burst: u64,
        /// Its unit.
        unit: Unit,
        /// What does not fit.
        what: &'static str,
    },
    /// A burst that takes too long to earn.
    #[error("a burst of {} at {rate} lasts longer than 13 days", format_burst(*burst, rate.unit()))]
    BurstTooLarge {
        /// The burst.
        burst: u64,
        /// The rate.
        rate: Rate,
        /// The largest burst at that rate.
        most: u64,
    },
    /// A target that is finer than what tells sources apart.
    #[error("{target} is part of a source: this daemon tells sources apart by {bits} bits")]
    FinerThanSource {
        /// The target.
        target: IpNet,
        /// Leading bits that make a source.
        bits: u8,
    },
}

impl ModelError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Target { .. } => {
                "write an address (198.51.100.7), a prefix (198.51.100.0/24, 2001:db8::/48) or default"
                    .into()
            }
            Self::HostBits { network, .. } => {
                format!("write {network}, or the bare address for one source alone")
            }
            Self::BurstTooSmall { unit: Unit::Packets, .. } => "give at least --burst 1".into(),
            Self::BurstTooSmall { unit: Unit::Bytes, .. } => {
                format!("give at least --burst {FULL_FRAME}byte, or no full frame would ever pass")
            }
            Self::BurstTooLarge { most, rate, .. } => {
                format!("give at most --burst \"{}\"", format_burst(*most, rate.unit()))
            }
            Self::FinerThanSource { target, bits } => {
                let family = if target.addr().is_ipv4() { "ipv4" } else { "ipv6" };
                let source = source_of(target.addr(), *bits, *bits);
                format!(
                    "set the limit for {source}, or restart the daemon with --{family}-prefix {}",
                    target.prefix_len()
                )
            }
        }
    }
}

impl LimitSpec {
    /// A limit, with 120 % of what `rate` earns in a second as burst if none is given, and at least
    /// one packet or one full frame.
    ///
    /// # Errors
    /// [`ModelError::BurstTooSmall`] and [`ModelError::BurstTooLarge`].
    pub fn new(target: Target, rate: Rate, burst: Option<u64>) -> Result<Self, ModelError> {
        let (least, what) = match rate.unit() {
            Unit::Packets => (1, "packet"),
            Unit::Bytes => (FULL_FRAME, "full frame (1514 bytes)"),
        };
        let most = Self::most_burst(&rate);
        let default = || {
            let earned = rate.earned_in(1_200_000_000);
            u64::try_from(earned).unwrap_or(u64::MAX).clamp(least, most.max(least))
        };
        let burst = burst.unwrap_or_else(default);
        if burst < least {
            return Err(ModelError::BurstTooSmall { burst, unit: rate.unit(), what });
        }
        if burst > most {
            return Err(ModelError::BurstTooLarge { burst, rate, most });
        }
        Ok(Self { target, rate, burst, enforce: true })
    }

    /// The largest burst whose tolerance the token bucket can hold.
    fn most_burst(rate: &Rate) -> u64 {
        let most_ns = u128::from(MAX_TOLERANCE / TICKS_PER_NS);
        let most = most_ns * u128::from(rate.amount()) / u128::from(rate.period_ns());
        u64::try_from(most).unwrap_or(u64::MAX)
    }

    /// Whether the target is a source or wider, where sources have so many bits.
    ///
    /// # Errors
    /// [`ModelError::FinerThanSource`] if it is not.
    pub fn check_prefix(&self, ipv4_prefix: u8, ipv6_prefix: u8) -> Result<(), ModelError> {
        let Target::Prefix(target) = self.target else { return Ok(()) };
        let bits = if target.addr().is_ipv4() { ipv4_prefix } else { ipv6_prefix };
        // A bare IPv6 address is the usual way to name the source it belongs to, but a limit for it
        // would hold for the whole source: that has to be said.
        if target.prefix_len() > bits {
            return Err(ModelError::FinerThanSource { target, bits });
        }
        Ok(())
    }

    /// The limit with or without enforcement.
    #[must_use]
    pub const fn enforced(self, enforce: bool) -> Self {
        Self { enforce, ..self }
    }

    /// What the limit counts.
    pub const fn unit(&self) -> Unit {
        self.rate.unit()
    }

    /// The burst as it is written.
    pub fn burst_text(&self) -> String {
        format_burst(self.burst, self.rate.unit())
    }
}

#[cfg(test)]
mod tests;
