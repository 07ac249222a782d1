//! The limits that proxies keep parts of.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use decide::key::KeyHash;
use decide::quota::{Assignment, Quota};
use limiter_common::gcra::Ticks;
use model::meter::Limit;

/// The most buckets of all proxies.
const MAX_QUOTAS: usize = 100_000;

/// All limits that proxies keep parts of.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    quotas: Mutex<HashMap<KeyHash, (Limit, Quota)>>,
    next: AtomicU64,
}

impl Quotas {
    /// A number for a proxy.
    pub(crate) fn newcomer(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyHash, (Limit, Quota)>> {
        // What a panic left is whole: each change is one call.
        self.quotas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a proxy was asked for, of a limit that may be new.
    pub(crate) fn report(
        &self,
        key: KeyHash,
        limit: &Limit,
        id: u64,
        units: u64,
        (since, now): (Ticks, Ticks),
    ) {
        let mut quotas = self.lock();
        if !quotas.contains_key(&key) && quotas.len() >= MAX_QUOTAS {
            quotas.retain(|_, (_, quota)| {
                quota.pass(now);
                !quota.is_idle()
            });
            if quotas.len() >= MAX_QUOTAS {
                return;
            }
        }
        let known = quotas.get(&key).map(|(known, _)| *known);
        if known != Some(*limit) {
            // Parts of another limit are in force until their end, as those of an earlier process.
            let since = if known.is_some() { now } else { since };
            let Some(quota) = Quota::new(limit, since, now) else { return };
            quotas.insert(key, (*limit, quota));
        }
        if let Some((_, quota)) = quotas.get_mut(&key) {
            quota.report(id, units, now);
        }
    }

    /// What a proxy is to do from now on; `None` if it is told nothing.
    pub(crate) fn assign(&self, key: KeyHash, id: u64, now: Ticks) -> Option<Assignment> {
        self.lock().get_mut(&key)?.1.assign(id, now)
    }

    /// Notes that a proxy will not report any more.
    pub(crate) fn leave(&self, key: KeyHash, id: u64) {
        if let Some((_, quota)) = self.lock().get_mut(&key) {
            quota.leave(id);
        }
    }
}
