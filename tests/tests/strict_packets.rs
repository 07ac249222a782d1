//! Strict limits of packets: hosts without a cluster, one store, real packets, and whatever of these dies.

use std::{net::Ipv4Addr, thread::sleep, time::Duration};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Fleet,
    hosts::{Watch, flood},
    process::wait_for,
    sender::Sending,
    serve::Serve,
    store::Store,
};

const TIMEOUT: Duration = Duration::from_secs(20);

const RATE: f64 = 1000.0;
const BURST: f64 = 280.0;
/// What the list says beside it.
const BEYOND: f64 = 2.0;

/// What `limiter-serve` needs to start.
const RULES: &str = "domain: none
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1 }
";

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
        let (mut fleet, store) = (Fleet::new(0), Store::start());
        // It knows of all that was ever used: nobody has to wait until it does.
        store.call(&["SET", "limiter:{packets}:since", "0"]);
        (0..count).for_each(|_| fleet.add_host());
        let daemon = |host: usize| {
            let daemon = Daemon::start_with(&fleet.hosts[host], DaemonOptions::default());
            for limit in limits {
                daemon.cli().ok(&[&["limit", "set"], *limit, &["--scope", "strict"]].concat());
            }
            daemon
        };
        let daemons: Vec<_> = (0..count).map(daemon).collect();
        let url = format!("unix:{}", store.socket().display());
        let serve = |daemon: &Daemon| {
            let socket = daemon.socket().display().to_string();
            Serve::start(RULES, &["--daemon", &socket, "--store", &url])
        };
        let serves = daemons.iter().map(serve).collect();
        let strict = Self { daemons, serves, store, fleet };
        (0..count).for_each(|host| strict.wait_leases(host, true));
        strict
    }

    fn status(&self, host: usize) -> Value {
        self.daemons[host].cli().run(&["status"]).json
    }

    /// Waits until a host has a store, or none, and says so.
    fn wait_leases(&self, host: usize, is_there: bool) {
        let is_so = || {
            let problem = self.status(host)["leases"]["problem"].clone();
            (problem.is_null() == is_there).then_some(())
        };
        wait_for("leases as they are", TIMEOUT, is_so);
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
    until(&watch, 5.0);
    let steady = (1.0, watch.elapsed());
    hosts.serves[0].process().signal(libc::SIGKILL);
    let killed = watch.elapsed();
    until(&watch, killed + 4.0);
    let without_serve = (killed + 1.2, watch.elapsed());
    assert!(hosts.status(0)["warnings"].to_string().contains("on_error: lease for 1"));
    // Without a daemon: its leases end, and the others have all.
    hosts.daemons[1].signal(libc::SIGKILL);
    let killed = watch.elapsed();
    until(&watch, killed + 4.0);
    let without_daemon = (killed + 1.2, watch.elapsed());
    let calls = hosts.store.calls("evalsha");
    // Without the store nobody has anything, and the data plane drops as fast as before.
    let paused = watch.elapsed();
    hosts.store.pause();
    until(&watch, paused + 3.0);
    hosts.wait_leases(2, false);
    let without_store = (paused + 1.2, watch.elapsed());
    hosts.store.resume();
    let resumed = watch.elapsed();
    hosts.wait_leases(2, true);
    until(&watch, resumed + 4.0);
    hosts.store.kill();
    let killed = watch.elapsed();
    until(&watch, killed + 3.0);
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
    let back = admitted.back(RATE, 0.9, resumed, resumed + 4.0);
    println!("back {back:?} s after the store");
    assert!(back.is_some_and(|back| back < 2.5));
    admitted.assert_kept("strict", RATE, BURST + BEYOND * RATE + 3.0);
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
    until(&watches[0], paused + 3.0);
    hosts.store.resume();
    hosts.wait_leases(0, true);
    until(&watches[0], paused + 6.0);
    sending.into_iter().for_each(|sending| drop(sending.stop()));
    let [closed, open] = watches.map(Watch::stop);
    for (name, admitted) in [("closed", &closed), ("open", &open)] {
        println!("{name}:");
        admitted.print(9);
    }
    let within =
        |admitted: &tests::hosts::Admitted, from: f64, to: f64| admitted.counts(from, to)[0] as f64;
    assert!(within(&closed, paused + 0.6, paused + 2.9) <= 1.0);
    let opened = within(&open, paused + 0.6, paused + 2.9) / (2.3 * RATE);
    assert!((0.9..=1.1).contains(&opened), "{opened}");
    for admitted in [&closed, &open] {
        assert!(admitted.utilisation(RATE, 1.0, 2.9) >= 0.95);
        admitted.assert_kept("without the store", RATE, 1200.0 + BEYOND * RATE + 1.0);
    }
    // What is told of it.
    let events = hosts.daemons[0].log();
    assert!(
        events.contains("no leases of strict limits")
            && events.contains("leases strict limits again")
    );
}
