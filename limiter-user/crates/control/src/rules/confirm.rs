//! A change that is reverted unless it is confirmed in time.
//!
//! What would revert it is noted in the store before the change is made, and removed when the change
//! is confirmed or reverted. So a daemon that starts after a crash knows what to do, whenever that
//! came: to revert a change that was not made, or has been reverted, changes nothing.

mod clock;
mod record;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;

use self::clock::Clocks;
pub(super) use self::record::note;
use self::record::{NOTE, Record};
use super::Rules;
use super::refused::accept_file;
use super::reload::take_settings;
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::{ConfirmReport, PendingReport};
use model::Changes;
use model::lists::ListChanges;
use model::overrides::OverrideChanges;
use settings::Settings;
use state::Store;
use telemetry::What;
use telemetry::event::By;

/// How soon what could not be reverted is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Times that a confirmation may be waited for.
const MIN_PERIOD: Duration = Duration::from_secs(1);
const MAX_PERIOD: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether a confirmation may be waited for so long.
///
/// # Errors
/// If it is too short or too long.
pub fn check_period(period: Duration) -> Result<(), Failure> {
    if (MIN_PERIOD..=MAX_PERIOD).contains(&period) {
        return Ok(());
    }
    Err(Failure::new(
        exit::USAGE,
        format!("--confirm {}: out of range", humantime::format_duration(period)),
    )
    .hint("give a time from 1s to 24h, for instance --confirm 60s"))
}

/// What reverts a change of limits, lists or overrides.
#[derive(Clone, Debug, Default)]
pub(super) struct Undo {
    pub(super) limits: Changes,
    pub(super) lists: ListChanges,
    pub(super) overrides: OverrideChanges,
}

/// What reverts a change.
#[derive(Clone)]
enum Revert {
    /// What was set at run time is set again.
    Rules(Undo),
    /// The configuration as it was read before is in force again. How many targets that is about.
    Settings(Box<Settings>, u64),
}

impl Revert {
    fn targets(&self) -> u64 {
        match self {
            Self::Rules(undo) => {
                (undo.limits.len() + undo.lists.len() + undo.overrides.len()) as u64
            }
            Self::Settings(_, targets) => *targets,
        }
    }
}

/// A change that waits to be confirmed.
struct Pending {
    record: Record,
    undo: Revert,
    /// Why it could not be reverted, and when that was tried.
    problem: Option<(String, Instant)>,
}

/// What became of a change that waited to be confirmed.
struct Ended {
    what: String,
    how: Ending,
    by: Option<By>,
    at: SystemTime,
}

/// Why a change waits no more.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Confirmed,
    Aborted,
    TimedOut,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = &self.what;
        let ending = match self.how {
            Ending::Confirmed => "was confirmed",
            Ending::Aborted => "was reverted with --abort",
            Ending::TimedOut => "was not confirmed in time and reverted",
        };
        write!(f, "the last one ({what}) {ending}")?;
        if let Some(By { user, .. }) = &self.by {
            write!(f, " by {user}")?;
        }
        write!(f, " at {}", humantime::format_rfc3339_seconds(self.at))
    }
}

/// The change that waits to be confirmed, if there is one.
#[derive(Default)]
pub(crate) struct Unconfirmed {
    pending: Option<Pending>,
    /// What became of the last one.
    ended: Option<Ended>,
    /// What was wrong with a note.
    damaged: Option<String>,
    /// Told when there is something to wait for.
    wake: Arc<Notify>,
}

impl Unconfirmed {
    /// Reads what an earlier daemon has noted. What makes no sense is told and forgotten.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    fn read(&mut self, store: &mut Store) -> Result<(), Failure> {
        match record::read(store)? {
            None => {}
            Some(Ok((record, undo))) => {
                self.pending = Some(Pending { record, undo: Revert::Rules(undo), problem: None });
            }
            Some(Err(problem)) => {
                let problem = format!(
                    "an unconfirmed change may still be in force, what is noted of it makes no sense: {problem}"
                );
                tracing::error!("{problem}");
                store.set_note(NOTE, None)?;
                self.damaged = Some(problem);
            }
        }
        Ok(())
    }

    /// What is to be said of it.
    pub(crate) fn report(&self) -> Option<PendingReport> {
        let pending = self.pending.as_ref()?;
        let left = pending.record.deadline.left(&Clocks::now());
        Some(PendingReport {
            what: pending.record.what.clone(),
            targets: pending.undo.targets(),
            seconds_left: left.as_secs_f64(),
            reverts_at: humantime::format_rfc3339_seconds(SystemTime::now() + left).to_string(),
            problem: pending.problem.as_ref().map(|(problem, _)| problem.clone()),
        })
    }

    /// What an operator should know: that something is wrong.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        let overdue = self.pending.as_ref().and_then(|pending| pending.problem.as_ref());
        let overdue = overdue.map(|(problem, _)| {
            format!("a change that was not confirmed cannot be reverted: {problem}")
        });
        self.damaged.clone().into_iter().chain(overdue)
    }

    /// Remembers what is wrong with a note.
    pub(super) fn note_damage(&mut self, damaged: Option<String>) {
        self.damaged = damaged.or(self.damaged.take());
    }

    /// Whether a reload of the configuration waits to be confirmed.
    pub(super) fn is_reload(&self) -> bool {
        let pending = self.pending.as_ref();
        pending.is_some_and(|pending| matches!(pending.undo, Revert::Settings(..)))
    }

    /// Whether a change may be made: none waits to be confirmed.
    ///
    /// # Errors
    /// If one does; the hint says what to do.
    pub(crate) fn nothing(&self) -> Result<(), Failure> {
        let Some(pending) = self.report() else { return Ok(()) };
        let left = humantime::format_duration(Duration::from_secs(pending.seconds_left as u64));
        Err(Failure::new(
            exit::NEGATIVE,
            format!("a change waits to be confirmed ({}), {left} left", pending.what),
        )
        .hint("keep it with `limiter confirm`, or revert it with `limiter confirm --abort`"))
    }

    /// Whether a change may be made as `how` says.
    ///
    /// # Errors
    /// If it is to be confirmed too soon or too late, or another one waits to be confirmed.
    pub(super) fn may_change(&self, how: &ChangeOptions) -> Result<(), Failure> {
        how.confirm.map_or(Ok(()), check_period)?;
        if how.dry_run { Ok(()) } else { self.nothing() }
    }

    /// Whether there is something to confirm.
    ///
    /// # Errors
    /// If there is not, with what became of the last change.
    fn something(&self) -> Result<(), Failure> {
        if self.pending.is_some() {
            return Ok(());
        }
        let none = Failure::new(exit::NEGATIVE, "no change waits to be confirmed");
        Err(match &self.ended {
            None => none.hint("make one with --confirm, for instance --confirm 60s"),
            Some(ended) => none.hint(ended.to_string()),
        })
    }

    /// Told when there is something to wait for.
    pub(crate) fn wake(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    /// Lets `former` be in force again after `period`, unless what has been read is confirmed. A daemon
    /// that starts after a crash does not read it again (see [`super::refused`]).
    pub(super) fn wait_after_reload(
        &mut self,
        what: String,
        former: Settings,
        targets: u64,
        period: Duration,
    ) {
        let record = Record::new(what, period);
        self.wait(record, Revert::Settings(Box::new(former), targets), period);
    }

    fn wait(&mut self, record: Record, undo: Revert, period: Duration) {
        tracing::info!("{} waits to be confirmed for {period:?}", record.what);
        self.pending = Some(Pending { record, undo, problem: None });
        self.ended = None;
        self.wake.notify_one();
    }

    fn forget(&mut self, store: &mut Store) -> Result<Option<Pending>, Failure> {
        store.set_note(NOTE, None)?;
        Ok(self.pending.take())
    }
}

/// Makes a change that `undo` reverts after `period`.
///
/// # Errors
/// If it cannot be recorded, or `make` fails; then nothing has changed.
pub(super) fn until_confirmed(
    rules: &mut Rules,
    what: String,
    undo: Undo,
    period: Duration,
    make: impl FnOnce(&mut Rules) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let record = Record::new(what, period);
    record::write(&mut rules.store, &record, &undo)?;
    if let Err(failure) = make(rules) {
        if let Err(left) = rules.unconfirmed.forget(&mut rules.store) {
            // To revert what was not changed is harmless.
            tracing::warn!("the record of a change that failed stays: {left}");
        }
        return Err(failure);
    }
    rules.unconfirmed.wait(record, Revert::Rules(undo), period);
    Ok(())
}

/// Takes up what an earlier daemon has left unconfirmed. What is overdue is reverted in the store,
/// before the limits are put in force.
///
/// # Errors
/// If the record cannot be read, or the store cannot be written.
pub(crate) fn resume(rules: &mut Rules) -> Result<(), Failure> {
    rules.unconfirmed.read(&mut rules.store)?;
    let Some(pending) = &rules.unconfirmed.pending else { return Ok(()) };
    if pending.record.deadline.left(&Clocks::now()).is_zero() {
        // A reload does not outlive its daemon.
        if let Revert::Rules(undo) = pending.undo.clone() {
            rules.store_only(&undo)?;
        }
        end_reverted(rules, Ending::TimedOut)?;
    } else {
        tracing::info!("{} still waits to be confirmed", pending.record.what);
    }
    Ok(())
}

/// Keeps the change that waits.
///
/// # Errors
/// If none does, or the record cannot be removed; then it still waits.
pub fn confirm(rules: &mut Rules) -> Result<ConfirmReport, Failure> {
    rules.unconfirmed.something()?;
    if rules.unconfirmed.is_reload() {
        accept_file(rules)?;
    }
    let kept = rules.unconfirmed.forget(&mut rules.store)?;
    let (what, targets) =
        kept.map_or_else(Default::default, |kept| (kept.record.what, kept.undo.targets()));
    rules.events.tell_policy(format!("{what} is confirmed"), &ChangeOptions::default(), None);
    note_end(rules, &what, Ending::Confirmed);
    Ok(ConfirmReport { outcome: "confirmed".into(), what, targets })
}

/// Reverts the change that waits.
///
/// # Errors
/// If none does, or it cannot be reverted; then it still waits.
pub fn abort(rules: &mut Rules) -> Result<ConfirmReport, Failure> {
    rules.unconfirmed.something()?;
    let (what, targets) = revert(rules, Ending::Aborted)?.unwrap_or_default();
    Ok(ConfirmReport { outcome: "reverted".into(), what, targets })
}

/// Reverts the change that waits, and says what it was and how many targets it had.
fn revert(rules: &mut Rules, why: Ending) -> Result<Option<(String, u64)>, Failure> {
    let Some(pending) = &rules.unconfirmed.pending else { return Ok(None) };
    let undo = pending.undo.clone();
    let about = (pending.record.what.clone(), undo.targets());
    let reverted = carry_back(rules, undo).and_then(|()| end_reverted(rules, why));
    if let (Err(failure), Some(pending)) = (&reverted, &mut rules.unconfirmed.pending) {
        pending.problem = Some((failure.to_string(), Instant::now()));
    }
    reverted.map(|()| Some(about))
}

fn carry_back(rules: &mut Rules, undo: Revert) -> Result<(), Failure> {
    match undo {
        Revert::Rules(undo) => {
            if !undo.limits.is_empty() {
                rules.change(&undo.limits)?;
            }
            if !undo.lists.is_empty() {
                rules.change_lists(&undo.lists)?;
            }
            if !undo.overrides.is_empty() {
                rules.change_overrides(&undo.overrides)?;
            }
            Ok(())
        }
        Revert::Settings(settings, _) => take_settings(rules, *settings).map(drop),
    }
}

fn end_reverted(rules: &mut Rules, why: Ending) -> Result<(), Failure> {
    if let Some(pending) = rules.unconfirmed.forget(&mut rules.store)? {
        let (what, by) = (pending.record.what, rules.events.by.clone());
        rules.events.tell(What::Reverted { what: what.clone(), by });
        note_end(rules, &what, why);
    }
    Ok(())
}

/// Remembers what became of the change that waited, for whoever asks for it too late.
fn note_end(rules: &mut Rules, what: &str, how: Ending) {
    let (by, at) = (rules.events.by.clone(), SystemTime::now());
    rules.unconfirmed.ended = Some(Ended { what: what.to_owned(), how, by, at });
}

/// Reverts what is overdue. Returns how long to wait for the next time, if there is something to
/// wait for.
pub(crate) fn revert_overdue(rules: &mut Rules) -> Option<Duration> {
    let pending = rules.unconfirmed.pending.as_ref()?;
    let left = pending.record.deadline.left(&Clocks::now());
    let wait = match &pending.problem {
        Some((_, at)) if left.is_zero() => RETRY.saturating_sub(at.elapsed()),
        _ => left,
    };
    if !wait.is_zero() {
        // The clock of timers stops while the machine sleeps.
        return Some(wait.min(RETRY));
    }
    match revert(rules, Ending::TimedOut) {
        Ok(_) => None,
        Err(failure) => {
            tracing::error!("cannot revert what was not confirmed: {failure}");
            Some(RETRY)
        }
    }
}

/// Reverts the change that waits, because nobody could when the daemon has ended.
///
/// # Errors
/// If it cannot be reverted; the next daemon will.
pub(crate) fn revert_at_end(rules: &mut Rules) -> Result<(), Failure> {
    revert(rules, Ending::TimedOut).map(drop)
}

#[cfg(test)]
mod tests;
