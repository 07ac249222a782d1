//! Who is a member, as a host sees it, and who owns a key by that.

use std::collections::BTreeMap;
use std::sync::Arc;

use siphasher::sip::SipHasher24;
use smallvec::{SmallVec, smallvec};

use crate::{HostId, KeyId, Moment, ViewId};
use model::Share;

/// How many views with something outstanding a host lists at most.
const LISTED: usize = 15;
/// While there are more it delegates nothing; where leases are as long as between regions there may be [`LISTED`].
const CROWD: usize = 8;
/// How many views that it has been in a host remembers, to understand others who still are.
const KNOWN: usize = 64;

/// A region, by its name: the first 64 bits of a hash of it. Hosts of one region are near to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Region(pub u64);

impl Region {
    /// That of this name.
    pub fn new(name: &str) -> Self {
        Self(SipHasher24::new().hash(name.as_bytes()))
    }
}

impl Default for Region {
    /// Where none is configured.
    fn default() -> Self {
        Self::new("default")
    }
}

/// A member, as all others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// What it counts among the members: what it gets of home shares.
    pub weight: u32,
    /// Where it is.
    pub region: Region,
}

impl Member {
    /// A member of the region of those for whom none is configured.
    pub fn new(weight: u32) -> Self {
        Self { weight, region: Region::default() }
    }
}

/// The members of a view.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) id: ViewId,
    members: BTreeMap<HostId, Member>,
    /// The sum of their weights.
    weights: u64,
    regions: BTreeMap<Region, Hosts>,
}

/// The hosts of one region.
#[derive(Debug, Default)]
struct Hosts {
    weights: Vec<(HostId, u32)>,
    /// Whether all weigh the same.
    even: bool,
}

impl Hosts {
    fn weight(&self) -> u64 {
        self.weights.iter().map(|(_, weight)| u64::from(*weight)).sum()
    }

    /// Weighted rendezvous hashing: each host draws a number for the key, `-ln(u) / weight`, and the least
    /// one wins. In whole numbers, because all hosts must come to the same answer on any processor.
    fn owner(&self, key: KeyId) -> Option<HostId> {
        let draw = |host: HostId| mix(key.number() ^ mix(host.0 ^ 0x5bd1_e995_9e37_79b9));
        let hosts = self.weights.iter();
        // The greatest draw has the least logarithm: where all weigh the same none is needed.
        if self.even {
            return hosts.map(|(host, _)| *host).max_by_key(|&host| (draw(host), host));
        }
        least(hosts.map(|&(host, weight)| (draw(host), u64::from(weight), host)))
    }
}

/// Who of those that draw a number and have a weight is the first.
fn least<T>(drawn: impl Iterator<Item = (u64, u64, T)>) -> Option<T> {
    let mut best: Option<(u64, u64, T)> = None;
    for (draw, weight, who) in drawn.filter(|(_, weight, _)| *weight > 0) {
        let cost = bits_below_one(draw);
        let less = best.as_ref().is_none_or(|(least, its, _)| {
            // Crosswise: a division would round two costs to one.
            u128::from(cost) * u128::from(*its) < u128::from(*least) * u128::from(weight)
        });
        if less {
            best = Some((cost, weight, who));
        }
    }
    best.map(|(_, _, who)| who)
}

impl Members {
    fn new(members: BTreeMap<HostId, Member>) -> Self {
        let id = members.iter().fold(mix(members.len() as u64), |id, (host, member)| {
            // These decide about owners too: one number for two sets of them could give a key two owners (I6).
            let is = mix(u64::from(member.weight) ^ mix(member.region.0));
            mix(id ^ mix(host.0 ^ is))
        });
        let mut regions: BTreeMap<Region, Hosts> = BTreeMap::new();
        for (&host, member) in &members {
            regions.entry(member.region).or_default().weights.push((host, member.weight));
        }
        for hosts in regions.values_mut() {
            let first = hosts.weights[0].1;
            hosts.even = first != 0 && hosts.weights.iter().all(|(_, weight)| *weight == first);
        }
        let weights = members.values().map(|member| u64::from(member.weight)).sum();
        Self { id: ViewId(id), members, weights, regions }
    }

    /// The part of something that a member of this weight has.
    pub(super) fn part(&self, of: Share, weight: u32) -> Share {
        of.times(weight.into(), self.weights)
    }

    pub(super) fn has(&self, host: HostId) -> bool {
        self.members.contains_key(&host)
    }

    pub(super) fn weight(&self, host: HostId) -> u32 {
        self.members.get(&host).map_or(0, |member| member.weight)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (HostId, Member)> {
        self.members.iter().map(|(&host, &member)| (host, member))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (HostId, u32)> + Clone {
        self.members.iter().map(|(&host, member)| (host, member.weight))
    }

    pub(super) fn region(&self, host: HostId) -> Option<Region> {
        self.members.get(&host).map(|member| member.region)
    }

    /// All regions with their weights.
    pub(super) fn regions(&self) -> impl Iterator<Item = (Region, u64)> {
        self.regions.iter().map(|(&region, hosts)| (region, hosts.weight()))
    }

    pub(super) fn has_regions(&self) -> bool {
        self.regions.len() > 1
    }

    /// The owner of a key in a region.
    pub(super) fn owner_in(&self, region: Region, key: KeyId) -> Option<HostId> {
        self.regions.get(&region)?.owner(key)
    }

    /// The owner of a key for a member: that of its region.
    pub(super) fn owner(&self, host: HostId, key: KeyId) -> Option<HostId> {
        self.owner_in(self.region(host)?, key)
    }

    /// The owner that those of other regions lend to and borrow from. The region is drawn as a host is.
    pub(super) fn root(&self, key: KeyId) -> Option<HostId> {
        let draw = |region: Region| mix(key.number() ^ mix(region.0 ^ 0x27d4_eb2f_1656_67c5));
        let region = least(self.regions().map(|(region, weight)| (draw(region), weight, region)));
        self.owner_in(region?, key)
    }
}

/// One view and how long what was delegated under it may be relied on.
#[derive(Clone, Debug)]
struct Lent {
    members: Arc<Members>,
    until: Moment,
    /// The how manyth view it is; it has been listed ever since.
    number: u64,
}

/// The views of one host: the present one, older ones by which something is still outstanding, and those it
/// has been in lately.
#[derive(Clone, Debug)]
pub(super) struct Views {
    me: HostId,
    present: Lent,
    older: Vec<Lent>,
    /// Latest last, with when the host has left it.
    known: Vec<Arc<Members>>,
    pub(super) since: Moment,
    number: u64,
}

impl Views {
    pub(super) fn new(me: HostId, members: BTreeMap<HostId, Member>, now: Moment) -> Self {
        let members = Arc::new(Members::new(members));
        let present = Lent { members: Arc::clone(&members), until: Moment(0), number: 0 };
        Self { me, present, older: Vec::new(), known: vec![members], since: now, number: 0 }
    }

    /// Enters a view; whether it is another one.
    pub(super) fn enter(&mut self, now: Moment, members: &BTreeMap<HostId, Member>) -> bool {
        if self.present.members.members == *members {
            return false;
        }
        self.expire(now);
        let new = Arc::new(Members::new(members.clone()));
        self.number += 1;
        let mut next = Lent { members: Arc::clone(&new), until: Moment(0), number: self.number };
        if let Some(at) = self.older.iter().position(|lent| lent.members.id == new.id) {
            // Back in a view that is still listed: it keeps its number, having been listed since then.
            next = self.older.remove(at);
        }
        let left = std::mem::replace(&mut self.present, next);
        if !left.until.has_come(now) {
            // What was delegated under it counts until then, so messages must go on to list it (I6).
            self.older.push(left);
        }
        self.known.retain(|known| known.id != new.id);
        // Who still delegates by a forgotten view is not counted: idle, never double.
        if self.known.len() == KNOWN {
            self.known.remove(0);
        }
        self.known.push(new);
        self.since = now;
        true
    }

    /// Lists no more what nothing is outstanding under; whether there was any.
    pub(super) fn expire(&mut self, now: Moment) -> bool {
        let before = self.older.len();
        self.older.retain(|lent| !lent.until.has_come(now));
        self.older.len() < before
    }

    /// When an older view is listed no more.
    pub(super) fn next(&self) -> Option<Moment> {
        self.older.iter().map(|lent| lent.until).min()
    }

    pub(super) fn present(&self) -> &Members {
        &self.present.members
    }

    /// Something is delegated under the present view that may be relied on until then.
    pub(super) fn lend(&mut self, until: Moment) {
        self.present.until = self.present.until.max(until);
    }

    /// Whether there are so many views with something outstanding that no more may be added.
    pub(super) fn crowded(&self, far: bool) -> bool {
        self.older.len() >= if far { LISTED } else { CROWD }
    }

    /// The views by which something may be outstanding, the present one first.
    pub(super) fn listed(&self) -> Vec<ViewId> {
        let older = self.older.iter().map(|lent| lent.members.id);
        std::iter::once(self.present.members.id).chain(older.take(LISTED)).collect()
    }

    /// The owners of a key by the older views.
    pub(super) fn older_owners(&self, key: KeyId) -> impl Iterator<Item = Option<HostId>> {
        self.older.iter().map(move |lent| lent.members.owner(self.me, key))
    }

    /// The owners by whom a key may count that the present owner and those of older views are: who owns it in
    /// one view counts nothing where another owns it in an earlier one, because that was listed with it ever
    /// since (I6).
    pub(super) fn counting_owners(
        &self,
        key: KeyId,
        present: Option<HostId>,
    ) -> SmallVec<[Option<HostId>; 1]> {
        if self.older.is_empty() {
            return smallvec![present];
        }
        let older = self.older.iter().map(|lent| (lent.number, lent.members.owner(self.me, key)));
        let all: Vec<(u64, Option<HostId>)> =
            older.chain([(self.present.number, present)]).collect();
        let counts = |&&(number, owner): &&(u64, Option<HostId>)| {
            all.iter().all(|&(earlier, its)| earlier >= number || its == owner)
        };
        all.iter().filter(counts).map(|(_, owner)| *owner).collect()
    }

    /// The owner of a key for this host.
    pub(super) fn owner(&self, key: KeyId) -> Option<HostId> {
        self.present.members.owner(self.me, key)
    }

    /// Whether another host is of this one's region in all of these views.
    pub(super) fn near(&self, host: HostId, list: &[ViewId]) -> bool {
        // Where no view knows of regions all are in one, and the lists need not be searched.
        let one = self.known.iter().all(|view| !view.has_regions());
        one || list.iter().all(|&id| {
            let same = |view: &Members| Some(view.region(host)? == view.region(self.me)?);
            self.find(id).and_then(same).unwrap_or_default()
        })
    }

    /// A view that the host is or has lately been in.
    pub(super) fn find(&self, id: ViewId) -> Option<&Members> {
        self.known.iter().rev().map(Arc::as_ref).find(|known| known.id == id)
    }

    /// Until when anything that was delegated under any view may be relied on.
    pub(super) fn until(&self) -> Moment {
        self.present.until.max(self.earlier_until())
    }

    /// The same of the views before the present one.
    pub(super) fn earlier_until(&self) -> Moment {
        self.older.iter().map(|lent| lent.until).max().unwrap_or_default()
    }
}

/// MurmurHash3's finaliser.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let word = (word ^ (word >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}

/// `-log2(u)` for `u = (draw + 1) / 2^64`, in units of 2^-24, rounded up and at least 1.
fn bits_below_one(draw: u64) -> u64 {
    let zeros = draw.leading_zeros();
    if zeros == 64 {
        return 64 << 24;
    }
    // 1 ≤ mantissa < 2 in units of 2^-63; its logarithm bit by bit, by squaring.
    let mut mantissa = u128::from(draw << zeros);
    let mut log = 0u64;
    for _ in 0..24 {
        mantissa = (mantissa * mantissa) >> 63;
        log <<= 1;
        if mantissa >> 64 != 0 {
            log |= 1;
            mantissa >>= 1;
        }
    }
    ((u64::from(zeros) + 1) << 24) - log
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(weights: &[u32]) -> Members {
        let of = |(at, &weight): (usize, &u32)| (HostId(mix(at as u64 + 1)), Member::new(weight));
        Members::new(weights.iter().enumerate().map(of).collect())
    }

    #[test]
    fn keys_go_to_owners_by_weight_and_stay_when_another_comes() {
        for (weights, tolerance) in [(vec![100, 100, 100], 0.02), (vec![100, 300, 50, 550], 0.02)] {
            let view = members(&weights);
            let sum = f64::from(weights.iter().sum::<u32>());
            let mut more = weights.clone();
            more.push(100);
            let grown = members(&more);
            let new = HostId(mix(weights.len() as u64 + 1));
            let (mut owned, mut moved) = (BTreeMap::new(), 0);
            let keys = 20_000u64;
            for key in (1..=keys).map(|key| KeyId::from_hash(mix(key))) {
                let owner = view.owner_in(Region::default(), key).unwrap();
                *owned.entry(owner).or_insert(0u32) += 1;
                let after = grown.owner_in(Region::default(), key).unwrap();
                // Equal weights compare draws, unequal ones their logarithms: the same order.
                assert!(after == owner || after == new, "{key:?} went from {owner:?} to {after:?}");
                moved += u32::from(after == new);
            }
            for (host, weight) in view.iter() {
                let part = f64::from(owned[&host]) / keys as f64;
                assert!((part - f64::from(weight) / sum).abs() < tolerance, "{weight}: {part}");
            }
            let expected = 100.0 / (sum + 100.0);
            assert!((f64::from(moved) / keys as f64 - expected).abs() < tolerance);
        }
    }

    #[test]
    fn logarithms_are_right() {
        for draw in [1, 2, 3, 1 << 40, u64::MAX / 3, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            let real = 64.0 - (draw as f64).log2();
            let ours = bits_below_one(draw) as f64 / f64::from(1 << 24);
            assert!((real - ours).abs() < 2e-7, "{draw}: {ours}, not {real}");
        }
    }

    #[test]
    fn a_view_is_listed_until_all_under_it_has_lapsed() {
        let weights =
            |hosts: &[u64]| hosts.iter().map(|&host| (HostId(host), Member::new(1))).collect();
        let mut views = Views::new(HostId(1), weights(&[1]), Moment(0));
        views.lend(Moment(100));
        assert!(views.enter(Moment(10), &weights(&[1, 2])));
        assert_eq!(views.listed().len(), 2);
        assert_eq!(views.until(), Moment(100));
        // Back again: it is the present one, and the other had nothing.
        assert!(views.enter(Moment(20), &weights(&[1])));
        assert_eq!((views.listed().len(), views.until()), (1, Moment(100)));
        views.enter(Moment(30), &weights(&[1, 2]));
        views.expire(Moment(99));
        assert_eq!(views.listed().len(), 2);
        views.expire(Moment(100));
        assert_eq!(views.listed().len(), 1);
    }
}
