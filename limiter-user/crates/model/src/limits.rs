//! Many limits in little memory.
//!
//! Limits that differ in nothing but their target share an amount, so that each of a million takes the
//! space of its target and a number. [`Limits`] are those in force or stored, [`Changes`] a list of
//! what is to become of some.

use std::collections::{BTreeMap, HashMap};

use super::class::Class;
use crate::limit::{Amount, Limit};
use crate::target::Target;

/// Limits by target.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    by_target: BTreeMap<Target, u32>,
    /// Each amount, and how many targets have it. Those that none has are free.
    amounts: Vec<(Amount, usize)>,
    numbers: HashMap<Amount, u32>,
    free: Vec<u32>,
    /// The classes that targets have, beside [`Class::ANY`], and how many have each.
    classes: BTreeMap<Class, usize>,
}

/// Counts targets by their class; those for all packets are not counted.
fn count(classes: &mut BTreeMap<Class, usize>, class: Class, more: bool) {
    if class.is_any() {
        return;
    }
    let count = classes.entry(class).or_default();
    *count = if more { *count + 1 } else { count.saturating_sub(1) };
    if *count == 0 {
        classes.remove(&class);
    }
}

impl Limits {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_target.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_target.is_empty()
    }

    /// The limit for this very target.
    pub fn get(&self, target: &Target) -> Option<Limit> {
        self.by_target.get(target).map(|number| self.amounts[*number as usize].0.of(*target))
    }

    /// All of them, the default first.
    pub fn iter(&self) -> impl Iterator<Item = Limit> {
        let limits = self.by_target.iter();
        limits.map(|(target, number)| self.amounts[*number as usize].0.of(*target))
    }

    /// The amounts that they have, and how many have each.
    pub fn amounts(&self) -> impl Iterator<Item = (Amount, usize)> {
        self.amounts.iter().copied().filter(|(_, count)| *count > 0)
    }

    /// The classes that they are for, beside [`Class::ANY`].
    pub fn classes(&self) -> impl Iterator<Item = Class> {
        self.classes.keys().copied()
    }

    /// The classes that they would be for after `changes`, those that they are for already first.
    // Classes are checked before a change, on numbers alone: a copy of a million limits would
    // double the memory.
    pub fn classes_after(&self, changes: &Changes) -> Vec<Class> {
        let mut after = self.classes.clone();
        for (target, amount) in changes.numbered().filter(|(target, _)| !target.class.is_any()) {
            if amount.is_some() != self.by_target.contains_key(&target) {
                count(&mut after, target.class, amount.is_some());
            }
        }
        let (old, new): (Vec<_>, _) =
            after.into_keys().partition(|class| self.classes.contains_key(class));
        // In this order, so that an error blames the class that comes, not one in force.
        [old, new].concat()
    }

    /// Whether one of them is for the cluster.
    pub fn in_cluster(&self) -> bool {
        self.amounts().any(|(amount, _)| amount.scope.is_cluster())
    }

    /// The slowest of those that a central store keeps, packets a second.
    pub fn slowest_strict(&self) -> Option<f64> {
        let strict = self.amounts().filter(|(amount, _)| amount.scope.on_error().is_some());
        strict.map(|(amount, _)| amount.rate.per_second()).min_by(f64::total_cmp)
    }

    /// Whether one of them bans.
    pub fn bans(&self) -> bool {
        self.amounts().any(|(amount, _)| amount.ban.is_some())
    }

    /// Sets a limit, in the place of another one for the same target.
    pub fn set(&mut self, limit: Limit) {
        let number = self.take(limit.amount);
        let former = self.by_target.insert(limit.target, number);
        if former.is_none() {
            count(&mut self.classes, limit.target.class, true);
        }
        self.give_back(former);
    }

    /// Removes the limit for a target, if there is one.
    pub fn unset(&mut self, target: &Target) {
        let former = self.by_target.remove(target);
        if former.is_some() {
            count(&mut self.classes, target.class, false);
        }
        self.give_back(former);
    }

    /// Makes all `changes`, of which there may be one for each target.
    pub fn apply(&mut self, changes: &Changes) {
        // A few changes are cheaper in the tree that is there than in one that is built of all.
        if changes.len() < self.len().max(1024) / 16 {
            self.one_by_one(changes);
        } else {
            self.at_once(changes);
        }
    }

    fn one_by_one(&mut self, changes: &Changes) {
        for change in changes.iter() {
            match change {
                Change::Set(limit) => self.set(limit),
                Change::Unset(target) => self.unset(&target),
            }
        }
    }

    /// Builds the tree anew: its nodes are full then, which takes half the memory.
    fn at_once(&mut self, changes: &Changes) {
        let mut numbers = vec![None; changes.amounts.len()];
        let mut new = Vec::with_capacity(changes.len());
        for (target, amount) in changes.numbered() {
            let Some(amount) = amount else {
                self.unset(&target);
                continue;
            };
            let number = *numbers[amount].get_or_insert_with(|| {
                let number = self.take(changes.amounts[amount]);
                // `take` counts a target. Those are counted below, one by one.
                self.amounts[number as usize].1 -= 1;
                number
            });
            self.amounts[number as usize].1 += 1;
            new.push((target, number));
        }
        // Those that are replaced are removed first, or their amounts would not be given back.
        if !self.is_empty() {
            for (target, _) in &new {
                self.unset(target);
            }
        }
        new.iter().for_each(|(target, _)| count(&mut self.classes, target.class, true));
        // `append` merges two sorted sequences into full nodes.
        self.by_target.append(&mut new.into_iter().collect());
    }

    /// The number of an amount, which one more target has now.
    fn take(&mut self, amount: Amount) -> u32 {
        if let Some(number) = self.numbers.get(&amount) {
            self.amounts[*number as usize].1 += 1;
            return *number;
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.amounts[number as usize] = (amount, 1);
                number
            }
            None => {
                self.amounts.push((amount, 1));
                // There is an amount for each target at the most, and memory ends before 2^32 of them.
                self.amounts.len() as u32 - 1
            }
        };
        self.numbers.insert(amount, number);
        number
    }

    fn give_back(&mut self, number: Option<u32>) {
        let Some(number) = number else { return };
        let (amount, count) = &mut self.amounts[number as usize];
        *count -= 1;
        if *count == 0 {
            // The place stays and is used again, as numbers of others must not change.
            self.numbers.remove(amount);
            self.free.push(number);
        }
    }
}

impl PartialEq for Limits {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Limits {}

impl FromIterator<Limit> for Limits {
    fn from_iter<I: IntoIterator<Item = Limit>>(limits: I) -> Self {
        let mut all = Self::default();
        limits.into_iter().for_each(|limit| all.set(limit));
        all
    }
}

/// A change of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Set this limit, in the place of another one for the same target.
    Set(Limit),
    /// Remove the limit for this target.
    Unset(Target),
}

impl Change {
    /// The target whose limit it sets or removes.
    pub const fn target(&self) -> Target {
        match self {
            Self::Set(limit) => limit.target,
            Self::Unset(target) => *target,
        }
    }
}

/// The number of an amount in [`Changes`] that stands for "none any more".
// A number, not an `Option`: that would add four bytes to each of a million entries.
const NONE: u32 = u32::MAX;

/// Changes of the limits, in any order; one for each target.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    entries: Vec<(Target, u32)>,
    amounts: Vec<Amount>,
    numbers: HashMap<Amount, u32>,
}

impl Changes {
    /// How many there are.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the setting of a limit.
    pub fn set(&mut self, limit: Limit) {
        let number = self.number(limit.amount);
        self.set_numbered(limit.target, number);
    }

    /// Adds the setting of a limit whose amount has `number`.
    pub(super) fn set_numbered(&mut self, target: Target, number: u32) {
        self.entries.push((target, number));
    }

    /// Adds the removal of a limit.
    pub fn unset(&mut self, target: Target) {
        self.entries.push((target, NONE));
    }

    /// The number that an amount has here.
    pub(super) fn number(&mut self, amount: Amount) -> u32 {
        let next = self.amounts.len() as u32;
        let number = *self.numbers.entry(amount).or_insert(next);
        if number == next {
            self.amounts.push(amount);
        }
        number
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Change> {
        self.numbered().map(|(target, amount)| match amount {
            Some(amount) => Change::Set(self.amounts[amount].of(target)),
            None => Change::Unset(target),
        })
    }

    /// All of them, as each target and which of [`Changes::amounts`] it gets.
    pub fn numbered(&self) -> impl Iterator<Item = (Target, Option<usize>)> + Clone {
        let entries = self.entries.iter();
        entries.map(|&(target, number)| (target, (number != NONE).then_some(number as usize)))
    }

    /// The change at a place in the list.
    pub fn at(&self, place: usize) -> (Target, Option<usize>) {
        let (target, number) = self.entries[place];
        (target, (number != NONE).then_some(number as usize))
    }

    /// The amounts that targets get. Not all need be in use.
    pub fn amounts(&self) -> &[Amount] {
        &self.amounts
    }

    /// Removes settings of limits that are in force already.
    // An import of the same list again changes nothing, and must neither be stored nor published a
    // second time.
    pub fn forget_present(&mut self, present: &Limits) {
        if present.is_empty() {
            return;
        }
        let amounts = &self.amounts;
        self.entries.retain(|(target, number)| {
            *number == NONE
                || present.get(target).map(|limit| limit.amount) != Some(amounts[*number as usize])
        });
    }

    /// Removes removals of limits that are not there.
    pub fn forget_absent(&mut self, present: &Limits) {
        self.entries.retain(|(target, number)| *number != NONE || present.get(target).is_some());
    }

    /// What these changes replace and remove.
    pub fn former(&self, present: &Limits) -> Limits {
        if present.is_empty() {
            return Limits::default();
        }
        self.entries.iter().filter_map(|(target, _)| present.get(target)).collect()
    }

    /// The changes that make these undone, where `former` is what they replaced and removed.
    // Kept until a change is confirmed, and used where the kernel refuses one that was stored
    // already.
    pub fn reversed(&self, former: &Limits) -> Self {
        let mut undo = Self::default();
        for (target, _) in &self.entries {
            match former.get(target) {
                Some(limit) => undo.set(limit),
                None => undo.unset(*target),
            }
        }
        undo
    }

    /// The first place in the list whose target has occurred before.
    pub fn repeated(&self) -> Option<usize> {
        // Lists that were written by a program are sorted, and a million entries need no second
        // order then.
        if self.entries.is_sorted_by(|one, next| one.0 < next.0) {
            return None;
        }
        let mut order: Vec<u32> = (0..self.entries.len() as u32).collect();
        // Places, not entries: the first repetition in the text is to be told, and entries are
        // larger.
        order.sort_by_key(|&place| (self.entries[place as usize].0, place));
        let target = |place: u32| self.entries[place as usize].0;
        let again = order.windows(2).filter(|pair| target(pair[0]) == target(pair[1]));
        again.map(|pair| pair[1] as usize).min()
    }
}

impl From<Change> for Changes {
    fn from(change: Change) -> Self {
        Self::from_iter([change])
    }
}

impl FromIterator<Change> for Changes {
    fn from_iter<I: IntoIterator<Item = Change>>(list: I) -> Self {
        let mut changes = Self::default();
        for change in list {
            match change {
                Change::Set(limit) => changes.set(limit),
                Change::Unset(target) => changes.unset(target),
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn limit(source: u8, rate: u8) -> Limit {
        let kinds = ["", " udp:53", " aggregate", " udp"];
        let net = if source % 4 == 2 { "/31" } else { "" };
        let kind = kinds[usize::from(source % 4)];
        let target = format!("192.0.2.{}{net}{kind}", source & !1).parse().unwrap();
        Limit::new(target, format!("{}pps", u16::from(rate) + 1).parse().unwrap(), None).unwrap()
    }

    fn check(limits: &Limits, expected: &BTreeMap<Target, Limit>) {
        assert!(limits.iter().eq(expected.values().copied()), "{limits:?}");
        assert_eq!(limits.len(), expected.len());
        assert!(expected.values().all(|limit| limits.get(&limit.target) == Some(*limit)));
        // Nothing is kept of amounts that no limit has.
        let mut counts = HashMap::new();
        expected.values().for_each(|limit| *counts.entry(limit.amount).or_insert(0) += 1);
        assert_eq!(limits.amounts().collect::<HashMap<_, _>>(), counts);
        assert_eq!(limits.numbers.len(), counts.len());
        assert_eq!(limits.amounts.len(), counts.len() + limits.free.len());
        let mut classes: Vec<_> = expected.keys().map(|target| target.class).collect();
        classes.retain(|class| !class.is_any());
        classes.sort_unstable();
        classes.dedup();
        assert!(limits.classes().eq(classes), "{limits:?}");
    }

    proptest! {
        #[test]
        fn limits_are_a_map(
            lists in prop::collection::vec(
                prop::collection::btree_map(0u8..40, prop::option::of(0u8..6), 0..30), 1..6),
        ) {
            let (mut limits, mut expected) = (Limits::default(), BTreeMap::new());
            let (mut single, mut undone) = (Limits::default(), Limits::default());
            for list in lists {
                let changes: Changes = list.iter().map(|(source, rate)| match rate {
                    Some(rate) => Change::Set(limit(*source, *rate)),
                    None => Change::Unset(limit(*source, 0).target),
                }).collect();
                for change in changes.iter() {
                    match change {
                        Change::Set(limit) => { expected.insert(limit.target, limit); }
                        Change::Unset(target) => { expected.remove(&target); }
                    }
                }
                let former = changes.former(&limits);
                let mut classes = limits.classes_after(&changes);
                undone.apply(&changes);
                undone.apply(&changes.reversed(&former));
                prop_assert_eq!(&undone, &limits);
                limits.at_once(&changes);
                single.one_by_one(&changes);
                undone.apply(&changes);
                check(&limits, &expected);
                classes.sort_unstable();
                prop_assert!(limits.classes().eq(classes));
                check(&single, &expected);
                check(&undone, &expected);
                let mut again = changes.clone();
                again.forget_present(&limits);
                prop_assert!(again.iter().all(|change| matches!(change, Change::Unset(_))));
            }
        }

        #[test]
        fn the_first_repetition_is_found(sources: Vec<u8>) {
            let changes: Changes = sources.iter().map(|s| Change::Set(limit(*s, 0))).collect();
            let expected = (0..sources.len()).find(|&at| sources[..at].contains(&sources[at]));
            prop_assert_eq!(changes.repeated(), expected);
        }
    }

    #[test]
    fn large_and_small_changes_come_to_the_same() {
        let all: Changes = (0..=255).map(|i| Change::Set(limit(i, i % 7))).collect();
        let mut limits = Limits::default();
        limits.apply(&all);
        // Few among many: one by one.
        let few: Changes =
            [Change::Set(limit(9, 200)), Change::Unset(limit(10, 0).target)].into_iter().collect();
        limits.apply(&few);
        let mut expected: BTreeMap<_, _> =
            (0..=255).map(|i| limit(i, i % 7)).map(|limit| (limit.target, limit)).collect();
        expected.insert(limit(9, 0).target, limit(9, 200));
        expected.remove(&limit(10, 0).target);
        check(&limits, &expected);
        // Many at once, in the place of others.
        let rest: Changes = (0..=255).map(|i| Change::Set(limit(i, i % 3))).collect();
        limits.apply(&rest);
        check(&limits, &(0..=255).map(|i| limit(i, i % 3)).map(|l| (l.target, l)).collect());
    }
}
