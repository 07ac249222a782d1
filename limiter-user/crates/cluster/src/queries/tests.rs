//! Hosts that ask each other over a network that loses, doubles, delays and reorders.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use super::packet::{Message, Piece};
use super::*;
use crate::{HostId, Moment};
use model::Class;
use model::source::SourceState;
use model::{
    rollup::{Sums, Tally},
    traffic::{Sort, Usage},
};

const SECOND: Duration = Duration::from_secs(1);
const STEP: u64 = 1_000_000;

/// What happens to packets.
#[derive(Clone, Copy, Debug)]
struct Faults {
    loss: f64,
    doubled: f64,
    /// At most, ms.
    delay: u64,
}

const CALM: Faults = Faults { loss: 0.0, doubled: 0.0, delay: 1 };

/// Packets on their way: when, from whom, to whom.
type Network = Vec<(Moment, HostId, HostId, Vec<u8>)>;

struct World {
    random: SmallRng,
    faults: Faults,
    asker: QueryClient,
    answerers: BTreeMap<HostId, QueryServer>,
    answer: BTreeMap<HostId, Vec<u8>>,
    /// From when on hosts say nothing.
    dead: BTreeMap<HostId, Moment>,
    worked: BTreeMap<HostId, usize>,
    network: Network,
    sent: usize,
    now: Moment,
}

const ME: HostId = HostId(1000);
/// How far the clocks of others are ahead of this host's.
const AHEAD: u64 = 5_000_000_000;
const WALL: u64 = 1_700_000_000_000_000_000;

impl World {
    fn new(seed: u64, faults: Faults, answer: BTreeMap<HostId, Vec<u8>>) -> Self {
        Self {
            random: SmallRng::seed_from_u64(seed),
            faults,
            asker: QueryClient::new(seed),
            answerers: answer.keys().map(|host| (*host, QueryServer::default())).collect(),
            answer,
            dead: BTreeMap::new(),
            worked: BTreeMap::new(),
            network: Vec::new(),
            sent: 0,
            now: Moment(STEP),
        }
    }

    fn send(&mut self, from: HostId, to: HostId, bytes: Vec<u8>) {
        assert!(bytes.len() <= crate::wire::MAX_OPAQUE);
        self.sent += 1;
        let copies = 1 + usize::from(self.random.random_bool(self.faults.doubled));
        for _ in 0..copies {
            if self.random.random_bool(self.faults.loss) {
                continue;
            }
            let delay = self.random.random_range(0..=self.faults.delay * STEP);
            self.network.push((Moment(self.now.0 + delay), from, to, bytes.clone()));
        }
    }

    fn step(&mut self) {
        self.now = Moment(self.now.0 + STEP);
        let now = self.now;
        self.asker.poll(now);
        while let Some((to, bytes)) = self.asker.outgoing() {
            self.send(ME, to, bytes);
        }
        let (due, later) =
            std::mem::take(&mut self.network).into_iter().partition(|it| it.0 <= now);
        self.network = later;
        let due: Network = due;
        for (_, from, to, bytes) in due {
            if to == ME {
                self.asker.receive(now, WALL + now.0, from, &bytes).unwrap();
                continue;
            }
            if self.dead.get(&to).is_some_and(|since| now >= *since) {
                continue;
            }
            let wall = WALL + AHEAD + now.0;
            let answerer = self.answerers.get_mut(&to).unwrap();
            if let Some((asked, question)) = answerer.receive(now, wall, from, &bytes).unwrap() {
                assert_eq!(question, question_of(1), "another question came");
                *self.worked.entry(to).or_default() += 1;
                assert!(answerer.answer(now, wall, asked, self.answer[&to].clone()));
            }
            while let Some((to_whom, bytes)) = self.answerers.get_mut(&to).unwrap().outgoing() {
                self.send(to, to_whom, bytes);
            }
        }
    }

    fn run(&mut self) -> Outcome {
        let hosts: Vec<_> = self.answer.keys().copied().collect();
        let until = self.now.after(SECOND);
        self.asker.ask(self.now, hosts, question_of(1), until).unwrap();
        loop {
            if let Some(outcome) = self.asker.outcome(self.now) {
                assert!(self.now <= until.after(Duration::from_millis(1)));
                return outcome;
            }
            assert!(self.asker.next().is_some());
            self.step();
        }
    }
}

/// A question of several packets.
fn question_of(seed: u8) -> Vec<u8> {
    (0..3000).map(|at: u32| at as u8 ^ seed).collect()
}

fn answers(hosts: u64, bytes: usize) -> BTreeMap<HostId, Vec<u8>> {
    (1..=hosts).map(|host| (HostId(host), vec![host as u8; bytes])).collect()
}

#[test]
fn all_that_answer_are_heard_and_the_others_named() {
    let mut world = World::new(1, CALM, answers(5, 30_000));
    world.dead.insert(HostId(2), Moment(0));
    let outcome = world.run();
    assert_eq!(outcome.silent, [HostId(2)]);
    for (host, answered) in &outcome.answers {
        assert_eq!(answered.bytes, world.answer[host]);
        let error = (answered.ahead_ns - AHEAD as i64).unsigned_abs();
        assert!(
            u128::from(error) <= answered.round_trip.as_nanos() / 2 + u128::from(STEP),
            "{error}"
        );
    }
    // Without loss nothing is sent twice, but to who says nothing.
    assert!(world.worked.values().all(|times| *times == 1));
    assert!(world.sent < 4 * (3 + 28) + 3 * 6, "{}", world.sent);
}

#[test]
fn a_host_that_dies_in_between_is_waited_for_no_longer_once_it_is_known() {
    let mut world = World::new(2, Faults { loss: 0.3, ..CALM }, answers(3, 100_000));
    world.dead.insert(HostId(3), Moment(4 * STEP));
    let hosts: Vec<_> = world.answer.keys().copied().collect();
    let until = world.now.after(SECOND);
    world.asker.ask(world.now, hosts, question_of(1), until).unwrap();
    for _ in 0..400 {
        world.step();
    }
    assert_eq!(world.asker.outcome(world.now), None);
    world.asker.gone(HostId(3));
    let outcome = world.asker.outcome(world.now).unwrap();
    assert_eq!((outcome.silent, outcome.answers.len()), (vec![HostId(3)], 2));
    assert_eq!(world.asker.next(), None);
}

#[test]
fn answers_to_what_was_not_asked_or_is_over_are_no_answers() {
    let mut asker = QueryClient::new(9);
    let now = Moment(5);
    let ticket = asker.ask(now, [HostId(1)], vec![1], now.after(SECOND)).unwrap();
    let bytes = [7];
    let piece = Piece { number: 0, of: 1, bytes: &bytes };
    let part = |ticket| Message::Part { ticket, echo: 99, held: 0, wall: 0, piece }.bytes();
    for (from, ticket) in [(HostId(2), ticket), (HostId(1), ticket + 1), (HostId(1), ticket - 1)] {
        asker.receive(now, 0, from, &part(ticket)).unwrap();
        assert_eq!(asker.outcome(now), None);
    }
    // It cannot have heard of what was not yet said: its times are not believed.
    asker.receive(now, 0, HostId(1), &part(ticket)).unwrap();
    let outcome = asker.outcome(now).unwrap();
    assert_eq!(outcome.answers[&HostId(1)].round_trip, Duration::ZERO);
    assert_eq!(asker.outcome(now.after(SECOND)), None);
}

#[test]
fn what_is_kept_is_bounded_whatever_others_say() {
    let mut answerer = QueryServer::default();
    let bytes = vec![0; MAX_QUESTION];
    let now = Moment(5);
    for (ticket, host) in (0..4000).map(|number: u64| (number, HostId(number % 500))) {
        for piece in Piece::all(&bytes, MAX_QUESTION).unwrap().skip(1) {
            let ask = Message::Ask { ticket, sent: 0, piece }.bytes();
            assert_eq!(answerer.receive(now, 0, host, &ask).unwrap(), None);
        }
        assert!(answerer.bytes() <= 16 << 20);
    }
    answerer.poll(now.after(4 * SECOND));
    assert_eq!(answerer.bytes(), 0);
    let mut asker = QueryClient::new(1);
    let ask = |asker: &mut QueryClient| asker.ask(now, [HostId(1)], vec![], now.after(SECOND));
    assert_eq!((0..20).filter(|_| ask(&mut asker).is_some()).count(), 16);
}

fn place(source: u32) -> SourceClass {
    let source = ipnet::Ipv4Net::new(source.into(), 32).unwrap().into();
    SourceClass { source, class: Class::ANY }
}

fn counted(source: u32, dropped: u64) -> Counted {
    Counted {
        place: place(source),
        state: SourceState::Limited,
        limit: 1,
        passed: 10,
        dropped,
        bytes: 60 * dropped,
        uncounted: 2,
        pps: dropped as f64 / 2.0,
        bps: dropped as f64 * 8.0,
        seconds: 1.0,
        first_seen_ms: Some(u64::from(source)),
        last_seen_ms: None,
    }
}

/// A host's table, and what it answers from it.
#[derive(Clone, Debug, Default)]
struct Table(BTreeMap<u32, u64>);

impl Table {
    fn candidates(&self, n: usize) -> Candidates {
        let mut sources: Vec<_> =
            self.0.iter().map(|(at, dropped)| counted(*at, *dropped)).collect();
        sources.sort_by_key(|counted| std::cmp::Reverse(counted.dropped));
        sources.truncate(n);
        Candidates { sources, tracked: self.0.len() as u64, totals: None }
    }

    fn points(&self, places: &[SourceClass]) -> Vec<Counted> {
        let wanted: BTreeSet<_> = places.iter().collect();
        let all = self.0.iter().map(|(at, dropped)| counted(*at, *dropped));
        all.filter(|counted| wanted.contains(&counted.place)).collect()
    }
}

/// The `n` heaviest, as an operator gets them, and whether that is certain.
fn asked(tables: &[Table], n: usize) -> (Vec<top::Merged>, f64, bool) {
    let hosts = || (0..).map(HostId).zip(tables);
    let mut last = None;
    for wanted in top::rounds(n) {
        let named = hosts().map(|(host, table)| (host, table.candidates(wanted))).collect();
        let union = top::union(Sort::Dropped, wanted, &named);
        let points = hosts().map(|(host, table)| (host, table.points(&union.places))).collect();
        let merged = top::merge(Sort::Dropped, &points);
        let exact = top::is_exact(Sort::Dropped, n, &merged, union.bar);
        last = Some((merged, union.bar, exact));
        if exact {
            break;
        }
    }
    last.unwrap()
}

/// What one table with the traffic of all hosts has.
fn in_one(tables: &[Table]) -> Vec<(SourceClass, u64)> {
    let mut one = BTreeMap::new();
    for (source, dropped) in tables.iter().flat_map(|table| &table.0) {
        *one.entry(place(*source)).or_insert(0) += dropped;
    }
    let mut all: Vec<_> = one.into_iter().collect();
    all.sort_by_key(|(place, dropped)| (std::cmp::Reverse(*dropped), *place));
    all
}

fn heaviest(merged: &[top::Merged], n: usize) -> Vec<(SourceClass, u64)> {
    merged.iter().take(n).map(|merged| (merged.sum.place, merged.sum.dropped)).collect()
}

#[test]
fn a_source_that_is_nowhere_among_the_first_is_found() {
    // On each of ten hosts, 300 sources that are only there have more than the one that is everywhere.
    let tables: Vec<_> = (0..10)
        .map(|host: u32| {
            let own = (0..300).map(|at| (1_000 * (host + 1) + at, 1000 + u64::from(at)));
            Table(own.chain([(7, 900)]).collect())
        })
        .collect();
    let (merged, _, exact) = asked(&tables, 20);
    assert!(exact);
    assert_eq!(heaviest(&merged, 20), in_one(&tables)[..20]);
    let first = &merged[0];
    assert_eq!((first.sum.dropped, first.sum.passed, first.hosts), (9000, 100, 10));
    assert_eq!(first.sum.place, place(7));
}

#[test]
fn where_it_is_not_certain_it_says_by_how_much() {
    // More sources than are ever asked for, all alike.
    let tables: Vec<_> = (0..3)
        .map(|host: u32| Table((0..9000).map(|at| (host * 7000 + at, 100)).collect()))
        .collect();
    let (merged, bar, exact) = asked(&tables, 10);
    assert!(!exact && bar >= 200.0, "{bar}");
    assert!(merged.len() <= MAX_PLACES);
    assert!(in_one(&tables).iter().all(|(_, dropped)| *dropped as f64 <= bar + 1.0));
}

#[test]
fn a_host_that_tells_of_a_source_twice_is_believed_once() {
    let hosts = BTreeMap::from([
        (HostId(1), vec![counted(7, 5), counted(7, 500)]),
        (HostId(2), vec![Counted { limit: 2, ..counted(7, 1) }]),
    ]);
    let merged = top::merge(Sort::Dropped, &hosts);
    assert_eq!((merged.len(), merged[0].sum.dropped, merged[0].hosts), (1, 6, 2));
    assert!(merged[0].differs);
}

#[test]
fn where_nothing_is_dropped_who_sends_most_on_all_hosts_comes_first() {
    let sends = |source, pps, passed| Counted { pps, passed, ..counted(source, 0) };
    let hosts = BTreeMap::from([
        (HostId(1), vec![sends(5, 10.0, 900), sends(6, 30.0, 50), sends(7, 20.0, 1)]),
        (HostId(2), vec![sends(7, 20.0, 1), sends(8, 10.0, 901)]),
    ]);
    let merged = top::merge(Sort::Dropped, &hosts);
    let places: Vec<_> = merged.iter().map(|merged| merged.sum.place).collect();
    assert_eq!(places, [7, 6, 8, 5].map(place), "40, 30, and 10 packets per second twice");
}

fn tables() -> impl Strategy<Value = Vec<Table>> {
    let table = prop::collection::btree_map(0u32..400, 0u64..200, 0..300).prop_map(Table);
    prop::collection::vec(table, 1..6)
}

fn an_answer() -> impl Strategy<Value = Answer> {
    let held = BucketInfo {
        class: Class::ANY,
        state: SourceState::Conforming,
        limit: Some("1000pps burst 1200".into()),
        estimate: 3,
        got: Usage { passed: 4, dropped: 5, bytes: 6, passed_pps: 7.0, dropped_pps: 8.0, bps: 9.0 },
        share: Some([0.5, 0.1]),
    };
    let class = "udp:53".parse().unwrap();
    let known = SourceInfo {
        source: place(5).source,
        listed: Some(model::lists::Action::Deny),
        buckets: vec![held.clone(), BucketInfo { class, share: None, ..held }],
    };
    let host = Host { version: "0.1.0".into(), rejected: vec![(3, 4)], ..Host::default() };
    prop_oneof![
        Just(Answer::Pong),
        Just(Answer::Source(Box::new(known))),
        Just(Answer::Host(Box::new(host))),
        Just(Answer::Trouble("no data plane".into())),
        Just(Answer::Distinct(Some(Distinct { key: 1, window: 2, ranks: vec![3; 99] }))),
        (0u32..80).prop_map(|n| Answer::Points((0..n).map(|at| counted(at, 9)).collect())),
        (0u32..80).prop_map(|n| {
            let sources = (0..n).map(|at| counted(at, 9)).collect();
            Answer::Candidates(Candidates { sources, tracked: 99, totals: None })
        }),
        (0u32..80, any::<bool>()).prop_map(|(n, spread)| {
            let group = |at| groups::Group::Net { net: place(at).source, spread };
            let tally = Tally { sources: 1, passed: 3, pps: 2.0, ..Tally::default() };
            let sums = Sums { tally, ..Sums::default() };
            let rows = (0..n).map(|at| groups::Grouped::new(group(at), &sums)).collect();
            Answer::Groups(groups::Groups { rows, tracked: 9, left_out: 1, bar: 7.5 })
        }),
    ]
}

fn a_question() -> impl Strategy<Value = Question> {
    prop_oneof![
        Just(Question::Ping),
        Just(Question::Host),
        Just(Question::Distinct),
        Just(Question::Source([198, 51, 100, 7].into())),
        Just(Question::Candidates { sort: Sort::Bits, n: 64, live: true }),
        (0u32..80).prop_map(|n| Question::Points((0..n).map(place).collect())),
    ]
}

#[test]
fn what_cannot_be_is_refused() {
    let candidates = |n| Question::Candidates { sort: Sort::Pps, n, live: false }.bytes();
    assert!(
        Question::read(&candidates(2001)).is_err() && Question::read(&candidates(2000)).is_ok()
    );
    let points = |pps| Answer::Points(vec![Counted { pps, ..counted(1, 1) }]).bytes();
    assert!(Answer::read(&points(1.0)).is_ok());
    for wrong in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(Answer::read(&points(wrong)).is_err());
    }
    assert!(Answer::read(&Answer::Trouble("\x1b[2J".into()).bytes()).is_err());
    assert!(Question::read(&[]).is_err());
    assert!(Question::read(&[2, 0]).is_err());
    let piece = Piece { number: u16::MAX, of: 1, bytes: &[] };
    assert!(Message::read(&Message::Ask { ticket: 1, sent: 1, piece }.bytes()).is_err());
    // The most that may be asked fits, and its answer does.
    let places = (0..MAX_PLACES as u32).map(|at| SourceClass {
        class: "tcp[syn,!ack]:65530-65535".parse().unwrap_or_default(),
        ..place(at)
    });
    assert!(Question::Points(places.collect()).bytes().len() <= MAX_QUESTION);
    let big = Counted {
        first_seen_ms: Some(1 << 41),
        last_seen_ms: Some(1 << 41),
        ..counted(1, 1 << 40)
    };
    let sources = vec![Counted { passed: 1 << 40, ..big }; MAX_PLACES];
    let length = Answer::Points(sources).bytes().len();
    assert!(length <= MAX_ANSWER, "{length} of {MAX_ANSWER}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn answers_come_through_a_bad_network(
        seed: u64,
        loss in 0.0..0.35f64,
        doubled in 0.0..0.3f64,
        delay in 1u64..40,
        bytes in 0usize..40_000,
    ) {
        let faults = Faults { loss, doubled, delay };
        let mut world = World::new(seed, faults, answers(4, bytes));
        let outcome = world.run();
        // Whoever is heard is heard right; who is not is named.
        for (host, answered) in &outcome.answers {
            prop_assert_eq!(&answered.bytes, &world.answer[host]);
        }
        prop_assert_eq!(outcome.answers.len() + outcome.silent.len(), 4);
        if delay < 20 {
            // Five tries may all be lost: at 15 % one host of 2,000 stays silent.
            let silent = if loss < 0.02 { 0 } else if loss < 0.15 { 1 } else { 4 };
            prop_assert!(outcome.silent.len() <= silent, "{:?}", outcome.silent);
        }
        prop_assert!(world.worked.values().all(|times| *times == 1), "asked twice");
    }

    #[test]
    fn the_heaviest_are_those_of_one_table(tables in tables(), n in 1usize..40) {
        let (merged, bar, exact) = asked(&tables, n);
        let one = in_one(&tables);
        if exact {
            // Equals may be in either order.
            let weights = |list: &[(SourceClass, u64)]| list.iter().map(|it| it.1).collect::<Vec<_>>();
            let found = heaviest(&merged, n);
            prop_assert_eq!(weights(&found), weights(&one[..n.min(one.len())]));
            prop_assert!(found.iter().all(|it| one.contains(it)));
        }
        // Whoever is not listed has no more than it says.
        let listed: BTreeSet<_> = merged.iter().map(|merged| merged.sum.place).collect();
        let others = one.iter().filter(|(place, _)| !listed.contains(place));
        prop_assert!(others.into_iter().all(|(_, dropped)| *dropped as f64 <= bar));
        // Few enough sources are all asked for.
        prop_assert!(exact || tables.iter().any(|table| table.0.len() > 250));
    }

    #[test]
    fn questions_and_answers_are_read_as_they_were_written(
        question in a_question(),
        answer in an_answer(),
    ) {
        prop_assert_eq!(Question::read(&question.bytes()).unwrap(), question);
        prop_assert_eq!(Answer::read(&answer.bytes()).unwrap(), answer);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn hostile_bytes_do_no_harm(
        question in a_question(),
        answer in an_answer(),
        changed in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        from in 0u64..3,
    ) {
        let (mut asker, mut answerer) = (QueryClient::new(6), QueryServer::default());
        let now = Moment(1 << 40);
        asker.ask(now, [HostId(0), HostId(1)], question.bytes(), now.after(SECOND)).unwrap();
        for bytes in [question.bytes(), answer.bytes()] {
            let mut mutated = bytes.clone();
            for (at, byte) in &changed {
                let at = at.index(mutated.len());
                mutated[at] = *byte;
            }
            if let Ok(read) = Question::read(&mutated) {
                prop_assert!(!matches!(read, Question::Points(ref all) if all.len() > MAX_PLACES));
            }
            if let Ok(Answer::Distinct(Some(read))) = Answer::read(&mutated) {
                distinct::merge(&BTreeMap::from([(HostId(1), read)]));
            }
            for piece in Piece::all(&mutated[..mutated.len().min(900)], MAX_QUESTION).unwrap() {
                let frames = [
                    Message::Ask { ticket: 7, sent: u64::MAX, piece }.bytes(),
                    Message::Part { ticket: 7, echo: u64::MAX, held: u64::MAX, wall: 0, piece }.bytes(),
                    Message::Missing { ticket: 7, sent: 0, numbers: vec![u16::MAX; 90] }.bytes(),
                ];
                for mut frame in frames {
                    let at = changed[0].0.index(frame.len());
                    frame[at] ^= changed[0].1;
                    let _ = asker.receive(now, u64::MAX, HostId(from), &frame);
                    if let Ok(Some((asked, _))) = answerer.receive(now, u64::MAX, HostId(from), &frame) {
                        answerer.answer(now, 0, asked, vec![0; 5000]);
                    }
                }
            }
        }
        while asker.outcome(now.after(SECOND)).is_some() {}
        while answerer.outgoing().is_some() {}
    }
}
