//! The configuration file, read again: what that would change, and putting it in force, all of it or nothing.
//!
//! Limits, lists and some keys take effect at once ([`settings::LIVE`]), other keys with a restart.

use super::Rules;
use super::file::{aged, entry_of_file, merged, shadowed_entries};
use super::limits::session_limited;
use super::lists::{session_denied, wide};
use super::refused::{Refused, Start, record};
use crate::access::Admins;
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::{
    ConfigReport, DiffReport, KeyDiff, LimitOrigin, LimitReport, ListDiff, ReloadReport, Shadowed,
};
use dataplane::Error;
use model::lists::{ListChanges, Lists};
use model::{Change, Changes, LayeredLimits, Limit, Management};
use settings::{Arguments, ConfigFile, LIVE, Settings};

/// What reading the configuration again comes to.
struct Plan {
    /// Limits in force.
    limits: Changes,
    /// Entries in force.
    lists: ListChanges,
    /// The file's entries.
    file_lists: Lists,
    /// Keys that change at once.
    live: Vec<KeyDiff>,
    /// Keys that take effect with a restart.
    restart: Vec<KeyDiff>,
    /// Other management addresses.
    management: Option<Management>,
    /// Others who may change something.
    admins: Option<Admins>,
}

impl Plan {
    /// Whether nothing in force would change.
    const fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.lists.is_empty() && self.live.is_empty()
    }
}

/// Takes limits and lists of the file that `start` has, which are in force from [`Rules::enforce`] on.
pub(crate) fn start_from(rules: &mut Rules, given: Arguments, start: Start) {
    let Start { settings, refused, damaged } = start;
    rules.replicated.join(&settings.cluster(), rules.store.replica());
    rules.unconfirmed.note_damage(damaged);
    rules.file.refused = refused;
    rules.file.begin(given, settings, rules.store.lists());
    rules.tell_limits();
}

/// As [`start_from`], with no file that was refused.
#[cfg(test)]
pub(crate) fn configure(rules: &mut Rules, given: Arguments, settings: Settings) {
    start_from(rules, given, Start { settings, refused: None, damaged: None });
}

/// What `status` says of the configuration.
pub(crate) fn report(rules: &Rules) -> ConfigReport {
    let file = &rules.file;
    // While a reload waits to be confirmed it is in force.
    let refused = file.refused.as_ref().filter(|_| !rules.unconfirmed.is_reload());
    ConfigReport {
        file: file.name().map(str::to_owned),
        limits: file.limits.len() as u64,
        shadowed: rules.layers().hidden().count() as u64,
        listed: file.lists.len() as u64,
        listed_shadowed: file.hidden_entries(rules.store.lists()) as u64,
        refused: refused.map(|refused| refused.file.display().to_string()),
        problem: file.problem.clone(),
    }
}

/// Reads the configuration again and puts what it says in force, as `how` says; a dry run only
/// tells what that would change.
///
/// # Errors
/// If anything is wrong with it, a change waits to be confirmed, or the data plane refuses; then
/// everything is as it was before.
pub fn reload(rules: &mut Rules, how: &ChangeOptions) -> Result<ReloadReport, Failure> {
    rules.unconfirmed.may_change(how)?;
    let read = read_again(rules);
    if how.dry_run {
        return compare(rules, &read?, how);
    }
    let reloaded = read.and_then(|settings| take_as(rules, settings, how));
    rules.file.problem = reloaded.as_ref().err().map(ToString::to_string);
    if let Ok(report) = &reloaded {
        let file = report.file.as_deref().unwrap_or("no file");
        let what = format!("configuration read again from {file}: {}", report.summary());
        rules.events.tell_policy(what, how, None);
    }
    reloaded
}

/// What would change if the file were `file`.
///
/// # Errors
/// As [`reload`].
pub fn compare_with(rules: &Rules, file: ConfigFile) -> Result<ReloadReport, Failure> {
    let settings = rules.file.source()?.given.with(file)?;
    compare(rules, &settings, &ChangeOptions::default())
}

fn read_again(rules: &Rules) -> Result<Settings, Failure> {
    let source = rules.file.source()?;
    let file = source.given.read_file()?;
    if let (None, Some(former)) = (&file.path, &source.file) {
        // More likely a mistake than the wish to be without limits.
        let message = format!("{former} is gone: the limits stay as they were");
        return Err(Failure::new(exit::USAGE, message)
            .hint("restore it, or leave an empty file in its place"));
    }
    source.given.with(file)
}

fn compare(
    rules: &Rules,
    settings: &Settings,
    how: &ChangeOptions,
) -> Result<ReloadReport, Failure> {
    let plan = plan(rules, settings)?;
    try_out(rules, &plan)?;
    let warnings = warnings(rules, &plan, how);
    Ok(ReloadReport { warnings, ..describe(rules, settings, &plan, false) })
}

/// What the operator should know of a reload.
fn warnings(rules: &Rules, plan: &Plan, how: &ChangeOptions) -> Vec<String> {
    let limited = session_limited(rules, &plan.limits, how);
    let denied = session_denied(rules, &plan.lists, how);
    let managed = how.session.filter(|address| rules.management.covering(*address).is_some());
    let left = managed.filter(|address| {
        plan.management.as_ref().is_some_and(|after| after.covering(*address).is_none())
    });
    let left = left.map(|address| {
        format!(
            "your SSH session comes from {address}, which is no management address any more: limits and lists \
             apply to it: {}",
            how.advice()
        )
    });
    wide(&plan.lists).chain(limited).chain(denied).chain(left).collect()
}

fn layers_with<'a>(rules: &'a Rules, settings: &'a Settings) -> LayeredLimits<'a> {
    LayeredLimits { file: settings.file.limits(), ..rules.layers() }
}

fn describe(rules: &Rules, settings: &Settings, plan: &Plan, applied: bool) -> ReloadReport {
    let mut lists = ListDiff::default();
    for (net, new) in &plan.lists {
        let told = |listing| entry_of_file(*net, listing);
        lists.note(rules.file.lists.get(net).map(told), new.as_ref().map(told));
    }
    let mut limits = DiffReport::default();
    let of_file = |limit: Limit| LimitReport {
        origin: LimitOrigin::File,
        ..LimitReport::new(&limit, rules.plane.gate_of(&limit))
    };
    for change in plan.limits.iter() {
        let (target, new) = match change {
            Change::Set(limit) => (limit.target, Some(limit)),
            Change::Unset(target) => (target, None),
        };
        limits.note(rules.file.limits.get(&target).map(of_file), new.map(of_file));
    }
    let layers = layers_with(rules, settings);
    let hidden = layers.hidden().filter(|(file, runtime)| file != runtime);
    let shadowed = hidden.map(|(file, runtime)| {
        let (target, runtime) = (file.target, rules.report(&runtime));
        Shadowed { target, file: of_file(file), runtime }
    });
    ReloadReport {
        file: settings.file.path.as_ref().map(|path| path.display().to_string()),
        applied,
        limits,
        lists,
        shadowed: shadowed.collect(),
        lists_shadowed: shadowed_entries(&plan.file_lists, rules.store.lists()),
        live: plan.live.clone(),
        restart: plan.restart.clone(),
        ..ReloadReport::default()
    }
}

/// Puts what was read in force, as `how` says.
fn take_as(
    rules: &mut Rules,
    settings: Settings,
    how: &ChangeOptions,
) -> Result<ReloadReport, Failure> {
    let before = rules.file.refused.clone();
    let former = rules.file.taken()?.clone();
    let planned = plan(rules, &settings);
    let changes = planned.as_ref().is_ok_and(|plan| !plan.is_empty());
    let period = how.confirm.filter(|_| changes);
    let refused = period.and_then(|_| Refused::new(&settings.file, &former.file));
    record(rules, refused)?;
    let taken = planned.and_then(|plan| {
        let warnings = warnings(rules, &plan, how);
        Ok(ReloadReport { warnings, ..take(rules, settings, plan)? })
    });
    let mut report = match taken {
        Ok(report) => report,
        Err(failure) => {
            if let Err(left) = record(rules, before) {
                tracing::error!("cannot undo what was recorded of a reload: {left}");
            }
            return Err(failure);
        }
    };
    if let Some(period) = period {
        let file = report.file.as_deref().unwrap_or("no file");
        let what = format!("reload of {file}");
        rules.unconfirmed.wait_after_reload(what, former, report.count(), period);
        report.confirm = rules.unconfirmed.report();
    }
    Ok(report)
}

/// Puts `settings` in force, but for what needs a restart.
///
/// # Errors
/// If they cannot be; then everything is as it was before.
pub(crate) fn take_settings(
    rules: &mut Rules,
    settings: Settings,
) -> Result<ReloadReport, Failure> {
    let plan = plan(rules, &settings)?;
    take(rules, settings, plan)
}

fn take(rules: &mut Rules, settings: Settings, plan: Plan) -> Result<ReloadReport, Failure> {
    let report = describe(rules, &settings, &plan, true);
    carry_out(rules, &settings, plan)?;
    rules.file.take(settings, &report.live);
    rules.tell_limits();
    for KeyDiff { key, running, .. } in &report.restart {
        tracing::warn!(
            "{key} has changed, which takes effect with a restart; until then {running}"
        );
    }
    Ok(report)
}

/// What `settings` would change.
///
/// # Errors
/// If they cannot be in force with what was set at run time and cannot change.
fn plan(rules: &Rules, settings: &Settings) -> Result<Plan, Failure> {
    let prefixes = rules.plane.prefixes();
    let config = settings.daemon();
    let management = Management::new(&config.management, prefixes);
    // The prefixes that it runs with may be others than the file has now.
    settings.check_limits(prefixes, &management)?;
    settings.check_lists(prefixes, &management)?;
    settings.check_scopes(rules.replicated.is_on())?;
    settings.check_classes(rules.store.limits())?;
    let file_lists = aged(settings.file.lists(), &rules.file.lists);
    let keys = rules.file.key_changes(settings).into_iter();
    let (live, restart) = keys.partition::<Vec<_>, _>(|diff| LIVE.contains(&diff.key.as_str()));
    let changes = |key: &str| live.iter().any(|diff| diff.key == key);
    let admins = match changes("admin_group") {
        true => Some(Admins::of(config.admin_group.as_deref())?),
        false => None,
    };
    Ok(Plan {
        limits: rules.layers().diff(&layers_with(rules, settings)),
        lists: rules.file.list_changes_to(&file_lists, rules.store.lists()),
        management: changes("management").then_some(management),
        file_lists,
        live,
        restart,
        admins,
    })
}

/// Whether the data plane would take it, as far as that can be told beforehand.
fn try_out(rules: &Rules, plan: &Plan) -> Result<(), Failure> {
    rules.plane.try_out(&plan.limits)?;
    if !plan.lists.is_empty() {
        let mut after = rules.listed().clone();
        after.apply(&plan.lists);
        rules.plane.check_lists(&after)?;
    }
    Ok(())
}

/// Puts `settings` in force, of which `plan` is what they change: all of it, or nothing.
fn carry_out(rules: &mut Rules, settings: &Settings, plan: Plan) -> Result<(), Failure> {
    let lists = merged(rules.store.lists(), &plan.file_lists);
    if let Err(error) = carry_to_plane(rules, settings, &plan, lists.as_ref()) {
        let failure = Failure::from(error).context("the limits stay as they were");
        if plan.management.is_some() {
            rules.plane.exempt(rules.management.nets());
        }
        rules.publish_again(Ok(()));
        rules.publish_lists_again(Ok(()));
        return Err(failure);
    }
    // Nothing of this can fail.
    let config = settings.daemon();
    if !plan.live.is_empty() {
        rules.plane.set_verdicts(&config.options);
        rules.on_full = config.options.on_full;
        if let Some(cluster) = &rules.cluster {
            cluster.set_weight(config.cluster.weight);
            cluster.set_seeds(&config.cluster.seeds);
        }
    }
    if let Some(management) = plan.management {
        rules.management = management;
    }
    if let (Some(access), Some(admins)) = (&rules.access, plan.admins) {
        access.set(admins);
    }
    rules.file.lists = plan.file_lists;
    rules.file.merged = lists;
    Ok(())
}

fn carry_to_plane(
    rules: &mut Rules,
    settings: &Settings,
    plan: &Plan,
    lists: Option<&Lists>,
) -> Result<(), Error> {
    carry_limits(rules, settings, plan, lists)?;
    // Last: what fails here has changed nothing, and nothing fails after it.
    rules.plane.set_groups(settings.daemon().options.groups)
}

fn carry_limits(
    rules: &mut Rules,
    settings: &Settings,
    plan: &Plan,
    lists: Option<&Lists>,
) -> Result<(), Error> {
    if let Some(management) = &plan.management {
        // Any limit and any entry may be one that comes to apply, or ceases to.
        let limits = layers_with(rules, settings).effective().into_owned();
        rules.plane.exempt(management.nets());
        rules.plane.publish(&limits)?;
        return rules.plane.publish_lists(lists.unwrap_or(rules.store.lists()));
    }
    if !plan.limits.is_empty() {
        rules.plane.change(&plan.limits)?;
    }
    if !plan.lists.is_empty() {
        rules.plane.change_lists(&plan.lists, lists.unwrap_or(rules.store.lists()))?;
    }
    Ok(())
}
