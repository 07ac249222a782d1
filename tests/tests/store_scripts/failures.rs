//! One key that cannot be decided on spoils its decision, and no other.

use decide::{
    act::Act,
    central::{Answer, LAST, Question},
};
use model::meter::{Choice, Limit};
use tests::{Store, store::StoreOptions};

use super::script::{SECOND, Script, alone, each, limit, question, standing};

/// Those whose room is left, and what each was charged.
fn told(answers: &[Answer]) -> Vec<Option<(bool, u64, u64)>> {
    let told = |answer: &Answer| match answer {
        Answer::Standing(standing, charged) => {
            Some((standing.admitted, standing.remaining, *charged))
        }
        _ => None,
    };
    answers.iter().map(told).collect()
}

#[test]
fn a_foreign_value_is_left_alone_and_so_is_the_rest_of_its_decision() {
    let store = Store::start();
    let mut script = Script::new(&store);
    let values = [
        "HSET KEY a b",
        "SET KEY text",
        "RPUSH KEY 1",
        "SET KEY 12",
        "SET KEY -1795865706102174000",
        "SET KEY 99999999999999999999999",
        "SET KEY 5:",
        "SET KEY 99999999999999999999:1:1",
        "SET KEY 99999999999999999999:99999999999999999999",
        "ZADD KEY 5 member",
        "ZADD KEY +inf 1795865706102174",
    ];
    for limit in each(5, SECOND) {
        let name = limit.algorithm.name();
        let key = question(name, &limit, Act::Take, 1);
        let other = |part| question(&format!("{name} {part}"), &limit, Act::Take, 2);
        let before = alone(other("before"));
        let (beside, after) = (other("beside"), alone(other("after")));
        for value in values {
            script.call("DEL KEY", &key);
            script.call(value, &key);
            let dumped = script.call("DUMP KEY", &key);
            let mut asked = vec![before.clone(), beside.clone(), key.clone(), after.clone()];
            asked[2].set(LAST);
            let answers = script.decide(&asked);
            assert_eq!(answers.all[2], Answer::Foreign, "{limit}: {value}");
            let admitted = Some((true, 3, 2));
            let expected = [admitted, Some((true, 5, 0)), None, admitted];
            assert_eq!(told(&answers.all), expected, "{limit}: {value}");
            assert_eq!(script.call("DUMP KEY", &key), dumped, "{limit}: {value}");
            // Nor is the rest charged where it could not deny.
            for (role, act) in
                [(b's', Act::Take), (b'q', Act::Take), (b'e', Act::Owe), (b'e', Act::Reset)]
            {
                let mut key = alone(question(name, &limit, act, 1));
                key.argument[2] = role;
                let answers = script.decide(&[beside.clone(), key]);
                assert_eq!(told(&answers.all), [Some((true, 5, 0)), None], "{limit}: {value}");
            }
            // By itself, whatever is asked.
            for act in [Act::Take, Act::Peek, Act::Owe, Act::Refund, Act::Reset] {
                let asked = question(name, &limit, act, 1);
                assert_eq!(script.ask(asked), Answer::Foreign, "{limit}: {value}");
            }
            script.call("DEL KEY", &before);
            script.call("DEL KEY", &after);
        }
        script.call("DEL KEY", &key);
        assert_eq!(standing(script.ask(key)).1, 1, "{limit}");
    }
}

#[test]
fn a_key_of_another_algorithm_in_one_call_is_foreign() {
    let store = Store::start();
    let mut script = Script::new(&store);
    let bucket = alone(question("k", &Limit::new(5, SECOND), Act::Take, 1));
    let mut log = alone(question("k", &limit(Choice::SlidingLog, 5, SECOND), Act::Take, 1));
    log.key.clone_from(&bucket.key);
    let answers = script.decide(&[bucket, log]);
    assert_eq!(told(&answers.all), [Some((true, 4, 1)), None]);
    assert_eq!(answers.all[1], Answer::Foreign);
}

/// Decisions of which some write, and what a store that takes no writes says of them.
fn decisions_that_write(limit: &Limit) -> Vec<(Vec<Question>, Vec<bool>)> {
    let name = limit.algorithm.name();
    let ask = |part: &str, act, cost| question(&format!("{name} {part}"), limit, act, cost);
    vec![
        (vec![ask("used", Act::Take, 1)], vec![true]),
        (vec![ask("new", Act::Take, 1)], vec![true]),
        (vec![ask("new", Act::Owe, 1)], vec![true]),
        // All of a decision or none.
        (vec![ask("used", Act::Peek, 1), ask("new", Act::Take, 1)], vec![true, true]),
        (vec![ask("new", Act::Take, 1), ask("used", Act::Take, 2)], vec![true, true]),
        // Who is denied, and who looks, needs no write.
        (vec![ask("used", Act::Take, 5)], vec![false]),
        (vec![ask("used", Act::Peek, 1), ask("new", Act::Peek, 1)], vec![false, false]),
        (vec![ask("new", Act::Take, 1), ask("used", Act::Take, 4)], vec![false, false]),
        (vec![ask("idle", Act::Refund, 1)], vec![false]),
    ]
}

/// Whether a store without writes says so, of each decision alone and of all in one call.
fn refuses(script: &mut Script, limit: &Limit) {
    let decisions = decisions_that_write(limit);
    let (mut all, mut expected) = (Vec::new(), Vec::new());
    for (mut asked, refused) in decisions {
        if let Some(last) = asked.last_mut() {
            last.set(LAST);
        }
        let check = |answers: &[Answer]| {
            let are: Vec<_> = answers.iter().map(|answer| *answer == Answer::ReadOnly).collect();
            assert_eq!(are, refused, "{limit}: {answers:?}");
        };
        check(&script.decide(&asked).all);
        all.append(&mut asked);
        expected.extend(refused);
    }
    let answers = script.decide(&all);
    let are: Vec<_> = answers.all.iter().map(|answer| *answer == Answer::ReadOnly).collect();
    assert_eq!(are, expected, "{limit}: {answers:?}");
}

/// Limits that do not earn while a test runs.
fn limits() -> [Limit; 5] {
    each(5, 3_600 * SECOND)
}

/// Uses two units of each.
fn use_two(script: &mut Script) {
    for limit in limits() {
        let used = question(&format!("{} used", limit.algorithm.name()), &limit, Act::Take, 2);
        assert_eq!(standing(script.ask(used)).0.remaining, 3, "{limit}");
    }
}

/// Whether nothing but that was used.
fn check_two(script: &mut Script) {
    for limit in limits() {
        for (part, remaining) in [("used", 3), ("new", 5)] {
            let name = format!("{} {part}", limit.algorithm.name());
            let (standing, _) = standing(script.ask(question(&name, &limit, Act::Peek, 1)));
            assert_eq!(standing.remaining, remaining, "{limit}: {part}");
        }
    }
}

#[test]
fn a_full_store_says_so_and_charges_no_half_of_a_decision() {
    let store = Store::start();
    let mut script = Script::new(&store);
    use_two(&mut script);
    assert_eq!(store.ask("CONFIG SET maxmemory-policy noeviction"), "OK");
    assert_eq!(store.ask("CONFIG SET maxmemory 1"), "OK");
    for limit in limits() {
        refuses(&mut script, &limit);
    }
    check_two(&mut script);
    // What makes room is done.
    for limit in limits() {
        let name = format!("{} used", limit.algorithm.name());
        let (standing, _) = standing(script.ask(question(&name, &limit, Act::Reset, 0)));
        assert_eq!(standing.remaining, 5, "{limit}");
    }
    // Without a marker that it could set, its memory begins with each call.
    assert_eq!(store.ask("DEL limiter:{t}:since"), 1);
    for limit in limits() {
        let (standing, _) = standing(script.ask(question("k", &limit, Act::Peek, 1)));
        assert_eq!((standing.admitted, standing.remaining), (true, 1), "{limit}");
    }
    assert_eq!(store.ask("CONFIG SET maxmemory 0"), "OK");
    let taken = script.ask(question("k", &limits()[0], Act::Take, 1));
    assert_eq!(standing(taken).1, 1);
}

#[test]
fn a_replica_answers_who_looks() {
    let master = Store::start();
    let mut script = Script::new(&master);
    use_two(&mut script);
    let replica = Store::replica_of(&master, &StoreOptions::default());
    // Loading a script writes nothing, nor does a marker that is there.
    let mut at_replica = Script::of_replica(&replica);
    for limit in limits() {
        refuses(&mut at_replica, &limit);
    }
    check_two(&mut at_replica);
    // What the script writes, the replica gets as it is: states and when they end.
    let limit = limit(Choice::SlidingLog, 5, 3_600 * SECOND);
    let asked = question("copied", &limit, Act::Take, 3);
    assert_eq!(standing(script.ask(asked.clone())).1, 3);
    assert_eq!(script.client().ask("WAIT 1 5000"), 1, "by the connection that has written");
    assert_eq!(at_replica.call("DUMP KEY", &asked), script.call("DUMP KEY", &asked));
    let (standing, _) = standing(at_replica.ask(question("copied", &limit, Act::Peek, 1)));
    assert_eq!(standing.remaining, 2);
}
