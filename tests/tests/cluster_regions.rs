//! Real daemons in regions that are far from each other keep one limit together, by real packets: spread over all
//! regions, all in one of them, and while that is cut off.

use std::{
    net::Ipv4Addr,
    thread::sleep,
    time::{Duration, Instant},
};

use tests::{
    hosts::{Hosts, region},
    process::wait_for,
    sender::Sending,
};

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const RATE: f64 = 2000.0;
const BURST: f64 = 200.0;
/// What is sent to each host, packets a second: two of them get more than the whole limit.
const FLOOD: f64 = 1500.0;
/// How long frames take from one region to another one.
const DELAY: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(30);

fn seconds(seconds: f64) {
    sleep(Duration::from_secs_f64(seconds));
}

/// Hosts in regions with even shares, and a limit that was set on one of them.
fn hosts_in(count: usize, regions: usize) -> Hosts {
    let hosts = Hosts::start_in_regions(count, regions, DELAY, &[]);
    let all: Vec<usize> = (0..count).collect();
    // A region of three that is cut off goes on with what is its own.
    let set = ["limit", "set", "2000pps", "--burst", "200", "--scope", "cluster"];
    hosts.daemons[1].cli().ok(&[&set[..], &["--partition", "conservative"]].concat());
    hosts.wait_limit(&all, "2000pps");
    hosts.wait_even(&all);
    hosts
}

/// The sum of a figure over all regions, as a host tells them, and the hosts that each of them has.
fn told(hosts: &Hosts, host: usize, figure: &str) -> (u64, Vec<u64>) {
    let peers = hosts.peers(host);
    let regions = peers["regions"].as_array().expect("regions").clone();
    let sum = regions.iter().map(|region| region[figure].as_u64().expect("a figure")).sum();
    (sum, regions.iter().map(|region| region["hosts"].as_u64().expect("hosts")).collect())
}

#[test]
fn three_regions_keep_one_limit() {
    let mut hosts = hosts_in(6, 3);
    far_and_near(&hosts);

    // One of the third region starts again in the second one.
    assert_eq!(hosts.daemons[5].terminate().code(), Some(0));
    let lab = &hosts.fleet.hosts[5];
    hosts.daemons[5].restart_with(lab, "--cluster-region", &region(1));
    for host in 0..6 {
        wait_for(format!("host {host} to see it there"), TIMEOUT, || {
            (told(&hosts, host, "answering").1 == [2, 3, 1]).then_some(())
        });
    }
    hosts.wait_even(&[0, 1, 2, 3, 4, 5]);
    let watch = hosts.watch(SOURCE);
    let sending = [2, 5].map(|host| hosts.send(host, SOURCE, FLOOD));
    seconds(6.0);
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.print(6);
    admitted.assert_kept("another region", RATE, BURST);
    let used = admitted.utilisation(RATE, 3.0, 6.0);
    println!("another region: {used:.3} of the limit is used by two hosts of two regions");
    assert!(used >= 0.75, "{used}");
}

/// All regions get some, then one gets all, then that is cut off for a while.
fn far_and_near(hosts: &Hosts) {
    let backbone = hosts.fleet.backbone.as_ref().expect("regions");
    assert_eq!(told(hosts, 0, "answering").1, [2, 2, 2]);
    let (watch, begun) = (hosts.watch(SOURCE), Instant::now());
    // When it is, after so many seconds more.
    let after = |more: f64| {
        seconds(more);
        begun.elapsed().as_secs_f64()
    };
    let sending: Vec<_> = (0..6).map(|host| hosts.send(host, SOURCE, FLOOD)).collect();
    let one = after(4.0);
    drop(Sending::stop_all(sending));

    // All of it comes to the two hosts of the second region.
    let sending = [1, 4].map(|host| hosts.send(host, SOURCE, FLOOD));
    wait_for("loans to be told of", TIMEOUT, || {
        let [lent, borrowed] =
            ["loans_lent", "loans_borrowed"].map(|loans| told(hosts, 0, loans).0);
        (lent > 0 && borrowed > 0).then_some(())
    });
    let lent = after(1.0);
    let before = backbone.bytes();
    let cut = after(3.0);
    let between = (backbone.bytes() - before) as f64 / (cut - lent);

    backbone.cut(1, true);
    let members = |host: usize| hosts.status(host)["members"].as_u64();
    wait_for("both sides to notice", TIMEOUT, || {
        ((members(1), members(0)) == (Some(2), Some(4))).then_some(())
    });
    let apart = after(3.5);
    let healed = after(2.5);
    backbone.cut(1, false);
    hosts.wait_members(&[0, 1, 2, 3, 4, 5], 6);
    let back = after(3.0);
    let end = after(3.0);
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.print(end as u32);
    admitted.assert_kept("three regions", RATE, BURST);
    println!(
        "from {one:.1} s on all comes to one region, which has 80 % of the limit after {:.2?} s and sends and gets \
         {between:.0} bytes a second with the others; it is cut off from {cut:.1} to {healed:.1} s",
        admitted.back(RATE, 0.8, one, cut),
    );
    let spread = admitted.utilisation(RATE, 1.5, one);
    let one = admitted.utilisation(RATE, lent, cut);
    let apart = admitted.utilisation(RATE, apart, healed);
    let healed = admitted.utilisation(RATE, back, end);
    println!(
        "three regions: {spread:.3} of the limit is used while all get some, {one:.3} while one region gets all, \
         {apart:.3} while that is cut off, {healed:.3} afterwards"
    );
    assert_eq!(backbone.lost(), 0);
    // A machine that has much else to do costs some of it.
    assert!(spread >= 0.85 && one >= 0.75 && healed >= 0.75, "{spread} {one} {healed}");
    // What is its own.
    assert!((0.28..=0.36).contains(&apart), "{apart}");
}
