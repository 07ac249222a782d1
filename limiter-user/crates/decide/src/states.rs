//! The states of all keys: what is asked of them, in one step each.

use limiter_common::algorithm::Algorithm;
use limiter_common::atomic::AtomicU64;
use limiter_common::gcra::Ticks;

use crate::act::{Act, Standing};
use crate::key::KeyHash;
use crate::shared::Shared;
use crate::side::Side;
use crate::synced::Synced;
use crate::table::{Change, Table};
use model::meter::Meter;

/// The states of all keys, in memory `M`.
#[derive(Debug)]
pub struct States<M> {
    /// Those of one word.
    pub table: Table<M>,
    /// Those of more. Without it, such keys have no limit, and are counted as untracked.
    pub side: Option<Side<M>>,
    /// Those of limits of the cluster, where there is a daemon that divides them.
    pub shared: Option<Shared<M>>,
    /// Those of limits that the central store keeps, as far as it does not know of them yet.
    pub synced: Option<Synced<M>>,
}

impl<M: AsRef<[AtomicU64]>> States<M> {
    /// Does to a key what is asked, of `cost` units.
    pub fn ask(&self, key: KeyHash, meter: &Meter, act: Act, cost: u64, now: Ticks) -> Standing {
        let Some(algorithm) = meter.algorithm() else {
            return Standing { admitted: cost == 0, ..Standing::CLOSED };
        };
        let key = key.under(meter);
        let words = algorithm.words();
        if words > 1 {
            return self.ask_side(key, algorithm, act, cost, now, words);
        }
        let fresh = || {
            let mut state = [0];
            let admitted = act.apply(algorithm, &mut state, now, cost);
            Standing::new(algorithm, &state, now, cost, admitted)
        };
        // What has been used is forgotten by who asks under a lower limit, and not by who looks: it may not last.
        let looks = act == Act::Peek || (cost == 0 && act != Act::Reset);
        loop {
            let found = if act.leaves_nothing(cost) {
                let Some(found) = self.table.find(key) else { return fresh() };
                Some(found)
            } else {
                self.table.bucket(key, now)
            };
            let Some(bucket) = found else { return Standing { tracked: false, ..fresh() } };
            let (mut state, mut admitted) = ([0], false);
            let changed = bucket.change(|word| {
                state = [word];
                meter.adopt(&mut state, now);
                admitted = act.apply(algorithm, &mut state, now, cost);
                (state[0] != word && !looks).then_some(state[0])
            });
            if changed == Change::Gone {
                continue;
            }
            if act != Act::Peek {
                bucket.note(now, !admitted);
            }
            return Standing::new(algorithm, &state, now, cost, admitted);
        }
    }

    fn ask_side(
        &self,
        key: KeyHash,
        algorithm: &dyn Algorithm,
        act: Act,
        cost: u64,
        now: Ticks,
        words: usize,
    ) -> Standing {
        let apply = |state: &mut [u64]| {
            let admitted = act.apply(algorithm, state, now, cost);
            Standing::new(algorithm, state, now, cost, admitted)
        };
        match &self.side {
            None => Standing { admitted: true, tracked: false, ..apply(&mut vec![0; words]) },
            Some(side) if act == Act::Peek => apply(&mut side.read(key, words)),
            Some(side) => side.change(key, words, now, |state| {
                let standing = apply(state);
                (algorithm.renews(state), standing)
            }),
        }
    }
}
