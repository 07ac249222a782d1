//! `/v1/overrides`: limits of single descriptors.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;

use super::answer::{Answer, Parsed, Refusal, answer, change};
use super::events::Places;
use api::error::Failure;
use api::requests::{ChangeQuery, OverrideQuery, OverridesQuery};
use api::{Followed, OverridesChanged, OverridesReport};
use control::Host;
use control::rules::overrides;
use model::overrides::{Descriptor, Line, Override, OverrideChanges, read_lines};
use model::scope::for_cluster;

pub(super) async fn list(
    State(host): State<Host>,
    Parsed(Query(query)): Parsed<Query<OverridesQuery>>,
) -> Answer<OverridesReport> {
    answer(&host, move |core| Ok(overrides::list(&core.rules, query.domain.as_deref()))).await
}

pub(super) async fn set(
    State(host): State<Host>,
    Parsed(Query(query)): Parsed<Query<OverrideQuery>>,
    Parsed(lines): Parsed<String>,
) -> Answer<OverridesChanged> {
    // Before the core is locked: there may be very many.
    let lines: Vec<Line> = read_lines(&lines).map_err(Failure::from)?;
    let is_clusters = for_cluster(query.scope).map_err(Failure::from)?;
    let set = |Line { descriptor, limit }| {
        Override::new(limit, query.ttl(), is_clusters).map(|set| (descriptor, Some(set)))
    };
    let changes = lines.into_iter().map(set).collect::<Result<OverrideChanges, _>>();
    let changes = changes.map_err(Failure::from)?;
    change(&host, move |core| overrides::set(&mut core.rules, &changes, &query.how())).await
}

pub(super) async fn unset(
    State(host): State<Host>,
    Parsed(Query(query)): Parsed<Query<ChangeQuery>>,
    Parsed(lines): Parsed<String>,
) -> Answer<OverridesChanged> {
    let descriptors: Vec<Descriptor> = read_lines(&lines).map_err(Failure::from)?;
    change(&host, move |core| overrides::unset(&mut core.rules, descriptors, &query.how())).await
}

/// Lines that are taken from the core at a time: it is locked meanwhile.
const PAGE: usize = 4_096;

/// Who follows: first what there is, then what changes.
struct Follower {
    host: Host,
    changes: Receiver<Arc<OverrideChanges>>,
    /// The last one that was told of what there is; none before the first, and `Err` when all were.
    last: Result<Option<Descriptor>, ()>,
    lines: VecDeque<Followed>,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    /// The next lines; `None` when the daemon ends, or this is too far behind and has to begin anew.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if let Ok(last) = self.last.clone() {
            let page =
                self.host.with(move |core| Ok(overrides::page(&core.rules, last.as_ref(), PAGE)));
            self.lines.extend(page.await.ok()?);
            self.last = match self.lines.back() {
                Some(Followed { descriptor, .. }) if self.lines.len() == PAGE => {
                    Ok(descriptor.clone())
                }
                _ => {
                    self.lines.push_back(Followed::default());
                    Err(())
                }
            };
        } else {
            let changes = self.changes.recv().await.ok()?;
            let line = |(it, to): &(Descriptor, Option<Override>)| Followed::new(it, to.as_ref());
            self.lines.extend(changes.iter().map(line));
        }
        let mut text = Vec::new();
        for line in self.lines.drain(..) {
            serde_json::to_writer(&mut text, &line).ok()?;
            text.push(b'\n');
        }
        Some((Ok(text.into()), self))
    }
}

pub(super) async fn follow(
    State(host): State<Host>,
    Extension(places): Extension<Places>,
) -> Result<Response, Refusal> {
    let place = places.take()?;
    // Before what there is: what changes meanwhile is told twice, and not missed.
    let changes = host.with(|core| Ok(overrides::follow(&core.rules))).await?;
    let lines = VecDeque::new();
    let follower = Follower { host, changes, last: Ok(None), lines, _place: place };
    let body = Body::from_stream(stream::unfold(follower, Follower::next).boxed());
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use control::fake::Fake;

    #[tokio::test]
    async fn whoever_follows_hears_all_and_then_what_changes_until_the_daemon_ends() {
        let directory = tempfile::tempdir().unwrap();
        let host = Host::new(Fake::default().core(&directory));
        let lines = |numbers: std::ops::Range<usize>| {
            let line = |number| {
                format!(r#"{{"for":["api","user","{number}"],"limit":{{"rate":"5/day"}}}}"#)
            };
            numbers.map(line).collect::<Vec<_>>().join("\n")
        };
        let query = || Parsed(Query(OverrideQuery::default()));
        let _ = set(State(host.clone()), query(), Parsed(lines(0..PAGE))).await.unwrap();
        let places = Extension(Places::default());
        let mut body = follow(State(host.clone()), places).await.unwrap().into_body();
        let mut next = async || -> Option<Vec<Followed>> {
            let frame = body.frame().await?.unwrap().into_data().unwrap();
            Some(read_lines(std::str::from_utf8(&frame).unwrap()).unwrap())
        };
        assert_eq!(next().await.unwrap().len(), PAGE);
        assert_eq!(next().await.unwrap(), [Followed::default()]);
        let one = Parsed(r#"["api","user","7"]"#.to_owned());
        let _ =
            unset(State(host.clone()), Parsed(Query(ChangeQuery::default())), one).await.unwrap();
        let gone = &next().await.unwrap()[0];
        assert_eq!(
            (gone.descriptor.as_ref().unwrap().to_string().as_str(), gone.limit),
            ("api user=7", None)
        );
        host.with(control::Core::tell_stopping).await.unwrap();
        assert_eq!(next().await, None);
    }
}
