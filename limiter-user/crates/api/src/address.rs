//! Where programs listen.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a face listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Nowhere.
    Off,
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => to.write_str("off"),
            Self::Tcp(address) => address.fmt(to),
            Self::Unix(path) => write!(to, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        let address = text.parse();
        address.map(Self::Tcp).map_err(|_| "give IP:PORT, unix:PATH or off".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        assert_eq!("off".parse(), Ok(Address::Off));
        assert_eq!("unix:/run/x".parse(), Ok(Address::Unix("/run/x".into())));
        assert_eq!("[::1]:80".parse(), Ok(Address::Tcp("[::1]:80".parse().unwrap())));
        assert!("localhost:80".parse::<Address>().is_err());
    }
}
