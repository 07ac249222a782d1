//! Hosts that tell a store late, and answers that get lost.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::key::Secret;
use crate::side;

type Memory = Vec<AtomicU64>;

const KEY: KeyHash = KeyHash { high: 7, low: 9 };
const MS: Ticks = 1_000_000 / model::meter::TICK_NS;
const LIMIT: Limit = Limit::new(100, Duration::from_secs(1));

fn host() -> Synced<Memory> {
    let memory = (0..side::bytes(100, SHORT) / 8).map(|_| AtomicU64::new(0)).collect();
    Synced::new(Arc::new(Side::open(memory).unwrap()), Secret([1, 2]))
}

fn name() -> Name {
    Name::new("d", &[("k", "v")])
}

fn ask(host: &Synced<Memory>, act: Act, cost: u64, now: Ticks) -> Option<Standing> {
    let meter = Meter::new(&LIMIT).unwrap();
    host.ask((KEY, &name()), Pace::default(), (&LIMIT, &meter), act, cost, now)
}

/// The store: its bucket.
struct Store([u64; 1], Meter);

impl Store {
    fn new() -> Self {
        Self([0], Meter::new(&LIMIT).unwrap())
    }

    fn tell(&mut self, units: u64, now: Ticks) -> Ticks {
        let algorithm = self.1.algorithm().unwrap();
        algorithm.owe(&mut self.0, now, units);
        algorithm.renews(&self.0).saturating_sub(now)
    }

    fn take(&mut self, cost: u64, now: Ticks) -> (bool, Ticks) {
        let algorithm = self.1.algorithm().unwrap();
        let admitted = algorithm.take(&mut self.0, now, cost);
        (admitted, algorithm.renews(&self.0).saturating_sub(now))
    }
}

#[test]
fn a_host_admits_its_budget_and_then_only_the_store_can() {
    let host = host();
    let now = 1_000_000 * MS;
    for _ in 0..10 {
        assert!(ask(&host, Act::Take, 1, now).unwrap().admitted);
    }
    assert_eq!(ask(&host, Act::Take, 1, now), None);
    assert_eq!(ask(&host, Act::Owe, 1, now), None);
    // What was heard counts, and gives a budget again.
    assert_eq!(host.due(9, now).iter().map(|due| due.units).collect::<Vec<_>>(), [10]);
    host.heard(KEY, 10, 500 * MS, now);
    let standing = ask(&host, Act::Take, 2, now).unwrap();
    assert_eq!((standing.admitted, standing.remaining), (true, 48));
    // A no needs nobody else: others only add to what was heard.
    host.heard(KEY, 0, 1_000 * MS, now);
    let standing = ask(&host, Act::Take, 1, now).unwrap();
    assert_eq!((standing.admitted, standing.wait), (false, Some(30 * MS)));
}

#[test]
fn what_was_not_told_comes_back_and_no_more() {
    let host = host();
    let now = 1_000_000 * MS;
    assert!(ask(&host, Act::Take, 3, now).unwrap().admitted);
    assert_eq!(ask(&host, Act::Refund, 2, now).unwrap().remaining, 99);
    assert_eq!(ask(&host, Act::Refund, 2, now), None);
}

#[test]
fn a_key_is_told_at_its_interval_early_if_its_budget_is_needed_and_no_more_when_it_is_idle() {
    let host = host();
    let mut now = 1_000_000 * MS;
    let due = |now| host.due(9, now).iter().map(|due| due.units).collect::<Vec<_>>();
    ask(&host, Act::Take, 1, now);
    assert_eq!(due(now), [1], "at once, as nothing was heard of it");
    host.heard(KEY, 1, 10 * MS, now);
    assert!(due(now + 99 * MS).is_empty());
    assert_eq!(due(now + 100 * MS), [0], "what others use is heard as well");
    ask(&host, Act::Take, 5, now + 101 * MS);
    assert_eq!(due(now + 101 * MS), [5], "half of the budget");
    host.heard(KEY, 5, 10 * MS, now + 101 * MS);
    for _ in 0..20 {
        now += 100 * MS;
        due(now);
    }
    assert_eq!(host.count(), 0);
}

proptest! {
    #[test]
    fn all_hosts_together_admit_a_budget_a_host_more_than_the_limit(
        // Which host, what it does, how much, and how long after the last: ms.
        steps in prop::collection::vec((0..4_usize, 0..10_u8, 1..8_u64, 0..30_u64), 1..300),
        hosts in 1..=4_usize,
    ) {
        let all: Vec<_> = (0..hosts).map(|_| host()).collect();
        let (mut store, mut now) = (Store::new(), 1_000_000 * MS);
        let mut admitted: Vec<(Ticks, u64)> = Vec::new();
        for (at, what, units, pause) in steps {
            now += pause * MS;
            let host = &all[at % hosts];
            match what {
                // A call, whose answer may get lost.
                0..=2 => for due in host.due(9, now) {
                    let renews = store.tell(due.units, now);
                    if what > 0 {
                        host.heard(due.key, due.units, renews, now);
                    }
                },
                _ => {
                    let was_admitted = match ask(host, Act::Take, units, now) {
                        Some(standing) => standing.admitted,
                        None => {
                            let (admitted, renews) = store.take(units, now);
                            host.heard(KEY, 0, renews, now);
                            admitted
                        }
                    };
                    if was_admitted {
                        admitted.push((now, units));
                    }
                }
            }
        }
        let interval = ticks(LIMIT.window) / LIMIT.requests;
        let budget = Pace::default().units(&LIMIT) * hosts as u64;
        for (first, (from, _)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for (to, units) in &admitted[first..] {
                sum += units;
                let most = LIMIT.requests + (to - from) / interval + budget;
                prop_assert!(sum <= most, "{sum} in {} ms: at most {most}", (to - from) / MS);
            }
        }
    }
}
