//! An interface: its driver, what defeats a program on it, and what a program there cannot see.

use std::io;
use std::path::Path;

use aya::programs::loaded_programs;
use aya::util::online_cpus;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, Stats64};

use super::{Check, holders};
use dataplane::nic::ethtool::{Channels, Ethtool};
use dataplane::nic::merging_of;
use dataplane::nic::netdev;
use dataplane::{Error, LinkKind, NATIVE_MTU, link, pins_of};

use model::instance::{Instance, Owner};
use model::interface::Mode;

/// Drivers that had native XDP before kernels told so (6.3).
// By driver, as older kernels tell only by attaching, which would disturb the interface.
const NATIVE_DRIVERS: &str = "atlantic bnxt_en bonding cpsw ena fec fsl_dpaa2_eth fsl_enetc hv_netvsc i40e ice igb \
                              igc ixgbe ixgbevf mana mlx4_en mlx5_core mtk_soc_eth mvneta mvpp2 nfp nicvf qede \
                              rvu_nicpf sfc st_gmac tun veth virtio_net";

/// Offloads with which a card may hand frames on before a program sees them.
const BYPASSES: [&str; 2] = ["hw-tc-offload", "l2-fwd-offload"];

/// The limiter's own program, by its name in the kernel.
// The name is all that a stranger's program shows. That for frames in several buffers begins with it.
const PROGRAM_NAME: &str = "limiter";

/// An XDP program that is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    id: u32,
    /// Its name, where the caller may ask for it.
    name: Option<String>,
    mode: Option<Mode>,
    /// Which limiter it is of, if it is one's.
    owner: Option<Owner>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    name: String,
    is_up: bool,
    has_carrier: bool,
    mtu: u32,
    driver: Option<String>,
    /// What the kernel says of native XDP; `None` before Linux 6.3.
    xdp: Option<bool>,
    /// The offloads that are on; `None` if the kernel does not tell.
    features: Option<Vec<String>>,
    program: Option<Program>,
    /// The instance that this is asked for.
    instance: Option<Instance>,
    /// What its frames are, if the limiter can read them.
    kind: Option<LinkKind>,
    /// Whether the driver takes programs for frames in several buffers; `None` before Linux 6.3.
    several_buffers: Option<bool>,
    /// The bond that it is a port of.
    bond: Option<String>,
    channels: Option<Channels>,
    /// Whether queues are chosen by the source address alone.
    by_source: Option<bool>,
    cpus: u32,
    received: u64,
    /// Counters of frames that were lost before a program could see them.
    misses: Vec<(String, u64)>,
}

impl Device {
    /// Looks at the interface `name`.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn find(
        name: &str,
        pin_dir: &Path,
        instance: Option<&Instance>,
    ) -> Result<Self, Error> {
        let interface = link::Interface::named(name)?;
        let index = interface.index;
        let links = link::request(LinkMessage::default(), false).map_err(Error::Netlink)?;
        // A dump of all links, as a request that changes nothing is one
        // here. The name came first: its error has the hint.
        let found = links.iter().find(|link| link.header.index == index).cloned();
        let gone = || Error::Netlink(io::Error::other(format!("{name} has vanished")));
        let message = found.ok_or_else(gone)?;
        let flags = message.header.flags;
        let features = netdev::xdp_features(index).ok();
        let mut device = Self {
            name: name.into(),
            is_up: flags.contains(LinkFlags::Up),
            has_carrier: flags.contains(LinkFlags::LowerUp),
            kind: interface.link_kind(),
            // An error is an old kernel, which the list of drivers answers for: no fault of the interface.
            xdp: features.map(|set| set & netdev::BASIC != 0),
            several_buffers: features.map(|set| set & netdev::RX_SG != 0),
            instance: instance.cloned(),
            cpus: online_cpus().map_or(1, |cpus| u32::try_from(cpus.len()).unwrap_or(1)),
            ..Self::default()
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::Mtu(mtu) => device.mtu = mtu,
                LinkAttribute::Stats64(stats) => device.count(&stats),
                LinkAttribute::Xdp(xdp) => {
                    device.program = link::program(&xdp).map(|(mode, id)| Program {
                        id,
                        name: program_name(id),
                        mode,
                        owner: pins_of(index, id, pin_dir).map(|pins| Owner::new(&pins)),
                    });
                }
                LinkAttribute::Controller(above) => device.bond = bond(&links, above),
                _ => {}
            }
        }
        // Devices without ethtool are common, such as tunnels. What only it could tell is left out, and no fault.
        if let Ok(ethtool) = Ethtool::new(name) {
            device.driver = ethtool.driver();
            device.features = ethtool.features();
            device.channels = ethtool.channels();
            device.by_source = ethtool.hashes_by_source();
            let lost = ethtool.statistics().into_iter().filter(|(name, _)| is_miss(name));
            device.misses.extend(lost);
        }
        Ok(device)
    }

    fn count(&mut self, stats: &Stats64) {
        self.received = stats.rx_packets;
        self.misses.extend([
            // Frames that no program and no counter of the limiter can have seen: P5 sums up only
            // what reached the interface.
            ("missed errors".to_owned(), stats.rx_missed_errors),
            ("FIFO errors".to_owned(), stats.rx_fifo_errors),
            ("overruns".to_owned(), stats.rx_over_errors),
        ]);
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let mut checks = vec![self.state(), self.frames(), self.native(), self.mtu()];
        checks.extend(self.bond());
        checks.extend(self.merging_in_hardware());
        checks.extend(self.gro());
        checks.extend(self.bypass());
        checks.extend([self.program(), self.queues()]);
        checks.extend(self.hash());
        checks.push(self.missed());
        checks
    }

    fn driver_name(&self) -> &str {
        self.driver.as_deref().unwrap_or("unknown")
    }

    fn has_native(&self) -> bool {
        // Kernels before 6.3 do not say what a driver can do.
        let is_known = || NATIVE_DRIVERS.split_whitespace().any(|name| name == self.driver_name());
        // A tun interface has it with Ethernet alone.
        self.xdp.unwrap_or_else(|| self.kind != Some(LinkKind::Ip) && is_known())
    }

    fn state(&self) -> Check {
        let (check, name) = ("interface", &self.name);
        if !self.is_up {
            // No failure: XDP attaches to a link that is down, and then its first packet is
            // judged.
            return Check::warn(check, format!("{name} is down"), format!("ip link set {name} up"));
        }
        if !self.has_carrier {
            let remedy = "look at the cable, or the other end";
            return Check::warn(check, format!("{name} is up, but has no carrier"), remedy);
        }
        Check::ok(check, format!("{name} is up, driver {}", self.driver_name()))
    }

    /// What its frames begin with.
    fn frames(&self) -> Check {
        let check = "frames";
        match self.kind {
            Some(LinkKind::Ip) => Check::ok(check, "IP packets, without Ethernet"),
            Some(LinkKind::Ethernet | LinkKind::Jumbo) => Check::ok(check, "Ethernet"),
            None => Check::fail(
                check,
                "neither Ethernet nor IP: the limiter cannot read them",
                "attach to the interface that has the packets after they are unpacked",
            ),
        }
    }

    /// A bond, or a port of one.
    fn bond(&self) -> Option<Check> {
        let (check, name) = ("bond", &self.name);
        if let Some(bond) = &self.bond {
            return Some(Check::warn(
                check,
                format!(
                    "{name} is a port of {bond}: what comes by its other ports is not judged here"
                ),
                format!("attach to {bond}, which has the program run in each of its ports"),
            ));
        }
        (self.driver_name() == "bonding").then(|| {
            Check::ok(
                check,
                "its ports run the program, those that come later too; attach to none of them",
            )
        })
    }

    fn native(&self) -> Check {
        let (check, driver) = ("native-xdp", self.driver_name());
        if self.has_native() {
            return Check::ok(check, format!("driver {driver} has it"));
        }
        let found = match self.xdp {
            Some(_) => format!("driver {driver} has none"),
            None => format!("driver {driver} is not known to have it"),
        };
        let remedy = "attach to the device below, if this is a bridge or a VLAN, or take --mode \
                      generic, which is several times slower";
        Check::warn(check, found, remedy)
    }

    fn mtu(&self) -> Check {
        let (check, mtu) = ("mtu", self.mtu);
        // Generic mode takes packets of any length, so it has no such bound.
        if mtu <= NATIVE_MTU || !self.has_native() {
            return Check::ok(check, mtu.to_string());
        }
        if self.several_buffers == Some(true) {
            return Check::ok(check, format!("{mtu}, frames in several buffers"));
        }
        Check::warn(
            check,
            format!("{mtu} is more than the {NATIVE_MTU} that native mode serves in most drivers"),
            format!("ip link set {} mtu {NATIVE_MTU}, or --mode generic", self.name),
        )
    }

    fn is_on(&self, feature: &str) -> Option<bool> {
        Some(self.features.as_ref()?.iter().any(|name| name == feature))
    }

    /// Large receive offload, by either name. A frame that is many in one would be charged as one.
    fn merging_in_hardware(&self) -> Option<Check> {
        let name = &self.name;
        let merging = merging_of(self.features.as_ref()?, self.driver.as_deref());
        if merging == Some("lro") {
            // A failure, unlike what follows: merged frames would be charged
            // as one packet, so a source gets many times its limit (P2).
            return Some(Check::fail(
                "lro",
                "on: the device merges frames before the limiter sees them, and most drivers refuse \
                 a program then",
                format!("ethtool -K {name} lro off"),
            ));
        }
        if merging.is_some() {
            return Some(Check::warn(
                "lro",
                "GRO in hardware is on: some drivers refuse a program then",
                format!("ethtool -K {name} rx-gro-hw off"),
            ));
        }
        Some(Check::ok("lro", "off"))
    }

    /// Merging in software is done before a program in generic mode, and after one in native mode.
    fn gro(&self) -> Option<Check> {
        let is_generic = self.program.as_ref().and_then(|p| p.mode) == Some(Mode::Generic);
        Some(match self.is_on("rx-gro")? {
            false => Check::ok("gro", "off"),
            // It comes after a program in native mode, which still sees every packet.
            true if self.has_native() && !is_generic => {
                Check::ok("gro", "on, which comes after native mode")
            }
            true => Check::warn(
                "gro",
                "on: generic mode sees merged packets, and counts each as one",
                format!("ethtool -K {} gro off", self.name),
            ),
        })
    }

    /// Offloads by which frames reach somebody without having been judged.
    fn bypass(&self) -> Option<Check> {
        let check = "bypass";
        let on = self.features.as_ref()?.iter().find(|name| BYPASSES.contains(&name.as_str()));
        Some(match on {
            None => Check::ok(check, "the card forwards nothing by itself"),
            Some(offload) => Check::warn(
                check,
                format!("{offload} is on: what the card forwards by itself is never judged"),
                format!("ethtool -K {} {offload} off, unless that is meant to be", self.name),
            ),
        })
    }

    fn program(&self) -> Check {
        let check = "xdp-program";
        let Some(Program { id, name, mode, owner }) = &self.program else {
            return Check::ok(check, "none");
        };
        let called = name.as_deref().unwrap_or("name unknown");
        let mode = mode.map_or("several modes", Mode::name);
        let device = &self.name;
        // By name: the id is another one with each load, and the tag with each version.
        if !called.starts_with(PROGRAM_NAME) {
            // Programs of ip(8) and pinned links are held by nobody.
            let holders = holders::of(*id);
            let held = if holders.is_empty() {
                "no process holds it".into()
            } else {
                format!("held by {}", holders.join(", "))
            };
            return Check::warn(
                check,
                format!("another one is attached: id {id} ({called}), {mode}, {held}"),
                format!(
                    "remove it (ip link set {device} xdp off), or let limiter take its place with --replace"
                ),
            );
        }
        match (owner, &self.instance) {
            // Only where an instance is named: without one the question is
            // about the machine, and any of our daemons will do.
            (Some(owner), Some(asked)) if *owner != Owner::Instance(asked.clone()) => Check::warn(
                check,
                format!("{owner} has this interface: id {id}, {mode}"),
                format!("`{} detach {device}`, before {asked} can attach", owner.command()),
            ),
            (Some(owner @ Owner::Instance(_)), _) => {
                Check::ok(check, format!("limiter, id {id}, {mode}, of {owner}"))
            }
            _ => Check::ok(check, format!("limiter, id {id}, {mode}")),
        }
    }

    fn queues(&self) -> Check {
        let (check, cpus) = ("queues", self.cpus);
        // Virtual devices have none to tell of, so this is no fault.
        let Some(Channels { receive, most }) = self.channels else {
            return Check::ok(check, "the driver does not tell");
        };
        let found = format!("{receive} for {cpus} CPUs");
        // One queue is one CPU: more queues than CPUs share them, fewer leave CPUs idle under a flood.
        let better = most.min(cpus);
        if receive < better {
            return Check::warn(
                check,
                format!("{found}: frames are judged on {receive} of them"),
                format!("ethtool -L {} combined {better} (or rx {better})", self.name),
            );
        }
        Check::ok(check, found)
    }

    /// How packets are spread over queues.
    fn hash(&self) -> Option<Check> {
        let (check, name) = ("queue-hash", &self.name);
        let many = self.channels.is_some_and(|channels| channels.receive > 1);
        Some(match self.by_source.filter(|_| many)? {
            true => Check::ok(check, "by the source address: a source is judged on one CPU"),
            // No fault: the price of the other choice is that a flood of one source fills one queue.
            false => Check::ok(
                check,
                format!(
                    "a source's packets are judged on several CPUs; on one with `ethtool -N {name} rx-flow-hash udp4 \
                     s` (and tcp4, udp6, tcp6)"
                ),
            ),
        })
    }

    fn missed(&self) -> Check {
        let check = "missed";
        let lost: Vec<_> = self.misses.iter().filter(|(_, count)| *count > 0).collect();
        let Some(most) = lost.iter().map(|(_, count)| *count).max() else {
            return Check::ok(check, "no frame was lost before the limiter could see it");
        };
        // Some drivers have a counter a queue: dozens of names would hide the figure.
        let names: Vec<_> = lost.iter().take(5).map(|(name, n)| format!("{name} {n}")).collect();
        // The kernel's counters and those of the driver may count the same frames, so they are not added up.
        let share = 100.0 * most as f64 / (most + self.received) as f64;
        let (name, names) = (&self.name, names.join(", "));
        Check::warn(
            check,
            format!(
                "drops you cannot see: the device lost at least {most} frames ({share:.2} %) since \
                 it was made: {names}"
            ),
            format!(
                "more receive buffers (ethtool -G {name} rx …) and queues (ethtool -L {name} …), \
                 interrupts on more CPUs"
            ),
        )
    }
}

/// The name of the bond with an index; `None` if that is a bridge or another device.
fn bond(links: &[LinkMessage], index: u32) -> Option<String> {
    let above = links.iter().find(|link| link.header.index == index)?;
    let name = above.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })?;
    let driver = Ethtool::new(&name).ok()?.driver()?;
    (driver == "bonding").then_some(name)
}

/// The name of a loaded program, which only root may ask for.
fn program_name(id: u32) -> Option<String> {
    let info = loaded_programs().flatten().find(|program| program.id() == id)?;
    info.name_as_str().map(Into::into)
}

/// Whether a driver's counter is of received frames that found no room.
fn is_miss(counter: &str) -> bool {
    // mlx5 says out_of_buffer and discards_phy, igb missed and no_buffer, ixgbe no_dma_resources,
    // ena alloc_fail.
    const PARTS: [&str; 8] = [
        "missed",
        "no_buf",
        "nobuf",
        "out_of_buffer",
        "fifo_err",
        "no_dma",
        "discards_phy",
        "alloc_fail",
    ];
    // Each driver has names of its own. Counters of XDP are of frames that a program has seen, our own drops among them.
    let counter = counter.to_ascii_lowercase();
    !counter.contains("tx")
        && !counter.contains("xdp")
        && PARTS.iter().any(|part| counter.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Grade;

    fn good() -> Device {
        Device {
            name: "eth0".into(),
            is_up: true,
            has_carrier: true,
            mtu: 1500,
            driver: Some("ice".into()),
            xdp: Some(true),
            features: Some(vec!["rx-checksum".into(), "rx-gro".into()]),
            program: None,
            instance: None,
            kind: Some(LinkKind::Ethernet),
            several_buffers: Some(false),
            bond: None,
            by_source: Some(true),
            channels: Some(Channels { receive: 8, most: 16 }),
            cpus: 8,
            received: 1000,
            misses: vec![("missed errors".into(), 0)],
        }
    }

    fn program(name: &str, mode: Mode, owner: Option<Owner>) -> Program {
        Program { id: 7, name: Some(name.into()), mode: Some(mode), owner }
    }

    fn bad(device: &Device) -> Vec<(&'static str, Grade)> {
        let checks = device.checks().into_iter();
        let bad = checks.filter(|check| {
            assert_eq!(check.remedy.is_some(), check.state != Grade::Ok, "{check:?}");
            check.state != Grade::Ok
        });
        bad.map(|check| (check.name, check.state)).collect()
    }

    fn features(list: &[&str]) -> Option<Vec<String>> {
        Some(list.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_good_interface_has_nothing_to_mend() {
        let ours = program(PROGRAM_NAME, Mode::Native, None);
        let few = Channels { receive: 1, most: 1 };
        for device in [
            good(),
            Device { program: Some(ours), ..good() },
            Device { channels: None, features: None, ..good() },
            Device { mtu: 9000, several_buffers: Some(true), ..good() },
            Device { kind: Some(LinkKind::Ip), by_source: Some(false), ..good() },
            Device { driver: Some("bonding".into()), ..good() },
            // It cannot have more.
            Device { channels: Some(few), ..good() },
            // An old kernel, and a driver that is known.
            Device { xdp: None, ..good() },
            Device {
                features: features(&["rx-gro-hw"]),
                driver: Some("virtio_net".into()),
                ..good()
            },
        ] {
            assert_eq!(bad(&device), [], "{device:?}");
        }
        assert_eq!(good().checks().len(), 11);
    }

    #[test]
    fn each_fault_is_found() {
        use Grade::{Fail, Warn};
        let other = |mode| Some(program("filter", mode, None));
        let few = Some(Channels { receive: 2, most: 4 });
        let misses = vec![("missed errors".into(), 0), ("rx_no_buffer_count".into(), 250)];
        for (device, expected) in [
            (Device { is_up: false, ..good() }, ("interface", Warn)),
            (Device { has_carrier: false, ..good() }, ("interface", Warn)),
            (Device { mtu: 9000, ..good() }, ("mtu", Warn)),
            (Device { kind: None, ..good() }, ("frames", Fail)),
            (Device { bond: Some("bond0".into()), ..good() }, ("bond", Warn)),
            (Device { features: features(&["rx-lro"]), ..good() }, ("lro", Fail)),
            (Device { features: features(&["rx-gro-hw"]), ..good() }, ("lro", Warn)),
            (Device { features: features(&["hw-tc-offload"]), ..good() }, ("bypass", Warn)),
            (Device { program: other(Mode::Native), ..good() }, ("xdp-program", Warn)),
            (Device { channels: few, ..good() }, ("queues", Warn)),
            (Device { misses, ..good() }, ("missed", Warn)),
        ] {
            assert_eq!(bad(&device), [expected], "{device:?}");
        }
    }

    #[test]
    fn generic_mode_suffers_from_merging() {
        use Grade::Warn;
        let without = Device { xdp: Some(false), mtu: 9000, ..good() };
        assert_eq!(bad(&without), [("native-xdp", Warn), ("gro", Warn)]);
        let unknown = Device { xdp: None, driver: Some("e100".into()), ..good() };
        assert_eq!(bad(&unknown), [("native-xdp", Warn), ("gro", Warn)]);
        let ours = program(PROGRAM_NAME, Mode::Generic, None);
        assert_eq!(bad(&Device { program: Some(ours), ..good() }), [("gro", Warn)]);
        let off = features(&["rx-checksum"]);
        assert_eq!(bad(&Device { features: off, ..without }), [("native-xdp", Warn)]);
    }

    #[test]
    fn an_interface_of_another_instance_is_told_for_an_instance() {
        let [edge, dmz] = ["edge", "dmz"].map(|name| name.parse::<Instance>().unwrap());
        let of = |owner, asked: Option<&Instance>| {
            let program = program(PROGRAM_NAME, Mode::Native, owner);
            let instance = asked.cloned();
            Device { program: Some(program), instance, ..good() }.program()
        };
        let edges = Some(Owner::Instance(edge.clone()));
        let refused = of(edges.clone(), Some(&dmz));
        assert_eq!(refused.state, Grade::Warn);
        assert!(refused.remedy.unwrap().contains("`limiter --instance edge detach eth0`"));
        assert_eq!(of(Some(Owner::Plain), Some(&dmz)).state, Grade::Warn);
        for fine in [of(edges.clone(), Some(&edge)), of(edges, None)] {
            assert!(fine.state == Grade::Ok && fine.found.ends_with("of the instance edge"));
        }
        assert_eq!(of(None, None).found, "limiter, id 7, native");
    }

    #[test]
    fn the_share_that_is_lost_is_told() {
        let misses = vec![("missed errors".into(), 250), ("rx_missed".into(), 250)];
        let check = Device { misses, received: 750, ..good() }.missed();
        assert!(check.found.contains("at least 250 frames (25.00 %)"), "{}", check.found);
        assert!(check.found.contains("missed errors 250, rx_missed 250"), "{}", check.found);
    }

    #[test]
    fn counters_of_loss_are_known_by_name() {
        for name in ["rx_missed_errors", "rx_no_buffer_count", "rx_out_of_buffer", "rx0_alloc_fail"]
        {
            assert!(is_miss(name), "{name}");
        }
        for name in ["rx_packets", "tx_fifo_errors", "rx_queue_0_xdp_drops", "rx_xdp_missed"] {
            assert!(!is_miss(name), "{name}");
        }
    }
}
