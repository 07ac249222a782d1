//! Hosts of a cluster that share a limit, each with buckets of its own.

use super::*;
use crate::side;
use proptest::prelude::*;

type Memory = Vec<AtomicU64>;

const LIMIT: Limit = Limit::new(100, Duration::from_secs(1));
const KEY: KeyHash = KeyHash { high: 7, low: 9 };
const SECOND: Ticks = 1_000_000_000 / model::meter::TICK_NS;
/// What is earned is rounded down: a moment later it is there.
const MOMENT: Ticks = SECOND / 1_000;

fn host() -> Shared<Memory> {
    let memory = (0..side::bytes(100, SHORT) / 8).map(|_| AtomicU64::new(0)).collect();
    Shared::new(Arc::new(Side::open(memory).unwrap()), Secret([1, 2]))
}

/// Floors of a host with such home shares from such times on.
fn floors(homes: &[(Ticks, f64)], hosts: u32) -> Floors {
    let floor = |&(at, home): &(Ticks, f64)| {
        let share = Share::from_part(home).times(1, FLOORS);
        Floor { at, share, hosts }
    };
    Floors { all: homes.iter().map(floor).collect(), full: false, until: Ticks::MAX }
}

/// Units that a host admits at once.
fn burst(host: &Shared<Memory>, now: Ticks) -> u64 {
    let take = || host.ask(KEY, &LIMIT, Some(OnError::Floor), Act::Take, 1, now).standing.admitted;
    (0..1_000).take_while(|_| take()).count() as u64
}

fn grant(host: &Shared<Memory>, part: f64, span: Ticks, now: Ticks) {
    let wanted = Wanted { key: KEY, limit: LIMIT, admitted: 0, denied: 0, since: now, used: now };
    host.take(&[wanted], &[(Share::from_part(part), span)], now, now);
}

#[test]
fn a_bucket_earns_at_its_share_and_then_at_the_floor() {
    let host = host();
    host.set_floors(floors(&[(1, 0.5)], 2));
    let begin = 1_000 * SECOND;
    assert_eq!(burst(&host, begin), 50, "half of 98, and one");
    // The floor is a fortieth: 2.5 a second.
    let now = begin + 2 * SECOND + MOMENT;
    assert_eq!(burst(&host, now), 5);
    grant(&host, 0.8, SECOND / 2, now);
    assert_eq!(burst(&host, now + SECOND / 4 + MOMENT), 20);
    // Another quarter until the grant ends, and a second at the floor.
    assert_eq!(burst(&host, now + 3 * SECOND / 2 + 2 * MOMENT), 22);
    // A smaller share takes nothing of what is there.
    grant(&host, 0.8, SECOND, now + 2 * SECOND);
    let now = now + 9 * SECOND / 4 + 3 * MOMENT;
    grant(&host, 0.1, SECOND, now);
    assert_eq!(burst(&host, now), 21);
}

#[test]
fn a_larger_home_share_brings_room_and_no_units() {
    let [used, new] = [host(), host()];
    let begin = 1_000 * SECOND;
    used.set_floors(floors(&[(1, 0.5)], 2));
    assert_eq!(burst(&used, begin), 50);
    for host in [&used, &new] {
        host.set_floors(floors(&[(1, 0.5), (begin + 1, 1.0)], 2));
    }
    assert_eq!([&used, &new].map(|host| burst(host, begin + 2)), [0, 50]);
    // 5 a second from now on.
    assert_eq!([&used, &new].map(|host| burst(host, begin + 4 * SECOND + MOMENT)), [20, 20]);
    // A host that begins has one unit, and what it earns.
    let first = host();
    first.set_floors(floors(&[(begin, 1.0)], 2));
    assert_eq!([begin - 1, begin].map(|now| burst(&first, now)), [0, 1]);
    assert_eq!(burst(&first, begin + SECOND + MOMENT), 5);
    let boot = host();
    boot.set_floors(Floors { full: true, ..floors(&[(begin, 0.5), (begin + 1, 1.0)], 2) });
    assert_eq!(burst(&boot, begin + 2), 50, "and not 99");
}

#[test]
fn what_is_answered_without_a_share_is_as_the_rule_says() {
    let host = host();
    let ask = |on_error, now| {
        let outcome = host.ask(KEY, &LIMIT, Some(on_error), Act::Take, 1, now);
        (outcome.standing.admitted, outcome.alone)
    };
    let all = [OnError::Floor, OnError::Closed, OnError::Open];
    let now = 1_000 * SECOND;
    // Nothing is known of the host's part.
    assert_eq!(
        all.map(|on_error| ask(on_error, now)),
        [(false, true), (false, true), (true, true)]
    );
    host.set_floors(floors(&[(1, 0.5)], 2));
    assert_eq!(all.map(|on_error| ask(on_error, now)), [(true, true), (false, true), (true, true)]);
    grant(&host, 0.5, SECOND, now);
    assert_eq!(all.map(|on_error| ask(on_error, now)), [(true, false); 3]);
    host.set_floors(Floors { until: now, ..floors(&[(1, 0.5)], 2) });
    assert_eq!(ask(OnError::Floor, now), (false, true));
}

#[test]
fn a_share_is_asked_for_where_it_is_needed_and_until_the_bucket_is_full_again() {
    let host = host();
    host.set_floors(floors(&[(1, 0.5)], 2));
    let now = 1_000 * SECOND;
    let take = |cost, now| host.ask(KEY, &LIMIT, Some(OnError::Floor), Act::Take, cost, now);
    take(20, now);
    assert!(host.wants(now).is_empty());
    take(20, now);
    take(20, now);
    let wanted = host.wants(now + 2 * SECOND)[0];
    assert_eq!((wanted.key, wanted.admitted, wanted.denied), (KEY, 20, 20));
    assert!(host.wants(now + 3 * SECOND).is_empty());
    for number in 0..=MAX_WANTED as u64 {
        let key = KeyHash { high: number << 32, low: number + 1 };
        host.ask(key, &LIMIT, Some(OnError::Floor), Act::Take, 30, now);
    }
    assert_eq!((host.count(), host.left_out()), (MAX_WANTED, 1));
}

#[test]
fn a_process_that_is_killed_leaves_what_was_used() {
    let memory: Memory = (0..side::bytes(100, SHORT) / 8).map(|_| AtomicU64::new(0)).collect();
    let open = || Shared::new(Arc::new(Side::open(&memory[..]).unwrap()), Secret([1, 2]));
    let now = 1_000 * SECOND;
    let take = |host: &Shared<&[AtomicU64]>, now| {
        (0..100)
            .filter(|_| {
                host.ask(KEY, &LIMIT, Some(OnError::Floor), Act::Take, 1, now).standing.admitted
            })
            .count()
    };
    let first = open();
    first.set_floors(floors(&[(1, 0.5)], 2));
    assert_eq!(take(&first, now), 50);
    let wanted = Wanted { key: KEY, limit: LIMIT, admitted: 0, denied: 0, since: now, used: now };
    first.take(&[wanted], &[(Share::WHOLE, SECOND / 4)], now, now);
    let second = open();
    second.set_floors(floors(&[(1, 0.5)], 2));
    // A quarter at the whole rate, which the file tells of, and the rest at the floor.
    assert_eq!(take(&second, now + SECOND), 26);
}

/// What happens in a cluster of three.
#[derive(Clone, Debug)]
enum Event {
    Pass(Ticks),
    Take(usize, u64),
    /// The rate is divided anew, for a time.
    Shares([u8; 3], Ticks),
    /// Home shares are.
    Homes([u8; 3]),
}

fn parts(weights: [u8; 3]) -> [f64; 3] {
    let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    weights.map(|weight| if sum > 0.0 { f64::from(weight) / sum } else { 0.0 })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (1..SECOND / 4).prop_map(Event::Pass),
        1 => (SECOND..100 * SECOND).prop_map(Event::Pass),
        6 => (0..3_usize, 1..50_u64).prop_map(|(host, cost)| Event::Take(host, cost)),
        3 => (any::<[u8; 3]>(), 1..SECOND).prop_map(|(shares, span)| Event::Shares(shares, span)),
        1 => any::<[u8; 3]>().prop_map(Event::Homes),
    ];
    prop::collection::vec(event, 1..200)
}

proptest! {
    /// P6: in any interval all hosts together admit at most burst + rate · T, whatever becomes of shares and home shares.
    #[test]
    fn all_hosts_together_keep_to_the_limit(events in events()) {
        let hosts = [host(), host(), host()];
        let mut now = 1_000 * SECOND;
        let mut homes: [Vec<(Ticks, f64)>; 3] = [const { Vec::new() }; 3];
        let mut granted = [(0.0, 0); 3];
        let mut admitted: Vec<(Ticks, u64)> = Vec::new();
        let set = |homes: &[Vec<(Ticks, f64)>; 3]| {
            for (host, homes) in hosts.iter().zip(homes) {
                host.set_floors(floors(homes, 3));
            }
        };
        homes.iter_mut().for_each(|homes| homes.push((now, 1.0 / 3.0)));
        set(&homes);
        // Full buckets: the table of a host that has been there for long.
        now += 100 * SECOND;
        for event in events {
            match event {
                Event::Pass(span) => now += span,
                // All that there is, or a part of it.
                Event::Take(at, cost) => {
                    let ask = || hosts[at].ask(KEY, &LIMIT, Some(OnError::Floor), Act::Take, cost, now);
                    while ask().standing.admitted {
                        admitted.push((now, cost));
                    }
                }
                Event::Shares(weights, span) => {
                    // What was given before has to end.
                    now = granted.iter().map(|&(_, end)| end).max().unwrap_or(now).max(now);
                    let floor: f64 = homes.iter().map(|homes| homes[homes.len() - 1].1).sum::<f64>() / FLOORS as f64;
                    // Not all hosts hear of it.
                    let told = |(at, _): &(usize, f64)| weights[*at] >= 64;
                    for (at, part) in parts(weights).into_iter().enumerate().filter(told) {
                        let own = homes[at][homes[at].len() - 1].1 / FLOORS as f64;
                        granted[at] = (own + part * (1.0 - floor), now + span);
                        grant(&hosts[at], granted[at].0, span, now);
                    }
                }
                Event::Homes(weights) => {
                    now = granted.iter().map(|&(_, end)| end).max().unwrap_or(now).max(now) + 1;
                    for (at, part) in parts(weights).into_iter().enumerate() {
                        homes[at].push((now, part));
                    }
                    set(&homes);
                }
            }
        }
        for (at, &(begin, _)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for &(end, cost) in &admitted[at..] {
                sum += cost;
                let most = 100.0 + 100.0 * (end - begin) as f64 / SECOND as f64;
                prop_assert!(sum as f64 <= most + 1e-6, "{sum} of {most} in {} ticks", end - begin);
            }
        }
    }
}
