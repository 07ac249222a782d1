//! Packets that are nearly right: none makes the receiver panic, and none changes anything unless its seal
//! is whole. `cargo xtask fuzz wire` tries more of them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::tests::{Wire, identity, ring};
use super::*;
use crate::message::{Grant, Report, Transfer, Vote};
use crate::wire::{Header, TAG, Topic};
use crate::{HostId, KeyId, Message, ViewId};
use model::Share;

/// Packets that are tried, unless the environment wants more.
fn packets() -> u64 {
    let wanted = std::env::var("LIMITER_FUZZ_PACKETS");
    wanted.map_or(100_000, |wanted| wanted.parse().expect("LIMITER_FUZZ_PACKETS is a number"))
}

fn contents() -> Vec<Content> {
    let views = vec![ViewId(1), ViewId(2)];
    let reports = (0..60)
        .map(|key| Report {
            key: KeyId::from_hash(key << 40),
            demand: Share::from_part(0.7),
            in_use: key as u32,
            majority: key > 50,
        })
        .collect();
    let grants = (0..60)
        .map(|key| Grant {
            key: KeyId::from_hash(key),
            share: Share::from_part(0.2),
            number: key as u32 + 1,
        })
        .collect();
    let shares = Message {
        echo: Some(Moment(5)),
        views,
        delegated: Share::from_part(0.3),
        delegated_for: Duration::from_secs(1),
        majority: Share::from_part(0.2),
        majority_for: Duration::from_secs(1),
        votes: vec![Vote { host: HostId(9), known: Share::from_part(0.2) }],
        reports,
        grants,
        granted_for: Duration::from_millis(500),
        transfers: vec![Transfer { number: 1, share: Share::from_part(0.1) }],
        received: vec![3, 4],
        ..Message::default()
    };
    vec![
        Content::Shares(Box::new(shares)),
        Content::Shares(Box::default()),
        Content::Other(Topic::Limits, vec![7; 900]),
        Content::Other(Topic::Counters, vec![]),
    ]
}

/// Frames of all kinds that were sealed for `wire.links[0]`, by members, strangers and itself.
fn corpus(wire: &mut Wire) -> Vec<Vec<u8>> {
    let ids = [0, 1].map(|number| wire.links[number].me().host());
    for (from, to) in [(1, 0), (0, 1)] {
        for content in contents() {
            wire.links[from].send(ids[to], Some(9), &content);
        }
    }
    let stranger = wire.start(identity("c", 3, 100), None, ring(2));
    let seed = vec![wire.address(0)];
    wire.links[stranger].set_seeds(wire.now, seed);
    wire.run(5000);
    // Few of those that it has sent itself: they are refused at once.
    let (target, mut own) = (wire.address(0), 0);
    let mut frames = wire.seen.clone();
    frames.retain(|(from, _, _)| {
        own += u32::from(*from == target);
        *from != target || own <= 3
    });
    frames.into_iter().map(|(_, _, frame)| frame).collect()
}

fn mutate(random: &mut SmallRng, frame: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let at = random.random_range(0..=frame.len());
    match random.random_range(0..9) {
        0 => frame.truncate(at),
        1 => frame.insert(at, random.random()),
        // The header alone, where most decisions are made.
        2 if frame.len() > Header::LENGTH => {
            frame[random.random_range(0..Header::LENGTH)] = random.random();
        }
        3 if frame.len() > TAG => {
            let length = frame.len();
            frame[length - 1 - random.random_range(0..TAG)] ^= 1 << random.random_range(0..8);
        }
        // The head of one, the rest of another.
        4 => {
            let other = corpus.choose(random).unwrap();
            frame.truncate(at);
            frame.extend_from_slice(&other[at.min(other.len())..]);
        }
        5 => {
            let bytes = random.random_range(0..1400);
            *frame = (0..bytes).map(|_| random.random()).collect();
        }
        6 => {
            // Noise behind a good header.
            frame.truncate(Header::LENGTH);
            let bytes = random.random_range(0..1200);
            frame.extend((0..bytes).map(|_| random.random::<u8>()));
        }
        _ if at < frame.len() => frame[at] ^= 1 << random.random_range(0..8),
        _ => {}
    }
}

#[test]
fn no_packet_without_a_whole_seal_changes_anything() {
    let mut wire = Wire::pair();
    let corpus = corpus(&mut wire);
    let genuine: HashSet<&[u8]> = corpus.iter().map(Vec::as_slice).collect();
    assert!(corpus.len() > 30, "{}", corpus.len());
    let (now, from) = (wire.now, wire.address(1));
    let link = &mut wire.links[0];
    while link.delivery().is_some() {}
    let before =
        (link.frames.opener.clone(), Arc::clone(link.members()), link.next(), link.cluster());
    let counts = link.counts().clone();
    let mut random = SmallRng::seed_from_u64(0x5eed);
    let (packets, start, mut tried) = (packets(), Instant::now(), 0);
    for number in 0..packets {
        let mut frame = corpus.choose(&mut random).unwrap().clone();
        for _ in 0..random.random_range(1..4) {
            mutate(&mut random, &mut frame, &corpus);
        }
        if genuine.contains(&frame[..]) {
            continue;
        }
        tried += 1;
        link.receive(now, from, &mut frame);
        assert!(link.deliveries.is_empty() && link.frames.outgoing.is_empty(), "{number}");
        assert_eq!(link.counts().received, counts.received, "{number}");
        assert_eq!(link.frames.opener, before.0, "{number}");
        assert!(Arc::ptr_eq(link.members(), &before.1), "{number}");
        assert_eq!((link.next(), link.cluster()), (before.2, before.3), "{number}");
    }
    let told =
        |counts: &Counts| counts.rejections().map(|(_, rejected)| rejected.packets).sum::<u64>();
    assert_eq!(told(link.counts()) - told(&counts), tried);
    println!("{tried} packets of {packets} were mutated and refused in {:?}:", start.elapsed());
    for (rejection, rejected) in link.counts().rejections() {
        let kind = rejected.packets - counts.rejected(rejection).packets;
        println!("{kind:>10} {}", rejection.name());
    }
    // All that can be wrong with what has no whole seal was tried.
    for rejection in [
        Rejection::Foreign,
        Rejection::Short,
        Rejection::Long,
        Rejection::Protocol,
        Rejection::Key,
        Rejection::Forged,
        Rejection::Replayed,
        Rejection::Old,
        Rejection::Own,
    ] {
        let kind = link.counts().rejected(rejection).packets - counts.rejected(rejection).packets;
        assert!(kind > 0, "{rejection:?} was not tried");
    }
}

#[test]
fn no_content_with_a_whole_seal_makes_it_panic_or_grow() {
    let mut wire = Wire::pair();
    corpus(&mut wire);
    let (now, from) = (wire.now, wire.address(1));
    let (me, run) = (wire.links[0].me().host(), wire.links[0].me().epoch.short());
    let mut plain: Vec<Vec<u8>> = Vec::new();
    for content in contents() {
        plain.extend(Packet::encode(Some(1), &content).unwrap());
    }
    // What members really say.
    for (_, _, frame) in &wire.seen.clone() {
        let settings = Settings {
            me: identity("a", 1, 100),
            cluster: wire.links[0].cluster(),
            bootstrap: Bootstrap::NONE,
            agreement: Agreement::new((32, 64)),
            ring: ring(1),
            seed: 0,
            salt: || 0,
        };
        let mut reader = Link::new(now, settings);
        let mut frame = frame.clone();
        if let Ok(opened) = reader.frames.open(now, &mut frame) {
            plain.push(opened.content.to_vec());
        }
    }
    assert!(plain.len() > 15, "{}", plain.len());
    let mut random = SmallRng::seed_from_u64(0x5eed);
    for number in 0..packets().min(1_000_000) {
        let mut content = plain.choose(&mut random).unwrap().clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..=content.len());
            match random.random_range(0..4) {
                0 => content.truncate(at),
                1 => content.insert(at, random.random()),
                _ if at < content.len() => content[at] ^= 1 << random.random_range(0..8),
                _ => {}
            }
        }
        let [link, other] = &mut wire.links[..2] else { panic!("two links") };
        let (short, version) = (other.affiliation.short(), other.me().versions.newest);
        let mut frame =
            other.frames.sealer.seal(&other.frames.ring, version, short, run, &content).unwrap();
        link.receive(now, from, &mut frame);
        link.frames.outgoing.clear();
        assert!(link.deliveries.len() <= 2 * MAX_DELIVERIES, "{number}");
        if number % 1000 == 0 {
            while link.delivery().is_some() {}
        }
    }
    let link = &mut wire.links[0];
    assert!(link.counts().rejected(Rejection::Malformed).packets > 1000);
    assert!(link.members().contains_key(&me));
}
