//! What a host was given by another one, as a grant or as a loan.

use crate::Moment;
use model::Share;

/// What it goes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldLease {
    pub(super) number: u32,
    pub(super) share: Share,
    /// Its end here.
    pub(super) until: Moment,
    /// Until then one of a lower number could still come and be in force: its number is remembered (I5).
    pub(super) memory: Moment,
}

impl HeldLease {
    /// Lasts as long as it was said again to.
    pub(super) fn prolong(&mut self, again: &Self) {
        self.until = self.until.max(again.until);
        self.memory = self.memory.max(again.memory);
    }

    /// Whether there is something of it now.
    pub(super) fn counts(&self, now: Moment) -> bool {
        !self.until.has_come(now) && !self.share.is_none()
    }
}
