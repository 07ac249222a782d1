//! What went on, and that a restart keeps it. [`crate::life`] writes it.

use std::path::Path;
use std::time::Duration;

use telemetry::Sample;
use telemetry::history::{History, Keeper, Patch, Series};

/// What went on, and where it is kept.
#[derive(Debug, Default)]
pub struct Past {
    pub(super) history: History,
    /// `None` while it writes, and where nothing is kept.
    keeper: Option<Keeper>,
    /// Why it cannot be kept at present.
    problem: Option<String>,
    /// Why what an earlier daemon has kept is lost.
    lost: Option<String>,
}

impl Past {
    /// Goes on with the history that an earlier daemon has kept at `path`, and keeps it there. `same_maps` says whether
    /// the counters may be the ones that it was made of. What is wrong with it is a warning of `status`: history goes
    /// on in memory.
    pub(super) fn open(&mut self, path: &Path, now: &Sample, same_maps: bool) {
        let (keeper, history, problem) = Keeper::open(path, now, same_maps);
        self.history = history;
        // The last hour ends now, not when the earlier daemon did.
        self.history.record(now);
        if keeper.has_file() {
            problem.iter().for_each(|problem| tracing::warn!("{problem}"));
            self.lost = problem;
        } else {
            self.note(problem);
        }
        self.keeper = Some(keeper);
    }

    /// Notes what is wrong at present.
    pub(super) fn note(&mut self, problem: Option<String>) {
        match (&self.problem, &problem) {
            // It may be the same many times.
            (before, Some(problem)) if before.as_ref() != Some(problem) => {
                tracing::warn!("{problem}");
            }
            (Some(_), None) => tracing::info!("history is kept again"),
            _ => {}
        }
        self.problem = problem;
    }

    /// What happened from `since` to `until` ago, in steps of `step`.
    pub fn series(&self, since: Duration, until: Duration, step: Option<Duration>) -> Series {
        self.history.series(since, until, step)
    }

    /// What is to be written, and who does; nothing while it is being written.
    pub(super) fn take(&mut self) -> Option<(Keeper, Patch)> {
        let keeper = self.keeper.take()?;
        let patch = self.history.patch(&keeper);
        Some((keeper, patch))
    }

    /// Whether it is being written.
    pub(super) const fn is_taken(&self) -> bool {
        self.keeper.is_none()
    }

    /// Takes back who writes.
    pub(super) fn written(&mut self, keeper: Keeper, written: Result<(), String>) {
        self.keeper = Some(keeper);
        match written {
            Ok(()) => self.note(None),
            Err(problem) => {
                self.history.write_all();
                self.note(Some(problem));
            }
        }
    }

    /// What is wrong.
    pub(super) fn problems(&self) -> impl Iterator<Item = &String> {
        self.problem.iter().chain(&self.lost)
    }
}
