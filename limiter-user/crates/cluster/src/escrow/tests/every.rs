//! Small worlds in which everything happens that can, up to so many faults: what random worlds hit only by chance.
//!
//! A round is as long as that between two messages to a host, so a message of it comes or is lost, before a crash or
//! after it. What happened in which round says all of a world: a run repeats exactly.

use std::hash::{Hash, Hasher};

use stateright::{Checker as _, Model, Property};

use super::*;

/// What a world must never be.
const NO_MORE: &str = "never more than the whole";

/// What happens at the beginning of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    /// What one host sends to another one in this round is lost.
    Lost { from: usize, to: usize },
    /// All that is sent to or by a host in this round is lost.
    Silent { at: usize },
    /// A host is cut off, and all notice it.
    Away { at: usize },
    /// All hear and see each other again.
    Back,
    /// A daemon dies; its kernel goes on.
    Crash { at: usize },
    /// It starts again.
    Start { at: usize },
}

/// A world, and what may happen to it.
struct Small {
    world: World,
    /// How long a round is, ms.
    round: u64,
    rounds: u8,
    faults: usize,
    /// All that may be used at once.
    most: Share,
}

#[derive(Clone, Debug)]
struct State {
    world: World,
    round: u8,
    happened: Vec<(u8, Fault)>,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        (self.round, &self.happened) == (other.round, &other.happened)
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.round, &self.happened).hash(state);
    }
}

impl Model for Small {
    type State = State;
    type Action = Option<Fault>;

    fn init_states(&self) -> Vec<State> {
        vec![State { world: self.world.clone(), round: 0, happened: Vec::new() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Self::Action>) {
        if state.round == self.rounds || state.world.wrong.is_some() {
            return;
        }
        actions.push(None);
        if state.happened.len() == self.faults {
            return;
        }
        let hosts = &state.world.hosts;
        let is_cut = !state.world.cut.is_empty();
        actions.extend(is_cut.then_some(Some(Fault::Back)));
        for (at, host) in hosts.iter().enumerate() {
            if host.escrow.is_none() {
                actions.push(Some(Fault::Start { at }));
                continue;
            }
            actions.extend([Some(Fault::Silent { at }), Some(Fault::Crash { at })]);
            actions.extend((!is_cut).then_some(Some(Fault::Away { at })));
            let others = (0..hosts.len()).filter(|to| *to != at);
            actions.extend(others.map(|to| Some(Fault::Lost { from: at, to })));
        }
    }

    fn next_state(&self, state: &State, action: Self::Action) -> Option<State> {
        let State { mut world, round, mut happened } = state.clone();
        let cut = world.cut.clone();
        let hosts = world.hosts.len();
        happened.extend(action.map(|fault| (round, fault)));
        match action {
            None => {}
            Some(Fault::Lost { from, to }) => _ = world.cut.insert((from, to)),
            Some(Fault::Silent { at }) => {
                world.cut.extend((0..hosts).flat_map(|other| [(at, other), (other, at)]));
            }
            Some(Fault::Away { at }) => cut_off(&mut world, at),
            Some(Fault::Back) => {
                world.cut.clear();
                world.all_see_all();
            }
            Some(Fault::Crash { at }) => world.crash(at, false, None),
            Some(Fault::Start { at }) => world.start(at),
        }
        world.run(self.round);
        if matches!(action, Some(Fault::Lost { .. } | Fault::Silent { .. })) {
            world.cut = cut;
        }
        Some(State { world, round: round + 1, happened })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let keeps = |small: &Self, State { world, .. }: &State| {
            world.wrong.is_none() && world.most <= small.most
        };
        vec![Property::always(NO_MORE, keeps)]
    }
}

impl Small {
    /// What leads to more than the whole, if anything does.
    fn search(self) -> Option<Vec<Option<Fault>>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let checker = self.checker().threads(threads).spawn_dfs().join();
        println!("{} states", checker.unique_state_count());
        checker.discovery(NO_MORE).map(stateright::Path::into_actions)
    }
}

/// Two hosts, the second of which has just come, and gets its part.
fn transfers(planted: Option<Planted>) -> Small {
    let mut world = World::new(1, &[100; 2], 2, 1, good::GOOD);
    world.plant(planted);
    (0..2).for_each(|at| good::demand(&mut world, at, 1.0));
    world.run(600);
    Small { world, round: 200, rounds: 14, faults: 2, most: Share::WHOLE }
}

/// Three hosts, of which two decide about what the third one has.
fn votes(planted: Option<Planted>) -> Small {
    let mut world = World::new(2, &[100; 3], 3, 1, good::GOOD);
    world.planted = planted;
    world.decide(world.keys[0]);
    world.run(12_000);
    (0..3).for_each(|at| good::demand(&mut world, at, 1.0));
    world.run(1_000);
    Small { world, round: 400, rounds: 10, faults: 2, most: Share::WHOLE }
}

/// Two hosts that count, and a third one that has just come: all shares are counted anew.
fn recounts(planted: Option<Planted>) -> Small {
    let mut world = World::new(3, &[100; 3], 2, 1, good::GOOD);
    // Longer than a count takes: otherwise it would have ended by itself before anything comes of that.
    world.home_lease = Some(Duration::from_secs(6));
    world.plant(planted);
    world.run(20_000);
    world.start(2);
    world.all_see_all();
    (0..3).for_each(|at| good::demand(&mut world, at, 1.0));
    world.run(600);
    // Whoever is cut off for longer than its lease has its floor beside all of the others.
    world.excused = true;
    let most = Share::WHOLE + Share::WHOLE.times(3, 100);
    Small { world, round: 1_000, rounds: 10, faults: 2, most }
}

#[test]
fn nothing_that_can_happen_breaks_a_limit() {
    for (small, bugs) in [
        (transfers as fn(Option<Planted>) -> Small, &[Planted::TransferNotWaited][..]),
        (votes, &[Planted::VotedTwice]),
        (recounts, &[Planted::HomeLeaseNotWaited]),
    ] {
        assert_eq!(small(None).search(), None);
        for bug in bugs {
            let found = small(Some(*bug)).search();
            println!("{bug:?}: {found:?}");
            assert!(found.is_some(), "{bug:?} was not found");
        }
    }
}
