//! Sources on the allow and deny lists.

use super::State;
use super::charge::remember;
use super::lookup::Packet;
use crate::abi::{Config, Reason};
use crate::atomic;
use crate::drop_cache::{Basis, MAX_NS};
use crate::hash::Hash;
use crate::key::SourceKey;
use crate::lists::{Entry, PREFIX, SINGLE, bit_of, bits_of, has, prefix_bit, words_in_use};

/// The entry that holds for a source at `coarse_ns`; [`Entry::NOTHING`] if it is on no list. The hash is that
/// of the source, whatever the class of the packet.
#[inline(always)]
pub(super) fn listed<S: State>(
    state: &S,
    config: &Config,
    source: SourceKey,
    of_source: Hash,
    coarse_ns: u64,
) -> Option<Entry> {
    // One load where there are no lists, which is most often.
    let kinds = atomic::load(&config.listed);
    if kinds == 0 {
        return Some(Entry::NOTHING);
    }
    let source = state.copy(source);
    let now_ns = state.opaque(coarse_ns);
    let mut found = Entry::NOTHING;
    let (near, bit) = bit_of(prefix_bit(source));
    if kinds & SINGLE != 0 && has(state.prefix_bitmap(near)?, bit) {
        let (word, bits) = bits_of(of_source, words_in_use(kinds));
        if has(state.filter(word)?, bits) {
            found = heeded(state.listed(source), now_ns);
        }
    }
    // A number that the verifier knows nothing of, or it would follow each way to come by it.
    found = Entry(state.opaque(found.0));
    // A single source goes before its prefixes, so that one can be let through out of a denied
    // network.
    if found.is_nothing() && kinds & PREFIX != 0 && has(state.filter(near)?, bit) {
        found = heeded(state.listed_prefix(source), now_ns);
    }
    Some(Entry(state.opaque(found.0)))
}

/// The entry if it holds, else one that says nothing.
#[inline(always)]
fn heeded(entry: Option<Entry>, now_ns: u64) -> Entry {
    match entry {
        Some(entry) if entry.holds(now_ns) => entry,
        _ => Entry::NOTHING,
    }
}

/// Judges a packet of a source that an `entry` is for.
#[inline(always)]
pub(super) fn by_list<S: State>(state: &S, packet: &Packet<'_>, entry: Entry) -> Option<Reason> {
    if !entry.denies() {
        return Some(Reason::Allowed);
    }
    // Until it is looked up again; a changed list raises the generation.
    let basis = Basis::on_deny_list(packet.published.generation());
    remember(state, packet.hash, packet.coarse_ns + MAX_NS, basis)?;
    Some(Reason::Denied)
}
