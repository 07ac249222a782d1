//! Changes look by look at the clock, between which packets come, daemons stop, and buckets change hands.

use core::cell::Cell;
use std::sync::Arc;

use super::*;
use crate::abi::CompiledTier;
use crate::schedule::explore;
use crate::share::UNIT_NS;
use crate::table::CLAIMED;

/// A moment, ns: where a unit of grants begins, so that none ends early.
const NOW: u64 = 1 << 40;
/// Later than any of this.
const LATER: u64 = NOW + 1000 * UNIT_NS;
/// A moment of a change, beside those at which the margin begins and is used up.
const SOON: u64 = MARGIN_NS / 3;
/// Too late for the margin.
const LATE: u64 = 3 * MARGIN_NS;

/// Whose bucket it is at first, and who may get it.
const TAG: u64 = 7;
const ANOTHER: u64 = 8;

/// Shares of powers of two: tokens convert without rounding, so that each one can be counted.
const WHOLE: Multiplier = Multiplier::WHOLE;
const HALF: Multiplier = Multiplier(1 << 16 | WHOLE.0);
const EIGHTH: Multiplier = Multiplier(3 << 16 | WHOLE.0);

const fn ms(ms: u64) -> Ticks {
    ticks(ms * 1_000_000)
}

/// A bucket of two tiers under a floor of an eighth.
struct Words {
    slot: Slot,
    identity: Identity,
    share: ShareSlot,
    policy: Policy,
}

impl Words {
    /// With so much credit in each tier.
    fn new(credit: [Ticks; 2]) -> Self {
        let tiers = [(ms(1), ms(100)), (ms(2), ms(300))].map(|(cost, tolerance)| CompiledTier {
            tier: Tier::of_packets(cost, tolerance),
            ..CompiledTier::unlimited(1)
        });
        let policy = Policy::new(tiers[0]).and(tiers[1]).shared_by_hosts(EIGHTH, [0; 2]);
        let words = Self {
            slot: Slot::default(),
            identity: Identity::default(),
            share: ShareSlot::default(),
            policy,
        };
        atomic::store(&words.slot.tag, TAG);
        atomic::store(&words.slot.last_seen, LastSeen::passed(NOW).0);
        atomic::store(&words.share.floor, u64::from(EIGHTH.0));
        for (number, tier, word) in words.bucket().tiers() {
            atomic::store(word, ticks(NOW) + tier.tolerance - credit[number]);
        }
        words
    }

    /// With credit that each share has room for, down to half of the one that it has.
    fn rich() -> Self {
        Self::new([ms(40), ms(80)])
    }

    /// Overdrawn by so much, which is much more than the margin, or the debt that this adds would be most of it.
    fn overdrawn(by: Ticks) -> Self {
        let words = Self::new([0; 2]);
        words.charge(by);
        words
    }

    /// With a grant until later.
    fn with(self, share: Multiplier) -> Self {
        atomic::store(&self.share.grant, Grant::new(share, LATER).0);
        self
    }

    fn bucket(&self) -> Bucket<'_> {
        Bucket::new(&self.slot, &self.identity, &self.share, &self.policy)
    }

    fn tats(&self) -> [Ticks; 2] {
        self.bucket().tats.map(atomic::load)
    }

    fn grant(&self) -> Grant {
        Grant(atomic::load(&self.share.grant))
    }

    /// What it has so long after [`NOW`] beside the one packet, by tier: in ticks of the whole limit. Less than
    /// nothing if some of the packet is missing.
    fn tokens(&self, ns: u64) -> [f64; 2] {
        let part = self.bucket().price(NOW + ns).multiplier().part();
        let now = ticks(NOW + ns);
        let tiers = [&self.policy.first, &self.policy.second];
        let mut tokens = [0.0; 2];
        for (number, tat) in self.tats().into_iter().enumerate() {
            let left = (now + tiers[number].tolerance).cast_signed() - tat.max(now).cast_signed();
            tokens[number] = left as f64 * part;
        }
        tokens
    }

    /// Packets that cost so much of each tier.
    fn charge(&self, cost: Ticks) {
        for word in self.bucket().tats {
            atomic::add(word, cost);
        }
    }

    /// Another source gets it, whose times happen to be the same.
    fn evict(&self) {
        atomic::store(&self.slot.tag, ANOTHER);
        atomic::store(&self.share.grant, Grant::nothing_at(NOW).0);
    }

    /// A change to a grant until later, whose looks at the clock are so long after [`NOW`]. At each something
    /// happens.
    fn change(&self, to: Multiplier, looks: [u64; 3], happens: impl Fn(usize)) -> Outcome {
        self.change_by(Some(Grant::new(to, LATER + UNIT_NS)), looks, happens)
    }

    fn change_by(&self, grant: Option<Grant>, looks: [u64; 3], happens: impl Fn(usize)) -> Outcome {
        let look = Cell::new(0);
        self.bucket().change(TAG, grant, || {
            let number = look.replace(look.get() + 1);
            // The last one, which only clamps, is right after the one before.
            let Some(ns) = looks.get(number) else { return NOW + looks[2] };
            happens(number);
            NOW + ns
        })
    }

    /// All that a change may write, but for what its drop cache knows.
    fn all(&self) -> ([Ticks; 2], Grant, u64) {
        (self.tats(), self.grant(), atomic::load(&self.share.floor))
    }
}

fn done(outcome: Outcome) {
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
}

fn gone(outcome: Outcome) {
    assert!(matches!(outcome, Outcome::Gone), "{outcome:?}");
}

fn lowered(outcome: Outcome) -> Lowered {
    let Outcome::Lowered(lowered) = outcome else { panic!("{outcome:?}") };
    lowered
}

/// Time earns at the larger share from the last look on, however late that is: no tokens come of the change (P6).
/// And none are lost, or a conforming packet could lack one (P1).
#[test]
fn a_raise_brings_no_tokens_and_takes_none() {
    for looks in [
        [0, 0, 0],
        [0, SOON, SOON],
        [0, 0, MARGIN_NS],
        [0, MARGIN_NS, MARGIN_NS],
        [0, MARGIN_NS, MARGIN_NS + 1],
        [0, SOON, LATE],
    ] {
        let words = Words::rich();
        let before = words.tokens(0);
        done(words.change(WHOLE, looks, |look| {
            // Whoever dies here leaves no more behind.
            let ns = looks[look].min(MARGIN_NS);
            let earned = ticks(ns) as f64 * EIGHTH.part();
            for (has, had) in words.tokens(ns).into_iter().zip(before) {
                assert!(has <= had + earned, "{looks:?} {look}: {has} of {had}");
            }
        }));
        assert_eq!(words.tokens(looks[2]), before, "{looks:?}");
        assert_eq!(words.bucket().price(NOW).multiplier(), WHOLE);
    }
}

#[test]
fn packets_between_the_looks_are_paid() {
    for at in [1, 2] {
        let words = Words::rich();
        let before = words.tokens(0);
        let cost = ms(1);
        done(words.change(WHOLE, [0, SOON, 2 * SOON], |look| {
            if look == at {
                words.charge(cost);
            }
        }));
        assert_eq!(words.tokens(2 * SOON), before.map(|tokens| tokens - cost as f64), "{at}");
    }
}

/// The debt that was added first makes up for the margin and no more.
#[test]
fn a_raise_that_is_late_is_not_made() {
    let words = Words::rich();
    let grant = words.grant();
    let late = words.change(WHOLE, [0, MARGIN_NS + 1, MARGIN_NS + 1], |_| ());
    assert!(matches!(late, Outcome::Missed));
    assert_eq!(words.grant(), grant);
}

/// A daemon renews each share again and again: if that cost anything, conforming packets would be dropped (P1).
#[test]
fn a_share_that_is_renewed_costs_nothing() {
    for took in [0, SOON, MARGIN_NS] {
        let words = Words::rich().with(HALF);
        // Its next packet need not look at it, either.
        let last_seen = LastSeen::over_limit(NOW, 100_000_000);
        atomic::store(&words.slot.last_seen, last_seen.0);
        let (grant, before) = (words.grant(), words.tats());
        done(words.change(HALF, [0, took, took], |look| {
            assert_eq!(words.tats(), before, "{took} {look}");
            assert_eq!(words.bucket().price(NOW).multiplier(), HALF, "{took} {look}");
        }));
        assert_eq!((words.tats(), atomic::load(&words.slot.last_seen)), (before, last_seen.0));
        assert!(words.grant() != grant, "it lasts longer");
    }
}

/// The former grant may have ended before the word was written: what was earned since is in doubt, so it is not
/// counted (P6).
#[test]
fn what_takes_too_long_earns_nothing_meanwhile() {
    for to in [HALF, EIGHTH] {
        let words = Words::rich().with(HALF);
        let before = words.tats();
        words.change(to, [0, SOON, LATE], |_| ());
        assert_eq!(words.tats(), before.map(|tat| tat + ticks(LATE)), "{to:?}");
    }
}

/// Packets could meet its end while the change reckons with it: the credit that they leave would be worth too much
/// (P6).
#[test]
fn a_grant_that_is_about_to_end_ends_first() {
    let words = Words::rich();
    atomic::store(&words.share.grant, Grant::new(HALF, NOW + UNIT_NS).0);
    let at = UNIT_NS - SOON;
    assert_eq!(words.bucket().price(NOW + at).multiplier(), HALF);
    let before = words.tokens(at);
    done(words.change(WHOLE, [at; 3], |look| {
        let share = words.bucket().price(NOW + at).multiplier();
        assert_eq!(share, [HALF, EIGHTH, WHOLE][look], "{look}");
    }));
    // As if it had ended before.
    let at_the_floor = |tokens| tokens * EIGHTH.part() / HALF.part();
    assert_eq!(words.tokens(at), before.map(at_the_floor));
}

/// An overdrawn bucket's debt becomes longer, which the kernel knows of a grant's end.
#[test]
fn a_lower_share_begins_with_the_end_of_the_grant() {
    let words = Words::rich().with(WHOLE);
    lowered(words.change(HALF, [0, SOON, SOON], |look| {
        let share = words.bucket().price(NOW).multiplier();
        assert_eq!(share, [WHOLE, EIGHTH, HALF][look], "{look}");
    }));
}

/// Less is missing at the larger share, also of what is beyond an empty bucket: CPUs that met have overdrawn that.
#[test]
fn a_raise_shortens_the_debt_of_who_is_overdrawn() {
    for by in [ms(800), ms(1000)] {
        let words = Words::overdrawn(by);
        let before = words.tokens(0);
        done(words.change(HALF, [0, SOON, 2 * SOON], |_| ()));
        // It earned at the former share until then.
        let earned = ticks(2 * SOON) as f64 * EIGHTH.part();
        for (has, had) in words.tokens(2 * SOON).into_iter().zip(before) {
            assert!(has <= had + earned && has + 1.0 > had + earned, "{has} of {had}");
        }
    }
}

/// A packet that comes before the shorter debt is written keeps the long one, as far as the bucket has room for it.
#[test]
fn a_packet_in_between_costs_an_overdrawn_bucket_no_more_than_an_empty_one_lacks() {
    let raised = |by| {
        let words = Words::overdrawn(by);
        let before = words.tats();
        done(words.change(HALF, [0, SOON, 2 * SOON], |look| {
            if look == 2 {
                words.charge(ms(1));
            }
        }));
        (before, words)
    };
    let (before, words) = raised(ms(100));
    assert_eq!(words.tats(), before.map(|tat| tat + ms(1)));
    let (_, words) = raised(ms(800));
    // The burst floor and a packet: the home share is all of the limit.
    let lacks = |tier: &Tier| -((tier.tolerance + tier.cost(LARGEST_FRAME)) as f64);
    let Policy { first, second, .. } = &words.policy;
    assert_eq!(words.tokens(2 * SOON), [lacks(first), lacks(second)]);
}

/// No debt and no share of the former source is left to it, at whichever look it comes and whatever the change
/// would do.
#[test]
fn who_gets_the_bucket_midway_gets_it_as_it_is() {
    let cases: [(fn() -> Words, Multiplier); 4] = [
        (Words::rich, WHOLE),
        (|| Words::overdrawn(ms(800)), WHOLE),
        (|| Words::rich().with(WHOLE), WHOLE),
        (|| Words::rich().with(WHOLE), HALF),
    ];
    for (words, to) in cases {
        for took in [SOON, LATE] {
            for at in 0..3 {
                let words = words();
                let left = Cell::new(None);
                let outcome = words.change(to, [0, SOON, took], |look| {
                    if look == at {
                        words.evict();
                        left.set(Some(words.all()));
                    }
                });
                assert_eq!(Some(words.all()), left.get(), "{to:?} {took} {at}");
                if at < 2 {
                    gone(outcome);
                }
            }
        }
    }
}

/// Whoever replaces the source claims the time first, and takes off the tag after it.
#[test]
fn a_bucket_that_is_claimed_is_left_alone() {
    for at in 0..3 {
        let words = Words::rich();
        let outcome = words.change(WHOLE, [0, SOON, SOON], |look| {
            if look == at {
                atomic::store(&words.slot.tat, CLAIMED);
            }
        });
        assert_eq!(words.tats()[0], CLAIMED, "{at}");
        if at == 0 {
            gone(outcome);
            assert!(!words.grant().holds(NOW), "it has none of the former source");
        }
    }
}

#[test]
fn a_grant_of_another_source_is_not_ended() {
    let words = Words::rich().with(WHOLE);
    let before = words.all();
    let grant = Some(Grant::new(HALF, LATER));
    gone(words.bucket().change(ANOTHER, grant, || NOW));
    assert_eq!(words.all(), before);
}

#[test]
fn a_limit_that_is_this_hosts_alone_has_no_share() {
    let mut words = Words::rich().with(WHOLE);
    words.policy.flags &= !Policy::CLUSTER;
    let before = words.all();
    gone(words.change(HALF, [0; 3], |_| ()));
    assert_eq!(words.all(), before);
}

/// A bucket has the floor of its policy once it is told.
#[test]
fn a_bucket_gets_the_floor_of_its_policy() {
    for floor in [HALF, EIGHTH, Multiplier(4 << 16 | WHOLE.0)] {
        let mut words = Words::rich();
        words.policy.floor = floor.0;
        let outcome = words.change_by(None, [0; 3], |_| ());
        assert!(matches!(outcome, Outcome::Done | Outcome::Lowered(_)), "{floor:?}: {outcome:?}");
        assert_eq!(atomic::load(&words.share.floor), u64::from(floor.0));
        assert_eq!(words.bucket().price(NOW).multiplier(), floor);
    }
    // A packet under a newer policy has come in between, and has written a lower one.
    let mut words = Words::rich();
    words.policy.floor = HALF.0;
    let newer = u64::from(EIGHTH.0 + 1);
    gone(words.change(WHOLE, [0; 3], |look| {
        if look == 1 {
            atomic::store(&words.share.floor, newer);
        }
    }));
    assert_eq!(atomic::load(&words.share.floor), newer);
    assert!(!words.grant().holds(NOW));
}

/// What credit is worth less is owed to the source that had it, under the share that took it.
#[test]
fn only_who_was_lowered_is_given_back() {
    let lower = || {
        let words = Words::rich().with(WHOLE);
        let before = words.tokens(0);
        let owed = lowered(words.change(HALF, [0; 3], |_| ()));
        (words, owed, before)
    };
    let (words, owed, before) = lower();
    assert_eq!(words.tokens(0), before.map(|tokens| tokens / 2.0));
    owed.give_back(&words.bucket());
    assert_eq!(words.tokens(0), before);
    let kept = |happens: fn(&Words)| {
        let (words, owed, _) = lower();
        happens(&words);
        let tats = words.tats();
        owed.give_back(&words.bucket());
        assert_eq!(words.tats(), tats);
    };
    kept(|words| atomic::store(&words.slot.tag, ANOTHER));
    kept(|words| atomic::store(&words.share.grant, Grant::new(HALF, LATER).0));
    let (words, owed, _) = lower();
    atomic::store(&words.slot.tat, CLAIMED);
    owed.give_back(&words.bucket());
    assert_eq!(words.tats()[0], CLAIMED);
}

/// A packet between a look at the time and its replacement makes the change look again.
#[test]
fn a_few_packets_keep_nobody_from_a_share() {
    const SCHEDULES: usize = 200;
    const PACKETS: u64 = 3;
    explore(SCHEDULES, || {
        let words = Arc::new(Words::rich());
        let before = words.tokens(0);
        let cost = ms(1);
        let packets = Arc::clone(&words);
        let cpu = shuttle::thread::spawn(move || (0..PACKETS).for_each(|_| packets.charge(cost)));
        done(words.change(HALF, [0; 3], |_| ()));
        cpu.join().expect("a CPU ends");
        for (has, had) in words.tokens(0).into_iter().zip(before) {
            // A tick is worth an eighth of one before the change, and half of one after it.
            let paid = had - has;
            let packets = (PACKETS * cost) as f64;
            assert!((packets * EIGHTH.part()..=packets * HALF.part()).contains(&paid), "{paid}");
        }
    });
}

#[test]
fn a_larger_floor_is_there_before_the_grant_that_comes_with_it() {
    let mut words = Words::rich();
    words.policy = words.policy.shared_by_hosts(HALF, [0; 2]);
    let (before, grant) = (words.grant(), Grant::new(WHOLE, LATER));
    let floor = || atomic::load(&words.share.floor) as u32;
    let with_the_old_grant = Cell::new(false);
    let outcome = words.bucket().change(TAG, Some(grant), || {
        let is_between = floor() == HALF.0 && words.grant() == before;
        with_the_old_grant.set(with_the_old_grant.get() || is_between);
        NOW
    });
    assert!(matches!(outcome, Outcome::Done) && with_the_old_grant.get());
    assert_eq!((floor(), words.grant()), (HALF.0, grant));
}
