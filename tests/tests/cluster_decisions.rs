//! Limits of keys that hosts share: real daemons and real `limiter-serve`, asked by clients on all hosts at once.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use tests::{
    demand::{Client, assert_kept, count, status_of, until},
    hosts::Hosts,
    process::wait_for,
    serve::Serve,
};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Of each user, on all hosts together.
const RATE: f64 = 100.0;
const BURST: f64 = 30.0;

const RULES: &str = "domain: api
descriptors:
  - key: user
    rate_limit: { unit: second, requests_per_unit: 100, burst: 30, scope: cluster }
  - key: closed
    rate_limit: { unit: hour, requests_per_unit: 1000, scope: cluster, on_error: closed }
  - key: open
    rate_limit: { unit: hour, requests_per_unit: 10, scope: cluster, on_error: open }
";

/// Hosts of a cluster, each with a `limiter-serve`.
fn start(count: usize) -> (Hosts, Vec<Serve>) {
    let hosts = Hosts::start(count, &[]);
    hosts.wait_even(&(0..count).collect::<Vec<_>>());
    let serve = |host: usize| {
        Serve::start(RULES, &["--daemon", &hosts.daemons[host].socket().display().to_string()])
    };
    let serves = (0..count).map(serve).collect();
    (hosts, serves)
}

#[test]
fn hosts_keep_to_a_limit_together_and_use_it_where_the_load_is() {
    let (hosts, serves) = start(3);
    let begun = Instant::now();
    let rates = [150, 30, 0];
    let clients: Vec<_> = serves
        .iter()
        .zip(rates)
        .map(|(serve, rate)| Client::start(serve, "user", begun, rate))
        .collect();
    until(begun, 5.0);
    let status = hosts.status(0);
    assert_eq!((&status["keys"], &status["alone"]), (&1.into(), &0.into()), "{status}");
    // The load goes elsewhere.
    [0, 30, 150].into_iter().zip(&clients).for_each(|(rate, client)| client.set(rate));
    until(begun, 10.0);
    let admitted: Vec<_> = clients.into_iter().map(Client::end).collect();
    assert_kept(&admitted, (BURST, RATE), |_| 0.0);
    for time in [2.0..5.0, 7.0..10.0] {
        let used = admitted.iter().map(|host| count(host, time.clone())).sum::<f64>();
        let used = used / RATE / (time.end - time.start);
        assert!(used >= 0.9, "{used} from {} s on", time.start);
    }
    let metrics = serves[0].get("/metrics").body;
    assert!(metrics.contains("limiter_serve_alone_total{rule=\"api.user\"} 0"), "{metrics}");
}

#[test]
fn no_key_gets_more_than_its_limit_whoever_is_killed() {
    let (mut hosts, mut serves) = start(3);
    let begun = Instant::now();
    let clients: Vec<_> =
        serves.iter().map(|serve| Client::start(serve, "user", begun, 80)).collect();
    until(begun, 3.0);
    serves[0].kill_and_restart();
    until(begun, 4.0);
    hosts.daemons[1].kill();
    let alone = serves[1].path("http.sock");
    let killed = begun.elapsed().as_secs_f64();
    let mut keys = 0;
    wait_for("the end of shares", TIMEOUT, || {
        // Each key has a unit here while there is a daemon.
        keys += 1;
        (status_of(&alone, "closed", &keys.to_string()) == Some(429)).then_some(())
    });
    // What is answered without a share is as the rule says.
    assert_eq!([(); 20].map(|()| status_of(&alone, "open", "one")), [Some(200); 20]);
    until(begun, 8.0);
    let metrics = serves[1].get("/metrics").body;
    assert!(metrics.contains("limiter_serve_alone_total{rule=\"api.open\"} 20"), "{metrics}");
    hosts.restart(1);
    until(begun, 9.0);
    // Both of a host, and none of them is there for a while.
    hosts.daemons[2].kill();
    serves[2].kill_and_restart();
    hosts.restart(2);
    until(begun, 16.0);
    let admitted: Vec<_> = clients.into_iter().map(Client::end).collect();
    assert_kept(&admitted, (BURST, RATE), |_| 0.0);
    let all = |time: Range<f64>| admitted.iter().map(|host| count(host, time.clone())).sum::<f64>();
    // The home share of the one that was killed waits for it.
    for (time, least) in [(2.0..3.0, 0.85), (6.5..8.0, 0.6), (14.0..16.0, 0.85)] {
        let used = all(time.clone()) / RATE / (time.end - time.start);
        assert!(used >= least, "{used} from {} s on", time.start);
    }
    // The floor of a host is a sixtieth, and a burst of ten may have been there.
    let floor = count(&admitted[1], killed + 1.5..8.0);
    assert!((1.0..16.0).contains(&floor), "{floor}");
    let again = count(&admitted[1], 12.0..16.0);
    assert!(again > 50.0, "{again}");
    assert_eq!(status_of(&alone, "closed", "new"), Some(200));
}

#[test]
fn one_process_of_a_host_has_its_shares() {
    let (hosts, serves) = start(2);
    let socket = hosts.daemons[0].socket().display().to_string();
    let mut second = Serve::start(RULES, &["--daemon", &socket]);
    let warns = || second.log().contains("another limiter-serve of this host");
    wait_for("a refusal", TIMEOUT, || warns().then_some(()));
    assert_eq!(status_of(&second.path("http.sock"), "user", "one"), Some(429), "it has no floor");
    assert_eq!(status_of(&serves[0].path("http.sock"), "user", "one"), Some(200));
    // It takes over when the first one is gone, with empty buckets.
    drop(serves);
    let taken = || (status_of(&second.path("http.sock"), "user", "one") == Some(200)).then_some(());
    wait_for("its part", TIMEOUT, taken);
    second.process().signal(libc::SIGTERM);
}
