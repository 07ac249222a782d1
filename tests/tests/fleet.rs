//! The network between several hosts, and what tells what they have admitted together.

use std::{net::IpAddr, time::Duration};

use tests::{
    Bystander, Fleet, Sender, Stream, Timeline, frame, process,
    timeline::{busiest, excess},
    v4,
};

/// Whether `host` gets an answer from another one.
fn hears(fleet: &Fleet, host: usize, other: usize) -> bool {
    let address = Fleet::address(other).to_string();
    let mut ping = fleet.hosts[host].receiver.command(&tools::PING);
    ping.args(["-c", "3", "-i", "0.1", "-W", "1", &address]);
    process::output(&mut ping).status.success()
}

#[test]
fn hosts_hear_each_other_until_the_network_is_split() {
    let mut fleet = Fleet::new(2);
    fleet.add_host();
    assert!(hears(&fleet, 0, 1) && hears(&fleet, 1, 2) && hears(&fleet, 2, 0));
    fleet.split(&[&[0, 1], &[2]]);
    assert!(hears(&fleet, 0, 1) && !hears(&fleet, 0, 2) && !hears(&fleet, 2, 1));
    fleet.split(&[&[0, 1, 2]]);
    assert!(hears(&fleet, 0, 2));
    fleet.connect(1, false);
    assert!(!hears(&fleet, 0, 1) && hears(&fleet, 0, 2));
    fleet.connect(1, true);
    assert!(hears(&fleet, 0, 1));
    fleet.lose(100);
    assert!(!hears(&fleet, 0, 1));
}

#[test]
fn every_packet_that_passes_has_its_time() {
    let fleet = Fleet::new(2);
    let _pass: Vec<_> = fleet.hosts.iter().map(Bystander::passing).collect();
    let IpAddr::V4(source) = v4(7) else { unreachable!() };
    let timelines: Vec<_> = fleet.hosts.iter().map(|lab| Timeline::new(lab, source)).collect();
    let streams = |rate: f64, count| {
        vec![
            Stream::new(frame::udp(source.into(), 64), rate, count),
            Stream::new(frame::udp(v4(8), 64), 500.0, 500),
        ]
    };
    let sending = [
        Sender::new(&fleet.hosts[0]).start(streams(1000.0, 2000)),
        Sender::new(&fleet.hosts[1]).start(streams(3000.0, 6000)),
    ];
    sending.into_iter().for_each(|sending| drop(sending.join()));
    let times: Vec<_> = timelines.into_iter().map(Timeline::stop).collect();
    assert_eq!(times.iter().map(Vec::len).collect::<Vec<_>>(), [2000, 6000]);
    let most = busiest(&times, Duration::from_secs(1));
    assert!((3900..=4200).contains(&most), "{most} in a second");
    // 4000 a second for two seconds, of which 3000 a second were allowed.
    let beyond = excess(&times, 3000.0, 100.0);
    assert!((1750.0..=2050.0).contains(&beyond), "{beyond} beyond the bucket");
}

#[test]
fn regions_are_far_from_each_other_until_one_is_cut_off() {
    let fleet = Fleet::in_regions(4, 2, Duration::from_millis(40));
    let round_trip = |host: usize, other: usize| {
        let address = Fleet::address(other).to_string();
        let mut ping = fleet.hosts[host].receiver.command(&tools::PING);
        // The first one waits for the neighbour to be found.
        let text = process::output(ping.args(["-c", "4", "-i", "0.2", "-W", "1", &address])).stdout;
        let text = String::from_utf8_lossy(&text).into_owned();
        let least = text.rsplit_once("= ").and_then(|(_, times)| times.split('/').next());
        least.and_then(|ms| ms.parse::<f64>().ok())
    };
    let near = round_trip(0, 2).expect("an answer from the same region");
    let before = fleet.backbone.as_ref().expect("regions").frames();
    let far = round_trip(0, 1).expect("an answer from the other region");
    let backbone = fleet.backbone.as_ref().expect("regions");
    println!("{near} ms within a region, {far} ms between two; {} frames", backbone.frames());
    assert!(near < 20.0 && (80.0..120.0).contains(&far), "{near} {far}");
    assert!(backbone.frames() - before >= 8 && backbone.lost() == 0);
    backbone.cut(1, true);
    assert!(hears(&fleet, 1, 3) && !hears(&fleet, 0, 1));
    backbone.cut(1, false);
    assert!(hears(&fleet, 0, 1));
}
