//! Several keys in a decision, and several decisions in a call: beside the decider of a host.

use std::time::Duration;

use decide::{
    act::{Act, Role},
    central::{Answer, LAST, MAX_KEYS, Name, PARTIAL, QUOTA_HAS_ROOM, QUOTA_IS_OVER, Question},
    decider::{Decision, Item, Key, decide},
    key::Entry,
    overrides::Overrides,
    rules::{Rules, Tallies},
};
use model::meter::{Choice, Limit, span, ticks};
use tests::Store;

use super::script::{
    DOMAIN, Host, Random, SECOND, Script, alone, each, future, limit, question, standing,
};

/// The rules: a key, its algorithm, its units in a second, what it does to a request, and whether it is kept elsewhere.
const RULES: [(&str, Choice, u64, Role, bool); 10] = [
    ("bucket", Choice::TokenBucket, 5, Role::Enforced, false),
    ("fixed", Choice::FixedWindow, 6, Role::Enforced, false),
    ("sliding", Choice::SlidingWindow, 8, Role::Enforced, false),
    ("log", Choice::SlidingLog, 7, Role::Enforced, false),
    ("shadow", Choice::SubWindows, 3, Role::Shadow, false),
    ("dark", Choice::SlidingLog, 2, Role::Shadow, false),
    ("quota", Choice::TokenBucket, 4, Role::Quota, false),
    ("share", Choice::SlidingWindow, 5, Role::Quota, false),
    ("near", Choice::TokenBucket, 6, Role::Quota, true),
    ("far", Choice::FixedWindow, 3, Role::Quota, true),
];

fn rules() -> Rules {
    let rule = |&(key, algorithm, requests, role, _): &(&str, Choice, u64, Role, bool)| {
        let (shadow, quota) = (role == Role::Shadow, role == Role::Quota);
        format!(
            "  - {{ key: {key}, shadow_mode: {shadow}, quota_mode: {quota}, rate_limit: \
             {{ unit: second, requests_per_unit: {requests}, algorithm: {} }} }}\n",
            algorithm.name()
        )
    };
    let text: String = RULES.iter().map(rule).collect();
    let text = format!("domain: t\ndescriptors:\n{text}");
    Rules::read([("rules.yaml", &text[..])], &mut Tallies::default()).expect("rules")
}

/// A host, and its clock.
struct Local {
    host: Host,
    rules: Rules,
    now: Duration,
}

/// A request about one of the rules.
#[derive(Clone, Copy, Debug)]
struct Asked {
    rule: usize,
    act: Act,
    cost: u64,
}

impl Local {
    fn ask(&self, asked: &[Asked]) -> Decision {
        let entries: Vec<[Entry<'_>; 1]> =
            asked.iter().map(|of| [(RULES[of.rule].0, "v")]).collect();
        let items: Vec<_> = asked
            .iter()
            .zip(&entries)
            .map(|(of, entries)| {
                let key = Key::Descriptor { domain: "t", entries };
                Item { key, limit: None, act: of.act, cost: of.cost }
            })
            .collect();
        let now = ticks(self.now);
        decide(&self.host.states, &self.rules, &Overrides::default(), &items, now).expect("items")
    }

    /// What the store is told of quotas that it does not keep.
    fn flags(&self, asked: &[Asked]) -> u8 {
        let elsewhere = asked.iter().filter(|of| RULES[of.rule].4);
        let over = elsewhere.map(|of| {
            let peek = Asked { act: Act::Peek, ..*of };
            matches!(of.act, Act::Take | Act::Peek) && self.ask(&[peek]).over
        });
        match over.reduce(|all, over| all && over) {
            None => 0,
            Some(true) => QUOTA_IS_OVER,
            Some(false) => QUOTA_HAS_ROOM,
        }
    }
}

fn to_store(asked: &[Asked], flags: u8) -> Vec<Question> {
    let kept = asked.iter().filter(|of| !RULES[of.rule].4);
    let mut questions: Vec<_> = kept
        .map(|of| {
            let (key, algorithm, requests, role, _) = RULES[of.rule];
            let limit = limit(algorithm, requests, SECOND);
            Question::new(&Name::new(DOMAIN, &[(key, "v")]), &limit, role, of.act, of.cost)
        })
        .collect();
    if let Some(last) = questions.last_mut() {
        last.set(LAST | flags);
    }
    questions
}

/// Whether the store says of its keys what the host says of all.
fn check(asked: &[Asked], decision: &Decision, answers: &[Answer], flags: u8) {
    let kept = asked.iter().zip(&decision.statuses).filter(|(of, _)| !RULES[of.rule].4);
    let (mut enforced, mut quotas) = (false, Vec::new());
    for ((of, status), answer) in kept.zip(answers) {
        let (_, algorithm, _, role, _) = RULES[of.rule];
        let (ours, charged) = standing(*answer);
        let is_over = !ours.admitted && matches!(of.act, Act::Take | Act::Peek);
        let told = (is_over && role != Role::Shadow, is_over && role == Role::Shadow);
        assert_eq!(told, (status.over, status.shadowed), "{of:?} of {asked:?}: {ours:?}");
        assert_eq!(ours.remaining, status.remaining, "{of:?} of {asked:?}: {ours:?}, {status:?}");
        if is_over || algorithm == Choice::TokenBucket {
            // Windows of a host round up when they end.
            let reset = if is_over { ours.wait } else { Some(ours.renews) };
            let us = |time: Duration| time.as_nanos().div_ceil(1_000);
            assert_eq!(
                reset.map(|reset| us(span(reset))),
                status.reset.map(us),
                "{of:?}: {ours:?}"
            );
        }
        match role {
            Role::Enforced => enforced |= is_over,
            Role::Quota => quotas.push(is_over),
            Role::Shadow => {}
        }
        let charges = !decision.over && of.act == Act::Take && !is_over;
        let owes = role == Role::Quota && decision.over || of.act == Act::Owe;
        assert!(owes || charged == if charges { of.cost } else { 0 }, "{of:?}: {charged}");
    }
    if flags & QUOTA_IS_OVER != 0 {
        quotas.push(true);
    }
    let by_quotas = flags & QUOTA_HAS_ROOM == 0 && quotas.iter().all(|over| *over);
    let over = enforced || by_quotas && !quotas.is_empty();
    assert_eq!(over, decision.over, "{asked:?}, flags {flags}");
}

#[test]
fn all_keys_of_a_decision_are_charged_or_none_as_on_a_host() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let mut local = Local { host: Host::new(), rules: rules(), now: future() };
    let mut random = Random(23);
    let (mut total, mut over, mut elsewhere, mut keys) = (0, 0, 0, 0);
    for _ in 0..500 {
        local.now += Duration::from_micros(random.below(400_000));
        let (mut questions, mut expected) = (Vec::new(), Vec::new());
        // One decision, or as many as there is room for.
        let decisions = if random.below(2) == 0 { 1 } else { MAX_KEYS };
        for _ in 0..decisions {
            let asked: Vec<_> = (0..1 + random.below(5))
                .map(|_| Asked {
                    rule: random.below(RULES.len() as u64) as usize,
                    act: random.act(),
                    cost: 1 + random.below(3),
                })
                .collect();
            let flags = local.flags(&asked);
            let mut more = to_store(&asked, flags);
            if more.is_empty() || questions.len() + more.len() > MAX_KEYS {
                continue;
            }
            let decision = local.ask(&asked);
            total += 1;
            over += u32::from(decision.over);
            elsewhere += u32::from(flags != 0);
            expected.push((asked, decision, more.len(), flags));
            questions.append(&mut more);
        }
        keys = keys.max(questions.len());
        let answers = script.decide_at(local.now, &questions);
        let mut answers = &answers.all[..];
        for (asked, decision, count, flags) in expected {
            let (its, rest) = answers.split_at(count);
            check(&asked, &decision, its, flags);
            answers = rest;
        }
    }
    println!("{over} of {total} decisions are over, {elsewhere} have quotas elsewhere");
    assert_eq!(keys, MAX_KEYS);
    assert!(over > 500 && total - over > 500 && elsewhere > 500, "{over} of {total}");
}

#[test]
fn a_key_that_comes_twice_is_charged_twice() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let now = future();
    for limit in each(5, SECOND) {
        let name = limit.algorithm.name();
        let take = |cost| question(name, &limit, Act::Take, cost);
        let left = |answers: &[Answer]| -> Vec<_> {
            answers.iter().map(|answer| standing(*answer)).map(|(s, n)| (s.remaining, n)).collect()
        };
        // Two decisions: the second one sees what the first one has charged.
        let answers = script.decide_at(now, &[alone(take(2)), alone(take(2)), alone(take(2))]);
        assert_eq!(left(&answers.all), [(3, 2), (1, 2), (1, 0)], "{limit}");
        // One decision has room for neither, if it has none for both.
        let reset = alone(question(name, &limit, Act::Reset, 0));
        let answers = script.decide_at(now, &[reset, take(3), alone(take(3)), alone(take(5))]);
        assert_eq!(left(&answers.all), [(5, 0), (5, 0), (2, 0), (0, 5)], "{limit}");
    }
}

#[test]
fn a_part_is_charged_if_that_is_enough() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let now = future();
    for limit in each(10, SECOND) {
        let name = limit.algorithm.name();
        let mut ask = |at: Duration, act, cost| {
            let mut asked = alone(question(name, &limit, act, cost));
            asked.set(PARTIAL);
            let (standing, charged) = standing(script.decide_at(at, &[asked]).all[0]);
            (standing.admitted, charged, standing.remaining, standing.wait.map(span))
        };
        let zero = Some(Duration::ZERO);
        assert_eq!(ask(now, Act::Take, 4), (true, 4, 6, zero), "{limit}");
        // More than there is, and more than there ever will be.
        assert_eq!(ask(now, Act::Peek, 100), (true, 0, 6, zero), "{limit}");
        let (admitted, charged, remaining, wait) = ask(now, Act::Take, 100);
        assert_eq!((admitted, charged, remaining), (true, 6, 0), "{limit}");
        // Until there is one more.
        let wait = wait.expect("it comes");
        assert_eq!(ask(now, Act::Take, 100), (false, 0, 0, Some(wait)), "{limit}");
        assert!(ask(now + wait, Act::Peek, 100).0, "{limit}");
        assert_eq!(ask(now, Act::Take, 0), (true, 0, 0, zero), "{limit}");
        // What was used already is not divided, and what is given back is all of it.
        let (_, charged, ..) = ask(now, Act::Owe, 3);
        ask(now, Act::Refund, 10);
        assert_eq!((charged, ask(now, Act::Refund, 3).2), (3, 10), "{limit}");
    }
}

#[test]
fn a_quota_that_is_kept_elsewhere_decides_with_those_that_are_not() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let now = future();
    let bucket = Limit::new(2, SECOND);
    let mut ask = |name: &str, role, flags| {
        let entries: &[Entry<'_>] = &[("key", name)];
        let mut asked = Question::new(&Name::new(DOMAIN, entries), &bucket, role, Act::Take, 2);
        asked.set(LAST | flags);
        let (standing, charged) = standing(script.decide_at(now, &[asked]).all[0]);
        (standing.admitted, charged, standing.remaining)
    };
    // All others are over: nothing is charged, though there is room.
    assert_eq!(ask("enforced", Role::Enforced, QUOTA_IS_OVER), (true, 0, 2));
    assert_eq!(ask("shadow", Role::Shadow, QUOTA_IS_OVER), (true, 0, 2));
    // This one is not.
    assert_eq!(ask("quota", Role::Quota, QUOTA_IS_OVER), (true, 2, 0));
    // Another one has room: it is denied, and owes nothing.
    assert_eq!(ask("quota", Role::Quota, QUOTA_HAS_ROOM), (false, 0, 0));
    // None has: what was used already is owed.
    assert_eq!(ask("quota", Role::Quota, QUOTA_IS_OVER), (false, 2, 0));
    assert_eq!(ask("quota", Role::Quota, 0), (false, 0, 0));
}
