//! Packets in tunnels of IP in IP, by option counted for the source inside.

use std::net::{IpAddr, Ipv4Addr};

use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    frame::{self, ETHERNET, tunnelled},
    observer::Then,
    v4, v6,
};

const SENT: u64 = 1000;
const BURST: u64 = 100;
const BALANCER: &str = "192.0.2.80";
const BALANCERS_V6: &str = "2001:db8:80::/48";

fn balancer(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

/// How many frames like this one pass.
fn passed(lab: &Lab, observer: &Observer<'_>, what: &str, frame: Vec<u8>) -> u64 {
    let before = observer.read().all;
    let _sent = Sender::new(lab).send(vec![Stream::new(frame, 10_000.0, SENT)]);
    let passed = observer.read().all - before;
    println!("{what}: {passed} of {SENT}");
    passed
}

fn is_limited(passed: u64) -> bool {
    (BURST..=BURST + 2).contains(&passed)
}

#[test]
fn packets_of_a_balancer_count_for_the_source_inside() {
    let lab = Lab::new(1);
    let tunnels = format!("{BALANCER},{BALANCERS_V6}");
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--tunnels", &tunnels]));
    let cli = daemon.cli();
    cli.limit("1/hour", Some(&BURST.to_string()), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let passed = |what: &str, frame| passed(&lab, &observer, what, frame);
    let from_v6 = "2001:db8:80::1".parse().expect("an address");
    // Each source inside by itself, whatever the families are.
    for (what, outer, inside) in [
        ("IPv4 in IPv4", balancer(80), v4(1)),
        ("another one", balancer(80), v4(2)),
        ("IPv6 in IPv4", balancer(80), v6(3, 1)),
        ("IPv4 in IPv6", from_v6, v4(4)),
        ("IPv6 in IPv6", from_v6, v6(5, 1)),
    ] {
        assert!(is_limited(passed(what, tunnelled(outer, &frame::udp(inside, 200)))), "{what}");
        assert!(cli.show(inside).dropped >= SENT - BURST - 2, "{what}");
    }
    assert!(!cli.show(balancer(80)).tracked);
    // One bucket in the tunnel and beside it.
    assert!(passed("the first one, without a tunnel", frame::udp(v4(1), 200)) <= 2);
    // Nobody else chooses whom a limit hits.
    let forged = tunnelled(balancer(81), &frame::udp(v4(6), 200));
    assert!(is_limited(passed("from somebody else", forged)));
    assert!(!cli.show(v4(6)).tracked && cli.show(balancer(81)).tracked);
    // What cannot be read inside counts for the balancer.
    let mut broken = tunnelled(balancer(80), &frame::udp(v4(7), 200));
    broken[ETHERNET + frame::IPV4] = 0x65;
    assert!(is_limited(passed("no IP inside", broken)));
    // Limits for classes look inside, too.
    cli.ok(&["limit", "set", "1/hour", "--burst", "10", "--proto", "udp", "--dport", "53"]);
    let dns = tunnelled(balancer(80), &frame::udp_to(v4(8), 200, 53));
    assert!((10..=12).contains(&passed("DNS inside", dns)));
    daemon.assert_accounted(&lab);
}

#[test]
fn without_the_option_a_tunnel_is_its_senders() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1/hour", Some(&BURST.to_string()), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let frame = tunnelled(balancer(80), &frame::udp(v4(1), 200));
    assert!(is_limited(passed(&lab, &observer, "a tunnel", frame)));
    assert!(daemon.cli().show(balancer(80)).tracked);
    let many: Vec<_> = (0..17).map(|number| format!("198.51.100.{number}")).collect();
    let mut again = daemon.command(&lab);
    let refused = tests::process::output(again.arg("--tunnels").arg(many.join(",")));
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && told.contains("16 at the most"), "{told}");
}
