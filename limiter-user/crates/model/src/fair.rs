//! Weighted max-min fairness.

use crate::Share;

/// What somebody wants of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// How much it can use.
    pub share: Share,
    /// What it counts against others where not all can be had; 0 counts as 1.
    pub weight: u32,
}

/// Divides `pool`: nobody gets more than it wants, and who gets less than it wants gets, for its weight, at
/// least as much as anybody else. The sum is at most `pool`, and less than what is wanted of it only by
/// rounding: one unit for each.
pub fn max_min(pool: Share, wants: &[Want]) -> Vec<Share> {
    // Checked: demands come from other hosts, and a sum that wraps would seem to fit.
    let sum = wants.iter().try_fold(0u64, |sum, want| sum.checked_add(want.share.units()));
    if sum.is_some_and(|sum| sum <= pool.units()) {
        return wants.iter().map(|want| want.share).collect();
    }
    let mut given = vec![Share::NONE; wants.len()];
    let mut order: Vec<usize> = (0..wants.len()).collect();
    // A host outside the view weighs nothing there, and a sum of weights must not be zero.
    let weight = |at: usize| u64::from(wants[at].weight.max(1));
    // Who wants least for its weight is satisfied first; a/b < c/d as a·d < c·b, exactly.
    if wants.windows(2).all(|two| two[0].weight == two[1].weight) {
        order.sort_unstable_by_key(|&at| (wants[at].share, at));
    } else {
        order.sort_unstable_by(|&a, &b| {
            let left = u128::from(wants[a].share.units()) * u128::from(weight(b));
            let right = u128::from(wants[b].share.units()) * u128::from(weight(a));
            left.cmp(&right).then(a.cmp(&b))
        });
    }
    // What one does not take is shared by those after it: each division is of what is left by who is left.
    let mut left = pool;
    let mut weights: u64 = order.iter().map(|&at| weight(at)).sum();
    for at in order {
        let fair = left.times(weight(at), weights);
        given[at] = wants[at].share.min(fair);
        left = left.without(given[at]);
        weights -= weight(at);
    }
    given
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wants(max: usize) -> impl Strategy<Value = Vec<Want>> {
        let share = prop_oneof![Just(0u64), 0..1u64 << 33, 0..1u64 << 20, Just(u64::MAX)];
        prop::collection::vec((share, 0..1_000u32), 0..max).prop_map(|wants| {
            let want = |(units, weight)| Want { share: Share::from_units(units), weight };
            wants.into_iter().map(want).collect()
        })
    }

    proptest! {
        #[test]
        fn nothing_is_given_twice_and_nothing_wanted_is_left(
            pool in 0..1u64 << 33,
            wants in wants(20),
        ) {
            let pool = Share::from_units(pool);
            let given = max_min(pool, &wants);
            let sum: Share = given.iter().copied().sum();
            prop_assert!(sum <= pool);
            let wanted: Share = wants.iter().map(|want| want.share).sum();
            prop_assert!(sum.units() + wants.len() as u64 >= wanted.min(pool).units());
            for (want, given) in wants.iter().zip(&given) {
                prop_assert!(*given <= want.share);
            }
        }

        #[test]
        fn nobody_short_gets_less_for_its_weight_than_anybody_else(
            pool in 0..1u64 << 33,
            wants in wants(12),
        ) {
            let given = max_min(Share::from_units(pool), &wants);
            let per = |at: usize| {
                given[at].units() as f64 / f64::from(wants[at].weight.max(1))
            };
            for short in (0..wants.len()).filter(|&at| given[at] < wants[at].share) {
                for other in 0..wants.len() {
                    // Rounding costs each up to a unit, which weighs most where weights are small.
                    prop_assert!(per(short) + 13.0 >= per(other), "{given:?}");
                }
            }
        }
    }

    #[test]
    fn the_textbook_example() {
        let want = |share: f64| Want { share: Share::from_part(share), weight: 1 };
        let given = max_min(Share::WHOLE, &[want(0.2), want(0.26), want(0.4), want(0.5)]);
        let parts: Vec<f64> =
            given.iter().map(|share| (share.part() * 100.0).round() / 100.0).collect();
        assert_eq!(parts, [0.2, 0.26, 0.27, 0.27]);
        let heavy = Want { weight: 3, ..want(1.0) };
        let given = max_min(Share::WHOLE, &[want(1.0), heavy]);
        assert_eq!(given, [Share::from_part(0.25), Share::from_part(0.75)]);
    }
}
