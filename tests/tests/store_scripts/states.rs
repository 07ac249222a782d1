//! What lies in the store: texts that a human reads, for as long as they mean something.

use std::time::Duration;

use decide::{
    act::Act,
    central::{LAST, Question, SCRIPT},
};
use model::meter::{Choice, Limit, span};
use tests::{Store, resp::Reply};

use super::script::{
    MS, SECOND, Script, US, alone, each, future, limit, marker, question, read, standing,
};

/// What is under a key that is a string.
fn text(script: &mut Script, key: &Question) -> String {
    let Reply::Bytes(text) = script.call("GET KEY", key) else { panic!("no text") };
    String::from_utf8(text).expect("a text")
}

#[test]
fn states_are_texts_that_a_human_reads() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let (now, second) = (future() + 250 * MS, future().as_secs());
    let mut show = |limit: &Limit, at: Duration, cost| {
        let asked = alone(question("k", limit, Act::Take, cost));
        script.decide_at(at, std::slice::from_ref(&asked));
        text(&mut script, &asked)
    };
    // When it is full again, ns.
    let bucket = Limit::new(7, SECOND);
    assert_eq!(show(&bucket, now, 2), format!("{second}535714288"));
    let fixed = limit(Choice::FixedWindow, 7, SECOND);
    assert_eq!(show(&fixed, now, 2), format!("{second}:2"));
    let sliding = limit(Choice::SlidingWindow, 7, SECOND);
    assert_eq!(show(&sliding, now, 2), format!("{second}:0:2"));
    assert_eq!(show(&sliding, now + SECOND, 3), format!("{}:2:3", second + 1));
    let parts = limit(Choice::SubWindows, 7, SECOND);
    assert_eq!(show(&parts, now, 2), format!("{second}2:2"));
    assert_eq!(show(&parts, now + 300 * MS, 3), format!("{second}5:3,0,0,2"));
    let log = limit(Choice::SlidingLog, 7, SECOND);
    let asked = alone(question("k", &log, Act::Take, 2));
    script.decide_at(now, std::slice::from_ref(&asked));
    let at = |us: u128| Reply::Bytes((now.as_micros() + us).to_string().into_bytes());
    let entries = script.call("ZRANGE KEY 0 -1 WITHSCORES", &asked);
    assert_eq!(entries, Reply::List(vec![at(0), at(0), at(1), at(0)]));
    // Redis has no text for what is an integer.
    let encoding = script.call("OBJECT ENCODING KEY", &question("k", &bucket, Act::Take, 1));
    assert_eq!(encoding, Reply::Bytes(b"int".to_vec()));
}

#[test]
fn a_key_expires_when_it_is_as_good_as_new() {
    let store = Store::start();
    let mut script = Script::new(&store);
    for limit in each(10, 100 * SECOND) {
        let name = limit.algorithm.name();
        let ask = |act, cost| alone(question(name, &limit, act, cost));
        let exists = |script: &mut Script| script.call("EXISTS KEY", &ask(Act::Take, 1));
        // Nothing is kept of who looks, or has used nothing.
        for (act, cost) in [(Act::Peek, 1), (Act::Take, 0), (Act::Take, 11), (Act::Refund, 1)] {
            script.decide(&[ask(act, cost)]);
            assert_eq!(exists(&mut script), Reply::Number(0), "{limit}: {act:?} {cost}");
        }
        for (act, cost) in [(Act::Take, 3), (Act::Take, 1), (Act::Owe, 12), (Act::Refund, 2)] {
            let answers = script.decide(&[ask(act, cost)]);
            let (ours, _) = standing(answers.all[0]);
            let end = (answers.now + span(ours.renews)).as_micros().div_ceil(1_000) as i64;
            let left = "local t = redis.call('TIME') \
                        return { t[1] * 1000 + math.floor(t[2] / 1000), redis.call('PTTL', KEYS[1]) }";
            let key = ask(act, cost).key;
            let reply = script.client().call_bytes(&[b"EVAL", left.as_bytes(), b"1", &key]);
            let Reply::List(numbers) = &reply else { panic!("{reply:?}") };
            let [Reply::Number(now), Reply::Number(left)] = numbers[..] else {
                panic!("{reply:?}")
            };
            // The store reads its clock twice. From version 7 on it tells the time itself.
            assert!((now + left - end).abs() <= 1, "{limit}: {now} + {left}, not {end}");
            if let Reply::Number(exact) = script.call("PEXPIRETIME KEY", &ask(act, cost)) {
                assert_eq!(exact, end, "{limit}");
            }
        }
        // What is as good as new is not kept until then.
        script.decide(&[ask(Act::Reset, 0)]);
        assert_eq!(exists(&mut script), Reply::Number(0), "{limit}");
        script.decide(&[ask(Act::Take, 3)]);
        let (ours, _) = standing(script.decide(&[ask(Act::Refund, 3)]).all[0]);
        assert_eq!((ours.remaining, ours.renews), (10, 0), "{limit}");
        assert_eq!(exists(&mut script), Reply::Number(0), "{limit}");
    }
    assert_eq!(store.ask("DBSIZE"), 1, "the marker");
}

#[test]
fn another_limit_of_the_same_window_goes_on_with_what_was_used() {
    let store = Store::start();
    let mut script = Script::with_clock(&store);
    let now = future();
    for algorithm in
        [Choice::FixedWindow, Choice::SlidingWindow, Choice::SubWindows, Choice::SlidingLog]
    {
        let name = algorithm.name();
        let mut ask = |requests, act, cost, at| {
            let limit = limit(algorithm, requests, SECOND);
            let asked = [alone(question(name, &limit, act, cost))];
            let (standing, _) = standing(script.decide_at(at, &asked).all[0]);
            (standing.admitted, standing.remaining, standing.wait.map(span))
        };
        assert_eq!(ask(20, Act::Take, 15, now).1, 5, "{name}");
        assert_eq!(ask(16, Act::Take, 1, now).1, 0, "{name}");
        let (admitted, remaining, wait) = ask(4, Act::Take, 1, now);
        assert_eq!((admitted, remaining), (false, 0), "{name}");
        // No sooner than it says, and then.
        let wait = wait.expect("it is within the limit");
        assert!(!ask(4, Act::Peek, 1, now + wait - US).0, "{name}: {wait:?}");
        assert!(ask(4, Act::Peek, 1, now + wait).0, "{name}: {wait:?}");
        assert_eq!(ask(4, Act::Owe, 3, now).1, 0, "{name}");
        assert_eq!(ask(4, Act::Peek, 4, now + 3 * SECOND).1, 4, "{name}");
    }
}

#[test]
fn the_script_is_the_same_by_its_text_and_defines_nothing() {
    let store = Store::start();
    let asked = alone(question("k", &Limit::new(2, SECOND), Act::Take, 1));
    let mut client = store.client();
    let marker = marker();
    for remaining in [0, 0] {
        let command: [&[u8]; 6] =
            [b"EVAL", SCRIPT.as_bytes(), b"2", &marker, &asked.key, &asked.argument];
        let answers = read(&client.call_bytes(&command), 1);
        assert_eq!(standing(answers.all[0]).0.remaining, remaining);
    }
    // A question without an end ends with the call.
    let open = question("open", &Limit::new(2, SECOND), Act::Take, 1);
    assert_eq!([asked.argument[2], open.argument[2]], [LAST, 0]);
    let command: [&[u8]; 6] =
        [b"EVAL", SCRIPT.as_bytes(), b"2", &marker, &open.key, &open.argument];
    assert!(standing(read(&client.call_bytes(&command), 1).all[0]).0.admitted);
    // Stores refuse a script that sets a global variable. Reading one that is not there is refused as well.
    let globals =
        "local names = {} for name in pairs(_G) do names[#names + 1] = name end return #names";
    let before = Store::start().call(&["EVAL", globals, "0"]);
    assert_eq!(store.call(&["EVAL", globals, "0"]), before);
}
