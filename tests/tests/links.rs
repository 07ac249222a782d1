//! Interfaces that have no Ethernet, or larger frames.

use std::{net::IpAddr, process::Stdio, time::Duration};

use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    cli::{Cli, limiter_binary},
    frame::{self, ETHERNET},
    lab::{RX, RX_V4, TX, TX_V4},
    observer::Then,
    process::{self, Background},
    tun::{TUN, Tun},
    v4, v6,
};

const SENT: u64 = 1000;
const BURST: u64 = 100;
/// Of linux/if_arp.h: a bus in cars.
const ARPHRD_CAN: i32 = 280;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Of what `send` sends from a source, [`SENT`] packets, a burst passes.
fn assert_held(cli: &Cli, source: IpAddr, send: impl FnOnce()) {
    let before = cli.stats();
    send();
    let after = process::wait_for(format!("packets of {source}"), TIMEOUT, || {
        let after = cli.stats();
        (after.sum() - before.sum() >= SENT).then_some(after)
    });
    assert_eq!(after.sum() - before.sum(), SENT, "{source}");
    let dropped = after.verdict("drop") - before.verdict("drop");
    assert!((SENT - BURST - 2..=SENT - BURST).contains(&dropped), "{source}: {dropped}");
    assert_eq!(cli.show(source).dropped, dropped);
}

#[test]
fn an_interface_without_ethernet_is_limited_like_any_other() {
    let lab = Lab::new(1);
    let mut tun = Tun::new(&lab.receiver);
    let daemon = Daemon::start_with(&lab, DaemonOptions::idle());
    let cli = daemon.cli();
    cli.limit("1/hour", Some(&BURST.to_string()), None);
    cli.ok(&["attach", TUN, "--mode", "generic"]);
    // Bytes that would be the EtherTypes of IPv4, IPv6 and a tag, were there Ethernet before them.
    let sources =
        [v4(1), "198.51.8.0".parse().unwrap(), "198.51.134.221".parse().unwrap(), v6(1, 1)];
    let bare = |frame: &[u8]| frame[ETHERNET..].to_vec();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("samples");
    let mut capture = tools::own(limiter_binary());
    capture.arg("--socket").arg(daemon.socket()).args(["capture", "--dropped", "-c", "50", "-w"]);
    let mut capture = Background::start(capture.arg(&file).stdout(Stdio::null()));
    process::wait_for("the samples", TIMEOUT, || {
        tun.send(&bare(&frame::udp(v4(9), 200)), BURST);
        capture.try_wait()
    });
    for source in sources {
        assert_held(&cli, source, || tun.send(&bare(&frame::udp(source, 200)), SENT));
    }
    let mut tshark = tools::TSHARK.command();
    tshark.arg("-r").arg(&file).args(["-T", "fields", "-e", "ip.src"]).stderr(Stdio::null());
    let read = process::run(&mut tshark);
    assert!(
        read.lines().count() == 50 && read.lines().all(|line| line == "198.51.100.9"),
        "{read}"
    );
}

/// Ethernet in UDP: all has one source outside, and is limited by the sources inside.
#[test]
fn a_vxlan_is_limited_like_any_other() {
    const VXLAN: &str = "vxlan0";
    let lab = Lab::new(1);
    let ends = [(&lab.sender, TX, TX_V4, RX_V4), (&lab.receiver, RX, RX_V4, TX_V4)];
    for (host, device, local, remote) in ends {
        let mut link = host.ip(&["link", "add", VXLAN, "type", "vxlan", "id", "7"]);
        link.args(["dstport", "4789", "dev", device]);
        link.args(["local", &local.to_string(), "remote", &remote.to_string()]);
        process::run(link);
        host.sysctl(&format!("net/ipv6/conf/{VXLAN}/addr_gen_mode"), "1");
        process::run(host.ip(&["link", "set", VXLAN, "up"]));
    }
    let daemon = Daemon::start_with(&lab, DaemonOptions::idle());
    let cli = daemon.cli();
    cli.limit("1/hour", Some(&BURST.to_string()), None);
    cli.ok(&["attach", VXLAN, "--mode", "generic"]);
    let tagged = |source| frame::tagged(&frame::udp(source, 200), frame::TAG, 5);
    let inside = [v4(1), v6(1, 1)].map(|source| (source, frame::udp(source, 200)));
    for (source, frame) in inside.into_iter().chain([(v4(2), tagged(v4(2)))]) {
        assert_held(&cli, source, || {
            let stream = Stream::new(frame, 10_000.0, SENT);
            let _sent = Sender::new(&lab).on_device(VXLAN).send(vec![stream]);
        });
    }
}

#[test]
fn an_interface_whose_frames_nobody_reads_is_refused() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let tun = Tun::new(&lab.receiver);
    process::run(lab.receiver.ip(&["link", "set", TUN, "down"]));
    tun.call_itself(ARPHRD_CAN);
    let refused = cli.run(&["attach", TUN, "--mode", "generic"]);
    assert!(refused.stderr.contains("neither Ethernet nor IP, but Can"), "{refused:#?}");
    assert_eq!(cli.ok(&["status"])["interfaces"].as_array().map(Vec::len), Some(1));
}

/// An MTU that takes several buffers, in native mode.
#[test]
fn frames_of_nine_thousand_bytes() {
    const LENGTH: u64 = 9014;
    let lab = Lab::new(1);
    for (host, device) in [(&lab.sender, TX), (&lab.receiver, RX)] {
        process::run(host.ip(&["link", "set", device, "mtu", "9000"]));
    }
    let mut daemon = Daemon::start(&lab);
    // 1 MB a second. A frame is more than the burst: it takes all of that, and owes the rest.
    daemon.cli().limit("8mbit", Some("5kbyte"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    for _ in 0..2 {
        let before = observer.read().all;
        let frame = frame::udp(v4(1), LENGTH as usize);
        let sent = Sender::new(&lab).send(vec![Stream::new(frame, 1000.0, 500)]);
        let passed = (observer.read().all - before) as f64;
        let earned = sent[0].seconds() * 1e6 / LENGTH as f64;
        println!("{passed} passed, {earned:.1} earned");
        // A frame passes when the bucket is full, and the next one may come late where the sender had to wait.
        assert!((0.25 * earned..=1.0 + earned).contains(&passed), "{passed} of {earned}");
        // A later daemon finds what kind of program it needs.
        std::thread::sleep(Duration::from_millis(50));
        daemon.terminate();
        daemon.restart(&lab);
    }
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(stats.total.bytes, stats.total.packets * LENGTH);
}
