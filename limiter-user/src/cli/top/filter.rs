//! Which lines are shown.

use std::net::IpAddr;

use ipnet::IpNet;

use super::line::Line;

/// What a line must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Filter {
    /// Nothing.
    #[default]
    All,
    /// This text somewhere, in small letters.
    Text(String),
    /// A source or prefix that is in this one, or that this one is in.
    Net(IpNet),
}

impl Filter {
    /// Reads a filter: a prefix if there is a slash in it, an IPv6 address, or else any text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::All);
        }
        if text.contains('/') {
            let net: Result<IpNet, _> = text.parse();
            // Host bits are no mistake here, unlike in a limit: nothing comes of it but a view.
            return net.map(|net| Self::Net(net.trunc())).map_err(|_| {
                format!("{text:?} is not a prefix: write one such as 192.0.2.0/24 or 2001:db8::/48")
            });
        }
        Ok(match text.parse::<IpAddr>() {
            // An IPv6 address can be written in many ways.
            Ok(address @ IpAddr::V6(_)) => Self::Net(address.into()),
            _ => Self::Text(text.to_lowercase()),
        })
    }

    /// Whether `line` is shown.
    pub(super) fn matches(&self, line: &Line) -> bool {
        match self {
            Self::All => true,
            Self::Text(text) => line.texts().any(|part| part.to_lowercase().contains(text)),
            // Both ways: a line may be a prefix that has the address which is looked for.
            Self::Net(net) => line.net.is_some_and(|own| net.contains(&own) || own.contains(net)),
        }
    }
}
