//! Limits that the hosts of a cluster share: this host's part of them.
//!
//! The rate moves between hosts: a bucket earns at the *share* that it has for a time, and at the host's *floor* else. The
//! burst stays: it is divided by *home shares*, of which the floor is a twentieth. So a change of shares changes no bucket.
//! The shares of a key are the whole at the most, and so are home shares. In any interval T all hosts together admit at
//! most max(burst, one unit a host) + rate · T (promise P6).
//!
//! What a host has of home shares changes with the cluster. More of them bring room and no units. A bucket that nobody has
//! used is as full as one that had been there all the time, see [`Floors`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64 as Counter, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use limiter_common::algorithm::{Algorithm as _, TokenBucket};
use limiter_common::atomic::AtomicU64;
use limiter_common::gcra::Ticks;
use limiter_common::share::FLOORS;
use model::meter::{Limit, ticks};
use model::{Share, Stance, share};

use crate::act::{Act, Standing};
use crate::key::{KeyHash, Secret, Space};
use crate::scope::OnError;
use crate::side::{SHORT, Side};

/// What a key is hashed with where all hosts are to come to the same. That is no secret: whoever finds two keys of one
/// hash makes them be wanted together, and each has a bucket of its own all the same.
pub const PORTABLE: Secret = Secret([0, 0]);

/// Keys at once that a share is asked for.
pub const MAX_WANTED: usize = 4_096;

/// After such a silence of the daemon a share cannot be had.
const SILENCE: Duration = Duration::from_secs(1);

/// Where the words of a state lie. A process may be killed after any of them: then time is lost, and no use of it.
const LAST: usize = 0;
const SHARE: usize = 1;
const END: usize = 2;
const DEBT: usize = 3;
const WORDS: usize = 4;

/// What this host has without end, from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// From when on.
    pub at: Ticks,
    /// The part of each rate.
    pub share: Share,
    /// How many hosts have home shares.
    pub hosts: u32,
}

/// All floors since buckets of this host began, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Floors {
    /// They are.
    pub all: Vec<Floor>,
    /// Whether buckets began full: nobody can have used them before.
    pub full: bool,
    /// Until when they are known to hold.
    pub until: Ticks,
}

impl Floor {
    /// What a bucket holds, units.
    fn capacity(&self, limit: &Limit) -> u64 {
        if self.share.is_none() {
            return 0;
        }
        // One unit of each host does not move.
        let divided = limit.burst.unwrap_or(limit.requests).saturating_sub(self.hosts.into());
        // A floor is rounded down. So it is less than a unit too much of all hosts together, up to bursts of ten million.
        let home = Share::from_units(self.share.units() * FLOORS + FLOORS - 1).min(Share::WHOLE);
        home.times(divided, 1).units() / Share::WHOLE.units() + 1
    }
}

/// The bucket of a key here, at a moment: what it owes, in ticks at the whole rate.
struct Bucket<'a> {
    state: &'a mut [u64],
    algorithm: TokenBucket,
    floor: Floor,
}

impl Floors {
    /// A bucket of a `limit` whose state was left some time ago: `None` if there is nothing of the limit here.
    fn bucket<'a>(&self, state: &'a mut [u64], limit: &Limit, now: Ticks) -> Option<Bucket<'a>> {
        // Before that somebody else may have this host's part.
        let begin = self.all.first().filter(|begin| begin.at <= now)?;
        let interval = ticks(limit.window).div_ceil(limit.requests.max(1));
        let is_new = state[LAST] < begin.at;
        if is_new {
            // Nobody has used it. Or others had this host's part meanwhile.
            state.fill(0);
            state[LAST] = begin.at;
            let debt = begin.capacity(limit).saturating_mul(interval);
            state[DEBT] = if self.full { 0 } else { debt };
        }
        let known = self.all.partition_point(|floor| floor.at <= state[LAST]);
        let (mut floor, now) = (self.all[known - 1], now.max(state[LAST]));
        for next in self.all[known..].iter().filter(|next| next.at <= now) {
            earn(state, floor, next.at);
            let [had, has] =
                [floor, *next].map(|floor| floor.capacity(limit).saturating_mul(interval));
            // A larger room comes empty. A smaller one takes no units that it has room for.
            state[DEBT] =
                (state[DEBT] + has.saturating_sub(had)).saturating_sub(had.saturating_sub(has));
            floor = *next;
        }
        earn(state, floor, now);
        let capacity = floor.capacity(limit);
        if is_new {
            // The unit of this host is there for who comes first.
            state[DEBT] = state[DEBT].min(capacity.saturating_sub(1).saturating_mul(interval));
        }
        let algorithm = TokenBucket::new(limit.requests, ticks(limit.window), capacity).ok()?;
        state[DEBT] = algorithm.clamped(state[DEBT], 0);
        Some(Bucket { state, algorithm, floor })
    }
}

/// Lets time pass until `to`: a bucket earns at its share, or at the floor.
fn earn(state: &mut [u64], floor: Floor, to: Ticks) {
    let granted = state[END].min(to).saturating_sub(state[LAST]);
    let passed = to.saturating_sub(state[LAST]);
    let at = |share: Share, time: Ticks| {
        (u128::from(time) * u128::from(share.units()) / u128::from(Share::WHOLE.units())) as Ticks
    };
    let share = Share::from_units(state[SHARE]).max(floor.share);
    let earned = at(share, granted) + at(floor.share, passed - granted);
    state[LAST] = state[LAST].max(to);
    state[DEBT] = state[DEBT].saturating_sub(earned);
}

impl Bucket<'_> {
    fn ask(&mut self, act: Act, cost: u64, now: Ticks) -> Standing {
        let Self { state, algorithm, floor } = self;
        // On a clock that stands still: a debt is the time when it is paid.
        let debt = &mut state[DEBT..=DEBT];
        let admitted = act.apply(algorithm, debt, 0, cost);
        let mut standing = Standing::new(algorithm, debt, 0, cost, admitted);
        let granted = if state[END] > now { Share::from_units(state[SHARE]) } else { Share::NONE };
        let share = granted.max(floor.share);
        standing.wait = standing.wait.map(|wait| real(wait, share));
        standing.renews = real(standing.renews, share);
        standing
    }

    /// When it is full again whatever becomes of its share.
    fn renews(&self, now: Ticks) -> Ticks {
        now.saturating_add(real(self.state[DEBT], self.floor.share))
    }
}

/// How long a debt lasts at a share.
fn real(debt: Ticks, share: Share) -> Ticks {
    let time = u128::from(debt) * u128::from(Share::WHOLE.units());
    (time / u128::from(share.units().max(1))).min(Ticks::MAX.into()) as Ticks
}

/// A key that a share is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// As all hosts know it.
    pub key: KeyHash,
    /// Its limit.
    pub limit: Limit,
    /// Units that were admitted here since it is wanted.
    pub admitted: u64,
    /// Those that were denied.
    pub denied: u64,
    /// Since when it is.
    pub since: Ticks,
    /// When it was asked about last.
    used: Ticks,
}

/// For how long a key is wanted after its last request.
fn life(limit: &Limit) -> Ticks {
    let part = limit.burst.unwrap_or(limit.requests) as f64 / limit.requests.max(1) as f64;
    ticks(share::life(part * limit.window.as_secs_f64()))
}

/// The buckets of all keys under limits of the cluster, in memory `M`.
#[derive(Debug)]
pub struct Shared<M> {
    secret: Secret,
    side: Arc<Side<M, SHORT>>,
    floors: RwLock<Floors>,
    wanted: Mutex<HashMap<KeyHash, Wanted>>,
    /// When the daemon has answered last.
    heard: Counter,
    /// Until when limits with `on_error: cluster` go by the store, and until when by shares.
    store: Counter,
    escrow: Counter,
    /// Requests about keys that need a share, which is not asked for as there are too many.
    left_out: Counter,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How the key stands.
    pub standing: Standing,
    /// Whether a share of it could not be had.
    pub alone: bool,
}

impl<M: AsRef<[AtomicU64]>> Shared<M> {
    /// Buckets in `side`, where keys are hashed with a `secret`.
    pub fn new(side: Arc<Side<M, SHORT>>, secret: Secret) -> Self {
        let [heard, store, escrow, left_out] = [0; 4].map(Counter::new);
        let (floors, wanted) = (RwLock::default(), Mutex::default());
        Self { secret, side, floors, wanted, heard, store, escrow, left_out }
    }

    /// The buckets.
    pub fn side(&self) -> &Side<M, SHORT> {
        &self.side
    }

    /// Takes note of what this host has without end.
    pub fn set_floors(&self, floors: Floors) {
        *self.floors.write().unwrap_or_else(PoisonError::into_inner) = floors;
    }

    /// Who answers about limits with `on_error: cluster`.
    pub fn stance(&self, now: Ticks) -> Stance {
        match now {
            now if now < self.store.load(Ordering::Relaxed) => Stance::Store,
            now if now < self.escrow.load(Ordering::Relaxed) => Stance::Escrow,
            _ => Stance::Between,
        }
    }

    /// Who answers until then: what is not renewed ends by itself.
    pub fn set_stance(&self, stance: Stance, until: Ticks) {
        let of = |one| if stance == one { until } else { 0 };
        self.store.store(of(Stance::Store), Ordering::Relaxed);
        self.escrow.store(of(Stance::Escrow), Ordering::Relaxed);
    }

    /// Whether a share cannot be had at present.
    fn is_alone(&self, now: Ticks) -> bool {
        now >= self.heard.load(Ordering::Relaxed).saturating_add(ticks(SILENCE))
    }

    fn wanted(&self) -> MutexGuard<'_, HashMap<KeyHash, Wanted>> {
        // Each change is one call: whoever panicked left them whole.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many keys a share is asked for.
    pub fn count(&self) -> usize {
        self.wanted().len()
    }

    /// Requests about keys that need a share, which was not asked for as there are too many.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Does to a key what is asked, of `cost` units of a `limit`. `key` is by [`PORTABLE`]. Without an `on_error` no share is
    /// asked for: this host's floor is all that it has.
    pub fn ask(
        &self,
        key: KeyHash,
        limit: &Limit,
        on_error: Option<OnError>,
        act: Act,
        cost: u64,
        now: Ticks,
    ) -> Outcome {
        let floors = self.floors.read().unwrap_or_else(PoisonError::into_inner);
        let alone = self.is_alone(now);
        match on_error {
            Some(OnError::Closed) if alone => return Outcome { standing: Standing::CLOSED, alone },
            Some(OnError::Open) if alone => return Outcome { standing: Standing::OPEN, alone },
            _ => {}
        }
        if now >= floors.until {
            return Outcome { standing: Standing::CLOSED, alone: true };
        }
        let own = self.own(key);
        let ask = |state: &mut [u64]| {
            let Some(mut bucket) = floors.bucket(state, limit, now) else {
                return (now, Standing::CLOSED);
            };
            let standing = bucket.ask(act, cost, now);
            // One that has most of its burst needs no share yet.
            let full = 2 * standing.remaining > bucket.algorithm.capacity();
            if on_error.is_some() && matches!(act, Act::Take | Act::Owe) {
                self.count_in(key, limit, standing.admitted, cost, full, now);
            }
            (bucket.renews(now), standing)
        };
        let standing = match act {
            Act::Peek => ask(&mut self.side.read(own, WORDS)).1,
            _ => self.side.change(own, WORDS, now, ask),
        };
        Outcome { standing, alone }
    }

    /// Where the state of a key is: nobody who does not know the secret can name two that meet.
    fn own(&self, key: KeyHash) -> KeyHash {
        key.within(Space::Shared, self.secret)
    }

    /// Notes what was asked of a key that a share is asked for, if it needs one.
    fn count_in(
        &self,
        key: KeyHash,
        limit: &Limit,
        admitted: bool,
        cost: u64,
        full: bool,
        now: Ticks,
    ) {
        let mut all = self.wanted();
        if !all.contains_key(&key) && (full || all.len() >= MAX_WANTED) {
            if !full {
                self.left_out.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        let new = Wanted { key, limit: *limit, admitted: 0, denied: 0, since: now, used: now };
        let wanted = all.entry(key).or_insert(new);
        // Under another limit what was counted says nothing.
        if wanted.limit != *limit {
            *wanted = new;
        }
        let counter = if admitted { &mut wanted.admitted } else { &mut wanted.denied };
        *counter = counter.saturating_add(cost);
        wanted.used = now;
    }

    /// The keys that a share is to be asked for. Those that nobody asks about any more are forgotten.
    pub fn wants(&self, now: Ticks) -> Vec<Wanted> {
        let mut all = self.wanted();
        all.retain(|_, wanted| now < wanted.used.saturating_add(life(&wanted.limit)));
        all.values().copied().collect()
    }

    /// The daemon has answered what was asked at `asked`: so much of each key may be used, for so long from then on.
    pub fn take(&self, wanted: &[Wanted], shares: &[(Share, Ticks)], asked: Ticks, now: Ticks) {
        let floors = self.floors.read().unwrap_or_else(PoisonError::into_inner);
        for (wanted, &(share, span)) in wanted.iter().zip(shares) {
            self.side.change(self.own(wanted.key), WORDS, now, |state| {
                let Some(bucket) = floors.bucket(state, &wanted.limit, now) else {
                    return (now, ());
                };
                bucket.state[SHARE] = share.units();
                bucket.state[END] = asked.saturating_add(span);
                (bucket.renews(now), ())
            });
        }
        self.heard.store(asked, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
