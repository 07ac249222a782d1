//! Makes limits the kernel's.
//!
//! A limit becomes a [`Policy`] in a slot of the policy array, and a key that leads to the slot:
//! the default slot, a source of its own, or a prefix. A slot that a packet may be reading is never
//! written: a changed limit gets another slot, its key is replaced in one step, and then the
//! generation is raised, upon which every tracked source looks its policy up again. So a packet sees
//! the old or the new limit, never a part of each. Slots that nothing leads to any more rest for
//! [`GRACE`] before they are used again, far longer than a packet takes.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, MapData, MapError};
use ipnet::IpNet;
use limiter_common::abi::{Config, POLICY_SLOTS, Policy, PolicyWord, UNLIMITED_SLOT};
use limiter_common::atomic;
use limiter_common::gate::MAX_GATE;
use limiter_common::key::SourceKey;

use super::Error;
use super::exact::Exact;
use crate::policy::{Changes, Limits, Target};

/// How long a slot rests.
const GRACE: Duration = Duration::from_secs(1);

/// The maps that lead from a source to its policy.
pub(super) struct PolicyMaps {
    pub(super) policies: Array<MapData, Policy>,
    pub(super) exact: Exact<u32>,
    pub(super) prefixes4: LpmTrie<MapData, [u8; 4], u32>,
    pub(super) prefixes6: LpmTrie<MapData, [u8; 16], u32>,
    /// How many keys `exact` holds at the most.
    pub(super) max_exact: usize,
    /// Bits of an address that make a source: (IPv4, IPv6).
    pub(super) lengths: (u8, u8),
}

/// The key of a source.
pub(super) fn key_of(address: IpAddr) -> SourceKey {
    match address {
        IpAddr::V4(v4) => SourceKey::from_ipv4(v4.octets()),
        IpAddr::V6(v6) => SourceKey::from_ipv6(v6.octets()),
    }
}

/// 0 for IPv4, 1 for IPv6.
fn family(net: &IpNet) -> usize {
    usize::from(net.addr().is_ipv6())
}

impl PolicyMaps {
    /// Whether `net` is one source rather than a prefix of many.
    fn is_exact(&self, net: &IpNet) -> bool {
        match net {
            IpNet::V4(v4) => v4.prefix_len() == self.lengths.0,
            IpNet::V6(v6) => v6.prefix_len() == self.lengths.1,
        }
    }

    /// Lets `net` lead to `slot`, or nowhere; from the next [`PolicyMaps::flush`] on at the latest.
    fn write(&mut self, net: &IpNet, slot: Option<u32>) -> Result<(), Refused> {
        match slot {
            Some(slot) if self.is_exact(net) => {
                let inserted = self.exact.insert(key_of(net.network()), slot);
                inserted.map_err(|(key, error)| (self.net_of(key), error))
            }
            Some(slot) => self.insert_prefix(net, slot).map_err(|error| (*net, error)),
            None => self.remove(net).map_err(|error| (*net, error)),
        }
    }

    /// Sees to it that all is written.
    fn flush(&mut self) -> Result<(), Refused> {
        self.exact.flush().map_err(|(key, error)| (self.net_of(key), error))
    }

    /// The source that a key stands for.
    fn net_of(&self, key: SourceKey) -> IpNet {
        let address = key.address();
        let length = if address.is_ipv4() { self.lengths.0 } else { self.lengths.1 };
        IpNet::new(address, length).map_or_else(|_| IpNet::from(address), |net| net.trunc())
    }

    fn insert_prefix(&mut self, net: &IpNet, slot: u32) -> Result<(), MapError> {
        let length = u32::from(net.prefix_len());
        match net {
            IpNet::V4(v4) => {
                self.prefixes4.insert(&Key::new(length, v4.network().octets()), slot, 0)
            }
            IpNet::V6(v6) => {
                self.prefixes6.insert(&Key::new(length, v6.network().octets()), slot, 0)
            }
        }
    }

    fn remove(&mut self, net: &IpNet) -> Result<(), MapError> {
        if self.is_exact(net) {
            return self.exact.remove(&key_of(net.network()));
        }
        let length = u32::from(net.prefix_len());
        match net {
            IpNet::V4(v4) => self.prefixes4.remove(&Key::new(length, v4.network().octets())),
            IpNet::V6(v6) => self.prefixes6.remove(&Key::new(length, v6.network().octets())),
        }
    }

    /// Every prefix that leads to a slot now.
    fn present(&self) -> Result<HashMap<Target, u32>, MapError> {
        let mut present = HashMap::new();
        let net = |address: IpAddr, length| {
            IpNet::new(address, length).map(|net| Target::Prefix(net.trunc()))
        };
        for item in self.exact.iter() {
            let (key, slot) = item?;
            present.insert(Target::Prefix(self.net_of(key)), slot);
        }
        for item in self.prefixes4.iter() {
            let (key, slot) = item?;
            let length = u8::try_from(key.prefix_len()).unwrap_or(32);
            present.extend(net(key.data().into(), length).map(|net| (net, slot)));
        }
        for item in self.prefixes6.iter() {
            let (key, slot) = item?;
            let length = u8::try_from(key.prefix_len()).unwrap_or(128);
            present.extend(net(key.data().into(), length).map(|net| (net, slot)));
        }
        Ok(present)
    }
}

/// A prefix whose key the kernel would not change, and why.
type Refused = (IpNet, MapError);

/// What is in force, and the slots it lies in.
pub(super) struct Publisher {
    maps: PolicyMaps,
    /// Where each target leads.
    targets: HashMap<Target, u32>,
    /// How many targets have each prefix length: IPv4, IPv6.
    lengths: [[usize; 129]; 2],
    /// The content of every slot that something leads to, and by how many targets.
    slots: HashMap<u32, (Policy, usize)>,
    by_policy: HashMap<Policy, u32>,
    resting: VecDeque<(Instant, u32)>,
    free: Vec<u32>,
    generation: u32,
    /// Prefixes in which every target leads to "no limit", whatever it is given.
    exempt: Vec<IpNet>,
}

impl Publisher {
    /// Reads what the maps hold, and writes the "no limit" slot.
    ///
    /// # Errors
    /// [`Error::Map`] if they cannot be read or written.
    pub(super) fn new(mut maps: PolicyMaps, config: &Config) -> Result<Self, Error> {
        let failed = || Error::map("read the policies in force");
        let word = PolicyWord(atomic::load(&config.policy));
        maps.policies
            .set(UNLIMITED_SLOT, Policy::unlimited(MAX_GATE), 0)
            .map_err(Error::map("write a policy"))?;
        let mut targets = maps.present().map_err(failed())?;
        targets.insert(Target::Default, word.slot());
        let mut lengths = [[0; 129]; 2];
        for target in targets.keys() {
            if let Target::Prefix(net) = target {
                lengths[family(net)][usize::from(net.prefix_len())] += 1;
            }
        }
        let mut slots: HashMap<u32, (Policy, usize)> = HashMap::new();
        for &slot in targets.values() {
            if let Some((_, count)) = slots.get_mut(&slot) {
                *count += 1;
            } else {
                slots.insert(slot, (maps.policies.get(&slot, 0).map_err(failed())?, 1));
            }
        }
        let by_policy = slots.iter().map(|(&slot, &(policy, _))| (policy, slot)).collect();
        let free =
            (UNLIMITED_SLOT + 1..POLICY_SLOTS).rev().filter(|s| !slots.contains_key(s)).collect();
        let generation = word.generation();
        let resting = VecDeque::new();
        Ok(Self {
            maps,
            targets,
            lengths,
            slots,
            by_policy,
            resting,
            free,
            generation,
            exempt: Vec::new(),
        })
    }

    /// Lets no limit apply in `nets`, once [`Publisher::replacing`] was put in force.
    pub(super) fn exempt(&mut self, nets: &[IpNet]) {
        self.exempt = nets.to_vec();
    }

    /// The policy in a slot.
    pub(super) fn policy(&self, slot: u32) -> Option<Policy> {
        self.slots.get(&slot).map(|(policy, _)| *policy)
    }

    /// The policy that applies to `address`, and whom it is for.
    pub(super) fn policy_for(&self, address: IpAddr) -> (Target, Option<Policy>) {
        let most = if address.is_ipv4() { 32u8 } else { 128 };
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        let target = (0..=most)
            .rev()
            .filter(|&length| lengths[usize::from(length)] > 0)
            .filter_map(|length| IpNet::new(address, length).ok())
            .map(|net| Target::Prefix(net.trunc()))
            .find(|target| self.targets.contains_key(target))
            .unwrap_or(Target::Default);
        (target, self.targets.get(&target).and_then(|&slot| self.policy(slot)))
    }

    /// All policies in force.
    pub(super) fn policies(&self) -> impl Iterator<Item = (Target, Policy)> {
        self.targets.iter().filter_map(|(target, slot)| Some((*target, self.policy(*slot)?)))
    }

    /// The changes that make exactly `limits` those in force.
    pub(super) fn replacing(&self, limits: &Limits) -> Changes {
        let mut changes = Changes::default();
        for target in self.targets.keys().filter(|target| limits.get(target).is_none()) {
            changes.unset(*target);
        }
        limits.iter().for_each(|limit| changes.set(limit));
        // Their own prefixes lead to "no limit" also where nobody has set one.
        for target in self.exempt.iter().copied().map(Target::Prefix) {
            if limits.get(&target).is_none() && !self.targets.contains_key(&target) {
                changes.unset(target);
            }
        }
        changes
    }

    /// Gives each target the one of `policies` that has the number of its amount, or none. A target
    /// must not occur twice.
    ///
    /// # Errors
    /// [`Error::TooMany`] before anything is changed; [`Error::Map`] if the kernel refuses, after
    /// what was changed has been changed back.
    pub(super) fn change(
        &mut self,
        changes: &Changes,
        policies: &[Option<Policy>],
        config: &Config,
    ) -> Result<(), Error> {
        self.check_room(changes)?;
        let mut slots = Vec::with_capacity(policies.len());
        let changed = self.change_to(changes, policies, &mut slots, config);
        for slot in slots.into_iter().flatten() {
            self.release(slot);
        }
        let used = self.slots.values().filter(|(_, count)| *count > 0);
        let gate = used.map(|(policy, _)| policy.gate).chain([MAX_GATE]).min();
        atomic::store(&config.min_gate, u64::from(gate.unwrap_or(MAX_GATE)));
        changed
    }

    /// As [`Publisher::change`]. Holds the slots of `policies`, and leaves them to be released: one
    /// that a target leaves may be the one that another comes to.
    fn change_to(
        &mut self,
        changes: &Changes,
        policies: &[Option<Policy>],
        slots: &mut Vec<Option<u32>>,
        config: &Config,
    ) -> Result<(), Error> {
        for policy in policies {
            let slot = match policy {
                Some(policy) => Some(self.hold(policy)?),
                None => None,
            };
            slots.push(slot);
        }
        // A smaller gate first and a larger one last: in between, too many look their policy up,
        // never too few.
        let new = policies.iter().flatten().map(|policy| policy.gate).min();
        if let Some(new) = new
            && u64::from(new) < atomic::load(&config.min_gate)
        {
            atomic::store(&config.min_gate, u64::from(new));
        }
        self.write(changes, slots)?;
        self.targets.reserve(changes.len().saturating_sub(self.targets.len()));
        for (target, amount) in changes.numbered() {
            let slot = destination(&self.exempt, &target, slot_of(amount, slots));
            self.lead(target, slot);
        }
        // One word: the new generation and its default together. Full barrier, after all the rest.
        self.renew(config);
        Ok(())
    }

    /// Lets every CPU look again at what it remembers of sources.
    pub(super) fn renew(&mut self, config: &Config) {
        let default = self.targets.get(&Target::Default).copied().unwrap_or(UNLIMITED_SLOT);
        self.generation = self.generation.wrapping_add(1);
        atomic::swap(&config.policy, PolicyWord::new(self.generation, default).0);
    }

    /// How many targets there are that are single sources, IPv4 prefixes and IPv6 prefixes.
    fn room_taken(&self) -> [usize; 3] {
        let (v4, v6) = self.maps.lengths;
        let [in4, in6] = [&self.lengths[0], &self.lengths[1]];
        let exact = [in4[usize::from(v4)], in6[usize::from(v6)]];
        let sum = |lengths: &[usize; 129]| lengths.iter().sum::<usize>();
        [exact[0] + exact[1], sum(in4) - exact[0], sum(in6) - exact[1]]
    }

    pub(super) fn check_room(&self, changes: &Changes) -> Result<(), Error> {
        let mut taken = self.room_taken();
        for (target, amount) in changes.numbered() {
            let Target::Prefix(net) = target else { continue };
            let kind = if self.maps.is_exact(&net) { 0 } else { 1 + family(&net) };
            let leads = amount.is_some() || self.exempt.contains(&net);
            match (self.targets.contains_key(&target), leads) {
                (false, true) => taken[kind] += 1,
                (true, false) => taken[kind] -= 1,
                _ => {}
            }
        }
        let slots = POLICY_SLOTS as usize;
        let combine = "combine prefixes that have the same limit";
        let kinds = [
            ("single sources", self.maps.max_exact, "run the daemon with a larger --max-limits"),
            ("IPv4 prefixes", slots, combine),
            ("IPv6 prefixes", slots, combine),
        ];
        for ((kind, room, hint), wanted) in kinds.into_iter().zip(taken) {
            if wanted > room {
                return Err(Error::TooMany { kind, wanted, room, hint });
            }
        }
        Ok(())
    }

    /// Changes the keys, and changes them back if one cannot be.
    fn write(&mut self, changes: &Changes, slots: &[Option<u32>]) -> Result<(), Error> {
        let Self { maps, targets, exempt, .. } = self;
        let different = changes.numbered().filter_map(|(target, amount)| {
            let Target::Prefix(net) = target else { return None };
            let (present, slot) = (targets.get(&target).copied(), slot_of(amount, slots));
            let slot = destination(exempt, &target, slot);
            (present != slot).then_some((net, present, slot))
        });
        let mut tried = 0;
        let mut written = different.clone().try_for_each(|(net, _, slot)| {
            tried += 1;
            maps.write(&net, slot)
        });
        if written.is_ok() {
            written = maps.flush();
        }
        let Err((net, error)) = written else { return Ok(()) };
        maps.exact.forget();
        // Some of these may not have been changed: then there is nothing to remove.
        for (net, present, _) in different.take(tried) {
            let undone = maps.write(&net, present);
            log_undo(undone);
        }
        log_undo(maps.flush());
        Err(Error::map(format!("change the limit of {net}"))(error))
    }

    /// Records that `target` leads to `slot` now, or nowhere; the default leads somewhere always.
    fn lead(&mut self, target: Target, slot: Option<u32>) {
        let slot = if target == Target::Default { slot.or(Some(UNLIMITED_SLOT)) } else { slot };
        let former = match slot {
            Some(slot) => self.targets.insert(target, slot),
            None => self.targets.remove(&target),
        };
        if former == slot {
            return;
        }
        if let Target::Prefix(net) = target {
            let count = &mut self.lengths[family(&net)][usize::from(net.prefix_len())];
            *count = *count + usize::from(slot.is_some()) - usize::from(former.is_some());
        }
        if let Some((_, count)) = slot.and_then(|slot| self.slots.get_mut(&slot)) {
            *count += 1;
        }
        if let Some(former) = former {
            self.release(former);
        }
    }

    /// Records that one less needs a slot.
    fn release(&mut self, slot: u32) {
        let Some((policy, count)) = self.slots.get_mut(&slot) else { return };
        *count -= 1;
        if *count == 0 {
            self.by_policy.remove(policy);
            self.slots.remove(&slot);
            if slot != UNLIMITED_SLOT {
                self.resting.push_back((Instant::now(), slot));
            }
        }
    }

    /// A slot with this content, one that is there or a fresh one, which is needed once more.
    fn hold(&mut self, policy: &Policy) -> Result<u32, Error> {
        if let Some(slot) = self.by_policy.get(policy) {
            if let Some((_, count)) = self.slots.get_mut(slot) {
                *count += 1;
            }
            return Ok(*slot);
        }
        while let Some((since, slot)) = self.resting.front().copied()
            && since.elapsed() >= GRACE
        {
            self.resting.pop_front();
            self.free.push(slot);
        }
        let slot = self.free.pop().ok_or(Error::TooMany {
            kind: "different rates",
            wanted: POLICY_SLOTS as usize,
            room: POLICY_SLOTS as usize - 1,
            hint: "give sources with similar needs the same rate and burst",
        })?;
        self.maps.policies.set(slot, policy, 0).map_err(Error::map("write a policy"))?;
        self.slots.insert(slot, (*policy, 1));
        self.by_policy.insert(*policy, slot);
        Ok(slot)
    }
}

/// Whether a target lies in an exempt prefix.
fn is_exempt(exempt: &[IpNet], target: &Target) -> bool {
    let Target::Prefix(net) = target else { return false };
    exempt.iter().any(|exempt| exempt.contains(net))
}

/// Where a target leads that is given `slot`. An exempt prefix itself always leads somewhere, what is
/// in it only if it has a limit.
fn destination(exempt: &[IpNet], target: &Target, slot: Option<u32>) -> Option<u32> {
    let Target::Prefix(net) = target else { return slot };
    let given = slot.is_some() || exempt.contains(net);
    if given && is_exempt(exempt, target) { Some(UNLIMITED_SLOT) } else { slot }
}

/// Where the amount with a number leads.
fn slot_of(amount: Option<usize>, slots: &[Option<u32>]) -> Option<u32> {
    slots.get(amount?).copied().flatten()
}

/// Tells what could not be changed back. A key that is not there need not be removed.
fn log_undo(undone: Result<(), Refused>) {
    match undone {
        Ok(()) => {}
        Err((_, MapError::SyscallError(error)))
            if error.io_error.kind() == std::io::ErrorKind::NotFound => {}
        Err((net, error)) => tracing::error!("cannot change the limit of {net} back: {error}"),
    }
}
