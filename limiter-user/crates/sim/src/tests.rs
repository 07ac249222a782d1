//! What the simulator finds.

use super::scheme::EscrowHost;
use super::world::World;
use super::*;
use cluster::escrow::{Partition, Planted};

/// A short run of a built-in scenario, in coarse steps.
fn short(name: &str, hosts: usize) -> Scenario {
    let mut scenario = named(name).unwrap().with_hosts(hosts).unwrap();
    scenario.tick = Span(std::time::Duration::from_millis(10));
    scenario
}

#[test]
fn a_seed_determines_a_run() {
    let chaos = short("chaos", 5);
    for scheme in SchemeKind::ALL {
        let one = run(&chaos, scheme, 7);
        assert_eq!(one, run(&chaos, scheme, 7), "{scheme:?}");
        assert_ne!(one.series, run(&chaos, scheme, 8).series, "{scheme:?}");
    }
    let twice = || run_all(&[short("spread", 3)], &SchemeKind::ALL, 1, 3, &mut |_| ());
    assert_eq!(twice(), twice());
}

#[test]
fn without_coordination_each_host_admits_the_whole_limit() {
    for hosts in [3, 10] {
        let mut flood = short("cold", hosts);
        flood.demand.load = 100.0;
        let found = run(&flood, SchemeKind::None, 1).verdict;
        let times = hosts as f64 - 1.0;
        assert!((found.worst_overage / times - 1.0).abs() < 0.02, "{hosts} hosts: {found:?}");
        assert!((found.share_sum - hosts as f64).abs() < 1e-9);
    }
}

#[test]
fn a_static_share_never_exceeds_and_starves_a_single_host() {
    for name in ["spread", "one", "partition", "hopping"] {
        let found = run(&short(name, 4), SchemeKind::Static, 1).verdict;
        assert!(found.worst_overage == 0.0 && found.bound_excess < 1e-9, "{name}: {found:?}");
    }
    let one = run(&short("one", 4), SchemeKind::Static, 1).verdict;
    assert!((one.utilisation - 0.25).abs() < 0.01, "{one:?}");
}

#[test]
fn counting_afterwards_admits_too_much() {
    let mut flood = short("cold", 10);
    flood.demand.load = 100.0;
    let found = run(&flood, SchemeKind::Debit, 1).verdict;
    assert!(found.worst_overage > 0.1, "{found:?}");
    // In a partition each side has the whole limit.
    let cut = run(&short("partition", 10), SchemeKind::Debit, 1).verdict;
    assert!(cut.bound_excess > 0.3, "{cut:?}");
}

#[test]
fn a_part_of_the_demand_is_too_much_where_not_all_is_heard_of() {
    let found = run(&short("partition", 4), SchemeKind::Proportional, 1).verdict;
    assert!(found.worst_overage > 0.1 || found.bound_excess > 0.1, "{found:?}");
    let calm = run(&short("spread", 4), SchemeKind::Proportional, 1).verdict;
    assert!(calm.utilisation > 0.98, "{calm:?}");
}

#[test]
fn the_escrow_keeps_the_limit_in_all_scenarios_and_uses_it_as_it_did() {
    let scenarios: Vec<_> = suite()
        .unwrap()
        .iter()
        .filter(|scenario| !scenario.is_heavy())
        .map(|scenario| short(&scenario.name, scenario.least_hosts.max(5)))
        .collect();
    for summary in run_all(&scenarios, &[SchemeKind::Escrow], 1, 2, &mut |_| ()) {
        let name = &scenarios[summary.scenario].name;
        let found = &summary.verdict;
        assert!(found.worst_overage <= 0.001, "{name}: {summary:?}");
        assert!(found.bound_excess < 1e-6 && found.share_sum < 1.0 + 1e-6, "{name}: {found:?}");
        assert_eq!(summary.missed, [""; 0], "{name}");
    }
}

#[test]
fn the_page_of_scenarios_is_what_they_reach() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/scenarios.md");
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let mut lines = committed.lines();
    // The first one that differs: others may take long to work out.
    for line in page::lines().unwrap() {
        assert_eq!(
            Some(&line[..]),
            lines.next(),
            "where hosts are to decide otherwise, `cargo xtask docs` writes it down"
        );
    }
    assert_eq!(lines.next(), None);
}

/// The first of a hundred seeds by which a planted bug is found, in whichever of the scenarios.
fn finds(bug: Planted, names: &[&str]) -> Option<u64> {
    let mut scenarios: Vec<_> = names.iter().map(|name| short(name, 5)).collect();
    for scenario in scenarios.iter_mut().filter(|scenario| scenario.policy == Partition::Auto) {
        // Votes would hide what is wrong about shares.
        scenario.policy = Partition::Conservative;
    }
    (1..=100).find(|seed| {
        scenarios.iter().any(|scenario| {
            let found = World::new(scenario, *seed, |birth| EscrowHost::new(birth, Some(bug)))
                .run()
                .verdict;
            found.bound_excess > 1e-6 || found.share_sum > 1.0 + 1e-6
        })
    })
}

#[test]
fn planted_bugs_are_found_within_a_hundred_seeds() {
    for (bug, names) in [
        (Planted::GrantNotSubtracted, &["spread", "hopping", "one"][..]),
        (Planted::ViewsNotCompared, &["suspect", "chaos"]),
        (Planted::LeaseFromReceipt, &["pause", "chaos"]),
        (Planted::TransferTakenTwice, &["founded", "join", "chaos"]),
        (Planted::TransferNotWaited, &["join", "founded"]),
        (Planted::RestartNotWaited, &["restart", "reboot"]),
        (Planted::VotedTwice, &["majority"]),
        (Planted::HalfCountedWhole, &["crowd"]),
        (Planted::HalfNotWaited, &["crowd"]),
    ] {
        assert!(finds(bug, names).is_some(), "{bug:?}");
    }
}

/// A scenario of a file.
fn scenario(text: &str) -> Scenario {
    Scenario::parse(std::path::Path::new("test.toml"), text).unwrap()
}

#[test]
fn a_machine_that_stood_still_is_not_starved_for_good() {
    // The owner forgot it meanwhile, and numbered grants anew; what waited in its socket had a number of before.
    let stands = scenario(
        r#"
        name = "stands"
        hosts = 9
        duration = "20s"
        warm_up = "16s"
        tick = "5ms"
        [demand]
        pattern = "one"
        load = 9.3
        [network]
        delay = "3415us"
        jitter = "1178us"
        duplicate = 0.15
        [[fault]]
        kind = "pause"
        at = "4554ms"
        for = "1650ms"
        hosts = [1]
        [[fault]]
        kind = "freeze"
        at = "6738ms"
        for = "3210ms"
        part = 1.0
        "#,
    );
    for seed in 1..=10 {
        for host in 0..9 {
            let mut one = stands.clone();
            let mut freeze = one.faults[1].get_ref().clone();
            (freeze.hosts, freeze.part) = (Some(vec![host]), None);
            one.faults[1] = toml::Spanned::new(0..0, freeze);
            let used = run(&one, SchemeKind::Escrow, seed).verdict.utilisation;
            assert!(used > 0.9, "host {host}, seed {seed}: {used}");
        }
    }
}

#[test]
fn an_owner_that_counts_far_grants_for_less_than_they_last_is_found() {
    // A lowered grant is lost now and then, and what it was lowered from lasts for seconds.
    let far = scenario(
        r#"
        name = "far-hopping"
        hosts = 5
        policy = "conservative"
        duration = "20s"
        tick = "10ms"
        [demand]
        pattern = "hopping"
        period = "3s"
        [network]
        delay = "300ms"
        jitter = "100ms"
        loss = 0.2
        "#,
    );
    let sum = |seed: u64, bug: Option<Planted>| {
        World::new(&far, seed, |birth| EscrowHost::new(birth, bug)).run().verdict.share_sum
    };
    let bug = Some(Planted::GrantHeldLonger);
    assert!((1..=20).all(|seed| sum(seed, None) <= 1.0 + 1e-6));
    assert!((1..=20).any(|seed| sum(seed, bug) > 1.0 + 1e-6));
}

#[test]
fn hosts_with_short_home_leases_do_not_take_a_bad_network_for_long_ways() {
    // They once gave delegations that no home lease covers: all had their floors for ever.
    let bad = scenario(
        r#"
        name = "bad-network"
        hosts = 8
        duration = "36s"
        warm_up = "32s"
        tick = "5ms"
        packets = true
        rate = "20pps"
        burst = "1600ms"
        conforming = "one"
        policy = "majority-reclaim"
        home_lease = "2s"
        [demand]
        pattern = "one"
        load = 5.0504693772951175
        at = "11s 203ms 216us"
        [network]
        delay = "4640us"
        jitter = "7499us"
        [[fault]]
        kind = "network"
        at = "9s 955ms 667us"
        for = "6s 46ms 782us"
        [fault.network]
        delay = "42377us"
        jitter = "184661us"
        loss = 0.38264550206432324
        duplicate = 0.049378834803185424
        late = 0.010044461964064966
        late_by = "423638us"
        "#,
    );
    let used = run(&bad, SchemeKind::Escrow, 94).verdict.utilisation;
    assert!(used > 0.9, "{used}");
}

#[test]
fn neither_half_of_an_even_cluster_is_a_majority() {
    for hosts in [2, 4, 6, 8, 12] {
        let halves = scenario(&format!(
            r#"
            name = "halves"
            hosts = {hosts}
            policy = "majority-reclaim"
            tick = "5ms"
            [[fault]]
            kind = "partition"
            at = "2s"
            for = "6s"
            part = 0.5
            "#
        ));
        let found = run(&halves, SchemeKind::Escrow, 973).verdict;
        assert!(found.share_sum <= 1.0 + 1e-6, "{hosts} hosts: {found:?}");
    }
}

#[test]
fn who_leaves_while_it_is_cut_off_waits_for_heirs() {
    let leaves = scenario(
        r#"
        name = "leaves"
        duration = "14s"
        warm_up = "10s"
        tick = "5ms"
        [[fault]]
        kind = "partition"
        at = "2s"
        for = "3s"
        hosts = [0]
        [[fault]]
        kind = "leave"
        at = "4s"
        hosts = [0]
        "#,
    );
    let used = run(&leaves, SchemeKind::Escrow, 1).verdict.utilisation;
    assert!(used > 0.95, "{used}");
}
