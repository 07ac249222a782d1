//! `/metrics`, for Prometheus; and how long requests take.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::answer::Refusal;
use crate::metrics::{classic, openmetrics};
use api::error::{Failure, exit};
use control::Host;
use control::cluster::Cluster;

/// OpenMetrics 1.0.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The format that everyone understands.
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Routes whose answer waits for traffic or for other hosts on purpose. In the metric they would hide a daemon that
/// has become slow.
const PATIENT: [&str; 9] = [
    "/v1/leases",
    "/v1/ports",
    "/v1/sketch",
    "/v1/suggest",
    "/v1/top",
    "/v1/cluster/peers",
    "/v1/cluster/top",
    "/v1/cluster/groups",
    "/v1/cluster/distinct",
];

pub(super) async fn metrics(
    State(host): State<Host>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let mut scrape = host.with(|core| core.scrape(Instant::now())).await?;
    scrape.cluster = host.cluster().map(Cluster::clustered);
    let text = openmetrics(scrape, host.latency()).map_err(|_| {
        Failure::new(exit::NEGATIVE, "the metrics cannot be written").hint("restart the daemon")
    })?;
    let (kind, text) = if asks_for_openmetrics(&headers) {
        (OPENMETRICS, text)
    } else {
        (CLASSIC, classic(&text))
    };
    // A proxy's copy would be a counter that stands still: no alert on a rate would ever fire.
    Ok(([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")], text).into_response())
}

/// Whether the newer format is among those that are accepted, as it is by every Prometheus since 2.5. Whoever sends
/// no `Accept`, such as curl, gets the older one, which every collector reads.
fn asks_for_openmetrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(','));
    kinds.any(|kind| {
        let mut parts = kind.split(';').map(str::trim);
        let openmetrics = parts.next() == Some("application/openmetrics-text");
        openmetrics && !parts.any(|part| part == "q=0")
    })
}

/// Records how long a request takes.
pub(super) async fn timed(State(host): State<Host>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let of_source = ["/v1/sources/", "/v1/cluster/sources/"];
    let patient =
        PATIENT.contains(&path) || of_source.iter().any(|folder| path.starts_with(folder));
    let start = Instant::now();
    let response = next.run(request).await;
    if !patient {
        host.latency().requests().record(start.elapsed());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_what_is_asked_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                          version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, newer) in [
            (prometheus, true),
            ("text/plain", false),
            ("*/*", false),
            ("application/openmetrics-text; q=0, text/plain", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
            assert_eq!(asks_for_openmetrics(&headers), newer, "{accept}");
        }
        assert!(!asks_for_openmetrics(&HeaderMap::new()));
    }
}
