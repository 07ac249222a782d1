//! The steps of a packet's way beside parsing, the search for its bucket, and the sketch.

pub use super::charge::charge;
pub use super::classes::classify;
pub use super::group::{
    Next, Whole, by_destination, by_group, next_of_whole, of_destination, of_group,
};
pub use super::listed::entry;
pub use super::lookup::{find_by, renew};
pub use super::promotion::promote;
pub use super::shared::{Ask, charge_shared, draw, is_known, shared_limits, shared_slot};
pub use super::tunnelled::inner_ip;
pub use super::windows::{Question, ask_window, charge_windows, convert};

use super::State;
use super::attempt::Attempt;
use super::classes::Classified;
use super::lookup::Arrival;
use crate::abi::Reason;
use crate::gcra::Ticks;
use crate::key::SourceKey;
use crate::lists::Entry;
use crate::packet::{Ip, Packet, is_link_control};

/// How the engine gets to these steps.
///
/// Each is a part of [`super::judge`] unless an implementation says otherwise. The kernel program makes each a
/// function of its own: the verifier goes through such a function once, and not once for each way that leads to it.
/// `None` always means that the state lacks something.
pub trait Steps: State + Sized {
    /// The frames that it judges.
    type Frame: Packet + ?Sized;

    /// The packet in hand: lies where its steps find it.
    #[inline(always)]
    fn take_up<'a>(&self, packet: &'a Arrival) -> Option<&'a Arrival> {
        Some(packet)
    }

    /// Whether the link needs a packet whose IP header is `ip`.
    #[inline(always)]
    fn is_link_control(&self, frame: &Self::Frame, ip: &Ip) -> bool {
        is_link_control(frame, ip)
    }

    /// The IP header inside a tunnel that is looked into, or `outer`.
    #[inline(always)]
    fn innermost(&self, frame: &Self::Frame, outer: &Ip) -> Ip {
        inner_ip(self, frame, outer).unwrap_or(*outer)
    }

    /// Finds the class of a packet whose IP header is `ip`, and the policy if that takes a lookup. With its destination
    /// if that is limited, or nothing where [`Steps::destination`] has it.
    #[inline(always)]
    fn classify(
        &self,
        frame: &Self::Frame,
        ip: &Ip,
        source: SourceKey,
    ) -> Option<(Classified, SourceKey)> {
        classify(self, frame, ip, source)
    }

    /// The lists' entry for the source of the packet in hand.
    #[inline(always)]
    fn entry(&self, packet: &Arrival) -> Option<Entry> {
        entry(self, packet)
    }

    /// Judges the packet in hand, whose source has no bucket, by the limit of its source's group. What passes goes on
    /// to the limit of its source.
    #[inline(always)]
    fn group(&self, packet: &Arrival) -> Option<Reason> {
        match of_group(self, packet)? {
            Whole::Unlimited => Some(Reason::BelowGate),
            Whole::Over => Some(Reason::OverGroup),
            Whole::Of(group) => by_group(self, &group),
        }
    }

    /// Judges the packet in hand, which has `passed` all limits of its sender, by the limit of its `destination`.
    #[inline(always)]
    fn destination(
        &self,
        packet: &Arrival,
        destination: SourceKey,
        passed: Reason,
    ) -> Option<Reason> {
        match of_destination(self, packet, destination)? {
            Whole::Unlimited => Some(passed),
            Whole::Over => Some(Reason::OverDestination),
            Whole::Of(destination) => by_destination(self, &destination, passed),
        }
    }

    /// What is to be done with the packet in hand, which is that of a [`Whole`]; `again`, if another CPU was about to
    /// make its bucket.
    #[inline(always)]
    fn next_of_whole(&self, whole: &Arrival, again: bool) -> Option<Next> {
        next_of_whole(self, whole, again)
    }

    /// The slot of the source of the packet in hand, by fingerprints that its set had a moment ago; `Some(None)` if it has
    /// none.
    #[inline(always)]
    fn find_by(&self, packet: &Arrival, fingerprints: u64) -> Option<Option<u32>> {
        find_by(self, packet, fingerprints)
    }

    /// Charges the packet in hand to the bucket in the slot at `index`. Contended only if that is another
    /// source's now.
    #[inline(always)]
    fn charge(&self, packet: &Arrival, index: u32) -> Option<Attempt<Reason>> {
        charge(self, packet, index)
    }

    /// Charges the packet in hand to the windows in the slot at `index`, as [`Steps::charge`].
    #[inline(always)]
    fn charge_windows(&self, packet: &Arrival, index: u32) -> Option<Attempt<Reason>> {
        charge_windows(self, packet, index)
    }

    /// Looks up the policy of the bucket in the slot at `index`, which is that of the source of the packet in hand, again.
    #[inline(always)]
    fn renew(&self, packet: &Arrival, index: u32) -> Option<Attempt<()>> {
        renew(self, packet, index)
    }

    /// Gives the source of the packet in hand a bucket, unless it is below its own gate. `is_first` says that
    /// the packet is the first of its source in this epoch of the sketch.
    #[inline(always)]
    fn promote(&self, packet: &Arrival, is_first: bool) -> Option<Attempt<Reason>> {
        promote(self, packet, is_first)
    }

    /// Judges the packet in hand, which has `passed` the limit of its source, by those that sources share.
    #[inline(always)]
    fn shared_limits(&self, packet: &Arrival, passed: Reason) -> Option<Reason> {
        shared_limits(self, packet, passed)
    }

    /// The limit of a `kind`, [`crate::shared::CLASS`] or [`crate::shared::PREFIX`], that the packet in hand shares.
    #[inline(always)]
    fn shared_slot(&self, packet: &Arrival, kind: u64) -> Option<Option<u32>> {
        shared_slot(self, packet, kind)
    }

    /// Charges the packet in hand, which has `passed` all limits before, to one that sources share.
    #[inline(always)]
    fn charge_shared(&self, packet: &Arrival, slot: u32, passed: Reason) -> Option<Reason> {
        charge_shared(self, packet, slot, passed)
    }

    /// Draws from the bucket of a shared limit for the packet in hand, of which this CPU holds too little: whether
    /// there was enough.
    #[inline(always)]
    fn draw(&self, packet: &Arrival, slot: u32, ask: Ask, now_ns: u64) -> Option<bool> {
        draw(self, packet, slot, ask, now_ns)
    }

    /// Has the words of a bucket mean the same under another policy, if one of both counts in windows.
    #[inline(always)]
    fn convert(&self, index: u32, former: u32, slot: u32, tat: u64, now: Ticks) -> Option<bool> {
        convert(self, index, former, slot, tat, now)
    }

    /// Answers a question about the window of a tier.
    #[inline(always)]
    fn ask_window(&self, at: u32, question: Question, word: u64, now: Ticks, cost: u64) -> u64 {
        ask_window(self, at, question, word, now, cost)
    }

    /// Whether the source of the packet in hand is known.
    #[inline(always)]
    fn is_known(&self, packet: &Arrival, now_ns: u64) -> Option<bool> {
        is_known(self, packet, now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of the kernel program return numbers: what they mean has to come back.
    #[test]
    fn outcomes_survive_as_numbers() {
        let attempts = Reason::ALL.map(Attempt::Done);
        for attempt in attempts.into_iter().chain([Attempt::Contended]).map(Some).chain([None]) {
            assert_eq!(Attempt::from_bits(Attempt::to_bits(attempt)), attempt);
        }
        let charges = [0, 1, (1 << 30) - 1].map(|index| Next::Charge { index });
        let promotes = [false, true].map(|first| Next::Promote { first });
        let nexts = charges.into_iter().chain(promotes).chain([Next::Passes]);
        for next in nexts.map(Some).chain([None]) {
            assert_eq!(Next::from_bits(Next::to_bits(next)), next);
        }
        for ask in [Ask::Batch, Ask::Packet, Ask::Reserve] {
            assert_eq!(Ask::from_u32(ask as u32), ask);
        }
    }
}
