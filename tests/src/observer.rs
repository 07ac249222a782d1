//! Counts what got past XDP, without the limiter: an nftables set at the ingress hook of the
//! receiving device, which comes after XDP and before the protocols.

use std::{collections::HashMap, fmt::Write as _, net::IpAddr};

use serde_json::Value;

use crate::{Lab, Namespace, lab::RX, process};

/// What becomes of a frame once it is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Then {
    /// It goes on to the protocols, for tests with real programs.
    Deliver,
    /// It ends here, so that crafted frames cause no answers.
    Discard,
}

/// What frames are told apart by.
#[derive(Clone, Copy)]
enum Key {
    Source,
    SourceAndPort,
}

/// A count of admitted frames per source address.
#[derive(Debug)]
pub struct Observer<'lab> {
    host: &'lab Namespace,
    table: String,
}

impl<'lab> Observer<'lab> {
    /// Starts to count on the receiver of `lab` all sources but those in `crowd`, prefixes whose
    /// frames are counted together because they are too many to be told apart.
    ///
    /// # Panics
    /// If nftables refuses.
    #[must_use]
    pub fn new(lab: &'lab Lab, then: Then, crowd: &[&str]) -> Self {
        Self::on(lab, RX, then, crowd)
    }

    /// As [`Observer::new`], on another device of the receiver.
    ///
    /// # Panics
    /// If nftables refuses.
    #[must_use]
    pub fn on(lab: &'lab Lab, device: &str, then: Then, crowd: &[&str]) -> Self {
        Self::start(lab, device, then, crowd, Key::Source)
    }

    /// Counts UDP on the receiver of `lab` by source and source port, and discards it.
    ///
    /// # Panics
    /// If nftables refuses.
    #[must_use]
    pub fn by_port(lab: &'lab Lab) -> Self {
        Self::start(lab, RX, Then::Discard, &[], Key::SourceAndPort)
    }

    fn start(lab: &'lab Lab, device: &str, then: Then, crowd: &[&str], key: Key) -> Self {
        let (more, port) = match key {
            Key::Source => ("", ""),
            Key::SourceAndPort => (" . inet_service", " . udp sport"),
        };
        let table = format!("observer_{device}");
        let mut rules = format!(
            "table netdev {table} {{
                set v4 {{ type ipv4_addr{more}; size 65535; flags dynamic; }}
                set v6 {{ type ipv6_addr{more}; size 65535; flags dynamic; }}
                counter everything {{ }}
                counter crowd {{ }}
                chain in {{
                    type filter hook ingress device {device} priority 0;
                    counter name everything\n"
        );
        let verdict = match then {
            Then::Deliver => "accept",
            Then::Discard => "drop",
        };
        for prefix in crowd {
            let family = if prefix.contains(':') { "ip6" } else { "ip" };
            writeln!(rules, "{family} saddr {prefix} counter name crowd {verdict}")
                .expect("writing to a string");
        }
        writeln!(
            rules,
            "update @v4 {{ ip saddr{port} counter }}\nupdate @v6 {{ ip6 saddr{port} counter }}\n{verdict}\n}}\n}}"
        )
        .expect("writing to a string");
        process::run(lab.receiver.command(&tools::NFT).arg(rules));
        Self { host: &lab.receiver, table }
    }

    /// Observes no longer: what it has discarded arrives.
    ///
    /// # Panics
    /// If nftables refuses.
    pub fn end(self) {
        process::run(self.host.command(&tools::NFT).args([
            "delete",
            "table",
            "netdev",
            &self.table,
        ]));
    }

    /// The counts so far.
    ///
    /// # Panics
    /// If nftables does not give them.
    #[must_use]
    pub fn read(&self) -> Observed {
        let text = process::run(self.host.command(&tools::NFT).args([
            "-j",
            "list",
            "table",
            "netdev",
            &self.table,
        ]));
        let listing: Value = serde_json::from_str(&text).expect("nft prints JSON");
        let items = listing["nftables"].as_array().expect("nft lists objects");
        let mut observed = Observed::default();
        for item in items {
            let counter = &item["counter"];
            match counter["name"].as_str() {
                Some("everything") => observed.all = packets(counter),
                Some("crowd") => observed.crowd = packets(counter),
                _ => {}
            }
            // A set without elements has no list of them.
            for element in item["set"]["elem"].as_array().into_iter().flatten() {
                let element = &element["elem"];
                // An address, or an address and a port.
                let (address, port) = match &element["val"]["concat"] {
                    Value::Array(parts) => (&parts[0], parts[1].as_u64()),
                    _ => (&element["val"], None),
                };
                let address: IpAddr =
                    address.as_str().and_then(|text| text.parse().ok()).expect("an address");
                let packets = packets(&element["counter"]);
                *observed.sources.entry(address).or_default() += packets;
                if let Some(port) = port {
                    observed.ports.insert((address, port), packets);
                }
            }
        }
        observed
    }
}

fn packets(counter: &Value) -> u64 {
    counter["packets"].as_u64().unwrap_or_else(|| panic!("no packets in {counter}"))
}

/// What got past XDP, in frames.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Every frame, IP or not.
    pub all: u64,
    /// Frames from the crowd's prefixes.
    pub crowd: u64,
    sources: HashMap<IpAddr, u64>,
    ports: HashMap<(IpAddr, u64), u64>,
}

impl Observed {
    /// Every source that was seen, with its frames.
    pub fn sources(&self) -> impl Iterator<Item = (IpAddr, u64)> + '_ {
        self.sources.iter().map(|(source, packets)| (*source, *packets))
    }

    /// Frames from `source`, with at most one VLAN tag. nftables does not look behind two.
    #[must_use]
    pub fn from(&self, source: impl Into<IpAddr>) -> u64 {
        self.sources.get(&source.into()).copied().unwrap_or(0)
    }

    /// Frames from a port of `source`, where they are counted by port.
    #[must_use]
    pub fn from_port(&self, source: IpAddr, port: u16) -> u64 {
        self.ports.get(&(source, port.into())).copied().unwrap_or(0)
    }
}
