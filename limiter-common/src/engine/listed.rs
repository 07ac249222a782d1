//! Sources on the allow and deny lists.

use super::State;
use super::limit::remember;
use crate::abi::{Config, Reason};
use crate::atomic;
use crate::denial::{LISTED, MAX_NS};
use crate::hash::Hash;
use crate::key::SourceKey;
use crate::lists::{Entry, PREFIX, SINGLE, bit_of, bits_of, has, neighbourhood, words_in_use};

/// The verdict on a source that is on a list; `Some(None)` if it is on none. The hashes are that of the
/// source, and that of the source and its packet's class.
#[inline(always)]
pub(super) fn listed<S: State>(
    state: &S,
    config: &Config,
    source: SourceKey,
    [of_source, hash]: [Hash; 2],
    coarse_ns: u64,
    generation: u32,
) -> Option<Option<Reason>> {
    let kinds = atomic::load(&config.listed);
    if kinds == 0 {
        return Some(None);
    }
    let source = state.copy(source);
    let now_ns = state.opaque(coarse_ns);
    let mut found = Entry(0);
    let (near, bit) = bit_of(neighbourhood(source));
    if kinds & SINGLE != 0 && has(state.nearby(near)?, bit) {
        let (word, bits) = bits_of(of_source, words_in_use(kinds));
        if has(state.filter(word)?, bits) {
            found = heeded(state.listed(source), now_ns);
        }
    }
    // A number that the verifier knows nothing of, or it would follow each way to come by it.
    found = Entry(state.opaque(found.0));
    if found.is_nothing() && kinds & PREFIX != 0 && has(state.filter(near)?, bit) {
        found = heeded(state.listed_prefix(source), now_ns);
    }
    let entry = Entry(state.opaque(found.0));
    if entry.is_nothing() {
        return Some(None);
    }
    if !entry.denies() {
        return Some(Some(Reason::Allowed));
    }
    // Until it is looked up again; a changed list raises the generation.
    remember(state, LISTED, hash, coarse_ns + MAX_NS, generation)?;
    Some(Some(Reason::Denied))
}

/// The entry if it holds, else one that says nothing.
#[inline(always)]
fn heeded(entry: Option<Entry>, now_ns: u64) -> Entry {
    match entry {
        Some(entry) if entry.holds(now_ns) => entry,
        _ => Entry(0),
    }
}
