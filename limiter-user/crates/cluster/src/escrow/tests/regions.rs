//! Several regions: the limit is used wherever the demand is, and little is said about it.

use super::super::*;
use super::good::{GOOD, demand, mean, until};
use super::world::{Net, World};

/// One way between regions, ms.
const APART: u64 = 100;

/// So many regions of two hosts each, that have their home shares.
fn settled(regions: usize, seed: u64, net: Net, apart: u64) -> World {
    let places: Vec<u64> = (0..2 * regions as u64).map(|at| at / 2).collect();
    let mut world = World::new(seed, &vec![100; places.len()], places.len(), 1, net);
    world.place(&places, apart);
    world.run(60_000);
    assert_eq!(world.wrong, None);
    let target = Share::WHOLE.times(98, 100 * places.len() as u64);
    let homes: Vec<f64> = world.hosts.iter().map(|host| host.home().part()).collect();
    assert!(world.hosts.iter().all(|host| host.home() > target), "{homes:?}");
    world
}

/// What all have lent.
fn lent(world: &World) -> usize {
    let escrows = world.hosts.iter().filter_map(|host| host.escrow.as_ref());
    escrows.map(|escrow| escrow.count_loans(Moment(0)).lent).sum()
}

#[test]
fn a_region_with_all_the_demand_gets_nearly_all() {
    for seed in 0..6 {
        for both in [false, true] {
            let mut world = settled(3, seed, GOOD, APART);
            demand(&mut world, 2, 2.0);
            if both {
                demand(&mut world, 3, 2.0);
            }
            let took = until(&mut world, 0.94, 5_000);
            println!("{seed}: all of the limit in one region after {took:?} ms");
            assert!(took.is_some_and(|ms| ms <= 2_000), "{seed}: {took:?}");
            let mean = mean(&mut world, 5_000);
            println!("{seed}: {mean:.4} used");
            assert!(mean >= 0.94, "{seed}: {mean}");
        }
    }
}

#[test]
fn spread_demand_needs_no_loans() {
    for seed in 0..4 {
        let mut world = settled(3, seed, GOOD, APART);
        (0..6).for_each(|at| demand(&mut world, at, 1.0));
        world.run(1_000);
        let mean = mean(&mut world, 5_000);
        println!("{seed}: {mean:.4} used");
        assert!(mean >= 0.98, "{seed}: {mean}");
        assert_eq!(lent(&world), 0);
    }
}

#[test]
fn demand_below_the_share_of_a_region_is_nobody_elses_business() {
    let mut world = settled(3, 1, GOOD, APART);
    demand(&mut world, 0, 0.25);
    world.run(3_000);
    assert!(world.admitted(world.keys[0]) > 0.249);
    let owned = |host: &super::world::Host| host.escrow.as_ref().unwrap().owned.far.len();
    assert_eq!(world.hosts.iter().map(owned).sum::<usize>(), 0);
}

#[test]
fn demand_that_moves_to_another_region_takes_its_share_along() {
    let mut worst = 0;
    for seed in 0..4 {
        let mut world = settled(3, seed, GOOD, APART);
        for round in 0..6 {
            let (from, to) = (2 * (round % 3), 2 * ((round + 1) % 3));
            demand(&mut world, from, 0.0);
            demand(&mut world, to, 2.0);
            let took = until(&mut world, 0.9, 5_000);
            println!("{seed}, {round}: {took:?} ms");
            worst = worst.max(took.unwrap_or(u64::MAX));
            world.run(3_000);
        }
    }
    println!("{worst} ms at worst");
    assert!(worst <= 2_000, "{worst}");
}

#[test]
fn losses_between_regions_cost_little() {
    let net = Net { loss: 5, twice: 2, late: 1, delay: 10 };
    let mut used = Vec::new();
    for seed in 0..8 {
        let mut world = settled(3, seed, net, 150);
        demand(&mut world, 4, 2.0);
        world.run(3_000);
        used.push(mean(&mut world, 20_000));
    }
    let sum: f64 = used.iter().sum();
    println!("{:.4} used: {used:.3?}", sum / used.len() as f64);
    assert!(sum / used.len() as f64 >= 0.92);
}

#[test]
fn a_region_that_is_cut_off_goes_on_with_its_own() {
    for seed in 0..3 {
        let mut world = settled(3, seed, GOOD, APART);
        (0..6).for_each(|at| demand(&mut world, at, if at < 2 { 2.0 } else { 0.0 }));
        world.run(3_000);
        let far: Vec<usize> = (2..6).collect();
        for at in [0, 1] {
            for &other in &far {
                world.cut.extend([(at, other), (other, at)]);
            }
        }
        (2..6).for_each(|at| demand(&mut world, at, 1.0));
        world.run(2_500);
        let side = |world: &World, hosts: &[usize]| -> BTreeMap<HostId, Member> {
            hosts.iter().map(|&at| (world.hosts[at].id, world.hosts[at].member())).collect()
        };
        let (near, rest) = (side(&world, &[0, 1]), side(&world, &far));
        [0, 1].iter().for_each(|&at| world.see(at, near.clone()));
        far.iter().for_each(|&at| world.see(at, rest.clone()));
        world.run(3_000);
        let used = mean(&mut world, 3_000);
        println!("{seed}: {used:.4} used");
        assert!(used >= 0.97, "{seed}: {used}");
        world.cut.clear();
        world.all_see_all();
        (2..6).for_each(|at| demand(&mut world, at, 0.0));
        let took = until(&mut world, 0.9, 10_000);
        println!("{seed}: back after {took:?} ms");
        assert!(took.is_some_and(|ms| ms <= 5_000), "{seed}: {took:?}");
    }
}

#[test]
fn when_an_owner_that_lends_dies_the_others_go_on() {
    for seed in 0..4 {
        let mut world = settled(3, seed, GOOD, APART);
        demand(&mut world, 0, 2.0);
        world.run(3_000);
        let key = world.keys[0];
        let owner = |world: &World, at: usize| {
            let owner = world.hosts[at].escrow.as_ref().unwrap().host.views.owner(key);
            world.hosts.iter().position(|host| Some(host.id) == owner).unwrap()
        };
        let dies = owner(&world, 2 + 2 * (seed as usize % 2));
        world.crash(dies, true, None);
        world.run(2_000);
        world.all_see_all();
        world.run(5_000);
        let used = mean(&mut world, 3_000);
        println!("{seed}: {used:.4} used without one host of six");
        // What it had lies idle.
        assert!(used >= 0.78, "{seed}: {used}");
    }
}

/// A region needs what it has lent, while the root cannot take it back from where it was passed on to.
fn lent_and_needed(seed: u64, planted: Option<Planted>) -> Option<String> {
    let mut world = World::new(seed, &[100; 6], 6, 1, GOOD);
    world.planted = planted;
    world.place(&[0, 0, 1, 1, 2, 2], APART);
    world.run(30_000);
    let root = world.hosts[0].escrow.as_ref().unwrap().host.views.present().root(world.keys[0]);
    let root = world.hosts.iter().position(|host| Some(host.id) == root).unwrap() / 2;
    let (borrows, lends) = (2 * ((root + 1) % 3), 2 * ((root + 2) % 3));
    demand(&mut world, borrows, 2.0);
    world.run(3_000);
    for at in [2 * root, 2 * root + 1] {
        for other in [borrows, borrows + 1] {
            world.cut.extend([(at, other), (other, at)]);
        }
    }
    demand(&mut world, lends, 2.0);
    world.run(5_000);
    world.wrong
}

#[test]
fn what_was_lent_is_given_up_only_when_it_is_taken_back() {
    for seed in 0..8 {
        assert_eq!(lent_and_needed(seed, None), None, "{seed}");
        let found = lent_and_needed(seed, Some(Planted::LoanAcknowledgedEarly));
        println!("{found:?}");
        assert!(found.is_some());
    }
}

/// The region whose shares others use is cut off, and needs them itself.
fn lent_and_lost(seed: u64, planted: Option<Planted>) -> Option<String> {
    let mut world = World::new(seed, &[100; 6], 6, 1, GOOD);
    world.planted = planted;
    world.place(&[0, 0, 1, 1, 2, 2], APART);
    world.run(30_000);
    let lends = 2 * (seed as usize % 3);
    demand(&mut world, (lends + 2) % 6, 2.0);
    world.run(3_000);
    for other in (0..6).filter(|other| other / 2 != lends / 2) {
        for at in [lends, lends + 1] {
            world.cut.extend([(at, other), (other, at)]);
        }
    }
    demand(&mut world, lends, 2.0);
    // Then the others from each other: what was passed on cannot be taken back.
    world.run(1_200 + seed * 100);
    for at in 0..6 {
        for other in (0..6).filter(|other| other / 2 != at / 2) {
            world.cut.insert((at, other));
        }
    }
    world.run(5_000);
    world.wrong
}

#[test]
fn what_was_lent_is_passed_on_for_no_longer() {
    for seed in 0..12 {
        assert_eq!(lent_and_lost(seed, None), None, "{seed}");
    }
    let found = (0..12).find_map(|seed| {
        lent_and_lost(seed, Some(Planted::LoanOutlives)).map(|wrong| (seed, wrong))
    });
    println!("{found:?}");
    assert!(found.is_some());
}

#[test]
fn while_views_differ_there_is_a_root_by_each() {
    for seed in 0..6 {
        let mut world = settled(3, seed, GOOD, APART);
        demand(&mut world, 0, 2.0);
        world.run(3_000);
        // Half of them miss one host, each of another region.
        for at in 0..6 {
            let missed = world.hosts[(at + 2) % 6].id;
            let mut members = world.hosts[at].members.clone();
            if at % 2 == 0 {
                members.remove(&missed);
            }
            world.see(at, members);
        }
        world.run(4_000);
        world.all_see_all();
        let took = until(&mut world, 0.9, 10_000);
        println!("{seed}: {took:?} ms after all agree");
        assert!(took.is_some_and(|ms| ms <= 6_000), "{seed}: {took:?}");
    }
}

#[test]
fn hosts_of_different_regions_talk_seldom_without_business() {
    let count = |apart: bool| {
        let mut world = World::new(1, &[100; 8], 8, 1, GOOD);
        if apart {
            world.place(&[0, 0, 1, 1, 2, 2, 3, 3], APART);
        }
        world.run(60_000);
        let before: u64 = world.hosts.iter().map(|host| host.bytes).sum();
        world.run(10_000);
        (world.hosts.iter().map(|host| host.bytes).sum::<u64>() - before) / 10 / 8
    };
    let (one, four) = (count(false), count(true));
    println!("bytes a second and host: {one} in one region, {four} in four");
    assert!(four * 5 < one * 2, "{one} {four}");
}
