//! The classes that limits are for.

use ipnet::IpNet;

use super::{Class, ClassError, Shown};

/// Different classes in use at the most, beside [`Class::ANY`].
pub const MAX_CLASSES: usize = 64;

/// Of those, classes that destinations have limits of.
pub const MAX_OF_DESTINATIONS: usize = 16;

/// Classes in use that a packet's class may lie in at the most, itself included, beside
/// [`Class::ANY`].
// Each level may cost a packet a map lookup, and the verifier follows all of them.
pub const MAX_NESTED: usize = 4;

/// The classes in use, beside [`Class::ANY`], the most specific first: of any two that a packet can be
/// in, one goes first for a reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes(Vec<Class>);

impl Classes {
    /// These classes, of which the later ones are refused if they do not go with earlier ones.
    ///
    /// # Errors
    /// As [`Classes::add`].
    pub fn new(classes: impl IntoIterator<Item = Class>) -> Result<Self, ClassError> {
        let mut all = Self::default();
        classes.into_iter().try_for_each(|class| all.add(class))?;
        Ok(all)
    }

    /// Adds a class, if it is not there yet.
    ///
    /// # Errors
    /// [`ClassError::Overlap`], [`ClassError::TooMany`] or [`ClassError::TooDeep`]; then nothing has
    /// changed.
    pub fn add(&mut self, new: Class) -> Result<(), ClassError> {
        if new.is_any() {
            return Ok(());
        }
        let Err(place) = self.0.binary_search_by(|class| class.cmp_precedence(&new)) else {
            return Ok(());
        };
        // Asked of all, not of neighbours: classes that overlap may lie anywhere in the order.
        // Wherever packets go: the tables tell that apart from the rest.
        let overlaps = |old: &Class| new.to(None).overlaps(&old.to(None));
        let unordered = |old: &&Class| overlaps(old) && !new.is_ordered_with(old);
        if let Some(old) = self.0.iter().find(unordered) {
            return Err(ClassError::Overlap { new, old: *old });
        }
        let alike = |class: &&Class| class.is_of_destinations() && new.is_of_destinations();
        if self.0.len() == MAX_CLASSES || self.0.iter().filter(alike).count() == MAX_OF_DESTINATIONS
        {
            return Err(ClassError::TooMany { new });
        }
        self.0.insert(place, new);
        if self.kinds().len() > MAX_CLASSES {
            self.0.remove(place);
            return Err(ClassError::TooMany { new });
        }
        // One more class may have become part of too many: the new one, or one within it.
        let depth = |class: &Class| self.0.iter().filter(|wider| wider.contains(class)).count();
        let mut within = self.0.iter().filter(|class| new.contains(class));
        if let Some(class) = within.find(|class| depth(class) > MAX_NESTED).copied() {
            self.0.remove(place);
            return Err(ClassError::TooDeep { new, class });
        }
        Ok(())
    }

    /// All of them, the most specific first.
    pub fn iter(&self) -> impl Iterator<Item = Class> + Clone {
        self.0.iter().copied()
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The class of a packet; see [`Class::matches`].
    pub fn find(&self, packet: &Shown) -> Class {
        let mut of_sources = self.iter().filter(|class| !class.is_of_destinations());
        of_sources.find(|class| class.matches(packet)).unwrap_or(Class::ANY)
    }

    /// The class of a packet whose destination has limits of it.
    pub fn find_of_destination(&self, packet: &Shown) -> Option<Class> {
        self.iter().find(|class| class.is_of_destinations() && class.matches(packet))
    }

    /// What packets are told apart by beside where they go, the most specific first: the same classes wherever packets
    /// go, and what is in two of them that are for different destinations. So each class contains all packets of a
    /// kind, or none, but for classes that go before it whatever the destination.
    #[must_use]
    pub fn kinds(&self) -> Self {
        let mut all: Vec<Class> = self.iter().map(|class| class.to(None)).collect();
        all.retain(|class| !class.is_any());
        all.sort_by(Class::cmp_precedence);
        all.dedup();
        let mut kinds = Self(all);
        let owned = kinds.0.clone();
        let mut next = 0;
        // What is in three of them is in two, one of which was found before.
        while next < kinds.len() && kinds.len() <= MAX_CLASSES {
            let kind = kinds.0[next];
            next += 1;
            let differs = |class: &Class| {
                let mut owners = self.0.iter().filter(|owner| owner.to(None) == kind);
                !owned.contains(&kind) || owners.any(|owner| owner.destination != class.destination)
            };
            let both = self.0.iter().filter(|class| class.overlaps(&kind) && differs(class));
            let both: Vec<_> = both.filter_map(|class| class.intersection(&kind)).collect();
            for class in both {
                if let Err(place) = kinds.0.binary_search_by(|known| known.cmp_precedence(&class)) {
                    kinds.0.insert(place, class);
                    // It may have come before those that were gone through.
                    next = 0;
                }
            }
        }
        kinds
    }

    /// Prefixes that packets of some of them go to, each once.
    pub fn destinations(&self) -> Vec<IpNet> {
        let mut all: Vec<IpNet> = self.iter().filter_map(|class| class.prefix()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The classes whose limits are asked for a packet of `class`, one after the other: itself, then
    /// the wider ones that contain it, the most specific first, at last [`Class::ANY`] if sources have limits of it.
    pub fn chain(&self, class: Class) -> impl Iterator<Item = Class> + Clone {
        let wider = self.iter().filter(move |wider| wider.contains(&class));
        wider.chain((!class.is_of_destinations()).then_some(Class::ANY))
    }
}
