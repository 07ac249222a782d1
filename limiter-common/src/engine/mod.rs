//! The way of a packet: parse, bucket table, sketch, gate, promotion.
//!
//! ```text
//! parse ─► peer's frame? ──yes──► its address's budget ─► PASS peer frame | DROP over peer budget
//!                       │ no
//!                       ▼
//!          source ─► just denied? ──yes──► DROP over limit
//!                       │ no
//!                       ▼
//!                    bucket of this generation? ──yes──► charge ─► PASS conforming | DROP over limit
//!                       │ no
//!                       ▼
//!                    listed? ──yes──► PASS allowed | DROP denied
//!                       │ no
//!                       ▼
//!                    bucket? ──yes──► charge, as above
//!                       │ no
//!                       ▼
//!          groups limited? ──yes──► bucket or sketch of its group ─► DROP over group limit
//!                       │ no, or within the limit
//!                       ▼
//!                  sketch add ─► estimate < least gate? ──yes──► PASS below gate
//!                       │ no
//!                       ▼
//!                  policy ─► estimate < its gate? ──yes──► PASS below gate
//!                       │ no
//!                       ▼
//!                  promote: take a way, charge what is owed ─► judge the packet
//!
//! PASS, and limits are shared? ─► class ─► prefix ─► total ─► PASS | DROP over shared limit
//! PASS, and destinations are limited? ─► bucket or sketch of its destination ─► PASS | DROP over destination limit
//! ```
//!
//! The table comes before the sketch: a source that has a bucket is charged for every packet, also
//! when it slows down below its gate, or pulses around the gate would pass a multiple of the limit.
//! Promoted sources then also add no noise to the sketch.

mod attempt;
mod charge;
mod classes;
mod draw;
mod events;
mod evidence;
mod group;
mod limit;
mod listed;
mod lookup;
#[cfg(any(test, feature = "user"))]
pub mod memory;
mod promotion;
mod shadow;
mod shared;
mod sketched;
pub mod steps;
mod tunnelled;
mod windows;

use crate::abi::{Config, Event, Internal, Policy, Reason};
use crate::atomic::{self, AtomicU64};
use crate::batch::Batch;
use crate::class::Table;
use crate::drop_cache::DropCacheEntry;
use crate::features::{Features, PolicyRef};
use crate::gcra::ticks;
use crate::hash::Hash;
use crate::hll::Registers;
use crate::key::{PrefixMasks, SourceKey};
use crate::lists::Entry;
use crate::packet::{Ip, Network, Packet, may_be_link_control, network, sender, udp_destination};
use crate::peers::{Listen, admit};
use crate::share::ShareSlot;
use crate::shared::Shared;
use crate::sketch::{Shape, Window};
use crate::table::{Identity, Slot};
use crate::tunnels::Prefix;

pub use attempt::Attempt;
pub use classes::Classified;
pub use evidence::note_sample;
pub use lookup::Arrival;
pub use steps::Steps;

use limit::limit;

/// What the daemon fixes before the program is loaded. The verifier takes it for constants, so that a branch
/// that a host does not need is not even verified.
pub trait Constants {
    /// What tells sources apart.
    fn masks(&self) -> PrefixMasks;
    /// The keyed hash of a source.
    fn hash(&self, key: SourceKey) -> Hash;
    /// The sketch's size.
    fn shape(&self) -> Shape;
    /// The sketch's epoch.
    fn window(&self) -> Window;
    /// Sets in the bucket table, minus one.
    fn set_mask(&self) -> u32;
    /// CPUs that may judge packets at once.
    // A bound on packets in flight: each other CPU may have counted one in the sketch that it has
    // not charged yet.
    fn cpus(&self) -> u32;
    /// Where this host listens for frames of its cluster.
    fn listen(&self) -> Listen;
    /// How many prefixes of tunnels there are.
    fn tunnels(&self) -> u64;
    /// One of them.
    fn tunnel(&self, index: usize) -> Prefix;
    /// What the program is loaded for.
    fn features(&self) -> Features;
}

/// The CPU that judges: its clocks, its counters, and the way to the daemon.
pub trait Processor {
    /// Monotonic time in ns, exact.
    fn now(&self) -> u64;
    /// Monotonic time in ns as of the last clock tick: cheaper, up to two ticks late, never early.
    fn now_coarse(&self) -> u64;

    /// The theoretical arrival time of this CPU's promotions.
    fn promotions(&self) -> Option<&AtomicU64>;

    /// Counts what happened on this CPU, and how often it has.
    fn note(&self, what: Internal) -> u64;
    /// Hands an event to the daemon; `false` if there was no room.
    fn send(&self, event: Event) -> bool;

    /// A random number.
    fn random(&self) -> u32;
    /// Has the packet in hand, whose source has the slot at `index`, looked up among this host's connections, if this
    /// CPU has not looked up enough lately.
    fn look_up(&self, index: u32);
}

/// The memory that [`judge`] works on. Indices are in range by construction; an
/// implementation answers `None` for others, and the packet then counts as
/// [`Reason::Internal`].
pub trait State: Constants + Processor {
    /// What the daemon may change.
    fn config(&self) -> Option<&Config>;
    /// The fingerprints of a set of the bucket table.
    fn fingerprints(&self, set: u32) -> Option<&AtomicU64>;
    /// A slot of the bucket table, by [`crate::table::slot_index`].
    fn slot(&self, index: u32) -> Option<&Slot>;
    /// Whose slot it is.
    fn identity(&self, index: u32) -> Option<&Identity>;
    /// What a slot's bucket may use of a limit of the cluster.
    fn share(&self, index: u32) -> Option<&ShareSlot>;
    /// What this CPU remembers of a source whose packets are dropped, under a number below
    /// [`crate::drop_cache::DROP_CACHE_ENTRIES`].
    fn drop_cache_entry(&self, index: u32) -> Option<&DropCacheEntry>;
    /// A word of what tells where anything is listed.
    fn prefix_bitmap(&self, index: u32) -> Option<&AtomicU64>;
    /// A word of the lists' filter.
    fn filter(&self, index: u32) -> Option<&AtomicU64>;
    /// The lists' entry for a single source.
    fn listed(&self, key: SourceKey) -> Option<Entry>;
    /// The lists' entry for the longest prefix that contains `key`.
    fn listed_prefix(&self, key: SourceKey) -> Option<Entry>;
    /// A cell of the sketch.
    fn cell(&self, index: u32) -> Option<&AtomicU64>;
    /// The registers that count distinct sources.
    fn registers(&self) -> Option<&Registers>;
    /// The compiled limit in a slot of the policy array.
    fn policy(&self, slot: u32) -> Option<&Policy>;
    /// The same, as far as the program is loaded for it.
    #[inline(always)]
    fn active(&self, slot: u32) -> Option<PolicyRef<'_>> {
        Some(PolicyRef::new(self.policy(slot)?, slot, self.features()))
    }
    /// The slot of the longest prefix that has a limit for `class` and contains `key`. For
    /// [`crate::class::ANY`] the limit of whoever has none lies elsewhere, in [`Config::policy`].
    fn lookup(&self, class: u32, key: SourceKey) -> Option<u32>;
    /// A table that tells classes apart.
    fn class_table(&self, index: u32) -> Option<&Table>;
    /// The shared limit of the longest prefix that has one for `class` and contains `key`.
    fn shared_by(&self, class: u32, key: SourceKey) -> Option<u32>;
    /// The bucket of a shared limit, by its place among [`crate::shared::SHARED_SLOTS`].
    fn shared(&self, slot: u32) -> Option<&Shared>;
    /// What this CPU holds of the shared limit there, or of another one that takes turns with it.
    fn batch(&self, slot: u32) -> Option<&Batch>;
    /// The budget of a member's or seed's address: see [`crate::peers`].
    fn peer(&self, address: SourceKey) -> Option<&AtomicU64>;
}

/// Judges a frame. The caller counts the verdict.
#[inline(always)]
pub fn judge<S: Steps>(state: &S, frame: &S::Frame) -> Reason {
    let ip = match network(frame) {
        Network::NonIp => return Reason::NonIp,
        Network::Unreadable => {
            return match state.config() {
                Some(config) if atomic::load(&config.drop_malformed) != 0 => {
                    Reason::DroppedMalformed
                }
                _ => Reason::PassedMalformed,
            };
        }
        Network::Ip(ip) => ip,
    };
    if ip.malformed {
        // Counted beside the verdict, not as one: each packet is in exactly one counter of
        // verdicts (P5).
        state.note(Internal::Malformed);
    }
    // A missing map must not cut the host off: the packet passes, and the counter tells.
    ip_packet(state, frame, &ip).unwrap_or(Reason::Internal)
}

/// Judges a packet with a source. `None` if `state` lacks something.
#[inline(always)]
fn ip_packet<S: Steps>(state: &S, frame: &S::Frame, ip: &Ip) -> Option<Reason> {
    // Before lists and limits: a ban of a forged address once parted a fleet.
    if let Some(reason) = peer(state, frame, ip) {
        return Some(reason);
    }
    let config = state.config()?;
    let passes = || atomic::load(&config.limit_link_control) == 0;
    if may_be_link_control(frame, ip) && passes() && state.is_link_control(frame, ip) {
        return Some(Reason::LinkControl);
    }
    // After what the link needs: nothing in a tunnel is of this one.
    let ip = &if state.tunnels() == 0 { *ip } else { state.innermost(frame, ip) };
    let source = state.masks().apply(sender(frame, ip));
    let mut classified = (Classified::NONE, SourceKey::default());
    if state.features().has(Features::CLASSES) && atomic::load(&config.classes) != 0 {
        classified = state.classify(frame, ip, source)?;
    }
    limit(state, config, source, classified, frame.length())
}

/// Judges a frame of another host of the cluster; `None` for any other packet.
#[inline(always)]
fn peer<S: State, P: Packet + ?Sized>(state: &S, packet: &P, ip: &Ip) -> Option<Reason> {
    let listen = state.listen();
    // Daemons send no such frames, so a malformed one has the limit of its source.
    if listen.port == 0 || ip.malformed {
        return None;
    }
    // Most packets are told apart by the port, for less than looking up the source.
    let (address, port) = udp_destination(packet, ip)?;
    if u64::from(port) != listen.port || address != listen.address {
        return None;
    }
    let budget = state.peer(ip.source)?;
    let passes = admit(budget, ticks(state.now_coarse()));
    Some(if passes { Reason::PeerFrame } else { Reason::OverPeerBudget })
}

#[cfg(test)]
mod denial_tests;
#[cfg(test)]
mod destination_tests;
#[cfg(test)]
mod group_tests;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(test)]
mod peer_tests;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod policy_tests;
#[cfg(all(test, not(loom)))]
mod schedule_tests;
#[cfg(test)]
mod share_tests;
#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod tests;
#[cfg(all(test, not(loom)))]
mod window_tests;
