//! The stream of events, and the ones that are over.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use clap::ValueEnum;
use hyper::body::{Bytes, Frame};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Refusal;
use super::handlers::{Answer, unreadable};
use api::ChangesReport;
use api::error::{Failure, exit};
use api::requests::EventsQuery;
use control::Shared;
use telemetry::event::Kind;
use telemetry::{Event, What};

/// How many may listen at once.
const MAX: usize = 64;

/// Events that wait for the socket of one who listens, beside those that wait for all.
const QUEUE: usize = 16;

/// Places for those who listen.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX)))
    }
}

/// Lines as they come. Dropping it, which is what happens when the client is gone, frees its place.
struct Lines {
    lines: mpsc::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.lines.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

fn kinds(text: Option<&str>) -> Result<Vec<Kind>, Failure> {
    let names = text.unwrap_or_default().split(',').filter(|name| !name.is_empty());
    let kind = |name: &str| {
        Kind::from_str(name, false).map_err(|_| {
            let all: Vec<_> = Kind::value_variants().iter().map(|kind| kind.name()).collect();
            Failure::new(exit::USAGE, format!("there are no events of the kind {name}"))
                .hint(format!("the kinds are {}", all.join(", ")))
        })
    };
    names.map(kind).collect()
}

pub(super) async fn events(
    State(shared): State<Shared>,
    Extension(Places(places)): Extension<Places>,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(EventsQuery { kinds: wanted }) = query.map_err(unreadable)?;
    let wanted = kinds(wanted.as_deref())?;
    let place = places.try_acquire_owned().map_err(|_| {
        let failure = Failure::new(exit::NEGATIVE, format!("{MAX} others listen to events"));
        let failure =
            failure.hint("end one of them: `ss -xp` shows who is connected to the socket");
        Refusal(StatusCode::SERVICE_UNAVAILABLE, failure)
    })?;
    let events = shared.with(|core| Ok(core.bus().events())).await?;
    let (sender, lines) = mpsc::channel(QUEUE);
    tokio::spawn(forward(events, wanted, sender));
    let body = Body::new(Lines { lines, _place: place });
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Passes events on until the client or the daemon is gone.
async fn forward(mut events: Receiver<Arc<Event>>, wanted: Vec<Kind>, to: mpsc::Sender<Bytes>) {
    // The head of the answer goes out with its first bytes.
    if to.send(Bytes::from_static(b"\n")).await.is_err() {
        return;
    }
    loop {
        let event = tokio::select! {
            () = to.closed() => return,
            event = events.recv() => event,
        };
        let event = match event {
            Ok(event) => event,
            Err(RecvError::Lagged(count)) => Arc::new(Event::now(What::Missed { count })),
            Err(RecvError::Closed) => return,
        };
        let kind = event.what.kind();
        if wanted.is_empty() || kind == Kind::Missed || wanted.contains(&kind) {
            let Ok(mut line) = serde_json::to_vec(&*event) else { continue };
            line.push(b'\n');
            if to.send(line.into()).await.is_err() {
                return;
            }
        }
        if kind == Kind::Stopping {
            return;
        }
    }
}

pub(super) async fn changes(State(shared): State<Shared>) -> Answer<ChangesReport> {
    Ok(Json(shared.with(|core| Ok(core.changes())).await?))
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

    fn shared() -> (Shared, Bus, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let core = Fake::default().core(&directory);
        let bus = core.bus();
        (Shared::new(core), bus, directory)
    }

    async fn listen(shared: &Shared, places: &Places, kinds: &str) -> Result<Stream, Refusal> {
        let query = EventsQuery { kinds: Some(kinds.into()) };
        let places = Extension(places.clone());
        let response = events(State(shared.clone()), places, Ok(Query(query))).await?;
        Ok(Stream { body: response.into_body(), text: Vec::new() })
    }

    fn lost(count: u64) -> Event {
        Event::now(What::EventsLost { count })
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_what_it_has_missed() {
        let ((shared, bus, _directory), places) = (shared(), Places::default());
        let mut stream = listen(&shared, &places, "").await.unwrap();
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
        let ((shared, bus, _directory), places) = (shared(), Places::default());
        let mut stream = listen(&shared, &places, "stopping,unban").await.unwrap();
        bus.tell(lost(1));
        bus.tell(Event::now(What::Stopping));
        assert_eq!(stream.next().await.unwrap()["event"], "stopping");
        assert_eq!(stream.next().await, None);
        let refused = listen(&shared, &places, "limited,limitd").await.err().unwrap();
        assert_eq!(refused.0, StatusCode::BAD_REQUEST);
        assert!(refused.1.message.contains("limitd"));
    }

    #[tokio::test]
    async fn those_who_listen_are_bounded_and_whoever_vanishes_makes_room() {
        let ((shared, _bus, _directory), places) = (shared(), Places::default());
        let mut streams = Vec::new();
        for _ in 0..MAX {
            streams.push(listen(&shared, &places, "").await.unwrap());
        }
        for _ in 0..10_000 {
            let refused = listen(&shared, &places, "").await.err().unwrap();
            assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
        }
        drop(streams.pop());
        streams.push(listen(&shared, &places, "").await.unwrap());
        assert!(listen(&shared, &places, "").await.is_err());
    }
}
