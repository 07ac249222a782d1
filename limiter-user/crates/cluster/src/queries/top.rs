//! The heaviest sources of the whole cluster.
//!
//! Each host names the heaviest that it has; then each is asked for all that any has named. Their sums are
//! what one table with the traffic of all hosts would have for these sources. A source that nobody has
//! named can have no more than the lightest one that each host has named, together ([`Union::bar`]): where
//! that is less than the n-th sum, the list is that of the merged table. Otherwise hosts are asked for
//! more; if that does not suffice, either, the answer says how much an unlisted source may have.

use std::collections::{BTreeMap, BTreeSet};

use super::{Candidates, Counted, MAX_PLACES, SourceClass};
use crate::HostId;
use model::source::SourceState;
use model::traffic::{Sort, Weight};

/// Candidates that each host is asked for first, at the least.
const MIN_CANDIDATES: usize = 64;

/// How many times more they are asked for next.
const MORE: usize = 4;

/// How many candidates to ask each host for, in turn, for a list of `n`.
pub fn rounds(n: usize) -> impl Iterator<Item = usize> {
    // Twice the list: the bar falls with each candidate, and a second round takes the time of the first again.
    let first = (2 * n).clamp(MIN_CANDIDATES, MAX_PLACES);
    std::iter::successors(Some(first), |wanted| {
        (*wanted < MAX_PLACES).then(|| (wanted * MORE).min(MAX_PLACES))
    })
}

/// What sources are compared by.
pub fn weight(sort: Sort, counted: &Counted) -> Weight {
    let packets = counted.passed as f64 + counted.dropped as f64;
    let sorted_by = match sort {
        Sort::Dropped => counted.dropped as f64,
        Sort::Packets => packets,
        Sort::Bytes => counted.bytes as f64,
        Sort::Pps => counted.pps,
        Sort::Bits => counted.bps,
    };
    Weight::new(sorted_by, counted.pps, packets)
}

/// Whom to ask all hosts for.
#[derive(Clone, Debug, PartialEq)]
pub struct Union {
    /// The sources.
    pub places: Vec<SourceClass>,
    /// What a source that is not among them can weigh at most, as far as hosts have answered.
    pub bar: f64,
}

/// All that hosts have named, when each was asked for `wanted`; [`MAX_PLACES`] of them at most.
pub fn union(sort: Sort, wanted: usize, hosts: &BTreeMap<HostId, Candidates>) -> Union {
    let mut sums: BTreeMap<SourceClass, Weight> = BTreeMap::new();
    let mut bar = 0.0;
    for Candidates { sources, .. } in hosts.values() {
        let mut least = f64::INFINITY;
        for counted in sources {
            let weight = weight(sort, counted);
            *sums.entry(counted.place).or_default() += weight;
            least = weight.sorted_by.min(least);
        }
        // Who names fewer than it was asked for has no others.
        // The bar is a sum because an unnamed source may be just below the lightest one on every host.
        if sources.len() >= wanted {
            bar += least;
        }
    }
    let mut named: Vec<_> = sums.into_iter().collect();
    if named.len() > MAX_PLACES {
        named.sort_unstable_by(|(place, a), (other, b)| a.heavier_first(b).then(place.cmp(other)));
        let dropped = named.drain(MAX_PLACES..).map(|(_, sum)| sum.sorted_by);
        // On each host where one of these is not named it has less than the bar.
        bar += dropped.fold(0.0, f64::max);
    }
    Union { places: named.into_iter().map(|(place, _)| place).collect(), bar }
}

/// A source, as all hosts together have counted it.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The sums. The rates' time is the shortest one, the state the worst one, first and last packet those
    /// of all hosts.
    pub sum: Counted,
    /// Hosts where it has a bucket.
    pub hosts: usize,
    /// Whether its limit is not the same on all of them.
    pub differs: bool,
}

/// The sums of what hosts have counted, the heaviest first; of equals, in the order of their places.
pub fn merge(sort: Sort, hosts: &BTreeMap<HostId, Vec<Counted>>) -> Vec<Merged> {
    let mut sums: BTreeMap<SourceClass, Merged> = BTreeMap::new();
    for counted in hosts.values() {
        // A host that tells of a source twice is believed once.
        let mut told = BTreeSet::new();
        for counted in counted.iter().filter(|counted| told.insert(counted.place)) {
            match sums.get_mut(&counted.place) {
                Some(merged) => merged.add(counted),
                None => {
                    let merged = Merged { sum: counted.clone(), hosts: 1, differs: false };
                    sums.insert(counted.place, merged);
                }
            }
        }
    }
    let mut merged: Vec<_> = sums.into_values().collect();
    merged.sort_by(|a, b| weight(sort, &a.sum).heavier_first(&weight(sort, &b.sum)));
    merged
}

/// Whether the first `n` of `merged` are those of the merged table, when no other source weighs more than
/// `bar`.
pub fn is_exact(sort: Sort, n: usize, merged: &[Merged], bar: f64) -> bool {
    // With no bar everything was named: a list shorter than `n` is whole as well.
    bar <= 0.0
        || n.checked_sub(1).is_some_and(|last| {
            merged.get(last).is_some_and(|merged| weight(sort, &merged.sum).sorted_by >= bar)
        })
}

impl Merged {
    fn add(&mut self, other: &Counted) {
        let sum = &mut self.sum;
        self.hosts += 1;
        self.differs |= sum.limit != other.limit;
        sum.state = worse(sum.state, other.state);
        for (sum, other) in [
            (&mut sum.passed, other.passed),
            (&mut sum.dropped, other.dropped),
            (&mut sum.bytes, other.bytes),
            (&mut sum.uncounted, other.uncounted),
        ] {
            // A member's counts may be nonsense: a sum that wraps would put the heaviest source last.
            *sum = sum.saturating_add(other);
        }
        sum.pps += other.pps;
        sum.bps += other.bps;
        sum.seconds = sum.seconds.min(other.seconds);
        sum.first_seen_ms = [sum.first_seen_ms, other.first_seen_ms].into_iter().flatten().min();
        sum.last_seen_ms = sum.last_seen_ms.max(other.last_seen_ms);
    }
}

/// Of two states, that of whoever fares worse.
pub fn worse(one: SourceState, other: SourceState) -> SourceState {
    let rank = |state| match state {
        SourceState::Light => 0,
        SourceState::Conforming => 1,
        SourceState::Limited => 2,
    };
    if rank(one) >= rank(other) { one } else { other }
}
