//! Interfaces that need more than a wire: tunnels, a line, a bond. Datagrams go through each, at five times a limit.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use socket2::{Domain, Socket, Type};
use tests::{
    Daemon, Lab, Namespace,
    lab::{RX_V4, RX2, TX_V4, TX2},
    process::{self, Background, wait_for},
};

use crate::scenario::Outcome;

/// Packets a second, and packets.
const RATE: u32 = 200;
const BURST: u32 = 5 * RATE;
const EXCESS: u32 = 5;
const FLOOD: Duration = Duration::from_secs(4);
/// How long datagrams may be on their way.
const ARRIVAL: Duration = Duration::from_millis(500);
/// Bytes of a datagram.
const LENGTH: usize = 400;
const PORT: u16 = 9;

/// The interface's name at both ends.
const LINK: &str = "link0";
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// It floods, and the other keeps to half of the limit.
const FLOODS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const CONFORMS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 3);

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Link {
    /// WireGuard
    Wireguard,
    /// IP in IP
    Ipip,
    /// A serial line
    Ppp,
    /// A bond with one port, in native mode
    Bond,
}

impl Link {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Wireguard => "wireguard",
            Self::Ipip => "ipip",
            Self::Ppp => "ppp",
            Self::Bond => "bond",
        }
    }

    /// Makes the interface at both ends; what has to live as long.
    fn make(self, lab: &Lab) -> Option<Background> {
        let both = [(&lab.receiver, RX_V4, TX_V4), (&lab.sender, TX_V4, RX_V4)];
        match self {
            Self::Wireguard => {
                let home = tempfile::tempdir().expect("a folder");
                let keys = ["receiver", "sender"].map(|name| {
                    let private = process::run(tools::own("wg").arg("genkey"));
                    let file = home.path().join(name);
                    fs::write(&file, private).expect("a key");
                    let mut public = tools::own("wg");
                    public.arg("pubkey").stdin(fs::File::open(&file).expect("a key"));
                    (file, process::run(public).trim().to_owned())
                });
                for (number, (host, _, peer)) in both.into_iter().enumerate() {
                    process::run(host.ip(&["link", "add", LINK, "type", "wireguard"]));
                    let mut wg = host.own("wg");
                    wg.args(["set", LINK, "listen-port", "51820", "private-key"]);
                    wg.arg(&keys[number].0).args(["peer", &keys[1 - number].1]);
                    wg.args(["allowed-ips", "10.9.0.0/24", "endpoint", &format!("{peer}:51820")]);
                    process::run(wg);
                }
            }
            Self::Ipip => {
                for (host, own, peer) in both {
                    let [own, peer] = [own, peer].map(|address| address.to_string());
                    let mut link = host.ip(&["link", "add", LINK, "type", "ipip"]);
                    process::run(link.args(["local", &own, "remote", &peer]));
                }
            }
            Self::Ppp => {
                let other = format!(
                    "ip netns exec {} pppd notty noauth local ifname {LINK} {RECEIVER}:{FLOODS}",
                    lab.receiver.name()
                );
                let mut pppd = lab.sender.own("pppd");
                pppd.args(["nodetach", "noauth", "local", "ifname", LINK, "pty", &other]);
                let line = Background::start(pppd.arg(format!("{FLOODS}:{RECEIVER}")));
                for host in [&lab.receiver, &lab.sender] {
                    wait_for("a line", Duration::from_secs(60), || {
                        let state = process::output(&mut host.ip(&["link", "show", LINK, "up"]));
                        String::from_utf8_lossy(&state.stdout).contains("LOWER_UP").then_some(())
                    });
                }
                process::run(lab.sender.ip(&[
                    "address",
                    "add",
                    &CONFORMS.to_string(),
                    "dev",
                    LINK,
                ]));
                process::run(lab.receiver.ip(&[
                    "route",
                    "add",
                    &CONFORMS.to_string(),
                    "dev",
                    LINK,
                ]));
                return Some(line);
            }
            Self::Bond => {
                lab.add_wire();
                let host = &lab.receiver;
                process::run(host.ip(&["link", "set", RX2, "down"]));
                let bond = ["link", "add", LINK, "type", "bond", "mode", "active-backup"];
                process::run(&mut host.ip(&bond));
                process::run(host.ip(&["link", "set", RX2, "master", LINK]));
                process::run(lab.sender.ip(&["link", "set", TX2, "down"]));
                process::run(lab.sender.ip(&["link", "set", TX2, "name", LINK]));
            }
        }
        for (host, addresses) in
            [(&lab.receiver, &[RECEIVER][..]), (&lab.sender, &[FLOODS, CONFORMS])]
        {
            for address in addresses {
                let address = format!("{address}/24");
                process::run(host.ip(&["address", "add", &address, "dev", LINK]));
            }
            process::run(host.ip(&["link", "set", LINK, "up"]));
        }
        None
    }

    pub(crate) fn run(self, lab: &Lab, daemon: &Daemon) -> Outcome {
        let line = self.make(lab);
        let mode = if matches!(self, Self::Bond) { "native" } else { "generic" };
        let cli = daemon.cli();
        cli.ok(&["attach", LINK, "--mode", mode]);
        // What the tunnels are made of is not to be limited as well.
        cli.ok(&["allow", "add", &TX_V4.to_string()]);
        let limit = daemon.cli().limit(
            &format!("{RATE}pps"),
            Some(&BURST.to_string()),
            Some("10.9.0.0/24"),
        );
        // Before anything is sent: what comes to no socket is lost.
        let socket = lab.receiver.run_inside(|| UdpSocket::bind((RECEIVER, PORT)));
        let socket = socket.expect("an address of this host");
        let receiver = thread::spawn(move || receive(&socket));
        // The first one may wait for an answer, of ARP or a handshake. Through a tunnel it makes an exception of the route,
        // for the MTU, and the next one binds a route to it. Two at once do so both, and the kernel discards what still
        // goes by the route that is bound first (rt_bind_exception): of 160 pairs, one was lost in 44.
        let warm = send(&lab.sender, CONFORMS, 10, 2).join().expect("a sender");
        thread::sleep(2 * ARRIVAL);
        let floods = send(&lab.sender, FLOODS, EXCESS * RATE, EXCESS * RATE * 4);
        let conforms = send(&lab.sender, CONFORMS, RATE / 2, RATE * 2);
        let [flood, beside] = [floods, conforms].map(|it| it.join().expect("a sender"));
        let (admitted, arrived) = receiver.join().expect("a receiver");
        // Else the daemon would wait for the next one of this name.
        cli.ok(&["detach", LINK]);
        drop(line);
        for host in [&lab.receiver, &lab.sender] {
            // A line's went with it.
            process::output(&mut host.ip(&["link", "del", LINK]));
        }
        Outcome {
            admitted,
            expected: limit.allowance(flood.1.as_secs_f64()) + limit.gate as f64,
            offered: flood.0,
            seconds: flood.1.as_secs_f64(),
            conforming_dropped: (beside.0 + warm.0).saturating_sub(arrived),
        }
    }
}

/// Sends datagrams from an address; how many, and how long it took.
fn send(
    host: &Namespace,
    from: Ipv4Addr,
    rate: u32,
    count: u32,
) -> thread::JoinHandle<(u64, Duration)> {
    host.spawn_inside(move || {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        socket.bind(&SocketAddrV4::new(from, 0).into()).expect("an address of this host");
        let start = Instant::now();
        for number in 0..count {
            let due = Duration::from_secs(1) * number / rate;
            thread::sleep(due.saturating_sub(start.elapsed()));
            let to = SocketAddrV4::new(RECEIVER, PORT);
            socket.send_to(&[0; LENGTH], &to.into()).expect("a way there");
        }
        (count.into(), start.elapsed())
    })
}

/// Datagrams of the flood that arrive, and of the other one, until none have come for a while.
fn receive(socket: &UdpSocket) -> (u64, u64) {
    socket.set_read_timeout(Some(FLOOD)).expect("a socket has a timeout");
    let (mut flood, mut other) = (0, 0);
    while let Ok((_, from)) = socket.recv_from(&mut [0; LENGTH]) {
        if from.ip() == FLOODS { flood += 1 } else { other += 1 }
    }
    (flood, other)
}
