use std::time::Duration;

use super::greeter::MAX_ANSWERS;
use super::*;
use crate::Message;
use crate::wire::{Epoch, KEY, Key, Topic, Versions};

const CLUSTER: ClusterId = ClusterId(0x1234_5678_9abc_def0);

pub(super) fn ring(byte: u8) -> KeyRing {
    KeyRing::new(Key::new([byte; KEY]))
}

pub(super) fn identity(name: &str, port: u16, second: u64) -> Identity {
    let epoch = Epoch::starting(None, second, u32::from(port) + second as u32);
    let host = HostId(siphasher::sip::SipHasher24::new().hash(name.as_bytes()));
    Identity::new(host, name, "default", ([192, 0, 2, 1], port).into(), epoch, 100)
}

/// What tests look at in parts of it.
impl Link {
    pub(super) fn me(&self) -> &Identity {
        self.membership.me()
    }

    pub(super) fn cluster(&self) -> Option<ClusterId> {
        self.affiliation.cluster
    }

    fn others(&self) -> &Others {
        &self.affiliation.others
    }
}

/// Links that hear each other at once.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) now: Moment,
    pub(super) links: Vec<Link>,
    /// Every frame that was sent, from whom and where to.
    pub(super) seen: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
}

impl Wire {
    pub(super) fn start(
        &mut self,
        me: Identity,
        cluster: Option<ClusterId>,
        ring: KeyRing,
    ) -> usize {
        self.start_expecting(me, cluster, ring, 0)
    }

    fn start_expecting(
        &mut self,
        me: Identity,
        cluster: Option<ClusterId>,
        ring: KeyRing,
        expect: u32,
    ) -> usize {
        let number = self.links.len();
        let proposal = ClusterId(100 - number as u64);
        let bootstrap = Bootstrap { expect, proposal, vote: None };
        let agreement = Agreement::new((32, 64));
        let settings =
            Settings { me, cluster, bootstrap, agreement, ring, seed: number as u64, salt: || 0 };
        self.links.push(Link::new(self.now, settings));
        number
    }

    /// A host of the cluster starts again, and remembers nothing.
    fn restart(&mut self, number: usize, me: Identity) {
        self.start(me, Some(CLUSTER), ring(1));
        self.links.swap_remove(number);
    }

    /// Two that know each other.
    pub(super) fn pair() -> Self {
        let mut wire = Self { now: Moment(1_000_000_000), ..Self::default() };
        wire.start(identity("a", 1, 100), Some(CLUSTER), ring(1));
        wire.start(identity("b", 2, 100), None, ring(1));
        let seed = vec![wire.address(0)];
        wire.links[1].set_seeds(wire.now, seed);
        wire.run(2000);
        assert!(wire.links.iter().all(|link| link.members().len() == 2));
        wire
    }

    pub(super) fn address(&self, number: usize) -> SocketAddr {
        self.links[number].me().address
    }

    pub(super) fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now = self.now.after(Duration::from_millis(1));
            for number in 0..self.links.len() {
                if self.links[number].next() <= self.now {
                    self.links[number].poll(self.now);
                }
                let from = self.address(number);
                self.handle_command(number);
                while let Some((to, frame)) = self.links[number].outgoing() {
                    self.seen.push((from, to, frame.clone()));
                    let address = |link: &&mut Link| link.me().address == to;
                    if let Some(link) = self.links.iter_mut().find(address) {
                        link.receive(self.now, from, &mut frame.clone());
                    }
                }
            }
        }
    }

    /// Keeps what a host has to keep, and tells it.
    fn handle_command(&mut self, number: usize) {
        let link = &mut self.links[number];
        let asked = |delivery: &Delivery| {
            matches!(delivery, Delivery::Invited(_) | Delivery::Bootstrap(..))
        };
        let all: Vec<_> = std::mem::take(&mut link.deliveries).into();
        for delivery in all.iter().filter(|delivery| asked(delivery)) {
            let proposal = link.affiliation.bootstrap.proposal;
            match delivery {
                Delivery::Invited(cluster) if link.cluster().is_none() => {
                    link.belong(self.now, *cluster);
                }
                Delivery::Bootstrap(Step::Found, _) if link.cluster().is_none() => {
                    link.belong(self.now, proposal);
                }
                Delivery::Bootstrap(Step::Vote(vote), _) => link.voted(self.now, *vote),
                _ => {}
            }
        }
        link.deliveries.extend(all);
    }

    pub(super) fn deliveries(&mut self, number: usize) -> Vec<Delivery> {
        std::iter::from_fn(|| self.links[number].delivery()).collect()
    }

    fn rejected(&self, number: usize, rejection: Rejection) -> u64 {
        self.links[number].counts().rejected(rejection).packets
    }
}

fn said(content: &Content) -> impl Fn(&Delivery) -> bool {
    let content = content.clone();
    move |delivery| matches!(delivery, Delivery::Said { content: said, .. } if *said == content)
}

#[test]
fn a_host_is_let_in_by_a_seed_and_is_heard() {
    let mut wire = Wire::pair();
    assert_eq!(wire.links[1].cluster(), Some(CLUSTER));
    assert!(wire.deliveries(1).contains(&Delivery::Invited(CLUSTER)));
    let message = Message { sent: wire.now, ..Message::default() };
    let content = Content::Shares(Box::new(message));
    let [a, b] = [0, 1].map(|number| wire.links[number].me().host());
    assert!(wire.links[1].send(a, Some(77), &content));
    wire.run(1);
    let expected = Delivery::Said { from: b, digest: Some(77), content };
    assert!(wire.deliveries(0).contains(&expected));
    assert!(!wire.links[1].send(b, None, &Content::Other(Topic::Limits, vec![])));
    assert!(!wire.links[1].send(HostId(5), None, &Content::Other(Topic::Limits, vec![])));
    assert_eq!(wire.links[1].counts().unsent, 2);
}

#[test]
fn nothing_that_was_recorded_is_heard_again() {
    let mut wire = Wire::pair();
    let content = Content::Other(Topic::Limits, vec![1, 2, 3]);
    let a = wire.links[0].me().host();
    wire.links[1].send(a, None, &content);
    wire.run(3000);
    wire.deliveries(0);
    let (recorded, target) = (wire.seen.clone(), wire.address(0));
    let to_a: Vec<_> = recorded.into_iter().filter(|(_, to, _)| *to == target).collect();
    assert!(to_a.len() > 5);
    let replay = |wire: &mut Wire| {
        let before = wire.links[0].frames.opener.clone();
        for (from, _, frame) in &to_a {
            wire.links[0].receive(wire.now, *from, &mut frame.clone());
        }
        assert_eq!(wire.links[0].frames.opener, before);
        assert!(wire.deliveries(0).iter().all(|delivery| !said(&content)(delivery)));
    };
    replay(&mut wire);
    assert!(wire.rejected(0, Rejection::Replayed) > 4);
    // This host is started again, and remembers nothing of what it has heard.
    wire.restart(0, identity("a", 1, 200));
    replay(&mut wire);
    assert!(wire.rejected(0, Rejection::StaleRecipient) > 4);
    assert_eq!(wire.links[0].members().len(), 1);
}

#[test]
fn a_host_that_is_started_again_is_known_at_once_though_it_has_no_seed() {
    let mut wire = Wire::pair();
    let me = identity("a", 1, 200);
    let settings = Settings {
        me: me.clone(),
        cluster: Some(CLUSTER),
        bootstrap: Bootstrap::NONE,
        agreement: Agreement::new((32, 64)),
        ring: ring(1),
        seed: 9,
        salt: || 0,
    };
    wire.links[0] = Link::new(wire.now, settings);
    wire.run(3000);
    assert!(wire.links.iter().all(|link| link.members().get(&me.host()) == Some(&me)));
    let b = wire.links[1].me().host();
    let content = Content::Other(Topic::Limits, vec![4]);
    wire.links[0].send(b, None, &content);
    wire.run(1);
    assert!(wire.deliveries(1).iter().any(said(&content)));
}

#[test]
fn strangers_are_counted_and_not_heard() {
    let mut wire = Wire::pair();
    let seed = vec![wire.address(0)];
    // Another key, another cluster with the same key, and none.
    let key = wire.start(identity("c", 3, 100), None, ring(2));
    let cluster = wire.start(identity("d", 4, 100), Some(ClusterId(5)), ring(1));
    wire.links[key].set_seeds(wire.now, seed.clone());
    wire.links[cluster].set_seeds(wire.now, seed);
    wire.run(3000);
    assert!(wire.rejected(0, Rejection::Key) > 0 && wire.rejected(0, Rejection::Cluster) > 0);
    assert_eq!(wire.links[0].members().len(), 2);
    let from = wire.address(key);
    for (mut datagram, rejection) in [
        (b"M-SEARCH * HTTP/1.1".to_vec(), Rejection::Foreign),
        (vec![], Rejection::Short),
        (vec![0xc7; 1201], Rejection::Long),
        (vec![0xc7; 200], Rejection::Protocol),
    ] {
        wire.links[0].receive(wire.now, from, &mut datagram);
        assert_eq!(wire.rejected(0, rejection), 1);
    }
    let told = wire.links[0].counts().rejected(Rejection::Key);
    assert_eq!(told.latest.unwrap().1, from);
}

#[test]
fn of_two_hosts_of_one_ledger_one_is_heard() {
    let mut wire = Wire::pair();
    let second = wire.start(identity("b", 3, 300), None, ring(1));
    let seed = vec![wire.address(0)];
    wire.links[second].set_seeds(wire.now, seed);
    wire.run(4000);
    let conflict = |delivery: &Delivery| matches!(delivery, Delivery::Member(Event::Conflict { kept, .. }) if kept.address.port() == 2);
    assert!((0..3).all(|number| wire.deliveries(number).iter().any(conflict)));
    let a = wire.links[0].me().host();
    let [first, other] = [7, 8].map(|byte| Content::Other(Topic::Limits, vec![byte]));
    wire.links[1].send(a, None, &first);
    wire.links[second].send(a, None, &other);
    wire.run(1);
    let deliveries = wire.deliveries(0);
    assert!(deliveries.iter().any(said(&first)) && !deliveries.iter().any(said(&other)));
    assert_eq!(wire.rejected(0, Rejection::UnknownMember), 1);
}

#[test]
fn keys_are_changed_while_hosts_talk() {
    let mut wire = Wire::pair();
    let ids = [0, 1].map(|number| wire.links[number].me().host());
    let new = Key::new([9; KEY]);
    let steps: [fn(&mut KeyRing, Key); 3] = [
        KeyRing::accept,
        |ring, _| {
            ring.rotate();
        },
        |ring, _| ring.retire(),
    ];
    for step in steps {
        for number in 0..2 {
            step(wire.links[number].ring(), new.clone());
            for (from, to) in [(0, 1), (1, 0)] {
                let content = Content::Other(Topic::Counters, vec![number as u8, from as u8]);
                wire.links[from].send(ids[to], None, &content);
                wire.run(1);
                assert!(wire.deliveries(to).iter().any(said(&content)));
            }
        }
        wire.run(2000);
    }
    assert_eq!(*wire.links[0].ring(), ring(9));
    assert_eq!(wire.rejected(0, Rejection::Key) + wire.rejected(1, Rejection::Key), 0);
}

#[test]
fn what_nobody_takes_is_bounded() {
    let mut wire = Wire::pair();
    let a = wire.links[0].me().host();
    for _ in 0..MAX_DELIVERIES + 100 {
        wire.links[1].send(a, None, &Content::Other(Topic::Queries, vec![1]));
    }
    wire.run(1);
    assert!(wire.rejected(0, Rejection::QueueFull) >= 100);
    assert!(wire.links[0].deliveries.len() <= 2 * MAX_DELIVERIES);
}

#[test]
fn answers_to_hellos_are_bounded() {
    let mut wire = Wire::pair();
    let stranger = wire.start(identity("c", 3, 100), None, ring(1));
    let address = wire.address(0);
    for _ in 0..5000 {
        let version = Versions::THESE.newest;
        wire.links[stranger].hello(Run { address, number: 0, version });
    }
    let before = wire.links[0].counts().sent;
    wire.run(1);
    assert!(wire.links[0].counts().sent - before < u64::from(MAX_ANSWERS) + 20);
}

/// Understands these versions.
fn of_versions(mut me: Identity, oldest: u8, newest: u8) -> Identity {
    me.versions = Versions { oldest, newest };
    me
}

#[test]
fn a_cluster_is_upgraded_host_by_host_and_back() {
    let mut wire = Wire { now: Moment(1_000_000_000), ..Wire::default() };
    let me = |number: usize, second, newest| {
        of_versions(identity(&format!("host-{number}"), 1 + number as u16, second), 6, newest)
    };
    let start = |wire: &mut Wire, number: usize| {
        let others = (0..3).filter(|other| *other != number).map(|other| wire.address(other));
        let seeds = others.collect();
        wire.links[number].set_seeds(wire.now, seeds);
    };
    (0..3).for_each(|number| _ = wire.start(me(number, 100, 6), Some(CLUSTER), ring(1)));
    (0..3).for_each(|number| start(&mut wire, number));
    wire.run(2_000);
    for (step, newest) in [7, 7, 7, 6, 6, 6].into_iter().enumerate() {
        let number = step % 3;
        wire.restart(number, me(number, 200 + step as u64, newest));
        start(&mut wire, number);
        wire.run(1_000);
        wire.seen.clear();
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            wire.deliveries(to);
            let host = wire.links[to].me().host();
            let content = Content::Other(Topic::Limits, vec![step as u8]);
            assert!(wire.links[from].send(host, None, &content));
            wire.run(5);
            assert!(wire.deliveries(to).iter().any(said(&content)), "{from} to {to} in {step}");
        }
        wire.run(2_000);
        // Both ways, and all that members say: in the newest version that both understand.
        for (from, to, frame) in &wire.seen {
            let newest = |at: &SocketAddr| {
                let link = wire.links.iter().find(|link| link.me().address == *at);
                link.expect("one of three").me().versions.newest
            };
            assert_eq!(frame[1], newest(from).min(newest(to)), "{from} to {to} in {step}");
        }
        assert!(wire.links.iter().all(|link| link.members().len() == 3));
        let refused = (0..3).map(|number| wire.rejected(number, Rejection::Protocol)).sum::<u64>();
        assert_eq!(refused, 0);
    }
}

#[test]
fn a_seed_that_is_a_version_ahead_is_found() {
    let mut wire = Wire { now: Moment(1_000_000_000), ..Wire::default() };
    let ahead = of_versions(identity("ahead", 1, 100), 7, 8);
    wire.start(ahead, Some(CLUSTER), ring(1));
    wire.start(of_versions(identity("here", 2, 100), 6, 7), None, ring(1));
    wire.start(of_versions(identity("behind", 3, 100), 5, 6), None, ring(1));
    let seed = vec![wire.address(0)];
    for number in [1, 2] {
        wire.links[number].set_seeds(wire.now, seed.clone());
    }
    wire.run(3_000);
    assert_eq!(wire.links[1].cluster(), Some(CLUSTER));
    assert!(wire.links[0].members().len() == 2 && wire.links[1].members().len() == 2);
    // Two versions apart have no common one.
    assert!(wire.links[2].cluster().is_none() && wire.links[2].members().len() == 1);
    assert!(wire.rejected(0, Rejection::Protocol) > 3);
}

/// All have the same seeds: themselves.
fn expecting(wire: &mut Wire, expects: &[u32]) {
    wire.now = Moment(1_000_000_000);
    for (at, expect) in expects.iter().enumerate() {
        let me = identity(&format!("host-{at}"), at as u16 + 1, 100);
        wire.start_expecting(me, None, ring(1), *expect);
    }
    let seeds: Vec<_> = (0..expects.len()).map(|number| wire.address(number)).collect();
    let now = wire.now;
    wire.links.iter_mut().for_each(|link| link.set_seeds(now, seeds.clone()));
}

#[test]
fn hosts_that_expect_each_other_found_one_cluster() {
    let mut wire = Wire::default();
    expecting(&mut wire, &[3, 3, 3]);
    wire.run(5000);
    // The last one has the least number (see `start_expecting`).
    assert!(wire.links.iter().all(|link| link.cluster() == Some(ClusterId(98))));
    assert!(wire.links.iter().all(|link| link.members().len() == 3 && link.others().is_empty()));
    let founded = |delivery: &Delivery| matches!(delivery, Delivery::Bootstrap(Step::Found, _));
    let founders: Vec<_> = (0..3).filter(|at| wire.deliveries(*at).iter().any(founded)).collect();
    assert_eq!(founders, [2]);
    // Who comes later joins, whatever it expects.
    let late = wire.start_expecting(identity("late", 9, 100), None, ring(1), 2);
    let seed = vec![wire.address(0)];
    wire.links[late].set_seeds(wire.now, seed);
    wire.run(2000);
    assert_eq!(wire.links[late].cluster(), Some(ClusterId(98)));
    assert!(!wire.deliveries(late).iter().any(founded));
}

#[test]
fn hosts_that_do_not_see_enough_others_wait() {
    let mut wire = Wire::default();
    // One of them expects more, and one takes no part.
    expecting(&mut wire, &[2, 3, 0]);
    wire.run(20_000);
    assert!(wire.links.iter().all(|link| link.cluster().is_none()));
    assert!(wire.links.iter().all(|link| link.others().len() == 2), "they know of each other");
    assert!((0..3).all(|at| wire.deliveries(at).is_empty()));
}

#[test]
fn clusters_with_one_key_get_to_know_each_other() {
    let mut wire = Wire::pair();
    let other = wire.start(identity("d", 4, 100), Some(ClusterId(5)), ring(1));
    let seed = vec![wire.address(0)];
    wire.links[other].set_seeds(wire.now, seed);
    wire.run(3000);
    let told = |wire: &Wire, number: usize, of: usize| {
        wire.links[number].others().get(&wire.address(of)).and_then(|other| other.cluster)
    };
    assert_eq!(told(&wire, other, 0), Some(CLUSTER));
    // It has no seed, and hears of it all the same.
    assert_eq!(told(&wire, 0, other), Some(ClusterId(5)));
    assert_eq!(wire.links[0].members().len(), 2);
    wire.run(120_000);
    assert_eq!(told(&wire, 0, other), Some(ClusterId(5)), "as long as it is there");
    // It has been taken out, and comes back without a cluster.
    let me = identity("d", 4, 200);
    let settings = Settings {
        me,
        cluster: None,
        bootstrap: Bootstrap::NONE,
        agreement: Agreement::new((32, 64)),
        ring: ring(1),
        seed: 9,
        salt: || 0,
    };
    wire.links[other] = Link::new(wire.now, settings);
    wire.run(15_000);
    assert!(wire.links.iter().all(|link| link.members().len() == 3), "a member has greeted it");
    assert!(wire.links.iter().all(|link| link.others().is_empty()));
}

#[test]
fn hosts_that_disagree_refuse_each_other_and_know_why() {
    let mut wire = Wire::pair();
    let other = wire.start(identity("d", 4, 100), None, ring(1));
    wire.links[other].affiliation.agreement = Agreement::new((32, 56));
    let seed = vec![wire.address(0)];
    wire.links[other].set_seeds(wire.now, seed);
    wire.run(5000);
    assert_eq!(wire.links[other].cluster(), None);
    assert_eq!(wire.links[0].members().len(), 2);
    for (one, another, prefixes) in [(0, other, (32, 56)), (other, 0, (32, 64))] {
        assert!(wire.rejected(one, Rejection::Disagreement) > 0);
        let known = &wire.links[one].others()[&wire.address(another)];
        assert_eq!(known.agreement.prefixes, prefixes);
    }
    // Nor do they found one together.
    let mut wire = Wire::default();
    expecting(&mut wire, &[2, 2]);
    wire.links[1].affiliation.agreement = Agreement::new((24, 64));
    wire.run(10_000);
    assert!(wire.links.iter().all(|link| link.cluster().is_none()));
    // One that was a member and comes back otherwise is none any more.
    let mut wire = Wire::pair();
    let agreement = Agreement::new((24, 64));
    let me = identity("b", 2, 200);
    let settings = Settings {
        me,
        cluster: Some(CLUSTER),
        bootstrap: Bootstrap::NONE,
        agreement,
        ring: ring(1),
        seed: 9,
        salt: || 0,
    };
    wire.links[1] = Link::new(wire.now, settings);
    wire.run(20_000);
    assert!(wire.links.iter().all(|link| link.members().len() == 1));
}

#[test]
fn a_host_without_seeds_joins_when_it_is_the_seed_of_a_member() {
    let mut wire = Wire::pair();
    let waiting = wire.start(identity("w", 5, 100), None, ring(1));
    wire.run(3000);
    assert_eq!(wire.links[waiting].cluster(), None);
    let seed = vec![wire.address(waiting)];
    wire.links[0].set_seeds(wire.now, seed);
    wire.run(3000);
    assert!(wire.links.iter().all(|link| link.members().len() == 3));
}
