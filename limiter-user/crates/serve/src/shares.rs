//! Shares of the cluster's limits come from the host's daemon: it is asked for those that keys need, again and again.
//!
//! What the host has without end is in a file that the daemon writes, see [`FloorsTold`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use api::client::Client;
use api::{FLOORS_HOLD, FloorsTold, KeyAsked, SharesAsked, SharesTold};
use decide::key::Space;
use decide::shared::{Floor, Floors, Shared, Wanted};
use hyper::Method;
use limiter_common::gcra::Ticks;
use model::meter::{span, ticks};
use tokio::time::{sleep, timeout};

use crate::memory::Words;
use crate::service::Service;

/// How often the daemon is asked while keys need shares.
// As often as it looks at sources of its own: demand has to reach the owner of a key in time.
const BUSY: Duration = Duration::from_millis(25);

/// The same while none does: the daemon is to be known as there.
const IDLE: Duration = Duration::from_millis(250);

/// Of its time this may take for asking at the most: 1/10.
const PART: u32 = 10;

/// How long an answer is waited for. What it tells would have ended.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Asks the daemon at `socket` as long as the runtime lives, if there are limits to share. Returns when it was asked once.
pub(crate) async fn start(service: Arc<Service>, socket: PathBuf) {
    let mut asking = Asking::new(&service, &socket);
    asking.step(&service).await;
    asking.read(&service);
    tokio::spawn(async move {
        loop {
            let begun = Instant::now();
            let busy = asking.step(&service).await;
            let pause = if busy { BUSY.max(begun.elapsed() * PART) } else { IDLE };
            // What the file says holds for a moment only.
            let mut left = pause;
            while !left.is_zero() {
                let part = left.min(FLOORS_HOLD / 10);
                sleep(part).await;
                left -= part;
                asking.read(&service);
            }
        }
    });
}

struct Asking {
    daemon: Client,
    floors: PathBuf,
    /// Whose buckets these are, and in which run.
    serve: u64,
    run: u64,
    /// It is told once that the daemon gives nothing.
    warned: bool,
}

impl Asking {
    fn new(service: &Service, socket: &Path) -> Self {
        // As long as the table lasts, so do the buckets.
        let serve = service.states().table.secret().hash(Space::Shared, b"serve").low;
        let run = run(service);
        let (daemon, floors) = (Client::new(socket), FloorsTold::path(socket));
        Self { daemon, floors, serve, run, warned: false }
    }

    /// Asks once. Whether keys need shares.
    async fn step(&mut self, service: &Service) -> bool {
        let Some(shared) = shared(service) else { return false };
        let asked_at = service.now();
        let wanted = shared.wants(asked_at);
        let asked = SharesAsked {
            serve: self.serve,
            run: self.run,
            alone: service.alone(),
            keys: wanted.iter().map(|wanted| key_asked(wanted, asked_at)).collect(),
        };
        let told = self.daemon.send(Method::POST, "/v1/cluster/shares", &asked);
        let told: Result<SharesTold, _> = match timeout(TIMEOUT, told).await {
            Ok(Ok(told)) => Ok(told),
            Ok(Err(failure)) => Err(failure.to_string()),
            Err(_) => Err(format!("no answer in {} ms", TIMEOUT.as_millis())),
        };
        match told {
            Ok(SharesTold { shares }) => {
                let shares: Vec<_> = shares
                    .into_iter()
                    .map(|(share, ns)| (share, ticks(Duration::from_nanos(ns))))
                    .collect();
                shared.take(&wanted, &shares, asked_at, service.now());
                if std::mem::take(&mut self.warned) {
                    tracing::info!("shares of the cluster's limits are there again");
                }
            }
            Err(why) => {
                // The daemon may have told something that never came.
                self.run = run(service);
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(
                        "there are no shares of the cluster's limits: on_error says what is answered: {why}"
                    );
                }
            }
        }
        !wanted.is_empty()
    }

    /// Reads what this host has without end.
    fn read(&self, service: &Service) {
        let Some(shared) = shared(service) else { return };
        let now = service.now();
        match self.told(service, now) {
            Ok(floors) => shared.set_floors(floors),
            // What was read before holds for a moment.
            Err(error) => tracing::debug!("cannot read {}: {error}", self.floors.display()),
        }
    }

    fn told(&self, service: &Service, now: Ticks) -> io::Result<Floors> {
        let told: FloorsTold = serde_json::from_slice(&fs::read(&self.floors)?)?;
        // Those of another boot are none of this, and others are for the keys of another table.
        if told.boot != service.boot() || told.serve != Some(self.serve) {
            return Ok(Floors::default());
        }
        let floor = |told: &api::FloorTold| Floor {
            at: service.at_boot(Duration::from_nanos(told.at_ns)),
            share: told.share,
            hosts: told.hosts,
        };
        let all = told.floors.iter().map(floor).collect();
        Ok(Floors { all, full: told.full, until: now + ticks(FLOORS_HOLD) })
    }
}

/// The buckets, where rules need them.
fn shared(service: &Service) -> Option<&Shared<Words>> {
    let is_needed = service.rules().all().iter().any(|rule| rule.scope.needs_daemon());
    service.states().shared.as_ref().filter(|_| is_needed)
}

/// A number that no run had before.
fn run(service: &Service) -> u64 {
    // Without random numbers its moment tells it apart.
    getrandom::u64().unwrap_or_else(|_| service.now())
}

fn key_asked(wanted: &Wanted, now: Ticks) -> KeyAsked {
    let limit = &wanted.limit;
    KeyAsked {
        key: [wanted.key.high, wanted.key.low],
        requests: limit.requests,
        window_ns: limit.window.as_nanos() as u64,
        burst: limit.burst.unwrap_or(limit.requests),
        age_ns: span(now.saturating_sub(wanted.since)).as_nanos() as u64,
        admitted: wanted.admitted,
        denied: wanted.denied,
    }
}
