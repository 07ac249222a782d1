//! In which order limits come and go.
//!
//! A packet is judged by the first limit that it finds, beginning with the narrowest class and in that with
//! the longest prefix. So what comes is written beginning with what is found first: whatever it hides may
//! then change unseen. What goes is removed beginning with what is found last, when all that it has hidden
//! is what it shall be.

use std::cmp::Reverse;
use std::collections::HashMap;

use limiter_common::abi::Config;
use limiter_common::class::ANY;

use super::super::Error;
use super::super::sources::{MapKey as _, Refused, SourceMaps, Table as _};
use super::classes::{ClassTables, ClassUse};
use super::place::ClassPlace;
use super::shared::SharedMaps;
use super::{Key, Step};

/// How soon a packet finds a key, the least first: by its class, and by its prefix.
type Rank = (usize, Reverse<Option<u8>>);

/// The maps that limits are found in.
pub(super) struct Maps<'a> {
    each: &'a mut SourceMaps<ClassPlace, u32>,
    shared: &'a mut SharedMaps,
    /// Where each class comes among those in use.
    places: HashMap<u8, usize>,
}

impl<'a> Maps<'a> {
    /// The maps, with the classes in use before a change and after it.
    pub(super) fn new(
        each: &'a mut SourceMaps<ClassPlace, u32>,
        shared: &'a mut SharedMaps,
        classes: &ClassUse,
    ) -> Self {
        Self { each, shared, places: classes.by_precedence().zip(0..).collect() }
    }

    /// Puts classes in force: see [`ClassTables::publish`].
    ///
    /// # Errors
    /// As that.
    pub(super) fn publish(
        &mut self,
        tables: &ClassTables,
        classes: &ClassUse,
        config: &Config,
    ) -> Result<(), Error> {
        let each = &mut self.each;
        tables.publish(classes, config, |changes| {
            each.write(changes).map_err(|(_, refused)| failed(refused))
        })
    }

    /// Those that are not plain, in the order of their rank, and how many of them come before those.
    fn ranked(&self, steps: impl Iterator<Item = Step>) -> (Vec<Step>, usize) {
        let lengths = self.each.lengths();
        let mut ranked: Vec<_> = steps.filter(|step| !is_plain(&step.key, lengths)).collect();
        ranked.sort_by_key(|step| rank(&step.key, &self.places));
        // Plain ones belong between the two parts: limits of classes go before them, and they hide
        // those of prefixes.
        let classed = ranked.partition_point(|step| u32::from(step.key.place.class) != ANY);
        (ranked, classed)
    }

    /// Lets limits come.
    ///
    /// # Errors
    /// If the kernel refuses one.
    pub(super) fn add(&mut self, steps: impl Iterator<Item = Step> + Clone) -> Result<(), Error> {
        let (ranked, classed) = self.ranked(steps.clone());
        let (classed, prefixes) = ranked.split_at(classed);
        self.one_by_one(classed.iter())?;
        self.plain(steps)?;
        self.one_by_one(prefixes.iter())
    }

    /// Lets limits go.
    ///
    /// # Errors
    /// As [`Maps::add`].
    pub(super) fn remove(
        &mut self,
        steps: impl Iterator<Item = Step> + Clone,
    ) -> Result<(), Error> {
        let (ranked, classed) = self.ranked(steps.clone());
        let (classed, prefixes) = ranked.split_at(classed);
        self.one_by_one(prefixes.iter().rev())?;
        self.plain(steps)?;
        self.one_by_one(classed.iter().rev())
    }

    fn plain(&mut self, steps: impl Iterator<Item = Step>) -> Result<(), Error> {
        let lengths = self.each.lengths();
        let plain = steps.filter(|step| is_plain(&step.key, lengths));
        let written = self.each.write(plain.map(|step| (step.key.place, step.after)));
        written.map_err(|(_, refused)| failed(refused))
    }

    /// Makes steps so that each is in force before the next one.
    fn one_by_one<'s>(&mut self, steps: impl Iterator<Item = &'s Step>) -> Result<(), Error> {
        for Step { key, after, .. } in steps {
            let written = if key.aggregate {
                self.shared.write(key.place, *after)
            } else {
                self.each.write([(key.place, *after)]).map_err(|(_, refused)| refused)
            };
            written.map_err(failed)?;
        }
        Ok(())
    }

    /// Makes steps one by one, as many as can be made; the first error is told.
    pub(super) fn undo(&mut self, steps: impl Iterator<Item = Step>) -> Result<(), Error> {
        let mut first = Ok(());
        for step in steps {
            // Not many at once: the kernel has just refused one, and what can be changed back has
            // to be, whatever else cannot.
            let undone = self.one_by_one([&step].into_iter());
            if first.is_ok() {
                first = undone;
            }
        }
        first
    }
}

fn rank(key: &Key, places: &HashMap<u8, usize>) -> Rank {
    // Limits of no class come last: a packet asks for those when its classes have none.
    let class = places.get(&key.place.class).copied().unwrap_or(usize::MAX);
    (class, Reverse(key.place.net().map(|net| net.prefix_len())))
}

/// Whether a key is that of a single source (an address has so many bits, IPv4 and IPv6), whatever it sends.
/// These are many, and never hide each other; they are not kept in memory to be put in order.
fn is_plain(key: &Key, lengths: (u8, u8)) -> bool {
    let exact = key.place.net().is_some_and(|net| {
        net.prefix_len() == if net.addr().is_ipv4() { lengths.0 } else { lengths.1 }
    });
    exact && !key.aggregate && u32::from(key.place.class) == ANY
}

fn failed((place, error): Refused<ClassPlace>) -> Error {
    Error::map(format!("change the limit of {place}"))(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Selector;

    fn key(net: Option<&str>, class: u8) -> Key {
        let whom = net.map_or(Selector::Default, |net| Selector::Prefix(net.parse().unwrap()));
        Key { place: ClassPlace { whom, class }, aggregate: false }
    }

    #[test]
    fn what_a_packet_finds_first_comes_first() {
        // The narrower class has the higher number.
        let places = HashMap::from([(2, 0), (1, 1)]);
        let expected = [
            key(Some("10.0.0.0/16"), 2),
            key(None, 2),
            key(Some("10.0.0.1/32"), 1),
            key(Some("10.0.0.0/8"), 1),
            key(None, 1),
            key(Some("10.0.0.0/24"), 0),
            key(Some("10.0.0.0/8"), 0),
            key(Some("0.0.0.0/0"), 0),
        ];
        let mut keys = expected;
        keys.reverse();
        keys.sort_by_key(|key| rank(key, &places));
        assert_eq!(keys, expected);
    }

    #[test]
    fn only_single_sources_of_no_class_are_plain() {
        let plain = |net, class| is_plain(&key(Some(net), class), (32, 64));
        assert!(plain("10.0.0.1/32", 0) && plain("2001:db8::/64", 0));
        assert!(!plain("10.0.0.0/31", 0) && !plain("2001:db8::/63", 0) && !plain("10.0.0.1/32", 1));
        assert!(!is_plain(&Key { aggregate: true, ..key(Some("2001:db8::/64"), 0) }, (32, 64)));
        assert!(!is_plain(&key(None, 0), (32, 64)));
    }
}
