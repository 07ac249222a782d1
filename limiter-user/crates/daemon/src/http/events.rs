//! The stream of events, and the ones that are over.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use clap::ValueEnum;
use futures_util::{StreamExt, stream};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::{Parsed, Refusal};
use api::error::{Failure, exit};
use api::requests::EventsQuery;
use control::Host;
use telemetry::event::Kind;
use telemetry::{Event, What};

/// How many may listen at once.
// Each listener has a task of hyper and up to a channel of events behind it. Anybody in the
// socket's group may open some.
const MAX: usize = 64;

/// Places for those who listen.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<Semaphore>);

impl Places {
    /// Takes one.
    ///
    /// # Errors
    /// If all are taken.
    pub(super) fn take(self) -> Result<OwnedSemaphorePermit, Refusal> {
        // Refused instead of queued: a monitor that waits without a word looks like one without
        // events.
        self.0.try_acquire_owned().map_err(|_| {
            let failure = Failure::new(exit::NEGATIVE, format!("{MAX} others listen already"))
                .hint("end one of them: `ss -xp` shows who is connected to the socket");
            Refusal(StatusCode::SERVICE_UNAVAILABLE, failure)
        })
    }
}

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX)))
    }
}

/// One who listens. hyper drops it when the client is gone, which frees its place.
struct Listener {
    events: Receiver<Arc<Event>>,
    /// All if there are none.
    wanted: Vec<Kind>,
    has_ended: bool,
    _place: OwnedSemaphorePermit,
}

impl Listener {
    /// The next line; `None` when the daemon ends. hyper asks for it when the socket has room: meanwhile events wait
    /// in the channel, which drops the oldest and counts them, so that a slow client takes no more memory.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        while !self.has_ended {
            let event = match self.events.recv().await {
                Ok(event) => event,
                Err(RecvError::Lagged(count)) => Arc::new(Event::now(What::Missed { count })),
                Err(RecvError::Closed) => return None,
            };
            let kind = event.what.kind();
            // A stream without an end would keep the daemon from a graceful one.
            self.has_ended = kind == Kind::Stopping;
            // What was missed is told whatever was asked for: else a gap would look like silence
            // (P5).
            if self.wanted.is_empty() || kind == Kind::Missed || self.wanted.contains(&kind) {
                let Ok(mut line) = serde_json::to_vec(&*event) else { continue };
                line.push(b'\n');
                return Some((Ok(line.into()), self));
            }
        }
        None
    }
}

fn kinds(text: Option<&str>) -> Result<Vec<Kind>, Failure> {
    let names = text.unwrap_or_default().split(',').filter(|name| !name.is_empty());
    let kind = |name: &str| {
        Kind::from_str(name, false).map_err(|_| {
            let all: Vec<_> = Kind::value_variants().iter().map(|kind| kind.name()).collect();
            // A misspelt kind would otherwise be a stream that never says anything.
            Failure::new(exit::USAGE, format!("there are no events of the kind {name}"))
                .hint(format!("the kinds are {}", all.join(", ")))
        })
    };
    names.map(kind).collect()
}

pub(super) async fn events(
    State(host): State<Host>,
    Extension(places): Extension<Places>,
    Parsed(Query(query)): Parsed<Query<EventsQuery>>,
) -> Result<Response, Refusal> {
    let wanted = kinds(query.kinds.as_deref())?;
    let place = places.take()?;
    let events = host.with(|core| Ok(core.bus().events())).await?;
    let listener = Listener { events, wanted, has_ended: false, _place: place };
    // hyper sends the head of the answer with the first bytes: without any, the client would wait for an event
    // before it knew that it listens.
    let head = stream::iter([Ok(Bytes::from_static(b"\n"))]);
    let body = Body::from_stream(head.chain(stream::unfold(listener, Listener::next)));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::Value;

    use super::*;
    use control::fake::Fake;
    use telemetry::Bus;

    struct Stream {
        body: Body,
        text: Vec<u8>,
    }

    impl Stream {
        /// The next event; `None` at the end.
        async fn next(&mut self) -> Option<Value> {
            loop {
                if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<_> = self.text.drain(..=end).collect();
                    if end > 0 {
                        return Some(serde_json::from_slice(&line).unwrap());
                    }
                    continue;
                }
                let frame = self.body.frame().await?.unwrap();
                self.text.extend(frame.into_data().unwrap());
            }
        }
    }

    fn host() -> (Host, Bus, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let core = Fake::default().core(&directory);
        let bus = core.bus();
        (Host::new(core), bus, directory)
    }

    async fn listen(host: &Host, places: &Places, kinds: &str) -> Result<Stream, Refusal> {
        let query = EventsQuery { kinds: Some(kinds.into()) };
        let places = Extension(places.clone());
        let response = events(State(host.clone()), places, Parsed(Query(query))).await?;
        Ok(Stream { body: response.into_body(), text: Vec::new() })
    }

    fn lost(count: u64) -> Event {
        Event::now(What::EventsLost { count })
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_what_it_has_missed() {
        let ((host, bus, _directory), places) = (host(), Places::default());
        let mut stream = listen(&host, &places, "").await.unwrap();
        for count in 0..3000 {
            bus.tell(lost(count));
            tokio::task::yield_now().await;
        }
        let (mut next, mut missed) = (0, 0);
        while next < 3000 {
            let event = stream.next().await.unwrap();
            if event["event"] == "missed" {
                missed += event["count"].as_u64().unwrap();
                next += event["count"].as_u64().unwrap();
            } else {
                assert_eq!(event["count"], next);
                next += 1;
            }
        }
        assert!((1900..3000).contains(&missed), "{missed}");
    }

    #[tokio::test]
    async fn kinds_are_chosen_and_the_end_of_the_daemon_ends_it() {
        let ((host, bus, _directory), places) = (host(), Places::default());
        let mut stream = listen(&host, &places, "stopping,unban").await.unwrap();
        bus.tell(lost(1));
        bus.tell(Event::now(What::Stopping));
        assert_eq!(stream.next().await.unwrap()["event"], "stopping");
        assert_eq!(stream.next().await, None);
        let refused = listen(&host, &places, "limited,limitd").await.err().unwrap();
        assert_eq!(refused.0, StatusCode::BAD_REQUEST);
        assert!(refused.1.message.contains("limitd"));
    }

    #[tokio::test]
    async fn those_who_listen_are_bounded_and_whoever_vanishes_makes_room() {
        let ((host, _bus, _directory), places) = (host(), Places::default());
        let mut streams = Vec::new();
        for _ in 0..MAX {
            streams.push(listen(&host, &places, "").await.unwrap());
        }
        for _ in 0..10_000 {
            let refused = listen(&host, &places, "").await.err().unwrap();
            assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
        }
        drop(streams.pop());
        streams.push(listen(&host, &places, "").await.unwrap());
        assert!(listen(&host, &places, "").await.is_err());
    }
}
