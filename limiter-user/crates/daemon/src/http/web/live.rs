//! `GET /v1/live`: what goes on, once a second, as server-sent events.
//!
//! One task looks for all pages, and only while there are any. A page that is behind gets the latest
//! and misses what was before.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::AbortOnDrop;
use super::guard::refusal;
use api::error::{Failure, exit};
use control::{Host, Watching, groups};
use model::traffic::Whose;

/// Pages that are kept up to date at once.
const MAX_PAGES: usize = 32;

/// What all pages share.
#[derive(Clone)]
pub(super) struct Hub {
    latest: watch::Sender<Arc<str>>,
    pages: Arc<Semaphore>,
    /// It ends with the last handle.
    _producer: Arc<AbortOnDrop>,
}

impl Hub {
    pub(super) fn new(host: Host) -> Self {
        let latest = watch::Sender::new(Arc::from(""));
        let producer = AbortOnDrop(tokio::spawn(produce(host, latest.clone())));
        Self { latest, pages: Arc::new(Semaphore::new(MAX_PAGES)), _producer: Arc::new(producer) }
    }
}

/// Looks once a second while there is a page.
async fn produce(host: Host, latest: watch::Sender<Arc<str>>) {
    let Ok(bus) = host.with(|core| Ok(core.bus())).await else { return };
    let mut samples = bus.samples();
    let mut watching = Watching::default();
    loop {
        match samples.recv().await {
            // Samples are only the beat here. What this task was too slow for need not be made up.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
        if latest.receiver_count() == 0 {
            // What was seen before belongs to a page that is gone.
            watching = Watching::default();
            if !latest.borrow().is_empty() {
                // The next page would show the state of the last one's time as the present. `send`
                // keeps nothing without a receiver.
                latest.send_replace(Arc::from(""));
            }
            continue;
        }
        match overview(&host, &mut watching).await {
            Ok(text) => drop(latest.send_replace(text.into())),
            Err(failure) => tracing::error!("cannot look for the dashboard: {failure}"),
        }
    }
}

/// What goes on now, as JSON; `watching` is what was seen before.
async fn overview(host: &Host, watching: &mut Watching) -> Result<String, Failure> {
    // Rates of sources need two looks; later ones are taken while somebody watches.
    groups::prepare(host, Whose::Sources).await?;
    // Work on the core runs in another thread, which can borrow nothing from here.
    let mut before = std::mem::take(watching);
    let looked = host.with(move |core| {
        let report = core.overview(&mut before, Instant::now())?;
        Ok((before, report))
    });
    let (seen, report) = looked.await?;
    *watching = seen;
    serde_json::to_string(&report)
        .map_err(|error| Failure::new(exit::NEGATIVE, format!("cannot write JSON: {error}")))
}

/// A page's place; it is free again when the page is gone.
struct Page {
    /// What goes on, as JSON; empty before the first time.
    latest: watch::Receiver<Arc<str>>,
    _place: OwnedSemaphorePermit,
}

impl Page {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            self.latest.changed().await.ok()?;
            // A copy of the handle: the borrow is a read lock, and the producer would wait for the
            // slowest page.
            let text = Arc::clone(&self.latest.borrow_and_update());
            if !text.is_empty() {
                return Some((Ok(Event::default().data(&*text)), self));
            }
        }
    }
}

pub(super) async fn live(State(hub): State<Hub>) -> Response {
    let Ok(place) = Arc::clone(&hub.pages).try_acquire_owned() else {
        let text = format!("{MAX_PAGES} pages are open already");
        return refusal(StatusCode::SERVICE_UNAVAILABLE, &text, "close one of them");
    };
    let mut latest = hub.latest.subscribe();
    // What others have seen already need not wait for the next second.
    latest.mark_changed();
    Sse::new(stream::unfold(Page { latest, _place: place }, Page::next)).into_response()
}
