//! What is done where home shares are more than the whole together, as no message can make them: a disk that went back
//! to an earlier copy, or one that was copied. It lowers what is used, and never what is told: others have to know
//! what there is.

use crate::Moment;
use model::Share;

use super::Escrow;

/// So much more than the whole comes of shares on their way and of rounding: 1/256.
pub(super) const NOISE: Share = Share::from_units(1 << 24);

/// What does not add up, as one host sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Doubts {
    /// The home shares of all that are heard, where they are more than the whole: each host uses so much less.
    pub homes: Option<Share>,
    /// What lost hosts had and those that are there have now: it is not used in their place. Where a majority decides.
    pub lost: Share,
    /// What this host has given up since its start: others had taken it, and what is kept here did not know that.
    pub given_up: Share,
}

/// What an owner may divide of what is delegated to it.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    homes: Share,
    /// What there is beside all floors.
    pub(super) most: Share,
}

impl Bounds {
    pub(super) fn of(self, delegated: Share) -> Share {
        delegated.times(Share::WHOLE.units(), self.homes.units()).min(self.most)
    }
}

impl Escrow {
    /// What does not add up.
    pub fn doubts(&self) -> Doubts {
        let more = Some(self.homes_heard.0).filter(|homes| *homes > Share::WHOLE);
        Doubts { homes: more, ..self.doubts }
    }

    /// Adds up the home shares that are heard of. Where they become less, what was given out of more has to end first.
    pub(super) fn add_up(&mut self, now: Moment) {
        let span = self.delegation();
        let heard = self.peers.values().filter(|peer| peer.alive(now, span));
        // Without what is ceded, as others are told: so that all come to the same sum.
        let theirs = heard.filter_map(|peer| peer.offered).map(|offered| self.whole_of(offered));
        let homes = theirs.sum::<Share>() + self.kept.home.without(self.ceded());
        let more = homes > Share::WHOLE + NOISE && self.bounded();
        let homes = if more { homes } else { Share::WHOLE };
        // Upwards at once, downwards only when what was given at the larger scale has ended.
        if homes >= self.homes_heard.0 || now >= self.homes_heard.1 {
            if homes != self.homes_heard.0 {
                self.held.touched.extend(self.held.keys.keys().copied());
            }
            self.homes_heard = (homes, now.after(self.longest()));
        }
    }

    /// What is used of a right that would be used: less where there is more than the whole.
    pub(super) fn scaled(&self, share: Share) -> Share {
        let homes = self.homes_heard.0;
        if homes == Share::WHOLE {
            return share;
        }
        share.times(Share::WHOLE.units(), homes.units())
    }

    pub(super) fn bounds(&self) -> Bounds {
        let most = match self.bounded() {
            true => self.beside_floor(Share::WHOLE),
            false => Share::from_units(u64::MAX),
        };
        Bounds { homes: self.homes_heard.0, most }
    }

    /// Another host has taken this host's transfer of that number. If what is kept here does not know it, it is an earlier
    /// copy: what was given since, which is how far the numbers are apart, is not this host's any more.
    pub(super) fn give_up_what_was_given(&mut self, number: u64) {
        let given = Share::from_units(number.saturating_sub(self.kept.last_transfer));
        if given.is_none() || !self.bounded() {
            return;
        }
        self.kept.last_transfer = number;
        self.doubts.given_up += self.kept.home.min(given);
        self.kept.home = self.kept.home.without(given);
        self.keep = true;
    }
}
