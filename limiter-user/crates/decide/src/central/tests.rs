//! What is sent, and what is read.

use super::*;

const ENTRIES: &[Entry<'_>] = &[("user", "a \"b\""), ("path", "/")];

fn question(limit: &Limit, role: Role, act: Act, cost: u64) -> Question {
    Question::new(&Name::new("rl", ENTRIES), limit, role, act, cost)
}

/// The parts of an argument: its letters, its cost and its limit.
fn parts(question: &Question) -> (String, u64, [u64; 3]) {
    let (asked, limit) = question.argument.split_at(11);
    let [act, role, 0, cost @ ..] = asked else { panic!("no flags yet") };
    let [kind, numbers @ ..] = limit else { panic!("a kind") };
    let (numbers, []) = numbers.as_chunks::<8>() else { panic!("numbers of 8 bytes") };
    let numbers = <[[u8; 8]; 3]>::try_from(numbers).unwrap().map(u64::from_be_bytes);
    let letters = [*act, *role, *kind].map(char::from).iter().collect();
    (letters, u64::from_be_bytes(cost.try_into().unwrap()), numbers)
}

fn key(question: &Question) -> &str {
    std::str::from_utf8(&question.key).unwrap()
}

const fn limit(algorithm: Choice, requests: u64, window: Duration) -> Limit {
    Limit { algorithm, ..Limit::new(requests, window) }
}

#[test]
fn a_question_has_its_limit_in_units_of_the_script() {
    let second = Duration::from_secs(1);
    let bucket = Limit { burst: Some(5), ..Limit::new(7, second) };
    let asked = question(&bucket, Role::Enforced, Act::Take, 2);
    // A unit of 142,857,144 ns: up to a whole tick.
    assert_eq!(parts(&asked), ("teg".to_owned(), 2, [142_857, 144, 5]));
    let asked = question(&Limit::new(7, second), Role::Quota, Act::Owe, 0);
    assert_eq!(parts(&asked), ("oqg".to_owned(), 0, [142_857, 144, 7]));
    let odd = Duration::from_nanos(1_000_001);
    let asked = question(&limit(Choice::FixedWindow, 9, odd), Role::Shadow, Act::Peek, 1);
    assert_eq!(parts(&asked), ("psf".to_owned(), 1, [9, 1_001, 0]));
    let asked = question(&limit(Choice::SlidingWindow, 9, second), Role::Shadow, Act::Refund, 1);
    assert_eq!(parts(&asked), ("rss".to_owned(), 1, [9, 1_000_000, 0]));
    let asked = question(&limit(Choice::SubWindows, 9, second), Role::Shadow, Act::Reset, 1);
    assert_eq!(parts(&asked), ("zsp".to_owned(), 1, [9, 100_000, PARTS]));
    let asked = question(&limit(Choice::SlidingLog, 9, second), Role::Shadow, Act::Take, u64::MAX);
    assert_eq!(parts(&asked), ("tsl".to_owned(), MAX_EXACT, [9, 1_000_000, 0]));
}

#[test]
fn flags_add_up() {
    let mut asked = question(&Limit::new(1, Duration::from_secs(1)), Role::Enforced, Act::Take, 1);
    asked.set(LAST);
    asked.set(PARTIAL | LAST);
    assert_eq!(asked.argument[FLAGS], 9);
}

#[test]
fn names_tell_states_apart_that_mean_something_else() {
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let named = |limit: &Limit| key(&question(limit, Role::Enforced, Act::Take, 1)).to_owned();
    assert_eq!(named(&Limit::new(5, second)), r#"limiter:{rl}:g:["user","a \"b\"","path","/"]"#);
    // A debt in time is one under any limit.
    assert_eq!(named(&Limit::new(5, second)), named(&Limit::new(9, minute)));
    for algorithm in
        [Choice::FixedWindow, Choice::SlidingWindow, Choice::SubWindows, Choice::SlidingLog]
    {
        assert_eq!(named(&limit(algorithm, 5, second)), named(&limit(algorithm, 9, second)));
        assert_ne!(named(&limit(algorithm, 5, second)), named(&limit(algorithm, 5, minute)));
    }
    let parts = |parts| Limit { granularity: parts, ..limit(Choice::SubWindows, 5, second) };
    assert_eq!(named(&parts(None)), named(&parts(Some(10))));
    assert_ne!(named(&parts(None)), named(&parts(Some(20))));
    // Entries do not run into each other, whatever is in them.
    let of = |entries: &[Entry<'_>]| Name::new("rl", entries);
    assert_ne!(of(&[("a", "b"), ("c", "d")]), of(&[("a", "b\",\"c"), ("", "d")]));
    assert_ne!(of(&[("a", "")]), of(&[("", "a")]));
    assert_eq!(of(&[]).since(), b"limiter:{rl}:since");
    // A part of a key in braces chooses its slot, and what is long is not to be read.
    let [odd, long] = ["a}b", &"a".repeat(201)].map(|domain| Name::new(domain, &[]).domain);
    assert!([&odd, &long].iter().all(|domain| domain.len() == 71 && domain.starts_with("sha256-")));
    assert_ne!(odd, long);
}

#[test]
fn answers_are_read_in_their_order() {
    let answer = |status: u8, numbers: [u64; 4]| {
        let mut bytes = vec![status];
        numbers.iter().for_each(|number| bytes.extend(number.to_be_bytes()));
        bytes
    };
    let mut reply = 1_700_000_000_000_001_u64.to_be_bytes().to_vec();
    reply.extend(answer(1, [2, 3, 0, 5]));
    reply.extend(answer(0, [0, 1, u64::MAX, 7]));
    reply.extend(answer(2, [0; 4]));
    reply.extend(answer(3, [0; 4]));
    let answers = Answers::read(&reply, 4).unwrap();
    assert_eq!(answers.now, Duration::from_micros(1_700_000_000_000_001));
    let us = |us| ticks(Duration::from_micros(us));
    let admitted =
        Standing { admitted: true, remaining: 3, wait: Some(0), renews: us(5), tracked: true };
    let denied =
        Standing { admitted: false, remaining: 1, wait: None, renews: us(7), tracked: true };
    let all = [
        Answer::Standing(admitted, 2),
        Answer::Standing(denied, 0),
        Answer::Foreign,
        Answer::ReadOnly,
    ];
    assert_eq!(answers.all, all);
    // Too few, too many, half of one, and what is none.
    assert_eq!(Answers::read(&reply, 3), None);
    assert_eq!(Answers::read(&reply, 5), None);
    assert_eq!(Answers::read(&reply[..reply.len() - 1], 4), None);
    assert_eq!(Answers::read(&reply[..7], 0), None);
    reply[8] = 4;
    assert_eq!(Answers::read(&reply, 4), None);
}
