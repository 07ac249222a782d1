//! The real Envoy asks `limiter-serve`: scenarios after the examples of `envoyproxy/ratelimit`, with rules of our own.

use std::{fs, net::Ipv4Addr, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{
    Namespace,
    envoy::{
        self, address, backend, connection_manager, filter, http2_backend, listener, rate_limit,
        rate_limit_service, typed,
    },
    process::{Background, wait_for},
    serve::{self, HttpAnswer, Serve},
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Where Envoy takes HTTP and TCP, and where what is behind it answers.
const HTTP: u16 = 10_000;
const TCP: u16 = 10_001;
const BACK: u16 = 10_002;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { name: per-user, unit: hour, requests_per_unit: 2 }
    descriptors:
      - key: action
        rate_limit: { unit: hour, requests_per_unit: 3 }
      - key: action
        value: banned
        rate_limit: { name: banned, unit: hour, requests_per_unit: 0 }
      - key: action
        value: once
        rate_limit: { name: once, unit: hour, requests_per_unit: 1 }
      - key: action
        value: watched
        rate_limit: { unit: hour, requests_per_unit: 1 }
        shadow_mode: true
      - key: action
        value: free
        rate_limit: { unlimited: true }
  - key: plan
    value: gold
    rate_limit: { replaces: [{ name: banned }, { name: once }], unit: hour, requests_per_unit: 4 }
  - key: service
    value: small
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1 }
    metadata: { service_with_quota: { name: small } }
  - key: service
    value: large
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 2 }
    metadata: { service_with_quota: { name: large } }
  - key: tokens
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: remote_address
    rate_limit: { unit: hour, requests_per_unit: 3 }
";

/// Another domain: each service has a limit, and one of each user in it.
const SERVICES: &str = "
domain: services
descriptors:
  - key: service
    rate_limit: { unit: hour, requests_per_unit: 2 }
    descriptors:
      - key: user
        rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: service
    value: search
    rate_limit: { name: search, unit: hour, requests_per_unit: 4 }
    descriptors:
      - key: user
        rate_limit: { unit: hour, requests_per_unit: 3 }
  - key: class
    value: batch
    rate_limit: { unit: hour, requests_per_unit: 1 }
";

/// An action that adds a header of the request to a descriptor.
fn header(name: &str) -> Value {
    json!({ "request_headers": { "header_name": name, "descriptor_key": name } })
}

fn generic(key: &str, value: &str) -> Value {
    json!({ "generic_key": { "descriptor_key": key, "descriptor_value": value } })
}

/// A route, and the descriptors of its requests: the actions of each, and more of its fields.
fn route(prefix: &str, descriptors: &[(Vec<Value>, Value)]) -> Value {
    let limits = descriptors.iter().map(|(actions, fields)| {
        let mut limit = fields.clone();
        limit["actions"] = actions.clone().into();
        limit
    });
    let limits: Vec<_> = limits.collect();
    let per_route = typed("http.ratelimit.v3.RateLimitPerRoute", json!({ "rate_limits": limits }));
    json!({ "match": { "prefix": prefix }, "route": { "cluster": "back" },
        "typed_per_filter_config": { "envoy.filters.http.ratelimit": per_route } })
}

/// A route of a service, which its metadata name. Its requests are limited in a domain of their own, and by what `more`
/// adds.
fn service(prefix: &str, name: &str, more: Option<Value>) -> Value {
    let path = json!({ "key": "limiter", "path": [{ "key": "service" }] });
    let of_route = json!({ "metadata":
        { "descriptor_key": "service", "metadata_key": path, "source": "ROUTE_ENTRY" } });
    let all = [vec![of_route.clone()], vec![of_route, header("user")]];
    let all = all.into_iter().chain(more.map(|more| vec![more]));
    let all: Vec<_> = all.map(|actions| (actions, json!({}))).collect();
    let mut route = route(prefix, &all);
    route["metadata"] = json!({ "filter_metadata": { "limiter": { "service": name } } });
    route["typed_per_filter_config"]["envoy.filters.http.ratelimit"]["domain"] = "services".into();
    route
}

fn config(serve: &Serve) -> Value {
    let limit = rate_limit(json!({ "enable_x_ratelimit_headers": "DRAFT_VERSION_03" }));
    let set_header = filter(
        "envoy.filters.http.header_mutation",
        "http.header_mutation.v3.HeaderMutation",
        json!({ "mutations": { "response_mutations": [{ "append": {
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD", "header": { "key": "x-service",
                "value": "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:service_with_quota:name)%" } } }] } }),
    );
    let both = || vec![header("user"), header("action")];
    let peek = json!({ "hits_addend": { "number": 0 } });
    let debit = json!({ "hits_addend": { "number": 1 }, "apply_on_stream_done": true });
    let routes = json!([
        route("/one", &[(vec![header("user")], json!({}))]),
        route("/two", &[(both(), json!({}))]),
        route("/plan", &[(both(), json!({})), (vec![header("plan")], json!({}))]),
        route(
            "/quota",
            &[
                (vec![generic("service", "small")], json!({})),
                (vec![generic("service", "large")], json!({})),
            ]
        ),
        route(
            "/tokens",
            &[(vec![generic("tokens", "all")], peek), (vec![generic("tokens", "all")], debit),]
        ),
        service("/search", "search", None),
        service("/orders", "orders", None),
        service("/nightly", "orders", Some(generic("class", "batch"))),
    ]);
    let limiter = http2_backend("limiter", &json!({ "pipe": { "path": serve.path("grpc.sock") } }));
    let tcp_limit = filter(
        "envoy.filters.network.ratelimit",
        "network.ratelimit.v3.RateLimit",
        json!({ "stat_prefix": "tcp", "domain": "shop", "failure_mode_deny": true, "timeout": "5s",
            "rate_limit_service": rate_limit_service(), "descriptors": [{ "entries": [
                { "key": "remote_address", "value": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%" }] }] }),
    );
    let tcp_proxy = filter(
        "envoy.filters.network.tcp_proxy",
        "network.tcp_proxy.v3.TcpProxy",
        json!({ "stat_prefix": "tcp", "cluster": "back" }),
    );
    let answer = json!([{ "match": { "prefix": "/" },
        "direct_response": { "status": 200, "body": { "inline_string": "here" } } }]);
    json!({ "static_resources": {
        "listeners": [
            listener("http", HTTP, &[connection_manager(&[limit, set_header], &routes)]),
            listener("tcp", TCP, &[tcp_limit, tcp_proxy]),
            listener("back", BACK, &[connection_manager(&[], &answer)]),
        ],
        "clusters": [limiter, backend("back", &address(BACK))],
    } })
}

/// Envoy, `limiter-serve` and what is behind them.
struct Setup {
    namespace: Namespace,
    serve: Serve,
    _envoy: Background,
    _home: TempDir,
}

impl Setup {
    fn start() -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let services = home.path().join("services.yaml");
        fs::write(&services, SERVICES).expect("more rules");
        let serve = Serve::start(RULES, &["--rules", &services.display().to_string()]);
        let namespace = Namespace::new("envoy");
        let path = serve.path("envoy.json");
        let envoy = envoy::start(&namespace, &path, &config(&serve), HTTP);
        Self { namespace, serve, _envoy: envoy, _home: home }
    }

    /// What is answered to a request with some headers; nothing if the connection is closed.
    fn ask(&self, port: u16, path: &str, headers: &[(&str, &str)]) -> Option<HttpAnswer> {
        serve::ask(&self.namespace, Ipv4Addr::LOCALHOST, port, path, headers)
    }

    fn http(&self, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        self.ask(HTTP, path, headers).expect("Envoy answers")
    }

    /// The statuses of some requests in a row.
    fn statuses(&self, path: &str, headers: &[(&str, &str)], times: usize) -> Vec<u16> {
        (0..times).map(|_| self.http(path, headers).status).collect()
    }
}

#[test]
fn envoy_limits_by_headers_and_tells_what_is_left() {
    let setup = Setup::start();
    let alice = [("user", "alice")];
    let first = setup.http("/one", &alice);
    assert_eq!((first.status, first.body.as_str()), (200, "here"));
    assert_eq!(first.header("x-ratelimit-limit"), Some("2, 2;w=3600;name=\"per-user\""));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(setup.http("/one", &alice).status, 200);
    let over = setup.http("/one", &alice);
    assert_eq!((over.status, over.header("x-envoy-ratelimited")), (429, Some("true")));
    assert_eq!(over.header("x-ratelimit-remaining"), Some("0"));
    let reset = over.header("x-ratelimit-reset").and_then(|reset| reset.parse::<u32>().ok());
    assert!(reset.is_some_and(|reset| (1_700..=1_800).contains(&reset)), "{over:?}");
    assert_eq!(setup.http("/one", &[("user", "bob")]).status, 200);
    // Two headers are another limit than one.
    let two = [("user", "alice"), ("action", "look")];
    assert_eq!(setup.statuses("/two", &two, 4), [200, 200, 200, 429]);
    assert_eq!(setup.statuses("/two", &[("user", "alice"), ("action", "banned")], 1), [429]);
    // A shadow only counts, and what is unlimited passes.
    assert_eq!(setup.statuses("/two", &[("user", "alice"), ("action", "watched")], 3), [200; 3]);
    assert_eq!(setup.statuses("/two", &[("user", "alice"), ("action", "free")], 5), [200; 5]);
    // Without the headers there is no descriptor, and no limit.
    assert_eq!(setup.statuses("/two", &[], 5), [200; 5]);
    let page = setup.serve.get("/metrics").body;
    assert!(page.contains("{rule=\"shop.user.action_watched\",code=\"shadow\"} 2"), "{page}");
}

#[test]
fn envoy_has_limits_replaced_by_their_names() {
    let setup = Setup::start();
    let banned = [("user", "a"), ("action", "banned")];
    assert_eq!(setup.statuses("/plan", &banned, 1), [429]);
    let gold = [("user", "a"), ("action", "banned"), ("plan", "gold")];
    assert_eq!(setup.statuses("/plan", &gold, 2), [200, 200]);
    // Its other name, of the same limit: what is replaced is not charged.
    let once = [("user", "a"), ("action", "once"), ("plan", "gold")];
    assert_eq!(setup.statuses("/plan", &once, 3), [200, 200, 429]);
    assert_eq!(setup.statuses("/plan", &[("user", "a"), ("action", "once")], 2), [200, 429]);
    assert_eq!(setup.statuses("/plan", &banned, 1), [429]);
}

#[test]
fn envoy_denies_where_all_quotas_are_used_up_and_debits_after_the_fact() {
    let setup = Setup::start();
    let services: Vec<_> = (0..3).map(|_| setup.http("/quota", &[])).collect();
    let statuses: Vec<_> = services.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    // Which service has quota left is told with the answer, as both or the second one.
    assert_eq!(services[1].header("x-service"), Some("large"));
    // Debited when a request is done: what was begun within the quota may end above it. The debit comes after the answer.
    for expected in [200, 200, 200] {
        assert_eq!(setup.http("/tokens", &[]).status, expected);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(setup.http("/tokens", &[]).status, 429);
}

#[test]
fn envoy_limits_several_services_by_metadata_of_their_routes() {
    let setup = Setup::start();
    let (alice, bob) = ([("user", "alice")], [("user", "bob")]);
    // A user's own limit in a service, then that of the service. What was denied has cost it nothing.
    assert_eq!(setup.statuses("/search", &alice, 4), [200, 200, 200, 429]);
    assert_eq!(setup.statuses("/search", &bob, 2), [200, 429]);
    // Two routes of one service share its limit, and one of them has another limit, too.
    assert_eq!(setup.statuses("/nightly", &[], 2), [200, 429]);
    assert_eq!(setup.statuses("/orders", &alice, 2), [200, 429]);
    assert_eq!(setup.statuses("/orders", &bob, 1), [429]);
    // The same user in another domain.
    assert_eq!(setup.statuses("/one", &alice, 3), [200, 200, 429]);
}

#[test]
fn envoy_limits_connections() {
    let setup = Setup::start();
    let answers: Vec<_> = (0..5).map(|_| setup.ask(TCP, "/", &[])).collect();
    let served: Vec<_> = answers.iter().map(Option::is_some).collect();
    assert_eq!(served, [true, true, true, false, false]);
}

#[test]
fn a_kill_between_two_requests_of_envoy_forgets_nothing() {
    let mut setup = Setup::start();
    let alice = [("user", "alice")];
    assert_eq!(setup.statuses("/one", &alice, 2), [200, 200]);
    setup.serve.kill_and_restart();
    // Envoy connects again by itself.
    wait_for("an answer", TIMEOUT, || {
        (setup.http("/one", &[("user", "new")]).status == 200).then_some(())
    });
    assert_eq!(setup.statuses("/one", &alice, 1), [429]);
}
