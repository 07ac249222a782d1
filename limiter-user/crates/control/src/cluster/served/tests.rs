//! A host that has all of a limit, and a `limiter-serve` that asks for it.

use super::*;
use cluster::HostId;
use cluster::escrow::{PersistentState, Settings};
use cluster::link::ClusterId;

const MS: u64 = 1_000_000;

struct World {
    escrow: Escrow,
    served: ServedKeys,
    names: Keys,
    now: Moment,
}

fn asked(admitted: u64, denied: u64) -> KeyAsked {
    let (key, requests, window_ns, burst, age_ns) = ([1, 2], 100, 1_000 * MS, 100, 500 * MS);
    KeyAsked { key, requests, window_ns, burst, age_ns, admitted, denied }
}

impl World {
    fn new() -> Self {
        let now = Moment(1_000 * MS);
        let settings = Settings { alone: true, ..Settings::new(HostId(1), 1) };
        let escrow = Escrow::new(settings, PersistentState::founder(), now);
        Self { escrow, served: ServedKeys::default(), names: Keys::of(ClusterId(1)), now }
    }

    fn ask(&mut self, run: u64, keys: &[KeyAsked]) -> Vec<(f64, u64)> {
        let asked = SharesAsked { serve: 1, run, alone: 7, keys: keys.to_vec(), fallback: None };
        let told = self.served.ask(self.now, &self.names, &mut self.escrow, &asked);
        told.shares.into_iter().map(|(share, ns)| (share.part(), ns / MS)).collect()
    }

    fn pass(&mut self, ms: u64) {
        self.now = Moment(self.now.0 + ms * MS);
    }

    /// The escrow decides so, until then.
    fn grant(&mut self, part: f64, ms: u64) {
        let until = Moment(self.now.0 + ms * MS);
        let grant = Granted { key: self.names.named([1, 2]), share: Share::from_part(part), until };
        self.served.grant(self.now, &[grant]);
    }
}

#[test]
fn what_is_decided_is_told_for_a_moment() {
    let mut world = World::new();
    assert_eq!(world.ask(1, &[asked(25, 25)]), [(0.0, 0)], "nothing is decided yet");
    assert_eq!((world.served.len(), world.served.alone()), (1, 7));
    // A hundred a second, of a hundred that may come: what is asked of a key is told to the escrow.
    let key = world.names.named([1, 2]);
    world.pass(25);
    let out = world.escrow.poll(world.now);
    assert!(out.grants.iter().any(|grant| grant.key == key), "{:?}", out.grants);
    world.grant(0.5, 2_000);
    assert_eq!(world.ask(1, &[asked(25, 25)]), [(0.5, 500)]);
    world.pass(1_900);
    assert_eq!(world.ask(1, &[asked(25, 25)]), [(0.5, 100)]);
    world.pass(100);
    assert_eq!(world.ask(1, &[asked(25, 25)]), [(0.0, 0)]);
    // Counts that begin anew are of the same key, and others are none.
    world.grant(0.5, 500);
    let nobody = KeyAsked { requests: 0, key: [3, 4], ..asked(1, 0) };
    assert_eq!(world.ask(1, &[asked(1, 0), nobody]), [(0.5, 500), (0.0, 0)]);
    // Who names it no more has it no more.
    world.pass(1_000);
    world.served.forget(world.now, &mut world.escrow);
    assert_eq!(world.served.len(), 0);
}

#[test]
fn others_hear_of_less_when_it_was_taken_or_what_was_told_has_ended() {
    let lowered = || {
        let mut world = World::new();
        world.ask(1, &[asked(25, 25)]);
        world.grant(0.5, 500);
        world.ask(1, &[asked(25, 25)]);
        assert!(!world.served.withholds(world.now));
        world.grant(0.25, 500);
        assert!(world.served.withholds(world.now));
        world
    };
    let mut world = lowered();
    world.pass(499);
    assert!(world.served.withholds(world.now));
    world.pass(1);
    assert!(!world.served.withholds(world.now));

    let mut world = lowered();
    world.pass(25);
    assert_eq!(world.ask(1, &[asked(25, 25)])[0].0, 0.25);
    assert!(world.served.withholds(world.now), "it is on its way");
    world.pass(25);
    world.ask(1, &[asked(25, 25)]);
    assert!(!world.served.withholds(world.now));

    // Another process has not taken what the one before was told.
    let mut world = lowered();
    world.ask(1, &[asked(25, 25)]);
    world.ask(2, &[asked(25, 25)]);
    assert!(world.served.withholds(world.now));

    // Who does not name a key any more has not given it up.
    let mut world = lowered();
    world.ask(1, &[]);
    world.ask(1, &[]);
    assert!(world.served.withholds(world.now));
}
