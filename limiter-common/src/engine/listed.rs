//! Sources on the allow and deny lists.

use super::State;
use super::charge::remember;
use super::lookup::Arrival;
use crate::abi::Reason;
use crate::atomic;
use crate::drop_cache::{Basis, MAX_NS};
use crate::lists::{
    Entry, PREFIX, SINGLE, bit_of, bits_of, has, network, prefix_bit, words_in_use,
};

/// The entry that holds for a packet's source; [`Entry::NOTHING`] if it is on no list.
#[inline(always)]
pub fn entry<S: State>(state: &S, packet: &Arrival) -> Option<Entry> {
    let mut found = Entry::NOTHING;
    let kinds = atomic::load(&state.config()?.listed);
    let network = network(packet.source);
    let (word, bit) = prefix_bit(network);
    if !has(state.prefix_bitmap(word)?, bit) {
        return Some(found);
    }
    let source = packet.source;
    let now_ns = packet.coarse_ns;
    if kinds & SINGLE != 0 {
        let (word, bits) = bits_of(state.hash(source), words_in_use(kinds));
        if has(state.filter(word)?, bits) {
            found = heeded(state.listed(source), now_ns);
        }
    }
    // A single source goes before its prefixes, so that one can be let through out of a denied
    // network.
    if found.is_nothing() && kinds & PREFIX != 0 {
        let (word, bit) = bit_of(network);
        if has(state.filter(word)?, bit) {
            found = heeded(state.listed_prefix(source), now_ns);
        }
    }
    Some(found)
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
pub(super) fn by_list<S: State>(state: &S, packet: &Arrival, entry: Entry) -> Option<Reason> {
    if !entry.denies() {
        return Some(Reason::Allowed);
    }
    // Until it is looked up again; a changed list raises the generation.
    let basis = Basis::on_deny_list(packet.published.generation());
    remember(state, packet.hash, packet.coarse_ns + MAX_NS, basis)?;
    Some(Reason::Denied)
}
