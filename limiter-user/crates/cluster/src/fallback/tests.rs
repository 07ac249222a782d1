//! Hosts with a `limiter-serve` each, whose messages are late or lost, and who die and lose the store.

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use super::*;

/// All times here are ms of the world.
type Ms = u64;
const STEP: Ms = 5;

/// As `limiter-serve` goes by what it is told.
#[derive(Clone, Copy, Debug)]
struct Serve {
    stance: Stance,
    until: Ms,
    unsure: Ms,
    due: Ms,
}

impl Serve {
    fn new(now: Ms) -> Self {
        Self { stance: Stance::Between, until: now, unsure: now, due: now }
    }

    fn stance(&self, now: Ms) -> Stance {
        if now < self.until { self.stance } else { Stance::Between }
    }

    fn set(&mut self, stance: Stance, until: Ms) {
        (self.stance, self.until) = (stance, until);
    }
}

struct Host {
    daemon: Option<Fallback>,
    /// Which hosts that daemon has heard since it began.
    met: BTreeSet<usize>,
    serve: Option<Serve>,
    has: bool,
    /// Its clock began so, and goes so much too fast, ppm.
    clock: (u64, u64),
    mark: Mark,
    beat: Ms,
}

impl Host {
    fn moment(&self, now: Ms) -> Moment {
        Moment(self.clock.0 + now * (1_000_000 + self.clock.1))
    }
}

struct World {
    now: Ms,
    random: SmallRng,
    hosts: Vec<Host>,
    /// When what arrives, from whom, for whom.
    flying: Vec<(Ms, usize, usize, Said)>,
    /// Between whom nothing passes, and since when.
    cut: BTreeMap<(usize, usize), Ms>,
    /// The longest delay, and how many of a hundred messages are lost.
    network: (Ms, u32),
    /// How many of a hundred answers of daemons are lost.
    lost_answers: u32,
}

fn id(host: usize) -> HostId {
    HostId(host as u64 + 1)
}

impl World {
    fn new(count: usize, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let host = |_| Host {
            daemon: None,
            met: BTreeSet::new(),
            serve: Some(Serve::new(0)),
            has: true,
            clock: (random.random_range(0..1 << 50), random.random_range(0..20_000)),
            mark: Mark::default(),
            beat: 0,
        };
        let hosts = (0..count).map(host).collect();
        let (flying, cut) = (Vec::new(), BTreeMap::new());
        let mut world =
            Self { now: 0, random, hosts, flying, cut, network: (20, 0), lost_answers: 0 };
        (0..count).for_each(|host| world.start(host));
        world
    }

    fn start(&mut self, host: usize) {
        let now = self.hosts[host].moment(self.now);
        self.hosts[host].daemon = Some(Fallback::new(self.random.random(), now));
        self.hosts[host].met.clear();
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_ratio(percent, 100)
    }

    fn stances(&self) -> Vec<Option<Stance>> {
        self.hosts.iter().map(|host| host.serve.map(|serve| serve.stance(self.now))).collect()
    }

    /// One step; whether the hosts agree.
    fn step(&mut self) -> bool {
        self.now += STEP;
        let now = self.now;
        let (due, flying) = self.flying.drain(..).partition(|(at, ..)| *at <= now);
        self.flying = flying;
        for (_, from, to, said) in due {
            let moment = self.hosts[to].moment(now);
            // As it would be sent.
            let said = Said::read(&said.bytes()).unwrap();
            if let Some(daemon) = &mut self.hosts[to].daemon {
                daemon.hear(moment, id(from), said);
            }
        }
        for at in 0..self.hosts.len() {
            self.poll(at);
            self.tell(at);
        }
        let stances = self.stances();
        let is_any = |stance| stances.contains(&Some(stance));
        !(is_any(Stance::Store) && is_any(Stance::Escrow))
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains_key(&(one.min(other), one.max(other)))
    }

    /// The daemon of a host says what is to be said.
    fn tell(&mut self, at: usize) {
        let now = self.now;
        // Membership is late.
        let is_cut = |other: &usize, ms| {
            let since = self.cut.get(&(at.min(*other), at.max(*other)));
            since.is_some_and(|since| now - since >= ms)
        };
        let others: Vec<_> = (0..self.hosts.len()).filter(|other| *other != at).collect();
        let mut met = std::mem::take(&mut self.hosts[at].met);
        met.extend(others.iter().filter(|other| !is_cut(other, 0)));
        let there = met.iter().filter(|other| !is_cut(other, 3_000)).copied().map(id).collect();
        // Who was a member is known to be lost later than it is none. Who never was one has shares that nobody has.
        let lost = others.iter().any(|other| is_cut(other, 6_000) || !met.contains(other));
        let host = &mut self.hosts[at];
        host.met = met;
        let moment = host.moment(now);
        let Some(daemon) = &mut host.daemon else { return };
        daemon.set_hosts(moment, there, lost);
        let mark = daemon.mark(moment);
        let beat = daemon.beat(moment);
        let is_due = mark != host.mark || beat.is_some_and(|_| now >= host.beat);
        if !is_due {
            return;
        }
        (host.mark, host.beat) = (mark, now + beat.unwrap_or_default().as_millis() as Ms);
        let said: Vec<_> =
            others.iter().map(|other| (*other, daemon.say(moment, id(*other)))).collect();
        for (other, said) in said {
            let (delay, lost) = self.network;
            if !self.is_cut(at, other) && !self.chance(lost) {
                let arrives = now + self.random.random_range(1..=delay);
                self.flying.push((arrives, at, other, said));
            }
        }
    }

    /// The `limiter-serve` of a host asks its daemon.
    fn poll(&mut self, at: usize) {
        let now = self.now;
        let lost = self.chance(self.lost_answers);
        let pause = self.random.random_range(25..60);
        let host = &mut self.hosts[at];
        let moment = host.moment(now);
        let Some(serve) = host.serve.as_mut().filter(|serve| now >= serve.due) else { return };
        serve.due = now + pause;
        let stance = serve.stance(now);
        if stance == Stance::Store && !host.has {
            serve.set(Stance::Between, now);
        }
        let stance = serve.stance(now);
        match &mut host.daemon {
            Some(daemon) => {
                let served = Served { serve: 1, at: now, has: host.has, stance };
                let (told, lasts) = daemon.report(moment, Some(served));
                serve.unsure = now;
                match told {
                    // What it was told before goes on until its end.
                    _ if lost => serve.due = now + 500,
                    Stance::Store => serve.set(told, now + 2_000),
                    Stance::Escrow => serve.set(told, now + lasts.as_millis() as Ms),
                    Stance::Between => serve.set(told, now),
                }
            }
            None if host.has && (stance == Stance::Store || now - serve.unsure >= 2_000) => {
                serve.set(Stance::Store, now + 2_000);
            }
            None => {}
        }
    }

    fn happen(&mut self) {
        let count = self.hosts.len();
        let (one, other) = (self.random.random_range(0..count), self.random.random_range(0..count));
        let now = self.now;
        match self.random.random_range(0..9) {
            0 | 1 => self.hosts[one].has ^= true,
            2 => {
                let has = self.random.random();
                self.hosts.iter_mut().for_each(|host| host.has = has);
            }
            3 if one != other => {
                let pair = (one.min(other), one.max(other));
                if self.cut.remove(&pair).is_none() {
                    self.cut.insert(pair, now);
                }
            }
            4 => self.hosts[one].daemon = None,
            5 => self.start(one),
            6 => self.hosts[one].serve = None,
            7 => self.hosts[one].serve = Some(Serve::new(now)),
            _ => {
                self.network =
                    (self.random.random_range(1..3_000), self.random.random_range(0..90));
                self.lost_answers = self.random.random_range(0..50);
            }
        }
    }

    fn run(&mut self, ms: Ms) -> bool {
        let end = self.now + ms;
        while self.now < end {
            if !self.step() {
                return false;
            }
        }
        true
    }

    /// Runs until all hosts have this stance: how long that took, ms.
    fn until(&mut self, stance: Stance) -> Ms {
        let begun = self.now;
        while self.stances().iter().any(|own| *own != Some(stance)) {
            assert!(self.step(), "{:?}", self.stances());
            assert!(self.now < begun + 10_000, "{:?} and not {stance:?}", self.stances());
        }
        self.now - begun
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 192 } else { 2_048 }))]

    #[test]
    fn no_host_asks_the_store_while_another_one_uses_its_share(seed: u64, count in 1_usize..6) {
        let mut world = World::new(count, seed);
        for _ in 0..60 {
            let ms = world.random.random_range(10..1_000);
            prop_assert!(world.run(ms), "{:?} at {}", world.stances(), world.now);
            world.happen();
        }
        // All is well again, but that some may have no store.
        world.cut.clear();
        (world.network, world.lost_answers) = ((20, 5), 0);
        for host in 0..count {
            if world.hosts[host].daemon.is_none() {
                world.start(host);
            }
            let now = world.now;
            world.hosts[host].serve.get_or_insert(Serve::new(now));
        }
        let all_have = world.hosts.iter().all(|host| host.has);
        world.until(if all_have { Stance::Store } else { Stance::Escrow });
    }
}

#[test]
fn all_change_within_half_a_second_and_go_back_as_fast() {
    let mut world = World::new(3, 1);
    assert!(world.run(4_000));
    assert_eq!(world.stances(), [Some(Stance::Store); 3]);
    world.hosts[1].has = false;
    let there = world.until(Stance::Escrow);
    assert!(world.run(5_000));
    assert_eq!(world.stances(), [Some(Stance::Escrow); 3]);
    world.hosts[1].has = true;
    let back = world.until(Stance::Store);
    assert!(there <= 500 && back <= 500, "{there} ms, {back} ms");
}

#[test]
fn who_is_cut_off_has_its_floor_and_the_others_keep_the_store() {
    let mut world = World::new(3, 2);
    assert!(world.run(4_000));
    world.hosts[2].has = false;
    world.cut.extend([((0, 2), world.now), ((1, 2), world.now)]);
    assert!(world.run(10_000));
    let (store, between) = (Some(Stance::Store), Some(Stance::Between));
    assert_eq!(world.stances(), [store, store, between]);
    world.cut.clear();
    world.until(Stance::Escrow);
    // Whoever hears one of two is not to keep that one from the store.
    world.cut.insert((0, 2), world.now);
    assert!(world.run(3_000));
    assert_eq!(world.stances(), [store, store, between]);
}

#[test]
fn a_store_that_is_lost_to_all_is_no_matter_of_who_is_asked_and_a_host_alone_waits_for_nobody() {
    let mut world = World::new(4, 3);
    assert!(world.run(4_000));
    // One of them asks no store.
    world.hosts[3].serve = None;
    world.run(6_000);
    world.hosts.iter_mut().for_each(|host| host.has = false);
    world.run(500);
    assert_eq!(world.stances()[..3], [Some(Stance::Escrow); 3]);
    let mut world = World::new(1, 4);
    assert!(world.run(4_000));
    for (has, stance) in [(false, Stance::Escrow), (true, Stance::Store)] {
        world.hosts[0].has = has;
        assert!(world.until(stance) <= 1_200, "{stance:?}");
    }
}

#[test]
fn a_new_run_goes_by_what_the_one_before_may_have_promised_and_allowed() {
    let at = |ms: u64| Moment((1_000 + ms) * 1_000_000);
    let mut host = Fallback::new(7, at(0));
    host.set_hosts(at(0), BTreeSet::from([HostId(2)]), false);
    let said = |ms, lacks, yields| Said {
        run: 9,
        sent: at(ms),
        lacks,
        yields,
        blocked: false,
        echo: Some((7, at(ms))),
    };
    let served = |at, has| Served { serve: 1, at, has, stance: Stance::Between };
    host.hear(at(1), HostId(2), said(1, false, false));
    assert_eq!(host.say(at(1), HostId(2)).echo, None, "its share may be in use");
    assert_eq!(
        host.report(at(2), Some(served(2, true))).0,
        Stance::Between,
        "it may have promised"
    );
    let mut host = Fallback::new(7, at(0));
    for ms in (0..6_000).step_by(100) {
        host.set_hosts(at(ms), BTreeSet::from([HostId(2)]), false);
        host.hear(at(ms), HostId(2), said(ms, true, true));
        let said = host.say(at(ms), HostId(2));
        assert_eq!(said.yields, ms >= 5_000, "the store may be asked at {ms} ms");
        assert_eq!(said.echo, Some((9, at(ms))));
    }
    // Whoever asks the store has reported: nobody else has to be waited for.
    assert_eq!(host.report(at(6_000), Some(served(6_000, false))).0, Stance::Escrow);
    assert!(host.say(at(6_000), HostId(2)).yields);
    host.leave_alone(at(6_001), 2);
    assert!(!host.say(at(6_001), HostId(2)).yields, "another one asks it without being told to");
    // A request that was overtaken says nothing of the present.
    let late = Served { stance: Stance::Store, ..served(5_999, true) };
    assert_eq!(host.report(at(6_002), Some(late)), (Stance::Between, Duration::ZERO));
}

#[test]
fn bytes_of_others_do_no_harm() {
    for length in 0..40 {
        let _ = Said::read(&vec![FORM; length]);
    }
    assert!(Said::read(&[]).is_err() && Said::read(&[FORM + 1, 0]).is_err());
}
