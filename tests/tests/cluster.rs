//! Real daemons that keep one limit together, by real packets: spread, at one host, stepping from host to
//! host, through a crash and through a partition.

use std::{net::Ipv4Addr, thread::sleep, time::Duration};

use tests::hosts::Hosts;

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const RATE: f64 = 3000.0;
const BURST: f64 = 300.0;
/// What is sent to a host that is flooded, packets a second.
const FLOOD: f64 = 5000.0;

fn seconds(seconds: f64) {
    sleep(Duration::from_secs_f64(seconds));
}

/// Three hosts with even rights, and a limit that was set on one of them.
fn three() -> Hosts {
    let hosts = Hosts::start(3, &[]);
    let all = [0, 1, 2];
    hosts.daemons[1].cli().ok(&["limit", "set", "3000pps", "--burst", "300", "--scope", "cluster"]);
    let taken = hosts.wait_limit(&all, "3000pps");
    println!("the limit is in force on all hosts after {:.2} s", taken.as_secs_f64());
    hosts.wait_even(&all);
    hosts
}

#[test]
fn one_source_gets_one_limit_from_three_hosts() {
    let hosts = three();
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = (0..3).map(|host| hosts.send(host, SOURCE, FLOOD)).collect();
    seconds(8.0);
    sending.into_iter().for_each(|sending| drop(sending.stop()));
    let admitted = watch.stop();
    admitted.print(8);
    admitted.assert_kept("spread over three", RATE, BURST);
    let used = admitted.utilisation(RATE, 2.0, 8.0);
    println!("spread over three: {used:.3} of the limit is used");
    (0..3).for_each(|host| println!("{}", hosts.status(host)));
    assert!(used >= 0.9, "{used}");
}
