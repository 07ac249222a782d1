//! Hosts that change keys over a network that loses, delays and doubles, and crash meanwhile.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

const MS: u64 = 1_000_000;
/// The longest that a message takes, ms.
const SLOWEST: u64 = 1500;
/// How long it takes at most until a host is known to be there, or not to be, ms.
const NOTICED: u64 = 3000;

struct Host {
    id: HostId,
    /// Its disk.
    disk: KeyState,
    /// Its daemon, if it runs, what its link goes by, and which run it is.
    daemon: Option<Rotation>,
    ring: KeyState,
    run: u64,
    /// Whom it sees, since when.
    view: BTreeMap<usize, u64>,
    /// A frame has come that was sealed with the other key.
    heard: Option<u16>,
}

/// What is on its way: when it comes, from whom, to whom and to which run of it, sealed with which key, and what it
/// says, if that is of keys.
type Way = (u64, usize, usize, u64, Key, Option<Vec<u8>>);

struct World {
    now: u64,
    hosts: Vec<Host>,
    ways: Vec<Way>,
    random: SmallRng,
    loss: f64,
    /// The chance of a crash in a step.
    deadly: f64,
    keys: u8,
    /// Hosts below this one and the others do not reach each other.
    cut: usize,
}

fn key(number: u8) -> Key {
    let mut key = [7; wire::KEY];
    key[0] = number;
    key
}

fn accepts(ring: &KeyState, key: Key) -> bool {
    ring.sealing == key || ring.accepted == Some(key)
}

impl World {
    fn new(hosts: usize, loss: f64, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed);
        let (hosts_made, ways) = (Vec::new(), Vec::new());
        let mut world =
            Self { now: 0, hosts: hosts_made, ways, random, loss, deadly: 0.0, keys: 1, cut: 0 };
        for number in 0..hosts {
            let disk = KeyState::new((key(0), None));
            let id = HostId(world.random.random());
            let view = (0..hosts).filter(|other| *other != number).map(|host| (host, 0)).collect();
            let (ring, daemon) = (disk.clone(), None);
            world.hosts.push(Host { id, disk, daemon, ring, run: 0, view, heard: None });
        }
        for number in 0..hosts {
            world.start(number);
            world.tell_view(number);
        }
        world
    }

    fn moment(&self) -> Moment {
        Moment(1 + self.now * MS)
    }

    fn start(&mut self, number: usize) {
        let now = self.moment();
        let host = &mut self.hosts[number];
        host.daemon = Some(Rotation::new(now, host.id, host.disk.clone()));
        host.ring = host.disk.clone();
        host.run += 1;
        host.heard = None;
    }

    fn crash(&mut self, number: usize) {
        self.hosts[number].daemon = None;
        self.hosts[number].view.clear();
    }

    fn tell_view(&mut self, number: usize) {
        let now = self.moment();
        let view = self.hosts[number].view.keys();
        let members = view.map(|other| (self.hosts[*other].id, self.hosts[*other].run)).collect();
        if let Some(daemon) = &mut self.hosts[number].daemon {
            daemon.set_members(now, members);
        }
    }

    /// Whether frames of one are understood by the other, and come there.
    fn reaches(&self, from: usize, to: usize) -> bool {
        let [one, other] = [from, to].map(|number| &self.hosts[number]);
        let there = one.daemon.is_some() && other.daemon.is_some();
        there && (from < self.cut) == (to < self.cut) && accepts(&other.ring, one.ring.sealing)
    }

    fn send(&mut self, from: usize, to: usize, content: Option<Vec<u8>>) {
        let key = self.hosts[from].ring.sealing;
        let run = self.hosts[to].run;
        for _ in 0..1 + usize::from(self.random.random_bool(0.1)) {
            if !self.random.random_bool(self.loss) {
                let at = self.now + self.random.random_range(1..SLOWEST);
                self.ways.push((at, from, to, run, key, content.clone()));
            }
        }
    }

    /// A step of 50 ms.
    fn step(&mut self) {
        self.now += 50;
        let now = self.moment();
        let (come, ways) =
            std::mem::take(&mut self.ways).into_iter().partition(|way| way.0 <= self.now);
        self.ways = ways;
        let come: Vec<_> = come;
        for (_, from, to, run, sealed, content) in come {
            let sender = self.hosts[from].id;
            let host = &mut self.hosts[to];
            let Some(daemon) = &mut host.daemon else { continue };
            if (from < self.cut) != (to < self.cut) || !accepts(&host.ring, sealed) {
                continue;
            }
            if host.ring.accepted == Some(sealed) {
                host.heard = Some(short(&sealed));
            }
            // The link delivers what is of members and for this run.
            if let Some(content) = content
                && run == host.run
                && host.view.contains_key(&from)
            {
                daemon.receive(now, sender, &content);
            }
        }
        for number in 0..self.hosts.len() {
            self.watch(number);
            self.work(number);
        }
        self.check();
    }

    /// A host finds out who is there, at a moment of its own.
    fn watch(&mut self, number: usize) {
        for other in (0..self.hosts.len()).filter(|other| *other != number) {
            let both = self.reaches(number, other) && self.reaches(other, number);
            let sees = self.hosts[number].view.contains_key(&other);
            let chance = 50.0 / NOTICED as f64 * 4.0;
            if both != sees && self.random.random_bool(chance) {
                let now = self.now;
                let view = &mut self.hosts[number].view;
                match both {
                    true => drop(view.insert(other, now)),
                    false => drop(view.remove(&other)),
                }
                self.tell_view(number);
            }
            // Seeds and the dead are greeted now and then.
            if self.random.random_bool(0.02) {
                self.send(number, other, None);
            }
        }
        // A restart that nobody has noticed.
        self.tell_view(number);
    }

    fn work(&mut self, number: usize) {
        let now = self.moment();
        let (fresh, tag) = (key(self.keys), self.random.random());
        let die = self.random.random_range(0..3);
        let dies = self.random.random_bool(self.deadly);
        let heard = self.random.random_bool(0.05);
        let host = &mut self.hosts[number];
        let Some(daemon) = &mut host.daemon else { return };
        if heard && let Some(heard) = host.heard.take() {
            daemon.heard(now, heard);
        }
        if daemon.wants_key() {
            self.keys += 1;
            daemon.begin(now, fresh, tag);
        }
        let messages = daemon.poll(now);
        // It may die before, between or after what it does, as long as it does so in this order.
        if dies && die == 0 {
            return self.crash(number);
        }
        host.disk = daemon.kept().clone();
        if dies && die == 1 {
            return self.crash(number);
        }
        host.ring = host.disk.clone();
        let id = |to: HostId| self.hosts.iter().position(|host| host.id == to);
        let messages: Vec<_> =
            messages.into_iter().filter_map(|(to, bytes)| Some((id(to)?, bytes))).collect();
        for (to, bytes) in messages {
            self.send(number, to, Some(bytes));
        }
        if dies {
            self.crash(number);
        }
    }

    /// Whoever sees the other, and has for a while, is understood.
    fn check(&self) {
        for (one, host) in self.hosts.iter().enumerate() {
            for (other, since) in &host.view {
                let there = &self.hosts[*other];
                let mutual = there
                    .view
                    .get(&one)
                    .is_some_and(|theirs| self.now - theirs.max(since) >= NOTICED);
                if host.daemon.is_some() && there.daemon.is_some() && mutual {
                    assert!(
                        accepts(&there.ring, host.ring.sealing),
                        "at {} ms {one} is not understood by {other}: {:?}, {:?}",
                        self.now,
                        host.ring,
                        there.ring
                    );
                }
            }
        }
    }

    fn run(&mut self, ms: u64) {
        let end = self.now + ms;
        while self.now < end {
            self.step();
        }
    }

    fn ask(&mut self, number: usize) -> Option<Result<(), Refusal>> {
        let now = self.moment();
        self.hosts[number].daemon.as_mut().map(|daemon| daemon.ask(now))
    }

    fn are_done(&self) -> bool {
        let first = &self.hosts[0].disk;
        self.hosts.iter().all(|host| {
            host.disk.rotation.is_none()
                && host.disk.accepted.is_none()
                && host.disk.sealing == first.sealing
        })
    }
}

#[test]
fn all_use_another_key_a_moment_later_and_forget_the_old_one() {
    for hosts in [1, 2, 3, 5] {
        for asked in 0..hosts {
            let mut world = World::new(hosts, 0.0, 5);
            world.quiet(asked);
        }
    }
}

impl World {
    /// A rotation on a good network without crashes.
    fn quiet(&mut self, asked: usize) {
        let id = self.hosts[asked].id;
        assert_eq!(self.ask(asked), Some(Ok(())));
        let mut used = None;
        for step in 1..=400 {
            self.calm_step();
            if used.is_none() && self.hosts.iter().all(|host| host.ring.sealing != key(0)) {
                used = Some(step * 10);
                let daemon = self.hosts[asked].daemon.as_mut().unwrap();
                assert_eq!(daemon.check(), Err(Refusal::Underway), "{id:?}");
            }
        }
        assert!(used.is_some_and(|ms| ms <= 1500), "{used:?}");
        assert!(!self.are_done(), "the old key is accepted for a while");
        (0..1500).for_each(|_| self.calm_step());
        assert!(self.are_done());
        assert_eq!(self.hosts[0].disk.last.number, 1);
        for host in &self.hosts {
            let status = host.daemon.as_ref().unwrap().status(self.moment());
            assert_eq!((status.stage, status.waiting.len()), (Stage::Forgotten, 0));
            assert_eq!((status.accepted, status.sealing), (None, short(&key(1))));
        }
    }

    /// 10 ms on a network that takes no time.
    fn calm_step(&mut self) {
        self.now += 10;
        let now = self.moment();
        for number in 0..self.hosts.len() {
            let host = &mut self.hosts[number];
            let daemon = host.daemon.as_mut().unwrap();
            if daemon.wants_key() {
                daemon.begin(now, key(1), 99);
            }
            let messages = daemon.poll(now);
            host.disk = daemon.kept().clone();
            host.ring = host.disk.clone();
            let from = host.id;
            for (to, bytes) in messages {
                let to = self.hosts.iter_mut().find(|host| host.id == to).unwrap();
                to.daemon.as_mut().unwrap().receive(now, from, &bytes);
            }
        }
        self.check();
    }
}

#[test]
fn members_understand_each_other_whatever_happens() {
    let (mut done, mut given) = (0, 0);
    for seed in 0..150 {
        let mut random = SmallRng::seed_from_u64(seed ^ 0xabcd);
        let hosts = random.random_range(2..6);
        let mut world = World::new(hosts, random.random_range(0.0..0.4), seed);
        world.deadly = [0.0005, 0.002][random.random_range(0..2)];
        for _ in 0..300 {
            if random.random_bool(0.03) {
                let _ = world.ask(random.random_range(0..hosts));
            }
            world.run(1000);
            for number in 0..hosts {
                if world.hosts[number].daemon.is_none() && random.random_bool(0.2) {
                    world.start(number);
                }
            }
        }
        // All are there again, and the operator gives the key to who was away.
        let rotations = world.hosts.iter().map(|host| host.disk.last.number).max().unwrap();
        done += rotations;
        world.deadly = 0.0;
        for _ in 0..4 {
            for _ in 0..100 {
                world.run(1000);
                for number in 0..hosts {
                    if world.hosts[number].daemon.is_none() {
                        world.start(number);
                    }
                }
            }
            let decided = |host: &&Host| match host.disk.rotation {
                Some((id, Stage::Using)) => id,
                _ => host.disk.last,
            };
            let newest = world.hosts.iter().max_by_key(decided).unwrap().disk.sealing;
            for number in 0..hosts {
                if !accepts(&world.hosts[number].disk, newest) {
                    given += 1;
                    world.hosts[number].disk = KeyState::new((newest, None));
                    world.start(number);
                }
            }
            if world.are_done() {
                break;
            }
        }
        let disks: Vec<_> = world.hosts.iter().map(|host| &host.disk).collect();
        assert!(world.are_done(), "seed {seed}: {disks:?}");
    }
    println!("{done} rotations have come to an end, {given} times a host was given the key");
    assert!(done > 150 && given > 0);
}

#[test]
fn a_host_that_sees_nobody_decides_nothing() {
    let mut world = World::new(3, 0.0, 2);
    let leader = (0..3).min_by_key(|number| world.hosts[*number].id).unwrap();
    let now = world.moment();
    world.hosts[leader].daemon.as_mut().unwrap().begin(now, key(1), 1);
    let disk = world.hosts[leader].daemon.as_ref().unwrap().kept().clone();
    let mut again = Rotation::new(now, world.hosts[leader].id, disk);
    for second in 1..200 {
        assert!(again.poll(now.after(Duration::from_secs(second))).is_empty());
        assert_eq!(again.kept().sealing, key(0));
    }
    assert!(again.status(now).lost);
}

#[test]
fn two_keys_of_the_operators_are_left_alone_and_nonsense_is_counted() {
    let now = Moment(5);
    let mut host = Rotation::new(now, HostId(5), KeyState::new((key(1), Some(key(2)))));
    assert_eq!(host.ask(now), Err(Refusal::TwoKeys));
    host.set_members(now, [(HostId(1), 1), (HostId(5), 1)].into());
    let id = Id { number: 1, tag: 3 };
    let order = |key, stage| Message { kind: Kind::Command, id, stage, view: 0, key }.bytes();
    host.receive(now, HostId(1), &order(key(3), Stage::Accepted));
    assert_eq!(host.kept(), &KeyState::new((key(1), Some(key(2)))));
    assert_eq!(host.poll(now).len(), 1, "it tells how it is");
    // Of somebody who does not lead.
    host.receive(now, HostId(9), &order(key(2), Stage::Accepted));
    assert_eq!(host.kept().rotation, None);
    let good = order(key(2), Stage::Using);
    for length in 0..good.len() {
        host.receive(now, HostId(1), &good[..length]);
    }
    let zero = Message { id: Id::default(), ..Message::read(&good).unwrap() };
    host.receive(now, HostId(1), &zero.bytes());
    assert_eq!(host.errors(), good.len() as u64 + 1);
    host.receive(now, HostId(1), &good);
    assert_eq!((host.kept().sealing, host.kept().accepted), (key(2), Some(key(1))));
    assert!(!format!("{:?}", host.kept()).contains("0707"));
}

#[test]
fn a_host_that_came_after_the_last_rotation_can_ask_for_one() {
    let now = Moment(5);
    let done = KeyState { last: Id { number: 4, tag: 9 }, ..KeyState::new((key(1), None)) };
    let mut leader = Rotation::new(now, HostId(1), done);
    let mut newcomer = Rotation::new(now, HostId(5), KeyState::new((key(1), None)));
    leader.set_members(now, [(HostId(5), 1)].into());
    newcomer.set_members(now, [(HostId(1), 1)].into());
    newcomer.ask(now).unwrap();
    newcomer.poll(now).iter().for_each(|(_, bytes)| leader.receive(now, HostId(5), bytes));
    assert!(leader.wants_key());
}

#[test]
fn a_leader_that_is_new_hears_of_the_last_rotation() {
    let now = Moment(5);
    let done = KeyState { last: Id { number: 4, tag: 9 }, ..KeyState::new((key(1), None)) };
    let mut member = Rotation::new(now, HostId(5), done);
    let mut leader = Rotation::new(now, HostId(1), KeyState::new((key(1), None)));
    leader.set_members(now, [(HostId(5), 1)].into());
    member.set_members(now, [(HostId(1), 1)].into());
    for (to, bytes) in member.poll(now) {
        assert_eq!(to, HostId(1));
        leader.receive(now, HostId(5), &bytes);
    }
    leader.begin(now, key(2), 0);
    assert_eq!(leader.kept().rotation, Some((Id { number: 5, tag: 0 }, Stage::Accepted)));
    assert!(member.poll(now.after(REMIND + EVERY)).is_empty(), "it is told once");
}
