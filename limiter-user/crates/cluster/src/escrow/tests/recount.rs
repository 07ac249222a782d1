//! Shares of hosts that do not come back.

use super::super::*;
use super::good::{GOOD, demand};
use super::world::World;

const LEASE: Duration = Duration::from_secs(8);

/// So many hosts with as much each, one of which wants all of one key.
fn settled(hosts: usize, seed: u64, majority: bool) -> World {
    settled_with(LEASE, hosts, seed, majority)
}

fn settled_with(lease: Duration, hosts: usize, seed: u64, majority: bool) -> World {
    let mut world = World::new(seed, &vec![100; hosts], hosts, 1, GOOD);
    world.home_lease = Some(lease);
    match majority {
        true => world.decide(world.keys[0]),
        false => world.plant(None),
    }
    world.run(20_000);
    (0..hosts).for_each(|at| demand(&mut world, at, 1.0));
    world.run(2_000);
    assert_eq!((&world.wrong, world.doubts), (&None, Doubts::default()));
    for host in &world.hosts {
        let era = &host.disk().era;
        assert_eq!((era.tally.hosts as usize, era.counts), (hosts, true), "{era:?}");
    }
    world
}

/// What is used of the key for two seconds, on the average.
fn used(world: &mut World) -> f64 {
    let key = world.keys[0];
    let mut sum = 0.0;
    for _ in 0..2_000 {
        world.run(1);
        sum += world.admitted(key) / 2_000.0;
    }
    assert_eq!(world.wrong, None);
    sum
}

/// A host is gone, which all others see.
fn gone(world: &mut World, at: usize) {
    world.crash(at, true, None);
    world.run(300);
    world.all_see_all();
}

#[test]
fn who_joins_counts_and_who_leaves_counts_no_more() {
    for seed in 0..4 {
        let mut world = settled(3, seed, false);
        world.leave(0);
        world.run(6_000);
        assert!(world.hosts[0].left);
        world.all_see_all();
        world.run(1_000);
        let eras = world.hosts[1..].iter().map(|host| host.disk().era.tally.hosts);
        assert!(eras.eq([2, 2]));
        assert_eq!(world.shares(), Share::WHOLE);
    }
}

#[test]
fn who_leaves_stays_for_as_long_as_the_others_cannot_count_without_it() {
    // Longer than it waits for others to count.
    let mut world = settled_with(2 * LEASE, 3, 0, false);
    gone(&mut world, 2);
    // One of three is left: it could never count the two others out.
    world.leave(1);
    for _ in 0..2 {
        world.run(6_000);
        assert_eq!((world.hosts[1].left, world.hosts[1].disk().home), (false, Share::NONE));
    }
    world.run(3 * LEASE.as_millis() as u64);
    assert!(world.hosts[1].left);
    world.all_see_all();
    world.run(6_000);
    assert_eq!(world.hosts[0].disk().era.tally.hosts, 1);
    let used = used(&mut world);
    assert!(used > 0.99, "{used}");
}

#[test]
fn what_a_lost_host_had_comes_back_after_its_lease() {
    for (seed, majority) in [(0, false), (1, true), (2, false), (3, true)] {
        let mut world = settled(3, seed, majority);
        gone(&mut world, seed as usize % 3);
        world.run(4_000);
        let before = used(&mut world);
        assert!(if majority { before > 0.95 } else { before < 0.7 }, "{before}");
        world.run(LEASE.as_millis() as u64);
        let after = used(&mut world);
        assert!(after > 0.99, "{after} of seed {seed}");
        // It comes back, with its floor until it hears of the new era, has nothing then, and gets its part again.
        world.excused = true;
        world.start(seed as usize % 3);
        world.all_see_all();
        world.run(15_000);
        assert!(used(&mut world) > 0.99);
        for host in &world.hosts {
            assert!(host.home().part() > 0.32 && host.disk().era.counts, "{:?}", host.disk());
        }
        assert_eq!(world.shares(), Share::WHOLE);
    }
}

#[test]
fn what_an_operator_forgets_comes_back_at_once() {
    for (seed, hosts) in [(0, 3), (1, 2), (2, 5)] {
        let mut world = settled(hosts, seed, false);
        let lost: Vec<usize> = (1..hosts).rev().take(hosts.div_ceil(2)).collect();
        lost.iter().for_each(|&at| gone(&mut world, at));
        // Those who are left are no majority.
        world.run(2 * LEASE.as_millis() as u64);
        assert!(used(&mut world) < 0.55);
        for &at in &lost {
            let id = world.hosts[at].id;
            world.forget_host(id, Forget::Now);
        }
        world.run(6_000);
        let after = used(&mut world);
        assert!(after > 0.99, "{after} of {hosts}");
    }
}

#[test]
fn it_is_enough_to_tell_one_host_that_another_is_gone() {
    let mut world = settled(3, 1, false);
    gone(&mut world, 0);
    world.run(500);
    let lost = world.hosts[0].id;
    // Not the first one, which counts anyway once the lease has ended.
    let told = if world.hosts[1].id < world.hosts[2].id { 2 } else { 1 };
    world.hosts[told].escrow.as_mut().unwrap().forget_host(lost, Forget::Now);
    world.run(4_000);
    let after = used(&mut world);
    assert!(after > 0.99, "{after}");
}

/// A host is cut off from all others, which all see.
pub(super) fn cut_off(world: &mut World, at: usize) {
    let id = world.hosts[at].id;
    for other in (0..world.hosts.len()).filter(|other| *other != at) {
        world.cut.extend([(at, other), (other, at)]);
        let mut members = world.hosts[other].members.clone();
        members.remove(&id);
        world.see(other, members);
    }
    world.see(at, [(id, world.hosts[at].member())].into());
}

#[test]
fn who_has_ended_an_era_is_not_one_of_two_any_more() {
    for seed in 0..8 {
        let mut world = World::new(seed, &[100; 3], 2, 1, GOOD);
        world.home_lease = Some(LEASE);
        world.plant(None);
        world.run(20_000);
        world.start(2);
        world.all_see_all();
        (0..3).for_each(|at| demand(&mut world, at, 1.0));
        // Without it the others cannot count, so it says yes, and hears nothing of what comes of that.
        let accepts = |world: &World, at: usize| {
            let era = &world.hosts[at].disk().era;
            era.accepted.is_some_and(|(attempt, _)| attempt.by != world.hosts[at].id)
        };
        let at = loop {
            world.run(1);
            let accepts = (0..2).find(|&at| accepts(&world, at));
            if let Some(at) = accepts {
                break at;
            }
        };
        world.run(5);
        world.excused = true;
        cut_off(&mut world, at);
        world.run(2 * LEASE.as_millis() as u64 + 6_000);
        let key = world.keys[0];
        let eras: Vec<u64> = world.hosts.iter().map(|host| host.disk().era.number).collect();
        let all = world.all(key).part();
        assert!(all < 1.03, "{all}, eras {eras:?}");
    }
}

#[test]
fn who_is_cut_off_uses_its_share_until_its_lease_ends() {
    for seed in 0..4 {
        let mut world = settled(3, seed, false);
        world.excused = true;
        cut_off(&mut world, 0);
        world.run(3_000);
        let key = world.keys[0];
        assert!(world.share(0, key).part() > 0.33);
        world.run(LEASE.as_millis() as u64);
        assert!(world.share(0, key).part() < 0.02);
        world.run(6_000);
        // Its floor is its own while nobody can tell it: that much is more than the limit.
        assert!(world.all(key).part() < 1.02);
    }
}

#[test]
fn who_sees_that_its_clock_is_wrong_has_its_floor_until_it_is_right() {
    for (seed, millionths) in [(0, 83_333), (1, -83_333), (2, 10_000), (3, -10_000)] {
        for sees in [true, false] {
            let mut world = settled(3, seed, false);
            world.slew(0, millionths);
            for _ in 0..20 {
                world.run(200);
                if sees {
                    world.distrust(0);
                }
            }
            world.run(1);
            let key = world.keys[0];
            assert_eq!(world.share(0, key).part() < 0.02, sees);
            if !sees {
                continue;
            }
            // Nobody hears it any more: what it was granted goes to others at its end by their clocks.
            cut_off(&mut world, 0);
            world.run(3_000);
            assert_eq!(world.wrong, None);
            world.slew(0, 0);
            world.heal();
            world.all_see_all();
            world.run(6_000);
            assert!(used(&mut world) > 0.97);
        }
    }
}

#[test]
fn who_has_lost_its_disk_is_another_host_and_all_is_used_again() {
    for seed in 0..4 {
        let mut world = settled(3, seed, false);
        gone(&mut world, 1);
        world.lose(1);
        world.start(1);
        world.all_see_all();
        world.run(2 * LEASE.as_millis() as u64 + 20_000);
        let after = used(&mut world);
        assert!(after > 0.99, "{after}");
        assert_eq!(world.shares(), Share::WHOLE);
        assert!(world.hosts.iter().all(|host| host.home().part() > 0.32));
    }
}

#[test]
fn a_disk_of_an_earlier_era_has_nothing() {
    for majority in [false, true] {
        let mut world = settled(3, 4, majority);
        world.crash(0, false, None);
        let clock = world.disk(0).clock;
        world.put_back(0, PersistentState { clock, ..PersistentState::founder() });
        world.start(0);
        world.all_see_all();
        world.run(5_000);
        assert!(world.hosts[0].home().is_none());
        world.most = Share::NONE;
        world.run(2 * LEASE.as_millis() as u64 + 10_000);
        assert!(world.most <= Share::WHOLE && world.shares() == Share::WHOLE);
        assert!(used(&mut world) > 0.99);
    }
}

#[test]
fn a_majority_uses_what_was_on_a_lost_disk_until_it_is_counted() {
    for seed in 0..6 {
        let mut world = settled(3, seed, true);
        let lost = seed as usize % 3;
        gone(&mut world, lost);
        world.lose(lost);
        world.start(lost);
        world.all_see_all();
        world.run(5_000);
        assert!(world.hosts[lost].home().is_none());
        let meanwhile = used(&mut world);
        assert!(meanwhile > 0.95, "{meanwhile} of seed {seed}");
    }
}

/// All that each side of a cut uses.
fn used_by_sides(world: &mut World, sides: [&[usize]; 2]) -> [f64; 2] {
    for (of, others) in [(sides[0], sides[1]), (sides[1], sides[0])] {
        let members: BTreeMap<_, _> =
            of.iter().map(|&at| (world.hosts[at].id, world.hosts[at].member())).collect();
        for &at in of {
            world.cut.extend(others.iter().map(|&other| (at, other)));
            world.see(at, members.clone());
        }
    }
    world.run(4_000);
    let key = world.keys[0];
    sides.map(|side| side.iter().map(|&at| world.share(at, key).part()).sum())
}

#[test]
fn a_majority_of_three_decides_and_of_two_each_goes_on() {
    let mut world = World::new(3, &[100; 3], 2, 1, GOOD);
    world.vote();
    world.run(20_000);
    (0..2).for_each(|at| demand(&mut world, at, 1.0));
    world.run(2_000);
    assert!(world.hosts[..2].iter().all(|host| host.disk().era.known));
    let [one, other] = used_by_sides(&mut world, [&[0], &[1]]);
    assert!((0.49..0.51).contains(&one) && (0.49..0.51).contains(&other), "{one} {other}");
    world.heal();
    // With a third one a majority decides.
    world.start(2);
    world.all_see_all();
    world.run(20_000);
    demand(&mut world, 2, 1.0);
    assert!(used(&mut world) > 0.98);
    let [two, one] = used_by_sides(&mut world, [&[0, 1], &[2]]);
    assert!(two > 0.94 && one < 0.02, "{two} {one}");
    world.heal();
    world.all_see_all();
    world.run(6_000);
    // And no longer when it has left.
    world.leave(2);
    world.run(6_000);
    world.all_see_all();
    world.run(4_000);
    let [one, other] = used_by_sides(&mut world, [&[0], &[1]]);
    assert!((0.49..0.51).contains(&one) && (0.49..0.51).contains(&other), "{one} {other}");
    assert_eq!(world.wrong, None);
}
