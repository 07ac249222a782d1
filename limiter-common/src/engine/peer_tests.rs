use super::memory::{DEFAULT_SLOT, Memory};
use super::*;
use crate::abi::{CompiledTier, Terms, Tier};
use crate::gcra::TICKS_PER_NS;
use crate::hash::HashKey;
use crate::lists::{Action, Entry};
use crate::peers::{BURST, FRAMES_PER_SECOND};
use std::vec;
use std::vec::Vec;

const PORT: u16 = 7700;
/// The host itself, a member, and a host that is none.
const HERE: [u8; 4] = [10, 99, 0, 1];
const MEMBER: [u8; 4] = [10, 99, 0, 2];
const STRANGER: [u8; 4] = [10, 99, 0, 9];
/// The same of IPv6; members of one /64, which is one source.
const HERE_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const MEMBER_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const STRANGER_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

/// A limit of 2 packets a second with a burst of 2 for everybody.
fn slow() -> Policy {
    let fixed = 1_000_000_000 * TICKS_PER_NS / 2;
    Policy::new(CompiledTier {
        tier: Tier::of_packets(fixed, fixed * 2),
        terms: Terms::of_bucket(2, 1_000_000_000, 2, Terms::PACKETS),
        gate: 1,
    })
}

fn memory() -> Memory {
    let key = HashKey { words: [0x9e37_79b9_7f4a_7c15; 10] };
    Memory::new(slow(), 64, Shape { mask: 1023, depth: 4 }, Window { shift: 27 }, key, 1)
}

/// A host at `here`, with one other one.
fn in_cluster(here: SourceKey, member: SourceKey) -> Memory {
    let mut memory = memory();
    memory.listen = Listen { address: here, port: PORT.into() };
    memory.peers.insert(member, AtomicU64::new(0));
    memory
}

fn with_tags(tags: &[u16], ether_type: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend([0, 42]);
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend(packet);
    frame
}

fn udp(port: u16) -> [u8; 12] {
    let [high, low] = port.to_be_bytes();
    [0x1e, 0x14, high, low, 0, 12, 0, 0, 1, 2, 3, 4]
}

/// An IPv4 packet behind these tags.
fn v4(tags: &[u16], source: [u8; 4], to: [u8; 4], port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet.extend([source, to].concat());
    packet.extend(udp(port));
    with_tags(tags, 0x0800, &packet)
}

fn v6(tags: &[u16], source: [u8; 16], to: [u8; 16], port: u16) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 12, 17, 64];
    packet.extend([source, to].concat());
    packet.extend(udp(port));
    with_tags(tags, 0x86dd, &packet)
}

fn v4_cluster() -> Memory {
    in_cluster(SourceKey::from_ipv4(HERE), SourceKey::from_ipv4(MEMBER))
}

/// How many of `count` frames, 10 ms apart, meet `reason`.
fn met(memory: &Memory, frame: &[u8], count: usize, reason: Reason) -> usize {
    let judged = (0..count).map(|_| {
        memory.advance(10_000_000);
        memory.cpu(0).frame(frame)
    });
    judged.filter(|met| *met == reason).count()
}

#[test]
fn frames_of_members_pass_whatever_limits_lists_and_totals_say() {
    let v6_cluster = || in_cluster(SourceKey::from_ipv6(HERE_V6), SourceKey::from_ipv6(MEMBER_V6));
    for tags in [&[][..], &[0x8100], &[0x88a8, 0x8100]] {
        for (mut memory, frame, stranger) in [
            (v4_cluster(), v4(tags, MEMBER, HERE, PORT), v4(tags, STRANGER, HERE, PORT)),
            (
                v6_cluster(),
                v6(tags, MEMBER_V6, HERE_V6, PORT),
                v6(tags, STRANGER_V6, HERE_V6, PORT),
            ),
        ] {
            let Network::Ip(ip) = network(&frame[..]) else { panic!("{frame:02x?}") };
            memory.share_all(DEFAULT_SLOT);
            assert_eq!(met(&memory, &frame, 200, Reason::PeerFrame), 200, "{tags:04x?}");
            // Who is not known as a member is limited like anybody.
            assert!(met(&memory, &stranger, 200, Reason::OverLimit) >= 190, "{tags:04x?}");
            memory.list(PrefixMasks::default().apply(ip.source), Entry::new(Action::Deny, 0));
            memory.publish(2, DEFAULT_SLOT);
            assert_eq!(met(&memory, &frame, 200, Reason::PeerFrame), 200, "{tags:04x?}");
            // Nothing of it was charged to anybody.
            let member = PrefixMasks::default().apply(ip.source);
            assert!(memory.tracked().all(|(key, passed, _)| key != member || passed <= 8));
        }
    }
}

#[test]
fn all_else_of_a_member_is_limited_as_ever() {
    let other_port = v4(&[], MEMBER, HERE, PORT + 1);
    let elsewhere = v4(&[], MEMBER, STRANGER, PORT);
    let mut tcp = v4(&[], MEMBER, HERE, PORT);
    tcp[14 + 9] = 6;
    let fragment = |bits: u8| {
        let mut frame = v4(&[], MEMBER, HERE, PORT);
        frame[14 + 6] = bits;
        frame
    };
    let mut longer = v4(&[], MEMBER, HERE, PORT);
    // It says that it is longer than the frame.
    longer[14 + 3] = 200;
    let cut_off = v4(&[], MEMBER, HERE, PORT)[..14 + 22].to_vec();
    for frame in [other_port, elsewhere, tcp, fragment(0x20), fragment(0x1f), longer, cut_off] {
        let memory = v4_cluster();
        assert_eq!(met(&memory, &frame, 200, Reason::PeerFrame), 0, "{frame:02x?}");
        assert!(met(&memory, &frame, 200, Reason::OverLimit) >= 190, "{frame:02x?}");
        // It has not used up the budget either.
        assert_eq!(atomic::load(&memory.peers[&SourceKey::from_ipv4(MEMBER)]), 0);
    }
    let mut none = v4_cluster();
    none.listen = Listen::default();
    assert_eq!(met(&none, &v4(&[], MEMBER, HERE, PORT), 200, Reason::PeerFrame), 0);
}

#[test]
fn a_flood_to_other_ports_costs_no_frame() {
    let mut memory = v4_cluster();
    let (frame, flood) = (v4(&[], MEMBER, HERE, PORT), v4(&[], MEMBER, HERE, 53));
    let mut passed = 0;
    for at in 0..120_000u32 {
        memory.advance(1_000_000_000 / 12_000);
        if at == 60_000 {
            // Its address is banned.
            memory.list(SourceKey::from_ipv4(MEMBER), Entry::new(Action::Deny, 0));
            memory.publish(2, DEFAULT_SLOT);
        }
        let reason = memory.cpu(0).frame(&flood);
        passed += u32::from(reason.passes());
        if at % 1000 == 0 {
            assert_eq!(memory.cpu(0).frame(&frame), Reason::PeerFrame, "after {at} packets");
        }
    }
    assert!(passed <= 2 + 10 + 1, "{passed} of the flood");
}

#[test]
fn a_flood_of_frames_gets_the_budget_and_all_is_counted() {
    let memory = v4_cluster();
    let frame = v4(&[], MEMBER, HERE, PORT);
    let (mut passed, mut over) = (0u64, 0u64);
    for _ in 0..120_000 {
        memory.advance(1_000_000_000 / 12_000);
        match memory.cpu(0).frame(&frame) {
            Reason::PeerFrame => passed += 1,
            Reason::OverPeerBudget => over += 1,
            reason => panic!("{reason:?}"),
        }
    }
    let most = BURST + 10 * FRAMES_PER_SECOND;
    assert!((most - most / 100..=most).contains(&passed), "{passed} of {most}");
    assert_eq!(passed + over, 120_000);
}
