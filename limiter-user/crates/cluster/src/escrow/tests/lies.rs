//! Hosts that do not tell what their sources send.

use super::super::*;
use super::world::{Net, World};

const GOOD: Net = Net { loss: 0, twice: 0, late: 0, delay: 2 };
const BAD: Net = Net { loss: 10, twice: 10, late: 2, delay: 40 };
const LIAR: usize = 2;

/// What each of three hosts uses on the average, when they have this demand and the last one says `lie` of its
/// own.
fn used(seed: u64, net: Net, demands: [f64; 3], lie: Option<Share>) -> [f64; 3] {
    let mut world = World::new(seed, &[100; 3], 3, 1, net);
    let key = world.keys[0];
    world.run(30_000);
    for (at, part) in demands.into_iter().enumerate() {
        world.hosts[at].demand.insert(key, Share::from_part(part));
    }
    world.lies.extend(lie.map(|lie| (LIAR, lie)));
    world.run(2_000);
    let mut sums = [0.0; 3];
    for _ in 0..4_000 {
        world.run(1);
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum += world.share(at, key).part().min(demands[at]) / 4_000.0;
        }
    }
    // Whatever is said, all together have no more than the limit, at any step.
    assert_eq!(world.wrong, None);
    sums
}

#[test]
fn who_claims_more_than_it_has_gets_a_fair_share_at_most() {
    for seed in 0..6 {
        for lie in [Share::from_units(u64::MAX), Share::WHOLE, Share::from_part(40.0)] {
            let [one, two, liar] = used(seed, GOOD, [1.0, 1.0, 1.0], Some(lie));
            println!("all want all: {one:.3}, {two:.3}; who says {lie:?} has {liar:.3}");
            assert!(one.min(two) > 0.31 && liar < 0.36, "{seed}: {one} {two} {liar}");
            // Who wants little gets it, beside what others want and claim.
            let [one, two, liar] = used(seed, GOOD, [0.15, 1.0, 1.0], Some(lie));
            assert!(one > 0.145 && two > 0.39 && liar < 0.45, "{seed}: {one} {two} {liar}");
        }
    }
}

#[test]
fn who_claims_less_than_it_has_harms_itself() {
    let mut least = 1.0_f64;
    for seed in 0..6 {
        let [one, two, liar] = used(seed, GOOD, [1.0, 1.0, 1.0], Some(Share::NONE));
        println!("who says nothing has {liar:.3}, the others {one:.3} and {two:.3}");
        assert!(one.min(two) > 0.31 && liar < 0.36, "{seed}: {one} {two} {liar}");
        least = least.min(liar);
    }
    // Where it owns the key itself it hears no lie.
    assert!(least < 0.06, "{least}");
}

#[test]
fn the_limit_is_kept_whatever_is_said_and_lost() {
    for seed in 0..12 {
        let lie = [Share::from_units(u64::MAX), Share::NONE][seed as usize % 2];
        let truth = used(seed, BAD, [1.0, 0.3, 0.8], None);
        let lied = used(seed, BAD, [1.0, 0.3, 0.8], Some(lie));
        println!("{seed}: {truth:.3?} as it is, {lied:.3?} when the last one says {lie:?}");
    }
}
