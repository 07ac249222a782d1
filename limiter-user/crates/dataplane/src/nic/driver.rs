//! What a driver has and does that matters when a program is attached.

use super::ethtool::Ethtool;
use super::netdev;

/// The offload, by the name that ethtool(8) takes, that merges frames before a program sees them, if one
/// is on among `features` (by the kernel's names).
pub fn merging_of(features: &[String], driver: Option<&str>) -> Option<&'static str> {
    let is_on = |feature: &str| features.iter().any(|name| name == feature);
    // LRO first: more drivers refuse a program for it, and one remedy is told at a time.
    if is_on("rx-lro") {
        Some("lro")
    } else if is_on("rx-gro-hw") && driver != Some("virtio_net") {
        // virtio switches it off by itself.
        Some("rx-gro-hw")
    } else {
        None
    }
}

/// The offload of `interface` that merges frames before a program sees them, by the name that ethtool(8)
/// takes; `None` also if the driver does not tell.
/// It matters because many packets would then be judged as one, and pass as one (P2).
pub fn merging(interface: &str) -> Option<&'static str> {
    let ethtool = Ethtool::new(interface).ok()?;
    merging_of(&ethtool.features()?, ethtool.driver().as_deref())
}

/// Why the program cannot run on the card of an interface, rather than in its driver.
pub fn no_offload(interface: &str, ifindex: u32) -> String {
    let driver = Ethtool::new(interface).ok().and_then(|ethtool| ethtool.driver());
    let driver = driver.as_deref().unwrap_or("unknown");
    let features = netdev::xdp_features(ifindex).ok();
    offload_problem(driver, features.map(|set| set & netdev::HW_OFFLOAD != 0))
}

/// Why, for what the kernel says of offloads; it does not before Linux 6.3.
fn offload_problem(driver: &str, has_offload: Option<bool>) -> String {
    // One driver has it, and that has neither maps in shared memory nor compare-and-swap.
    if has_offload == Some(true) || has_offload.is_none() && driver == "nfp" {
        format!(
            "driver {driver} offloads programs, but not this one, which shares its maps with the daemon \
             and compares and swaps in them"
        )
    } else {
        format!("driver {driver} has no XDP offload")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_is_found_by_what_switches_it_off() {
        let of = |features: &[&str], driver| {
            let features: Vec<_> = features.iter().map(ToString::to_string).collect();
            merging_of(&features, driver)
        };
        assert_eq!(of(&["rx-gro", "rx-lro"], Some("bnx2x")), Some("lro"));
        assert_eq!(of(&["rx-gro-hw"], Some("qede")), Some("rx-gro-hw"));
        assert_eq!(of(&["rx-gro-hw"], Some("virtio_net")), None);
        assert_eq!(of(&["rx-gro"], None), None);
        assert_eq!(merging("lo"), None);
        assert_eq!(merging("nonsense0"), None);
    }

    #[test]
    fn every_driver_has_a_reason_not_to_offload() {
        assert_eq!(offload_problem("veth", Some(false)), "driver veth has no XDP offload");
        assert_eq!(offload_problem("veth", None), "driver veth has no XDP offload");
        for told in [Some(true), None] {
            assert!(offload_problem("nfp", told).contains("but not this one"));
        }
    }
}
