//! The real Envoy: parts of its configuration, and a process of it.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::{Namespace, process::Background};

/// A message of one of Envoy's extensions.
#[must_use]
pub fn typed(kind: &str, mut fields: Value) -> Value {
    fields["@type"] = format!("type.googleapis.com/envoy.extensions.filters.{kind}").into();
    fields
}

/// A filter, by its name, the kind of its message, and that.
#[must_use]
pub fn filter(name: &str, kind: &str, fields: Value) -> Value {
    json!({ "name": name, "typed_config": typed(kind, fields) })
}

/// A port on the loopback interface.
#[must_use]
pub fn address(port: u16) -> Value {
    json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } })
}

/// A cluster of Envoy's: where it sends something to.
#[must_use]
pub fn backend(name: &str, address: &Value) -> Value {
    json!({ "name": name, "type": "STATIC", "load_assignment": { "cluster_name": name,
        "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address } }] }] } })
}

/// The same for gRPC.
#[must_use]
pub fn http2_backend(name: &str, address: &Value) -> Value {
    let mut cluster = backend(name, address);
    cluster["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": { "http2_protocol_options": {} } } });
    cluster
}

/// How Envoy asks `limiter-serve`, which is its cluster `limiter`.
#[must_use]
pub fn rate_limit_service() -> Value {
    json!({ "transport_api_version": "V3",
        "grpc_service": { "envoy_grpc": { "cluster_name": "limiter" }, "timeout": "5s" } })
}

/// The filter that has requests of the domain `shop` decided there, with more of its `fields`.
#[must_use]
pub fn rate_limit(mut fields: Value) -> Value {
    fields["domain"] = "shop".into();
    fields["failure_mode_deny"] = true.into();
    fields["timeout"] = "5s".into();
    fields["rate_limit_service"] = rate_limit_service();
    filter("envoy.filters.http.ratelimit", "http.ratelimit.v3.RateLimit", fields)
}

/// What serves HTTP, through some filters, by some routes.
#[must_use]
pub fn connection_manager(filters: &[Value], routes: &Value) -> Value {
    let router = filter("envoy.filters.http.router", "http.router.v3.Router", json!({}));
    let filters: Vec<_> = filters.iter().chain([&router]).collect();
    filter(
        "envoy.filters.network.http_connection_manager",
        "network.http_connection_manager.v3.HttpConnectionManager",
        json!({ "stat_prefix": "http", "http_filters": filters,
            "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes }] } }),
    )
}

/// Where it is reached, and what becomes of a connection.
#[must_use]
pub fn listener(name: &str, port: u16, filters: &[Value]) -> Value {
    json!({ "name": name, "address": address(port), "filter_chains": [{ "filters": filters }] })
}

/// Starts it with a configuration that is written to `path`, and waits until it listens at `port`.
///
/// # Panics
/// If it does not.
#[must_use]
pub fn start(namespace: &Namespace, path: &Path, config: &Value, port: u16) -> Background {
    fs::write(path, config.to_string()).expect("a configuration");
    let envoy = Background::start(&mut command(namespace, path));
    namespace.wait_for_port(port);
    envoy
}

/// What starts it with the configuration in a file.
#[must_use]
pub fn command(namespace: &Namespace, path: &Path) -> Command {
    let mut envoy = namespace.command(&tools::ENVOY);
    envoy.arg("-c").arg(path).args(["--disable-hot-restart", "--concurrency", "1"]);
    envoy.args(["--log-level", "error"]);
    envoy
}
