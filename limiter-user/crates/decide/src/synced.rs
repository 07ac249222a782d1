//! Limits that a central store keeps, of which each host admits a little by itself, and tells the store later.
//!
//! What is not told yet is the host's *budget* at the most. Telling it and hearing what all hosts have used is one step of the
//! store. So all hosts together admit at most burst + rate · T + budget · hosts in any interval T: think of what is not told
//! as told at the end, and go back from the last use. Before it, each other host has added a budget at most that the last
//! one did not know, or the same host has heard of all before (`docs/design/synced.md`).

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use limiter_common::atomic::AtomicU64;
use limiter_common::gcra::Ticks;
use model::meter::{Limit, Meter, ticks};

use crate::act::{Act, Standing};
use crate::central::Name;
use crate::key::{KeyHash, Secret, Space};
use crate::scope::Pace;
use crate::side::{SHORT, Side};

/// Keys at once that have something to tell. Of one more, the store is asked each time.
pub const MAX_ACTIVE: usize = 262_144;

/// After so many intervals without a use, the store is not asked any more how a key stands.
const IDLE_INTERVALS: u64 = 10;

/// Where the words of a state lie: when the bucket is full again, as the store has told, and units that it does not know.
const FULL: usize = 0;
const UNTOLD: usize = 1;
const WORDS: usize = 2;

/// A key that has something to tell, or is in use.
#[derive(Clone, Debug)]
struct Active {
    name: Name,
    limit: Limit,
    interval: Ticks,
    used: Ticks,
    due: Ticks,
}

#[derive(Debug, Default)]
struct Agenda {
    keys: HashMap<KeyHash, Active>,
    due: BTreeSet<(Ticks, KeyHash)>,
}

/// What is to be told of a key.
#[derive(Clone, Debug)]
pub struct Due {
    /// As all hosts know it.
    pub key: KeyHash,
    /// Its name in the store.
    pub name: Name,
    /// Its limit.
    pub limit: Limit,
    /// Units that were used here.
    pub units: u64,
}

/// What this host has used of all keys, in memory `M`.
#[derive(Debug)]
pub struct Synced<M> {
    secret: Secret,
    side: Arc<Side<M, SHORT>>,
    agenda: Mutex<Agenda>,
}

impl<M: AsRef<[AtomicU64]>> Synced<M> {
    /// States in `side`, where keys are hashed with a `secret`.
    pub fn new(side: Arc<Side<M, SHORT>>, secret: Secret) -> Self {
        Self { secret, side, agenda: Mutex::default() }
    }

    fn agenda(&self) -> MutexGuard<'_, Agenda> {
        // A key that is on the agenda only in part is told later: nothing else depends on it.
        self.agenda.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own(&self, key: KeyHash) -> KeyHash {
        key.within(Space::Synced, self.secret)
    }

    /// How many keys have something to tell, or are in use.
    pub fn count(&self) -> usize {
        self.agenda().keys.len()
    }

    /// Does to a key what is asked, of `cost` units; `None` if only the store can.
    pub fn ask(
        &self,
        (key, name): (KeyHash, &Name),
        pace: Pace,
        (limit, meter): (&Limit, &Meter),
        act: Act,
        cost: u64,
        now: Ticks,
    ) -> Option<Standing> {
        let (algorithm, budget) = (meter.algorithm()?, pace.units(limit));
        if !matches!(act, Act::Take | Act::Peek | Act::Refund) || budget == 0 {
            return None;
        }
        let step = |state: &mut [u64]| {
            let mut word = [state[FULL]];
            meter.adopt(&mut word, now);
            if act == Act::Refund {
                // What the store knows of, only the store gives back.
                state[UNTOLD] = state[UNTOLD].checked_sub(cost)?;
                algorithm.owe(&mut word, now, state[UNTOLD]);
                return Some((Standing::new(algorithm, &word, now, cost, true), state[UNTOLD]));
            }
            algorithm.owe(&mut word, now, state[UNTOLD]);
            let has_room = algorithm.room(&word, now) >= cost;
            let untold = state[UNTOLD].saturating_add(cost);
            // Others only add to what was heard. So a no is one for sure, and a yes within the budget.
            if has_room && untold > budget {
                return None;
            }
            if has_room && act == Act::Take {
                state[UNTOLD] = untold;
                algorithm.charge(&mut word, now, cost);
            }
            Some((Standing::new(algorithm, &word, now, cost, has_room), state[UNTOLD]))
        };
        if act == Act::Peek {
            return step(&mut self.side.read(self.own(key), WORDS)).map(|(standing, _)| standing);
        }
        let is_known = self.note(key, name, limit, pace, now);
        if !is_known {
            return None;
        }
        let done = self.side.change(self.own(key), WORDS, now, |state| {
            let done = step(state);
            let renews = done.map_or(0, |(standing, _)| standing.renews);
            (now.saturating_add(renews), done)
        });
        // Early, so that there is a budget again before this one is used up.
        let is_urgent = done.is_none_or(|(_, untold)| 2 * untold >= budget);
        if is_urgent {
            self.hurry(key, now);
        }
        done.map(|(standing, _)| standing)
    }

    /// Has a key on the agenda, if there is room.
    fn note(&self, key: KeyHash, name: &Name, limit: &Limit, pace: Pace, now: Ticks) -> bool {
        let mut agenda = self.agenda();
        let is_full = agenda.keys.len() >= MAX_ACTIVE;
        let Agenda { keys, due } = &mut *agenda;
        match keys.entry(key) {
            Entry::Occupied(mut found) => {
                found.get_mut().used = now;
                found.get_mut().limit = *limit;
            }
            Entry::Vacant(_) if is_full => return false,
            Entry::Vacant(place) => {
                let interval = ticks(pace.interval);
                // At once, for the first time: nothing was heard of it.
                let (name, limit) = (name.clone(), *limit);
                place.insert(Active { name, limit, interval, used: now, due: now });
                due.insert((now, key));
            }
        }
        true
    }

    fn hurry(&self, key: KeyHash, now: Ticks) {
        let mut agenda = self.agenda();
        let Agenda { keys, due } = &mut *agenda;
        if let Some(active) = keys.get_mut(&key).filter(|active| active.due > now) {
            due.remove(&(active.due, key));
            active.due = now;
            due.insert((now, key));
        }
    }

    /// What is to be told now, of so many keys at the most. It stays untold until [`Synced::heard`].
    pub fn due(&self, most: usize, now: Ticks) -> Vec<Due> {
        let mut agenda = self.agenda();
        let Agenda { keys, due } = &mut *agenda;
        let mut all = Vec::new();
        while all.len() < most
            && let Some(&(at, key)) = due.first().filter(|(at, _)| *at <= now)
        {
            due.remove(&(at, key));
            let Some(active) = keys.get_mut(&key) else { continue };
            let units = self.side.read(self.own(key), WORDS)[UNTOLD];
            let idle = active.interval.saturating_mul(IDLE_INTERVALS);
            if units == 0 && now >= active.used.saturating_add(idle) {
                keys.remove(&key);
                continue;
            }
            active.due = now.saturating_add(active.interval);
            due.insert((active.due, key));
            all.push(Due { key, name: active.name.clone(), limit: active.limit, units });
        }
        all
    }

    /// The store knows of so many units that were told, and has said for how long what all hosts have used counts.
    pub fn heard(&self, key: KeyHash, units: u64, renews: Ticks, now: Ticks) {
        self.side.change(self.own(key), WORDS, now, |state| {
            // A process that is killed between these two words has told some units that it counts still: no one gets more.
            state[FULL] = now.saturating_add(renews);
            state[UNTOLD] = state[UNTOLD].saturating_sub(units);
            (state[FULL], ())
        });
    }
}

#[cfg(test)]
mod tests;
