//! The engine's steps as functions of their own.
//!
//! A function with a symbol is global to the verifier: it checks the function once, for any numbers, instead
//! of once for each way that leads to it. Such a function takes and returns numbers, so the packet in hand lies in a
//! map. The stacks of a chain of functions have 512 bytes together.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::programs::XdpContext;
use limiter_common::abi::Reason;
use limiter_common::engine::steps::{Ask, Next, Question, Whole};
use limiter_common::engine::{Arrival, Attempt, Classified, Constants as _, Steps, steps};
use limiter_common::features::Features;
use limiter_common::gcra::Ticks;
use limiter_common::key::SourceKey;
use limiter_common::lists::Entry;
use limiter_common::packet::{Ip, Version, is_link_control};

use crate::frame::{Frame, MAX_OFFSET};
use crate::maps::ARRIVAL;
use crate::state::Kernel;

/// The packet in hand as its group's; 0 is as its source's.
const GROUP: u32 = 1;

/// The packet in hand as its destination's.
const DESTINATION: u32 = 2;

/// The packet lies in hand as that of a [`Whole`]: no outcome of a step is this number.
const IN_HAND: u32 = u32::MAX;

/// The state lacks something: no step returns this number.
const MISSING: u64 = u64::MAX;

impl Steps for Kernel {
    type Frame = Frame;

    #[inline(always)]
    fn take_up<'a>(&self, packet: &'a Arrival) -> Option<&'a Arrival> {
        let at = ARRIVAL.get_ptr_mut(0)?;
        // SAFETY: this CPU's element of the map, aligned and valid as long as the program runs. XDP programs are not
        // preempted by one another on a CPU, so nobody else writes it until the packet has its verdict.
        unsafe {
            at.write(*packet);
            Some(&*at)
        }
    }

    #[inline(always)]
    fn is_link_control(&self, frame: &Frame, ip: &Ip) -> bool {
        let SourceKey { high, low } = ip.source;
        limiter_is_link_control(frame.context(), place(ip), high, low) != 0
    }

    #[inline(always)]
    fn innermost(&self, frame: &Frame, outer: &Ip) -> Ip {
        let SourceKey { high, low } = outer.source;
        let at = limiter_inner(frame.context(), place(outer), high, low);
        // No header of a tunnel is where a frame begins. Whole headers, not one or none: the verifier of Linux 6.1
        // would see reads of what only one of both has written.
        match ARRIVAL.get_ptr(GROUP) {
            // SAFETY: as in `take_up`; the function has just laid the source there.
            Some(hand) if at != 0 => ip_at(at, unsafe { (*hand).source }),
            _ => *outer,
        }
    }

    #[inline(always)]
    fn classify(
        &self,
        frame: &Frame,
        ip: &Ip,
        source: SourceKey,
    ) -> Option<(Classified, SourceKey)> {
        let found = limiter_classify(frame.context(), place(ip), source.high, source.low);
        // The function has laid the destination in hand: the stack is short.
        (found != MISSING).then_some((Classified(found), SourceKey::default()))
    }

    #[inline(always)]
    fn entry(&self, _: &Arrival) -> Option<Entry> {
        let found = limiter_entry();
        (found != MISSING).then_some(Entry(found))
    }

    #[inline(always)]
    fn group(&self, _: &Arrival) -> Option<Reason> {
        // One after the other, not one by the other: the stack is short.
        match limiter_of_group() {
            IN_HAND => {
                let (kernel, group) = in_hand(GROUP)?;
                steps::by_group(&kernel, group)
            }
            over => done(over),
        }
    }

    #[inline(always)]
    fn destination(&self, _: &Arrival, _: SourceKey, passed: Reason) -> Option<Reason> {
        match limiter_of_destination(passed as u32) {
            IN_HAND => {
                let (kernel, destination) = in_hand(DESTINATION)?;
                steps::by_destination(&kernel, destination, passed)
            }
            known => done(known),
        }
    }

    #[inline(always)]
    fn next_of_whole(&self, _: &Arrival, again: bool) -> Option<Next> {
        Next::from_bits(limiter_next_of_whole(u32::from(again), self.hand))
    }

    #[inline(always)]
    fn find_by(&self, _: &Arrival, fingerprints: u64) -> Option<Option<u32>> {
        slot(limiter_find_by(fingerprints, self.hand))
    }

    #[inline(always)]
    fn charge(&self, _: &Arrival, index: u32) -> Option<Attempt<Reason>> {
        Attempt::from_bits(limiter_charge(index, self.hand))
    }

    #[inline(always)]
    fn charge_windows(&self, _: &Arrival, index: u32) -> Option<Attempt<Reason>> {
        Attempt::from_bits(limiter_charge_windows(index, self.hand))
    }

    #[inline(always)]
    fn renew(&self, _: &Arrival, index: u32) -> Option<Attempt<()>> {
        let renewed = answer(limiter_renew(index, self.hand))?;
        Some(if renewed { Attempt::Done(()) } else { Attempt::Contended })
    }

    #[inline(always)]
    fn promote(&self, _: &Arrival, is_first: bool) -> Option<Attempt<Reason>> {
        Attempt::from_bits(limiter_promote(u32::from(is_first), self.hand))
    }

    #[inline(always)]
    fn shared_limits(&self, _: &Arrival, passed: Reason) -> Option<Reason> {
        done(limiter_shared_limits(passed as u32))
    }

    #[inline(always)]
    fn shared_slot(&self, _: &Arrival, kind: u64) -> Option<Option<u32>> {
        slot(limiter_shared_slot(kind))
    }

    #[inline(always)]
    fn charge_shared(&self, _: &Arrival, slot: u32, passed: Reason) -> Option<Reason> {
        done(limiter_charge_shared(slot, passed as u32))
    }

    #[inline(always)]
    fn draw(&self, _: &Arrival, slot: u32, ask: Ask, now_ns: u64) -> Option<bool> {
        answer(limiter_draw(slot, ask as u32, now_ns))
    }

    #[inline(always)]
    fn convert(&self, index: u32, former: u32, slot: u32, tat: u64, now: Ticks) -> Option<bool> {
        answer(limiter_convert(index, former, slot, tat, now))
    }

    #[inline(always)]
    fn ask_window(&self, at: u32, question: Question, word: u64, now: Ticks, cost: u64) -> u64 {
        limiter_window(at, question as u32, word, now, cost)
    }

    #[inline(always)]
    fn is_known(&self, _: &Arrival, now_ns: u64) -> Option<bool> {
        answer(limiter_is_known(now_ns))
    }
}

/// The outcome of a step that no other CPU contends with.
#[inline(always)]
fn done(bits: u32) -> Option<Reason> {
    match Attempt::from_bits(bits) {
        Some(Attempt::Done(reason)) => Some(reason),
        _ => None,
    }
}

/// Neither yes nor no: the state lacks something.
const NO_ANSWER: u32 = 2;

/// The answer to a question, as a number that a function can return.
#[inline(always)]
fn bits(answer: Option<bool>) -> u32 {
    answer.map_or(NO_ANSWER, u32::from)
}

/// The answer that has become `bits`.
#[inline(always)]
fn answer(bits: u32) -> Option<bool> {
    (bits != NO_ANSWER).then_some(bits == 1)
}

/// A slot, as a number that a function can return: it and one, 0 if there is none.
#[inline(always)]
fn number(slot: Option<Option<u32>>) -> u64 {
    slot.map_or(MISSING, |slot| slot.map_or(0, |slot| u64::from(slot) + 1))
}

/// The slot that has become `number`.
#[inline(always)]
fn slot(number: u64) -> Option<Option<u32>> {
    (number != MISSING).then(|| number.checked_sub(1).map(|slot| slot as u32))
}

/// The maps, and the packet in hand.
#[inline(always)]
fn in_hand(hand: u32) -> Option<(Kernel, &'static Arrival)> {
    // SAFETY: as in `take_up`, which has written it for the packet that this program judges.
    let packet = unsafe { &*ARRIVAL.get_ptr(hand)? };
    Some((Kernel::new()?.with_hand(hand), packet))
}

/// Where an IP header is, and of which version, as a number.
#[inline(always)]
fn place(ip: &Ip) -> u32 {
    u32::from(ip.offset) << 2 | u32::from(ip.malformed) << 1 | u32::from(ip.version == Version::V6)
}

/// The IP header at a [`place`].
#[inline(always)]
fn ip_at(place: u32, source: SourceKey) -> Ip {
    let version = if place & 1 == 0 { Version::V4 } else { Version::V6 };
    // The mask, which changes nothing, goes with the number to the stack and back. A comparison does not, for the
    // verifier of Linux 6.1.
    let offset = (place >> 2) as u16 & MAX_OFFSET as u16;
    Ip { version, source, offset, malformed: place & 2 != 0 }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_is_link_control(ctx: *mut xdp_md, at: u32, high: u64, low: u64) -> u32 {
    let frame = Frame::new(&XdpContext::new(ctx));
    u32::from(is_link_control(&frame, &ip_at(at, SourceKey { high, low })))
}

/// The [`place`] of the IP header in a tunnel that is looked into, or 0. Its source is laid in hand, as the group's.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_inner(ctx: *mut xdp_md, at: u32, high: u64, low: u64) -> u32 {
    let Some(kernel) = Kernel::new() else { return 0 };
    let Some(hand) = ARRIVAL.get_ptr_mut(GROUP) else { return 0 };
    let (frame, outer) = (Frame::new(&XdpContext::new(ctx)), ip_at(at, SourceKey { high, low }));
    let Some(inner) = steps::inner_ip(&kernel, &frame, &outer) else { return 0 };
    // SAFETY: as in `take_up`.
    unsafe { (&raw mut (*hand).source).write(inner.source) };
    place(&inner)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_classify(ctx: *mut xdp_md, at: u32, high: u64, low: u64) -> u64 {
    let Some(kernel) = Kernel::new() else { return MISSING };
    let (frame, source) = (Frame::new(&XdpContext::new(ctx)), SourceKey { high, low });
    let ip = ip_at(at, source);
    let Some((found, destination)) = steps::classify(&kernel, &frame, &ip, source) else {
        return MISSING;
    };
    if kernel.features().has(Features::DESTINATIONS) {
        let Some(hand) = ARRIVAL.get_ptr_mut(DESTINATION) else { return MISSING };
        // SAFETY: as in `take_up`.
        unsafe { (&raw mut (*hand).source).write(destination) };
    }
    found.0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_entry() -> u64 {
    let Some((kernel, packet)) = in_hand(0) else { return MISSING };
    steps::entry(&kernel, packet).map_or(MISSING, |entry| entry.0)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_of_group() -> u32 {
    // Looked up first: else the verifier of Linux 6.1 sees reads of what only some ways have written.
    let (Some((kernel, packet)), Some(at)) = (in_hand(0), ARRIVAL.get_ptr_mut(GROUP)) else {
        return Attempt::to_bits(None);
    };
    lay(steps::of_group(&kernel, packet), at, Reason::BelowGate, Reason::OverGroup)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_of_destination(passed: u32) -> u32 {
    // As in `limiter_of_group`.
    let (Some((kernel, packet)), Some(at)) = (in_hand(0), ARRIVAL.get_ptr_mut(DESTINATION)) else {
        return Attempt::to_bits(None);
    };
    // SAFETY: as in `take_up`; `limiter_classify` has laid it there.
    let destination = unsafe { (*at).source };
    let whole = steps::of_destination(&kernel, packet, destination);
    lay(whole, at, Reason::from_u32(passed), Reason::OverDestination)
}

/// Lays a packet in hand as one of a whole, or tells its verdict.
#[inline(always)]
fn lay(whole: Option<Whole>, at: *mut Arrival, passed: Reason, over: Reason) -> u32 {
    let reason = match whole {
        Some(Whole::Of(arrival)) => {
            // SAFETY: as in `take_up`.
            unsafe { at.write(arrival) };
            return IN_HAND;
        }
        Some(Whole::Unlimited) => Some(passed),
        Some(Whole::Over) => Some(over),
        None => None,
    };
    Attempt::to_bits(reason.map(Attempt::Done))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_next_of_whole(again: u32, hand: u32) -> u32 {
    let next =
        in_hand(hand).and_then(|(kernel, whole)| steps::next_of_whole(&kernel, whole, again != 0));
    Next::to_bits(next)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_find_by(fingerprints: u64, hand: u32) -> u64 {
    let found =
        in_hand(hand).and_then(|(kernel, packet)| steps::find_by(&kernel, packet, fingerprints));
    number(found)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_charge(index: u32, hand: u32) -> u32 {
    let charged = in_hand(hand).and_then(|(kernel, packet)| steps::charge(&kernel, packet, index));
    Attempt::to_bits(charged)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_charge_windows(index: u32, hand: u32) -> u32 {
    let charged =
        in_hand(hand).and_then(|(kernel, packet)| steps::charge_windows(&kernel, packet, index));
    Attempt::to_bits(charged)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_renew(index: u32, hand: u32) -> u32 {
    let renewed = in_hand(hand).and_then(|(kernel, packet)| steps::renew(&kernel, packet, index));
    bits(renewed.map(|renewed| matches!(renewed, Attempt::Done(()))))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_promote(is_first: u32, hand: u32) -> u32 {
    let promoted =
        in_hand(hand).and_then(|(kernel, packet)| steps::promote(&kernel, packet, is_first != 0));
    Attempt::to_bits(promoted)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_shared_limits(passed: u32) -> u32 {
    let passed = Reason::from_u32(passed);
    let reason =
        in_hand(0).and_then(|(kernel, packet)| steps::shared_limits(&kernel, packet, passed));
    Attempt::to_bits(reason.map(Attempt::Done))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_shared_slot(kind: u64) -> u64 {
    number(in_hand(0).and_then(|(kernel, packet)| steps::shared_slot(&kernel, packet, kind)))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_charge_shared(slot: u32, passed: u32) -> u32 {
    let passed = Reason::from_u32(passed);
    let reason =
        in_hand(0).and_then(|(kernel, packet)| steps::charge_shared(&kernel, packet, slot, passed));
    Attempt::to_bits(reason.map(Attempt::Done))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_draw(slot: u32, ask: u32, now_ns: u64) -> u32 {
    let ask = Ask::from_u32(ask);
    bits(in_hand(0).and_then(|(kernel, packet)| steps::draw(&kernel, packet, slot, ask, now_ns)))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_convert(index: u32, former: u32, slot: u32, tat: u64, now: Ticks) -> u32 {
    bits(Kernel::new().and_then(|kernel| steps::convert(&kernel, index, former, slot, tat, now)))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_window(at: u32, question: u32, word: u64, now: Ticks, cost: u64) -> u64 {
    let Some(kernel) = Kernel::new() else { return 0 };
    steps::ask_window(&kernel, at, Question::from_u32(question), word, now, cost)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_is_known(now_ns: u64) -> u32 {
    bits(in_hand(0).and_then(|(kernel, packet)| steps::is_known(&kernel, packet, now_ns)))
}
