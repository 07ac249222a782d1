//! How a change is made: durable first, then in force, and undone where it was made if the other fails.

use std::borrow::Cow;
use std::sync::Arc;

use ipnet::IpNet;

use super::Rules;
use super::confirm::Undo;
use api::error::Failure;
use tokio::sync::broadcast;

use model::Changes;
use model::lists::{ListChanges, Listing};
use model::overrides::OverrideChanges;
use model::record::Row;
use state::Store;

impl Rules {
    /// Puts the limits and lists of store and file in force.
    ///
    /// # Errors
    /// If the data plane refuses them; then the limits that were in force before still are.
    pub fn enforce(&mut self) -> Result<(), Failure> {
        self.file
            .check_classes(self.store.limits())
            .map_err(|failure| failure.context("cannot put the limits in force"))?;
        // Lists first: with the limits, a fresh data plane takes the place of the one that was there.
        self.plane.publish_lists(self.file.merged.as_ref().unwrap_or(self.store.lists())).map_err(
            |error| Failure::from(error).context("cannot put the stored lists in force"),
        )?;
        let limits = self.in_force().into_owned();
        self.plane
            .publish(&limits)
            .map_err(|error| Failure::from(error).context("cannot put the limits in force"))
    }

    /// Stores changes before anything is in force.
    pub(super) fn store_only(&mut self, undo: &Undo) -> Result<(), Failure> {
        if !undo.limits.is_empty() {
            let former = undo.limits.former(self.store.limits());
            let rows = self.replicated.rows(&undo.limits, &former)?;
            let stored = self.store.apply_with(&undo.limits, &rows, || ());
            self.replicated.settle(stored.is_ok());
            stored?;
        }
        if !undo.lists.is_empty() {
            let rows = self.replicated.list_rows(&undo.lists, self.store.lists())?;
            let stored = self.store.list_with(&undo.lists, &rows, |_| ());
            self.replicated.settle(stored.is_ok());
            stored?;
        }
        if !undo.overrides.is_empty() {
            self.change_overrides(&undo.overrides)?;
        }
        // What the file's lists are beneath has changed.
        self.file.merge(self.store.lists());
        Ok(())
    }

    /// Changes limits, and tells the cluster of those that are its.
    pub(super) fn change(&mut self, changes: &Changes) -> Result<(), Failure> {
        let rows = self.replicated.rows(changes, &changes.former(self.store.limits()))?;
        self.change_with(changes, rows)
    }

    /// As [`Rules::change`], where `rows` are what the replica has changed and is to be durable with it.
    pub(super) fn change_with(&mut self, changes: &Changes, rows: Vec<Row>) -> Result<(), Failure> {
        let former = changes.former(self.store.limits());
        let former_rows = stored_rows(&self.store, &rows);
        let effect = self.layers().effect(changes).into_owned();
        let plane = &mut self.plane;
        let publish = || if effect.is_empty() { Ok(()) } else { plane.change(&effect) };
        let stored = self.store.apply_with(changes, &rows, publish);
        self.replicated.settle(matches!(stored, Ok(Ok(()))));
        let Err(error) = stored? else {
            self.tell_limits();
            return Ok(());
        };
        let failure = Failure::from(error).context("the limits stay as they were");
        let undo = changes.reversed(&former);
        let restored = self.store.apply_with(&undo, &former_rows, || ()).map_err(Failure::from);
        self.publish_again(restored);
        Err(failure)
    }

    /// Tells the data plane all limits after a change has failed and was `undone`: also if it has
    /// changed nothing.
    pub(super) fn publish_again(&mut self, undone: Result<(), Failure>) {
        let restored = undone.and_then(|()| {
            let limits = self.in_force().into_owned();
            self.plane.publish(&limits).map_err(Failure::from)
        });
        if let Err(error) = restored {
            tracing::error!("cannot undo a change that failed: {error}");
            self.fault = Some(format!("a change of limits was half undone: {error}"));
        }
    }

    /// Changes the lists, and tells the cluster of denials that are its.
    pub(crate) fn change_lists(&mut self, changes: &ListChanges) -> Result<(), Failure> {
        let rows = self.replicated.list_rows(changes, self.store.lists())?;
        self.change_lists_with(changes, &rows)
    }

    /// As [`Rules::change_lists`], where `rows` are what the replica has changed and is to be durable with it.
    pub(super) fn change_lists_with(
        &mut self,
        changes: &ListChanges,
        rows: &[Row],
    ) -> Result<(), Failure> {
        let former = self.store.lists().undoing(changes);
        let former_rows = stored_rows(&self.store, rows);
        let effect = self.lists_beneath(changes).into_owned();
        let (plane, merged) = (&mut self.plane, &mut self.file.merged);
        let published = self.store.list_with(changes, rows, |stored| match merged {
            None => plane.change_lists(&effect, stored),
            Some(merged) => {
                merged.apply(&effect);
                plane.change_lists(&effect, merged)
            }
        });
        if !rows.is_empty() {
            self.replicated.settle(matches!(published, Ok(Ok(()))));
        }
        let Err(error) = published? else { return Ok(()) };
        let failure = Failure::from(error).context("the lists stay as they were");
        let restored = self.store.list_with(&former, &former_rows, |_| ()).map_err(Failure::from);
        let back = self.lists_beneath(&former).into_owned();
        if let Some(merged) = &mut self.file.merged {
            merged.apply(&back);
        }
        self.publish_lists_again(restored);
        Err(failure)
    }

    /// Tells the data plane all entries after a change has failed and was `undone`.
    pub(super) fn publish_lists_again(&mut self, undone: Result<(), Failure>) {
        let lists = self.file.merged.as_ref().unwrap_or(self.store.lists());
        let plane = &mut self.plane;
        let restored = undone.and_then(|()| plane.publish_lists(lists).map_err(Failure::from));
        if let Err(error) = restored {
            tracing::error!("cannot undo a change that failed: {error}");
            self.fault = Some(format!("a change of the lists was half undone: {error}"));
        }
    }

    /// Changes overrides, and tells the cluster of those that are its, and whoever follows them.
    pub(super) fn change_overrides(&mut self, changes: &OverrideChanges) -> Result<(), Failure> {
        let rows = self.replicated.override_rows(changes, self.store.overrides())?;
        self.change_overrides_with(changes, &rows)
    }

    /// As [`Rules::change_overrides`], where `rows` are what the replica has changed and is to be durable with it.
    pub(super) fn change_overrides_with(
        &mut self,
        changes: &OverrideChanges,
        rows: &[Row],
    ) -> Result<(), Failure> {
        let stored = self.store.override_with(changes, rows);
        if !rows.is_empty() {
            self.replicated.settle(stored.is_ok());
        }
        stored?;
        // Nobody may follow them.
        let _ = self.followers.send(Arc::new(changes.clone()));
        Ok(())
    }

    /// Ends the streams of those who follow overrides.
    pub(crate) fn end_following(&mut self) {
        self.followers = broadcast::Sender::new(1);
    }

    /// What becomes of the lists in force when those set at run time change.
    pub(super) fn lists_beneath<'a>(&self, changes: &'a ListChanges) -> Cow<'a, ListChanges> {
        let file = &self.file.lists;
        if file.is_empty() {
            return Cow::Borrowed(changes);
        }
        let effect = |(net, listing): &(IpNet, Option<Listing>)| {
            (*net, listing.clone().or_else(|| file.get(net).cloned()))
        };
        Cow::Owned(changes.iter().map(effect).collect())
    }
}

/// What the store has in the place of `rows` of the replica, which undoes them.
fn stored_rows(store: &Store, rows: &[Row]) -> Vec<Row> {
    let stored = store.replica();
    rows.iter().map(|(key, _)| (key.clone(), stored.get(key).cloned())).collect()
}
