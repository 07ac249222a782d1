//! What the kernel program reads of frames, beside the model and tshark.

use std::{env, net::IpAddr, path::Path, process::Stdio, thread};

use limiter_common::packet::{Bytes, Ip, Network, destination, inner, network, transport};

use super::{
    Kind, Reading, read, read_bare, read_inside, read_inside_bare,
    traffic::{NETWORKS, Random, source, write},
};
use crate::{pcap, process};

/// Frames that tshark reads.
const READ_BY_TSHARK: usize = 5_000;

/// What the program reads, of a frame and of what is in a tunnel.
fn by_program(frame: &Bytes<'_>) -> (Reading, Option<Reading>) {
    let ip = match network(frame) {
        Network::NonIp => return (Reading::NotIp, None),
        Network::Unreadable => return (Reading::NoSource, None),
        Network::Ip(ip) => ip,
    };
    // Malformed headers are not looked behind.
    let inside = (!ip.malformed).then(|| inner(frame, &ip)).flatten();
    (behind(frame, &ip), inside.map(|ip| behind(frame, &ip)))
}

fn behind(frame: &Bytes<'_>, ip: &Ip) -> Reading {
    let kind = transport(frame, ip).map(|above| {
        let known = |protocols: &[u8]| above.has_ports && protocols.contains(&above.protocol);
        let [kind, code] = above.destination_port.to_be_bytes();
        Kind {
            protocol: Some(above.protocol),
            port: known(&[6, 17]).then_some(above.destination_port),
            from: known(&[6, 17]).then_some(above.source_port),
            icmp: known(&[1, 58]).then_some((kind, code)),
            later: above.later_fragment,
            flags: known(&[6]).then_some(above.tcp_flags),
            to: None,
        }
    });
    let to = destination(frame, ip).map(|to| u128::from_be_bytes(to.octets()));
    let address = u128::from_be_bytes(ip.source.octets());
    let kind = Kind { to, ..kind.unwrap_or_default() };
    Reading::From { address, malformed: ip.malformed, kind }
}

/// Compares both readings of a frame, and of what is behind its Ethernet header.
fn compare(frame: &[u8]) {
    let with = Bytes { bytes: frame, starts_at_ip: false };
    assert_eq!(by_program(&with), (read(frame), read_inside(frame)), "{frame:02x?}");
    let bare = frame.get(14..).unwrap_or_default();
    let without = Bytes { bytes: bare, starts_at_ip: true };
    let plainly = (read_bare(bare), read_inside_bare(bare));
    assert_eq!(by_program(&without), plainly, "without Ethernet: {bare:02x?}");
}

fn next(frame: &mut Vec<u8>, random: &mut Random) {
    let from = source(random.pick(&NETWORKS), random.number(), random.chance(40));
    write(frame, from, random);
}

#[test]
fn frames_are_read_as_the_model_reads_them() {
    let packets = env::var("LIMITER_FUZZ_PACKETS").map_or(200_000, |text| {
        text.parse::<u64>()
            .unwrap_or_else(|error| panic!("LIMITER_FUZZ_PACKETS is {text}: {error}"))
    });
    let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
    let seed = Random(std::process::id().into()).number();
    println!("{packets} frames from seed {seed:#x}");
    thread::scope(|scope| {
        for number in 0..threads {
            scope.spawn(move || {
                let (mut random, mut frame) = (Random(seed.wrapping_add(number)), Vec::new());
                for _ in 0..packets.div_ceil(threads) {
                    next(&mut frame, &mut random);
                    compare(&frame);
                }
            });
        }
    });
}

/// What tshark reads of a frame, as far as it is to be compared.
#[derive(Debug, Default, PartialEq)]
struct Dissection {
    source: Option<IpAddr>,
    /// That of a packet in a tunnel.
    inside: Option<IpAddr>,
    /// Ports of TCP or UDP.
    ports: Option<(u16, u16)>,
    icmp: Option<(u8, u8)>,
    flags: Option<u8>,
}

const FIELDS: [&str; 12] = [
    "ip.src",
    "ipv6.src",
    "tcp.srcport",
    "tcp.dstport",
    "udp.srcport",
    "udp.dstport",
    "icmp.type",
    "icmp.code",
    "icmpv6.type",
    "icmpv6.code",
    "tcp.flags",
    "frame.protocols",
];

/// What tshark reads of each frame, for the protocol above IP: tunnels have more of them.
fn by_tshark(file: &Path) -> Vec<impl Fn(Option<u8>) -> Dissection> {
    let mut tshark = tools::TSHARK.command();
    tshark.arg("-r").arg(file).args(["-T", "fields", "-E", "separator=;", "-E", "occurrence=a"]);
    // Each frame by itself, and nothing that lies above.
    for preference in ["ip.defragment", "ipv6.defragment", "tcp.desegment_tcp_streams"] {
        tshark.arg("-o").arg(format!("{preference}:FALSE"));
    }
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let text = process::run(tshark.stderr(Stdio::null()));
    let told = |line: &str| {
        let fields: Vec<_> = line.split(';').collect();
        let number = |at: usize| {
            let first = fields[at].split(',').next().unwrap_or_default();
            let text = first.trim_start_matches("0x");
            let radix = if text.len() < first.len() { 16 } else { 10 };
            u16::from_str_radix(text, radix).ok()
        };
        let pair = |at: usize| number(at).zip(number(at + 1));
        // Of each version its own, as the headers come.
        let mut sources = [0, 1].map(|at| fields[at].split(','));
        let versions = fields[11].split(':').filter_map(|it| match it {
            "ip" => Some(0),
            "ipv6" => Some(1),
            _ => None,
        });
        let mut sources = versions.map(|at: usize| sources[at].next()?.parse::<IpAddr>().ok());
        let mut next = || sources.next().flatten().map(|address| address.to_canonical());
        let (source, inside) = (next(), next());
        let [tcp, udp, icmp, icmpv6] = [2, 4, 6, 8].map(pair);
        let flags = number(10).map(|flags| flags as u8);
        move |protocol| {
            let bare = Dissection { source, inside, ..Dissection::default() };
            let message = |pair: (u16, u16)| (pair.0 as u8, pair.1 as u8);
            match protocol {
                Some(1) => Dissection { icmp: icmp.map(message), ..bare },
                Some(6) => Dissection { ports: tcp, flags, ..bare },
                Some(17) => Dissection { ports: udp, ..bare },
                Some(58) => Dissection { icmp: icmpv6.map(message), ..bare },
                _ => bare,
            }
        }
    };
    text.lines().map(told).collect()
}

/// The protocol, and the same of the model's reading; `None` where tshark and it have no words in common.
fn in_common(frame: &[u8]) -> Option<(Option<u8>, Dissection)> {
    match read(frame) {
        Reading::NotIp => Some((None, Dissection::default())),
        Reading::From { address, malformed: false, kind } => {
            let canonical = |from: u128| Some(IpAddr::from(from.to_be_bytes()).to_canonical());
            let inside = match read_inside(frame) {
                Some(Reading::From { address, malformed: false, .. }) => canonical(address),
                _ => None,
            };
            let (source, ports) = (canonical(address), kind.from.zip(kind.port));
            let (icmp, flags) = (kind.icmp, kind.flags);
            Some((kind.protocol, Dissection { source, inside, ports, icmp, flags }))
        }
        Reading::NoSource | Reading::From { .. } => None,
    }
}

/// Whether tshark tells the same of what is above IP: not of headers that are cut off, nor of what is in tunnels.
fn shows_what_is_above(frame: &[u8]) -> bool {
    match read(frame) {
        Reading::From { kind, .. } => {
            kind.later || matches!(kind.protocol, Some(1 | 6 | 17 | 58)) && !kind.hides()
        }
        Reading::NotIp | Reading::NoSource => false,
    }
}

/// Whether tshark reads as far as that for certain: it stops at extension headers that say nonsense, and at short ones.
fn is_plain(frame: &[u8]) -> bool {
    let tags = (12..).step_by(4).take(6);
    let v6 = tags.into_iter().find(|at| frame.get(*at..at + 2) == Some(&[0x86, 0xdd]));
    frame.len() > 120 && v6.is_none_or(|at| matches!(frame[at + 8], 6 | 17 | 58))
}

/// Compares all frames of a file. How many have had flags of TCP, and something in a tunnel.
fn compare_with_tshark(file: &Path, frames: &[Vec<u8>]) -> (usize, usize) {
    let told = by_tshark(file);
    assert_eq!(told.len(), frames.len(), "{}", file.display());
    let (mut compared, mut flags, mut inside) = (0, 0, 0);
    for (number, (frame, told)) in (1..).zip(frames.iter().zip(told)) {
        compare(frame);
        if let Some((protocol, read)) = in_common(frame) {
            let told = told(protocol);
            let told = Dissection { inside: read.inside.and(told.inside), ..told };
            // It tells no flags of a TCP header whose length is a lie.
            let read = Dissection { flags: told.flags.and(read.flags), ..read };
            let bare =
                Dissection { source: read.source, inside: read.inside, ..Dissection::default() };
            let is_alike = if shows_what_is_above(frame) {
                told == read || told == bare && !is_plain(frame)
            } else {
                (told.source, told.inside) == (read.source, read.inside)
            };
            inside += usize::from(told.inside.is_some());
            flags += usize::from(told.flags.is_some());
            let start = &frame[..frame.len().min(128)];
            assert!(
                is_alike,
                "{read:?}, not {told:?}: frame {number} of {}: {start:02x?}",
                file.display()
            );
            compared += 1;
        }
    }
    // Most are whole.
    assert!(compared > frames.len() / 2, "{compared}");
    println!("{}: {compared} of {} frames compared with tshark", file.display(), frames.len());
    (flags, inside)
}

#[test]
fn frames_are_read_as_tshark_reads_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("frames.pcap");
    let mut random = Random(std::process::id().into());
    let frames: Vec<_> = (0..READ_BY_TSHARK)
        .map(|_| {
            let mut frame = Vec::new();
            next(&mut frame, &mut random);
            frame
        })
        .collect();
    pcap::write(&file, &frames, 10).expect("a file");
    let (flags, inside) = compare_with_tshark(&file, &frames);
    assert!(flags > READ_BY_TSHARK / 10 && inside > READ_BY_TSHARK / 50, "{flags}, {inside}");
    let captures = env::var_os("LIMITER_FUZZ_CAPTURES").unwrap_or_default();
    for capture in env::split_paths(&captures).filter(|path| !path.as_os_str().is_empty()) {
        // Whatever format it has.
        let mut tshark = tools::TSHARK.command();
        tshark.arg("-r").arg(&capture).args(["-F", "pcap", "-w"]).arg(&file);
        process::run(tshark.stderr(Stdio::null()));
        let frames = pcap::read(&file).expect("what tshark has written");
        let frames = frames.unwrap_or_else(|| panic!("no Ethernet in {}", capture.display()));
        println!("{}", capture.display());
        compare_with_tshark(&file, &frames);
    }
}
