use super::*;
use crate::abi::{CompiledTier, Policy};
use crate::floor::Floor;
use crate::share_change::{converted, surplus, worth};
use proptest::prelude::*;

/// Shares of the whole limit and of next to nothing alike.
fn units() -> impl Strategy<Value = u64> {
    prop_oneof![4096u64..=1 << 32, 4096u64..1 << 16, 1u64 << 31..=1 << 32]
}

fn multiplier() -> impl Strategy<Value = Multiplier> {
    units().prop_map(Multiplier::from_units)
}

proptest! {
    #[test]
    fn a_multiplier_is_of_no_more_than_the_share(units in units()) {
        let share = units as f64 / (1u64 << 32) as f64;
        let multiplier = Multiplier::from_units(units);
        let part = multiplier.part();
        let least = share * (1.0 - 1.0 / 32_768.0);
        prop_assert!((least..=share).contains(&part), "{} {}", share, part);
        prop_assert!(multiplier.0 & Multiplier::VALID != 0 && multiplier.0 >> Multiplier::BITS == 0);
    }

    #[test]
    fn the_greater_number_is_the_smaller_share(one in units(), other in units()) {
        let [one_is, other_is] = [one, other].map(Multiplier::from_units);
        if one < other {
            prop_assert!(one_is >= other_is && one_is.part() <= other_is.part());
        }
    }

    #[test]
    fn a_cost_is_rounded_up_and_never_overflows(
        multiplier in multiplier(), cost in prop_oneof![0u64..1 << 20, 0..=MAX_SHARED_COST],
    ) {
        let raised = multiplier.cost(cost);
        let exact = cost as f64 / multiplier.part();
        if exact > 2.0 * NEVER as f64 {
            prop_assert_eq!(raised, NEVER);
        } else if exact < 0.5 * NEVER as f64 {
            prop_assert!(raised as f64 >= exact * (1.0 - 1e-12), "{} {}", raised, exact);
            prop_assert!(raised as f64 <= exact * (1.0 + 1e-12) + 1.0, "{} {}", raised, exact);
        }
        prop_assert!(raised >= cost && raised <= NEVER);
        prop_assert_eq!(Multiplier::WHOLE.cost(cost), cost);
        prop_assert_eq!(multiplier.cost(MAX_SHARED_COST + 1), NEVER);
    }

    #[test]
    fn a_grant_ends_early_and_never_late(
        multiplier in multiplier(), until in 0u64..1 << 60, off in -3_000_000i64..3_000_000,
    ) {
        let grant = Grant::new(multiplier, until);
        prop_assert_eq!(grant.multiplier(), multiplier);
        let now = until.saturating_add_signed(off);
        if grant.holds(now) {
            prop_assert!(now < until);
        } else {
            prop_assert!(now + UNIT_NS > until);
        }
        prop_assert!(grant.until_ns() <= until);
    }

    #[test]
    fn a_new_bucket_has_no_grant_and_a_word_of_its_own(one in 0u64..1 << 60, other in 0u64..1 << 60) {
        let grant = Grant::nothing_at(one);
        prop_assert!(!grant.holds(0) && !grant.holds(one));
        prop_assert_eq!(grant == Grant::nothing_at(other), one == other);
    }

    /// Neither way brings tokens, and what is taken is what there is no room for.
    #[test]
    fn a_change_of_the_share_keeps_the_tokens_that_there_is_room_for(
        from in multiplier(), to in multiplier(),
        tolerance in 1_000u64..1 << 50, debt in 0.0f64..1.2,
    ) {
        let now = 1 << 56;
        let tat = now + (tolerance as f64 * debt) as u64;
        // Beside the one packet; less than nothing where some of that is missing.
        let left = i128::from(now + tolerance) - i128::from(tat);
        let tokens = left as f64 * from.part();
        let room = tolerance as f64 * to.part();
        let after = converted(tat, now, tolerance, from, to);
        let kept = (i128::from(now + tolerance) - i128::from(after)) as f64 * to.part();
        let wanted = tokens.min(room);
        // Nothing takes longer than a packet that never comes.
        prop_assume!(after < now + tolerance + NEVER);
        prop_assert!(kept <= wanted + wanted.abs() * 1e-11, "{} {}", kept, wanted);
        prop_assert!(kept >= wanted - wanted.abs() * 1e-11 - 1.0, "{} {}", kept, wanted);
        let left = left.max(0) as f64;
        let tokens = tokens.max(0.0);
        if to >= from && left > 0.0 {
            let surplus = surplus([tat, tat], now, tolerance, from, to);
            let lower = (tat.min(now + tolerance) - surplus).max(now);
            prop_assert_eq!(lower.max(after), after.max(now), "{} {}", lower, after);
        }
        // What is charged before the larger share is gone counts as that much less.
        let charged = tolerance / 100;
        if to > from && tat < now + tolerance - charged {
            let surplus = surplus([tat, tat + charged], now, tolerance, from, to);
            let kept = (now + tolerance - (tat + charged - surplus).max(now)) as f64 * to.part();
            let wanted = (tokens - charged as f64 * from.part()).max(0.0).min(room);
            prop_assert!(kept <= wanted.max((left - charged as f64) * to.part()) + 1.0);
        }
    }

    /// Who is overdrawn when a share becomes smaller by itself has no more tokens after it, and at least half of
    /// what it had, or nothing.
    #[test]
    fn a_share_that_lapses_brings_no_tokens(
        from in multiplier(), to in multiplier(), cost in 1u64..1 << 30, tolerance in 0u64..1 << 40,
        missing in 0.0f64..1.0,
    ) {
        let (from, to) = (from.min(to), from.max(to));
        let lapse = Lapse { at: 1 << 56, from, to };
        let missing = (from.cost(cost) as f64 * missing) as u64;
        let end = lapse.at + tolerance;
        let most = to.cost(cost);
        let after = lapse.apply(end + missing, tolerance, most) - end;
        let exact = converted(end + missing, lapse.at, tolerance, from, to) - end;
        prop_assert!(after <= most && after <= 2 * exact, "{} {} {}", after, exact, most);
        prop_assert!(after + 2 >= exact.min(most), "{} {}", after, exact);
        prop_assert!(lapse.spares(end, tolerance) && lapse.apply(end, tolerance, most) == end);
    }

    /// Whoever has no bucket when the floor is raised, once or often, has no more tokens after it.
    #[test]
    fn a_larger_floor_fills_no_bucket(
        steps in prop::collection::vec((units(), 0u64..1 << 40), 1..20), tolerance in 1_000u64..1 << 40,
    ) {
        let mut now = 1u64 << 50;
        let mut floor = Floor::new(Multiplier::from_units(1 << 30), 0);
        let tokens = |floor: &Floor, now: u64| {
            crate::gcra::credit(floor.filled(tolerance), now, tolerance) as f64 * floor.share().part()
        };
        for (units, gap) in steps {
            let start = now;
            let before = tokens(&floor, now);
            now += gap;
            let earned = tokens(&floor, now);
            prop_assert!(earned - before <= (now - start) as f64 * floor.share().part() + 1.0);
            floor = floor.becoming(Multiplier::from_units(units), now);
            prop_assert!(tokens(&floor, now) <= earned * (1.0 + 1e-12), "{:?}", floor);
        }
    }
}

#[test]
fn ends_of_the_range() {
    assert_eq!(Multiplier::from_units(1 << 32), Multiplier::WHOLE);
    assert_eq!(Multiplier::from_units(u64::MAX), Multiplier::WHOLE);
    for nothing in [Multiplier::from_units(0), Multiplier::from_units(2047)] {
        assert!(nothing.is_nothing() && nothing.part() == 0.0 && nothing.cost(0) == NEVER);
    }
    assert!(!Grant::NOTHING.holds(0));
    // What a share of nothing holds is worth nothing, and keeps its time.
    assert_eq!(worth(77, Multiplier::NOTHING, Multiplier::WHOLE, 100), 0);
    assert_eq!(worth(77, Multiplier::WHOLE, Multiplier::NOTHING, 100), 77);
}

#[test]
fn a_policy_keeps_its_floor_and_its_flags() {
    for units in [0, 5000, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 32] {
        let floor = Multiplier::from_units(units);
        let [first, second, shadow] = [9, 7, 3].map(CompiledTier::unlimited);
        let plain = Policy::new(first).and(second).observing();
        let policy = plain.shared_by_hosts(floor, [5 << 32, (7 << 32) + 1]);
        assert!(policy.whole().is_cluster() && !plain.whole().is_cluster());
        assert!(
            policy.whole().has_second()
                && policy.whole().observes()
                && !policy.whole().has_shadow()
        );
        assert_eq!((policy.gate, policy.floor()), (7, floor));
        assert_eq!(policy.filled(), [5 << 32, (7 << 32) + 1]);
        // A shadow leaves it as it is.
        let with_shadow = policy.with_shadow(shadow, 4);
        assert_eq!((with_shadow.filled(), with_shadow.floor()), (policy.filled(), policy.floor()));
        assert_eq!((with_shadow.shadow_id, with_shadow.gate), (4, 3));
    }
}

#[test]
fn many_raises_are_remembered_as_fewer() {
    let mut floor = Floor::new(Multiplier::from_units(1 << 20), 0);
    for step in 1..2000u64 {
        floor = floor.becoming(Multiplier::from_units((1 << 20) + step * 1000), (1 << 50) + step);
    }
    assert!(floor.filled(1 << 40) > 1 << 50);
    // Long after, none of it matters.
    let later = floor.becoming(Multiplier::WHOLE, 1 << 60);
    assert_eq!(later.clone().becoming(Multiplier::NOTHING, 1 << 61).filled(1 << 40), 0);
    assert!(later.filled(1 << 40) > 1 << 60);
}
