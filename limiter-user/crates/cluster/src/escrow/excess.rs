//! What is done where home shares are more than the whole together, as no message can make them: a disk that went back
//! to an earlier copy, or one that was copied. It lowers what is used, and never what is told: others have to know
//! what there is.

use crate::Moment;
use model::Share;

use super::Settings;
use super::home::Home;
use super::host::Host;

/// So much more than the whole comes of shares on their way and of rounding: 1/256.
/// Scaling at each transfer on its way would lower shares where nothing is wrong.
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

/// By how much all home shares together are more than the whole, and so by how much less of each is used.
#[derive(Clone, Debug)]
pub(super) struct Excess {
    /// The most that home shares were together lately, the whole if not more.
    pub(super) homes: Share,
    /// Until when that holds.
    until: Moment,
}

impl Excess {
    pub(super) const fn new(start: Moment) -> Self {
        Self { homes: Share::WHOLE, until: start }
    }

    /// Adds up the home shares that are heard of; whether that changes what is used. Where they become less, what was
    /// given out of more has to end first.
    pub(super) fn add_up(&mut self, now: Moment, host: &Host, home: &Home) -> bool {
        let settings = &host.settings;
        let span = home.delegation(&settings.timing);
        let heard = host.peers.values().filter(|peer| peer.alive(now, span));
        // Without what is ceded, as others are told: so that all come to the same sum.
        let theirs = heard.filter_map(|peer| peer.offered).map(|it| settings.whole_of(it));
        let homes = theirs.sum::<Share>() + home.unceded();
        let more = homes > Share::WHOLE + NOISE && settings.bounded();
        let homes = if more { homes } else { Share::WHOLE };
        // Upwards at once, downwards only when what was given at the larger scale has ended.
        if homes < self.homes && now < self.until {
            return false;
        }
        self.until = now.after(home.longest(&settings.timing));
        std::mem::replace(&mut self.homes, homes) != homes
    }

    /// What is used of a share that would be used: less where there is more than the whole.
    pub(super) fn scaled(&self, share: Share) -> Share {
        if self.homes == Share::WHOLE {
            return share;
        }
        share.times(Share::WHOLE.units(), self.homes.units())
    }

    pub(super) fn bounds(&self, settings: &Settings) -> Bounds {
        let most = match settings.bounded() {
            true => settings.beside_floor(Share::WHOLE),
            false => Share::from_units(u64::MAX),
        };
        Bounds { homes: self.homes, most }
    }
}
