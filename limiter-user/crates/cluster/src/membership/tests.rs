//! Datagrams that nobody who is sane sends. What members make of each other's is tested in `sim`.

use super::*;
use crate::wire::Epoch;

fn identity(number: u8) -> Identity {
    let epoch = Epoch::starting(None, 1, u32::from(number) + 1);
    let address = ([10, 0, 0, number], 7946).into();
    Identity::new(
        HostId(u64::from(number) + 1),
        &format!("host-{number}"),
        "default",
        address,
        epoch,
        100,
    )
}

/// Lets all hosts talk for a while, in steps of ten milliseconds.
fn talk(hosts: &mut [Membership], now: &mut Moment, steps: usize) {
    for _ in 0..steps {
        *now = now.after(Duration::from_millis(10));
        hosts.iter_mut().for_each(|host| host.poll(*now));
        deliver(hosts, *now);
    }
}

/// Hands over what hosts have said; what is for a host that is not there is lost.
fn deliver(hosts: &mut [Membership], now: Moment) {
    for number in 0..hosts.len() {
        let from = hosts[number].me().host();
        while let Some((to, bytes)) = hosts[number].outgoing() {
            if let Some(host) = hosts.iter_mut().find(|host| host.me().address == to.address) {
                host.receive(now, from, &bytes);
            }
        }
    }
}

#[test]
fn a_host_that_was_started_again_is_not_suspected_for_its_former_run() {
    let mut now = Moment(1_000_000_000);
    let mut hosts: Vec<_> = (0..2).map(|n| Membership::new(now, identity(n), n.into())).collect();
    hosts[0].add_peer(now, identity(1));
    talk(&mut hosts, &mut now, 100);
    assert_eq!(hosts[0].members().len(), 2);

    // It stops without a word.
    while hosts[0].suspects().is_empty() {
        talk(&mut hosts[..1], &mut now, 1);
        assert!(now < Moment(60_000_000_000), "nobody suspects it");
    }
    let mut again = identity(1);
    again.epoch = Epoch::starting(None, 1, 100);
    assert!(again.epoch > identity(1).epoch);
    hosts[1] = Membership::new(now, again.clone(), 7);
    hosts[1].add_peer(now, identity(0));
    // Before the next sweep: nothing is polled.
    (0..4).for_each(|_| deliver(&mut hosts, now));
    assert_eq!(hosts[0].members().get(&again.host()), Some(&again));
    assert!(hosts[0].suspects().is_empty());
}

#[test]
fn a_machine_that_is_installed_anew_takes_the_place_of_its_former_self() {
    let mut now = Moment(1_000_000_000);
    let mut hosts: Vec<_> = (0..3).map(|n| Membership::new(now, identity(n), n.into())).collect();
    (1..3).for_each(|other| hosts[0].add_peer(now, identity(other)));
    talk(&mut hosts, &mut now, 200);
    let former = identity(1);
    let anew = |address| {
        let epoch = Epoch::starting(None, 1, 100);
        Identity::new(HostId(9), former.name(), "default", address, epoch, 100)
    };
    hosts[1] = Membership::new(now, anew(former.address), 7);
    hosts[1].add_peer(now, identity(0));
    talk(&mut hosts, &mut now, 100);
    for host in &hosts {
        let members = host.members();
        assert_eq!(members.len(), 3);
        assert!(!members.contains_key(&former.host()) && host.refused().is_empty());
        assert_eq!(called(members, HostId(9)), "host-1");
        assert_eq!(called(members, HostId(10)), "000000000000000a");
    }
    // At another address it is there beside its former self.
    let members = [former.clone(), anew(identity(4).address)].map(|it| (it.host(), it)).into();
    assert_eq!(called(&members, HostId(9)), "host-1 at 10.0.0.4:7946");
    assert_eq!(called(&members, former.host()), "host-1 at 10.0.0.1:7946");
}

#[test]
fn no_bytes_make_it_panic_or_grow() {
    let mut random = SmallRng::seed_from_u64(3);
    let mut now = Moment(1_000_000_000);
    let mut hosts: Vec<_> = (0..4).map(|n| Membership::new(now, identity(n), n.into())).collect();
    let mut corpus = Vec::new();
    for number in 0..4 {
        let to = identity((number + 1) % 4);
        let host = &mut hosts[usize::from(number)];
        host.add_peer(now, to.clone());
        host.add_peer(now, identity(30));
        host.send((to, Message::page(1, [identity(1), identity(2)].iter())));
        host.send((identity(1), Message::Pull { ticket: 3, hash: 1, after: None }));
    }
    while corpus.len() < 200 {
        now = now.after(Duration::from_millis(10));
        for number in 0..4 {
            hosts[number].poll(now);
            let from = hosts[number].me().host();
            while let Some((to, bytes)) = hosts[number].outgoing() {
                if let Some(host) = hosts.iter_mut().find(|host| host.me().address == to.address) {
                    host.receive(now, from, &bytes);
                }
                corpus.push(bytes);
            }
        }
    }
    let host = &mut hosts[2];
    assert_eq!(host.members().len(), 4);
    for _ in 0..100_000 {
        let mut bytes = corpus[random.random_range(0..corpus.len())].clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..=bytes.len());
            match random.random_range(0..4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, random.random()),
                _ if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
                _ => {}
            }
        }
        host.receive(now, identity(1).host(), &bytes);
        host.outgoing.clear();
    }
    assert!(host.errors() > 1000 && host.directory.events.len() <= directory::MAX_EVENTS);
    host.poll(now.after(Duration::from_secs(60)));
}
