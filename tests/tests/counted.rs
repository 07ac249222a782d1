//! Each kind of frame counts for what the page says.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tests::{
    Daemon, Lab, Observer, Sender, Stream,
    frame::{self, ETHERNET, IPV6, SERVICE_TAG, TAG},
    observer::Then,
};

const PAGE: &str = include_str!("../../docs/operate/packets.md");
const SENT: u64 = 200;

/// What frames of one kind count for.
enum As {
    /// A source.
    Source(&'static str),
    /// A counter of packets that pass.
    Counter(&'static str),
}

struct Row {
    frames: Vec<Vec<u8>>,
    counted: As,
}

fn row(counted: As, frames: impl Into<Vec<Vec<u8>>>) -> Row {
    Row { frames: frames.into(), counted }
}

/// The rows of the page, in its order. Each has a source of its own.
fn rows() -> Vec<Row> {
    let v4 = |last| IpAddr::from(Ipv4Addr::new(198, 51, 100, last));
    let v6_host = |number| Ipv6Addr::new(0x2001, 0xdb8, 7, number, 0, 0, 0, 1);
    let v6 = |number| IpAddr::from(v6_host(number));
    let link_local = IpAddr::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
    let nothing = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
    let translated = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0xc633, 0x640b);
    let cut = |frame: Vec<u8>, ip_bytes: usize| frame[..ETHERNET + ip_bytes].to_vec();
    let tags = |frame: Vec<u8>, count: usize| {
        (0..count)
            .fold(frame, |frame, tag| frame::tagged(&frame, [TAG, SERVICE_TAG, 0x9100][tag % 3], 5))
    };
    let neighbour = |last: u8, mut frame: Vec<u8>| {
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, last]);
        frame
    };
    let of_link = |hops: u8, kind: u8, source| {
        let mut frame = frame::echo(source);
        frame[ETHERNET + 7] = hops;
        frame[ETHERNET + IPV6] = kind;
        frame
    };
    let mut contradicts = frame::udp(v4(1), 64);
    contradicts[ETHERNET] = 0x65;
    let mut mld = frame::ipv6_with_extensions(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
    (mld[ETHERNET + 7], mld[ETHERNET + IPV6], mld[ETHERNET + IPV6 + 8]) = (1, 58, 143);
    let dhcp = |mut frame: Vec<u8>, header: usize, ports: [u8; 4]| {
        frame[ETHERNET + header..][..4].copy_from_slice(&ports);
        frame
    };
    let fragments = [(0, true), (64, true), (128, false)];
    use As::{Counter, Source};
    vec![
        row(
            Source("198.51.100.1"),
            [frame::udp(v4(1), 64), frame::tcp_syn(v4(1)), frame::echo(v4(1))],
        ),
        row(
            Source("2001:db8:7:1::"),
            [frame::udp(v6(1), 80), frame::tcp_syn(v6(1)), frame::echo(v6(1))],
        ),
        row(Source("198.51.100.2"), [frame::ipv4_with_options(Ipv4Addr::new(198, 51, 100, 2))]),
        row(Source("2001:db8:7:2::"), [frame::ipv6_with_extensions(v6_host(2))]),
        row(Source("198.51.100.3"), fragments.map(|(at, more)| frame::fragment(v4(3), at, more))),
        row(Source("198.51.100.4"), [1, 2, 3, 5].map(|count| tags(frame::udp(v4(4), 64), count))),
        row(Counter("malformed"), [tags(frame::udp(v4(5), 64), 6)]),
        row(Counter("malformed"), [cut(frame::tagged(&frame::udp(v4(5), 64), TAG, 5), 4)]),
        row(Counter("malformed"), [cut(frame::udp(v4(5), 64), 15)]),
        row(Counter("malformed"), [contradicts]),
        row(Source("198.51.100.6"), [cut(frame::udp(v4(6), 64), 16)]),
        row(Counter("non_ip"), [frame::arp()]),
        row(Source("fe80:200:0:1::"), [neighbour(1, frame::udp(link_local, 80))]),
        row(Source("fe80:200:0:2::"), nothing.map(|source| neighbour(2, frame::udp(source, 80)))),
        row(Source("198.51.100.11"), [frame::udp(translated.into(), 80)]),
        row(Counter("link_control"), [133, 134, 135, 136].map(|kind| of_link(255, kind, v6(8)))),
        row(Source("2001:db8:7:9::"), [of_link(254, 135, v6(9))]),
        row(Counter("link_control"), [mld]),
        row(
            Counter("link_control"),
            [
                dhcp(frame::udp(nothing[0], 300), frame::IPV4, [0, 68, 0, 67]),
                dhcp(frame::udp(link_local, 300), IPV6, [2, 34, 2, 35]),
            ],
        ),
    ]
}

#[test]
fn each_kind_of_frame_counts_for_what_the_page_says() {
    let lines = PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let told: Vec<_> = lines.filter_map(|line| line.split_once(" | ")).skip(1).collect();
    let rows = rows();
    assert_eq!(told.len(), rows.len(), "{told:?}");
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    cli.limit("1/hour", Some("10"), None);
    let _observer = Observer::new(&lab, Then::Discard, &[]);
    for ((what, counted), row) in told.into_iter().zip(rows) {
        let before = daemon.accounted(&lab).1;
        let _sent = Sender::new(&lab).send(vec![Stream::cycle(row.frames, 10_000.0, SENT)]);
        let after = daemon.accounted(&lab).1;
        match row.counted {
            As::Counter(reason) => {
                assert_eq!(counted, format!("`{reason}`"), "{what}");
                let passed = after.packets("pass", reason) - before.packets("pass", reason);
                assert_eq!(passed, SENT, "{what}");
            }
            As::Source(source) => {
                assert!(!counted.starts_with('`'), "{what}");
                let shown = cli.ok(&["show", source]);
                // Those below the gate are not counted for it.
                let [passed, dropped] =
                    ["passed", "dropped"].map(|key| shown[key].as_u64().unwrap());
                assert!(passed + dropped >= SENT - 2 && dropped > SENT / 2, "{what}: {shown:#}");
            }
        }
    }
    daemon.assert_accounted(&lab);
}
