use super::*;
use crate::abi::{CompiledTier, Policy};
use crate::floor::Floor;
use crate::share_change::{converted, surplus, worth};
use proptest::prelude::*;
use std::vec::Vec;

/// Shares of the whole limit and of next to nothing alike.
fn units() -> impl Strategy<Value = u64> {
    prop_oneof![4096u64..=1 << 32, 4096u64..1 << 16, 1u64 << 31..=1 << 32]
}

fn multiplier() -> impl Strategy<Value = Multiplier> {
    units().prop_map(Multiplier::from_units)
}

/// 2^-n.
fn part_of_two(n: u32) -> Multiplier {
    Multiplier::from_units(1 << (32 - n))
}

/// Those at both ends of the range of each exponent, where a carry could go wrong.
fn edges() -> impl Iterator<Item = Multiplier> {
    let mantissas = [0x8000, 0x8001, 0xfffe, 0xffff];
    (0..=MAX_EXPONENT).flat_map(move |e| mantissas.map(|mantissa| Multiplier(e << 16 | mantissa)))
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

    /// Of a floor of home share h it is h of the tolerance, so that all hosts' are no more than that.
    #[test]
    fn a_burst_floor_is_the_home_shares_part_of_the_tolerance(
        home in 0.0f64..=1.0, tolerance in prop_oneof![0u64..1 << 20, 0..=MAX_TOLERANCE],
    ) {
        let floor = Multiplier::from_units((home / FLOORS as f64 * (1u64 << 32) as f64) as u64);
        let burst_floor = burst_floor(floor.home(), tolerance);
        // What takes minutes is divided no further.
        let exact = home * tolerance.min(MAX_SHARED_COST) as f64;
        prop_assert!(burst_floor as f64 <= exact, "{} {}", burst_floor, exact);
        let least = exact - tolerance.min(MAX_SHARED_COST) as f64 / 32_768.0 * 3.0 - 1.0;
        prop_assert!(floor.is_nothing() || burst_floor as f64 >= least, "{} {}", burst_floor, least);
        // It is worth more time at a smaller share, and nobody's beside a limit of this host alone.
        prop_assert_eq!(CostMultiplier::LOCAL.room(tolerance), tolerance);
        prop_assume!(!floor.is_nothing());
        let room = CostMultiplier::from_share(floor, floor.home()).room(tolerance);
        let exact = tolerance as f64 + burst_floor as f64 / floor.part();
        prop_assert!(room as f64 <= exact, "{} {}", room, exact);
        prop_assert!((exact - room as f64) * floor.part() <= 2.0, "{} {}", room, exact);
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

    /// Each time makes a word of its own: all of its bits are there, beside the one that a multiplier has.
    #[test]
    fn a_new_buckets_word_tells_when_it_was_made(now in 0u64..1 << 63, at in 0u64..1 << 63) {
        let grant = Grant::nothing_at(now);
        let (above, below) = (grant.0 >> (FRACTION + 1), grant.0 & (u64::from(Multiplier::VALID) - 1));
        prop_assert_eq!(above << FRACTION | below, now);
        // No packet ever met it, so that it lets no share lapse.
        prop_assert!(!grant.met(at) && !grant.met(now) && !grant.holds(at));
    }

    #[test]
    fn a_grant_that_is_ended_is_the_same_until_then(
        multiplier in multiplier(), until in 1u64 << 30..1 << 60, off in -3_000_000i64..3_000_000, before: u64,
    ) {
        let grant = Grant::new(multiplier, until);
        let now = until.saturating_add_signed(off);
        let ended = grant.ended(now);
        prop_assert_eq!(ended.multiplier(), multiplier);
        prop_assert!(!ended.holds(now) && ended.until_ns() <= grant.until_ns());
        // To end what is over is nothing: a word that did not change need not be written.
        if !grant.holds(now) {
            prop_assert_eq!(ended, grant);
        }
        // Up to a unit early, as each grant.
        let before = before % (now / UNIT_NS * UNIT_NS).max(1);
        prop_assert_eq!(ended.holds(before), grant.holds(before));
    }

    /// A packet reads the words before the time: it may have met a grant in the unit after its end, and later not.
    #[test]
    fn whatever_holds_is_met(multiplier in multiplier(), until in 0u64..1 << 60, off in -3_000_000i64..3_000_000) {
        let grant = Grant::new(multiplier, until);
        let now = until.saturating_add_signed(off);
        prop_assert!(grant.met(now) || !grant.holds(now));
        prop_assert_eq!(grant.met(now), now < grant.until_ns() + UNIT_NS);
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

    /// What is missing is rounded up only where the shares are no powers of two apart.
    #[test]
    fn a_share_that_lapses_by_half_takes_twice_as_long(
        from in 0u32..10, halvings in 0u32..10, missing in 1u64..1 << 20, room in 0u64..1 << 10,
    ) {
        let [from, to] = [from, from + halvings].map(part_of_two);
        let lapse = Lapse { at: 1 << 56, from, to };
        let (tolerance, longer) = (1 << 30, missing << halvings);
        // The packet takes as long, or longer by less than a unit of what is missing.
        let most = longer + (room & ((1 << halvings) - 1));
        let end = lapse.at + tolerance;
        prop_assert_eq!(lapse.apply(end + missing, tolerance, most), end + longer);
    }

    /// Also what was charged before all heard of the lower share, as if it had been at the larger one.
    #[test]
    fn the_surplus_makes_up_for_the_lower_share(
        halvings in 1u32..10, left in 0u64..1 << 20, charged in 0.0f64..=1.0, idle in 0u64..1 << 20,
    ) {
        let [from, to] = [0, halvings].map(part_of_two);
        // There is room for all.
        let (now, tolerance) = (1u64 << 56, 1u64 << 30);
        let charged = (left as f64 * charged) as u64;
        let before = now + tolerance - left;
        let after = before + charged - surplus([before, before + charged], now, tolerance, from, to);
        prop_assert_eq!(now + tolerance - after, (left - charged) << halvings);
        // A full bucket has no room for more, and charges count from then on that there is a debt.
        let full = now - idle;
        prop_assert_eq!(surplus([full, full], now, tolerance, from, to), 0);
        prop_assert_eq!(surplus([full, now + charged], now, tolerance, from, to), 0);
    }

    /// A packet is missing then, which its caller knows the cost of; and no packet comes that is never paid.
    #[test]
    fn what_is_missing_of_a_packet_stays_missing_at_no_share(to in multiplier(), missing in 1u64..=NEVER) {
        let (now, tolerance) = (1u64 << 56, 1u64 << 30);
        let end = now + tolerance;
        let becomes = |tat, from, to| converted(tat, now, tolerance, from, to);
        prop_assert_eq!(becomes(end + missing, Multiplier::NOTHING, to), end + missing);
        prop_assert_eq!(becomes(end + missing, to, Multiplier::NOTHING), end + NEVER);
        // Nothing is missing of a whole packet.
        prop_assert_eq!(becomes(end, to, Multiplier::NOTHING), end);
    }

    /// Whoever has no bucket when the floor is raised, once or often, has no more tokens after it.
    #[test]
    fn a_larger_floor_fills_no_bucket(
        steps in prop::collection::vec((units(), 0u64..1 << 40), 1..20), tolerance in 1_000u64..1 << 40,
    ) {
        let mut now = 1u64 << 50;
        let mut floor = Floor::new(Multiplier::from_units(1 << 30), 0);
        // Beside the one packet.
        let tokens = |floor: &Floor, now: u64| {
            let room = CostMultiplier::from_share(floor.share(), floor.share().home()).room(tolerance);
            crate::gcra::credit(floor.filled(tolerance), now, room) as f64 * floor.share().part()
        };
        for (units, gap) in steps {
            let start = now;
            let before = tokens(&floor, now);
            now += gap;
            let earned = tokens(&floor, now);
            prop_assert!(earned - before <= (now - start) as f64 * floor.share().part() + 1.0);
            floor = floor.becoming(Multiplier::from_units(units), now);
            // But for a tick, to which room is rounded.
            prop_assert!(tokens(&floor, now) <= earned * (1.0 + 1e-12) + 1.0, "{:?}", floor);
        }
    }
}

/// A host loses no more of its share than the rounding takes, and gets nothing beyond it (P6).
#[test]
fn a_multiplier_is_the_largest_that_is_no_more_than_the_share() {
    // A share of `units` is units / 2^32, and a multiplier 2^15 / scaled.
    let inverse = 1u64 << (32 + FRACTION);
    let fits = |multiplier: Multiplier, units: u64| {
        u128::from(multiplier.scaled()) * u128::from(units) >= u128::from(inverse)
    };
    let all: Vec<Multiplier> = edges().chain([Multiplier::NOTHING]).collect();
    for least in all.iter().map(|edge| inverse.div_ceil(edge.scaled())) {
        for units in least.saturating_sub(2)..=(least + 2).min(1 << 32) {
            let multiplier = Multiplier::from_units(units);
            let nothing = multiplier == Multiplier::NOTHING;
            assert_eq!(multiplier.is_nothing(), nothing, "{units}");
            assert!(nothing || fits(multiplier, units), "{units}");
            // The next larger share: of the exponent below where this one's range begins.
            let larger = match multiplier {
                Multiplier::WHOLE => continue,
                Multiplier::NOTHING => Multiplier(MAX_EXPONENT << 16 | 0xffff),
                Multiplier(bits) if bits & 0xffff == 0x8000 => Multiplier(bits - 0x8001),
                Multiplier(bits) => Multiplier(bits - 1),
            };
            assert!(!fits(larger, units), "{units}: {multiplier:?}");
        }
    }
}

/// Down to the smallest share: whatever has one gets a packet some day, and none for less than its part.
#[test]
fn every_share_has_its_price() {
    for multiplier in edges() {
        assert!(!multiplier.is_nothing() && multiplier.part() > 0.0);
        for cost in [1, 3, 1000, 1 << 20] {
            let raised = u128::from(multiplier.cost(cost));
            let exact = u128::from(cost) * u128::from(multiplier.scaled());
            assert!(raised << FRACTION >= exact, "{multiplier:?} {cost}");
            assert!((raised - 1) << FRACTION < exact, "{multiplier:?} {cost}");
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
    // Who has everything has all of the burst, half of which is the tolerance.
    assert_eq!(burst_floor(Multiplier::WHOLE.home(), 77), 77);
    assert_eq!((Multiplier::NOTHING.home(), Multiplier(0).home()), (0, 0));
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

#[test]
fn buckets_of_a_host_that_has_started_earn_what_they_hold() {
    let share = Multiplier::from_units((1 << 32) / 2 / FLOORS);
    let tolerance = 1 << 40;
    let room = CostMultiplier::from_share(share, share.home()).room(tolerance);
    // Ten bursts of half the limit, and a half.
    assert!((20 * tolerance..=21 * tolerance).contains(&room), "{room}");
    assert_eq!(Floor::of_boot(share).filled(tolerance), room);
    // A daemon before this one had a limit with a longer burst, too.
    let at = 5 * room;
    let kept = Floor::new(share, 100 * room).becoming(share, at);
    assert_eq!(kept.filled(tolerance), at + room);
    assert_eq!(Floor::new(share, 0).becoming(share, at).filled(tolerance), 0);
}
