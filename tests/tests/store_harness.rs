//! The stores that tests run against do what the harness says of them.

use std::{
    net::Ipv4Addr,
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tests::{
    Namespace,
    process::{output, wait_for},
    resp::Resp,
    store::{Cluster, Direction, Proxy, Sentinels, Store, StoreOptions, Tls, Version},
};

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_store_answers_and_forgets_when_it_is_killed() {
    let mut store = Store::start();
    let mut client = store.client();
    assert_eq!(client.call(&["SET", "key", "a value"]), "OK");
    let script = "return { redis.call('GET', KEYS[1]), 7, false }";
    let answer = client.call(&["EVAL", script, "1", "key"]);
    assert_eq!(answer, json!(["a value", 7, Value::Null]));
    assert!(client.ask("GET").as_str().is_some_and(|text| text.starts_with("-ERR")));
    assert_eq!(store.calls("eval"), 1);
    let mut tcp = Resp::tcp(store.address()).expect("its port takes a connection");
    assert_eq!(tcp.ask("GET key"), "a value");
    store.restart();
    assert!(client.try_call(&["GET", "key"]).is_err(), "connections do not survive");
    assert_eq!(store.ask("GET key"), Value::Null);
}

#[test]
fn a_store_keeps_what_it_appends_to_a_file() {
    let mut store =
        Store::start_with(&StoreOptions::with(&["appendonly yes", "appendfsync always"]));
    assert_eq!(store.ask("SET key 1"), "OK");
    store.restart();
    assert_eq!(store.ask("GET key"), "1");
    store.restart_empty();
    assert_eq!(store.ask("GET key"), Value::Null);
}

#[test]
fn a_pause_delays_the_answer() {
    let store = Store::start();
    let mut client = store.client().with_timeout(SHORT);
    store.pause();
    let begin = Instant::now();
    assert!(client.try_call(&["PING"]).is_err());
    assert!(begin.elapsed() >= SHORT);
    store.resume();
    assert_eq!(client.reply(), "PONG");
}

#[test]
fn a_store_wants_a_login_and_a_replica_has_it() {
    let master = Store::start_with(&StoreOptions::default().login("limiter", "secret"));
    let refused = master.anonymous().ask("PING");
    assert!(refused.as_str().is_some_and(|text| text.starts_with("-NOAUTH")), "{refused}");
    let replica = Store::replica_of(&master, &StoreOptions::default());
    assert_eq!(master.ask("SET key 1"), "OK");
    wait_for("the replica's copy", Duration::from_secs(5), || {
        (replica.ask("GET key") == "1").then_some(())
    });
    let refused = replica.ask("SET key 2");
    assert!(refused.as_str().is_some_and(|text| text.starts_with("-READONLY")), "{refused}");
}

#[test]
fn a_store_speaks_tls_to_clients_with_a_certificate() {
    // Not every version was built with it.
    let version = StoreOptions::default().version();
    let version = if version.has_tls() { version } else { Version::Redis };
    let options = StoreOptions { version: Some(version), ..StoreOptions::default() };
    let store = Store::start_with(&options.tls(Tls::Mutual));
    let ask = |arguments: &[&str]| {
        let mut client = tools::OPENSSL.command();
        let address = store.address().to_string();
        // With version 1.3 a client learns of its refusal only when it reads.
        client.args(["s_client", "-tls1_2", "-brief", "-verify_return_error"]);
        client.args(["-connect", &address]);
        client.args(["-verify_ip", &store.address().ip().to_string()]);
        client.arg("-CAfile").arg(store.path("ca.crt")).args(arguments);
        // Nothing to send is the end of a connection.
        let output = output(client.stdin(Stdio::null()));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let path = |name: &str| store.path(name).display().to_string();
    let (cert, key) = (path("client.crt"), path("client.key"));
    let known = ask(&["-cert", &cert, "-key", &key]);
    assert!(known.contains("Verification: OK"), "{known}");
    let unknown = ask(&[]);
    assert!(!unknown.contains("Verification: OK"), "{unknown}");
}

#[test]
fn a_proxy_delays_cuts_and_closes() {
    let store = Store::start();
    let proxy = Proxy::to(&store);
    let mut client = Resp::tcp(proxy.address()).expect("a connection").with_timeout(SHORT * 3);
    assert_eq!(client.ask("INCR key"), 1);
    proxy.slow(SHORT / 2);
    let begin = Instant::now();
    assert_eq!(client.ask("INCR key"), 2);
    assert!(begin.elapsed() >= SHORT);
    proxy.slow(Duration::ZERO);
    proxy.cut(Direction::Replies);
    assert!(client.try_call(&["INCR", "key"]).is_err(), "the reply is late");
    assert_eq!(store.ask("GET key"), "3", "the request has come");
    proxy.heal();
    assert_eq!(client.reply(), 3);
    proxy.partition();
    assert!(client.try_call(&["INCR", "key"]).is_err());
    assert_eq!(store.ask("GET key"), "3");
    proxy.heal();
    assert_eq!(client.reply(), 4);
    proxy.disconnect();
    assert!(client.is_closed());
    let mut client = Resp::tcp(proxy.address()).expect("another connection");
    assert_eq!(client.ask("GET key"), "4");
    assert_eq!(proxy.connections(), 2);
    let address = proxy.address();
    drop(proxy);
    assert!(client.is_closed());
    wait_for("the end of its port", Duration::from_secs(5), || {
        Resp::tcp(address).is_err().then_some(())
    });
}

#[test]
fn a_store_in_a_namespace_has_its_port_there() {
    let namespace = Namespace::new("store");
    let options = StoreOptions { namespace: Some(namespace.entrance()), ..StoreOptions::default() };
    let mut store = Store::start_with(&options);
    store.restart();
    let proxy = Proxy::to(&store);
    for address in [store.address(), proxy.address()] {
        let ask = move || Resp::tcp(address).expect("a connection").ask("PING");
        assert_eq!(namespace.run_inside(ask), "PONG");
        assert!(Resp::tcp(address).is_err(), "not on this host");
    }
    assert_ne!(store.address().ip(), Ipv4Addr::LOCALHOST);
}

#[test]
fn a_cluster_sends_clients_to_the_owner_of_a_key() {
    let mut cluster = Cluster::start(&StoreOptions::default().login("limiter", "secret"));
    let owners: Vec<_> = ["a", "b", "c", "d"].map(|key| cluster.owner_of(key)).into();
    assert!((0..3).all(|node| owners.contains(&node)), "{owners:?}");
    let (owner, other) = (owners[0], (owners[0] + 1) % 3);
    assert_eq!(cluster.client_of("a").ask("SET a 1"), "OK");
    let moved = cluster.nodes()[other].ask("GET a");
    let address = cluster.nodes()[owner].address().to_string();
    let (kind, place) = moved.as_str().and_then(|text| text.rsplit_once(' ')).expect("an answer");
    assert!(kind.starts_with("-MOVED ") && place == address, "{moved} {address}");
    cluster.node(owner).restart();
    cluster.wait_whole();
    assert_eq!(cluster.client_of("a").ask("GET a"), Value::Null);
}

#[test]
fn sentinels_put_a_replica_in_the_place_of_a_dead_master() {
    let mut all = Sentinels::start(&StoreOptions::default().login("limiter", "secret"));
    assert_eq!((all.master(), all.addresses().len()), (0, 3));
    assert_eq!(all.stores()[0].ask("SET key 1"), "OK");
    assert_eq!(all.stores()[0].ask("WAIT 1 5000"), 1);
    assert_eq!(all.kill_master(), 1);
    assert_eq!(all.stores()[1].ask("GET key"), "1");
    assert_eq!(all.stores()[1].ask("SET key 2"), "OK");
    all.store(0).restart();
    assert_eq!(all.stores()[0].ask("SET key 3"), "OK", "no sentinel has looked yet");
    assert_eq!(all.master(), 1);
}

#[test]
fn sentinels_fail_over_to_a_replica_when_they_are_told() {
    let all = Sentinels::start(&StoreOptions::default());
    assert_eq!(all.fail_over(), 1);
    assert_eq!(all.stores()[1].ask("SET key 1"), "OK");
    assert_eq!(all.stores()[0].ask("SET key 2"), "OK", "no sentinel has looked yet");
}
