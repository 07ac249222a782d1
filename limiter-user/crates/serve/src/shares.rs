//! Shares of the cluster's limits come from the host's daemon: it is asked for those that keys need, again and again.
//!
//! What the host has without end is in a file that the daemon writes, see [`FloorsTold`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use api::client::Client;
use api::{
    FLOORS_HOLD, FallbackAsked, FallbackTold, FloorsTold, KeyAsked, STORE_HOLDS, SharesAsked,
    SharesTold,
};
use decide::key::Space;
use decide::shared::{Floor, Floors, Shared, Wanted};
use hyper::Method;
use limiter_common::gcra::Ticks;
use model::Stance;
use model::meter::{span, ticks};
use tokio::time::{sleep, timeout};

use crate::memory::Words;
use crate::service::Service;

/// How often the daemon is asked while keys need shares.
// As often as it looks at sources of its own: demand has to reach the owner of a key in time.
const BUSY: Duration = Duration::from_millis(25);

/// The same while none does: the daemon is to be known as there.
const IDLE: Duration = Duration::from_millis(250);

/// The same while rules have `on_error: cluster`: all hosts are to leave the store soon after one has lost it.
const CALM: Duration = Duration::from_millis(50);

/// For how long a store has to answer before all hosts go back to it.
const STEADY: Duration = Duration::from_secs(1);

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
            let pause = match asking.step(&service).await {
                Next::Busy => BUSY.max(begun.elapsed() * PART),
                Next::Calm => CALM.max(begun.elapsed() * PART),
                Next::Idle => IDLE,
            };
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

/// When the daemon is to be asked again.
enum Next {
    Busy,
    Calm,
    Idle,
}

struct Asking {
    daemon: Client,
    floors: PathBuf,
    /// Whose buckets these are, and in which run.
    serve: u64,
    run: u64,
    /// It is told once that the daemon gives nothing.
    warned: bool,
    /// When the store did not answer last.
    lacked: Option<Ticks>,
    /// When the daemon has said last who is to answer, or may have.
    told: Ticks,
}

impl Asking {
    fn new(service: &Service, socket: &Path) -> Self {
        // As long as the table lasts, so do the buckets.
        let serve = service.states().table.secret().hash(Space::Shared, b"serve").low;
        let run = run(service);
        let (daemon, floors) = (Client::new(socket), FloorsTold::path(socket));
        let told = service.now();
        Self { daemon, floors, serve, run, warned: false, lacked: None, told }
    }

    /// Asks once.
    async fn step(&mut self, service: &Service) -> Next {
        let Some(shared) = shared(service) else { return Next::Idle };
        let asked_at = service.now();
        let wanted = shared.wants(asked_at);
        let asked = SharesAsked {
            serve: self.serve,
            run: self.run,
            alone: service.alone(),
            keys: wanted.iter().map(|wanted| key_asked(wanted, asked_at)).collect(),
            fallback: self.stand(service, shared, asked_at),
        };
        let told = self.daemon.send(Method::POST, "/v1/cluster/shares", &asked);
        let mut may_have_told = false;
        let told: Result<SharesTold, _> = match timeout(TIMEOUT, told).await {
            Ok(Ok(told)) => Ok(told),
            Ok(Err(failure)) => Err(failure.to_string()),
            Err(_) => {
                may_have_told = true;
                Err(format!("no answer in {} ms", TIMEOUT.as_millis()))
            }
        };
        if let Some(stood) = asked.fallback {
            match told.as_ref().ok().and_then(|told| told.fallback.as_ref()) {
                Some(told) => self.follow(service, shared, told, asked_at),
                None if may_have_told => self.told = service.now(),
                None => self.go_alone(service, shared, stood.has),
            }
        }
        match told {
            Ok(SharesTold { shares, .. }) => {
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
        let stance = asked.fallback.map(|_| shared.stance(service.now()));
        match stance {
            _ if !wanted.is_empty() => Next::Busy,
            None => Next::Idle,
            Some(Stance::Store) => Next::Calm,
            Some(_) => Next::Busy,
        }
    }

    /// How this host stands with the store, if rules have `on_error: cluster`. It leaves one that does not answer.
    fn stand(
        &mut self,
        service: &Service,
        shared: &Shared<Words>,
        now: Ticks,
    ) -> Option<FallbackAsked> {
        let Some(central) = service.central.as_ref().filter(|_| service.falls_back()) else {
            shared.set_stance(Stance::Between, 0);
            return None;
        };
        if !central.health().is_up() {
            self.lacked = Some(now);
        }
        // One that comes and goes is none.
        let has = self.lacked.is_none_or(|at| now.saturating_sub(at) >= ticks(STEADY));
        if !has && shared.stance(now) == Stance::Store {
            service.set_stance(shared, Stance::Between, now, "the store does not answer this host");
        }
        Some(FallbackAsked { at: now, has, stance: shared.stance(now) })
    }

    /// Has those answer whom the daemon has named.
    fn follow(
        &mut self,
        service: &Service,
        shared: &Shared<Words>,
        told: &FallbackTold,
        asked: Ticks,
    ) {
        self.told = service.now();
        let lasts = match told.stance {
            Stance::Store => STORE_HOLDS,
            Stance::Between => Duration::ZERO,
            Stance::Escrow => Duration::from_nanos(told.for_ns),
        };
        service.set_stance(shared, told.stance, asked.saturating_add(ticks(lasts)), &told.why);
    }

    /// No daemon says who is to answer: other hosts use no shares without this one.
    fn go_alone(&self, service: &Service, shared: &Shared<Words>, has: bool) {
        let now = service.now();
        let is_over = now.saturating_sub(self.told) >= ticks(STORE_HOLDS);
        if has && (is_over || shared.stance(now) == Stance::Store) {
            service.set_stance(shared, Stance::Store, now.saturating_add(ticks(STORE_HOLDS)), "");
        }
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
