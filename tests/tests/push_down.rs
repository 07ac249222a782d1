//! Who keeps asking an Envoy far above its limit is denied by the kernel of its host, through the daemon there.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tests::{
    Daemon, Lab,
    daemon::DaemonOptions,
    envoy::{
        self, address, backend, connection_manager, http2_backend, listener, rate_limit, typed,
    },
    lab::{RX_V4, TX_V4},
    process::{Background, cpu_time, wait_for},
    serve::{GRPC, HttpAnswer, Serve},
};

const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a measurement takes.
const SPAN: Duration = Duration::from_secs(3);
/// How long a client waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// Where Envoy is asked, and where what is behind it answers.
const HTTP: u16 = 10_000;
const BACK: u16 = 10_002;

/// Who asks: as often as it can, seldom, from where the host is managed, and for others.
const FLOOD: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);
const GOOD: Ipv4Addr = TX_V4;
const MANAGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
const PROXY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 88);

/// Requests a second from an address.
const LIMIT: u32 = 20;

fn rules(push_down: &str) -> String {
    format!(
        "domain: shop\ndescriptors:\n  - key: remote_address\n    \
         rate_limit: {{ name: web, unit: second, requests_per_unit: {LIMIT}{push_down} }}\n"
    )
}

fn config() -> Value {
    let by_address = typed(
        "http.ratelimit.v3.RateLimitPerRoute",
        json!({ "rate_limits": [{ "actions": [{ "remote_address": {} }] }] }),
    );
    let routes = json!([{ "match": { "prefix": "/" }, "route": { "cluster": "back" },
        "typed_per_filter_config": { "envoy.filters.http.ratelimit": by_address } }]);
    let answer = json!([{ "match": { "prefix": "/" },
        "direct_response": { "status": 200, "body": { "inline_string": "here" } } }]);
    let mut manager = connection_manager(&[rate_limit(json!({}))], &routes);
    // Whoever asks cannot say who it is.
    manager["typed_config"]["use_remote_address"] = true.into();
    let mut front = listener("http", HTTP, &[manager]);
    front["address"]["socket_address"]["address"] = "0.0.0.0".into();
    json!({ "static_resources": {
        "listeners": [front, listener("back", BACK, &[connection_manager(&[], &answer)])],
        "clusters": [http2_backend("limiter", &address(GRPC)), backend("back", &address(BACK))],
    } })
}

/// The status of an answer; nothing if there is none.
fn ask(from: Ipv4Addr) -> Option<u16> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((from, 0)).into()).expect("an address of this host");
    socket.connect_timeout(&SocketAddr::from((RX_V4, HTTP)).into(), CONNECT_TIMEOUT).ok()?;
    let mut stream = std::net::TcpStream::from(socket);
    stream.set_read_timeout(Some(CONNECT_TIMEOUT)).expect("a socket has a timeout");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    (!answer.is_empty()).then(|| HttpAnswer::read(&answer).status)
}

/// Asks for so long, again and again or so many times a second. The statuses; 0 if there was no answer.
fn keep_asking(from: Ipv4Addr, span: Duration, rate: Option<u32>) -> Vec<u16> {
    let (begun, mut statuses) = (Instant::now(), Vec::new());
    while begun.elapsed() < span {
        statuses.push(ask(from).unwrap_or(0));
        if let Some(rate) = rate {
            let due = Duration::from_secs(1) / rate * statuses.len() as u32;
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
    statuses
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|&&it| it == status).count()
}

struct Setup {
    // Ends before what it works in.
    envoy: Background,
    serve: Serve,
    daemon: Daemon,
    lab: Lab,
}

impl Setup {
    fn start() -> Self {
        let lab = Lab::default();
        for more in [FLOOD, MANAGER, PROXY] {
            lab.add_sender_address(more.into());
        }
        let management = MANAGER.to_string();
        let options = DaemonOptions::with(&["--management", &management]);
        let daemon = Daemon::start_with(&lab, options);
        let (socket, proxy) = (daemon.socket().display().to_string(), PROXY.to_string());
        let arguments = ["--daemon", &socket, "--trusted-proxies", &proxy];
        let serve = Serve::start_in(Some(&lab.receiver), &rules(""), &arguments);
        let path = serve.path("envoy.json");
        let envoy = envoy::start(&lab.receiver, &path, &config(), HTTP);
        Self { envoy, serve, daemon, lab }
    }

    fn asks(&self, from: Ipv4Addr, span: Duration) -> Vec<u16> {
        self.lab.sender.run_inside(move || keep_asking(from, span, None))
    }

    /// What a flood and a good client are answered meanwhile, and parts of a CPU that Envoy, with what is behind it, and
    /// `limiter-serve` take.
    fn measure(&mut self, what: &str) -> ([Vec<u16>; 2], f64) {
        let pids = [self.envoy.pid(), self.serve.process().pid()];
        let before = pids.map(cpu_time);
        let flood = self.lab.sender.spawn_inside(|| keep_asking(FLOOD, SPAN, None));
        let good = self.lab.sender.spawn_inside(|| keep_asking(GOOD, SPAN, Some(LIMIT / 2)));
        let answers = [flood, good].map(|asking| asking.join().expect("it asks"));
        let parts =
            [0, 1].map(|at| (cpu_time(pids[at]) - before[at]).as_secs_f64() / SPAN.as_secs_f64());
        println!(
            "{what}: the flood asks {} times a second, {} are answered 200 and {} 429; Envoy takes {:.3} of a CPU, \
             limiter-serve {:.3}",
            answers[0].len() as u64 / SPAN.as_secs(),
            count(&answers[0], 200),
            count(&answers[0], 429),
            parts[0],
            parts[1],
        );
        (answers, parts.iter().sum())
    }

    /// Five times the limit brings a denial for so long from now on.
    fn push_down(&self, span: &str, seconds: u64) {
        let push_down = format!(", push_down: {{ factor: 5, for: {span} }}");
        self.serve.reload(&rules(&push_down), "1 rules are in force");
        wait_for("other rules", TIMEOUT, || {
            let known = self.serve.get("/v1/rules").json();
            (known["rules"][0]["push_down_s"] == seconds).then_some(())
        });
    }

    /// The deny list's entry of an address.
    fn denied(&self, address: Ipv4Addr) -> Option<Value> {
        let list = self.daemon.cli().ok(&["deny", "list"]);
        let entries = list["entries"].as_array().expect("a list");
        let prefix = format!("{address}/32");
        entries.iter().find(|entry| entry["target"] == prefix.as_str()).cloned()
    }

    fn metric(&self, result: &str) -> u64 {
        let page = self.serve.get("/metrics").body;
        let name = format!("limiter_serve_push_downs_total{{result=\"{result}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&name));
        line.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{name}: {page}"))
    }
}

#[test]
fn who_floods_an_envoy_is_denied_by_the_kernel_and_costs_it_nothing_any_more() {
    let mut setup = Setup::start();
    let ([flood, good], before) = setup.measure("before");
    assert!(count(&flood, 429) > 100 && count(&good, 200) == good.len(), "{flood:?} {good:?}");
    assert_eq!(setup.denied(FLOOD), None);

    setup.push_down("10m", 600);
    setup.asks(FLOOD, SPAN);
    let entry = wait_for("a denial", TIMEOUT, || setup.denied(FLOOD));
    assert_eq!(entry["reason"], "rule web");
    let ([flood, good], after) = setup.measure("after");
    assert_eq!(count(&flood, 0), flood.len(), "{flood:?}");
    assert_eq!(count(&good, 200), good.len(), "{good:?}");
    assert!(after < before / 4.0, "{before} {after}");
    let shown = setup.daemon.cli().ok(&["show", &FLOOD.to_string()]);
    assert!(shown.to_string().contains("rule web"), "{shown}");
    assert!(setup.metric("denied") >= 1);

    // The operator's own are never denied, nor who asks for others: they are answered all the time.
    for (from, result) in [(MANAGER, "refused"), (PROXY, "spared")] {
        let statuses = setup.asks(from, Duration::from_secs(2));
        assert_eq!(count(&statuses, 0), 0, "{statuses:?}");
        assert!(count(&statuses, 429) > 100, "{statuses:?}");
        assert!(setup.metric(result) >= 1);
        assert_eq!(setup.denied(from), None);
    }

    // An operator can take it back, and so does its end.
    setup.daemon.cli().ok(&["deny", "del", &FLOOD.to_string()]);
    assert!(setup.lab.sender.run_inside(|| ask(FLOOD)).is_some());
    setup.push_down("2s", 2);
    setup.asks(FLOOD, Duration::from_secs(1));
    assert_eq!(setup.lab.sender.run_inside(|| ask(FLOOD)), None);
    wait_for("its end", TIMEOUT, || setup.lab.sender.run_inside(|| ask(FLOOD)));

    // What an operator has said for ever lasts.
    setup.daemon.cli().ok(&["deny", "add", &FLOOD.to_string(), "--reason", "mine"]);
    let before = setup.metric("denied");
    let ask = "/v1/decide?domain=shop&rule=remote_address&key_from=x-forwarded-for";
    let head = format!("x-forwarded-for: {GOOD}, {FLOOD}, {PROXY}\r\n");
    wait_for("one more denial", TIMEOUT, || {
        for _ in 0..6 * LIMIT {
            let status = setup.serve.http("GET", ask, &head, "").status;
            assert!([200, 429].contains(&status));
        }
        (setup.metric("denied") > before).then_some(())
    });
    let entry = setup.denied(FLOOD).expect("an entry");
    assert_eq!((&entry["reason"], &entry["expires"]), (&json!("mine"), &Value::Null));
    assert_eq!(setup.denied(GOOD), None);
}
