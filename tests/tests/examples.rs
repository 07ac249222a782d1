//! The examples that the package brings: `limiter-serve` with its defaults and the real programs read them as they are.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tests::{
    Namespace,
    cli::built_binary,
    envoy, nginx,
    process::{Background, wait_for},
    serve::{self, HttpAnswer},
};

/// What `rules.yaml` admits at once, from an address and of a key.
const ADDRESS: usize = 10;
const KEY: usize = 5;
/// A second, and at once, of a tenant.
const TENANT: f64 = 5.0;

/// What the service answers 200 to.
const PATH: &str = "/healthz";

/// Who asks. Others wait for ports, which are connections, too.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

fn example(name: &str) -> PathBuf {
    tools::root().join("packaging/examples").join(name)
}

/// A program between clients and a service, which asks `limiter-serve`.
struct Setup {
    // Ends before what it works in.
    serve: Background,
    _others: [Background; 2],
    _home: TempDir,
    namespace: Namespace,
    port: u16,
}

impl Setup {
    /// Starts a program that listens at `port`.
    fn start(port: u16, program: impl FnOnce(&Namespace, &Path) -> Command) -> Self {
        let namespace = Namespace::new("example");
        let home = tempfile::tempdir().expect("a folder");
        let own = |state: &str| {
            let mut own = namespace.own(built_binary("limiter-serve"));
            own.arg("--state-dir").arg(home.path().join(state));
            own
        };
        let (mut serve, mut service) = (own("state"), own("service"));
        serve.arg("--rules").arg(example("rules.yaml"));
        // Any HTTP server would do: at `/healthz` it answers 200.
        service.args(["--http", "127.0.0.1:3000", "--resp", "off", "--grpc", "off"]);
        let mut program = program(&namespace, home.path());
        let [serve, service, program] =
            [&mut serve, &mut service, &mut program].map(Background::start);
        for port in [8080, 8081, 3000, port] {
            namespace.wait_for_port(port);
        }
        Self { serve, _others: [service, program], _home: home, namespace, port }
    }

    fn envoy(port: u16, name: &str) -> Self {
        Self::start(port, |namespace, _| envoy::command(namespace, &example(name)))
    }

    /// What is answered to a request; nothing if the connection is closed.
    fn ask(&self, from: Ipv4Addr, path: &str, key: Option<&str>) -> Option<HttpAnswer> {
        let header = key.map(|key| ("x-api-key", key));
        serve::ask(&self.namespace, from, self.port, path, header.as_slice())
    }

    fn status(&self, from: Ipv4Addr, path: &str, key: Option<&str>) -> u16 {
        self.ask(from, path, key).map_or(0, |answer| answer.status)
    }

    /// Asks as often as there is room, then once more: what is answered then.
    fn exhaust(&self, from: Ipv4Addr, path: &str, key: Option<&str>, room: usize) -> HttpAnswer {
        for n in 0..room {
            let answer = self.ask(from, path, key).expect("an answer");
            // The service has no such file, and says so: it was asked.
            assert!([200, 404].contains(&answer.status), "{n}: {answer:?}");
        }
        self.ask(from, path, key).expect("an answer")
    }

    /// The status while there is no `limiter-serve`.
    fn status_without(&mut self) -> u16 {
        self.serve.signal(libc::SIGKILL);
        self.serve.wait(Duration::from_secs(20));
        self.status(OTHER, PATH, None)
    }
}

/// Whether a denial says when to come again, and by which policy.
fn assert_told(over: &HttpAnswer, rule: &str, quota: usize) {
    assert_eq!(over.status, 429, "{over:?}");
    let wait = over.header("retry-after").and_then(|wait| wait.parse::<u32>().ok());
    assert!(wait.is_some_and(|wait| (1..=12).contains(&wait)), "{over:?}");
    let policy = format!("\"default.{rule}\";q={quota};w=60");
    assert_eq!(over.header("ratelimit-policy"), Some(policy.as_str()), "{over:?}");
    let left = format!("\"default.{rule}\";r=0;t=");
    assert!(over.header("ratelimit").is_some_and(|limit| limit.starts_with(&left)), "{over:?}");
}

#[test]
fn caddy_asks_by_address_and_by_key() {
    let mut setup = Setup::start(80, |namespace, home| {
        let mut caddy = namespace.command(&tools::CADDY);
        caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(example("Caddyfile"));
        caddy.env("XDG_CONFIG_HOME", home).env("XDG_DATA_HOME", home).stderr(Stdio::null());
        caddy
    });
    assert_told(&setup.exhaust(CLIENT, PATH, None, ADDRESS), "remote_address", 6);
    assert_told(&setup.exhaust(CLIENT, "/api/", Some("a"), KEY), "api_key", 5);
    assert_eq!(setup.status(CLIENT, "/api/", Some("b")), 404);
    assert_eq!(setup.status(CLIENT, "/api/", None), 400);
    assert_eq!(setup.status(OTHER, PATH, None), 200);
    assert_eq!(setup.status_without(), 502);
}

#[test]
fn nginx_asks_by_address_and_answers_429_itself() {
    let mut setup = Setup::start(80, |namespace, home| {
        let http = fs::read_to_string(example("nginx.conf")).expect("the example");
        let mut nginx = nginx::command(namespace, home, &http);
        nginx.stderr(Stdio::null());
        nginx
    });
    assert_told(&setup.exhaust(CLIENT, PATH, None, ADDRESS), "remote_address", 6);
    // What a client writes of itself does not count.
    let lie = [("x-forwarded-for", "192.0.2.1")];
    let lied = serve::ask(&setup.namespace, CLIENT, setup.port, PATH, &lie).expect("an answer");
    assert_eq!(lied.status, 429, "{lied:?}");
    assert_eq!(setup.status(OTHER, PATH, None), 200);
    // Nobody asks its way around.
    assert_eq!(setup.status(OTHER, "/limiter", None), 404);
    assert_eq!(setup.status_without(), 500);
}

#[test]
fn envoy_asks_by_address_and_by_key() {
    let mut setup = Setup::envoy(10_000, "envoy-http.yaml");
    let over = setup.exhaust(CLIENT, PATH, None, ADDRESS);
    assert_eq!((over.status, over.header("x-ratelimit-remaining")), (429, Some("0")));
    // Denied for its key, a request costs its address nothing.
    assert_eq!(setup.exhaust(OTHER, PATH, Some("a"), KEY).status, 429);
    assert_eq!(setup.exhaust(OTHER, PATH, Some("b"), ADDRESS - KEY).status, 429);
    assert_eq!(setup.status_without(), 200);
}

#[test]
fn envoy_asks_for_connections() {
    let setup = Setup::envoy(10_001, "envoy-tcp.yaml");
    for n in 0..ADDRESS {
        assert_eq!(setup.status(CLIENT, PATH, None), 200, "{n}");
    }
    assert!(setup.ask(CLIENT, PATH, None).is_none());
    assert_eq!(setup.status(OTHER, PATH, None), 200);
}

#[test]
fn envoy_keeps_a_part_of_a_limit() {
    let setup = Setup::envoy(10_002, "envoy-quota.yaml");
    for tenant in ["a", "b"] {
        let header = [("x-tenant", tenant)];
        let status = || {
            let answer = serve::ask(&setup.namespace, CLIENT, setup.port, PATH, &header);
            answer.map_or(0, |answer| answer.status)
        };
        let begun = Instant::now();
        wait_for("its part", Duration::from_secs(30), || (status() == 200).then_some(()));
        let (from, mut statuses) = (Instant::now(), vec![200]);
        while from.elapsed() < Duration::from_secs(5) {
            statuses.push(status());
        }
        let passed = statuses.iter().filter(|&&status| status == 200).count();
        let denied = statuses.iter().filter(|&&status| status == 429).count();
        assert_eq!(passed + denied, statuses.len(), "{statuses:?}");
        let allowed = TENANT * (1.0 + begun.elapsed().as_secs_f64());
        eprintln!("{passed} of {allowed:.0} passed, {denied} were denied");
        assert!(passed as f64 <= allowed && denied > 0, "{passed} of {allowed}, {denied} denied");
    }
    // Without a tenant there is no limit.
    assert_eq!(setup.ask(CLIENT, PATH, None).map(|answer| answer.status), Some(200));
}
