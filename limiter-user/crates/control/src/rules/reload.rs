//! Keys of the configuration that take effect without a restart, with the limits and lists or not at all.

use super::access::Admins;
use super::core::Core;
use super::file_lists::{aged, merged};
use api::KeyDiff;
use api::error::Failure;
use dataplane::Error;
use model::lists::{ListChanges, Lists};
use model::{Changes, Management};
use settings::{LIVE, Settings};

/// What reading the configuration again comes to.
pub(super) struct Plan {
    /// Limits in force.
    pub(super) limits: Changes,
    /// Entries in force.
    pub(super) lists: ListChanges,
    /// The file's entries.
    pub(super) file_lists: Lists,
    /// Keys that change at once.
    pub(super) live: Vec<KeyDiff>,
    /// Keys that take effect with a restart.
    pub(super) restart: Vec<KeyDiff>,
    /// Other management addresses.
    management: Option<Management>,
    /// Others who may change something.
    admins: Option<Admins>,
}

impl Plan {
    /// Whether nothing in force would change.
    pub(super) const fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.lists.is_empty() && self.live.is_empty()
    }
}

impl Core {
    /// What `settings` would change.
    ///
    /// # Errors
    /// If they cannot be in force with what was set at run time and cannot change.
    pub(super) fn plan(&self, settings: &Settings) -> Result<Plan, Failure> {
        let prefixes = self.plane.prefixes();
        let config = settings.daemon();
        let management = Management::new(&config.management, prefixes);
        // The prefixes that it runs with may be others than the file has now.
        settings.check_limits(prefixes, &management)?;
        settings.check_lists(prefixes, &management)?;
        settings.check_scopes(self.replicated.is_some())?;
        settings.check_classes(self.limits_in_store())?;
        let file_lists = aged(settings.file.lists(), self.file_lists());
        let (live, restart) = self
            .key_changes(settings)
            .into_iter()
            .partition::<Vec<_>, _>(|diff| LIVE.contains(&diff.key.as_str()));
        let changes = |key: &str| live.iter().any(|diff| diff.key == key);
        let admins = match changes("admin_group") {
            true => Some(Admins::of(config.admin_group.as_deref())?),
            false => None,
        };
        Ok(Plan {
            limits: self.layers().diff(&self.layers_with(settings)),
            lists: self.list_changes_to(&file_lists),
            management: changes("management").then_some(management),
            file_lists,
            live,
            restart,
            admins,
        })
    }

    /// Whether the data plane would take it, as far as that can be told beforehand.
    pub(super) fn try_plan(&self, plan: &Plan) -> Result<(), Failure> {
        self.try_out(&plan.limits)?;
        if !plan.lists.is_empty() {
            let mut after = self.listed().clone();
            after.apply(&plan.lists);
            self.plane.check_lists(&after)?;
        }
        Ok(())
    }

    /// Puts `settings` in force, of which `plan` is what they change: all of it, or nothing.
    pub(super) fn carry_out(&mut self, settings: &Settings, plan: Plan) -> Result<(), Failure> {
        let lists = merged(self.store.lists(), &plan.file_lists);
        if let Err(error) = self.carry_to_plane(settings, &plan, lists.as_ref()) {
            let failure = Failure::from(error).context("the limits stay as they were");
            if plan.management.is_some() {
                self.plane.exempt(self.management.nets());
            }
            self.publish_again(Ok(()));
            self.publish_lists_again(Ok(()));
            return Err(failure);
        }
        // Nothing of this can fail.
        let config = settings.daemon();
        if !plan.live.is_empty() {
            self.plane.set_verdicts(config.options.drop_malformed, config.options.on_full);
            self.on_full = config.options.on_full;
            if let Some(cluster) = &self.cluster {
                cluster.set_weight(config.cluster.weight);
                cluster.set_seeds(&config.cluster.seeds);
            }
        }
        if let Some(management) = plan.management {
            self.management = management;
        }
        if let (Some(access), Some(admins)) = (&self.access, plan.admins) {
            access.set(admins);
        }
        self.file.lists = plan.file_lists;
        self.file.merged = lists;
        Ok(())
    }

    fn carry_to_plane(
        &mut self,
        settings: &Settings,
        plan: &Plan,
        lists: Option<&Lists>,
    ) -> Result<(), Error> {
        let lists = lists.unwrap_or(self.store.lists());
        if let Some(management) = &plan.management {
            // Any limit and any entry may be one that comes to apply, or ceases to.
            let limits = self.layers_with(settings).effective().into_owned();
            self.plane.exempt(management.nets());
            self.plane.publish(&limits)?;
            return self.plane.publish_lists(lists);
        }
        if !plan.limits.is_empty() {
            self.plane.change(&plan.limits)?;
        }
        if !plan.lists.is_empty() {
            self.plane.change_lists(&plan.lists, lists)?;
        }
        Ok(())
    }
}
