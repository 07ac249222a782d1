//! Cases that any rate limiter over HTTP has an answer to, after those that gubernator documents: one table, asked of a
//! running `limiter-serve`. What it does otherwise on purpose is in `docs/operate/decide-compared.md`.

use std::{thread::sleep, time::Duration};

use serde_json::{Value, json};
use tests::serve::{HttpAnswer, Serve};

/// One step of a case.
enum Step {
    /// Asks with other fields than the case has: the status, and what remains.
    Ask(Value, u16, u64),
    /// Waits for so many milliseconds.
    Wait(u64),
}
use Step::{Ask, Wait};

/// Asks about some items.
fn post(serve: &Serve, items: &Value) -> HttpAnswer {
    serve.http("POST", "/v1/decide", "", &json!({ "items": items }).to_string())
}

/// The fields of `base`, with others over them.
fn with(base: &Value, more: &Value) -> Value {
    let all = [base, more].into_iter().filter_map(Value::as_object).flatten();
    Value::Object(all.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Each case has a key of its own, its name; fields of all its requests, and steps.
fn cases() -> Vec<(&'static str, Value, Vec<Step>)> {
    let hour = || json!({ "limit": 10, "period": "1h" });
    let take = |cost: u64, status, remaining| Ask(json!({ "cost": cost }), status, remaining);
    let act = |act: &str, cost: u64, status, remaining| {
        Ask(json!({ "act": act, "cost": cost }), status, remaining)
    };
    let limit = |limit: u64, remaining| Ask(json!({ "limit": limit }), 200, remaining);
    let period = |period: &str, remaining| Ask(json!({ "period": period }), 200, remaining);
    vec![
        (
            "a bucket runs out and is full again after its period",
            json!({ "limit": 2, "period": "4s" }),
            vec![take(1, 200, 1), take(1, 200, 0), take(1, 429, 0), Wait(4_100), take(1, 200, 1)],
        ),
        (
            "a bucket fills smoothly, not at the end of its period",
            json!({ "limit": 4, "period": "8s" }),
            vec![take(4, 200, 0), take(1, 429, 0), Wait(2_100), take(1, 200, 0), take(1, 429, 0)],
        ),
        (
            "a window gives all at once",
            json!({ "limit": 5, "period": "1s", "algorithm": "fixed-window" }),
            vec![take(5, 200, 0), Wait(1_100), take(1, 200, 4)],
        ),
        (
            "a burst is more than the limit",
            with(&hour(), &json!({ "burst": 20 })),
            vec![take(20, 200, 0), take(1, 429, 0)],
        ),
        (
            "more in a second than it has milliseconds",
            json!({ "limit": 2_000, "period": "1s" }),
            vec![take(1, 200, 1_999)],
        ),
        (
            "0 looks",
            hour(),
            vec![
                take(0, 200, 10),
                take(3, 200, 7),
                take(0, 200, 7),
                act("peek", 8, 429, 7),
                act("peek", 7, 200, 7),
                take(7, 200, 0),
                take(0, 200, 0),
            ],
        ),
        (
            "what is given back is there again, but no more than there was",
            hour(),
            vec![
                act("refund", 1, 200, 10),
                take(5, 200, 5),
                act("refund", 3, 200, 8),
                act("refund", u64::MAX, 200, 10),
            ],
        ),
        (
            "who asks for too much is charged nothing",
            hour(),
            vec![take(11, 429, 10), take(6, 200, 4), take(5, 429, 4), take(4, 200, 0)],
        ),
        (
            "what was used already is charged, and may be owed",
            hour(),
            vec![take(7, 200, 3), act("owe", 8, 200, 0), act("refund", 5, 200, 0), take(1, 429, 0)],
        ),
        (
            "a reset forgets what was used, and takes nothing",
            hour(),
            vec![take(10, 200, 0), take(1, 429, 0), act("reset", 1, 200, 10), take(1, 200, 9)],
        ),
        (
            "another limit holds at once, and the used part stays used",
            hour(),
            vec![take(4, 200, 6), limit(100, 59), limit(5, 1), limit(10, 2)],
        ),
        (
            "another period holds at once, and the time until it is full stays",
            hour(),
            vec![take(4, 200, 6), period("2h", 7), period("90m", 5)],
        ),
        (
            "another limit of a window begins anew",
            with(&hour(), &json!({ "algorithm": "fixed-window" })),
            vec![take(4, 200, 6), limit(20, 19)],
        ),
        ("nothing is ever admitted", json!({ "limit": 0 }), vec![take(1, 429, 0), take(0, 200, 0)]),
        (
            "the largest number is no way around",
            hour(),
            vec![take(u64::MAX, 429, 10), take(u64::MAX - 9, 429, 10), take(10, 200, 0)],
        ),
    ]
}

#[test]
fn each_case_is_decided_as_the_table_says() {
    let serve = Serve::start("domain: default\n", &[]);
    for (name, base, steps) in cases() {
        let base = with(&base, &json!({ "key": name }));
        for (at, step) in steps.iter().enumerate() {
            match step {
                Wait(span) => sleep(Duration::from_millis(*span)),
                Ask(more, status, remaining) => {
                    let answer = post(&serve, &json!([with(&base, more)]));
                    let told = answer.json()["items"][0]["remaining"].as_u64();
                    let expected = (*status, Some(*remaining));
                    assert_eq!((answer.status, told), expected, "{name}, step {at}: {answer:?}");
                }
            }
        }
    }
}

#[test]
fn what_is_missing_or_impossible_is_an_error() {
    let serve = Serve::start("domain: default\n", &[]);
    let whole = json!({ "key": "a", "limit": 10, "period": "1h" });
    let wrong = |more| with(&whole, &more);
    for (item, told) in [
        (json!({ "limit": 10 }), "give key"),
        (json!({ "key": "a" }), "give a rule, or a limit"),
        (json!({ "key": "a", "period": "1h" }), "give a rule, or a limit"),
        (wrong(json!({ "key": "" })), "a key has 1 to"),
        (wrong(json!({ "key": "k".repeat(8_193) })), "a key has 1 to"),
        (wrong(json!({ "period": "0s" })), "the window is 0"),
        (wrong(json!({ "period": "" })), "period \"\""),
        (wrong(json!({ "burst": 0 })), "the burst is 0"),
        (wrong(json!({ "limit": u64::MAX })), "too large"),
        (wrong(json!({ "cost": -1 })), "invalid value: integer `-1`"),
        (wrong(json!({ "cost": 1.5 })), "1.5"),
        (wrong(json!({ "algorithm": "none" })), "unknown variant `none`"),
        (wrong(json!({ "hits": 1 })), "unknown field `hits`"),
    ] {
        // One wrong item, and none is charged.
        let answer = post(&serve, &json!([whole, item]));
        let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        assert!(answer.status == 400 && detail.contains(told), "{item}: {answer:?}");
    }
    assert_eq!(post(&serve, &json!([])).status, 400);
    assert_eq!(post(&serve, &json!(vec![&whole; 65])).status, 400);
    assert_eq!(post(&serve, &json!([whole])).json()["items"][0]["remaining"], 9);
}

#[test]
fn many_keys_of_a_request_are_independent_and_charged_together() {
    let serve = Serve::start("domain: default\n", &[]);
    let item = |key: u64, cost: u64| json!({ "key": format!("k{key}"), "limit": key + 10, "period": "1h", "cost": cost });
    let all = |cost: u64| Value::from_iter((0..64).map(|key| item(key, cost)));
    let remaining = |answer: &HttpAnswer| -> Vec<u64> {
        let items = answer.json()["items"].as_array().cloned().unwrap_or_default();
        items.iter().filter_map(|item| item["remaining"].as_u64()).collect()
    };
    let left = |used: u64| -> Vec<u64> { (0..64).map(|key| key + 10 - used).collect() };
    let first = post(&serve, &all(6));
    assert_eq!((first.status, remaining(&first)), (200, left(6)));
    // The first four have no room for 8: no one is charged.
    let over = post(&serve, &all(8));
    assert_eq!((over.status, remaining(&over)), (429, left(6)));
    let named: Vec<_> = (0..64).map(|key| over.json()["items"][key]["allowed"] == false).collect();
    assert_eq!(named, (0..64).map(|key| key < 4).collect::<Vec<_>>());
    // A key twice in a request is charged twice, or not at all.
    assert_eq!(post(&serve, &json!([item(0, 3), item(0, 3)])).status, 429);
    assert_eq!(remaining(&post(&serve, &json!([item(0, 2), item(0, 2)])))[1], 0);
    let last = post(&serve, &all(0));
    assert_eq!((last.status, remaining(&last)[1..].to_vec()), (200, left(6)[1..].to_vec()));
}
