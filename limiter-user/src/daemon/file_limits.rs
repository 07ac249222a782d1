//! The limits of the configuration file, beneath those that were set at run time.
//!
//! A target has the limit that was set at run time, or else that of the file. The store has only the
//! former: when one is removed, the file's comes to light.

use std::borrow::Cow;

use super::core::Core;
use crate::config::{ConfigFile, Given, Settings};
use crate::error::{Failure, exit};
use crate::policy::{Change, Changes, LimitSpec, Limits, Target};
use crate::report::{
    ConfigReport, DiffReport, KeyDiff, LimitOrigin, LimitReport, ReloadReport, Shadowed,
};

/// What the daemon was configured with, and the file's limits as they are in force.
#[derive(Default)]
pub(super) struct FileLimits {
    limits: Limits,
    source: Option<Source>,
    /// Why the file could not be read again.
    problem: Option<String>,
}

struct Source {
    given: Given,
    running: Settings,
    file: Option<String>,
}

impl Core {
    /// Takes the limits of the file that `running` came from, which are in force from
    /// [`Core::enforce`] on.
    pub(crate) fn configure(&mut self, given: Given, running: Settings) {
        self.file.limits = running.file.limits().clone();
        let file = running.file.path.as_ref().map(|path| path.display().to_string());
        self.file.source = Some(Source { given, running, file });
    }

    /// All limits in force.
    pub(super) fn in_force(&self) -> Cow<'_, Limits> {
        let (stored, file) = (self.limits_in_store(), &self.file.limits);
        if file.is_empty() {
            return Cow::Borrowed(stored);
        }
        let mut all = stored.clone();
        for limit in file.iter().filter(|limit| stored.get(&limit.target).is_none()) {
            all.set(limit);
        }
        Cow::Owned(all)
    }

    /// The limit in force for this very target.
    pub(super) fn limit_for(&self, target: &Target) -> Option<LimitSpec> {
        self.limits_in_store().get(target).or_else(|| self.file.limits.get(target))
    }

    /// What becomes of the limits in force when those set at run time change.
    pub(super) fn beneath<'a>(&self, changes: &'a Changes) -> Cow<'a, Changes> {
        let file = &self.file.limits;
        if file.is_empty() {
            return Cow::Borrowed(changes);
        }
        let effect = |change| match change {
            Change::Unset(target) => file.get(&target).map_or(change, Change::Set),
            Change::Set(_) => change,
        };
        Cow::Owned(changes.iter().map(effect).collect())
    }

    /// How many limits are in force.
    pub(super) fn count_in_force(&self) -> usize {
        self.limits_in_store().len() + self.file.limits.len() - self.count_shadowed()
    }

    fn count_shadowed(&self) -> usize {
        let stored = self.limits_in_store();
        self.file.limits.iter().filter(|limit| stored.get(&limit.target).is_some()).count()
    }

    /// Where the limit in force for a target comes from.
    pub(super) fn origin_of(&self, target: &Target) -> LimitOrigin {
        match (self.limits_in_store().get(target), self.file.limits.get(target)) {
            (None, Some(_)) => LimitOrigin::File,
            _ => LimitOrigin::Runtime,
        }
    }

    /// Whether the file has a limit for this very target, and what the file is called.
    pub(super) fn file_with(&self, target: &Target) -> Option<&str> {
        self.file.limits.get(target)?;
        self.file.source.as_ref()?.file.as_deref()
    }

    /// How changes of the limits set at run time meet those of the file.
    pub(super) fn meeting(&self, changes: &Changes) -> Option<String> {
        let (mut hidden, mut back) = (None, None);
        for change in changes.iter() {
            let (target, place) = match change {
                Change::Set(limit) => (limit.target, &mut hidden),
                Change::Unset(target) => (target, &mut back),
            };
            if self.file.limits.get(&target).is_some() {
                place.get_or_insert(target);
            }
        }
        let file = self.file.source.as_ref()?.file.as_deref()?;
        match (hidden, back) {
            (_, Some(target)) => {
                Some(format!("{file} has a limit for {}, which is in force then", target.short()))
            }
            (Some(target), None) => Some(format!(
                "{file} has a limit for {}, which this one wins over until `limiter limit unset`",
                target.short()
            )),
            (None, None) => None,
        }
    }

    /// What `status` says of the configuration.
    pub(super) fn config_report(&self) -> ConfigReport {
        ConfigReport {
            file: self.file.source.as_ref().and_then(|source| source.file.clone()),
            limits: self.file.limits.len() as u64,
            shadowed: self.count_shadowed() as u64,
            problem: self.file.problem.clone(),
        }
    }

    /// Reads the configuration again and puts its limits in force; with `dry_run` only tells what that
    /// would change.
    ///
    /// # Errors
    /// If anything is wrong with it, a change waits to be confirmed, or the data plane refuses; then everything is as it was before.
    pub fn reload(&mut self, dry_run: bool) -> Result<ReloadReport, Failure> {
        if !dry_run {
            self.nothing_unconfirmed()?;
        }
        if !dry_run {
            self.nothing_unconfirmed()?;
        }
        let reloaded = self.read_again().and_then(|settings| {
            if dry_run { self.compare(&settings) } else { self.take_settings(settings) }
        });
        if !dry_run {
            self.file.problem = reloaded.as_ref().err().map(ToString::to_string);
        }
        reloaded
    }

    /// What would change if the file were `file`.
    ///
    /// # Errors
    /// As [`Core::reload`].
    pub fn compare_with(&self, file: ConfigFile) -> Result<ReloadReport, Failure> {
        let settings = self.configured()?.given.with(file)?;
        self.compare(&settings)
    }

    fn configured(&self) -> Result<&Source, Failure> {
        self.file.source.as_ref().ok_or_else(|| {
            Failure::new(exit::NEGATIVE, "this daemon was started without a configuration")
        })
    }

    fn read_again(&self) -> Result<Settings, Failure> {
        let source = self.configured()?;
        let file = ConfigFile::find(source.given.file())?;
        if let (None, Some(former)) = (&file.path, &source.file) {
            // More likely a mistake than the wish to be without limits.
            let message = format!("{former} is gone: the limits stay as they were");
            return Err(Failure::new(exit::USAGE, message)
                .hint("restore it, or leave an empty file in its place"));
        }
        source.given.with(file)
    }

    /// What the limits of `settings` would change, one for each target.
    fn changes_to(&self, settings: &Settings) -> Changes {
        let (old, new, stored) =
            (&self.file.limits, settings.file.limits(), self.limits_in_store());
        let set = new.iter().filter(|limit| old.get(&limit.target) != Some(*limit));
        let gone = old.iter().filter(|limit| new.get(&limit.target).is_none());
        set.map(Change::Set)
            .chain(gone.map(|limit| Change::Unset(limit.target)))
            .filter(|change| {
                let (Change::Set(LimitSpec { target, .. }) | Change::Unset(target)) = change;
                stored.get(target).is_none()
            })
            .collect()
    }

    fn compare(&self, settings: &Settings) -> Result<ReloadReport, Failure> {
        // Those that it runs with may be others than the file has now.
        settings.check_limits(self.plane.prefixes(), &self.management)?;
        let changes = self.changes_to(settings);
        self.try_out(&changes)?;
        Ok(self.told(settings, &changes, false))
    }

    fn told(&self, settings: &Settings, changes: &Changes, applied: bool) -> ReloadReport {
        let mut limits = DiffReport::default();
        let of_file = |limit: LimitSpec| LimitReport {
            origin: LimitOrigin::File,
            ..LimitReport::new(&limit, self.plane.gate_of(&limit))
        };
        for change in changes.iter() {
            let (target, new) = match change {
                Change::Set(limit) => (limit.target, Some(limit)),
                Change::Unset(target) => (target, None),
            };
            limits.note(self.file.limits.get(&target).map(of_file), new.map(of_file));
        }
        let stored = self.limits_in_store();
        let shadowed = settings.file.limits().iter().filter_map(|file| {
            let runtime = stored.get(&file.target).filter(|runtime| *runtime != file)?;
            let (target, runtime) = (file.target, self.report(&runtime));
            Some(Shadowed { target, file: of_file(file), runtime })
        });
        ReloadReport {
            file: settings.file.path.as_ref().map(|path| path.display().to_string()),
            applied,
            limits,
            shadowed: shadowed.collect(),
            restart: self.restart_for(settings),
        }
    }

    /// The keys that take effect with a restart.
    fn restart_for(&self, settings: &Settings) -> Vec<KeyDiff> {
        let Some(source) = &self.file.source else { return Vec::new() };
        let pairs = source.running.values().into_iter().zip(settings.values());
        pairs
            .filter(|(running, new)| running.1 != new.1)
            .map(|((key, running), (_, file))| KeyDiff { key, running, file })
            .collect()
    }

    pub(crate) fn take_settings(&mut self, settings: Settings) -> Result<ReloadReport, Failure> {
        settings.check_limits(self.plane.prefixes(), &self.management)?;
        let changes = self.changes_to(&settings);
        let report = self.told(&settings, &changes, true);
        if !changes.is_empty()
            && let Err(error) = self.plane.change(&changes)
        {
            let failure = Failure::from(error).context("the limits stay as they were");
            self.publish_again(Ok(()));
            return Err(failure);
        }
        self.file.limits = settings.file.limits().clone();
        let file = settings.file.path.as_ref().map(|path| path.display().to_string());
        if let Some(source) = &mut self.file.source {
            source.file = file;
        }
        log(&report);
        Ok(report)
    }
}

fn log(report: &ReloadReport) {
    let file = report.file.as_deref().unwrap_or("no file");
    tracing::info!("configuration read again from {file}: limits {}", report.limits.summary());
    for KeyDiff { key, running, .. } in &report.restart {
        tracing::warn!(
            "{key} has changed, which takes effect with a restart; until then {running}"
        );
    }
}
