//! The slots of the policy array.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use std::vec;

use aya::maps::{Array, MapData};
use limiter_common::abi::{POLICY_SLOTS, Policy, UNLIMITED_SLOT};
use limiter_common::gate::MAX_GATE;

use super::Error;

/// How long what a packet may read rests before it is used again, far longer than a packet takes.
/// Resting costs nobody a wait, as `membarrier` with its tens of milliseconds would.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// Numbers that rest for [`GRACE`] after each use, and as long as there are others.
// A bucket remembers the number of its policy, and takes the same number for the same policy.
#[derive(Default)]
pub(super) struct Numbers {
    unused: vec::IntoIter<u32>,
    resting: VecDeque<(Instant, u32)>,
}

impl Numbers {
    /// These are free, the first one comes first.
    pub(super) fn new(free: impl IntoIterator<Item = u32>) -> Self {
        let free: Vec<u32> = free.into_iter().collect();
        Self { unused: free.into_iter(), resting: VecDeque::new() }
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.unused.next().or_else(|| {
            let rested = self.resting.pop_front_if(|(since, _)| since.elapsed() >= GRACE);
            rested.map(|(_, number)| number)
        })
    }

    pub(super) fn give_back(&mut self, number: u32) {
        self.resting.push_back((Instant::now(), number));
    }
}

/// The policy array, and who needs which of its slots.
pub(super) struct PolicySlots {
    array: Array<MapData, Policy>,
    /// The content of every slot that something leads to, and by how many places.
    used: HashMap<u32, (Policy, usize)>,
    // Limits of one content share a slot: there may be a million, and there are 65,536 slots.
    by_policy: HashMap<Policy, u32>,
    numbers: Numbers,
}

impl PolicySlots {
    /// Takes the array over, with the slots that places lead to; writes the "no limit" slot.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub(super) fn new(
        mut array: Array<MapData, Policy>,
        leading: impl Iterator<Item = u32>,
    ) -> Result<Self, Error> {
        let unlimited = Policy::unlimited(MAX_GATE);
        // Written at each start, so that it is right whatever was there: every packet without a
        // limit comes to it.
        array.set(UNLIMITED_SLOT, unlimited, 0).map_err(Error::map("write a policy"))?;
        let mut used: HashMap<u32, (Policy, usize)> = HashMap::new();
        for slot in leading {
            if let Some((_, count)) = used.get_mut(&slot) {
                *count += 1;
            } else {
                let policy = array.get(&slot, 0);
                used.insert(slot, (policy.map_err(Error::map("read the policies in force"))?, 1));
            }
        }
        let by_policy = used.iter().map(|(&slot, &(policy, _))| (policy, slot)).collect();
        let free = (UNLIMITED_SLOT + 1..POLICY_SLOTS).filter(|slot| !used.contains_key(slot));
        let numbers = Numbers::new(free);
        Ok(Self { array, used, by_policy, numbers })
    }

    /// The policy in a slot.
    pub(super) fn policy(&self, slot: u32) -> Option<Policy> {
        self.used.get(&slot).map(|(policy, _)| *policy)
    }

    /// The least gate of sources; groups, which have a gate of their own, hold `of_groups` once.
    pub(super) fn least_gate(&self, of_groups: u32) -> u32 {
        let of_sources = |slot, count| count > usize::from(slot == of_groups);
        let used = self.used.iter().filter(|(slot, (_, count))| of_sources(**slot, *count));
        // Light sources below it skip the lookup of their policy, so it must be no larger than any
        // gate in use (P2).
        used.map(|(_, (policy, _))| policy.gate).chain([MAX_GATE]).min().unwrap_or(MAX_GATE)
    }

    /// One more needs a slot.
    pub(super) fn hold_slot(&mut self, slot: u32) {
        if let Some((_, count)) = self.used.get_mut(&slot) {
            *count += 1;
        }
    }

    /// One less needs a slot.
    pub(super) fn release(&mut self, slot: u32) {
        let Some((policy, count)) = self.used.get_mut(&slot) else { return };
        *count -= 1;
        if *count == 0 {
            // Or a limit that comes back would lead to a slot which is about to be given away.
            self.by_policy.remove(policy);
            self.used.remove(&slot);
            // It is never free: limits that are removed lead to it.
            if slot != UNLIMITED_SLOT {
                self.numbers.give_back(slot);
            }
        }
    }

    /// A slot with this content, one that is there or a fresh one, which is needed once more.
    ///
    /// # Errors
    /// If there are too many different ones, or the kernel refuses.
    pub(super) fn hold(&mut self, policy: &Policy) -> Result<u32, Error> {
        // One slot for all that have this policy: there are far fewer slots than sources can have limits.
        if let Some(slot) = self.by_policy.get(policy).copied() {
            self.hold_slot(slot);
            return Ok(slot);
        }
        let slot = self.numbers.take().ok_or(Error::TooMany {
            kind: "different rates",
            wanted: POLICY_SLOTS as usize,
            room: POLICY_SLOTS as usize - 1,
            hint: "give sources with similar needs the same rate and burst",
        })?;
        // Before any key leads to it: a packet finds all of it or nothing.
        self.array.set(slot, policy, 0).map_err(Error::map("write a policy"))?;
        self.used.insert(slot, (*policy, 1));
        self.by_policy.insert(*policy, slot);
        Ok(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_only_after_all_others() {
        let mut numbers = Numbers::new(1..4);
        assert_eq!(numbers.take(), Some(1));
        let long_ago = Instant::now().checked_sub(GRACE).expect("the machine runs for a second");
        numbers.resting.push_back((long_ago, 1));
        assert_eq!([(); 3].map(|()| numbers.take()), [2, 3, 1].map(Some));
    }

    #[test]
    fn a_number_rests_before_it_is_used_again() {
        let mut numbers = Numbers::new([1]);
        numbers.take();
        numbers.give_back(1);
        assert_eq!(numbers.take(), None);
    }
}
