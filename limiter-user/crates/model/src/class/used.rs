//! The classes that limits are for.

use super::{Class, ClassError, Shown};

/// Different classes in use at the most, beside [`Class::ANY`].
pub const MAX_CLASSES: usize = 64;

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
        let unordered = |old: &&Class| new.overlaps(old) && !new.is_ordered_with(old);
        if let Some(old) = self.0.iter().find(unordered) {
            return Err(ClassError::Overlap { new, old: *old });
        }
        if self.0.len() == MAX_CLASSES {
            return Err(ClassError::TooMany { new });
        }
        self.0.insert(place, new);
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
        self.iter().find(|class| class.matches(packet)).unwrap_or(Class::ANY)
    }

    /// The classes whose limits are asked for a packet of `class`, one after the other: itself, then
    /// the wider ones that contain it, the most specific first, at last [`Class::ANY`].
    pub fn chain(&self, class: Class) -> impl Iterator<Item = Class> + Clone {
        let wider = self.iter().filter(move |wider| wider.contains(&class));
        wider.chain([Class::ANY])
    }
}
