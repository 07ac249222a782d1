use axum::body::{Body, to_bytes};
use axum::http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use control::fake::Fake;

struct Api {
    router: Router,
    fake: Fake,
    _directory: tempfile::TempDir,
}

impl Api {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let host = Host::new(fake.core(&directory));
        Self { router: router(host), fake, _directory: directory }
    }

    async fn ask(&self, method: &str, path: &str, body: impl Into<String>) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(Body::from(body.into()))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&bytes).expect("every answer is JSON"))
    }
}

#[tokio::test]
async fn limits_are_set_listed_and_removed() {
    let api = Api::new();
    let body = json!({"target": "198.51.100.7", "rate": "10kpps", "burst": "2k"}).to_string();
    let (status, answer) = api.ask("PUT", "/v1/limits", body).await;
    let limit = json!({
        "target": "198.51.100.7/32", "rate": "10kpps", "burst": "2000 packets",
        "rate_per_second": 10_000.0, "burst_amount": 2000, "unit": "packets", "enforce": true, "gate": 16, "scope": "local",
        "origin": "runtime",
    });
    assert_eq!(
        (status, &answer),
        (200, &json!({"limit": limit, "changed": true, "previous": null}))
    );
    let (_, answer) = api.ask("GET", "/v1/limits", "").await;
    assert_eq!(answer, json!({ "limits": [limit] }));
    let (_, answer) = api.ask("DELETE", "/v1/limits?target=198.51.100.7/32", "").await;
    assert_eq!(answer, json!({ "removed": limit }));
    let (status, answer) = api.ask("DELETE", "/v1/limits", "").await;
    assert_eq!((status, &answer["code"]), (404, &json!(1)));
    assert!(api.fake.state().limits.is_empty());
    let body = json!({
        "target": "default udp:53", "rate": ["10mbit", "100pps"], "burst": ["500"],
        "ban": {"for": "10m", "factor": "3"},
    });
    let (status, answer) = api.ask("PUT", "/v1/limits", body.to_string()).await;
    let also = json!({
        "rate": "10mbit", "burst": "1500 kbyte", "rate_per_second": 1_250_000.0,
        "burst_amount": 1_500_000, "unit": "bytes",
    });
    let limit = json!({
        "target": "default udp:53", "class": "udp:53", "rate": "100pps", "burst": "500 packets",
        "rate_per_second": 100.0, "burst_amount": 500, "unit": "packets", "also": also,
        "enforce": true, "gate": 16, "scope": "local", "origin": "runtime",
        "ban": {"after_seconds": 5, "factor": 3, "for_seconds": 600},
    });
    assert_eq!((status, &answer["limit"]), (200, &limit));
    let shared = json!({"target": "10.0.0.0/8 aggregate", "rate": "1gbit"}).to_string();
    let (_, answer) = api.ask("PUT", "/v1/limits", shared).await;
    assert_eq!(
        (&answer["limit"]["as_one"], &answer["limit"]["class"]),
        (&json!(true), &Value::Null)
    );
    let (_, answer) = api.ask("DELETE", "/v1/limits?target=default%20udp:53", "").await;
    assert_eq!(answer, json!({ "removed": limit }));
}

#[tokio::test]
async fn bad_requests_are_refused_and_change_nothing() {
    let api = Api::new();
    let long = format!(r#"{{"rate":"{}"}}"#, "9".repeat(MAX_BODY));
    for (method, path, body) in [
        ("PUT", "/v1/limits", r#"{"rate":"5"}"#),
        ("PUT", "/v1/limits", r#"{"rate":"5pps","for":"192.0.2.1"}"#),
        ("PUT", "/v1/limits", r#"{"rate":"5pps","target":"192.0.2.1/24"}"#),
        ("PUT", "/v1/limits", r#"{"rate":"5pps","target":"2001:db8::/65"}"#),
        ("PUT", "/v1/limits", r#"{"rate":"1mbit","burst":"20byte"}"#),
        ("PUT", "/v1/limits", r#"{"rate":["5pps","6pps"]}"#),
        ("PUT", "/v1/limits", r#"{"rate":[]}"#),
        ("PUT", "/v1/limits", r#"{"rate":5}"#),
        ("PUT", "/v1/limits", r#"{"rate":"5pps","ban":{}}"#),
        ("PUT", "/v1/limits", r#"{"rate":"5pps","ban":{"for":"10m","by":"me"}}"#),
        ("PUT", "/v1/limits", r#"{"rate":"5pps","target":"default tcp:icmp"}"#),
        ("PUT", "/v1/limits", r#"{"rate":"5pps","target":"192.0.2.1 aggregate"}"#),
        ("PUT", "/v1/limits", "{"),
        ("PUT", "/v1/limits", &long),
        ("DELETE", "/v1/limits?target=nobody", ""),
        ("GET", "/v1/top?n=0", ""),
        ("GET", "/v1/top?n=10001", ""),
        ("GET", "/v1/top?sort=beauty", ""),
        ("GET", "/v1/groups?by=source", ""),
        ("GET", "/v1/groups?n=0", ""),
        ("GET", "/v1/sources/nobody", ""),
        ("POST", "/v1/interfaces", r#"{"name":"eth9"}"#),
    ] {
        let (status, answer) = api.ask(method, path, body).await;
        assert!((400..500).contains(&status), "{method} {path} {body}: {status} {answer}");
        assert_eq!(answer["code"], 2, "{method} {path} {body}: {answer}");
        assert!(answer["hint"].is_string(), "{method} {path} {body}: {answer}");
    }
    assert_eq!(api.ask("GET", "/v2/limits", "").await.0, 404);
    assert_eq!(api.ask("PATCH", "/v1/limits", "").await.0, 405);
    assert!(api.fake.state().limits.is_empty() && api.fake.state().attached.is_empty());
}

#[tokio::test]
async fn what_is_in_force_may_forbid_a_change_and_a_panic_ends_all() {
    let api = Api::new();
    let waits = r#"{"rate":"5pps"}"#;
    assert_eq!(api.ask("PUT", "/v1/limits?confirm_ms=60000", waits).await.0, 200);
    for (method, path, body) in [
        ("PUT", "/v1/limits", r#"{"rate":"6pps"}"#),
        ("POST", "/v1/limits/import", "192.0.2.1 1pps"),
        ("DELETE", "/v1/limits?target=default", ""),
        ("POST", "/v1/lists/deny", "192.0.2.1"),
        ("POST", "/v1/reload", ""),
    ] {
        let (status, answer) = api.ask(method, path, body).await;
        assert_eq!((status, &answer["code"]), (409, &json!(1)), "{method} {path}: {answer}");
    }
    assert_eq!(api.ask("POST", "/v1/confirm", "").await.0, 200);
    api.fake.state().panic_on_publish = true;
    for _ in 0..2 {
        let (status, answer) = api.ask("PUT", "/v1/limits", r#"{"rate":"6pps"}"#).await;
        assert_eq!((status, &answer["code"]), (503, &json!(3)), "{answer}");
    }
}

#[tokio::test]
async fn lists_are_imported_or_refused() {
    let api = Api::new();
    let list = "default 1000pps\n198.51.100.7 10kpps 2k # who\n";
    let (status, answer) = api.ask("POST", "/v1/limits/import", list).await;
    assert_eq!((status, answer), (200, json!({"read": 2, "changed": 2, "added": 2})));
    let (_, answer) =
        api.ask("POST", "/v1/limits/import", "198.51.100.7 10kpps 2k\n192.0.2.1 1pps").await;
    assert_eq!(answer, json!({"read": 2, "changed": 1, "added": 1}));
    let (status, answer) = api.ask("POST", "/v1/limits/import", "192.0.2.9 1pps\nfoo").await;
    assert_eq!((status, &answer["code"]), (400, &json!(2)));
    assert!(answer["message"].as_str().is_some_and(|text| text.contains("line 2")), "{answer}");
    assert_eq!(api.fake.state().limits.len(), 3);
}

#[tokio::test]
async fn sources_are_shown() {
    let api = Api::new();
    api.ask("PUT", "/v1/limits", r#"{"rate":"1000pps"}"#).await;
    api.fake.state().sources.insert("192.0.2.1".into(), (100, 7));
    let (_, shown) = api.ask("GET", "/v1/sources/192.0.2.1", "").await;
    assert_eq!(shown["source"], "192.0.2.1/32");
    assert_eq!((&shown["state"], &shown["dropped"]), (&json!("limited"), &json!(7)));
    assert_eq!(shown["first_seen"], "1970-01-01T00:00:00.000Z");
    assert_eq!(shown["limit"]["target"], "default");
    let (_, light) = api.ask("GET", "/v1/sources/2001:db8::5", "").await;
    assert_eq!((&light["source"], &light["tracked"]), (&json!("2001:db8::/64"), &json!(false)));
    assert_eq!(light["tokens"], Value::Null);
    let (_, top) = api.ask("GET", "/v1/top?n=5&sort=packets", "").await;
    assert_eq!(top["tracked"], json!(1));
    // Of the last moments, in which it was silent.
    let seconds = top["sources"][0]["pps_seconds"].as_f64();
    assert!(seconds.is_some_and(|time| (0.2..5.0).contains(&time)), "{top}");
    assert_eq!(top["sources"][0]["pps"], json!(0.0));
    assert_eq!((&shown["pps"], &light["pps"]), (&json!(0.0), &Value::Null));
}

#[tokio::test]
async fn sources_are_summed_up() {
    let api = Api::new();
    for (source, dropped) in [("192.0.2.1", 7), ("192.0.2.2", 3), ("192.0.3.1", 1)] {
        api.fake.state().sources.insert(source.into(), (100, dropped));
    }
    let (_, groups) = api.ask("GET", "/v1/groups?by=prefix&n=1", "").await;
    assert_eq!((&groups["known"], &groups["tracked"]), (&json!(2), &json!(3)));
    let group = &groups["groups"][0];
    assert_eq!((&group["group"], &group["sources"]), (&json!("192.0.2.0/24"), &json!(2)));
    assert_eq!((&group["passed"], &group["dropped"]), (&json!(200), &json!(10)));
    let (_, groups) = api.ask("GET", "/v1/groups?by=class", "").await;
    assert_eq!((&groups["known"], &groups["groups"][0]["dropped"]), (&json!(1), &json!(11)));
}

#[tokio::test]
async fn interfaces_come_and_go() {
    let api = Api::new();
    api.fake.state().interfaces = vec!["eth0".into()];
    let (status, answer) =
        api.ask("POST", "/v1/interfaces", r#"{"name":"eth0","mode":"generic"}"#).await;
    assert_eq!((status, &answer["interface"]["mode"]), (200, &json!("generic")));
    let (_, answer) = api.ask("GET", "/v1/status", "").await;
    assert_eq!(
        (&answer["state"], &answer["interfaces"][0]["name"]),
        (&json!("ok"), &json!("eth0"))
    );
    let (_, answer) = api.ask("DELETE", "/v1/interfaces/eth0", "").await;
    assert_eq!(answer, json!({"detached": "eth0"}));
    let (status, answer) = api.ask("DELETE", "/v1/interfaces/eth0", "").await;
    assert_eq!((status, &answer["code"]), (409, &json!(1)));
    let (_, answer) = api.ask("GET", "/v1/stats", "").await;
    assert_eq!(answer["total"]["packets"], 10);
    let (_, answer) = api.ask("GET", "/v1/version", "").await;
    assert_eq!(answer["abi_version"], limiter_common::abi::ABI_VERSION);
}
