//! What is asked of a key, and how it stands after that.

use limiter_common::algorithm::Algorithm;
use limiter_common::gcra::Ticks;
use serde::Deserialize;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// To use so many units, if they have room.
    Take,
    /// Whether they would have.
    Peek,
    /// To charge units that were used already.
    Owe,
    /// To give units back.
    Refund,
    /// To forget what was used.
    Reset,
}

/// What a limit does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Over it, the request is.
    Enforced,
    /// Over all such, the request is.
    Quota,
    /// Nothing.
    Shadow,
}

/// How a key stands after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether there was room for the units.
    pub admitted: bool,
    /// Units that have room now.
    pub remaining: u64,
    /// How long until as many units as were asked for have room, ticks; `None` if that is never.
    pub wait: Option<Ticks>,
    /// How long until all that was used counts no more, ticks.
    pub renews: Ticks,
    /// Whether the key has a state. It has none where all of its set are busy, and is admitted then.
    pub tracked: bool,
}

impl Standing {
    /// That of a key whose limit is nothing.
    pub(crate) const CLOSED: Self =
        Self { admitted: false, remaining: 0, wait: None, renews: 0, tracked: true };

    /// That of one without a limit.
    pub(crate) const OPEN: Self =
        Self { admitted: true, remaining: u32::MAX as u64, wait: Some(0), ..Self::CLOSED };

    pub(crate) fn new(
        algorithm: &dyn Algorithm,
        state: &[u64],
        now: Ticks,
        cost: u64,
        admitted: bool,
    ) -> Self {
        Self {
            admitted,
            remaining: algorithm.room(state, now),
            wait: algorithm.wait(state, now, cost),
            renews: algorithm.renews(state).saturating_sub(now),
            tracked: true,
        }
    }
}

impl Act {
    /// Does it to a state: whether there was room.
    pub(crate) fn apply(
        self,
        algorithm: &dyn Algorithm,
        state: &mut [u64],
        now: Ticks,
        cost: u64,
    ) -> bool {
        match self {
            Self::Take => return algorithm.take(state, now, cost),
            Self::Peek => return algorithm.wait(state, now, cost) == Some(0),
            Self::Owe => {
                let had_room = algorithm.take(state, now, cost);
                if !had_room {
                    algorithm.owe(state, now, cost);
                }
                return had_room;
            }
            Self::Refund => algorithm.refund(state, now, cost),
            Self::Reset => state.fill(0),
        }
        true
    }

    /// Whether a key without a state needs none for it.
    pub(crate) const fn leaves_nothing(self, cost: u64) -> bool {
        matches!(self, Self::Peek | Self::Refund | Self::Reset) || cost == 0
    }
}
