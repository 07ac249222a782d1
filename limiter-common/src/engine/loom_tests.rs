//! Two CPUs that meet in one decision, in every order of their accesses that memory allows: also where it is
//! weaker than x86's. Run by `cargo xtask schedules`.

use std::sync::Arc;
use std::vec::Vec;

use super::lookup::{SlotRef, charge_found};
use super::memory::{Cpu, Memory};
use super::planted::{self, Charge, Renew};
use super::tests::{PERIOD, limiter, policy, quick, source, tier};
use super::*;
use crate::abi::PolicyWord;
use crate::orders::explore;
use crate::table::WAYS;

/// Whether some order fails the scenario, which has a bug.
fn finds(scenario: impl Fn() + Send + Sync + 'static) -> bool {
    let run = || explore("planted", scenario);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
}

/// A packet in hand on a CPU that knows no class.
fn arrival(cpu: &Cpu<'_>, number: u32) -> Arrival {
    let source = source(number);
    let hash = cpu.hash(source).of_class(Classified::NONE.limited());
    let published = PolicyWord(atomic::load(&cpu.config().expect("there is one").policy));
    let (coarse_ns, set) = (cpu.now_coarse(), crate::table::set_of(hash, cpu.set_mask()));
    let classified = Classified::NONE;
    Arrival { source, classified, hash, coarse_ns, wall_ns: coarse_ns, published, length: 100, set }
}

/// What a CPU does.
#[derive(Clone, Copy)]
enum Step {
    /// Charges a packet of a source to the bucket in a slot.
    Charge(u32, u32),
    /// Gives a source a bucket.
    Promote(u32),
}

impl Step {
    /// Takes the step; whether the packet passed. `None` if another CPU was faster.
    fn take(self, cpu: &Cpu<'_>) -> Option<bool> {
        let outcome = match self {
            Self::Charge(number, slot) => {
                let found = SlotRef::new(cpu, slot).expect("there is one");
                charge_found(cpu, &found, &arrival(cpu, number))
            }
            Self::Promote(number) => {
                let packet = arrival(cpu, number);
                sketched::add(cpu, cpu.config().expect("there is one"), &packet, 1);
                cpu.promote(&packet, true)
            }
        };
        match outcome.expect("memory is complete") {
            Attempt::Done(reason) => Some(reason.passes()),
            Attempt::Contended => None,
        }
    }
}

/// Lets each CPU take steps, one after the other; returns what became of the last one of each.
fn at_once(memory: &Arc<Memory>, steps: [&'static [Step]; 2]) -> Vec<Option<bool>> {
    let cpus: Vec<_> = steps
        .into_iter()
        .zip(0..)
        .map(|(steps, number)| {
            let memory = Arc::clone(memory);
            let take = move || steps.iter().map(|step| step.take(&memory.cpu(number))).last();
            loom::thread::spawn(move || take().flatten())
        })
        .collect();
    cpus.into_iter().map(|cpu| cpu.join().expect("a CPU ends")).collect()
}

/// A packet of the source 7 to its bucket: the first that is made is in the first way.
const CHARGE: Step = Step::Charge(7, 0);

/// A memory of one set, where the source 7 has a bucket, which is full.
fn with_a_bucket(limit: Policy, planted: Option<Charge>) -> Memory {
    let mut memory = limiter(limit, 1, 1 << 3, 2);
    memory.planted = planted;
    assert_eq!(Step::Promote(7).take(&memory.cpu(0)), Some(true));
    memory.advance(100 * PERIOD);
    memory
}

/// The same, where that bucket is the only one to be had: two ways are for other limits, and in the others are
/// sources that owe too much to make room.
fn with_neighbours(planted: Option<Charge>) -> Memory {
    let memory = with_a_bucket(quick(8), planted);
    for (number, way) in (100..).zip(3..WAYS) {
        assert_eq!(in_turn(&memory, Step::Promote(number), 1), 1);
        assert_eq!(in_turn(&memory, Step::Charge(number, way), 2), 2);
    }
    memory
}

/// How often a step passes, of `count` one after the other.
fn in_turn(memory: &Memory, step: Step, count: u32) -> usize {
    (0..count).filter(|_| step.take(&memory.cpu(0)) == Some(true)).count()
}

fn a_bucket_is_emptied(limit: Policy, planted: Option<Charge>) {
    let memory = Arc::new(with_a_bucket(limit, planted));
    let passed = at_once(&memory, [&[CHARGE], &[CHARGE]]);
    assert_eq!(passed, [Some(true), Some(true)]);
    assert_eq!(in_turn(&memory, CHARGE, 1), 0);
    memory.advance(PERIOD);
    assert_eq!(in_turn(&memory, CHARGE, 2), 1);
}

#[test]
fn whatever_two_cpus_take_is_charged() {
    explore("one tier", || a_bucket_is_emptied(quick(2), None));
    explore("two tiers", || a_bucket_is_emptied(quick(2).and(tier(1000, 2)), None));
    assert!(finds(|| a_bucket_is_emptied(quick(2), Some(planted::overdraws))));
}

fn a_bucket_was_idle(limit: Policy, planted: Option<Charge>) {
    let memory = Arc::new(with_a_bucket(limit, planted));
    assert_eq!(at_once(&memory, [&[CHARGE], &[CHARGE]]), [Some(true), Some(true)]);
    assert_eq!(in_turn(&memory, CHARGE, 9), 3);
}

#[test]
fn an_idle_bucket_owes_packets_alone() {
    explore("idle, one tier", || a_bucket_was_idle(quick(5), None));
    explore("idle, two tiers", || a_bucket_was_idle(quick(5).and(tier(1000, 5)), None));
    assert!(finds(|| a_bucket_was_idle(quick(5), Some(planted::charges_idle_time))));
}

/// A source gets the slot of another one, whose policy is being looked up.
fn a_slot_changes_hands(planted: Option<Renew>) {
    let mut memory = with_neighbours(None);
    memory.planted_renewal = planted;
    memory.policies.push(policy(1, 8));
    memory.limits.insert((0, source(7)), 2);
    memory.publish(2, 1);
    let memory = Arc::new(memory);
    at_once(&memory, [&[CHARGE], &[Step::Promote(8)]]);
    for (number, slot) in [(7, 2), (8, 1)] {
        if let Some(bucket) = memory.slot_of(source(number)) {
            let resolved = PolicyWord(atomic::load(&bucket.policy));
            assert_eq!(resolved.slot(), slot, "{number} has the limit of another source");
        }
    }
    memory.assert_sound();
}

#[test]
fn who_gets_a_slot_while_a_policy_is_looked_up_keeps_its_own() {
    explore("a slot changes hands", || a_slot_changes_hands(None));
    assert!(finds(|| a_slot_changes_hands(Some(planted::keeps_its_policy))));
}

/// Two sources want the bucket of a third one, which uses it.
fn a_way_is_wanted_by_two(planted: Option<Charge>) {
    let memory = Arc::new(with_neighbours(planted));
    at_once(&memory, [&[CHARGE, Step::Promote(9)], &[Step::Promote(8)]]);
    memory.assert_sound();
}

#[test]
fn a_bucket_that_is_being_filled_is_closed() {
    explore("a way is wanted by two", || a_way_is_wanted_by_two(None));
    assert!(finds(|| a_way_is_wanted_by_two(Some(planted::opens_the_lock))));
}

#[test]
fn a_source_that_two_cpus_meet_first_gets_one_bucket() {
    explore("two promotions", || {
        let memory = Arc::new(limiter(quick(4), 1, 1 << 3, 2));
        let passed = at_once(&memory, [&[Step::Promote(7)], &[Step::Promote(7)]]);
        assert!(passed.iter().any(|passed| *passed != Some(false)), "{passed:?}");
        memory.assert_sound();
        assert!(memory.tracked().count() <= 1);
        // Nor had it another one before, with what it owed.
        assert!(memory.internal(Internal::Promotions) <= 1);
    });
}
