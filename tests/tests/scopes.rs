//! A rule that goes from scope to scope on a fleet at work, and a store that is lost meanwhile.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use tests::{
    demand::{Client, assert_kept, count, until},
    hosts::Hosts,
    process::wait_for,
    serve::Serve,
    store::{Proxy, Store},
};

/// Of a key, on all hosts together.
const RATE: f64 = 100.0;
const BURST: f64 = 30.0;
/// What a host of `synced` admits by itself.
const BUDGET: f64 = 3.0;

fn rules(scope: &str) -> String {
    format!(
        "domain: api\ndescriptors:\n  - key: user\n    rate_limit: {{ unit: second, requests_per_unit: 100, burst: 30, \
         {scope} }}\n"
    )
}

/// Three hosts, each with a daemon of the cluster and a `limiter-serve` that knows the store.
fn start(store: &Store, scope: &str) -> (Hosts, Vec<Serve>) {
    let url = format!("unix:{}", store.socket().display());
    start_at(store, &[&url, &url, &url], scope)
}

/// The same, where each of them has its own way to the store.
fn start_at(store: &Store, urls: &[&str; 3], scope: &str) -> (Hosts, Vec<Serve>) {
    store.call(&["SET", "limiter:{api}:since", "0"]);
    let hosts = Hosts::start(3, &[]);
    hosts.wait_even(&[0, 1, 2]);
    let serve = |host: usize| {
        let socket = hosts.daemons[host].socket().display().to_string();
        Serve::start(&rules(scope), &["--daemon", &socket, "--store", urls[host]])
    };
    let serves = (0..3).map(serve).collect();
    (hosts, serves)
}

/// A burst for each change within a time.
fn bursts(changes: &[f64], time: &Range<f64>) -> f64 {
    // It is in force a moment after it was made.
    let within = |at: &&f64| **at < time.end && **at + 0.5 > time.start;
    BURST * changes.iter().filter(within).count() as f64
}

/// Waits until this answers on all hosts.
fn wait_answered_by(serves: &[Serve], stance: &str) {
    let is = |serve: &Serve| serve.get("/v1/store").json()["stance"] == stance;
    let what = format!("answers by {stance}");
    wait_for(&what, Duration::from_secs(20), || serves.iter().all(is).then_some(()));
}

fn used(admitted: &[Vec<(f64, f64)>], time: Range<f64>) -> f64 {
    let all: f64 = admitted.iter().map(|host| count(host, time.clone())).sum();
    all / RATE / (time.end - time.start)
}

#[test]
fn a_rule_goes_from_scope_to_scope_and_admits_a_burst_more_at_each() {
    let store = Store::start();
    let (_hosts, serves) = start(&store, "scope: host");
    let begun = Instant::now();
    let clients: Vec<_> =
        serves.iter().map(|serve| Client::start(serve, "user", begun, 80)).collect();
    let mut changes = Vec::new();
    for (at, scope) in [
        (1.0, "scope: cluster"),
        (4.0, "scope: synced"),
        (7.0, "scope: strict"),
        (10.0, "scope: cluster"),
    ] {
        until(begun, at);
        changes.push(begun.elapsed().as_secs_f64());
        serves.iter().for_each(|serve| serve.reload(&rules(scope), "1 rules are in force"));
    }
    until(begun, 13.0);
    let admitted: Vec<_> = clients.into_iter().map(Client::end).collect();
    // Each host has a limit of its own until the first change.
    let more = |time: Range<f64>| {
        let own = 2.0 * (BURST + RATE * (changes[0] + 0.5 - time.start).max(0.0));
        let own = if time.start < changes[0] + 0.5 { own } else { 0.0 };
        own + bursts(&changes[1..], &time) + 3.0 * BUDGET
    };
    assert_kept(&admitted, (BURST, RATE), more);
    for time in [2.0..4.0, 5.0..7.0, 8.0..10.0, 11.0..13.0] {
        let used = used(&admitted, time.clone());
        assert!(used >= 0.95, "{used} from {} s on", time.start);
    }
}

#[test]
fn all_hosts_that_have_lost_the_store_share_the_limit_of_the_cluster() {
    let mut store = Store::start();
    let (_hosts, serves) = start(&store, "scope: strict, on_error: cluster");
    let begun = Instant::now();
    let clients: Vec<_> =
        serves.iter().map(|serve| Client::start(serve, "user", begun, 80)).collect();
    until(begun, 2.0);
    let killed = begun.elapsed().as_secs_f64();
    store.kill();
    until(begun, 6.0);
    store.restart_empty();
    wait_answered_by(&serves, "store");
    let back = begun.elapsed().as_secs_f64();
    until(begun, back + 2.0);
    let admitted: Vec<_> = clients.into_iter().map(Client::end).collect();
    let more = |time: Range<f64>| bursts(&[killed, back - 0.4], &time);
    assert_kept(&admitted, (BURST, RATE), more);
    for (time, least) in [(0.5..2.0, 0.95), (3.0..6.0, 0.9), (back + 0.5..back + 2.0, 0.95)] {
        let used = used(&admitted, time.clone());
        assert!(used >= least, "{used} from {} s on", time.start);
    }
}

#[test]
fn no_host_uses_a_share_while_another_one_has_the_store() {
    let store = Store::start();
    let proxy = Proxy::to(&store);
    let (direct, way) =
        (format!("unix:{}", store.socket().display()), format!("redis://{}", proxy.address()));
    let urls = [direct.as_str(), &direct, &way];
    let (_hosts, serves) = start_at(&store, &urls, "scope: strict, on_error: cluster");
    wait_answered_by(&serves, "store");
    let begun = Instant::now();
    let clients: Vec<_> =
        serves.iter().map(|serve| Client::start(serve, "user", begun, 80)).collect();
    until(begun, 1.0);
    proxy.partition();
    let cut = begun.elapsed().as_secs_f64();
    wait_answered_by(&serves, "escrow");
    let away = begun.elapsed().as_secs_f64();
    until(begun, 4.5);
    proxy.heal();
    wait_answered_by(&serves, "store");
    let back = begun.elapsed().as_secs_f64();
    until(begun, back + 1.5);
    let admitted: Vec<_> = clients.into_iter().map(Client::end).collect();
    println!("lost at {cut:.2} s, shares from {away:.2} s on, the store from {back:.2} s on");
    assert_kept(&admitted, (BURST, RATE), |time| bursts(&[cut, back - 0.4], &time));
    for (time, least) in [(away + 0.5..4.5, 0.8), (back + 0.3..back + 1.5, 0.9)] {
        let used = used(&admitted, time.clone());
        println!("{used:.3} from {:.2} to {:.2} s", time.start, time.end);
        assert!(used >= least, "{used} from {} s on", time.start);
    }
}
