use super::memory::Memory;
use super::tests::{limiter, policy, quick, source};
use super::*;
use crate::abi::{EventKind, UNLIMITED_SLOT};
use crate::hll::WINDOW_SHIFT;
use crate::lists::Action;
use core::ops::Range;
use proptest::prelude::*;
use std::vec::Vec;

/// The slot of the policy that groups have.
const GROUPS_SLOT: u32 = 2;

/// A source of the `group`th IPv6 /48.
fn v6(group: u16, number: u16) -> SourceKey {
    SourceKey { high: 0x2001_0db8_0000_0000 | u64::from(group) << 16 | u64::from(number), low: 0 }
}

/// A source of the `group`th IPv4 /24: one of 250, or one of the rest for the last numbers.
fn v4(group: u16, number: u16) -> SourceKey {
    let number = if number < u16::MAX - 5 { number % 250 } else { number & 0xff };
    source(0xc600_0000 | u32::from(group) << 8 | u32::from(number))
}

/// A source that no [`hop`] comes from.
const NEIGHBOUR: u16 = u16::MAX;

/// Sources have 1000 pps, groups `of_groups`.
fn grouped(of_groups: Policy) -> Memory {
    let mut memory = limiter(policy(1000, 2000), 1 << 6, 1 << 16, 1);
    memory.policies.push(of_groups);
    memory.limit_groups(GROUPS_SLOT, 48);
    // Never the least gate: groups have their own.
    memory.publish(2, memory::DEFAULT_SLOT);
    memory
}

/// Lets a packet of each of `numbers` come at once. Returns how many pass.
fn hop(memory: &Memory, of: fn(u16, u16) -> SourceKey, group: u16, numbers: Range<u16>) -> u64 {
    let passes = |number: &u16| memory.packet(of(group, *number), 100).passes();
    numbers.filter(passes).count() as u64
}

#[test]
fn who_hops_inside_a_prefix_gets_what_a_group_gets() {
    for of in [v4, v6] {
        let (rate, burst) = (2000, 400);
        let memory = grouped(policy(rate, burst));
        let mut passed = 0;
        // Ten seconds of 20 kpps, each source below its gate.
        for ms in 0..10_000u32 {
            let first = (ms * 20 % 60_000) as u16;
            passed += hop(&memory, of, 7, first..first + 20);
            memory.advance(1_000_000);
        }
        let most = burst + 10 * rate + burst / 8;
        assert!(passed <= most && passed >= 10 * rate * 97 / 100, "{passed} of {most}");
        // The prefix has a bucket, which counts all that was lost; its sources have none.
        let tracked: Vec<_> = memory.tracked().collect();
        assert_eq!(tracked.len(), 1, "{tracked:?}");
        assert_eq!((tracked[0].0, tracked[0].2), (of(7, 0).group(48).0, 200_000 - passed));
        // Other prefixes have a limit of their own.
        assert_eq!(hop(&memory, of, 8, 0..200), 200);
        memory.assert_sound();
    }
}

#[test]
fn a_prefix_is_as_long_as_it_is_set() {
    let memory = grouped(quick(10));
    memory.limit_groups(GROUPS_SLOT, 56);
    // 256 sources to each /56.
    assert_eq!(hop(&memory, v6, 7, 0..256), 10);
    assert_eq!(hop(&memory, v6, 7, 0..1024), 3 * 10);
}

#[test]
fn a_source_with_a_bucket_never_pays_for_its_neighbours() {
    for of in [v4, v6] {
        let memory = grouped(quick(400));
        let neighbour = of(7, NEIGHBOUR);
        for _ in 0..20 {
            assert!(memory.packet(neighbour, 100).passes());
        }
        assert!(hop(&memory, of, 7, 0..1000) <= 400);
        let mut passed = 0;
        for ms in 0..1000 {
            memory.advance(1_100_000);
            assert_eq!(memory.packet(neighbour, 100), Reason::Conforming);
            passed += hop(&memory, of, 7, 10 * ms..10 * ms + 10);
        }
        assert!((1000..=1100).contains(&passed), "{passed}");
        // Another one has no bucket, and gets none.
        let tracked = memory.tracked().count();
        let stranger: Vec<_> = (0..40).map(|_| memory.packet(of(7, NEIGHBOUR - 1), 100)).collect();
        assert!(stranger[2..].iter().all(|it| *it == Reason::OverGroup), "{stranger:?}");
        assert_eq!(memory.tracked().count(), tracked);
    }
}

#[test]
fn lists_go_before_groups() {
    let mut memory = grouped(quick(2));
    let [allowed, denied] = [v4(7, 1), v4(7, 2)];
    memory.list(allowed, Entry::new(Action::Allow, 0));
    memory.list(denied, Entry::new(Action::Deny, 0));
    assert!(hop(&memory, |group, number| v4(group, number + 10), 7, 0..100) <= 2);
    assert_eq!(memory.packet(allowed, 100), Reason::Allowed);
    assert_eq!(memory.packet(denied, 100), Reason::Denied);
}

#[test]
fn groups_without_a_limit_change_nothing() {
    let memory = grouped(quick(2));
    memory.limit_groups(UNLIMITED_SLOT, 48);
    assert_eq!(hop(&memory, v4, 7, 0..250) + hop(&memory, v6, 7, 0..5000), 5250);
    assert_eq!((memory.tracked().count(), memory.internal(Internal::SketchAdds)), (0, 5250));
}

#[test]
fn a_group_is_no_source_to_those_who_count() {
    let memory = grouped(quick(2));
    hop(&memory, v6, 7, 0..3000);
    memory.advance(1 << WINDOW_SHIFT);
    hop(&memory, v6, 7, 0..3000);
    let distinct = memory.distinct();
    assert!((2700.0..3300.0).contains(&distinct), "{distinct}");
    // The one that was limited is told as what it is.
    assert_eq!(memory.events(), 1);
    assert_eq!(memory.last_event(), Some(EventKind::GroupLimited));
}

#[test]
fn another_limit_of_groups_holds_at_once() {
    let mut memory = grouped(quick(10));
    assert_eq!(hop(&memory, v6, 7, 0..100), 10);
    memory.policies.push(quick(100));
    memory.limit_groups(3, 48);
    memory.publish(3, memory::DEFAULT_SLOT);
    assert!(hop(&memory, v6, 7, 0..1000) <= 100);
    memory.advance(10 * 100 * 1_000_000);
    assert_eq!(hop(&memory, v6, 7, 0..1000), 100);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the sources of a prefix send: who has a bucket loses nothing by the group, and all others together get
    /// no more than burst + rate·T + max(2, burst/8).
    #[test]
    fn a_group_gets_no_more_and_takes_from_nobody_with_a_bucket(
        rate in 100u64..20_000,
        burst in 1u64..400,
        stream in prop::collection::vec((0u16..40, 0u64..20_000_000, 1u32..40), 1..200),
    ) {
        let memory = grouped(policy(rate, burst));
        let mut admitted = Vec::new();
        for (number, gap, count) in stream {
            memory.advance(gap);
            for _ in 0..count {
                let source = v6(7, number);
                let has_bucket = memory.bucket(source).is_some();
                let reason = memory.packet(source, 100);
                prop_assert!(!has_bucket || reason != Reason::OverGroup, "{number} pays");
                if !has_bucket && reason.passes() {
                    admitted.push(memory.time());
                }
            }
        }
        for (i, &from) in admitted.iter().enumerate().step_by(5) {
            for (j, &to) in admitted.iter().enumerate().skip(i).step_by(3) {
                let most = burst + 2.max(burst / 8) + (to - from) * rate / 1_000_000_000 + 1;
                prop_assert!(((j - i) as u64) < most, "{} > {most}", j - i + 1);
            }
        }
    }
}
