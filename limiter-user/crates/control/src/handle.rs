//! The handle that tasks have on the one core.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::task::spawn_blocking;

use super::core::Core;
use api::error::{Failure, exit};
use telemetry::Latency;
use telemetry::event::By;

/// Who asks, where that is known.
#[derive(Clone)]
pub enum Actor {
    /// A user of this machine, whose name is asked for when something is changed.
    User(u32),
    /// Whoever has the token of the dashboard.
    Dashboard,
}

impl Actor {
    fn told(self) -> By {
        match self {
            Self::User(id) => By::user(id),
            Self::Dashboard => By::dashboard(),
        }
    }
}

tokio::task_local! {
    static ACTOR: Actor;
}

/// Does something for somebody: what it changes is told as theirs.
pub async fn acting<F: Future>(actor: Actor, work: F) -> F::Output {
    ACTOR.scope(actor, work).await
}

/// A handle to the one [`Core`]. Whatever is done with it is done one after the other.
#[derive(Clone)]
pub struct CoreHandle(Arc<Mutex<Core>>, Latency);

impl CoreHandle {
    /// Shares `core`.
    pub fn new(core: Core) -> Self {
        Self(Arc::new(Mutex::new(core)), Latency::default())
    }

    /// Runs `work` on the core in this thread, which may block, after all work that came before.
    ///
    /// # Errors
    /// As [`CoreHandle::with`].
    pub fn with_now<T>(
        &self,
        work: impl FnOnce(&mut Core) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let wished = Instant::now();
        let mut core = self.0.lock().map_err(|_| in_doubt())?;
        let begun = Instant::now();
        core.rules.events.by = None;
        let result = work(&mut core);
        drop(core);
        self.1.waiting().record(begun - wished);
        self.1.working().record(begun.elapsed());
        result
    }

    /// What work on the core and requests have taken.
    pub fn latency(&self) -> &Latency {
        &self.1
    }

    /// Runs `work` on the core, where it may block, after all work that came before.
    ///
    /// # Errors
    /// What `work` fails with. If it panics, this and all later work fails: what it has left may be
    /// half of a change. The data plane goes on without the daemon until that is restarted.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Core) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (core, latency) = (Arc::clone(&self.0), self.1.clone());
        let actor = ACTOR.try_with(Clone::clone).ok();
        let wished = Instant::now();
        let done = spawn_blocking(move || {
            // Before the core is locked: to find a name may take a while.
            let by = actor.map(Actor::told);
            let mut core = core.lock().map_err(|_| in_doubt())?;
            let begun = Instant::now();
            core.rules.events.by = by;
            let result = work(&mut core);
            drop(core);
            latency.waiting().record(begun - wished);
            latency.working().record(begun.elapsed());
            result
        });
        done.await.unwrap_or_else(|_| Err(in_doubt()))
    }
}

fn in_doubt() -> Failure {
    Failure::new(exit::UNREACHABLE, "an internal error has left the daemon's state in doubt")
        .hint("restart the daemon; the limits stay in force meanwhile")
}
