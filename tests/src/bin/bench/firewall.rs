//! The kernel's firewalls as per-source limiters. Both drop what is over the limit, and everything
//! else as well, so that no packet goes further.

use tests::{Lab, lab::RX, process};

use crate::{cell::Limit, object::CAPACITY};

/// Seconds without a packet after which a source is forgotten: what fills a bucket, and some more.
const FORGET: u32 = 10;

/// Drops everything that gets past XDP.
pub(crate) fn discard(lab: &Lab) {
    let rules = format!(
        "table netdev bench {{
            counter admitted {{ }}
            chain in {{
                type filter hook ingress device {RX} priority 0
                counter name admitted drop
            }}
        }}"
    );
    process::run(lab.receiver.command(&tools::NFT).arg(rules));
}

/// Limits by a dynamic set of nftables, which starts empty.
pub(crate) fn nft(lab: &Lab, Limit { rate, burst }: Limit) {
    let rules = format!(
        // Added before it is deleted: nft refuses to delete what is not there.
        "add table netdev bench
        delete table netdev bench
        table netdev bench {{
            set sources {{
                type ipv4_addr; size {CAPACITY}; flags dynamic,timeout; timeout {FORGET}s;
            }}
            counter admitted {{ }}
            chain in {{
                type filter hook ingress device {RX} priority 0;
                update @sources {{ ip saddr limit rate over {rate}/second burst {burst} packets }} drop
                counter name admitted drop
            }}
        }}"
    );
    process::run(lab.receiver.command(&tools::NFT).arg(rules));
}

/// Limits by the hashlimit match of iptables, whose table starts empty.
pub(crate) fn hashlimit(lab: &Lab, Limit { rate, burst }: Limit) {
    let iptables = |arguments: &[&str]| {
        let mut command = lab.receiver.command(&tools::IPTABLES);
        // -w waits for the lock of xtables: another iptables at work would make this one fail.
        process::run(command.args(["-w", "-t", "raw"]).args(arguments));
    };
    iptables(&["-F", "PREROUTING"]);
    let (above, burst) = (format!("{rate}/second"), burst.to_string());
    let (most, expire) = (CAPACITY.to_string(), (FORGET * 1000).to_string());
    let rule = ["-A", "PREROUTING", "-i", RX, "-m", "hashlimit", "--hashlimit-name", "bench"];
    let limit = ["--hashlimit-mode", "srcip", "--hashlimit-above", &above, "--hashlimit-burst"];
    let size = [&burst, "--hashlimit-htable-size", "262144", "--hashlimit-htable-max", &most];
    let end = ["--hashlimit-htable-expire", &expire, "-j", "DROP"];
    iptables(&[&rule[..], &limit, &size, &end].concat());
    iptables(&["-A", "PREROUTING", "-i", RX, "-j", "DROP"]);
}

/// Packets that [`discard`] or [`nft`] has dropped although they were within the limit.
pub(crate) fn admitted_by_nft(lab: &Lab) -> u64 {
    let mut command = lab.receiver.command(&tools::NFT);
    let text = process::run(command.args(["-j", "list", "counter", "netdev", "bench", "admitted"]));
    let json: serde_json::Value = serde_json::from_str(&text).expect("nft prints JSON");
    let items = json["nftables"].as_array().into_iter().flatten();
    let packets = items.filter_map(|item| item["counter"]["packets"].as_u64()).next();
    packets.unwrap_or_else(|| panic!("no counter in {text}"))
}

/// Packets that [`hashlimit`] has dropped although they were within the limit.
pub(crate) fn admitted_by_hashlimit(lab: &Lab) -> u64 {
    let mut command = lab.receiver.command(&tools::IPTABLES);
    // -x, as the counts are rounded to 12M otherwise.
    let list = ["-w", "-t", "raw", "-n", "-v", "-x", "-L", "PREROUTING", "2"];
    let text = process::run(command.args(list));
    let packets = text.split_whitespace().next().and_then(|word| word.parse().ok());
    packets.unwrap_or_else(|| panic!("no packets in {text}"))
}
