//! One limit that several proxies keep, each a part of it until that ends: what RLQS calls assignments.
//!
//! A proxy keeps its part with a token bucket of its own, which begins full, and begins anew with each assignment that
//! differs from the last one. So two things are divided here:
//!
//! - **The rate.** The parts of all assignments that may still be in force are no more than the whole. One that became
//!   smaller counts as it was until the larger one's end: nobody knows when the proxy has read the smaller one.
//! - **The burst.** Half of it is that of the proxies' buckets, by their parts. From the other half each new bucket is
//!   paid. What of the rate is assigned to nobody fills it again.
//!
//! In any window all proxies together admit at most: a half of the burst, which their buckets had before; the other half,
//! and what filled it, for new buckets; and their parts of the rate. That is burst + rate × window.

use std::time::Duration;

use limiter_common::algorithm::{Algorithm as _, TokenBucket};
use limiter_common::gcra::Ticks;
use model::Share;
use model::fair::{Want, max_min};

use model::meter::{Choice, Limit, span, ticks};

/// How long an assignment is in force.
pub const TTL: Duration = Duration::from_secs(2);

/// How often it is renewed. Reports come too seldom: Envoy 1.40 sends them each 5 s, whatever it is told.
pub const RENEWAL: Duration = Duration::from_millis(500);

/// How much longer its part is kept: it may have been on its way for so long. A connection that takes longer is to end.
pub const GRACE: Duration = Duration::from_secs(1);

/// How long a proxy may not report and still gets assignments.
const SILENCE: Duration = Duration::from_secs(12);

/// How much more than it has used a proxy gets, in parts of that.
const HEADROOM: f64 = 1.2;

/// By how much a part changes at least, as a part of what it was: each change costs a bucket.
const STEP: f64 = 0.2;

/// What part of the rate is assigned to nobody, so that new buckets can be paid.
const SLICE: u64 = 64;

/// How many tokens come into a proxy's bucket at a time, at least: what is rounded off is less than one of them.
const FILL: u128 = 32;

/// For how much of its part a proxy's bucket has tokens, at least: requests come unevenly.
const LEAST: Duration = Duration::from_millis(50);

/// What a proxy is to do from now on, for [`TTL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// To admit nothing.
    Deny,
    /// To keep a token bucket.
    Bucket {
        /// What it holds, and begins with.
        tokens: u32,
        /// What comes at once.
        per_fill: u32,
        /// How often, whole seconds.
        every: Duration,
    },
}

/// A limit, and who keeps which part of it.
#[derive(Debug)]
pub struct Quota {
    limit: Limit,
    /// What pays for new buckets, on a clock that goes as fast as the rate is unassigned.
    purse: TokenBucket,
    purse_state: u64,
    purse_now: Ticks,
    /// From when on parts are assigned.
    begin: Ticks,
    /// When it was looked at.
    seen: Ticks,
    proxies: Vec<Proxy>,
}

/// A proxy.
#[derive(Debug)]
struct Proxy {
    id: u64,
    /// Units a second that it was asked for between its last two reports.
    demand: Option<f64>,
    /// Parts that may be in force, and until when.
    parts: Vec<(Share, Ticks)>,
    /// What it was told last, and when that ends.
    told: Option<(Assignment, Share, Ticks)>,
    /// When it has reported last; never, if it is gone.
    reported: Option<Ticks>,
}

impl Proxy {
    /// The part that is kept for it.
    fn kept(&self) -> Share {
        self.parts.iter().map(|&(part, _)| part).max().unwrap_or(Share::NONE)
    }

    /// Whether it may come to have a part: one that is cut off does not.
    fn is_live(&self, now: Ticks) -> bool {
        self.reported.is_some_and(|reported| reported + ticks(SILENCE) > now)
    }
}

impl Quota {
    /// A limit that nobody keeps yet; `None` if token buckets cannot keep it. `since` is when this process began: an earlier
    /// one may have assigned all of it, and paid for buckets, so the first [`TTL`] and [`GRACE`] nothing is assigned.
    #[must_use]
    pub fn new(limit: &Limit, since: Ticks, now: Ticks) -> Option<Self> {
        if limit.algorithm != Choice::TokenBucket || limit.requests == 0 {
            return None;
        }
        let burst = limit.burst.unwrap_or(limit.requests) / 2;
        let purse = TokenBucket::new(limit.requests, ticks(limit.window), burst.max(1)).ok()?;
        let begin = since + ticks(TTL + GRACE);
        let mut state = begin;
        purse.charge(std::slice::from_mut(&mut state), begin, burst.max(1));
        let now = now.max(begin);
        let proxies = Vec::new();
        Some(Self {
            limit: *limit,
            purse,
            purse_state: state,
            purse_now: now,
            begin,
            seen: now,
            proxies,
        })
    }

    /// Whether it is as a new one would be.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.proxies.is_empty() && self.purse.renews(&[self.purse_state]) <= self.purse_now
    }

    /// Notes that a proxy will not report any more.
    pub fn leave(&mut self, id: u64) {
        if let Some(proxy) = self.proxies.iter_mut().find(|proxy| proxy.id == id) {
            proxy.reported = None;
        }
    }

    /// Lets time pass: forgets what has ended.
    pub fn pass(&mut self, now: Ticks) {
        let assigned: Share = self.proxies.iter().map(Proxy::kept).sum();
        // What ended meanwhile counts to the last: no more comes into the purse than is due.
        let unassigned = Share::WHOLE.without(assigned);
        let passed = now.saturating_sub(self.seen);
        let filled =
            u128::from(passed) * u128::from(unassigned.units()) / u128::from(Share::WHOLE.units());
        self.purse_now += filled as Ticks;
        self.seen = self.seen.max(now);
        for proxy in &mut self.proxies {
            proxy.parts.retain(|&(_, end)| end > now);
        }
        self.proxies.retain(|proxy| proxy.is_live(now) || !proxy.parts.is_empty());
    }

    /// A proxy has been asked for so many units since its last report.
    pub fn report(&mut self, id: u64, units: u64, now: Ticks) {
        let at = self.proxies.iter().position(|proxy| proxy.id == id).unwrap_or_else(|| {
            let parts = Vec::new();
            self.proxies.push(Proxy { id, demand: None, parts, told: None, reported: None });
            self.proxies.len() - 1
        });
        let proxy = &mut self.proxies[at];
        let elapsed = proxy.reported.map(|reported| span(now.saturating_sub(reported)));
        // Reports may come in a row.
        if let Some(elapsed) = elapsed.filter(|elapsed| *elapsed >= RENEWAL) {
            proxy.demand = Some(units as f64 / elapsed.as_secs_f64());
        }
        proxy.reported = Some(now);
    }

    /// What a proxy is to do from now on; `None` if it is to go on as it was told, perhaps by an earlier process.
    pub fn assign(&mut self, id: u64, now: Ticks) -> Option<Assignment> {
        if now < self.begin {
            return None;
        }
        self.pass(now);
        let at = self.proxies.iter().position(|proxy| proxy.id == id && proxy.is_live(now))?;
        let (end, kept_until) = (now + ticks(TTL), now + ticks(TTL + GRACE));
        let part = self.part_of(at, now);
        let proxy = &self.proxies[at];
        // Once it may have ended before this arrives, the proxy would begin with a full bucket again.
        let told = proxy.told.filter(|&(_, _, end)| end > now + ticks(GRACE));
        let changes = told.is_none_or(|(_, before, _)| {
            (part.part() - before.part()).abs() > STEP * before.part()
        });
        let mut next = told.map(|(assignment, before, _)| (assignment, before));
        if changes {
            let bucket = self.bucket(part);
            // What comes into being is paid. Without means, what there is goes on.
            if let Some((assignment, tokens)) = bucket
                && self.purse.take(
                    std::slice::from_mut(&mut self.purse_state),
                    self.purse_now,
                    tokens,
                )
            {
                next = Some((assignment, part));
            }
        }
        let (assignment, part) = next.unwrap_or((Assignment::Deny, Share::NONE));
        let proxy = &mut self.proxies[at];
        proxy.told = next.map(|(assignment, part)| (assignment, part, end));
        proxy.parts.retain(|&(kept, _)| kept > part);
        if !part.is_none() {
            proxy.parts.push((part, kept_until));
        }
        Some(assignment)
    }

    /// The part that a proxy gets, of what is kept for no other one.
    fn part_of(&self, at: usize, now: Ticks) -> Share {
        let rate = self.limit.requests as f64 / self.limit.window.as_secs_f64();
        let live = || self.proxies.iter().enumerate().filter(|(_, proxy)| proxy.is_live(now));
        // Of whom nothing is known, and as much for one more: others come at the same time.
        let even = 1.0 / (live().count() + 1) as f64;
        let want = |proxy: &Proxy| {
            let part = proxy.demand.map_or(even, |demand| HEADROOM * demand / rate);
            Want { share: Share::from_part(part.clamp(0.0, 1.0)), weight: 1 }
        };
        let wants: Vec<_> = live().map(|(_, proxy)| want(proxy)).collect();
        let pool = Share::WHOLE.without(Share::WHOLE.times(1, SLICE));
        let given = max_min(pool, &wants);
        let left = pool.without(given.iter().copied().sum());
        let own = live().position(|(other, _)| other == at);
        let own = own.map_or(Share::NONE, |own| given[own]);
        // Half of what nobody wants is spread, so that what rises is admitted. The rest waits for who comes next.
        let part = own.units() + left.times(1, 2 * wants.len().max(1) as u64).units();
        let others = self.proxies.iter().enumerate().filter(|&(other, _)| other != at);
        let kept: Share = others.map(|(_, proxy)| proxy.kept()).sum();
        Share::from_units(part).min(pool.without(kept))
    }

    /// The bucket of a part, and what it begins with; none if it would hold nothing, or cannot be paid.
    fn bucket(&self, part: Share) -> Option<(Assignment, u64)> {
        let burst = self.limit.burst.unwrap_or(self.limit.requests) / 2;
        let whole = u128::from(Share::WHOLE.units());
        let most = (u128::from(burst) * u128::from(part.units()) / whole) as u64;
        // A smaller one than the part may have does, down to what comes at once. Half of the purse stays if it can: a proxy
        // whose part is to shrink needs a bucket, too.
        let rate = self.limit.requests as f64 / self.limit.window.as_secs_f64() * part.part();
        let least = ((rate * LEAST.as_secs_f64()) as u64).clamp(1, most.max(1));
        let room = self.purse.room(&[self.purse_state], self.purse_now);
        let tokens = most.min(room.div_ceil(2).max(least));
        if most == 0 || tokens > room {
            return None;
        }
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        // Envoy 1.40 fills steadily, but cuts the interval to whole seconds; below one, it admits all.
        let in_window = u128::from(self.limit.requests) * u128::from(part.units());
        let in_seconds = |seconds: u128| {
            in_window * seconds * 1_000_000_000 / (self.limit.window.as_nanos() * whole)
        };
        let hour = in_seconds(3_600).max(1);
        let seconds = (FILL * 3_600).div_ceil(hour).clamp(1, 3_600);
        let per_fill = u32::try_from(in_seconds(seconds)).ok().filter(|&per_fill| per_fill > 0)?;
        let every = Duration::from_secs(seconds as u64);
        Some((Assignment::Bucket { tokens, per_fill, every }, tokens.into()))
    }
}

#[cfg(test)]
mod tests;
