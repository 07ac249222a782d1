//! The shares of hosts in a bad world: never more than the whole, and in a good one nearly all of it.

mod bounds;
mod copies;
mod every;
mod good;
mod lies;
mod recount;
mod regions;
mod scale;
mod world;

use proptest::prelude::*;

use super::*;
use recount::cut_off;
use world::{MS, Net, Random, World};

/// What goes wrong.
#[derive(Clone, Debug)]
enum Event {
    /// A host hears another one no more, for so many milliseconds; both ways or one.
    Cut {
        from: usize,
        to: usize,
        both: bool,
        ms: u64,
    },
    /// One host sees only some of the others, for so long.
    Blind {
        at: usize,
        sees: u8,
        ms: u64,
    },
    /// A host is cut off, and all notice it for some time.
    Lost {
        at: usize,
        ms: u64,
    },
    /// All know who is up, as far as they can.
    Agree,
    /// A daemon stands still.
    Pause {
        at: usize,
        ms: u64,
    },
    /// A daemon dies, between two of its steps or at any time, or the machine does.
    Crash {
        at: usize,
        machine: bool,
        after: Option<u8>,
        ms: u64,
    },
    /// One more host.
    Join,
    /// A host hands over.
    Leave {
        at: usize,
    },
    /// What a host's source sends, in per cent of the limit.
    Demand {
        at: usize,
        key: usize,
        percent: u64,
    },
    Forget {
        at: usize,
        key: usize,
    },
    /// Another weight, which not all hear of at once.
    Weight {
        at: usize,
        weight: u32,
    },
    /// Another region, which not all hear of at once.
    Move {
        at: usize,
        region: u64,
    },
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let host = 0..5usize;
    let event = prop_oneof![
        3 => (0..5usize, 0..5usize, any::<bool>(), 200..4_000u64)
            .prop_map(|(from, to, both, ms)| Event::Cut { from, to, both, ms }),
        2 => (host.clone(), any::<u8>(), 100..3_000u64)
            .prop_map(|(at, sees, ms)| Event::Blind { at, sees, ms }),
        2 => Just(Event::Agree),
        4 => (host.clone(), 2_500..5_000u64).prop_map(|(at, ms)| Event::Lost { at, ms }),
        2 => (host.clone(), 50..4_000u64).prop_map(|(at, ms)| Event::Pause { at, ms }),
        2 => (host.clone(), any::<bool>(), prop::option::of(0..4u8), 10..3_000u64)
            .prop_map(|(at, machine, after, ms)| Event::Crash { at, machine, after, ms }),
        1 => Just(Event::Join),
        1 => host.clone().prop_map(|at| Event::Leave { at }),
        6 => (host.clone(), 0..2usize, prop_oneof![Just(0), 1..300u64])
            .prop_map(|(at, key, percent)| Event::Demand { at, key, percent }),
        1 => (host.clone(), 0..2usize).prop_map(|(at, key)| Event::Forget { at, key }),
        1 => (host.clone(), 1..300u32).prop_map(|(at, weight)| Event::Weight { at, weight }),
        1 => (host, 0..3u64).prop_map(|(at, region)| Event::Move { at, region }),
    ];
    prop::collection::vec((0..600u64, event), 10..40)
}

fn net() -> impl Strategy<Value = Net> {
    (0..30u64, 0..20u64, 0..10u64, prop_oneof![0..5u64, 0..150u64])
        .prop_map(|(loss, twice, late, delay)| Net { loss, twice, late, delay })
}

/// Runs a world through all of it; what was wrong, if anything.
fn run(seed: u64, net: Net, events: &[(u64, Event)], planted: Option<Planted>) -> Option<String> {
    suffer(seed, net, events, planted).wrong
}

fn suffer(seed: u64, net: Net, events: &[(u64, Event)], planted: Option<Planted>) -> World {
    let mut world = begun(seed, net, planted);
    go_on(&mut world, events);
    world
}

/// A world in which nothing has gone wrong yet.
fn begun(seed: u64, net: Net, planted: Option<Planted>) -> World {
    let weights = [100, 100, 50, 200, 100];
    let mut world = World::new(seed, &weights, 3, 2, net);
    world.planted = planted;
    // In one world of two a majority decides about one key, and about the other one if there are enough hosts, or not.
    let [decided, other] = [seed >> 1 & 1, !seed >> 1 & 1].map(|at| world.keys[at as usize]);
    if seed & 9 == 1 {
        world.policies.insert(other, Partition::Conservative);
    }
    match seed & 1 {
        1 => world.decide(decided),
        _ => world.plant(planted),
    }
    let mut random = Random(seed ^ 1);
    // One region, two or three.
    let regions = 1 + random.below(3);
    let places: Vec<u64> = weights.iter().map(|_| random.below(regions)).collect();
    let apart = random.below(120);
    if regions > 1 {
        world.place(&places, apart);
    }
    for at in 0..3 {
        let key = world.keys[0];
        world.hosts[at].demand.insert(key, Share::from_part(random.below(200) as f64 / 100.0));
    }
    world.run(1_500);
    world
}

fn go_on(world: &mut World, events: &[(u64, Event)]) {
    // What ends or begins again by itself.
    let mut later: Vec<(u64, Event)> = Vec::new();
    for (wait, event) in events {
        for _ in 0..*wait {
            world.run(1);
            let now = world.now / MS;
            let due: Vec<(u64, Event)> = later.extract_if(.., |(at, _)| *at <= now).collect();
            for (_, event) in due {
                happen(world, &event, None);
            }
        }
        happen(world, event, Some(&mut later));
        if world.wrong.is_some() {
            return;
        }
    }
    world.run(2_000);
}

/// All goes well from now on: whoever was there is, and sees all others.
fn recover(world: &mut World) {
    world.heal();
    for at in 0..world.hosts.len() {
        let host = &world.hosts[at];
        let was = host.on || !host.members.is_empty() || !host.home().is_none();
        if host.escrow.is_none() && was {
            world.start(at);
        }
    }
    world.all_see_all();
    // Who is leaving goes; the others are told.
    world.run(8_000);
    world.all_see_all();
    for at in 0..world.hosts.len() {
        for key in world.keys.clone() {
            world.hosts[at].demand.insert(key, Share::WHOLE);
        }
    }
}

/// With `later` it begins, without it ends.
fn happen(world: &mut World, event: &Event, later: Option<&mut Vec<(u64, Event)>>) {
    let begins = later.is_some();
    let now = world.now / MS;
    let again = |ms: u64| {
        if let Some(later) = later {
            later.push((now + ms, event.clone()));
        }
    };
    match *event {
        Event::Cut { from, to, both, ms } => {
            let mut ways = vec![(from, to)];
            if both {
                ways.push((to, from));
            }
            for way in ways {
                if begins {
                    world.cut.insert(way);
                } else {
                    world.cut.remove(&way);
                }
            }
            again(ms);
        }
        Event::Blind { at, sees, ms } if begins => {
            let some = |(other, host): (usize, &world::Host)| {
                (sees & (1 << other) != 0).then_some((host.id, host.member()))
            };
            let members = world.hosts.iter().enumerate().filter_map(some).collect();
            world.see(at, members);
            again(ms);
        }
        Event::Lost { at, ms } => {
            let others: Vec<usize> = (0..world.hosts.len()).filter(|other| *other != at).collect();
            for &other in &others {
                for way in [(at, other), (other, at)] {
                    if begins {
                        world.cut.insert(way);
                    } else {
                        world.cut.remove(&way);
                    }
                }
            }
            world.all_see_all();
            if begins {
                let id = world.hosts[at].id;
                for other in others {
                    if !world.hosts[other].on {
                        continue;
                    }
                    let mut members = world.hosts[other].members.clone();
                    members.remove(&id);
                    world.see(other, members);
                }
            }
            again(ms);
        }
        Event::Blind { .. } | Event::Agree => world.all_see_all(),
        Event::Pause { at, ms } => world.pause(at, ms),
        Event::Crash { at, machine, after, ms } => {
            if begins {
                if world.hosts[at].on {
                    world.crash(at, machine, after);
                    again(ms);
                }
            } else if world.hosts[at].escrow.is_none() {
                world.start(at);
            }
        }
        Event::Join => {
            let new = world.hosts.iter().position(|host| !host.on && host.members.is_empty());
            if let Some(at) = new {
                world.start(at);
                world.all_see_all();
            }
        }
        Event::Leave { at } => world.leave(at),
        Event::Demand { at, key, percent } => {
            let key = world.keys[key];
            world.hosts[at].demand.insert(key, Share::from_part(percent as f64 / 100.0));
        }
        Event::Weight { .. } | Event::Move { .. } => {
            let at = match *event {
                Event::Weight { at, weight } => {
                    world.hosts[at].weight = weight;
                    at
                }
                Event::Move { at, region } => {
                    world.hosts[at].region = Region(region);
                    at
                }
                _ => return,
            };
            let members = world.hosts[at].members.clone();
            let (id, new) = (world.hosts[at].id, world.hosts[at].member());
            let changed = |(other, old)| (other, if other == id { new } else { old });
            world.see(at, members.into_iter().map(changed).collect());
        }
        Event::Forget { at, key } => {
            let key = world.keys[key];
            world.forget(at, key);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn never_more_than_the_whole(seed: u64, net in net(), events in events()) {
        // Where disks and names are as they should be, it takes no bounds.
        let planted = (seed & 4 != 0).then_some(Planted::Unbounded);
        let world = suffer(seed, net, &events, planted);
        prop_assert!(world.wrong.is_none(), "{}", world.wrong.unwrap_or_default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn afterwards_the_limit_is_used_again(seed: u64, net in net(), events in events()) {
        // Where all leave nobody is left to take anything.
        let mut events = events;
        for (_, event) in &mut events {
            if let Event::Leave { at } = event {
                *at = 3 + *at % 2;
            }
        }
        let mut world = suffer(seed, net, &events, None);
        recover(&mut world);
        // Home shares are on their way for some seconds.
        world.run(12_000);
        let keys = world.keys.clone();
        let mut admitted = vec![0.0; keys.len()];
        for _ in 0..4_000 {
            world.run(1);
            for (sum, &key) in admitted.iter_mut().zip(&keys) {
                *sum += world.admitted(key) / 4_000.0;
            }
        }
        prop_assert!(world.wrong.is_none(), "{}", world.wrong.unwrap_or_default());
        let gone: Share = world.hosts.iter().filter(|host| host.left).map(world::Host::home).sum();
        for admitted in admitted {
            // Home shares may still be on their way.
            let admitted = admitted + gone.part();
            prop_assert!(admitted > 0.95, "{} of {:?}", admitted, world.shares());
        }
    }
}

/// A daemon that had everything stands still, and others come and go.
#[test]
fn who_has_everything_is_alone_only_when_nothing_is_lent() {
    let net = Net { loss: 0, twice: 0, late: 0, delay: 0 };
    let events = [
        (148, Event::Lost { at: 0, ms: 3637 }),
        (0, Event::Lost { at: 2, ms: 2500 }),
        (0, Event::Pause { at: 0, ms: 50 }),
        (0, Event::Leave { at: 2 }),
        (233, Event::Leave { at: 2 }),
        (334, Event::Pause { at: 0, ms: 3534 }),
        (384, Event::Leave { at: 2 }),
        (508, Event::Cut { from: 0, to: 0, both: false, ms: 200 }),
        (137, Event::Demand { at: 1, key: 1, percent: 1 }),
        (62, Event::Cut { from: 0, to: 0, both: false, ms: 200 }),
        (158, Event::Weight { at: 1, weight: 1 }),
        (0, Event::Agree),
        (237, Event::Leave { at: 2 }),
        (401, Event::Weight { at: 0, weight: 1 }),
        (306, Event::Demand { at: 0, key: 0, percent: 0 }),
        (60, Event::Demand { at: 0, key: 0, percent: 0 }),
        (95, Event::Cut { from: 0, to: 0, both: false, ms: 200 }),
        (1, Event::Pause { at: 0, ms: 1186 }),
        (0, Event::Leave { at: 1 }),
        (0, Event::Leave { at: 1 }),
        (0, Event::Lost { at: 1, ms: 2500 }),
    ];
    for planted in [None, Some(Planted::Unbounded)] {
        assert_eq!(run(7_933_229_093_207_888_854, net, &events, planted), None, "{planted:?}");
    }
}

/// How many random worlds it takes to see a fault.
fn found(planted: Planted, most: u32) -> Option<(u32, String)> {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let worlds = (any::<u64>(), net(), events());
    (1..=most).find_map(|tried| {
        let (seed, net, events) = worlds.new_tree(&mut runner).unwrap().current();
        run(seed, net, &events, Some(planted)).map(|wrong| (tried, wrong))
    })
}

#[test]
fn planted_faults_are_found() {
    for planted in [
        Planted::GrantNotSubtracted,
        Planted::LeaseFromReceipt,
        Planted::ViewsNotCompared,
        Planted::TransferTakenTwice,
        Planted::TransferNotWaited,
        Planted::RestartNotWaited,
    ] {
        let found = found(planted, 100);
        println!("{planted:?}: {found:?}");
        assert!(found.is_some(), "{planted:?} was not found");
    }
}

/// A host is cut off until the others have what it had of a limit that a majority decides about, and comes back.
fn lost_and_found(seed: u64, planted: Option<Planted>) -> Option<String> {
    let mut random = Random(seed);
    let net = Net { loss: random.below(10), twice: 0, late: 0, delay: random.below(20) };
    let mut world = World::new(seed, &[100; 3], 3, 1, net);
    world.planted = planted;
    let key = world.keys[0];
    world.decide(key);
    world.run(12_000);
    for host in &mut world.hosts {
        host.demand.insert(key, Share::WHOLE);
    }
    world.run(1_000);
    let event = Event::Lost { at: random.below(3) as usize, ms: 0 };
    happen(&mut world, &event, Some(&mut Vec::new()));
    world.run(2_500 + random.below(2_000));
    happen(&mut world, &event, None);
    world.run(4_000);
    world.wrong
}

#[test]
fn who_comes_back_waits_for_what_others_were_let_use() {
    for seed in 0..10 {
        assert_eq!(lost_and_found(seed, None), None, "{seed}");
    }
    let found = (0..100).find_map(|seed| {
        lost_and_found(seed, Some(Planted::VotedTwice)).map(|wrong| (seed, wrong))
    });
    println!("{found:?}");
    assert!(found.is_some());
}

#[test]
fn who_leaves_waits_until_votes_that_knew_more_have_ended() {
    let net = Net { loss: 6, twice: 13, late: 1, delay: 19 };
    let ev = vec![
        (455, Event::Agree),
        (518, Event::Cut { from: 0, to: 4, both: false, ms: 200 }),
        (443, Event::Agree),
        (589, Event::Agree),
        (512, Event::Join),
        (547, Event::Agree),
        (444, Event::Crash { at: 0, machine: false, after: Some(0), ms: 1892 }),
        (195, Event::Leave { at: 4 }),
        (280, Event::Agree),
        (120, Event::Join),
        (324, Event::Lost { at: 3, ms: 2636 }),
        (390, Event::Pause { at: 3, ms: 413 }),
        (250, Event::Leave { at: 3 }),
        (312, Event::Crash { at: 0, machine: false, after: None, ms: 19 }),
        (261, Event::Forget { at: 0, key: 1 }),
        (437, Event::Demand { at: 0, key: 1, percent: 0 }),
        (589, Event::Lost { at: 2, ms: 2500 }),
        (203, Event::Join),
        (194, Event::Agree),
    ];
    let world = suffer(16221895249789371437, net, &ev, None);
    assert_eq!(world.wrong, None);
}
