//! The virtual world: hosts, network, traffic and faults on one real clock.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::clock::{Clock, Span};
use super::demand::{Conforming, Packet, Traffic};
use super::host::{Host, State};
use super::judge::Judge;
use super::kernel::Kernel;
use super::network::{Conditions, Network};
use super::outcome::{Outcome, Record};
use super::queue::Queue;
use super::regions::Between;
use super::rng::{Rng, mix};
use super::scenario::{Fault, FaultKind, Scenario, Store, WEIGHT};
use super::scheme::{Actions, Birth, Disk, Payload, Scheme};
use cluster::escrow::{Member, Partition, PersistentState, Region};
use cluster::{HostId, KeyId, Moment};
use model::Limit;

/// How often a daemon reads the kernel's counters, ns of its clock.
// As the daemon's share thread does while sources are tracked.
const LOOK: u64 = 25_000_000;
/// How long after the first drop of a source the daemon looks: the kernel's event wakes it.
const URGENT: u64 = 1_000_000;
/// How long after the last look it does so at the earliest.
const CALM: u64 = 10_000_000;
/// How long after a message the daemon acts on it: it takes all that have come by then.
const ACT: u64 = 2_000_000;

/// How often daemons are asked how they are, ns.
const REPORTS: u64 = 500_000_000;

/// The network within regions, and between them.
fn conditions(scenario: &Scenario) -> [Conditions; 2] {
    [scenario.network, scenario.between.unwrap_or(scenario.network)]
}

/// A moment after all that were told before, by the wall clock, as the daemon has it.
fn by_wall_clock(real: u64) -> Moment {
    Moment((1_700_000_000 + real / 1_000_000_000) << 32)
}

#[derive(Debug)]
enum Event {
    /// A daemon reads the kernel's counters.
    Look { host: usize, life: u32, again: bool },
    /// A daemon does what is due.
    Poll { host: usize },
    /// A copy of a message comes: there may be two.
    Deliver { to: usize, from: HostId, payload: Rc<Payload> },
    /// A fault begins or ends.
    Fault { fault: usize, hosts: Rc<[usize]>, begins: bool },
    /// A host notices who is there.
    Notice { host: usize, other: usize },
    /// A host hears that weights have changed.
    Reweigh { host: usize },
    /// A host is copied, to be as it was then.
    Copy { fault: usize, host: usize },
}

pub(super) struct World<'a, S> {
    scenario: &'a Scenario,
    now: u64,
    queue: Queue<Event>,
    hosts: Vec<Host<S>>,
    numbers: BTreeMap<HostId, usize>,
    keys: Vec<KeyId>,
    key_numbers: BTreeMap<KeyId, usize>,
    network: Network,
    /// The region of each host.
    regions: Vec<Region>,
    /// The weight of each host.
    weights: Vec<u32>,
    /// Hosts as they were, with the moment, by fault and number.
    copies: BTreeMap<(usize, usize), (u64, Host<S>)>,
    /// The limit, of which sources are told to use parts.
    limit: Limit,
    /// The policy that limits have now, if another one than in the beginning.
    policy: Option<Partition>,
    traffic: Traffic,
    conforming: Option<Conforming>,
    judge: Judge,
    record: Record,
    rng: Rng,
}

impl<'a, S: Scheme> World<'a, S> {
    /// A world whose daemons `make` makes.
    pub(super) fn new(scenario: &'a Scenario, seed: u64, make: impl Fn(Birth) -> S) -> Self {
        // Each concern has a generator of its own: a change of one leaves what happens in the others as it was.
        let root = Rng::new(seed);
        let n = scenario.hosts;
        let numbers = scenario.regions();
        let region = |number: &usize| scenario.regions.get(*number).map(|part| &part.name[..]);
        let of = |number| Region::new(region(number).unwrap_or("default"));
        let regions: Vec<Region> = numbers.iter().map(of).collect();
        let mut clocks = root.fork(1);
        let joiners: Vec<usize> = scenario
            .all_faults()
            .filter(|fault| fault.kind == FaultKind::Join)
            .flat_map(|fault| scenario.hosts_of(fault))
            .collect();
        let present = (0..n).filter(|i| !joiners.contains(i)).count() as u64;
        let kernel = || match scenario.packets {
            true => Kernel::packets(scenario.limit(), n, scenario.sources(), scenario.copies()),
            false => Kernel::fluid(scenario.burst.seconds(), scenario.sources()),
        };
        let mut hosts = Vec::with_capacity(n);
        for (i, &region) in regions.iter().enumerate() {
            // Nobody knows how long others are up: from a quarter of an hour to some weeks.
            let base = clocks.between(1e12, 2e15) as u64;
            let drift = clocks.between(-scenario.drift, scenario.drift);
            let clock = Clock::new(base, drift, scenario.resolution.ns());
            // By chance, as owners follow from the ids of hosts and keys: each seed divides sources in another way.
            let id = HostId(mix(seed ^ mix(i as u64 + 1)));
            let one_of = match () {
                () if joiners.contains(&i) => 0,
                () if scenario.founded => u64::from(i == scenario.founder()),
                () => present,
            };
            let seed = clocks.bits();
            let now = clock.local(0);
            let policy = scenario.policy;
            let weight = WEIGHT;
            let home_lease = scenario.home_lease.0;
            let birth =
                Birth { me: id, weight, region, hosts: n, one_of, seed, policy, home_lease, now };
            let mut host = Host::new(id, clock, make(birth), kernel(), n, scenario.sources());
            if scenario.goals.cpu.is_some() {
                host.cpu.switch_on();
            }
            if joiners.contains(&i) {
                host.kill(State::Off);
            }
            hosts.push(host);
        }
        // As with hosts: each seed gives them other owners.
        let keys: Vec<KeyId> =
            (0..scenario.sources()).map(|i| KeyId::from_hash(mix(mix(seed) ^ i as u64))).collect();
        let tick = scenario.tick.seconds();
        let traffic = Traffic::new(scenario.demand, &numbers, root.fork(2));
        Self {
            now: 0,
            queue: Queue::default(),
            numbers: hosts.iter().enumerate().map(|(i, host)| (host.id, i)).collect(),
            hosts,
            key_numbers: keys.iter().enumerate().map(|(i, key)| (*key, i)).collect(),
            judge: Judge::new(keys.len(), scenario.most_at_once(), tick, scenario.drift),
            record: Record::new(tick, traffic.steps(scenario.duration.seconds())),
            keys,
            network: Network::new(conditions(scenario), numbers, root.fork(3)),
            regions,
            weights: vec![WEIGHT; n],
            copies: BTreeMap::new(),
            limit: scenario.limit(),
            policy: None,
            traffic,
            conforming: scenario
                .conforming
                .map(|pattern| Conforming::new(pattern, scenario.conforms_since(), scenario.rate)),
            rng: root.fork(4),
            scenario,
        }
    }

    fn plan(&mut self, at: u64, event: Event) {
        // Rounding of a clock may put an event into the past, and time must not go back.
        self.queue.plan(at.max(self.now), event);
    }

    /// Runs it to the end.
    pub(super) fn run(mut self) -> Outcome {
        let scenario = self.scenario;
        for (i, fault) in scenario.faults.iter().enumerate() {
            self.plan_fault(i, fault.get_ref());
        }
        let there: Vec<bool> = self.hosts.iter().map(|host| host.state == State::Running).collect();
        for i in 0..self.hosts.len() {
            // As in a cluster that has run for a while: how hosts find each other is the matter of
            // `members`.
            self.hosts[i].view.clone_from(&there);
            if there[i] {
                self.tell_members(i);
                self.hosts[i].start(0);
                self.begin_to_look(i);
                self.act(i);
            }
        }
        let tick = scenario.tick.ns();
        for n in 1..=scenario.duration.ns() / tick {
            let end = n * tick;
            while let Some((at, event)) = self.queue.next(end) {
                self.now = at;
                self.happen(event);
            }
            self.now = end;
            self.packets();
        }
        let seconds = scenario.duration.seconds();
        let most = self.hosts.iter().map(|host| host.bytes).max().unwrap_or(0);
        let mut outcome = self.record.outcome(self.judge.verdict(), most as f64 / seconds);
        let cpu = self.hosts.iter().map(|host| host.cpu.sum().as_secs_f64() / seconds);
        if !scenario.regions.is_empty() {
            // Without the beginning, in which everything is borrowed for the first time.
            let warm = seconds - scenario.warm_up.seconds();
            let far = self.hosts.iter().map(|host| host.far as f64 / warm);
            let most_per_host = far.clone().fold(0.0, f64::max);
            outcome.between = Some(Between { bytes_per_second: far.sum(), most_per_host });
        }
        outcome.digest = self.hosts.iter().fold(0, |all, host| mix(all ^ host.digest));
        outcome.cpu = scenario.goals.cpu.map(|_| cpu.fold(0.0, f64::max));
        outcome
    }

    fn plan_fault(&mut self, number: usize, fault: &Fault) {
        let hosts = self.scenario.hosts_of(fault);
        // A cut is between the hosts and the others; everything else befalls each host for itself.
        let cut =
            matches!(fault.kind, FaultKind::Partition | FaultKind::OneWay | FaultKind::Network);
        let groups: Vec<Rc<[usize]>> = match cut {
            true => vec![hosts.into()],
            false => hosts.into_iter().map(|host| Rc::from([host])).collect(),
        };
        for (i, hosts) in groups.into_iter().enumerate() {
            let at = fault.at.ns() + i as u64 * fault.apart.ns();
            if fault.back > Span::default() {
                let host = hosts[0];
                self.plan(at - fault.back.ns(), Event::Copy { fault: number, host });
            }
            self.plan(at, Event::Fault { fault: number, hosts: Rc::clone(&hosts), begins: true });
            if let Some(lasts) = fault.lasts {
                self.plan(at + lasts.ns(), Event::Fault { fault: number, hosts, begins: false });
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Look { host, life, again } => self.look(host, life, again),
            Event::Poll { host } => {
                // An earlier poll may have taken its place: what is in the queue cannot be taken back.
                if self.hosts[host].poll_at == Some(self.now) {
                    self.hosts[host].poll_at = None;
                    self.act(host);
                }
            }
            Event::Deliver { to, from, payload } => {
                if self.hosts[to].receive(self.now, from, &payload) {
                    self.act_at(to, self.now + ACT);
                }
            }
            Event::Fault { fault, hosts, begins } => {
                match begins {
                    true => self.begin(fault, &hosts),
                    false => self.end(fault, &hosts),
                }
                self.plan_notices();
            }
            Event::Reweigh { host } => {
                if self.hosts[host].state == State::Running {
                    self.tell_members(host);
                    self.act_at(host, self.now);
                }
            }
            Event::Copy { fault, host } => {
                let copy = (self.now, self.hosts[host].clone());
                self.copies.insert((fault, host), copy);
            }
            Event::Notice { host, other } => {
                // Looked at anew: what was to be noticed may be over.
                let sees = self.sees(host, other);
                if self.hosts[host].state == State::Running && self.hosts[host].view[other] != sees
                {
                    self.hosts[host].view[other] = sees;
                    self.tell_members(host);
                    self.act_at(host, self.now);
                }
            }
        }
    }

    /// Packets of a tick come.
    fn packets(&mut self) {
        let (real, tick) = (self.now, self.scenario.tick.seconds());
        // At first owners have nothing to grant yet, which says nothing about hours of use.
        let counts = real > self.scenario.warm_up.ns();
        let there: Vec<bool> = self.hosts.iter().map(Host::is_there).collect();
        let mut rates = vec![0.0; self.hosts.len()];
        let mut sums = (0.0, 0.0, 0.0);
        let mut urgent = Vec::new();
        // All hosts' packets of a source go to the judge in one tick: so it sees every moment of them together.
        for key in 0..self.scenario.demand.keys {
            self.traffic.rates(key, real, &there, &mut rates);
            let (mut offered, mut admitted, mut shares) = (0.0, 0.0, 0.0);
            for (i, host) in self.hosts.iter_mut().enumerate().filter(|(i, _)| there[*i]) {
                shares += host.share(key, real);
                if rates[i] > 0.0 {
                    let packets = rates[i] * tick;
                    let (passed, is_urgent) = host.packets(key, real, packets);
                    offered += packets;
                    admitted += passed;
                    if is_urgent && host.state == State::Running {
                        urgent.push(i);
                    }
                }
            }
            self.judge.shares(shares);
            let due = self.judge.tick(key, offered, admitted, counts);
            sums = (sums.0 + offered, sums.1 + admitted, sums.2 + due);
        }
        self.record.tick(sums.0, sums.1, sums.2);
        if real.is_multiple_of(REPORTS) {
            // One of the others after the other, and one of the sources.
            let n = (real / REPORTS) as usize;
            let (key, other) =
                (self.keys[n % self.keys.len()], self.hosts[n % self.hosts.len()].id);
            let running = self.hosts.iter_mut().filter(|host| host.state == State::Running);
            running.for_each(|host| host.report(real, key, other));
        }
        urgent.extend(self.conforming_packets(&there));
        for host in urgent {
            // One look is for all sources. One for each was 27 million in three seconds, with a thousand
            // sources on a hundred hosts.
            if !std::mem::replace(&mut self.hosts[host].woken, true) {
                let life = self.hosts[host].life;
                self.plan(real + URGENT, Event::Look { host, life, again: false });
            }
        }
    }

    /// Packets of the conforming source come. Returns the hosts whose daemons are to look at once.
    fn conforming_packets(&mut self, there: &[bool]) -> Vec<usize> {
        let mut urgent = Vec::new();
        let Some(source) = &mut self.conforming else { return urgent };
        let key = self.scenario.demand.keys;
        let hosts = self.hosts.iter().zip(there).filter(|(_, there)| **there);
        self.judge.shares(hosts.map(|(host, _)| host.share(key, self.now)).sum());
        let (mut offered, mut admitted) = (0.0, 0.0);
        while let Some(Packet { at, size, contact, host }) = source.next(self.now, there) {
            let (passed, is_urgent) = self.hosts[host].packets(key, self.now, size);
            (offered, admitted) = (offered + size, admitted + passed);
            if passed == 0.0 && self.scenario.is_calm(at) {
                self.judge.loses(contact);
            }
            if is_urgent && self.hosts[host].state == State::Running {
                urgent.push(host);
            }
        }
        self.judge.tick(key, offered, admitted, false);
        urgent
    }

    fn begin_to_look(&mut self, host: usize) {
        // At a random moment: hosts that looked in step would hide what news of different ages
        // does.
        let (life, at) = (self.hosts[host].life, self.now + self.rng.below(LOOK as usize) as u64);
        self.plan(at, Event::Look { host, life, again: true });
    }

    fn look(&mut self, number: usize, life: u32, again: bool) {
        let host = &mut self.hosts[number];
        // Looks of a daemon that was killed are still in the queue.
        if host.state != State::Running || host.life != life {
            return;
        }
        // What was counted by now is what came up to the latest tick.
        let counted = self.now - self.now % self.scenario.tick.ns();
        if again || host.calm(counted, CALM) {
            host.woken &= again;
            host.look(self.now, counted, &self.keys, &self.limit);
            self.act_at(number, self.now);
        } else {
            self.plan(self.now + CALM, Event::Look { host: number, life, again: false });
            return;
        }
        if again {
            let clock = self.hosts[number].clock;
            let next = Moment(clock.local(self.now).0 + LOOK);
            self.plan(clock.real(next), Event::Look { host: number, life, again: true });
        }
    }

    fn act_at(&mut self, host: usize, at: u64) {
        let at = at.max(self.now);
        // One poll at a time: each planned one would plan another, and they would become more with
        // every message.
        if self.hosts[host].poll_at.is_none_or(|planned| at < planned) {
            self.hosts[host].poll_at = Some(at);
            self.plan(at, Event::Poll { host });
        }
    }

    fn act(&mut self, host: usize) {
        if self.hosts[host].state != State::Running {
            return;
        }
        let now = self.hosts[host].clock.local(self.now);
        self.hosts[host].cpu.start();
        let actions = self.hosts[host].daemon.poll(now);
        self.hosts[host].cpu.stop();
        self.do_actions(host, actions);
    }

    fn do_actions(&mut self, number: usize, actions: Actions) {
        let host = &mut self.hosts[number];
        host.write(self.now, &actions, &self.key_numbers);
        let (from, next) = (host.id, host.clock.real(actions.next));
        for (to, payload) in actions.messages {
            let Some(&to) = self.numbers.get(&to) else { continue };
            // Encoding is a part of what a message costs.
            self.hosts[number].cpu.start();
            let bytes = payload.bytes() as u64;
            self.hosts[number].bytes += bytes;
            self.hosts[number].cpu.stop();
            if self.now > self.scenario.warm_up.ns() && self.network.is_far(number, to) {
                self.hosts[number].far += bytes;
            }
            let payload = Rc::new(payload);
            for delay in self.network.send(number, to).into_iter().flatten() {
                let payload = Rc::clone(&payload);
                self.plan(self.now + delay.as_nanos() as u64, Event::Deliver { to, from, payload });
            }
        }
        // Only now: the last messages of a host that leaves have to go out.
        if actions.left {
            self.hosts[number].kill(State::Left);
            self.plan_notices();
            return;
        }
        // A daemon that has nothing to wait for still gives others a chance.
        self.act_at(number, next.max(self.now + ACT));
    }

    fn begin(&mut self, number: usize, hosts: &[usize]) {
        let fault = self.scenario.faults[number].get_ref();
        match fault.kind {
            FaultKind::Partition | FaultKind::OneWay => self.cut(fault, hosts, true),
            FaultKind::Network => {
                let usual = conditions(self.scenario);
                self.network.conditions = fault.network.map_or(usual, |network| [network; 2]);
            }
            _ => hosts.iter().for_each(|host| self.befall(number, *host)),
        }
    }

    /// A fault befalls a host, where that is possible as it is.
    fn befall(&mut self, number: usize, i: usize) {
        let fault = self.scenario.faults[number].get_ref();
        let state = self.hosts[i].state;
        // Faults overlap by chance: one that makes no sense any more befalls nobody.
        match fault.kind {
            // A number, as two faults may suspect a host at once: it is cleared when both have
            // ended.
            FaultKind::Suspect => self.hosts[i].suspected += 1,
            FaultKind::Pause | FaultKind::Freeze if state == State::Running => {
                // Half of the time between decision and execution: the worst moment for a hang.
                let busy = self.rng.chance(0.5);
                let stands = fault.kind == FaultKind::Freeze;
                let host = &mut self.hosts[i];
                let now = host.clock.local(self.now);
                host.held = busy.then(|| host.daemon.poll(now));
                host.state = if stands { State::Frozen } else { State::Paused };
                host.poll_at = None;
                // Its clock is set when it goes on.
                host.stood = stands.then_some(now);
            }
            FaultKind::Daemon if matches!(state, State::Running | State::Paused) => {
                self.hosts[i].kill(State::Dead);
            }
            FaultKind::Crash if !matches!(state, State::Left | State::Frozen) => {
                self.hosts[i].kill(State::Off);
            }
            // It was off from the start, and its disk has no share.
            FaultKind::Join if state == State::Off => self.restart(i, Store::Kept, number),
            FaultKind::Leave if state == State::Running => {
                let now = self.hosts[i].clock.local(self.now);
                self.hosts[i].daemon.leave(now);
                self.act(i);
            }
            FaultKind::Restore => self.restore(i, number),
            FaultKind::Disk => {
                let disk = fault.slow.map_or(Disk::Full, |slow| Disk::Slow(slow.0));
                self.hosts[i].daemon.set_disk(disk);
            }
            FaultKind::Clock if state != State::Frozen => self.slew(i, fault.rate),
            FaultKind::Policy => {
                self.policy = fault.policy.or(self.policy);
                self.follow_policy(i);
            }
            FaultKind::Weight => self.reweigh(i, fault.weight.unwrap_or(WEIGHT)),
            FaultKind::Crowd => self.hosts[i].daemon.set_room(fault.room.unwrap_or_default()),
            _ => {}
        }
    }

    fn end(&mut self, number: usize, hosts: &[usize]) {
        let fault = self.scenario.faults[number].get_ref();
        match fault.kind {
            FaultKind::Partition | FaultKind::OneWay => self.cut(fault, hosts, false),
            FaultKind::Network => self.network.conditions = conditions(self.scenario),
            _ => hosts.iter().for_each(|host| self.relieve(number, *host)),
        }
    }

    fn relieve(&mut self, number: usize, i: usize) {
        let fault = self.scenario.faults[number].get_ref();
        let state = self.hosts[i].state;
        match fault.kind {
            FaultKind::Suspect => self.hosts[i].suspected -= 1,
            FaultKind::Pause if state == State::Paused => self.go_on(i),
            FaultKind::Freeze if state == State::Frozen => {
                let host = &mut self.hosts[i];
                // As if nothing had happened: what came meanwhile looks as if it came now.
                host.stood.take().into_iter().for_each(|shows| host.clock.set(self.now, shows));
                self.go_on(i);
            }
            FaultKind::Daemon if state == State::Dead => self.restart(i, fault.store, number),
            FaultKind::Crash if state == State::Off => {
                let host = &mut self.hosts[i];
                // A monotonic clock that starts anew: after a reboot it may be behind what was told before.
                let shows = host.clock.local(self.now).0;
                let shows = shows.saturating_add_signed((fault.clock * 1e9) as i64);
                host.clock.set(self.now, Moment(shows));
                host.boot(self.now);
                self.restart(i, fault.store, number);
            }
            FaultKind::Disk => self.hosts[i].daemon.set_disk(Disk::Good),
            FaultKind::Crowd => self.hosts[i].daemon.set_room(usize::MAX),
            FaultKind::Clock if state != State::Frozen => self.slew(i, -fault.rate),
            _ => {}
        }
    }

    /// The clock of a host runs faster by so much from now on.
    fn slew(&mut self, i: usize, rate: f64) {
        self.hosts[i].clock.slew(self.now, rate);
        // What is planned was worked out by the former rate.
        self.act_at(i, self.now);
    }

    /// A host has another weight, of which each hears in its own time.
    fn reweigh(&mut self, i: usize, weight: u32) {
        self.weights[i] = weight;
        for host in 0..self.hosts.len() {
            let most = if host == i { 0.0 } else { self.scenario.detection.joined.seconds() };
            let at = self.now + (self.rng.between(0.0, most) * 1e9) as u64;
            self.plan(at, Event::Reweigh { host });
        }
    }

    /// A host hears of the policy that limits have now.
    fn follow_policy(&mut self, i: usize) {
        self.policy.into_iter().for_each(|policy| self.hosts[i].daemon.set_policy(policy));
    }

    /// A host is as it was, kernel, clock and disk included.
    fn restore(&mut self, i: usize, number: usize) {
        let Some((at, copy)) = self.copies.remove(&(number, i)) else { return };
        let present = &self.hosts[i];
        // Nobody makes a snapshot of a machine that is off, or restores one over a machine that has left.
        if copy.state != State::Running || !matches!(present.state, State::Running | State::Paused)
        {
            return;
        }
        let (life, suspected) = (present.life + 1, present.suspected);
        // What was sent stays sent.
        let sent = (present.bytes, present.far);
        let shows = copy.clock.local(at);
        let host = &mut self.hosts[i];
        self.numbers.remove(&host.id);
        self.numbers.insert(copy.id, i);
        *host = copy;
        host.clock.set(self.now, shows);
        host.kill(State::Running);
        (host.life, host.suspected) = (life, suspected);
        (host.bytes, host.far) = sent;
        self.follow_policy(i);
        self.tell_members(i);
        self.begin_to_look(i);
        self.act_at(i, self.now);
    }

    /// A paused daemon goes on with what it was about to do, then with what has come.
    fn go_on(&mut self, i: usize) {
        (self.hosts[i].state, self.hosts[i].woken) = (State::Running, false);
        // Decided before the pause, carried out after it, when leases may have ended: nothing may break by that.
        if let Some(actions) = self.hosts[i].held.take() {
            self.do_actions(i, actions);
        }
        for (from, message) in std::mem::take(&mut self.hosts[i].waiting) {
            self.hosts[i].receive(self.now, from, &message);
        }
        // Of what changed meanwhile it hears now.
        self.tell_members(i);
        self.begin_to_look(i);
        self.act_at(i, self.now);
    }

    fn restart(&mut self, i: usize, store: Store, fault: usize) {
        let now = self.hosts[i].clock.local(self.now);
        let copy = self.copies.remove(&(fault, i));
        let kept = match store {
            Store::Kept => self.hosts[i].daemon.kept(),
            Store::Lost => PersistentState::default(),
            // Moments are by the wall clock as well, where that is later. Elsewhere it is dead: what is kept has to do.
            Store::Back => PersistentState {
                clock: by_wall_clock(self.now),
                ..copy.map(|(_, it)| it.daemon.kept()).unwrap_or_default()
            },
        };
        if store == Store::Lost {
            // What owns shares is what was on the disk: this is another host, of whom nobody has heard.
            let id = HostId(mix(self.hosts[i].id.0));
            self.numbers.remove(&std::mem::replace(&mut self.hosts[i].id, id));
            self.numbers.insert(id, i);
            // All see one more in the place of the other when they notice it.
            self.hosts.iter_mut().for_each(|other| other.view[i] = false);
        }
        let me = self.hosts[i].id;
        self.hosts[i].daemon.restart(now, me, kept);
        self.hosts[i].start(self.now);
        // It knows nobody in the beginning, but finds who answers soon.
        self.hosts[i].view.fill(false);
        self.hosts[i].view[i] = true;
        self.tell_members(i);
        self.begin_to_look(i);
        self.act(i);
    }

    fn cut(&mut self, fault: &Fault, hosts: &[usize], cut: bool) {
        for &one in hosts {
            for other in (0..self.hosts.len()).filter(|other| !hosts.contains(other)) {
                self.network.cut(one, other, cut);
                if fault.kind == FaultKind::Partition {
                    self.network.cut(other, one, cut);
                }
            }
        }
    }

    /// Whether failure detection would have one host take the other for alive: by itself or through
    /// somebody else, as SWIM does.
    fn sees(&self, one: usize, other: usize) -> bool {
        let answers = |i: usize| self.hosts[i].state == State::Running;
        if one == other {
            return true;
        }
        if !answers(other) || self.hosts[other].suspected > 0 {
            return false;
        }
        // SWIM's indirect probe (Das, Gupta, Motivala, 2002): a member that anybody reaches is
        // alive to all.
        let both = |a, b| self.network.both_ways(a, b);
        both(one, other)
            || (0..self.hosts.len()).any(|i| answers(i) && both(one, i) && both(i, other))
    }

    /// Lets each host notice in its own time what it does not know yet.
    fn plan_notices(&mut self) {
        let detection = self.scenario.detection;
        for host in 0..self.hosts.len() {
            if self.hosts[host].state != State::Running {
                continue;
            }
            for other in 0..self.hosts.len() {
                let sees = self.sees(host, other);
                if self.hosts[host].view[other] == sees {
                    continue;
                }
                // Each pair for itself: views that differ for seconds are what the escrow must stand.
                let delay = match sees {
                    true => self.rng.between(0.0, detection.joined.seconds()),
                    false => {
                        let (earliest, latest) = (detection.earliest, detection.latest);
                        self.rng.between(earliest.seconds(), latest.seconds())
                    }
                };
                let at = self.now + (delay * 1e9) as u64;
                self.plan(at, Event::Notice { host, other });
            }
        }
    }

    fn tell_members(&mut self, i: usize) {
        let alive = (0..self.hosts.len()).filter(|other| self.hosts[i].view[*other]);
        let member = |i: usize| Member { weight: self.weights[i], region: self.regions[i] };
        let members = alive.map(|other| (self.hosts[other].id, member(other))).collect();
        let now = self.hosts[i].clock.local(self.now);
        self.hosts[i].daemon.members(now, &members);
    }
}
