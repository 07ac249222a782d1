//! Strict limits of packets: hosts without a cluster, one store, real packets, and whatever of these dies.

use std::{net::Ipv4Addr, thread::sleep, time::Duration};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Fleet, api,
    hosts::{Hosts, Watch, flood},
    leases,
    sender::Sending,
    serve::Serve,
    store::Store,
};

const RATE: f64 = 1000.0;
const BURST: f64 = 280.0;
/// For how long the rate may be had beyond a window, as the list says, and while few sources are busy.
const BEYOND: f64 = 2.0;
const FEW_BEYOND: f64 = 0.5;

const SOURCE: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 1);

/// Hosts with a daemon and a `limiter-serve` each.
struct Strict {
    daemons: Vec<Daemon>,
    serves: Vec<Serve>,
    store: Store,
    fleet: Fleet,
}

impl Strict {
    fn start(count: usize, limits: &[&[&str]]) -> Self {
        let (mut fleet, store) = (Fleet::new(0), leases::store());
        (0..count).for_each(|_| fleet.add_host());
        let daemon = |host: usize| {
            let daemon = Daemon::start_with(&fleet.hosts[host], DaemonOptions::default());
            for limit in limits {
                daemon.cli().ok(&[&["limit", "set"], *limit, &["--scope", "strict"]].concat());
            }
            daemon
        };
        let daemons: Vec<_> = (0..count).map(daemon).collect();
        let serves = daemons.iter().map(|daemon| leases::serve(daemon, &store)).collect();
        let strict = Self { daemons, serves, store, fleet };
        (0..count).for_each(|host| strict.wait_leases(host, true));
        strict
    }

    fn status(&self, host: usize) -> Value {
        self.daemons[host].cli().run(&["status"]).json
    }

    fn wait_leases(&self, host: usize, is_there: bool) {
        leases::wait(&self.daemons[host], is_there);
    }

    fn flood(&self, host: usize, rate: f64) -> Sending {
        flood(&self.fleet, host, SOURCE, rate)
    }
}

fn until(watch: &Watch<'_>, seconds: f64) {
    sleep(Duration::from_secs_f64((seconds - watch.elapsed()).max(0.0)));
}

#[test]
fn strict_hosts_share_one_limit_and_what_is_leased_ends_whoever_dies() {
    let rate = format!("{RATE}pps");
    let burst = BURST.to_string();
    let mut hosts = Strict::start(3, &[&[&rate, "--burst", &burst]]);
    let listed = hosts.daemons[0].cli().ok(&["limit", "list"]);
    let limit = &listed["limits"][0];
    assert_eq!(
        (limit["scope"].as_str(), limit["on_error"].as_str()),
        (Some("strict"), Some("lease"))
    );
    assert_eq!(limit["beyond_seconds"].as_f64(), Some(BEYOND));
    let watch = Watch::new(&hosts.fleet, SOURCE);
    let mut sending: Vec<_> = (0..3).map(|host| hosts.flood(host, 2.0 * RATE)).collect();
    // All of them, then without the `limiter-serve` of one.
    until(&watch, 4.0);
    let steady = (1.0, watch.elapsed());
    hosts.serves[0].process().signal(libc::SIGKILL);
    let killed = watch.elapsed();
    until(&watch, killed + 3.0);
    let without_serve = (killed + 1.2, watch.elapsed());
    assert!(hosts.status(0)["warnings"].to_string().contains("on_error: lease for 1"));
    // Without a daemon: its leases end, and the others have all.
    hosts.daemons[1].signal(libc::SIGKILL);
    let killed = watch.elapsed();
    until(&watch, killed + 3.0);
    let without_daemon = (killed + 1.2, watch.elapsed());
    let calls = hosts.store.calls("evalsha");
    // Without the store nobody has anything, and the data plane drops as fast as before.
    let paused = watch.elapsed();
    hosts.store.pause();
    until(&watch, paused + 2.5);
    hosts.wait_leases(2, false);
    let without_store = (paused + 1.2, watch.elapsed());
    hosts.store.resume();
    let resumed = watch.elapsed();
    hosts.wait_leases(2, true);
    until(&watch, resumed + 3.0);
    hosts.store.kill();
    let killed = watch.elapsed();
    until(&watch, killed + 2.5);
    let without = (killed + 1.2, watch.elapsed());
    sending.drain(..).for_each(|sending| drop(sending.stop()));
    let admitted = watch.stop();
    admitted.print(without.1 as u32);
    let part = |(from, to): (f64, f64)| admitted.utilisation(RATE, from, to);
    let [all, two, one] = [steady, without_serve, without_daemon].map(part);
    println!(
        "used: {all:.3} by three hosts, {two:.3} by two, {one:.3} by one; {calls} calls so far"
    );
    assert!(all >= 0.95 && two >= 0.95 && one >= 0.95);
    assert!(admitted.counts(without_serve.0, without_serve.1)[0] <= 1);
    assert!(admitted.counts(without_daemon.0, without_daemon.1)[1] <= 1);
    for (from, to) in [without_store, without] {
        assert!(admitted.counts(from, to).iter().all(|count| *count <= 1), "{from} to {to}");
    }
    let back = admitted.back(RATE, 0.9, resumed, resumed + 3.0);
    println!("back {back:?} s after the store");
    assert!(back.is_some_and(|back| back < 2.5));
    admitted.assert_kept("strict", RATE, BURST + FEW_BEYOND * RATE + 3.0);
}

#[test]
fn strict_limits_answer_as_each_says_while_there_is_no_store() {
    let closed = ["1000pps", "--for", "172.16.1.0/24", "--on-error", "closed"];
    let open = ["1000pps", "--for", "172.16.2.0/24", "--on-error", "open"];
    let hosts = Strict::start(1, &[&["1000pps"], &closed, &open]);
    let sources = [1, 2].map(|net| Ipv4Addr::new(172, 16, net, 1));
    // A first packet passes, and is told at once: so its source has a lease soon.
    let watch = Watch::new(&hosts.fleet, SOURCE);
    let sending = hosts.flood(0, 900.0);
    until(&watch, 2.0);
    drop(sending.stop());
    let admitted = watch.stop();
    let counts: Vec<_> = (0..20)
        .map(|at| admitted.counts(0.1 * f64::from(at), 0.1 * f64::from(at + 1))[0])
        .collect();
    println!("from the first packet on, in 100 ms each: {counts:?}");
    let begins =
        (0..200).map(|at| 0.01 * f64::from(at)).find(|at| admitted.counts(0.0, *at)[0] >= 1);
    let leased =
        (0..200).map(|at| 0.01 * f64::from(at)).find(|at| admitted.counts(0.0, *at)[0] >= 5);
    println!("the first packet passes at {begins:?} s, the fifth at {leased:?} s");
    assert!(leased.unwrap() - begins.unwrap() < 0.5);
    let watches = sources.map(|source| Watch::new(&hosts.fleet, source));
    let sending = sources.map(|source| flood(&hosts.fleet, 0, source, 2000.0));
    until(&watches[0], 3.0);
    hosts.store.pause();
    let paused = watches[0].elapsed();
    hosts.wait_leases(0, false);
    let text = hosts.status(0)["warnings"].to_string();
    for said in ["on_error: lease for 1", "on_error: closed for 1", "on_error: open for 1"] {
        assert!(text.contains(said), "{text}");
    }
    let (_, metrics) = api::get(&hosts.daemons[0].socket(), "/metrics", "text/plain");
    assert!(metrics.contains("\nlimiter_leases_up 0\n"), "{metrics}");
    until(&watches[0], paused + 3.0);
    hosts.store.resume();
    hosts.wait_leases(0, true);
    until(&watches[0], paused + 4.5);
    sending.into_iter().for_each(|sending| drop(sending.stop()));
    let [closed, open] = watches.map(Watch::stop);
    for (name, admitted) in [("closed", &closed), ("open", &open)] {
        println!("{name}:");
        admitted.print(8);
    }
    let within =
        |admitted: &tests::hosts::Admitted, from: f64, to: f64| admitted.counts(from, to)[0] as f64;
    assert!(within(&closed, paused + 0.6, paused + 2.9) <= 1.0);
    let opened = within(&open, paused + 0.6, paused + 2.9) / (2.3 * RATE);
    assert!((0.9..=1.1).contains(&opened), "{opened}");
    for admitted in [&closed, &open] {
        assert!(admitted.utilisation(RATE, 1.0, 2.9) >= 0.95);
        admitted.assert_kept("without the store", RATE, 1200.0 + FEW_BEYOND * RATE + 1.0);
    }
    // What is told of it.
    let events = hosts.daemons[0].log();
    assert!(
        events.contains("no leases of strict limits")
            && events.contains("leases strict limits again")
    );
}

#[test]
fn strict_limits_and_limits_of_the_cluster_are_beside_each_other() {
    let (hosts, store) = (Hosts::start(2, &[]), leases::store());
    let cli = hosts.daemons[0].cli();
    cli.ok(&["limit", "set", "1000pps", "--scope", "cluster"]);
    let strict = Ipv4Addr::new(172, 16, 1, 1);
    for daemon in &hosts.daemons {
        let net = "172.16.1.0/24";
        daemon.cli().ok(&["limit", "set", "500pps", "--for", net, "--scope", "strict"]);
    }
    hosts.wait_even(&[0, 1]);
    let _serves: Vec<_> =
        hosts.daemons.iter().map(|daemon| leases::serve(daemon, &store)).collect();
    hosts.daemons.iter().for_each(|daemon| leases::wait(daemon, true));
    let watches = [SOURCE, strict].map(|source| hosts.watch(source));
    let to = |host: usize| [SOURCE, strict].map(|source| hosts.send(host, source, 2000.0));
    let sending: Vec<_> = [to(0), to(1)].into_iter().flatten().collect();
    until(&watches[0], 5.0);
    // One limit becomes the other: no more than the larger promise, and a burst.
    hosts.daemons.iter().for_each(|daemon| {
        daemon.cli().ok(&[
            "limit",
            "set",
            "1000pps",
            "--for",
            "172.16.0.0/24",
            "--scope",
            "strict",
        ]);
    });
    until(&watches[0], 8.0);
    drop(Sending::stop_all(sending));
    let [cluster, strict] = watches.map(Watch::stop);
    cluster.print(8);
    strict.print(8);
    let parts = [cluster.utilisation(1000.0, 2.0, 5.0), strict.utilisation(500.0, 2.0, 5.0)];
    println!("used: {parts:.3?}, then {:.3}", cluster.utilisation(1000.0, 6.0, 7.9));
    assert!(parts.iter().all(|part| *part >= 0.95));
    assert!(cluster.utilisation(1000.0, 6.0, 7.9) >= 0.95);
    cluster.assert_kept("cluster, then strict", 1000.0, 2.0 * 1200.0 + FEW_BEYOND * 1000.0 + 2.0);
    strict.assert_kept("strict", 500.0, 600.0 + FEW_BEYOND * 500.0 + 2.0);
}
