use super::memory::Memory;
use super::tests::{limiter, policy, source};
use super::*;
use crate::abi::EventKind;
use crate::class::{
    ASKED_AT, COVERS_ALL, Chain, DESTINATION_CHAINS_AT, DESTINATIONS, LIMITED, NAMED,
    OF_DESTINATIONS, OTHER_TABLE, chain_at, set_entry,
};
use crate::lists::Action;
use std::vec::Vec;

const VICTIM: u32 = 0xcb00_7107;
const BESIDE: u32 = VICTIM + 1;

/// An IPv4 frame with a UDP header.
fn udp(source: u32, destination: u32) -> Vec<u8> {
    let mut frame = std::vec![0; 12];
    frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(source.to_be_bytes());
    frame.extend(destination.to_be_bytes());
    frame.extend([0x30, 0x39, 0, 9, 0, 8, 0, 0]);
    frame
}

/// Sources have 1000 pps, each destination the limit `of_destinations`.
fn by_destination(of_destinations: Policy, covers: u32) -> Memory {
    let mut memory = limiter(policy(1000, 2000), 1 << 6, 1 << 16, 2);
    memory.policies.push(of_destinations);
    let other = &memory.class_tables(0)[OTHER_TABLE as usize];
    set_entry(other, ASKED_AT, LIMITED as u8);
    Chain(OF_DESTINATIONS | covers).write(other, DESTINATION_CHAINS_AT);
    memory
}

#[test]
fn a_destination_gets_what_it_may_from_however_many() {
    let (rate, burst) = (2000, 400);
    let mut memory = by_destination(policy(rate, burst), COVERS_ALL);
    memory.class_defaults.insert(OF_DESTINATIONS, 2);
    let (mut passed, mut beside) = (0, 0);
    // Ten seconds of 20 kpps, each source below its gate, on two CPUs.
    for ms in 0..10_000u32 {
        for packet in 0..20 {
            let frame = udp(0x0a00_0000 + ms * 20 + packet, VICTIM);
            passed += u64::from(memory.cpu(packet as usize % 2).frame(&frame).passes());
        }
        beside += u64::from(memory.cpu(0).frame(&udp(0x0b00_0000 + ms % 300, BESIDE)).passes());
        memory.advance(1_000_000);
    }
    let most = burst + 10 * rate + burst / 8;
    assert!(passed <= most && passed >= 10 * rate * 97 / 100, "{passed} of {most}");
    assert_eq!(beside, 10_000, "the other address loses nothing");
    // Both have buckets, and of the sources those alone that send on.
    let victim = memory.tracked().find(|(key, ..)| *key == source(VICTIM)).unwrap();
    assert_eq!(victim.2, 200_000 - passed);
    assert_eq!(memory.last_event(), Some(EventKind::DestinationLimited));
    memory.assert_sound();
}

#[test]
fn a_destination_is_charged_last_and_only_where_it_has_a_limit() {
    let mut memory = by_destination(policy(1, 5), 0);
    memory.limits.insert((OF_DESTINATIONS, source(VICTIM)), 2);
    let cpu = memory.cpu(0);
    assert!((0..1000).all(|_| cpu.frame(&udp(1, BESIDE)).passes()), "it has no limit");
    let flood: Vec<_> = (0..20).map(|number| cpu.frame(&udp(100 + number, VICTIM))).collect();
    assert!(flood[..5].iter().all(|reason| *reason == Reason::BelowGate), "{flood:?}");
    assert!(flood[5..].iter().all(|reason| *reason == Reason::OverDestination), "{flood:?}");
    // Whoever is over the own limit takes nothing from the destination.
    let mut memory = by_destination(policy(1000, 3000), COVERS_ALL);
    memory.class_defaults.insert(OF_DESTINATIONS, 2);
    let cpu = memory.cpu(0);
    let dropped = (0..5000).filter(|_| cpu.frame(&udp(1, VICTIM)) == Reason::OverLimit).count();
    assert!(dropped >= 2900, "{dropped}");
    let rest = (0..1500).filter(|_| cpu.frame(&udp(2, VICTIM)).passes()).count();
    assert!((950..=1400).contains(&rest), "{rest}");
    // What is let through is not counted.
    let mut memory = by_destination(policy(1, 5), COVERS_ALL);
    memory.class_defaults.insert(OF_DESTINATIONS, 2);
    memory.list(source(7), Entry::new(Action::Allow, 0));
    let cpu = memory.cpu(0);
    assert!((0..100).all(|_| cpu.frame(&udp(7, VICTIM)) == Reason::Allowed));
    assert_eq!(cpu.frame(&udp(8, VICTIM)), Reason::BelowGate);
}

#[test]
fn a_limit_that_is_not_enforced_only_counts() {
    let mut memory = by_destination(policy(1, 5).observing(), COVERS_ALL);
    memory.class_defaults.insert(OF_DESTINATIONS, 2);
    let cpu = memory.cpu(0);
    let would = (0..100).filter(|n| cpu.frame(&udp(*n, VICTIM)) == Reason::WouldDrop).count();
    assert_eq!(would, 95);
}

#[test]
fn a_source_has_a_limit_towards_a_prefix() {
    let mut memory = limiter(policy(1000, 2000), 1 << 6, 1 << 16, 1);
    memory.policies.push(policy(1, 50));
    for bank in 0..2 {
        let other = &memory.class_tables(bank)[OTHER_TABLE as usize];
        set_entry(other, ASKED_AT, NAMED as u8);
        Chain(3 | COVERS_ALL).write(other, chain_at(2, 0));
    }
    memory.class_defaults.insert(3, 2);
    // Of the bank in force alone.
    memory.limits.insert((DESTINATIONS + 1, source(VICTIM)), 2);
    memory.limits.insert((DESTINATIONS, source(BESIDE)), 2);
    let cpu = memory.cpu(0);
    let passed = |from, to| (0..100).filter(|_| cpu.frame(&udp(from, to)).passes()).count();
    assert_eq!([passed(1, VICTIM), passed(1, BESIDE), passed(2, VICTIM)], [50, 100, 50]);
    // A program that is not loaded for it looks at no destination.
    memory.features = Features(!Features::DESTINATIONS.0);
    assert_eq!((0..100).filter(|_| memory.cpu(0).frame(&udp(3, VICTIM)).passes()).count(), 100);
}
