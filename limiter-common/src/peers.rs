//! Frames that other hosts of the cluster send to this one.
//!
//! Limits of the cluster are divided by them, so no limit, list or ban applies: the limiter must not cut
//! its own cluster off. They are UDP from the address of a member or seed to the address and port that this
//! host listens on. What else a member sends is limited like any other packet.
//!
//! Whoever forges a member's address can send such frames, too. So each address has a budget, which is a
//! token bucket of its own: a flood beyond it is dropped here and does not reach the daemon.

use crate::atomic::{self, AtomicU64};
use crate::gcra::{TICKS_PER_NS, Ticks, decide};
use crate::key::SourceKey;

/// Addresses that there is room for.
pub const MAX_PEERS: u32 = 4096;

/// Frames a second that pass of one address. The busiest pair of hosts, two that divide 16,384 sources
/// between them, sends each other some 900.
pub const FRAMES_PER_SECOND: u64 = 4000;

/// Frames that pass at once: 16 answers of full length (192 frames) to one host, and as much again.
pub const BURST: u64 = 4000;

const COST: Ticks = 1_000_000_000 * TICKS_PER_NS / FRAMES_PER_SECOND;
const TOLERANCE: Ticks = COST * BURST;

/// Where this host listens for frames: a read-only global of the program, so that none of this is in the
/// program of a host without a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Listen {
    /// The whole address.
    pub address: SourceKey,
    /// The UDP port; 0 in no cluster.
    pub port: u64,
}

/// Charges a frame to the budget `tat` of its address; whether it is within it. By the coarse clock, `now`
/// in ticks: a tick is nothing against the burst.
#[inline(always)]
pub fn admit(tat: &AtomicU64, now: Ticks) -> bool {
    let before = atomic::load(tat);
    let Some(after) = decide(before, now, COST, TOLERANCE) else { return false };
    // Where CPUs meet, one is charged afterwards: at most a frame too many for each of them, which is owed.
    if !atomic::replace(tat, before, after) {
        atomic::add(tat, COST);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gcra::ticks;

    #[test]
    fn a_flood_gets_the_budget_and_no_more() {
        let tat = AtomicU64::new(0);
        let begin = 5_000_000_000;
        let mut passed = 0;
        for frame in 0..120_000u64 {
            // Ten seconds of 12,000 a second, by a clock that ticks each 4 ms.
            let now = begin + frame * 1_000_000_000 / 12_000;
            passed += u64::from(admit(&tat, ticks(now - now % 4_000_000)));
        }
        let most = BURST + 10 * FRAMES_PER_SECOND;
        assert!((most - FRAMES_PER_SECOND / 100..=most).contains(&passed), "{passed} of {most}");
        // A second later all is forgotten.
        let later = ticks(begin + 11_100_000_000);
        assert_eq!((0..2 * BURST).filter(|_| admit(&tat, later)).count() as u64, BURST);
    }

    #[test]
    fn cpus_that_meet_are_charged_all_the_same() {
        let (tat, now) = (AtomicU64::new(0), ticks(5_000_000_000));
        let passed: u64 = std::thread::scope(|scope| {
            let cpus = [(); 4].map(|()| {
                scope.spawn(|| (0..2 * BURST).map(|_| u64::from(admit(&tat, now))).sum::<u64>())
            });
            cpus.into_iter().map(|cpu| cpu.join().unwrap()).sum()
        });
        assert!((BURST..=BURST + 4).contains(&passed), "{passed}");
    }
}
