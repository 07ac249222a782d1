//! The cluster that a host belongs to, as it is configured.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::membership::{MAX_NAME_LEN, MAX_REGION_LEN, MAX_WEIGHT};
use model::Invalid;

/// Where the key lies if that is not said.
pub const KEY_FILE: &str = "/etc/limiter/cluster.key";

/// Hosts that can be expected to found a cluster together, at most.
const MAX_EXPECTED: u32 = 256;

/// Members that a host asks for the others: an address or a DNS name with a port, or the name of a service, whose SRV
/// records (RFC 2782) tell both.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seed {
    /// The address or name; names in lower case.
    host: String,
    /// None for a service.
    port: Option<u16>,
}

impl Seed {
    /// The address or name.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = "give an address or a name with a port, such as 192.0.2.11:7700, \
                       [2001:db8::11]:7700 or edge-2.example.net:7700, or a name with SRV records, such as \
                       _limiter._udp.example.net";
        let refuse = |problem: String| Err(format!("{problem}: {example}"));
        let (host, port) = match text.parse::<SocketAddr>() {
            Ok(address) => (address.ip().to_string(), address.port()),
            Err(_) => {
                let Some((host, port)) = text.rsplit_once(':') else {
                    // Names of hosts begin otherwise: this is no name whose port was forgotten.
                    if text.starts_with('_') && is_dns_name(text) {
                        return Ok(Self { host: text.to_ascii_lowercase(), port: None });
                    }
                    return refuse(format!("{text:?} has no port"));
                };
                let Ok(port) = port.parse() else {
                    return refuse(format!("{port:?} in {text:?} is no port"));
                };
                if !is_dns_name(host) {
                    return refuse(format!("{host:?} is neither an address nor a name"));
                }
                (host.to_ascii_lowercase(), port)
            }
        };
        // A socket that binds it gets any free port, which no other host could know.
        if port == 0 {
            refuse(format!("port 0 in {text:?} is none"))
        } else {
            Ok(Self { host, port: Some(port) })
        }
    }
}

/// Whether a text can be the name of a host in the DNS. Numbers alone are a mistyped address.
fn is_dns_name(text: &str) -> bool {
    let fits = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(inner) && !label.starts_with('-')
    };
    let text = text.strip_suffix('.').unwrap_or(text);
    let numbers = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.len() <= 253 && !numbers && text.split('.').all(fits)
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match port {
            None => f.write_str(host),
            Some(port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Some(port) => write!(f, "{host}:{port}"),
        }
    }
}

impl Serialize for Seed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads the address that peers come to.
///
/// # Errors
/// If it is none, in words that say how one looks.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let example = "give an address and a port, such as 192.0.2.10:7700 or [2001:db8::10]:7700";
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err(format!("port 0 is none: {example}")),
        Ok(address) => Ok(address),
        Err(_) => Err(format!("{text:?} is not an address to listen on: {example}")),
    }
}

/// Whether others can reach a host at this address, which is the value of that key.
///
/// # Errors
/// If not: it stands for all addresses of the host, or for a group.
fn check_address(key: &str, address: SocketAddr) -> Result<(), Invalid> {
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_multicast() || address.port() == 0 {
        let message = format!("other hosts cannot reach this one at {address}");
        let hint = format!("give [cluster] {key} the address and port that other hosts are to use");
        return Err(Invalid::new(message).with_hint(hint));
    }
    Ok(())
}

/// Whether so many hosts may found a cluster together.
fn check_expect(expect: u32) -> Result<(), Invalid> {
    if (2..=MAX_EXPECTED).contains(&expect) {
        return Ok(());
    }
    let message = match expect {
        0 | 1 => {
            format!("{expect} would let a host that has lost its state found a second cluster")
        }
        _ => format!("{expect} is out of range"),
    };
    Err(Invalid::new(message).with_hint(format!(
        "give the number of hosts that start together, 2 to {MAX_EXPECTED}; for a single host leave it out, and run \
         `limiter cluster init` there"
    )))
}

/// The cluster that a host belongs to. Without an address to listen on it belongs to none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The host's name there; its own if left out.
    pub name: Option<String>,
    /// The address and UDP port that peers come to.
    pub listen: Option<SocketAddr>,
    /// Where others reach it, if that is another address.
    pub advertise: Option<SocketAddr>,
    /// Hosts to ask for the others; this one may be among them.
    pub seeds: Vec<Seed>,
    /// So many hosts that belong to no cluster found one when they see each other: 2 to 256.
    pub bootstrap_expect: Option<u32>,
    /// The file with the key that all members have.
    pub key_file: PathBuf,
    /// Its part of every limit, relative to those of the others: 1 to 1000.
    pub weight: u32,
    /// Hosts near to it have the same.
    pub region: String,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            name: None,
            listen: None,
            advertise: None,
            seeds: Vec::new(),
            bootstrap_expect: None,
            key_file: KEY_FILE.into(),
            weight: 100,
            region: "default".into(),
        }
    }
}

/// Whether a host or a region may be called so.
fn check_name(what: &str, name: &str, most: usize) -> Result<(), Invalid> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=most).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    Err(Invalid::new(format!("{name:?} is not the name of a {what}")).with_hint(format!(
        "a name has 1 to {most} letters, digits and the characters . _ - such as edge-1"
    )))
}

impl ClusterConfig {
    /// Whether the host is to be in a cluster.
    pub const fn is_on(&self) -> bool {
        self.listen.is_some()
    }

    /// Whether it goes together.
    ///
    /// # Errors
    /// What does not, and the key that is to blame.
    pub fn check(
        &self,
        own: impl FnOnce() -> io::Result<String>,
    ) -> Result<(), (&'static str, Invalid)> {
        if let Some(name) = &self.name {
            check_name("host", name, MAX_NAME_LEN).map_err(|error| ("cluster_name", error))?;
        }
        check_name("region", &self.region, MAX_REGION_LEN)
            .map_err(|error| ("cluster_region", error))?;
        if !(1..=MAX_WEIGHT).contains(&self.weight) {
            let message = format!("{} is out of range", self.weight);
            let hint = format!("choose a weight from 1 to {MAX_WEIGHT}; 100 is the default");
            return Err(("cluster_weight", Invalid::new(message).with_hint(hint)));
        }
        // Mostly a typing error: then the host that was meant is missing.
        for (place, seed) in self.seeds.iter().enumerate() {
            if self.seeds[..place].contains(seed) {
                let error = Invalid::new(format!("{seed} is there twice"));
                return Err(("cluster_seeds", error.with_hint("name each seed once")));
            }
        }
        if let Some(expect) = self.bootstrap_expect {
            check_expect(expect).map_err(|error| ("cluster_bootstrap_expect", error))?;
        }
        if let Some(advertise) = self.advertise {
            check_address("advertise", advertise).map_err(|error| ("cluster_advertise", error))?;
        }
        if let Some(listen) = self.listen {
            check_address("listen", listen).map_err(|error| ("cluster_listen", error))?;
            // A name that was given is good.
            return self.name(own).map(drop).map_err(|error| ("cluster_listen", error));
        }
        let (message, key) = if !self.seeds.is_empty() {
            ("there are seeds, but no address to listen on", "cluster_seeds")
        } else if self.bootstrap_expect.is_some() {
            ("hosts are expected, but there is no address to listen on", "cluster_bootstrap_expect")
        } else if self.advertise.is_some() {
            ("others are told an address, but there is none to listen on", "cluster_advertise")
        } else {
            return Ok(());
        };
        let hint = "give the address and UDP port of this host that peers come to: listen = \
                    \"192.0.2.10:7700\" below [cluster], or --cluster-listen";
        Err((key, Invalid::new(message).with_hint(hint)))
    }

    /// The host's name in the cluster; `own` reads the one that the kernel has for it.
    ///
    /// # Errors
    /// If none was given and the host's own cannot be had, or is no name.
    pub fn name(&self, own: impl FnOnce() -> io::Result<String>) -> Result<String, Invalid> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let give = "give one: name = \"edge-1\" below [cluster], or --cluster-name";
        let own = own().map_err(|error| {
            Invalid::new(format!("cannot read the host's name: {error}")).with_hint(give)
        })?;
        let own = own.trim();
        // Operators could not tell machines apart that nobody has named.
        if ["localhost", "localhost.localdomain", "(none)"].contains(&own) {
            let message = format!("the host is called {own}, as others may be");
            return Err(Invalid::new(message).with_hint(give));
        }
        check_name("host", own, MAX_NAME_LEN)
            .map_err(|error| error.context("the host's own").with_hint(give))?;
        Ok(own.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use model::Explain as _;

    use super::*;

    fn config() -> ClusterConfig {
        ClusterConfig {
            name: Some("edge-1".into()),
            listen: Some("192.0.2.10:7700".parse().unwrap()),
            seeds: vec!["edge-2:7700".parse().unwrap()],
            ..ClusterConfig::default()
        }
    }

    fn own() -> io::Result<String> {
        Ok("edge-9".into())
    }

    #[test]
    fn seeds_are_addresses_or_names() {
        for (text, told) in [
            ("192.0.2.11:7700", "192.0.2.11:7700"),
            ("[2001:DB8::11]:7700", "[2001:db8::11]:7700"),
            ("Edge-2.example.NET:1", "edge-2.example.net:1"),
            ("limiter_a:65535", "limiter_a:65535"),
            ("_Limiter._udp.example.net.", "_limiter._udp.example.net."),
        ] {
            let seed: Seed = text.parse().unwrap();
            assert_eq!(seed.to_string(), told);
            assert_eq!(told.parse::<Seed>().unwrap(), seed);
        }
        for (text, about) in [
            ("192.0.2.11", "no port"),
            ("_limiter._udp.a..b", "no port"),
            ("edge-2:0", "port 0"),
            ("192.0.2.11:0", "port 0"),
            ("edge-2:70000", "is no port"),
            ("edge-2:", "is no port"),
            (":7700", "neither an address nor a name"),
            ("192.0.2.300:7700", "neither an address nor a name"),
            ("2001:db8::1:7700", "neither an address nor a name"),
            ("a b:7700", "neither"),
            ("a..b:7700", "neither"),
            ("", "no port"),
        ] {
            let error = text.parse::<Seed>().unwrap_err();
            assert!(error.contains(about) && error.contains("edge-2.example.net"), "{error}");
        }
        assert!(parse_listen("192.0.2.1:0").unwrap_err().contains("port 0"));
        assert!(parse_listen("edge-1:7700").unwrap_err().contains("192.0.2.10:7700"));
    }

    #[test]
    fn what_does_not_go_together_is_blamed() {
        const EXPECT: &str = "cluster_bootstrap_expect";
        config().check(own).unwrap();
        ClusterConfig { bootstrap_expect: Some(2), ..config() }.check(own).unwrap();
        ClusterConfig { listen: None, seeds: vec![], ..config() }.check(own).unwrap();
        let twice = vec!["edge-2:7700".parse().unwrap(), "EDGE-2:7700".parse().unwrap()];
        for (config, key, about) in [
            (ClusterConfig { listen: None, ..config() }, "cluster_seeds", "no address to listen"),
            (
                ClusterConfig {
                    advertise: config().listen,
                    seeds: vec![],
                    listen: None,
                    ..config()
                },
                "cluster_advertise",
                "none to listen on",
            ),
            (
                ClusterConfig { advertise: Some("0.0.0.0:7700".parse().unwrap()), ..config() },
                "cluster_advertise",
                "cannot reach",
            ),
            (ClusterConfig { seeds: twice, ..config() }, "cluster_seeds", "twice"),
            (ClusterConfig { bootstrap_expect: Some(1), ..config() }, EXPECT, "second cluster"),
            (ClusterConfig { bootstrap_expect: Some(0), ..config() }, EXPECT, "second cluster"),
            (ClusterConfig { bootstrap_expect: Some(257), ..config() }, EXPECT, "out of range"),
            (
                ClusterConfig {
                    bootstrap_expect: Some(2),
                    listen: None,
                    seeds: vec![],
                    ..config()
                },
                EXPECT,
                "no address to listen",
            ),
            (ClusterConfig { weight: 0, ..config() }, "cluster_weight", "0 is out of range"),
            (ClusterConfig { weight: 1001, ..config() }, "cluster_weight", "out of range"),
            (ClusterConfig { name: Some("a b".into()), ..config() }, "cluster_name", "\"a b\""),
            (ClusterConfig { name: Some("x".repeat(65)), ..config() }, "cluster_name", "not the"),
            (ClusterConfig { name: Some(String::new()), ..config() }, "cluster_name", "\"\""),
            (ClusterConfig { region: "ä".into(), ..config() }, "cluster_region", "a region"),
            (ClusterConfig { region: "x".repeat(33), ..config() }, "cluster_region", "xxx"),
        ] {
            let (blamed, error) = config.check(own).unwrap_err();
            assert_eq!(blamed, key, "{error}");
            assert!(error.to_string().contains(about) && error.hint().is_some(), "{error}");
        }
    }

    #[test]
    fn others_must_be_able_to_reach_it() {
        for wrong in ["0.0.0.0:7946", "[::]:7946", "224.0.0.1:7946", "192.0.2.1:0"] {
            let listen = Some(wrong.parse().unwrap());
            let (blamed, error) = ClusterConfig { listen, ..config() }.check(own).unwrap_err();
            assert_eq!(blamed, "cluster_listen", "{error}");
            assert!(error.to_string().contains(wrong) && error.hint().is_some(), "{error}");
        }
    }
}
