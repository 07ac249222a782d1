//! Keys of `limiter-serve` under limits of the cluster.
//!
//! They take part as sources of the kernel do: what is asked of them is told to the escrow, and what that decides is told
//! with an end. But `limiter-serve` hears of it only when it asks. So what it was told counts until that ends, or until
//! its next request shows that it has taken something else. Where less is decided meanwhile, messages wait.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::key::Keys;
use super::watched::{Bounds, Watch};
use api::{KeyAsked, SharesAsked, SharesTold};
use cluster::escrow::{Escrow, Granted};
use cluster::{KeyId, Moment};
use model::source::Counts;
use model::{Limit, Rate, Share, Target, Unit};

/// For how long a share is told at the most: messages may wait so long when a process has died.
// As long as grants last. On a busy machine the process asks later than it means to.
const TOLD: Duration = Duration::from_millis(500);

/// A key that is not named for so long is forgotten. Longer than a share is told for.
const FORGET: Duration = Duration::from_secs(1);

/// Keys at once.
// As many as `limiter-serve` asks for.
const MAX_KEYS: usize = 4_096;

/// A share, and until when.
type Word = (Share, Moment);

/// A key.
struct Served {
    watch: Watch,
    /// When its counts began.
    since: Moment,
    admitted: u64,
    denied: u64,
    /// What the escrow has decided last.
    word: Word,
    /// What it was told, of which the process has taken the first.
    taken: Word,
    told: Word,
    named: Moment,
}

impl Served {
    /// The most that may be used of it from now on.
    fn may_use(&self, now: Moment) -> Word {
        let lasting = [self.taken, self.told].into_iter().filter(|(_, until)| *until > now);
        lasting.fold((Share::NONE, now), |(share, until), (more, later)| {
            (share.max(more), until.max(later))
        })
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct ServedKeys {
    keys: HashMap<KeyId, Served>,
    run: u64,
    /// Of which less was decided than they may use.
    lowered: BTreeSet<KeyId>,
    /// Decisions without a share.
    alone: u64,
}

/// The limit of a key as one of packets, if it is none that nobody can divide.
fn limit_of(asked: &KeyAsked) -> Option<Limit> {
    let rate = Rate::from_parts(asked.requests, asked.window_ns, Unit::Packets);
    let limit = |burst| Limit::new(Target::DEFAULT, rate, burst).ok();
    if asked.requests == 0 || asked.window_ns == 0 {
        return None;
    }
    // It only tells how long a bucket takes to fill: a longer one does so for long.
    limit(Some(asked.burst)).or_else(|| limit(None))
}

impl ServedKeys {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Decisions without a share that could be had, as `limiter-serve` counts them.
    pub(super) const fn alone(&self) -> u64 {
        self.alone
    }

    /// `limiter-serve` tells what was asked of its keys, and asks what it may use of them.
    pub(super) fn ask(
        &mut self,
        now: Moment,
        names: &Keys,
        escrow: &mut Escrow,
        asked: &SharesAsked,
    ) -> SharesTold {
        let same_run = self.run == asked.run;
        (self.run, self.alone) = (asked.run, asked.alone);
        // One that is not named has what it was told, until that ends.
        for key in asked.keys.iter().map(|asked| names.named(asked.key)) {
            let Some(served) = self.keys.get_mut(&key) else { continue };
            // Another run may have got what this one was told, and not have taken it.
            served.taken = if same_run { served.told } else { served.may_use(now) };
            served.told = (Share::NONE, now);
        }
        let bounds = Bounds { floor: escrow.floor(), slowest: f64::MAX };
        let told = |asked: &KeyAsked| self.tell(now, names.named(asked.key), escrow, asked, bounds);
        let shares = asked.keys.iter().map(told).collect();
        SharesTold { shares, fallback: None }
    }

    fn tell(
        &mut self,
        now: Moment,
        key: KeyId,
        escrow: &mut Escrow,
        asked: &KeyAsked,
        bounds: Bounds,
    ) -> (Share, u64) {
        let nothing = (Share::NONE, 0);
        let Some(limit) = limit_of(asked) else { return nothing };
        let counts = |since: Moment| Counts {
            passed: asked.admitted,
            dropped: asked.denied,
            bytes: 0,
            since_ns: since.0,
        };
        let full = self.keys.len() >= MAX_KEYS;
        let (served, wanted) = match self.keys.entry(key) {
            Entry::Occupied(known)
                if asked.admitted >= known.get().admitted && asked.denied >= known.get().denied =>
            {
                let served = known.into_mut();
                let limited = asked.denied > served.denied;
                let wanted = served.watch.look(now, &limit, counts(served.since), limited, bounds);
                (served, wanted)
            }
            Entry::Vacant(_) if full => return nothing,
            entry => {
                let since = Moment(now.0.saturating_sub(asked.age_ns));
                let limited = asked.denied > 0;
                let (watch, part) = Watch::begin(now, &limit, counts(since), limited, bounds);
                let wanted = watch.wanted(part, &limit, bounds);
                let none = (Share::NONE, now);
                // What is known of one whose counts begin anew is what it may use.
                let (word, taken) = match &entry {
                    Entry::Occupied(known) => (known.get().word, known.get().taken),
                    Entry::Vacant(_) => (none, none),
                };
                let (admitted, denied) = (0, 0);
                let served =
                    Served { watch, since, admitted, denied, word, taken, told: none, named: now };
                (entry.insert_entry(served).into_mut(), Some(wanted))
            }
        };
        (served.admitted, served.denied, served.named) = (asked.admitted, asked.denied, now);
        if let Some(wanted) = wanted {
            escrow.demand(now, key, wanted, served.watch.limited);
        }
        let (share, until) = served.word;
        let until = until.min(now.after(TOLD));
        if until <= now {
            return nothing;
        }
        served.told = (share, until);
        (share, until.since(now).as_nanos() as u64)
    }

    /// Forgets keys that are named no more.
    pub(super) fn forget(&mut self, now: Moment, escrow: &mut Escrow) {
        self.keys.retain(|key, served| {
            let stays = now.since(served.named) < FORGET;
            if !stays {
                escrow.forget(*key);
            }
            stays
        });
    }

    /// Takes what the escrow has decided.
    pub(super) fn grant(&mut self, now: Moment, grants: &[Granted]) {
        for &Granted { key, share, until } in grants {
            let Some(served) = self.keys.get_mut(&key) else { continue };
            served.word = (share, until);
            let (used, used_until) = served.may_use(now);
            if used > share || used_until > until {
                self.lowered.insert(key);
            }
        }
    }

    /// Whether more may be used of a key than was decided, so that nothing may be said to others that rests on it.
    pub(super) fn withholds(&mut self, now: Moment) -> bool {
        let Self { keys, lowered, .. } = self;
        lowered.retain(|key| {
            keys.get(key).is_some_and(|served| {
                let ((share, until), (used, used_until)) = (served.word, served.may_use(now));
                used > share || used_until > until.max(now)
            })
        });
        !lowered.is_empty()
    }
}

#[cfg(test)]
mod tests;
