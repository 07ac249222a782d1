//! A small world: hosts with kernels and clocks of their own, and a bad network between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::*;

/// SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

pub(super) const MS: u64 = 1_000_000;

/// What the network does to each packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Net {
    /// Per cent.
    pub(super) loss: u64,
    pub(super) twice: u64,
    /// Packets that come very late.
    pub(super) late: u64,
    /// The longest usual delay, ms.
    pub(super) delay: u64,
}

/// A kernel: what it enforces whatever the daemon does.
#[derive(Clone, Debug, Default)]
struct Kernel {
    floor: Share,
    words: BTreeMap<KeyId, (Share, Moment)>,
}

#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) id: HostId,
    pub(super) weight: u32,
    pub(super) region: Region,
    /// Millionths that its clock is too fast.
    drift: i64,
    offset: u64,
    /// When it was switched on.
    since: u64,
    /// Whether the machine runs, and its daemon.
    pub(super) on: bool,
    pub(super) escrow: Option<Escrow>,
    disk: PersistentState,
    kernel: Kernel,
    next: Moment,
    inbox: VecDeque<(HostId, Message)>,
    paused: u64,
    /// What was being done when it was stopped.
    held_up: Option<(Outputs, u8)>,
    /// The daemon dies after so many steps of what it does next.
    dies_at: Option<u8>,
    pub(super) demand: BTreeMap<KeyId, Share>,
    pub(super) members: BTreeMap<HostId, Member>,
    pub(super) left: bool,
    pub(super) bytes: u64,
}

impl Host {
    pub(super) fn member(&self) -> Member {
        Member { weight: self.weight, region: self.region }
    }

    pub(super) fn home(&self) -> Share {
        self.disk.home
    }

    pub(super) fn disk(&self) -> &PersistentState {
        &self.disk
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) hosts: Vec<Host>,
    pub(super) keys: Vec<KeyId>,
    net: Net,
    /// How much longer packets take between regions, ms.
    apart: u64,
    pub(super) planted: Option<Planted>,
    random: Random,
    packets: BTreeMap<(u64, u64), (usize, usize, Message)>,
    sent: u64,
    /// One-way ways that are cut.
    pub(super) cut: BTreeSet<(usize, usize)>,
    /// Hosts that tell others this in the place of their demand.
    pub(super) lies: BTreeMap<usize, Share>,
    /// How long home leases last, if not as usual.
    pub(super) home_lease: Option<Duration>,
    /// Keys whose limit has another policy than the default.
    pub(super) policies: BTreeMap<KeyId, Partition>,
    /// Hosts go by votes from the start.
    votes: bool,
    /// More than the whole is not wrong: what the promise asks for was broken.
    pub(super) excused: bool,
    /// What hosts have told that does not add up: the most of each.
    pub(super) doubts: Doubts,
    /// What was wrong first.
    pub(super) wrong: Option<String>,
    pub(super) most: Share,
}

impl World {
    /// A founder and others that start with nothing; the later ones are not there yet.
    pub(super) fn new(seed: u64, weights: &[u32], started: usize, keys: u64, net: Net) -> Self {
        let mut random = Random(seed);
        let hosts = weights.iter().map(|&weight| Host {
            id: HostId(random.next()),
            weight,
            region: Region::default(),
            drift: random.below(2_001) as i64 - 1_000,
            offset: random.below(1 << 50),
            since: 0,
            on: false,
            escrow: None,
            disk: PersistentState::default(),
            kernel: Kernel::default(),
            next: Moment(0),
            inbox: VecDeque::new(),
            paused: 0,
            held_up: None,
            dies_at: None,
            demand: BTreeMap::new(),
            members: BTreeMap::new(),
            left: false,
            bytes: 0,
        });
        let hosts = hosts.collect();
        let keys = (0..keys).map(|_| KeyId::from_hash(random.next())).collect();
        let mut world = Self {
            now: 0,
            hosts,
            keys,
            net,
            apart: 0,
            planted: None,
            random,
            packets: BTreeMap::new(),
            sent: 0,
            cut: BTreeSet::new(),
            lies: BTreeMap::new(),
            home_lease: None,
            policies: BTreeMap::new(),
            votes: false,
            excused: false,
            doubts: Doubts::default(),
            wrong: None,
            most: Share::NONE,
        };
        world.hosts[0].disk = PersistentState::founder();
        (0..started).for_each(|at| world.start(at));
        world.all_see_all();
        world
    }

    /// A majority decides about that key from the start.
    pub(super) fn decide(&mut self, key: KeyId) {
        self.policies.insert(key, Partition::MajorityReclaim);
        self.vote();
    }

    /// All hosts go by votes from the start.
    pub(super) fn vote(&mut self) {
        self.votes = true;
        self.plant(self.planted);
    }

    /// Hosts are in these regions from the start, so many milliseconds apart.
    pub(super) fn place(&mut self, regions: &[u64], apart: u64) {
        for (host, &region) in self.hosts.iter_mut().zip(regions) {
            host.region = Region(region);
        }
        self.apart = apart;
        self.plant(self.planted);
        self.all_see_all();
    }

    pub(super) fn plant(&mut self, planted: Option<Planted>) {
        self.planted = planted;
        for at in 0..self.hosts.len() {
            if self.hosts[at].escrow.take().is_some() {
                self.start(at);
            }
        }
    }

    /// From now on the clock of a host is fast by so many millionths.
    pub(super) fn slew(&mut self, at: usize, millionths: i64) {
        let local = self.local(at);
        let host = &mut self.hosts[at];
        (host.offset, host.since, host.drift) = (local.0, self.now, millionths);
    }

    /// The daemon of a host sees that its clock is wrong.
    pub(super) fn distrust(&mut self, at: usize) {
        let now = self.local(at);
        if let Some(escrow) = &mut self.hosts[at].escrow {
            escrow.distrust_clock(now);
        }
        self.hosts[at].next = now;
    }

    pub(super) fn local(&self, at: usize) -> Moment {
        let host = &self.hosts[at];
        let passed = self.now - host.since;
        let drift = passed as i64 / 1_000 * host.drift / 1_000;
        Moment((host.offset + passed).saturating_add_signed(drift))
    }

    /// Starts a daemon.
    pub(super) fn start(&mut self, at: usize) {
        if !self.hosts[at].on {
            self.hosts[at].on = true;
            self.hosts[at].kernel = Kernel::default();
        }
        let now = self.local(at);
        let host = &mut self.hosts[at];
        let mut settings = Settings::new(host.id, host.weight);
        settings.region = host.region;
        settings.planted = self.planted;
        settings.majority = self.votes;
        settings.timing.home_lease = self.home_lease.unwrap_or(settings.timing.home_lease);
        let mut escrow = Escrow::new(settings, host.disk.clone(), now);
        escrow.set_members(now, &host.members);
        host.next = now;
        host.escrow = Some(escrow);
        host.inbox.clear();
        host.held_up = None;
        host.paused = 0;
        host.left = false;
    }

    /// An operator tells all hosts that one is gone for good.
    pub(super) fn forget_host(&mut self, lost: HostId, how: Forget) {
        for escrow in self.hosts.iter_mut().filter_map(|host| host.escrow.as_mut()) {
            escrow.forget_host(lost, how);
        }
    }

    /// Kills a daemon, maybe in the middle of something, or the whole machine, whose clock starts again.
    pub(super) fn crash(&mut self, at: usize, machine: bool, after: Option<u8>) {
        if after.is_some() && self.hosts[at].escrow.is_some() && !machine {
            self.hosts[at].dies_at = after;
            return;
        }
        let boots = self.random.below(60_000) * MS;
        let host = &mut self.hosts[at];
        host.escrow = None;
        host.held_up = None;
        if machine {
            host.on = false;
            host.since = self.now;
            host.offset = boots;
        }
    }

    /// A host loses its disk, and is another one from then on.
    pub(super) fn lose(&mut self, at: usize) {
        let id = HostId(self.random.next());
        let host = &mut self.hosts[at];
        (host.escrow, host.held_up) = (None, None);
        (host.id, host.disk) = (id, PersistentState::default());
    }

    /// What a host has kept, to be put back later.
    pub(super) fn disk(&self, at: usize) -> PersistentState {
        self.hosts[at].disk.clone()
    }

    /// The daemon ends, and what it has kept is put in the place of that of a host.
    pub(super) fn put_back(&mut self, at: usize, disk: PersistentState) {
        self.excused = true;
        let host = &mut self.hosts[at];
        (host.escrow, host.held_up) = (None, None);
        host.disk = disk;
    }

    /// The daemon ends, and the host has another name from then on, if no shares are on their way from it.
    pub(super) fn rename(&mut self, at: usize) {
        if !self.hosts[at].disk.outgoing.is_empty() {
            return;
        }
        self.excused = true;
        let id = HostId(self.random.next());
        let host = &mut self.hosts[at];
        (host.escrow, host.held_up) = (None, None);
        host.id = id;
    }

    pub(super) fn pause(&mut self, at: usize, ms: u64) {
        self.hosts[at].paused = self.now + ms * MS;
    }

    /// The network is good from now on, and nothing stands still.
    pub(super) fn heal(&mut self) {
        self.cut.clear();
        self.net = Net { loss: 0, twice: 0, late: 0, delay: 2 };
        for host in &mut self.hosts {
            host.paused = 0;
            host.dies_at = None;
        }
    }

    /// Who is up is what everybody knows.
    pub(super) fn all_see_all(&mut self) {
        let all: BTreeMap<HostId, Member> = self
            .hosts
            .iter()
            .filter(|host| host.escrow.is_some() && !host.left)
            .map(|host| (host.id, host.member()))
            .collect();
        for at in 0..self.hosts.len() {
            if self.hosts[at].on {
                self.see(at, all.clone());
            }
        }
    }

    pub(super) fn see(&mut self, at: usize, members: BTreeMap<HostId, Member>) {
        let now = self.local(at);
        let host = &mut self.hosts[at];
        host.members = members;
        if let Some(escrow) = &mut host.escrow {
            escrow.set_members(now, &host.members);
        }
    }

    pub(super) fn leave(&mut self, at: usize) {
        let now = self.local(at);
        if let Some(escrow) = &mut self.hosts[at].escrow {
            escrow.leave(now);
        }
    }

    pub(super) fn forget(&mut self, at: usize, key: KeyId) {
        let host = &mut self.hosts[at];
        host.demand.remove(&key);
        if let Some(escrow) = &mut host.escrow {
            escrow.forget(key);
            host.kernel.words.remove(&key);
        }
    }

    /// What the kernel of a host lets through of a key.
    pub(super) fn share(&self, at: usize, key: KeyId) -> Share {
        let host = &self.hosts[at];
        if !host.on {
            return Share::NONE;
        }
        match host.kernel.words.get(&key) {
            Some(&(share, until)) if self.local(at) < until => share,
            _ => host.kernel.floor,
        }
    }

    /// What all let through of a key.
    pub(super) fn all(&self, key: KeyId) -> Share {
        (0..self.hosts.len()).map(|at| self.share(at, key)).sum()
    }

    /// What is admitted of a key while all send as much as was said.
    pub(super) fn admitted(&self, key: KeyId) -> f64 {
        let of = |at: usize| {
            let demand = self.hosts[at].demand.get(&key).copied().unwrap_or_default();
            self.share(at, key).min(demand).part()
        };
        (0..self.hosts.len()).map(of).sum()
    }

    /// All home shares and what is on its way, of the latest era: what is of an earlier one is nobody's.
    pub(super) fn shares(&self) -> Share {
        let mut sum = Share::NONE;
        let eras = self.hosts.iter().map(|host| host.disk.era.number);
        let latest = eras.max().unwrap_or_default();
        for host in self.hosts.iter().filter(|host| host.disk.era.number == latest) {
            sum += host.disk.home;
            for (to, transfer) in &host.disk.outgoing {
                let to = self.hosts.iter().find(|host| host.id == *to);
                let taken = to.and_then(|to| to.disk.incoming.get(&host.id));
                if taken.is_none_or(|taken| *taken < transfer.number) {
                    sum += transfer.share;
                }
            }
        }
        sum
    }

    fn check(&mut self, what: &str) {
        for &key in &self.keys {
            let all = self.all(key);
            self.most = self.most.max(all);
            if self.excused {
                continue;
            }
            let available = self.policies.get(&key) == Some(&Partition::Available);
            if all > Share::WHOLE && !available && self.wrong.is_none() {
                let of = |at: usize| self.share(at, key).part();
                let shares: Vec<f64> = (0..self.hosts.len()).map(of).collect();
                self.wrong = Some(format!(
                    "{what} at {} ms: {} of the limit, {shares:?}",
                    self.now / MS,
                    all.part()
                ));
            }
        }
        if self.shares() > Share::WHOLE && self.wrong.is_none() && !self.excused {
            self.wrong =
                Some(format!("{what} at {} ms: shares {:?}", self.now / MS, self.shares()));
        }
    }

    fn send(&mut self, from: usize, to: HostId, message: &Message) {
        let Some(to) = self.hosts.iter().position(|host| host.id == to) else { return };
        let items = message.reports.len() + message.grants.len() + message.transfers.len();
        let items = items + message.asks.len() + message.loans.len();
        self.hosts[from].bytes += 60 + 14 * items as u64;
        let mut message = message.clone();
        if let Some(lie) = self.lies.get(&from) {
            message.reports.iter_mut().for_each(|report| report.demand = *lie);
        }
        for part in self.split(&message) {
            if self.cut.contains(&(from, to)) || self.random.chance(self.net.loss) {
                continue;
            }
            let copies = 1 + u64::from(self.random.chance(self.net.twice));
            for _ in 0..copies {
                let far = self.hosts[from].region != self.hosts[to].region;
                let mut delay = self.random.below(self.net.delay * MS + 1);
                delay += if far { self.apart * MS } else { 0 };
                if self.random.chance(self.net.late) {
                    delay += self.random.below(4_000) * MS;
                }
                self.sent += 1;
                self.packets.insert((self.now + delay, self.sent), (from, to, part.clone()));
            }
        }
    }

    /// Long messages come in parts, each with what concerns all of it.
    fn split(&mut self, message: &Message) -> Vec<Message> {
        if !self.random.chance(30) {
            return vec![message.clone()];
        }
        let head = Message {
            reports: Vec::new(),
            grants: Vec::new(),
            asks: Vec::new(),
            loans: Vec::new(),
            transfers: Vec::new(),
            received: Vec::new(),
            votes: Vec::new(),
            tally: None,
            standing: None,
            ask: None,
            ..message.clone()
        };
        let mut parts = vec![head.clone(), head];
        for report in &message.reports {
            parts[self.random.below(2) as usize].reports.push(*report);
        }
        for grant in &message.grants {
            parts[self.random.below(2) as usize].grants.push(*grant);
        }
        for ask in &message.asks {
            parts[self.random.below(2) as usize].asks.push(*ask);
        }
        for loan in &message.loans {
            parts[self.random.below(2) as usize].loans.push(*loan);
        }
        parts[self.random.below(2) as usize].transfers.clone_from(&message.transfers);
        parts[self.random.below(2) as usize].votes.clone_from(&message.votes);
        parts[self.random.below(2) as usize].received.clone_from(&message.received);
        parts[self.random.below(2) as usize].tally = message.tally;
        parts[self.random.below(2) as usize].standing = message.standing;
        parts[self.random.below(2) as usize].ask = message.ask;
        parts
    }

    /// Does what the core said, step by step.
    fn carry_out(&mut self, at: usize, out: Outputs, from: u8) {
        let paused = |world: &Self| world.hosts[at].paused > world.now;
        for step in from..4 {
            if self.hosts[at].dies_at == Some(step) {
                self.hosts[at].dies_at = None;
                self.hosts[at].escrow = None;
                return;
            }
            if paused(self) {
                self.hosts[at].held_up = Some((out, step));
                return;
            }
            let host = &mut self.hosts[at];
            match step {
                0 => {
                    if let (true, Some(escrow)) = (out.keep, &host.escrow) {
                        host.disk = escrow.kept().clone();
                    }
                }
                1 => host.kernel.floor = out.floor.unwrap_or(host.kernel.floor),
                2 => {
                    for granted in &out.grants {
                        host.kernel.words.insert(granted.key, (granted.share, granted.until));
                    }
                }
                _ => {
                    for (to, message) in &out.messages {
                        self.send(at, *to, message);
                    }
                }
            }
            // Between the steps of one host the sum may not be more either.
            self.check("a step");
        }
        let host = &mut self.hosts[at];
        host.left |= out.left;
        host.next = out.next;
    }

    /// One millisecond.
    pub(super) fn step(&mut self) {
        self.now += MS;
        while let Some((&(due, number), _)) = self.packets.first_key_value() {
            if due > self.now {
                break;
            }
            let (from, to, message) = self.packets.remove(&(due, number)).unwrap();
            let id = self.hosts[from].id;
            let host = &mut self.hosts[to];
            if host.escrow.is_some() && host.inbox.len() < 200 {
                host.inbox.push_back((id, message));
                host.next = Moment(0);
            }
        }
        for at in 0..self.hosts.len() {
            let local = self.local(at);
            if self.hosts[at].paused > self.now {
                continue;
            }
            if let Some((out, step)) = self.hosts[at].held_up.take() {
                self.carry_out(at, out, step);
            }
            // Each host measures what its sources send ten times a second.
            let measures = (self.now / MS + at as u64 * 37).is_multiple_of(100);
            let shares: Vec<(KeyId, Share)> =
                self.keys.iter().map(|&key| (key, self.share(at, key))).collect();
            let host = &mut self.hosts[at];
            let Some(escrow) = &mut host.escrow else { continue };
            while let Some((from, message)) = host.inbox.pop_front() {
                escrow.receive(local, from, &message);
            }
            if measures {
                for (key, share) in shares {
                    if let Some(&demand) = host.demand.get(&key) {
                        escrow.demand(local, key, demand, demand > share);
                        if let Some(policy) = self.policies.get(&key) {
                            escrow.set_partition(key, *policy);
                        }
                    }
                }
            }
            if measures || local >= host.next {
                let out = escrow.poll(local);
                let (told, all) = (escrow.doubts(), &mut self.doubts);
                all.homes = all.homes.max(told.homes);
                all.lost = all.lost.max(told.lost);
                all.given_up = all.given_up.max(told.given_up);
                self.carry_out(at, out, 0);
            }
        }
        self.check("a tick");
    }

    pub(super) fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            if self.wrong.is_some() {
                return;
            }
            self.step();
        }
    }
}
