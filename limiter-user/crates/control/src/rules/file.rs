//! The limits of the configuration file, beneath those that were set at run time.
//!
//! [`LayeredLimits`] has the rules.

use std::borrow::Cow;
use std::hash::Hasher as _;
use std::sync::Arc;

use serde_json::Value;
use siphasher::sip::SipHasher24;

use super::core::Core;
use super::file_lists::{merged as merged_lists, of_file as entry_of_file};
use super::lists::wide;
use super::live::Plan;
use super::refused::{Refused, Start};
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::{
    ConfigReport, DiffReport, KeyDiff, LimitOrigin, LimitReport, ListDiff, ReloadReport, Shadowed,
};
use cluster::queries::{FileLimit, MAX_FILE_LIMITS};
use model::layers::LimitOf;
use model::lists::Lists;
use model::{Change, Changes, Layer, LayeredLimits, Limit, Limits, Target};
use settings::{Arguments, ConfigFile, Settings};

/// What the daemon was configured with, and the file's limits as they are in force.
#[derive(Default)]
pub(super) struct FileLimits {
    pub(super) limits: Limits,
    /// Those of them that are for the cluster, as other hosts are told of them.
    clustered: Arc<ClusterLimits>,
    pub(super) lists: Lists,
    /// The lists in force, if the file has entries; else they are those of the store.
    pub(super) merged: Option<Lists>,
    /// A file that was not confirmed.
    pub(super) refused: Option<Refused>,
    source: Option<Source>,
    /// Why the file could not be read again.
    problem: Option<String>,
}

/// The limits of the cluster that a file has.
#[derive(Debug, Default)]
pub(super) struct ClusterLimits {
    /// Of all of them, whatever their order in the file.
    pub(super) hash: u64,
    /// In the order of their targets, the first [`MAX_FILE_LIMITS`] at most.
    pub(super) list: Vec<FileLimit>,
}

impl ClusterLimits {
    fn of(limits: &Limits) -> Self {
        let clustered = limits.iter().filter(|limit| !limit.scope.is_local());
        let told = clustered.map(|limit| FileLimit {
            target: limit.target.short(),
            limit: LimitReport::new(&limit, 0).summary(),
        });
        let mut list: Vec<_> = told.collect();
        list.sort_by(|one, other| one.target.cmp(&other.target));
        let mut hasher = SipHasher24::new();
        for FileLimit { target, limit } in &list {
            hasher.write(format!("{target}\n{limit}\n").as_bytes());
        }
        list.truncate(MAX_FILE_LIMITS);
        Self { hash: hasher.finish(), list }
    }
}

struct Source {
    given: Arguments,
    /// Every key, with the value that it has in this daemon.
    running: Vec<(String, Value)>,
    /// What was read last and is in force, but for what needs a restart.
    taken: Settings,
    file: Option<String>,
}

impl FileLimits {
    /// Lays the file's lists beneath those that are `stored`.
    pub(super) fn merge(&mut self, stored: &Lists) {
        self.merged = merged_lists(stored, &self.lists);
    }
}

impl Core {
    /// Takes limits and lists of the file that `start` has, which are in force from
    /// [`Core::enforce`] on.
    pub(super) fn start_from(&mut self, given: Arguments, start: Start) {
        let Start { settings, refused, damaged } = start;
        self.take_file_limits(settings.file.limits());
        self.file.lists = settings.file.lists().clone();
        self.file.merge(self.store.lists());
        self.file.refused = refused;
        self.join(&settings.cluster());
        self.unconfirmed.note_damage(damaged);
        let file = settings.file.path.as_ref().map(|path| path.display().to_string());
        let running = settings.values();
        self.file.source = Some(Source { given, running, taken: settings, file });
    }

    /// As [`Core::start_from`], with no file that was refused.
    #[cfg(test)]
    pub(crate) fn configure(&mut self, given: Arguments, settings: Settings) {
        self.start_from(given, Start { settings, refused: None, damaged: None });
    }

    /// The entries of the file's lists.
    pub(super) const fn file_lists(&self) -> &Lists {
        &self.file.lists
    }

    /// The file's limits.
    pub(super) const fn limits_in_file(&self) -> &Limits {
        &self.file.limits
    }

    fn take_file_limits(&mut self, limits: &Limits) {
        self.file.limits = limits.clone();
        self.file.clustered = Arc::new(ClusterLimits::of(limits));
        self.tell_limits();
    }

    /// The limits of the cluster that the file has.
    pub(super) fn cluster_limits_in_file(&self) -> Arc<ClusterLimits> {
        Arc::clone(&self.file.clustered)
    }

    /// The file's name.
    pub(super) fn file_name(&self) -> Option<String> {
        self.file.source.as_ref()?.file.clone()
    }

    /// What was read last.
    pub(super) fn taken(&self) -> Result<&Settings, Failure> {
        Ok(&self.configured()?.taken)
    }

    /// The limits in their layers.
    pub(super) fn layers(&self) -> LayeredLimits<'_> {
        let replica = self.replicated.as_ref().map(|replicated| &replicated.replica);
        LayeredLimits {
            file: &self.file.limits,
            cluster: replica.map(|replica| replica as &dyn LimitOf),
            runtime: self.limits_in_store(),
        }
    }

    /// The layers if the file were that of `settings`.
    pub(super) fn layers_with<'a>(&'a self, settings: &'a Settings) -> LayeredLimits<'a> {
        LayeredLimits { file: settings.file.limits(), ..self.layers() }
    }

    /// All limits in force.
    pub(super) fn in_force(&self) -> Cow<'_, Limits> {
        self.layers().effective()
    }

    /// Whether the classes of the file's limits go with those of limits set at run time.
    ///
    /// # Errors
    /// The first limit of the file whose class does not, by its place.
    pub(super) fn check_file_classes(&self) -> Result<(), Failure> {
        let settings = self.file.source.as_ref().map(|source| &source.taken);
        settings.map_or(Ok(()), |settings| settings.check_classes(self.limits_in_store()))
    }

    /// The limit in force for this very target.
    pub(super) fn limit_for(&self, target: &Target) -> Option<Limit> {
        self.layers().get(target)
    }

    /// Where the limit in force for a target comes from.
    pub(super) fn origin_of(&self, target: &Target) -> LimitOrigin {
        match self.layers().layer(target) {
            Some(Layer::File) => LimitOrigin::File,
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
            shadowed: self.layers().hidden().count() as u64,
            listed: self.file_lists().len() as u64,
            listed_shadowed: self.count_shadowed_entries() as u64,
            refused: self.refused_file(),
            problem: self.file.problem.clone(),
        }
    }

    /// Reads the configuration again and puts what it says in force, as `how` says; a dry run only
    /// tells what that would change.
    ///
    /// # Errors
    /// If anything is wrong with it, a change waits to be confirmed, or the data plane refuses; then
    /// everything is as it was before.
    pub fn reload(&mut self, how: &ChangeOptions) -> Result<ReloadReport, Failure> {
        self.may_change(how)?;
        let reloaded = self.read_again().and_then(|settings| {
            if how.dry_run { self.compare(&settings, how) } else { self.take_as(settings, how) }
        });
        if !how.dry_run {
            self.file.problem = reloaded.as_ref().err().map(ToString::to_string);
        }
        if let Ok(report) = &reloaded
            && !how.dry_run
        {
            let file = report.file.as_deref().unwrap_or("no file");
            let what = format!("configuration read again from {file}: {}", report.summary());
            self.tell_policy(what, how, None);
        }
        reloaded
    }

    /// What would change if the file were `file`.
    ///
    /// # Errors
    /// As [`Core::reload`].
    pub fn compare_with(&self, file: ConfigFile) -> Result<ReloadReport, Failure> {
        let settings = self.configured()?.given.with(file)?;
        self.compare(&settings, &ChangeOptions::default())
    }

    fn configured(&self) -> Result<&Source, Failure> {
        self.file.source.as_ref().ok_or_else(|| {
            Failure::new(exit::NEGATIVE, "this daemon was started without a configuration")
        })
    }

    fn read_again(&self) -> Result<Settings, Failure> {
        let source = self.configured()?;
        let file = source.given.read_file()?;
        if let (None, Some(former)) = (&file.path, &source.file) {
            // More likely a mistake than the wish to be without limits.
            let message = format!("{former} is gone: the limits stay as they were");
            return Err(Failure::new(exit::USAGE, message)
                .hint("restore it, or leave an empty file in its place"));
        }
        source.given.with(file)
    }

    fn compare(&self, settings: &Settings, how: &ChangeOptions) -> Result<ReloadReport, Failure> {
        let plan = self.plan(settings)?;
        self.try_plan(&plan)?;
        let warnings = self.plan_warnings(&plan, how);
        Ok(ReloadReport { warnings, ..self.told(settings, &plan, false) })
    }

    /// Whether something in force would change.
    pub(super) fn would_change(&self, settings: &Settings) -> bool {
        self.plan(settings).is_ok_and(|plan| !plan.is_empty())
    }

    /// What the operator should know of a reload.
    pub(super) fn reload_warnings(&self, settings: &Settings, how: &ChangeOptions) -> Vec<String> {
        self.plan(settings).map(|plan| self.plan_warnings(&plan, how)).unwrap_or_default()
    }

    fn plan_warnings(&self, plan: &Plan, how: &ChangeOptions) -> Vec<String> {
        let limited = self.session_limited(&plan.limits, how);
        let denied = self.session_denied(&plan.lists, how);
        wide(&plan.lists).chain(limited).chain(denied).collect()
    }

    fn told(&self, settings: &Settings, plan: &Plan, applied: bool) -> ReloadReport {
        let mut lists = ListDiff::default();
        for (net, new) in &plan.lists {
            let told = |listing| entry_of_file(*net, listing);
            lists.note(self.file_lists().get(net).map(told), new.as_ref().map(told));
        }
        let mut limits = DiffReport::default();
        let of_file = |limit: Limit| LimitReport {
            origin: LimitOrigin::File,
            ..LimitReport::new(&limit, self.plane.gate_of(&limit))
        };
        for change in plan.limits.iter() {
            let (target, new) = match change {
                Change::Set(limit) => (limit.target, Some(limit)),
                Change::Unset(target) => (target, None),
            };
            limits.note(self.file.limits.get(&target).map(of_file), new.map(of_file));
        }
        let hidden = self.layers_with(settings).hidden();
        let shadowed = hidden.filter(|(file, runtime)| file != runtime).map(|(file, runtime)| {
            let (target, runtime) = (file.target, self.report(&runtime));
            Shadowed { target, file: of_file(file), runtime }
        });
        ReloadReport {
            file: settings.file.path.as_ref().map(|path| path.display().to_string()),
            applied,
            limits,
            lists,
            shadowed: shadowed.collect(),
            lists_shadowed: self.shadowed_entries(&plan.file_lists),
            live: plan.live.clone(),
            restart: plan.restart.clone(),
            ..ReloadReport::default()
        }
    }

    /// The keys whose values in `settings` are others than this daemon's.
    pub(super) fn key_changes(&self, settings: &Settings) -> Vec<KeyDiff> {
        let Some(source) = &self.file.source else { return Vec::new() };
        let pairs = source.running.iter().zip(settings.values());
        pairs
            .filter(|(running, new)| running.1 != new.1)
            .map(|((key, running), (_, file))| KeyDiff {
                key: key.clone(),
                running: running.clone(),
                file,
            })
            .collect()
    }

    /// Puts `settings` in force, but for what needs a restart.
    ///
    /// # Errors
    /// If they cannot be; then everything is as it was before.
    pub(crate) fn take_settings(&mut self, settings: Settings) -> Result<ReloadReport, Failure> {
        let plan = self.plan(&settings)?;
        let report = self.told(&settings, &plan, true);
        self.carry_out(&settings, plan)?;
        self.take_file_limits(settings.file.limits());
        if let Some(source) = &mut self.file.source {
            source.file = settings.file.path.as_ref().map(|path| path.display().to_string());
            for KeyDiff { key, file, .. } in &report.live {
                let mut running = source.running.iter_mut();
                if let Some((_, value)) = running.find(|(running, _)| running == key) {
                    *value = file.clone();
                }
            }
            source.taken = settings;
        }
        log(&report);
        Ok(report)
    }
}

fn log(report: &ReloadReport) {
    for KeyDiff { key, running, .. } in &report.restart {
        tracing::warn!(
            "{key} has changed, which takes effect with a restart; until then {running}"
        );
    }
}
