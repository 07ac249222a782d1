//! Many hosts and many keys: what it costs.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::super::*;
use super::world::{MS, Random};

/// What it costs each host.
struct Cost {
    /// Sent in a second, and what of that goes to other regions.
    bytes: f64,
    far: f64,
    /// Time of a core in a second.
    time: Duration,
    /// What may be used of a key by all.
    usable: f64,
}

/// What one host sends and takes in one second, about: 76 bytes for each message (UDP, frame, tag and what
/// stands at its beginning), 12 for each item (key, number and a share of 16 bits).
fn run(hosts: usize, regions: usize, keys: usize, ms: u64) -> Cost {
    let ids: Vec<HostId> = (0..hosts as u64).map(|at| HostId(Random(at).next())).collect();
    let region = |at: usize| Region((at % regions) as u64);
    let member = |at| Member { weight: 100, region: region(at) };
    let members = ids.iter().enumerate().map(|(at, &id)| (id, member(at))).collect();
    let mut random = Random(5);
    let keys: Vec<KeyId> = (0..keys).map(|_| KeyId::from_hash(random.next())).collect();
    let share = Share::WHOLE.times(1, hosts as u64);
    let mut escrows: Vec<Escrow> = ids
        .iter()
        .map(|&id| {
            let kept = PersistentState { home: share, ..PersistentState::default() };
            let mut escrow = Escrow::new(Settings::new(id, 100), kept, Moment(1));
            escrow.set_members(Moment(1), &members);
            escrow
        })
        .collect();
    let mut next = vec![Moment(0); hosts];
    let mut ways: VecDeque<(usize, HostId, Message)> = VecDeque::new();
    let (mut bytes, mut far, mut measured) = (0u64, 0u64, Duration::ZERO);
    let mut usable = 0.0;
    for at in 0..ms {
        let now = Moment(1 + at * MS);
        let counts = at >= ms / 2;
        let mut packets = std::mem::take(&mut ways);
        let mut woken: BTreeSet<usize> = BTreeSet::new();
        let began = Instant::now();
        while let Some((from, to, message)) = packets.pop_front() {
            let to = ids.iter().position(|id| *id == to).unwrap();
            escrows[to].receive(now, ids[from], &message);
            woken.insert(to);
        }
        for (host, escrow) in escrows.iter_mut().enumerate() {
            let measures = (at + host as u64 * 37).is_multiple_of(100);
            if measures {
                for &key in &keys {
                    // Twice the limit in all, and never quite the same.
                    let demand = share.times(180 + random.below(40), 100);
                    escrow.demand(now, key, demand, at == 0);
                }
            }
            if !measures && !woken.contains(&host) && now < next[host] {
                continue;
            }
            let out = escrow.poll(now);
            next[host] = out.next;
            for (to, message) in out.messages {
                let items = message.reports.len() + message.grants.len();
                let items = items + message.asks.len() + message.loans.len();
                let packets = 1 + items * 12 / 1_100;
                let said = if counts { 76 * packets as u64 + 12 * items as u64 } else { 0 };
                let its = ids.iter().position(|id| *id == to).unwrap();
                bytes += said;
                far += if region(its) == region(host) { 0 } else { said };
                ways.push_back((host, to, message));
            }
        }
        measured += if counts { began.elapsed() } else { Duration::ZERO };
        if at + 1 == ms {
            let of = |escrow: &Escrow| escrow.share_of(now, keys[0]).0.part();
            usable = escrows.iter().map(of).sum();
        }
    }
    let seconds = (ms - ms / 2) as f64 / 1_000.0;
    let each = |bytes: u64| bytes as f64 / seconds / hosts as f64;
    let time = measured.div_f64(seconds * hosts as f64);
    Cost { bytes: each(bytes), far: each(far), time, usable }
}

#[test]
fn what_hosts_say_is_bounded() {
    for regions in [1, 4] {
        let Cost { bytes, far, time, usable } = run(20, regions, 200, 4_000);
        println!(
            "20 hosts in {regions} regions, 200 keys: {bytes:.0} bytes/s, {far:.0} of them to other \
             regions, and {time:?}/s for each host, {usable} used"
        );
        assert!(bytes < 45_000.0, "{bytes}");
        assert!(usable > 0.98, "{usable}");
        // Of each key one report a second, and of each pair of hosts a message.
        assert!(far < 4_000.0, "{far}");
    }
}

#[test]
#[ignore = "takes a minute without optimisation; prints what a hundred hosts cost"]
fn a_hundred_hosts_with_a_thousand_keys() {
    for regions in [1, 4] {
        let Cost { bytes, far, time, usable } = run(100, regions, 1_000, 4_000);
        println!(
            "100 hosts in {regions} regions, 1000 keys: {bytes:.0} bytes/s, {far:.0} of them to other \
             regions, and {time:?}/s for each host, {usable} used"
        );
        assert!(bytes < 200_000.0, "{bytes}");
        assert!(usable > 0.98, "{usable}");
    }
}
