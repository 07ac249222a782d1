//! Several hosts, each with a wire of its own that packets come in by, and a network between them that
//! their daemons talk over.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use serde_json::Value;

use crate::{
    Lab, Namespace,
    backbone::{Backbone, bridge},
    offload::{self, Offload},
    process,
};

/// Device of a host on the network between hosts.
pub const CONTROL: &str = "ctl0";
/// Table of what a host does not hear.
const DEAF: &str = "deaf";

/// Hosts with a network between them. It carries nothing but what the daemons send.
#[derive(Debug)]
pub struct Fleet {
    /// Between regions, if there is more than one.
    pub backbone: Option<Backbone>,
    regions: usize,
    middle: Namespace,
    /// The hosts. `sender` of each sends what its `receiver` is protected from.
    pub hosts: Vec<Lab>,
}

impl Fleet {
    /// Builds `hosts` hosts, each with one receive queue.
    ///
    /// # Panics
    /// Without root's privileges, for more than 250 hosts, or if a device cannot be made.
    #[must_use]
    pub fn new(hosts: usize) -> Self {
        Self::in_regions(hosts, 1, Duration::ZERO)
    }

    /// Builds hosts in so many regions, in turn: frames from one region to another one take `delay`.
    ///
    /// # Panics
    /// As [`Fleet::new`].
    #[must_use]
    pub fn in_regions(hosts: usize, regions: usize, delay: Duration) -> Self {
        assert!(hosts <= 250, "addresses are of a /24");
        let middle = Namespace::new("middle");
        for region in 0..regions {
            process::run(middle.ip(&["link", "add", &bridge(region), "type", "bridge"]));
            process::run(middle.ip(&["link", "set", &bridge(region), "up"]));
        }
        let backbone = (regions > 1).then(|| Backbone::new(&middle, regions, delay));
        let mut fleet = Self { backbone, regions, middle, hosts: Vec::new() };
        for _ in 0..hosts {
            fleet.add_host();
        }
        fleet
    }

    /// Adds a host to the network.
    ///
    /// # Panics
    /// As [`Fleet::new`].
    pub fn add_host(&mut self) {
        let (host, index) = (Lab::new(1), self.hosts.len());
        let port = port(index);
        let mut link = self.middle.ip(&["link", "add", &port, "type", "veth", "peer", "name"]);
        process::run(link.args([CONTROL, "netns", host.receiver.name()]));
        let bridge = bridge(self.region_of(index));
        process::run(self.middle.ip(&["link", "set", &port, "master", &bridge, "up"]));
        let address = format!("{}/24", Self::address(index));
        process::run(host.receiver.ip(&["address", "add", &address, "dev", CONTROL]));
        process::run(host.receiver.ip(&["link", "set", CONTROL, "up"]));
        if self.backbone.is_some() {
            // Who carries frames between regions cannot make up for checksums that are left out.
            offload::set(&host.receiver, CONTROL, Offload::TxChecksum, false);
        }
        self.hosts.push(host);
    }

    /// The region of a host.
    #[must_use]
    pub const fn region_of(&self, host: usize) -> usize {
        host % self.regions
    }

    /// The address of a host on the network.
    ///
    /// # Panics
    /// For a host that there cannot be.
    #[must_use]
    pub fn address(host: usize) -> IpAddr {
        let last = u8::try_from(host + 1).expect("a host of a /24");
        Ipv4Addr::new(10, 99, 0, last).into()
    }

    /// Takes a host's wire out, or puts it in again.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn connect(&self, host: usize, connected: bool) {
        let state = if connected { "up" } else { "down" };
        process::run(self.middle.ip(&["link", "set", &port(host), state]));
    }

    /// Makes `host` deaf for what `others` send, and hear all others.
    ///
    /// # Panics
    /// If nftables refuses.
    pub fn deafen(&self, host: usize, others: &[usize]) {
        let rules = others.iter().map(|&other| format!("ip saddr {} drop", Self::address(other)));
        self.filter(host, &rules.collect::<Vec<_>>());
    }

    /// Splits the network: hosts of different groups do not hear each other. One group heals it.
    ///
    /// # Panics
    /// If nftables refuses.
    pub fn split(&self, groups: &[&[usize]]) {
        for (at, group) in groups.iter().enumerate() {
            let others = groups.iter().enumerate().filter(|(other, _)| *other != at);
            let others: Vec<_> = others.flat_map(|(_, group)| group.iter().copied()).collect();
            group.iter().for_each(|&host| self.deafen(host, &others));
        }
    }

    /// Lets every host lose so many packets of a hundred of those that it should hear.
    ///
    /// # Panics
    /// If nftables refuses.
    pub fn lose(&self, percent: u32) {
        for host in 0..self.hosts.len() {
            if percent == 0 {
                self.filter(host, &[]);
                continue;
            }
            let chance = if percent < 100 {
                format!("numgen random mod 100 < {percent}")
            } else {
                String::new()
            };
            self.filter(host, &[format!("iifname {CONTROL} {chance} drop")]);
        }
    }

    /// Bytes that all hosts have sent to each other.
    ///
    /// # Panics
    /// If `ip` does not say.
    #[must_use]
    pub fn sent(&self) -> u64 {
        // At the other ends of the wires, which one command reads at one moment.
        let text = process::run(self.middle.ip(&["-s", "-json", "link", "show", "type", "veth"]));
        let links: Value = serde_json::from_str(&text).expect("ip prints JSON");
        let of_host = |host| {
            let mut links = links.as_array().into_iter().flatten();
            let link = links.find(|link| link["ifname"] == port(host));
            let bytes = link.and_then(|link| link["stats64"]["rx"]["bytes"].as_u64());
            bytes.unwrap_or_else(|| panic!("ip says nothing about host {host}: {text}"))
        };
        (0..self.hosts.len()).map(of_host).sum()
    }

    fn filter(&self, host: usize, rules: &[String]) {
        // Whether there was such a table or not, it is as new.
        let chain = format!("add chain inet {DEAF} in {{ type filter hook input priority -10; }}");
        let mut text = format!("add table inet {DEAF}\ndelete table inet {DEAF}\n");
        text += &format!("add table inet {DEAF}\n{chain}\n");
        for rule in rules {
            text += &format!("add rule inet {DEAF} in {rule}\n");
        }
        process::run(self.hosts[host].receiver.command(&tools::NFT).arg(text));
    }
}

/// The other end of a host's wire.
fn port(host: usize) -> String {
    format!("port{host}")
}
