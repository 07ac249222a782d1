//! What went on, and that a restart keeps it.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::core::Core;
use super::shared::Shared;
use api::error::{Failure, exit};
use telemetry::detect::Jump;
use telemetry::history::{History, Keeper, Patch, Series};

/// How often history is written. What a crash costs of it is shown as a gap.
const PERIOD: Duration = Duration::from_mins(1);

/// When it is tried again after it could not be written.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// How often is looked whether history has been written, at the end.
const TIMEOUT: u32 = 50;

/// What went on, and where it is kept.
#[derive(Debug, Default)]
pub(super) struct Past {
    pub(super) history: History,
    /// `None` while it writes, and where nothing is kept.
    keeper: Option<Keeper>,
    /// Why it cannot be kept at present.
    problem: Option<String>,
    /// Why what an earlier daemon has kept is lost.
    lost: Option<String>,
}

impl Past {
    /// What is wrong.
    pub(super) fn problems(&self) -> impl Iterator<Item = &String> {
        self.problem.iter().chain(&self.lost)
    }
}

impl Core {
    /// Goes on with the history that an earlier daemon has kept beside the store, and keeps it there.
    /// `same_maps` says whether the counters may be the ones that it was made of. What is wrong with it
    /// is a warning of `status`: history goes on in memory.
    pub(super) fn open_history(&mut self, same_maps: bool) {
        let path = self.store.path().with_file_name("history");
        let now = match self.sample() {
            Ok(now) => now,
            Err(failure) => return self.note_past(Some(failure.to_string())),
        };
        let (keeper, history, problem) = Keeper::open(&path, &now, same_maps);
        self.past.history = history;
        // The last hour ends now, not when the earlier daemon did.
        self.past.history.record(&now);
        self.told.jump = Jump::after(&self.past.history.distinct());
        if keeper.has_file() {
            problem.iter().for_each(|problem| tracing::warn!("{problem}"));
            self.past.lost = problem;
        } else {
            self.note_past(problem);
        }
        self.past.keeper = Some(keeper);
    }

    fn note_past(&mut self, problem: Option<String>) {
        match (&self.past.problem, &problem) {
            // It may be the same many times.
            (before, Some(problem)) if before.as_ref() != Some(problem) => {
                tracing::warn!("{problem}");
            }
            (Some(_), None) => tracing::info!("history is kept again"),
            _ => {}
        }
        self.past.problem = problem;
    }

    /// What happened from `since` to `until` ago, in steps of `step`.
    pub fn series(&self, since: Duration, until: Duration, step: Option<Duration>) -> Series {
        self.past.history.series(since, until, step)
    }

    /// What is to be written, and who does.
    fn history_out(&mut self) -> Option<(Keeper, Patch)> {
        let keeper = self.past.keeper.take()?;
        let patch = self.past.history.patch(&keeper);
        Some((keeper, patch))
    }

    fn history_written(&mut self, keeper: Keeper, written: Result<(), String>) {
        self.past.keeper = Some(keeper);
        match written {
            Ok(()) => self.note_past(None),
            Err(problem) => {
                self.past.history.write_all();
                self.note_past(Some(problem));
            }
        }
    }
}

/// Writes history once. The core is free for others meanwhile. Returns whether all is well with it.
async fn write(shared: &Shared) -> Result<bool, Failure> {
    let Some((mut keeper, patch)) = shared.with(|core| Ok(core.history_out())).await? else {
        return Ok(true);
    };
    let written = spawn_blocking(move || {
        let written = keeper.write(&patch);
        (keeper, written)
    });
    let failed = |_| Failure::new(exit::NEGATIVE, "history cannot be kept: an internal error");
    let (keeper, written) = written.await.map_err(failed)?;
    shared
        .with(move |core| {
            let well = written.is_ok();
            core.history_written(keeper, written);
            Ok(well)
        })
        .await
}

/// Writes history each minute, until an internal error.
pub(super) async fn keep(shared: &Shared) -> Failure {
    loop {
        // A task of its own: the end of the daemon does not cut it off.
        let writer = shared.clone();
        match tokio::spawn(async move { write(&writer).await }).await {
            Ok(Ok(well)) => sleep(if well { PERIOD } else { RETRY_INTERVAL }).await,
            Ok(Err(failure)) => return failure,
            Err(error) => {
                return Failure::new(exit::NEGATIVE, format!("history cannot be kept: {error}"));
            }
        }
    }
}

/// Writes history up to now, when the daemon ends.
pub(super) async fn keep_at_end(shared: &Shared) -> Result<(), Failure> {
    shared
        .with(|core| {
            let sample = core.sample()?;
            core.past.history.record(&sample);
            Ok(())
        })
        .await?;
    // What is being written comes first.
    for _ in 0..TIMEOUT {
        if shared.with(|core| Ok(core.past.keeper.is_some())).await? {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    write(shared).await.map(drop)
}
