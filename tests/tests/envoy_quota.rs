//! Three Envoys keep one limit by RLQS: `limiter-serve` gives each a part, until that ends.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tests::{
    Namespace,
    envoy::{self, address, connection_manager, filter, http2_backend, listener},
    process,
    serve::{GRPC, Serve},
};

/// Requests a second of all Envoys together, and at once.
const RATE: u64 = 100;
const BURST: u64 = 60;
/// What each is asked for, a second: uneven, and more than the limit in sum.
const LOAD: [u64; 3] = [250, 130, 110];
/// Until the parts are found, s; when one is killed, when another one is cut off, and the end.
const WARM: u64 = 10;
const KILL: u64 = 16;
const CUT: std::ops::Range<u64> = 24..32;
const END: u64 = 70;

const FIRST_PORT: u16 = 10_000;

/// Envoy number `n` talks to the server from an address of its own, so that one of them can be cut off.
fn source(n: u16) -> String {
    format!("127.0.0.{}", 10 + n)
}

/// An Envoy that limits by RLQS; with a bucket of its own it has the whole limit to itself, as other servers give it.
fn config(n: u16, is_static: bool) -> Value {
    let mut server = http2_backend("limiter", &address(GRPC));
    server["upstream_bind_config"] =
        json!({ "source_address": { "address": source(n), "port_value": 0 } });
    // A connection that is cut off is given up, and made anew as soon as it can be.
    server["connect_timeout"] = "1s".into();
    let bucket = if is_static { format!("requests{n}") } else { "requests".to_owned() };
    let deny = json!({ "blanket_rule": "DENY_ALL" });
    let settings = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings",
        "bucket_id_builder": { "bucket_id_builder": { "all": { "string_value": bucket } } },
        "reporting_interval": "1s",
        "no_assignment_behavior": { "fallback_rate_limit": deny },
        "expired_assignment_behavior":
            { "expired_assignment_behavior_timeout": "3600s", "fallback_rate_limit": deny },
    });
    let quota = filter(
        "envoy.filters.http.rate_limit_quota",
        "http.rate_limit_quota.v3.RateLimitQuotaFilterConfig",
        json!({
            "domain": "shop",
            "rlqs_server": { "envoy_grpc": { "cluster_name": "limiter" } },
            "bucket_matchers": { "matcher_list": { "matchers": [{
                "predicate": { "single_predicate": { "value_match": { "prefix": "/" }, "input": {
                    "name": "path", "typed_config": { "header_name": ":path",
                        "@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput" } } } },
                "on_match": { "action": { "name": "all", "typed_config": settings } },
            }] } },
        }),
    );
    let answer = json!([{ "match": { "prefix": "/" }, "direct_response": { "status": 200 } }]);
    json!({ "static_resources": {
        "listeners": [listener("http", FIRST_PORT + n, &[connection_manager(&[quota], &answer)])],
        "clusters": [server],
    } })
}

/// When requests were admitted, of all clients.
type Admitted = Arc<Mutex<Vec<Duration>>>;

/// A client that asks an Envoy so often, until it is to end. One that is killed is asked in vain.
fn client(
    namespace: &Namespace,
    n: u16,
    begun: Instant,
    admitted: &Admitted,
    end: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let (admitted, end) = (Arc::clone(admitted), Arc::clone(end));
    namespace.spawn_inside(move || {
        let each = Duration::from_secs(1) / LOAD[usize::from(n)] as u32;
        let mut due = begun;
        let mut stream = None;
        while !end.load(Ordering::Relaxed) {
            due += each;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let connect = || TcpStream::connect(("127.0.0.1", FIRST_PORT + n)).ok();
            let Some(open) = stream.take().or_else(|| connect().map(BufReader::new)) else {
                continue;
            };
            if let Some((status, open)) = ask(open) {
                if status == 200 {
                    admitted.lock().expect("no client has panicked").push(begun.elapsed());
                }
                stream = Some(open);
            }
        }
    })
}

/// The status that a request is answered with, and the connection; nothing if that has ended.
fn ask(mut stream: BufReader<TcpStream>) -> Option<(u16, BufReader<TcpStream>)> {
    stream.get_mut().write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").ok()?;
    let (mut status, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|&read| read > 0)?;
        if line == "\r\n" {
            break;
        }
        status = status.or_else(|| line.split(' ').nth(1)?.parse().ok());
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((status?, stream))
}

/// The most that was admitted in any time of so many seconds.
fn most_in(times: &[Duration], seconds: u64) -> u64 {
    let window = Duration::from_secs(seconds);
    let within =
        |at: usize| times[at..].iter().take_while(|&&time| time < times[at] + window).count();
    (0..times.len()).map(within).max().unwrap_or(0) as u64
}

/// Has three Envoys asked; what `act` does happens each second.
fn run(
    is_static: bool,
    seconds: u64,
    act: impl Fn(u64, &Namespace, &mut Vec<Option<process::Background>>),
) -> Vec<Duration> {
    let namespace = Namespace::new("quota");
    let rules = format!(
        "domain: shop\ndescriptors:\n  - key: all\n    rate_limit: \
         {{ unit: second, requests_per_unit: {RATE}, burst: {BURST} }}\n"
    );
    let serve = Serve::start_in(Some(&namespace), &rules, &[]);
    let home = tempfile::tempdir().expect("a folder");
    let mut envoys: Vec<_> = (0..3)
        .map(|n| {
            let path = home.path().join(format!("envoy{n}.json"));
            Some(envoy::start(&namespace, &path, &config(n, is_static), FIRST_PORT + n))
        })
        .collect();
    let (admitted, end) = (Admitted::default(), Arc::new(AtomicBool::new(false)));
    let begun = Instant::now();
    let clients: Vec<_> = (0..3).map(|n| client(&namespace, n, begun, &admitted, &end)).collect();
    for second in 0..seconds {
        act(second, &namespace, &mut envoys);
        let next = begun + Duration::from_secs(second + 1);
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    end.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().expect("a client ends"));
    drop(serve);
    let mut times = std::mem::take(&mut *admitted.lock().expect("no client has panicked"));
    times.sort_unstable();
    times
}

#[test]
fn three_envoys_share_a_limit_while_one_is_killed_and_one_cut_off() {
    let times = run(false, END, |second, namespace, envoys| {
        if second == KILL {
            envoys[1] = None;
        } else if second == CUT.start {
            let rules = format!(
                "add table ip cut; add chain ip cut out {{ type filter hook output priority 0; }}; \
                 add rule ip cut out ip saddr {0} drop; add rule ip cut out ip daddr {0} drop",
                source(2)
            );
            process::run(namespace.command(&tools::NFT).arg(rules));
        } else if second == CUT.end {
            process::run(namespace.command(&tools::NFT).arg("delete table ip cut"));
        }
    });
    for seconds in [1, 2, 5, 10, END] {
        let most = most_in(&times, seconds);
        assert!(most <= BURST + RATE * seconds, "{most} in {seconds} s");
    }
    let warm = Duration::from_secs(WARM);
    let used = times.iter().filter(|&&time| time >= warm).count() as f64;
    let used = used / (RATE * (END - WARM)) as f64;
    assert!(used >= 0.9, "{used:.3} of the limit is used");
    eprintln!("{used:.3} of the limit is used, at most {} in a second", most_in(&times, 1));
}

#[test]
fn three_envoys_without_it_admit_three_times_as_much() {
    let times = run(true, WARM + 8, |_, _, _| {});
    let warm = Duration::from_secs(WARM);
    let used = times.iter().filter(|&&time| time >= warm).count() as f64 / (RATE * 8) as f64;
    assert!(used > 2.8, "{used:.3}");
    eprintln!("{used:.3} of the limit");
}
