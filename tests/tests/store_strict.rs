//! Limits that a central store keeps for all hosts: `limiter-serve` in front of real servers, and what happens to these.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use tests::{
    cli::{answer, limiter_binary},
    demand::{Client, assert_kept, count, until},
    process::wait_for,
    serve::Serve,
    store::{Cluster, MASTER, Proxy, Sentinels, Store, StoreOptions, Tls, own_address, own_port},
};

const TIMEOUT: Duration = Duration::from_secs(20);

const RULES: &str = "domain: api
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 30, scope: strict, on_error: closed }
  - key: open
    rate_limit: { unit: hour, requests_per_unit: 30, scope: strict, on_error: open }
  - key: team
    rate_limit: { unit: hour, requests_per_unit: 5, scope: strict, on_error: closed }
  - key: here
    rate_limit: { unit: hour, requests_per_unit: 3 }
  - key: log
    rate_limit: { unit: hour, requests_per_unit: 7, algorithm: sliding-log, scope: strict, on_error: closed }
  - key: day
    rate_limit: { unit: day, requests_per_unit: 7, algorithm: fixed-window, scope: strict, on_error: closed }
  - key: fast
    rate_limit: { unit: second, requests_per_unit: 200, burst: 40, scope: strict, on_error: closed }
  - key: late
    rate_limit: { unit: second, requests_per_unit: 200, burst: 40, scope: synced, on_error: closed }
";

/// Has the store know of all that was ever used: its limits begin full.
fn begin(store: &Store) {
    store.call(&["SET", "limiter:{api}:since", "0"]);
}

/// One that is as patient as these tests, which share the processors with others, need it to be.
fn serve(url: &str, more: &[&str]) -> Serve {
    within("500ms", url, more)
}

/// One that waits so long for the store.
fn within(timeout: &str, url: &str, more: &[&str]) -> Serve {
    let store = ["--store", url, "--store-timeout", timeout];
    let serve = Serve::start(RULES, &[&store, more].concat());
    assert!(serve.log().contains("the store answers"), "{}", serve.log());
    serve
}

fn url(store: &Store) -> String {
    format!("unix:{}", store.socket().display())
}

fn ask(serve: &Serve, rule: &str, key: &str) -> u16 {
    serve.get(&format!("/v1/decide?domain=api&rule={rule}&key={key}")).status
}

/// How many of so many requests are admitted, asked of each process in turn.
fn admitted(serves: &[&Serve], rule: &str, key: &str, count: usize) -> usize {
    (0..count).filter(|at| ask(serves[at % serves.len()], rule, key) == 200).count()
}

fn metric(serve: &Serve, name: &str) -> f64 {
    let page = serve.get("/metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {page}"))
}

fn wait_up(serve: &Serve, up: bool) {
    let is_so =
        || (metric(serve, "limiter_serve_store_up") == f64::from(u8::from(up))).then_some(());
    wait_for("the store as it is", TIMEOUT, is_so);
}

#[test]
fn store_hosts_that_ask_one_store_keep_one_limit_whatever_the_algorithm() {
    let store = Store::start();
    begin(&store);
    let serves = [serve(&url(&store), &[]), serve(&url(&store), &[])];
    let both = [&serves[0], &serves[1]];
    for (rule, limit) in [("user", 30), ("log", 7), ("day", 7), ("late", 40)] {
        let count = admitted(&both, rule, "a", limit + 20);
        // What the fast one earns meanwhile, and what a host admits by itself.
        let more = if rule == "late" { limit + 20 } else { limit };
        assert!((limit..=more).contains(&count), "{rule}: {count}");
    }
    // Keys have limits of their own.
    assert_eq!(admitted(&both, "user", "b", 1), 1);
    // Back and forth.
    let refund = "/v1/decide?domain=api&rule=user&key=a&act=refund&cost=4";
    assert_eq!(both[0].get(refund).status, 200);
    assert_eq!(admitted(&both, "user", "a", 9), 4);
}

#[test]
fn store_keys_of_a_request_are_charged_together_or_not_at_all() {
    let store = Store::start();
    begin(&store);
    let serve = serve(&url(&store), &[]);
    let both = |rule: &str| {
        let body = format!(
            r#"{{"items":[{{"domain":"api","rule":"user","key":"a"}},{{"domain":"api","rule":"{rule}","key":"t"}}]}}"#
        );
        serve.http("POST", "/v1/decide", "", &body).status
    };
    let count = |rule| (0..9).filter(|_| both(rule) == 200).count();
    assert_eq!(count("team"), 5);
    // One limit that is kept here, and no state of which is in the store.
    assert_eq!(count("here"), 3);
    assert_eq!(admitted(&[&serve], "user", "a", 40), 30 - 5 - 3);
    let domains = r#"{"items":[{"domain":"api","rule":"user","key":"a"},{"domain":"api","rule":"user","key":"b"}]}"#;
    assert_eq!(serve.http("POST", "/v1/decide", "", domains).status, 429);
}

/// What `limiter doctor --store` finds wrong, by its exit code and the names of its checks.
fn doctor(serve: &Serve) -> (i32, Vec<String>) {
    let mut command = tools::own(limiter_binary());
    let address = format!("unix:{}", serve.path("http.sock").display());
    let answer = answer(command.args(["--json", "doctor", "--store", "--serve", &address]));
    let checks = answer.json["checks"].as_array().cloned().unwrap_or_default().into_iter();
    let wrong = checks.filter(|check| check["state"] != "ok");
    let names = wrong.map(|check| check["name"].as_str().unwrap_or_default().to_owned());
    (answer.code, names.collect())
}

/// Something that happens to a store, and its end.
struct Fault {
    name: &'static str,
    begin: fn(&mut Store, &Proxy),
    end: fn(&mut Store, &Proxy),
    /// Whether the store has forgotten all.
    forgets: bool,
}

const FAULTS: [Fault; 6] = [
    Fault {
        name: "paused",
        begin: |store, _| store.pause(),
        end: |store, _| store.resume(),
        forgets: false,
    },
    Fault {
        name: "killed",
        begin: |store, _| store.kill(),
        end: |store, _| store.restart_empty(),
        forgets: true,
    },
    Fault {
        name: "partitioned",
        begin: |_, proxy| proxy.partition(),
        end: |_, proxy| proxy.heal(),
        forgets: false,
    },
    Fault {
        name: "slow",
        begin: |_, proxy| proxy.slow(Duration::from_millis(75)),
        end: |_, proxy| proxy.slow(Duration::ZERO),
        forgets: false,
    },
    Fault {
        name: "busy",
        begin: |store, _| {
            let mut client = store.client();
            thread::spawn(move || client.try_call(&["EVAL", "while true do end", "0"]));
            let is_busy = || store.ask("PING").to_string().contains("BUSY").then_some(());
            wait_for("a busy store", TIMEOUT, is_busy);
        },
        end: |store, _| drop(store.ask("SCRIPT KILL")),
        forgets: false,
    },
    Fault {
        name: "without the script",
        begin: |store, _| drop(store.ask("SCRIPT FLUSH")),
        end: |_, _| {},
        forgets: false,
    },
];

#[test]
fn store_faults_are_answered_at_once_as_the_rule_says_and_end_by_themselves() {
    for Fault { name, begin: fault, end, forgets } in FAULTS {
        // Scripts that run for longer are told to be busy.
        let mut store = Store::start_with(&StoreOptions::with(&["lua-time-limit 10"]));
        let proxy = Proxy::to(&store);
        begin(&store);
        let serve = within("100ms", &format!("redis://{}", proxy.address()), &[]);
        assert_eq!(admitted(&[&serve], "user", "a", 20), 20, "{name}");
        fault(&mut store, &proxy);
        let is_fault = name != "without the script";
        for _ in 0..20 {
            for (rule, status) in [("open", 200), ("user", 429)] {
                let begun = Instant::now();
                let key = if is_fault { "b" } else { rule };
                let answer = ask(&serve, rule, key);
                let took = begun.elapsed();
                // The rest is for the tests beside this one: the benchmark has the exact time.
                assert!(took < Duration::from_millis(300), "{name}: {rule} took {took:?}");
                if is_fault {
                    assert_eq!(answer, status, "{name}: {rule}");
                }
            }
        }
        if is_fault {
            wait_up(&serve, false);
            let (code, checks) = doctor(&serve);
            assert_eq!((code, checks), (1, vec!["store".to_owned()]), "{name}");
        }
        end(&mut store, &proxy);
        wait_up(&serve, true);
        let count = admitted(&[&serve], "user", "a", 40);
        // Some of the requests that were answered without it have reached it.
        let most = if forgets { 1 } else { 10 };
        assert!(count <= most, "{name}: {count}");
    }
}

#[test]
fn store_that_cannot_be_used_is_told_and_each_rule_has_its_own_way_out() {
    let locked = Store::start_with(&StoreOptions::default().login("limits", "secret"));
    let folder = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = folder.path().join(text);
        std::fs::write(&path, format!("{text}\n")).unwrap();
        path.display().to_string()
    };
    let primary = Store::start();
    let replica = Store::replica_of(&primary, &StoreOptions::default());
    let old = claims("redis_version:5.0.3");
    let narrow = claims("redis_version:7.0.15\r\narch_bits:32");
    let nobody = own_port();
    let locked_at = format!("redis://limits@{}", locked.address());
    let (wrong, right, absent) = (file("wrong"), file("secret"), "/absent".to_owned());
    for (url, password, problem) in [
        (format!("redis://{nobody}"), None, "Connection refused"),
        (locked_at.clone(), Some(wrong), "AuthenticationFailed"),
        (locked_at.clone(), Some(absent), "cannot read /absent"),
        (format!("redis://{}", replica.address()), None, "the store is a replica"),
        (format!("redis://{old}"), None, "the store has version 5.0.3: 6.2 is the least"),
        (format!("redis://{narrow}"), None, "the store is a 32-bit program"),
    ] {
        let more: Vec<&str> =
            password.iter().flat_map(|file| ["--store-password-file", file]).collect();
        let serve = Serve::start(RULES, &[&["--store", &url], &more[..]].concat());
        let said = || serve.log().contains(problem).then_some(());
        wait_for(problem, TIMEOUT, said);
        assert_eq!([ask(&serve, "open", "a"), ask(&serve, "user", "a")], [200, 429], "{url}");
        assert_eq!(ask(&serve, "here", "a"), 200);
        assert_eq!(doctor(&serve), (1, vec!["store".to_owned()]), "{url}");
    }
    let serve = serve(&locked_at, &["--store-password-file", &right]);
    locked.call(&["SET", "limiter:{api}:since", "0"]);
    assert_eq!(admitted(&[&serve], "user", "a", 40), 30);
}

/// A server that tells this of itself.
fn claims(facts: &str) -> std::net::SocketAddr {
    let facts = format!("{facts}\r\nrole:master\r\n");
    let facts = format!("${}\r\n{facts}\r\n", facts.len());
    let listener = TcpListener::bind((own_address(), 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let facts = facts.clone();
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().expect("a stream")).lines();
                let mut stream = stream;
                while let Some(Ok(line)) = lines.next() {
                    let Some(texts) = line.strip_prefix('*').and_then(|n| n.parse::<usize>().ok())
                    else {
                        continue;
                    };
                    let command: Vec<_> =
                        (0..2 * texts).filter_map(|_| lines.next()?.ok()).collect();
                    let reply = match command.get(1).map(String::as_str) {
                        Some("INFO") => &facts,
                        _ => "+OK\r\n",
                    };
                    if stream.write_all(reply.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn store_state_that_is_none_concerns_its_key_alone() {
    let store = Store::start();
    begin(&store);
    let serve = serve(&url(&store), &[]);
    store.call(&["HSET", r#"limiter:{api}:g:["user","a"]"#, "x", "y"]);
    store.call(&["SET", r#"limiter:{api}:g:["open","a"]"#, "text"]);
    assert_eq!([ask(&serve, "user", "a"), ask(&serve, "open", "a")], [429, 200]);
    assert_eq!(admitted(&[&serve], "user", "b", 40), 30);
    assert!(serve.log().contains(r#"limiter:{api}:g:["user","a"] is no state of a limit"#));
    store.call(&["DEL", r#"limiter:{api}:g:["user","a"]"#]);
    assert_eq!(admitted(&[&serve], "user", "a", 40), 30);
}

#[test]
fn store_user_who_may_not_read_a_state_is_told_so() {
    let store = Store::start();
    begin(&store);
    store.ask("ACL SETUSER weak on >secret ~limiter:* +evalsha +eval +script|load +ping +time +get +set +del");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret").unwrap();
    let password = file.path().display().to_string();
    let url = format!("redis://weak@{}", store.address());
    let serve = serve(&url, &["--store-password-file", &password]);
    assert_eq!(admitted(&[&serve], "user", "a", 40), 30);
    assert_eq!(ask(&serve, "log", "a"), 429);
    let problem = r#"limiter:{api}:l3600000000:["log","a"] cannot be written: the store is full, a replica, or its user may not"#;
    assert!(serve.log().contains(problem), "{}", serve.log());
}

#[test]
fn store_that_has_forgotten_all_gives_one_unit_and_what_is_earned() {
    let mut store = Store::start();
    begin(&store);
    let serve = serve(&url(&store), &[]);
    assert!(admitted(&[&serve], "fast", "a", 60) >= 40);
    store.restart_empty();
    let begun = Instant::now();
    wait_up(&serve, true);
    let mut count = 0;
    while begun.elapsed() < Duration::from_millis(300) {
        count += usize::from(ask(&serve, "fast", "a") == 200);
    }
    let most = 1.0 + 200.0 * begun.elapsed().as_secs_f64();
    assert!((20.0..=most).contains(&(count as f64)), "{count}, {most} at the most");
}

#[test]
fn store_is_reached_by_tls_sentinels_and_as_a_cluster() {
    if Store::start().version().has_tls() {
        let options = StoreOptions::default().login("limits", "secret").tls(Tls::Server);
        let store = Store::start_with(&options);
        begin(&store);
        let folder = tempfile::tempdir().unwrap();
        let password = folder.path().join("password");
        std::fs::write(&password, "secret").unwrap();
        let (ca, url) = (store.path("ca.crt"), format!("rediss://limits@{}", store.address()));
        let files = [ca.display().to_string(), password.display().to_string()];
        let serve = serve(&url, &["--store-ca", &files[0], "--store-password-file", &files[1]]);
        assert_eq!(admitted(&[&serve], "user", "a", 40), 30);
    }
    let cluster = Cluster::start(&StoreOptions::default());
    let at = cluster.owner_of("limiter:{api}:since");
    begin(&cluster.nodes()[at]);
    let nodes: Vec<_> = cluster.nodes().iter().map(|node| node.address().to_string()).collect();
    let serve_cluster = serve(&format!("redis-cluster://{}", nodes.join(",")), &[]);
    assert_eq!(admitted(&[&serve_cluster], "user", "a", 40), 30);
}

#[test]
fn store_that_fails_over_goes_on_with_what_its_replica_knows() {
    let mut sentinels = Sentinels::start(&StoreOptions::default());
    let addresses: Vec<_> = sentinels.addresses().iter().map(ToString::to_string).collect();
    let url = format!("redis-sentinel://{}/{MASTER}", addresses.join(","));
    begin(sentinels.store(sentinels.master()));
    let serve = serve(&url, &[]);
    assert_eq!(admitted(&[&serve], "user", "a", 20), 20);
    sentinels.store(sentinels.master()).call(&["WAIT", "1", "5000"]);
    sentinels.kill_master();
    wait_up(&serve, true);
    assert_eq!(admitted(&[&serve], "user", "a", 30), 10);
    // Whoever wants a replica to know of each use is answered without the store while there is none.
    let careful = within("200ms", &url, &["--store-replicas", "1"]);
    assert_eq!([ask(&careful, "open", "a"), ask(&careful, "user", "b")], [200, 429]);
}

#[test]
fn store_scopes_keep_their_promise_under_load_from_three_hosts() {
    for (rule, more) in [("fast", 0.0), ("late", 3.0 * 4.0)] {
        let store = Store::start();
        begin(&store);
        let serves: Vec<_> = (0..3).map(|_| serve(&url(&store), &[])).collect();
        let begun = Instant::now();
        let clients: Vec<_> =
            serves.iter().map(|serve| Client::start(serve, rule, begun, 150)).collect();
        until(begun, 2.0);
        let all: Vec<_> = clients.into_iter().map(Client::end).collect();
        assert_kept(&all, (40.0, 200.0), |_| more);
        let used = all.iter().map(|host| count(host, 0.5..2.0)).sum::<f64>() / (200.0 * 1.5);
        assert!(used >= 0.9, "{rule}: {used}");
    }
}
