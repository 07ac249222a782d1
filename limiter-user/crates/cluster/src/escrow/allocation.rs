//! How a pool is divided among those who want some of it.

use model::Share;

use model::fair::{Want, max_min};

/// How much more is granted than is wanted where there is enough, so that what rises is not limited at once.
const SPARE: (u64, u64) = (6, 5);
/// The same where there is not: no more than what a demand is known to.
pub(super) const CLOSE: (u64, u64) = (51, 50);

/// What is known of a host that wants some of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) demand: Share,
    /// What it may use whatever it is granted.
    pub(super) own: Share,
    pub(super) weight: u32,
    pub(super) current: Share,
}

/// What hosts need of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    pub(super) close: Share,
    pub(super) ample: Share,
}

impl Wanted {
    /// What it needs of the pool for so many times its demand.
    fn need(&self, (numerator, denominator): (u64, u64)) -> Share {
        self.demand.times(numerator, denominator).without(self.own)
    }
}

impl Need {
    pub(super) fn new(wanted: &[Wanted]) -> Self {
        let sum = |times| wanted.iter().map(|want| want.need(times)).sum();
        Self { close: sum(CLOSE), ample: sum(SPARE) }
    }
}

/// What each should be granted of a pool.
pub(super) fn targets(pool: Share, wanted: &[Wanted]) -> Vec<Share> {
    // Nobody else would use what is left, and no message is needed when its demand rises.
    let demanding = wanted.iter().filter(|want| !want.demand.is_none()).count();
    if demanding == 1 {
        let all = |want: &Wanted| if want.demand.is_none() { Share::NONE } else { pool };
        return wanted.iter().map(all).collect();
    }
    let needs = |want: &Wanted| Want { share: want.need(CLOSE), weight: want.weight };
    let mut targets = max_min(pool, &wanted.iter().map(needs).collect::<Vec<_>>());
    let left = pool.without(targets.iter().copied().sum());
    let more = |(want, target): (&Wanted, &Share)| Want {
        share: want.need(SPARE).without(*target),
        weight: want.weight,
    };
    let extra = max_min(left, &wanted.iter().zip(&targets).map(more).collect::<Vec<_>>());
    for (target, extra) in targets.iter_mut().zip(extra) {
        *target += extra;
    }
    let short = Need::new(wanted).ample > pool;
    // Small changes are not worth a message, and where all are satisfied nobody needs what one has too much.
    for (target, want) in targets.iter_mut().zip(wanted).filter(|(_, want)| !want.demand.is_none())
    {
        let current = want.current;
        let (more, less) = (target.without(current), current.without(*target));
        // Where there is too little for all, what is not given lies idle.
        let near =
            more <= current.times(1, if short { 400 } else { 50 }) && less <= current.times(1, 50);
        let enough = short || current >= want.need(CLOSE);
        if near && enough {
            *target = current;
        }
    }
    if short {
        return targets;
    }
    let mut sum: Share = targets.iter().copied().sum();
    for (target, want) in targets.iter_mut().zip(wanted).filter(|(_, want)| !want.demand.is_none())
    {
        let current = want.current;
        // What one has too much is what another one is to get, where all of the pool is given.
        let with = sum + current.without(*target);
        if *target > current.times(1, 2) && with <= pool {
            (*target, sum) = ((*target).max(current), with);
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(demand: f64, current: f64) -> Wanted {
        let [demand, current] = [demand, current].map(Share::from_part);
        Wanted { demand, own: Share::from_part(0.01), weight: 100, current }
    }

    #[test]
    fn what_one_has_too_much_goes_to_who_lacks_it() {
        let pool = Share::from_part(0.95);
        // It had all of the pool while nobody else wanted any.
        let given = targets(pool, &[want(0.46, 0.95), want(0.25, 0.0)]);
        assert!(given.iter().copied().sum::<Share>() <= pool, "{given:?}");
        assert!(given[1] >= Share::from_part(0.24), "{given:?}");
        // Nobody lacks anything: a lower grant would be a message for nothing.
        let given = targets(pool, &[want(0.3, 0.5), want(0.25, 0.3)]);
        assert_eq!(given, [0.5, 0.3].map(Share::from_part));
    }
}
