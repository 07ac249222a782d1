use std::collections::BTreeMap;

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use model::lists::{Action, Listing};
use model::{Limit, Partition, Scope, Target};

/// The wall clock at the beginning, ms.
const START: WallMs = 1_800_000_000_000;

const HOUR: i64 = 3_600_000;

fn limit(number: usize, pps: u64) -> (Item, Value) {
    let target: Target = format!("10.{}.{}.0/24", number / 256, number % 256).parse().unwrap();
    let limit = Limit::new(target, format!("{}pps", pps + 1).parse().unwrap(), None).unwrap();
    let scope = Scope::Cluster { partition: Partition::Conservative };
    (Item::Limit(target), Value::Limit(limit.scoped(scope).unwrap()))
}

fn denial(number: usize, until: Option<u32>) -> (Item, Value) {
    let net: IpNet = format!("192.0.2.{number}/32").parse().unwrap();
    let listing = Listing {
        added: 1,
        until,
        cluster: true,
        ..Listing::new(Action::Deny, None, Some("over 5pps".into())).unwrap()
    };
    (Item::Denied(net), Value::Denied(listing))
}

/// Hosts and what is on its way between them.
struct Net {
    replicas: Vec<Replica>,
    /// What each host has on its disk.
    disks: Vec<BTreeMap<String, String>>,
    /// How far each wall clock is ahead of the time.
    offsets: Vec<i64>,
    /// Time that has passed, ms.
    time: u64,
    /// From whom, to whom, and what.
    wire: Vec<(usize, usize, Vec<u8>)>,
    /// Who hears nobody and is heard by nobody.
    away: Vec<bool>,
    bytes: usize,
}

fn id(host: usize) -> HostId {
    HostId(host as u64 + 10)
}

impl Net {
    fn new(hosts: usize) -> Self {
        let members: Vec<_> = (0..hosts).map(id).collect();
        let replicas = members.iter().map(|me| {
            let mut replica = Replica::new([]);
            replica.set_members(*me, members.clone());
            replica
        });
        Self {
            replicas: replicas.collect(),
            disks: vec![BTreeMap::new(); hosts],
            offsets: vec![0; hosts],
            time: 1000,
            wire: Vec::new(),
            away: vec![false; hosts],
            bytes: 0,
        }
    }

    fn now(&self, host: usize) -> Now {
        let wall = (START + self.time).saturating_add_signed(self.offsets[host]);
        Now { wall, moment: Moment(self.time * 1_000_000) }
    }

    fn set(&mut self, host: usize, item: Item, value: Option<&Value>) -> bool {
        let wall = self.now(host).wall;
        let set = self.replicas[host].set(wall, item, value);
        self.save(host);
        set
    }

    /// Makes durable what a host has to.
    fn save(&mut self, host: usize) {
        for (key, row) in self.replicas[host].unsaved() {
            match row {
                Some(row) => drop(self.disks[host].insert(key, row)),
                None => drop(self.disks[host].remove(&key)),
            }
        }
        self.replicas[host].saved();
    }

    fn restart(&mut self, host: usize) {
        let kept = self.disks[host].iter().map(|(key, row)| (key.as_str(), row.as_str()));
        let mut replica = Replica::new(kept);
        replica.set_members(id(host), (0..self.replicas.len()).map(id));
        assert_eq!(replica.digest(), self.replicas[host].digest());
        self.replicas[host] = replica;
    }

    /// Lets some time pass, then everybody hears everybody's digest and sends what there is to send.
    fn pass(&mut self, ms: u64) {
        self.time += ms;
        let digests: Vec<_> = self.replicas.iter().map(Replica::digest).collect();
        for host in 0..self.replicas.len() {
            let now = self.now(host);
            for (from, digest) in digests.iter().enumerate() {
                if from != host && !self.away[host] && !self.away[from] {
                    self.replicas[host].heard(now, id(from), *digest);
                }
            }
            let packets = self.replicas[host].poll(now);
            self.save(host);
            for (to, bytes) in packets {
                assert!(bytes.len() <= MAX_PACKET_LEN, "{}", bytes.len());
                self.bytes += bytes.len();
                self.wire.push((host, (to.0 - 10) as usize, bytes));
            }
        }
    }

    fn deliver(&mut self, place: usize, keep: bool) {
        if self.wire.is_empty() {
            return;
        }
        let place = place % self.wire.len();
        let (from, to, bytes) =
            if keep { self.wire[place].clone() } else { self.wire.swap_remove(place) };
        if self.away[from] || self.away[to] {
            return;
        }
        let now = self.now(to);
        self.replicas[to].receive(now, id(from), &bytes).unwrap();
        self.save(to);
    }

    fn deliver_all(&mut self) {
        while !self.wire.is_empty() {
            self.deliver(0, false);
        }
    }

    /// Lets all that is said arrive until all agree. Returns how long that took, ms.
    fn settle(&mut self) -> u64 {
        let begun = self.time;
        loop {
            self.deliver_all();
            self.pass(100);
            let first = self.replicas.iter().zip(&self.away).find(|(_, away)| !**away);
            let digest = first.unwrap().0.digest();
            let mut present = self.replicas.iter().zip(&self.away).filter(|(_, away)| !**away);
            if self.wire.is_empty() && present.all(|(replica, _)| replica.digest() == digest) {
                return self.time - begun;
            }
            assert!(self.time - begun < 600_000, "they do not agree");
        }
    }

    /// What all agree on.
    fn state(&self) -> BTreeMap<Item, Value> {
        let states: Vec<BTreeMap<_, _>> =
            self.replicas.iter().map(|replica| replica.iter().collect()).collect();
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "{states:#?}");
        states[0].clone()
    }
}

/// What happens to hosts and the network.
#[derive(Clone, Debug)]
enum Step {
    Set(usize, usize, u64),
    Remove(usize, usize),
    Deny(usize, usize, bool),
    Pass(u64),
    Deliver(usize),
    Repeat(usize),
    Lose(usize),
    Jump(usize, i64),
    Restart(usize),
    Away(usize, bool),
}

const HOSTS: usize = 4;

fn step() -> impl Strategy<Value = Step> {
    let (host, number) = (0..HOSTS, 0..6usize);
    prop_oneof![
        6 => (host.clone(), number.clone(), 0..50u64).prop_map(|(h, n, r)| Step::Set(h, n, r)),
        4 => (host.clone(), number.clone()).prop_map(|(h, n)| Step::Remove(h, n)),
        3 => (host.clone(), number, any::<bool>()).prop_map(|(h, n, end)| Step::Deny(h, n, end)),
        6 => (1..2000u64).prop_map(Step::Pass),
        12 => any::<usize>().prop_map(Step::Deliver),
        3 => any::<usize>().prop_map(Step::Repeat),
        4 => any::<usize>().prop_map(Step::Lose),
        2 => (host.clone(), -HOUR..HOUR).prop_map(|(h, ms)| Step::Jump(h, ms)),
        1 => host.clone().prop_map(Step::Restart),
        2 => (host, any::<bool>()).prop_map(|(h, away)| Step::Away(h, away)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is lost, comes twice or late, and whatever clocks say: all come to know the same, and of
    /// each item that is what was said last by the order of stamps.
    #[test]
    fn all_come_to_agree(steps in prop::collection::vec(step(), 1..120)) {
        let mut net = Net::new(HOSTS);
        // The latest that was said of each item.
        let mut said: BTreeMap<Item, (Entry, Option<Value>)> = BTreeMap::new();
        let mut say = |net: &mut Net, host: usize, item: Item, value: Option<Value>| {
            if !net.set(host, item.clone(), value.as_ref()) {
                return;
            }
            let entry = net.replicas[host].table.get(&item).unwrap().clone();
            let latest = said.get(&item).is_none_or(|(before, _)| *before < entry);
            if latest {
                said.insert(item, (entry, value));
            }
        };
        for step in steps {
            match step {
                Step::Set(host, number, rate) => {
                    let (item, value) = limit(number, rate);
                    say(&mut net, host, item, Some(value));
                }
                Step::Remove(host, number) => say(&mut net, host, limit(number, 0).0, None),
                Step::Deny(host, number, ends) => {
                    let (item, value) = denial(number, ends.then_some((START / 1000) as u32 + 7200));
                    say(&mut net, host, item, Some(value));
                }
                Step::Pass(ms) => net.pass(ms),
                Step::Deliver(place) => net.deliver(place, false),
                Step::Repeat(place) => net.deliver(place, true),
                Step::Lose(place) => {
                    if !net.wire.is_empty() {
                        let place = place % net.wire.len();
                        net.wire.swap_remove(place);
                    }
                }
                // No clock is ever more than an hour off.
                Step::Jump(host, to) => net.offsets[host] = to,
                Step::Restart(host) => net.restart(host),
                Step::Away(host, away) => net.away[host] = away,
            }
        }
        net.away.fill(false);
        let took = net.settle();
        prop_assert!(took < 120_000, "{took} ms");
        let wanted: BTreeMap<_, _> =
            said.into_iter().filter_map(|(item, (_, value))| Some((item, value?))).collect();
        prop_assert_eq!(net.state(), wanted);
    }

    /// Whatever bytes come, nothing panics, and what cannot be read changes nothing.
    #[test]
    fn bytes_of_any_kind_are_survived(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        flips in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6), cut in any::<usize>(),
    ) {
        let mut net = Net::new(2);
        for number in 0..30 {
            let (item, value) = limit(number, 5);
            net.set(0, item, Some(&value));
        }
        net.set(0, limit(3, 0).0, None);
        net.replicas[0].compare(id(1), Part::ALL, &vec![7; PARTS]);
        net.pass(100);
        let now = net.now(1);
        let _ = net.replicas[1].receive(now, id(0), &noise);
        let packets: Vec<_> = net.wire.drain(..).map(|(.., bytes)| bytes).collect();
        prop_assert!(packets.len() >= 3);
        for packet in packets {
            let mut bytes = packet.clone();
            for (place, flip) in &flips {
                let place = place % bytes.len();
                bytes[place] ^= flip;
            }
            let before = net.replicas[1].digest();
            if net.replicas[1].receive(now, id(0), &bytes).is_err() {
                prop_assert_eq!(net.replicas[1].digest(), before);
            }
            bytes.truncate(cut % bytes.len());
            let _ = net.replicas[1].receive(now, id(0), &bytes);
            net.replicas[1].poll(now);
        }
    }
}

#[test]
fn a_change_reaches_all_at_once_and_loss_is_made_good() {
    let mut net = Net::new(5);
    let (item, value) = limit(1, 5);
    net.set(2, item.clone(), Some(&value));
    net.pass(0);
    assert_eq!(net.wire.len(), 4, "a packet for each");
    net.deliver_all();
    assert_eq!(net.state(), BTreeMap::from([(item.clone(), value.clone())]));
    assert_eq!(net.replicas[0].author(&item), Some(id(2)));
    // All packets of a removal are lost.
    net.set(4, item, None);
    net.pass(0);
    net.wire.clear();
    let took = net.settle();
    assert!(net.state().is_empty() && took <= 3000, "{took} ms");
    assert!(net.replicas.iter().all(|replica| replica.report().removed == 1));
}

#[test]
fn who_joins_gets_all_and_one_difference_costs_little() {
    let mut net = Net::new(2);
    net.away[1] = true;
    for number in 0..10_000 {
        let (item, value) = limit(number, 5);
        assert!(net.set(0, item, Some(&value)));
    }
    net.pass(0);
    net.wire.clear();
    net.away[1] = false;
    net.bytes = 0;
    let took = net.settle();
    println!("10,000 limits: {took} ms, {} bytes", net.bytes);
    assert_eq!(net.state().len(), 10_000);
    assert!(net.bytes < 10_000 * 150);
    // One of them is changed, and nobody hears it.
    let (item, value) = limit(777, 9);
    net.set(0, item.clone(), Some(&value));
    net.pass(0);
    net.wire.clear();
    net.bytes = 0;
    let took = net.settle();
    println!("one of them: {took} ms, {} bytes", net.bytes);
    assert_eq!(net.state()[&item], value);
    assert!(net.bytes < 8 * MAX_PACKET_LEN && took < 2000, "{took} ms, {} bytes", net.bytes);
}

#[test]
fn what_was_removed_stays_so_when_a_host_comes_back_after_weeks() {
    let mut net = Net::new(3);
    let items: Vec<_> = (0..4).map(|number| limit(number, 5)).collect();
    items.iter().for_each(|(item, value)| assert!(net.set(0, item.clone(), Some(value))));
    net.settle();
    net.away[2] = true;
    net.set(0, items[0].0.clone(), None);
    net.set(1, items[1].0.clone(), None);
    // Who is away says something, too.
    let (theirs, value) = limit(9, 1);
    net.set(2, items[3].0.clone(), Some(&limit(3, 8).1));
    net.settle();
    for _ in 0..16 {
        net.pass(KEPT_MS / 8);
        net.wire.clear();
    }
    assert_eq!(net.replicas[0].report().removed, 0, "the removals are forgotten");
    net.set(2, theirs.clone(), Some(&value));
    net.away[2] = false;
    let took = net.settle();
    let state = net.state();
    println!("after two weeks: {took} ms");
    assert!(!state.contains_key(&items[0].0) && !state.contains_key(&items[1].0), "{state:?}");
    // What is later than what was forgotten is taken.
    assert_eq!((state.len(), state.get(&theirs)), (3, Some(&value)));
    assert_eq!(state[&items[3].0], limit(3, 8).1);
    assert!(net.replicas.iter().any(|replica| replica.report().refused.forgotten > 0));
    // A fourth one that has only heard who comes back forgets it with the others.
    for _ in 0..16 {
        net.pass(KEPT_MS / 8);
        net.deliver_all();
    }
    net.settle();
    assert_eq!(net.state().len(), 3);
    assert!(net.replicas.iter().all(|replica| replica.report().removed == 0));
}

#[test]
fn a_new_host_that_hears_the_one_from_long_ago_first_is_put_right() {
    let mut net = Net::new(3);
    net.away[1] = true;
    let (item, value) = limit(1, 5);
    let (other, stays) = limit(2, 5);
    net.set(0, item.clone(), Some(&value));
    net.set(0, other.clone(), Some(&stays));
    net.settle();
    net.away[2] = true;
    net.set(0, item.clone(), None);
    for _ in 0..16 {
        net.pass(KEPT_MS / 8);
        net.wire.clear();
    }
    // 1 knows nothing and hears only 2, which knows the limit.
    (net.away[0], net.away[1], net.away[2]) = (true, false, false);
    net.settle();
    assert!(net.replicas[1].get(&item).is_some());
    net.away.fill(false);
    net.settle();
    assert_eq!(net.state(), BTreeMap::from([(other, stays)]));
}

#[test]
fn what_has_ended_is_forgotten_a_week_later() {
    let mut net = Net::new(2);
    let (item, value) = denial(1, Some((START / 1000) as u32 + 60));
    net.set(0, item, Some(&value));
    net.settle();
    net.pass(KEPT_MS);
    assert_eq!(net.state().len(), 1);
    net.pass(62_000);
    net.settle();
    assert!(net.state().is_empty());
    assert_eq!(net.replicas[0].report().removed, 0);
}

#[test]
fn clocks_that_are_far_ahead_are_refused_and_told() {
    let mut net = Net::new(2);
    net.offsets[0] = HOUR;
    let (item, value) = limit(1, 5);
    net.set(0, item.clone(), Some(&value));
    net.settle();
    // Behind by an hour, its changes still come after what it has heard.
    let (_, later) = limit(1, 6);
    net.set(1, item.clone(), Some(&later));
    net.settle();
    assert_eq!(net.state()[&item], later);
    let ahead = net.replicas[1].report().clock_ahead_ms as i64;
    assert!((HOUR - 10_000..=HOUR).contains(&ahead), "{ahead}");
    net.offsets[0] = 30 * 24 * HOUR;
    let (far, _) = limit(2, 5);
    net.set(0, far.clone(), Some(&value));
    for _ in 0..100 {
        net.pass(100);
        net.deliver_all();
    }
    assert_eq!(net.replicas[1].get(&far), None);
    let report = net.replicas[1].report();
    assert!(report.refused.ahead > 0 && report.differing == 1, "{report:?}");
}

#[test]
fn a_change_that_could_not_be_stored_is_undone() {
    let mut net = Net::new(2);
    let ((item, value), (_, other)) = (limit(1, 5), limit(1, 6));
    net.set(0, item.clone(), Some(&value));
    let digest = net.replicas[0].digest();
    let (new, _) = denial(1, None);
    assert!(net.replicas[0].set(START, item.clone(), Some(&other)));
    assert!(net.replicas[0].set(START, item.clone(), None));
    assert!(net.replicas[0].set(START, new, Some(&denial(1, None).1)));
    assert_eq!(net.replicas[0].unsaved().len(), 2);
    net.replicas[0].undo();
    assert_eq!((net.replicas[0].digest(), net.replicas[0].unsaved().len()), (digest, 0));
    assert_eq!(net.replicas[0].get(&item), Some(value));
    net.restart(0);
    net.settle();
    assert_eq!(net.state().len(), 1);
}

#[test]
fn what_makes_no_sense_is_counted() {
    let mut net = Net::new(2);
    let now = net.now(1);
    let entry = |content: &str| Entry {
        stamp: Stamp::at(START),
        host: 10,
        content: Content::Is(content.into()),
    };
    let (item, value) = limit(1, 5);
    let local = value.text().replace(r#","scope":{"cluster":{"partition":"conservative"}}"#, "");
    let entries = vec![
        (item.clone(), entry("{}")),
        (item.clone(), entry(&local)),
        (item.clone(), entry(&value.text())),
    ];
    let packet = |body| Packet { forgotten: Stamp::default(), body }.bytes();
    let applied = net.replicas[1].receive(now, id(0), &packet(Body::Entries(entries))).unwrap();
    assert_eq!(applied, [Applied { item, value: Some(value), by: id(0) }]);
    let good = packet(Body::Want(Part::ALL, 1));
    let mut other = good.clone();
    other[0] += 1;
    assert_eq!(net.replicas[1].receive(now, id(0), &other), Err(PacketError::Version(other[0])));
    for wrong in [&b""[..], &good[..good.len() - 1], &[&good[..], b"x"].concat()] {
        assert_eq!(net.replicas[1].receive(now, id(0), wrong), Err(PacketError::Malformed));
    }
    let refused = net.replicas[1].report().refused;
    assert_eq!((refused.odd, refused.packets), (2, 4));
    assert_eq!(net.replicas[1].odd(), None, "what was said last is understood");
}

#[test]
fn what_a_later_version_says_is_named_and_changes_nothing() {
    let mut net = Net::new(2);
    let (item, value) = limit(1, 5);
    let send = |net: &mut Net, at: u64, text: &str| {
        let content = Content::Is(text.into());
        let entries =
            vec![(item.clone(), Entry { stamp: Stamp::at(START + at), host: 10, content })];
        let packet = Packet { forgotten: Stamp::default(), body: Body::Entries(entries) }.bytes();
        let now = net.now(1);
        net.replicas[1].receive(now, id(0), &packet).unwrap()
    };
    assert_eq!(send(&mut net, 1, &value.text()).len(), 1);
    let later = value.text().replace("conservative", "lucky");
    assert_eq!(send(&mut net, 2, &later), []);
    let (of, why) = net.replicas[1].odd().unwrap();
    assert!(*of == item && why.contains("lucky") && why.contains("available"), "{why}");
    assert_eq!(net.replicas[1].get(&item), Some(value.clone()));
    assert_eq!(send(&mut net, 3, &value.text().replace("6pps", "7pps")).len(), 1);
    assert_eq!(net.replicas[1].odd(), None);
}
