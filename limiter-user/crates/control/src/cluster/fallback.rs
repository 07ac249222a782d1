//! Tells other hosts whether the store answers this one, and who is to answer here: [`cluster::fallback`] with a clock and a
//! network.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::link::{self, Command};
use super::share_loop::MIN_IDLE;
use super::{Inbox, ShareReport};
use api::{FallbackAsked, FallbackTold, SharesAsked};
use cluster::fallback::{self, Mark, Said, Served};
use cluster::wire::{Content, Topic};
use cluster::{HostId, Moment};
use model::Stance;

/// How often is looked whether all is well, while it is.
const LOOK: Duration = Duration::from_millis(500);

/// The present time. Others rely on promises of a host that is suspended, and it wakes up when they have ended.
fn now() -> Moment {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    Moment(now.as_nanos() as u64)
}

/// What is known, and by which way it is told.
pub(super) struct Fallback {
    me: HostId,
    link: link::Handle,
    shares: watch::Receiver<ShareReport>,
    state: Mutex<State>,
}

struct State {
    hosts: fallback::Fallback,
    /// What was told last.
    told: Mark,
}

impl Fallback {
    pub(super) fn new(
        me: HostId,
        link: link::Handle,
        shares: watch::Receiver<ShareReport>,
    ) -> Arc<Self> {
        // Without a random number the time is one that no run before had.
        let run = getrandom::u64().unwrap_or_else(|_| now().0);
        let hosts = fallback::Fallback::new(run, now());
        let state = Mutex::new(State { hosts, told: Mark::default() });
        Arc::new(Self { me, link, shares, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked has allowed nothing that was not safe, and told others no more than holds.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, with the hosts that are there at present.
    fn renewed(&self) -> MutexGuard<'_, State> {
        let members = self.link.members.borrow().keys().copied().collect::<BTreeSet<_>>();
        let lost = {
            let shares = self.shares.borrow();
            !shares.lost.is_empty() || shares.absent > MIN_IDLE
        };
        let mut state = self.state();
        let others = members.into_iter().filter(|host| *host != self.me).collect();
        state.hosts.set_hosts(now(), others, lost);
        state
    }

    /// A `limiter-serve` of this host that can have no share tells how it stands: it asks the store without being told to.
    pub(super) fn leave_alone(&self, asked: &SharesAsked) {
        if asked.fallback.is_some() {
            self.state().hosts.leave_alone(now(), asked.serve);
        }
    }

    /// A `limiter-serve` of this host tells how it stands, or that it has no such rules.
    pub(super) fn report(&self, serve: u64, asked: Option<FallbackAsked>) -> Option<FallbackTold> {
        let mut state = self.renewed();
        let now = now();
        let served =
            asked.map(|FallbackAsked { at, has, stance }| Served { serve, at, has, stance });
        let (stance, lasts) = state.hosts.report(now, served);
        self.tell(&mut state, false);
        asked?;
        let why = if stance == Stance::Store { String::new() } else { self.why(&state) };
        Some(FallbackTold { stance, for_ns: lasts.as_nanos() as u64, why })
    }

    /// Tells others how this host stands, if that is new or due.
    fn tell(&self, state: &mut State, is_due: bool) {
        let mark = state.hosts.mark(now());
        if !is_due && mark == state.told {
            return;
        }
        state.told = mark;
        let members = Arc::clone(&self.link.members.borrow());
        for to in members.keys().copied().filter(|host| *host != self.me) {
            // By the time of each: an order that finds no room is said again.
            let said = state.hosts.say(now(), to);
            let content = Content::Other(Topic::Fallback, said.bytes());
            self.link.order(Command::Send { to, digest: None, content });
        }
    }

    /// Why the store does not answer here, in words.
    fn why(&self, state: &State) -> String {
        let members = self.link.members.borrow();
        let names = |hosts: &[HostId]| {
            let name = |host| members.get(host).map_or("a host", |member| member.name());
            hosts.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        let now = now();
        let [mut lacking, silent] = state.hosts.reasons(now);
        if state.hosts.lacks(now) {
            lacking.push(self.me);
        }
        let mut why = Vec::new();
        for (hosts, what) in
            [(lacking, "the store does not answer"), (silent, "nothing is heard of")]
        {
            if !hosts.is_empty() {
                why.push(format!("{what} {}", names(&hosts)));
            }
        }
        if state.hosts.has_lost() {
            why.push("hosts are lost, and may ask the store: see limiter cluster status".into());
        }
        if why.is_empty() {
            why.push("hosts agree to ask the store again".into());
        }
        why.join("; ")
    }
}

/// Hears others, and tells them how this host stands, until the link is gone.
pub(super) async fn serve(fallback: Arc<Fallback>, mut inbox: Inbox) {
    let mut told = Instant::now();
    loop {
        let beat = fallback.state().hosts.beat(now());
        let is_due = match timeout_at(told + beat.unwrap_or(LOOK), inbox.recv()).await {
            Ok(Some((from, bytes))) => {
                // An unreadable one is another version's: that host does not count as heard.
                if let Ok(said) = Said::read(&bytes) {
                    fallback.state().hosts.hear(now(), from, said);
                }
                false
            }
            Ok(None) => return,
            Err(_) => {
                told = Instant::now();
                beat.is_some()
            }
        };
        fallback.tell(&mut fallback.renewed(), is_due);
    }
}
