//! Hosts, a store and a judge: whatever is lost, late or dead, all hosts together admit no more than is promised.

use model::lease::{FLOOR, LOCAL_PART, in_store, most};
use model::meter::Limit;
use model::{Rate, Tier};
use proptest::prelude::*;

use super::*;

const KEY: KeyId = KeyId::from_bytes([0, 0, 0, 0, 0, 7]);

fn ms(ms: u64) -> Moment {
    Moment(ms * 1_000_000)
}

/// As the script of the store does it.
struct Store {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Moment,
}

impl Store {
    fn new(tier: &Tier) -> Self {
        let kept = in_store(tier, MAX_LEASE);
        let burst = kept.burst.unwrap() as f64;
        let rate = kept.requests as f64 / kept.window.as_secs_f64();
        Self { rate, burst, tokens: burst, at: Moment(0) }
    }

    fn add(&mut self, now: Moment, more: f64) {
        let earned = self.rate * now.since(self.at).as_secs_f64();
        (self.tokens, self.at) = ((self.tokens + earned + more).min(self.burst), now);
    }

    fn take(&mut self, now: Moment, most: u64, kept: &Limit) -> u64 {
        self.add(now, 0.0);
        // Its state is a debt: under a smaller burst less has room.
        let there = self.tokens - (self.burst - kept.burst.unwrap() as f64);
        let taken = (there.max(0.0).floor() as u64).min(most);
        self.tokens -= taken as f64;
        taken
    }
}

/// A bucket of the kernel: a packet, and a share of a part of the burst.
struct Bucket {
    tokens: f64,
    share: f64,
    until: Moment,
    at: Moment,
}

impl Bucket {
    fn earn(&mut self, now: Moment, tier: &Tier) {
        let rate = tier.rate.per_second();
        let local = (tier.burst as f64 - 1.0).max(0.0) / LOCAL_PART as f64;
        let mut go_on = |share: f64, to: Moment| {
            let earned = share * rate * to.since(self.at).as_secs_f64();
            self.tokens = (self.tokens.min(1.0 + share * local) + earned).min(1.0 + share * local);
            self.at = Moment(self.at.0.max(to.0));
        };
        go_on(self.share.max(FLOOR.part()), Moment(self.until.0.min(now.0)));
        if now >= self.until {
            self.share = 0.0;
            go_on(FLOOR.part(), now);
        }
    }

    fn admit(&mut self, most: u64) -> u64 {
        let admitted = (self.tokens.floor() as u64).min(most);
        self.tokens -= admitted as f64;
        admitted
    }
}

/// Asks and answers on their way to the host, and when they are there.
type OnTheWay = Vec<(Moment, u64, Option<u64>)>;

struct Host {
    leases: Leases<()>,
    bucket: Bucket,
    way: OnTheWay,
    hangs: Moment,
}

struct World {
    tier: Tier,
    store: Store,
    hosts: Vec<Host>,
    now: Moment,
    /// What a bucket that may do what is promised has left.
    judge: f64,
    admitted: u64,
}

/// What a host does in a step.
#[derive(Clone, Copy, Debug)]
struct Act {
    host: usize,
    /// What it believes its source to send, percent of the limit.
    demand: u32,
    sends: u64,
    /// How long its answer takes, ms; it is lost at 0.
    takes: u64,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Crash,
    Hang(u64),
    StoreLost,
    Idle,
}

impl World {
    fn new(rate: &str, burst: u64, hosts: usize) -> Self {
        let tier = Tier::new(rate.parse::<Rate>().unwrap(), Some(burst)).unwrap();
        let host = |_| Host {
            leases: leases(Moment(0)),
            bucket: Bucket { tokens: 1.0, share: 0.0, until: Moment(0), at: Moment(0) },
            way: Vec::new(),
            hangs: Moment(0),
        };
        let judge = most(&tier, Duration::ZERO) + hosts as f64;
        let hosts = (0..hosts).map(host).collect();
        Self { store: Store::new(&tier), tier, hosts, now: Moment(0), judge, admitted: 0 }
    }

    fn terms(&self) -> Terms {
        Terms {
            rate: self.tier.rate.per_second(),
            burst: self.tier.burst,
            on_error: OnError::Lease,
        }
    }

    fn pass(&mut self, span: Duration) {
        let next = self.now.after(span);
        let most = most(&self.tier, Duration::ZERO) + self.hosts.len() as f64;
        self.judge = (self.judge + self.tier.rate.per_second() * span.as_secs_f64()).min(most);
        self.now = next;
    }

    fn act(&mut self, act: Act) {
        let (now, terms) = (self.now, self.terms());
        let host = &mut self.hosts[act.host];
        host.bucket.earn(now, &self.tier);
        match act.fault {
            Fault::Crash => (host.leases, host.way) = (leases(now), Vec::new()),
            Fault::Hang(span) => host.hangs = now.after(Duration::from_millis(span)),
            Fault::StoreLost => host.leases.store(now, false),
            Fault::Idle if now >= host.hangs => {
                host.leases.forget(now, KEY);
                (host.bucket.share, host.bucket.until) = (0.0, now);
                host.bucket.earn(now, &self.tier);
            }
            Fault::None | Fault::Idle => {}
        }
        if now >= host.hangs {
            let way = mem::take(&mut host.way);
            let (there, later) = way.into_iter().partition(|(at, ..)| *at <= now);
            host.way = later;
            let there: OnTheWay = there;
            there.into_iter().for_each(|(_, number, got)| host.leases.answer(now, number, got));
            let part = Share::from_part(f64::from(act.demand) / 100.0);
            if act.fault != Fault::Idle {
                host.leases.demand(now, KEY, || (), terms, part);
            }
            // First the kernel, then the store.
            for granted in host.leases.poll(now) {
                (host.bucket.share, host.bucket.until) = (granted.share.part(), granted.until);
                host.bucket.earn(now, &self.tier);
            }
            if act.fault != Fault::StoreLost {
                host.leases.store(now, true);
            }
            for ask in host.leases.asks(now, 10) {
                match ask {
                    Ask::GiveBack((), tokens) => self.store.add(now, tokens as f64),
                    Ask::Buy(number, (), tokens, length) => {
                        let got = self.store.take(now, tokens, &in_store(&self.tier, length));
                        let at = now.after(Duration::from_millis(act.takes));
                        if act.takes > 0 {
                            host.way.push((at, number, Some(got)));
                        }
                    }
                }
            }
        }
        self.send(act.host, act.sends);
    }

    fn send(&mut self, host: usize, sends: u64) {
        let bucket = &mut self.hosts[host].bucket;
        bucket.earn(self.now, &self.tier);
        let admitted = bucket.admit(sends);
        self.admitted += admitted;
        self.judge -= admitted as f64;
        assert!(self.judge > -0.01, "{} too many at {:?}", -self.judge, self.now);
    }
}

fn leases(now: Moment) -> Leases<()> {
    let mut leases = Leases::new(now, now.0);
    leases.store(now, true);
    leases
}

fn acts(hosts: usize) -> impl Strategy<Value = Vec<(u64, Act)>> {
    let fault = prop_oneof![
        40 => Just(Fault::None),
        1 => Just(Fault::Crash),
        1 => (1..3_000_u64).prop_map(Fault::Hang),
        1 => Just(Fault::StoreLost),
        2 => Just(Fault::Idle),
    ];
    let demand = prop_oneof![0..200_u32, Just(200), Just(0), Just(30)];
    let sends = prop_oneof![3 => Just(0), 2 => Just(1_000_000), 2 => 1..100_u64];
    let takes = prop_oneof![8 => 1..20_u64, 1 => Just(0), 1 => 100..2_000_u64];
    let step = prop_oneof![6 => 0..40_u64, 1 => 0..1_500_u64];
    let act = (0..hosts, demand, sends, takes, fault)
        .prop_map(|(host, demand, sends, takes, fault)| Act { host, demand, sends, takes, fault });
    prop::collection::vec((step, act), 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn hosts_admit_no_more_than_is_promised(
        acts in acts(4),
        (rate, burst) in prop_oneof![
            Just(("1000pps", 1200)), Just(("1000pps", 20)), Just(("50pps", 500)), Just(("100kpps", 1000)),
        ],
    ) {
        let mut world = World::new(rate, burst, 4);
        for (pause, act) in acts {
            world.pass(Duration::from_millis(pause));
            world.act(act);
        }
    }
}

/// Half a minute in which each host is looked at every 25 ms, and believes its part of the limit to be sent.
fn steady(rate: &str, burst: u64, demands: &[u32]) -> f64 {
    let mut world = World::new(rate, burst, demands.len());
    let rate = world.tier.rate.per_second();
    let mut counted = 0;
    let mut sent = vec![0.0; demands.len()];
    for step in 0..30_000 {
        world.pass(Duration::from_millis(1));
        for (host, demand) in demands.iter().enumerate() {
            sent[host] += rate * 0.001 * f64::from(*demand) / 100.0;
            let sends = sent[host] as u64;
            sent[host] -= sends as f64;
            // Hosts look at their buckets at different moments.
            match (step + 7 * host) % 25 {
                0 => world.act(Act { host, demand: *demand, sends, takes: 3, fault: Fault::None }),
                _ => world.send(host, sends),
            }
        }
        if step == 4_999 {
            counted = world.admitted;
        }
    }
    (world.admitted - counted) as f64 / (rate * 25.0)
}

#[test]
fn what_is_sent_is_admitted_up_to_the_limit() {
    for (rate, burst) in [("1000pps", 1200), ("1000pps", 20), ("100kpps", 120_000), ("200pps", 240)]
    {
        for demands in [&[200, 200, 200][..], &[300], &[40, 300, 80], &[60, 60]] {
            let part = steady(rate, burst, demands);
            assert!((0.95..=1.001).contains(&part), "{rate} {burst} {demands:?}: {part}");
        }
        let part = steady(rate, burst, &[40, 40]);
        assert!((0.79..=0.81).contains(&part), "{rate} {burst} within the limit: {part}");
    }
}

/// A lease of a single host, as the store grants it.
fn buy(leases: &mut Leases<()>, now: Moment, part: f64, most: u64) -> Option<u64> {
    let terms = Terms { rate: 1000.0, burst: 1000, on_error: OnError::Lease };
    leases.demand(now, KEY, || (), terms, Share::from_part(part));
    let asks = leases.asks(now, 10);
    let [Ask::Buy(number, (), tokens, _)] = asks[..] else { return None };
    leases.answer(now, number, Some(tokens.min(most)));
    Some(tokens)
}

#[test]
fn a_lease_is_renewed_at_half_and_what_is_not_used_is_given_back() {
    let mut it = leases(ms(0));
    assert_eq!(buy(&mut it, ms(0), 0.8, 1_000), Some(170));
    let granted = it.poll(ms(0));
    assert_eq!((granted.len(), granted[0].until), (1, ms(0).after(MIN_LEASE.mul_f64(1.0004))));
    assert!((granted[0].share.part() - 0.85).abs() < 0.01);
    assert_eq!(buy(&mut it, ms(90), 0.8, 1_000), None);
    assert_eq!(buy(&mut it, ms(101), 0.8, 1_000), Some(86));
    // Half of it is not wanted any more.
    let terms = Terms { rate: 1000.0, burst: 1000, on_error: OnError::Lease };
    it.demand(ms(120), KEY, || (), terms, Share::from_part(0.2));
    let Some(Ask::GiveBack((), back)) = it.asks(ms(120), 10).pop() else { panic!("all is kept") };
    assert!((110..120).contains(&back), "{back}");
    assert!((it.poll(ms(120))[0].share.part() - 0.22).abs() < 0.02);
    it.forget(ms(120), KEY);
    let Some(Ask::GiveBack((), rest)) = it.asks(ms(120), 10).pop() else { panic!("all is kept") };
    assert!((35..45).contains(&rest), "{rest}");
    assert_eq!(it.counters.given_back, back + rest);
}

#[test]
fn ten_thousand_sources_ask_for_twenty_thousand_leases_a_second() {
    let mut it = leases(ms(0));
    let terms = Terms { rate: 100.0, burst: 1000, on_error: OnError::Lease };
    let mut asked = 0;
    for look in 0..200 {
        let now = ms(25 * look);
        for source in 0..10_000 {
            it.demand(now, KeyId::from_hash(source), || (), terms, Share::WHOLE);
        }
        for ask in it.asks(now, 4_096) {
            let Ask::Buy(number, (), tokens, _) = ask else { continue };
            asked += u64::from(look >= 80);
            it.answer(now, number, Some(tokens));
        }
    }
    assert!((50_000..=60_000).contains(&asked), "in three seconds: {asked}");
    assert_eq!(it.count(ms(5_000)), (10_000, 10_000));
}

#[test]
fn without_the_store_each_limit_does_what_is_said() {
    let mut it = leases(ms(0));
    for (number, on_error) in OnError::ALL.into_iter().enumerate() {
        let key = KeyId::from_hash(number as u64);
        it.demand(
            ms(0),
            key,
            || (),
            Terms { rate: 1000.0, burst: 1000, on_error },
            Share::from_part(0.5),
        );
    }
    for ask in it.asks(ms(0), 10) {
        let Ask::Buy(number, (), tokens, _) = ask else { panic!("{ask:?}") };
        it.answer(ms(0), number, Some(tokens));
    }
    assert_eq!(it.poll(ms(0)).len(), 3);
    it.store(ms(50), false);
    let told = it.poll(ms(50));
    let of = |on_error| {
        KeyId::from_hash(OnError::ALL.iter().position(|it| *it == on_error).unwrap() as u64)
    };
    // One that is leased stays as it is, until its end.
    assert!(told.len() == 2 && told.iter().all(|granted| granted.key != of(OnError::Lease)));
    let share = |key| told.iter().find(|granted| granted.key == key).unwrap().share;
    assert_eq!([of(OnError::Closed), of(OnError::Open)].map(share), [Share::NONE, Share::WHOLE]);
    assert!(it.is_open() && it.asks(ms(60), 10).is_empty());
    assert_eq!(it.poll(ms(400)).len(), 0);
    assert_eq!(
        it.poll(ms(600)).iter().map(|granted| granted.key).collect::<Vec<_>>(),
        [of(OnError::Open)]
    );
    // It is there again: all ask anew.
    it.store(ms(700), true);
    assert_eq!(it.asks(ms(700), 10).len(), 3);
}
