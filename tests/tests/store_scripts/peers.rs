//! Scripts of others beside ours, in one store, at the same times.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant, UNIX_EPOCH},
};

use decide::{act::Act, central::SCRIPT};
use model::meter::{Choice, Limit};
use tests::{
    Store,
    resp::{Reply, Resp},
};

use super::script::{
    MS, Random, SECOND, Script, alone, future, limit, marker, question, read, standing,
};

const BESIDE: &str = include_str!("beside.lua");
const TOKEN_BUCKET: &str = include_str!("token_bucket.lua");

/// A script of the Python package `limits`.
fn limits(name: &str) -> String {
    let folder = tools::environment().join("lib");
    let version = fs::read_dir(folder).expect("`cargo xtask setup` brings the package");
    let version = version.map(|entry| entry.expect("an entry").path()).next();
    let folder = version.expect("a version of Python").join("site-packages/limits/resources");
    fs::read_to_string(folder.join("redis/lua_scripts").join(name)).expect("a script")
}

/// Two scripts in one store.
struct Beside {
    client: Resp,
    sha: String,
}

/// What both say of a request.
#[derive(Clone, Copy, Debug)]
struct Verdicts {
    theirs: bool,
    ours: bool,
    now: Duration,
}

/// How long ago a window began.
fn since_edge(window: Duration) -> Duration {
    let now = UNIX_EPOCH.elapsed().expect("it is after 1970");
    Duration::from_micros((now.as_micros() % window.as_micros()) as u64)
}

impl Beside {
    /// Theirs admits if an expression says so of its `result`.
    fn new(store: &Store, theirs: &str, admits: &str) -> Self {
        let script = BESIDE.replace("{ADMITS}", admits).replace("{THEIRS}", theirs);
        let script = script.replace("{OURS}", SCRIPT);
        let mut client = store.client();
        // The marker: our memory is as long as any window.
        drop(Script::new(store));
        let sha = client.call(&["SCRIPT", "LOAD", &script]);
        Self { client, sha: sha.as_str().expect("a hash").to_owned() }
    }

    fn ask(
        &mut self,
        limit: &Limit,
        (act, cost): (Act, u64),
        clock: Option<Duration>,
        keys: &[&str],
        arguments: &[String],
    ) -> Verdicts {
        let asked = |act| alone(question("beside", limit, act, cost));
        // What both decide for themselves is asked the same in any case.
        let denied = if act == Act::Owe { Act::Peek } else { act };
        let (ours, otherwise) = (asked(act), asked(denied));
        let clock = clock.map(|now| [now.as_secs().to_string(), now.subsec_micros().to_string()]);
        let [seconds, us] = clock.unwrap_or_default();
        let count = (keys.len() + 2).to_string();
        let marker = marker();
        let mut command: Vec<&[u8]> = vec![b"EVALSHA", self.sha.as_bytes(), count.as_bytes()];
        command.extend([&marker[..], &ours.key]);
        command.extend(keys.iter().map(|key| key.as_bytes()));
        command.extend([seconds.as_bytes(), us.as_bytes(), &ours.argument, &otherwise.argument]);
        command.extend(arguments.iter().map(String::as_bytes));
        let reply = self.client.call_bytes(&command);
        let Reply::List(both) = &reply else { panic!("{reply:?}") };
        let theirs = both[0] == Reply::Number(1);
        let answers = read(&both[1], 1);
        let (ours, _) = standing(answers.all[0]);
        Verdicts { theirs, ours: ours.admitted, now: answers.now }
    }

    /// Both begin anew.
    fn forget(&mut self, limit: &Limit, keys: &[&str]) {
        let ours = question("beside", limit, Act::Take, 1).key;
        let mut command: Vec<&[u8]> = vec![b"DEL", &ours];
        command.extend(keys.iter().map(|key| key.as_bytes()));
        self.client.call_bytes(&command);
    }
}

#[test]
fn the_bucket_is_the_textbooks() {
    let store = Store::start();
    let mut beside = Beside::new(&store, TOKEN_BUCKET, "result == 1");
    let mut random = Random(11);
    let (mut admitted, mut denied) = (0, 0);
    let mut now = future();
    // Steps and rates of powers of two: then all that theirs computes with floating point is exact. Ties are frequent.
    let step = Duration::from_micros(15_625);
    for _ in 0..20 {
        let (rate, burst) = (1 << random.below(7), 1 + random.below(30));
        let limit = Limit { burst: Some(burst), ..limit(Choice::TokenBucket, rate, SECOND) };
        for _ in 0..150 {
            now += step * random.below(1 + 128 / rate) as u32;
            let cost = 1 + random.below(3);
            let arguments = [rate, burst, cost].map(|number| number.to_string());
            let both = beside.ask(&limit, (Act::Take, cost), Some(now), &["theirs"], &arguments);
            assert_eq!(both.theirs, both.ours, "{limit} at {now:?}: {cost}, {both:?}");
            admitted += u32::from(both.ours);
            denied += u32::from(!both.ours);
        }
        beside.forget(&limit, &["theirs"]);
    }
    println!("{admitted} admitted, {denied} denied");
    assert!(admitted > 1_000 && denied > 500, "{admitted} {denied}");
    // By the store's clock both see the same µs, and a unit is a whole number of them.
    let limit = Limit { burst: Some(5), ..limit(Choice::TokenBucket, 1_024, SECOND) };
    let (mut admitted, mut different) = (0, 0);
    for _ in 0..1_000 {
        let arguments = [1_024, 5, 1].map(|number: u32| number.to_string());
        let both = beside.ask(&limit, (Act::Owe, 1), None, &["theirs"], &arguments);
        admitted += u32::from(both.theirs);
        different += u32::from(both.theirs != both.ours);
    }
    // A unit of ours has 976,562.5 ns, up to a whole tick; theirs loses half a µs to floating point.
    assert!(different <= 2, "{different} of 1000, {admitted} admitted");
}

#[test]
fn the_log_is_that_of_limits_but_for_what_is_exactly_as_old_as_the_window() {
    let store = Store::start();
    let theirs = limits("acquire_moving_window.lua");
    let mut beside = Beside::new(&store, &theirs, "result");
    let (limit, step) = (limit(Choice::SlidingLog, 10, 64 * SECOND), Duration::from_micros(15_625));
    let (mut random, mut now) = (Random(1), future());
    let mut used: Vec<Duration> = Vec::new();
    let (mut ties, mut denied) = (0, 0);
    for _ in 0..3_000 {
        now += match random.below(4) {
            0 => Duration::ZERO,
            // Most at multiples of 8 s, so that many are as old as the window when others come.
            1 if random.below(8) == 0 => step * random.below(64) as u32,
            _ => SECOND * 8 - Duration::from_nanos((now.as_nanos() % 8_000_000_000) as u64),
        };
        let cost = 1 + u64::from(random.below(8) == 0) * random.below(4);
        // Exact: 1/64 s.
        let arguments = [now.as_secs_f64().to_string(), "10".into(), "64".into(), cost.to_string()];
        let both = beside.ask(&limit, (Act::Owe, cost), Some(now), &["theirs"], &arguments);
        if both.theirs != both.ours {
            // In theirs it still counts.
            assert!(both.ours && used.iter().any(|at| now - *at == 64 * SECOND), "{both:?}");
            ties += 1;
        }
        denied += u32::from(!both.theirs);
        used.extend((0..cost * u64::from(both.theirs)).map(|_| now));
    }
    println!("{ties} of 3000 verdicts differ, {denied} are denials");
    assert!(ties > 50 && denied > 500, "{ties} {denied}");
}

#[test]
fn the_sliding_window_is_that_of_limits_but_for_parts_of_units() {
    let store = Store::start();
    let theirs = limits("acquire_sliding_window.lua");
    let mut beside = Beside::new(&store, &theirs, "result");
    let window = 200 * MS;
    let keys = ["theirs:before", "theirs:now"];
    let arguments = ["20".into(), "0.2".into(), "1".into()];
    let (mut random, mut different, mut denied) = (Random(2), 0, 0);
    // They round what is weighted down, ours up. Besides, theirs begin up to 5 ms later, and end in whole ms: half a unit
    // of 20, and what came between both edges. So ours of 3 more denies nothing that theirs admits, and of 3 less admits
    // nothing that theirs denies.
    for requests in [20, 23, 17, 20, 23, 17] {
        let limit = limit(Choice::SlidingWindow, requests, window);
        loop {
            // Theirs begin with the first request. If that comes at an edge of ours, they have the same ones.
            beside.forget(&limit, &keys);
            sleep(window - since_edge(window));
            let first = beside.ask(&limit, (Act::Owe, 1), None, &keys, &arguments);
            if first.now.as_micros() % window.as_micros() < 5_000 {
                break;
            }
        }
        let (begin, mut last) = (Instant::now(), Duration::MAX);
        while begin.elapsed() < window * 5 {
            let both = beside.ask(&limit, (Act::Owe, 1), None, &keys, &arguments);
            if both.now.saturating_sub(last) > window / 2 {
                // This machine was busy: theirs may have begun anew.
                break;
            }
            last = both.now;
            denied += u32::from(!both.theirs);
            match requests {
                20 => different += u32::from(both.theirs != both.ours),
                23 => assert!(both.ours || !both.theirs, "{both:?}"),
                _ => assert!(!both.ours || both.theirs, "{both:?}"),
            }
            sleep(Duration::from_micros(random.below(6_000)));
        }
    }
    println!("{different} verdicts differ, {denied} are denials");
    assert!(different > 0 && denied > 200, "{different} differ, {denied} denied");
}

#[test]
fn the_fixed_window_is_that_of_limits_where_a_request_begins_each_window() {
    let store = Store::start();
    let theirs = limits("incr_expire.lua");
    let mut beside = Beside::new(&store, &theirs, "result <= 10");
    let limit = limit(Choice::FixedWindow, 10, SECOND);
    let (mut row, mut begins) = (0, Duration::ZERO);
    while row < 3 {
        // Theirs begin with the first request that finds none, and last a second: later in each, so that they have ended.
        sleep(SECOND - since_edge(SECOND));
        sleep((begins + 30 * MS).saturating_sub(since_edge(SECOND)));
        let arguments = ["1".into(), "1".into()];
        let all: Vec<_> = (0..15)
            .map(|_| {
                sleep(5 * MS);
                // They cost one each, as theirs charges what it denies.
                beside.ask(&limit, (Act::Take, 1), None, &["theirs"], &arguments)
            })
            .collect();
        if all[0].now.as_secs() != all[14].now.as_secs() {
            // This machine was busy: the last ones are behind an edge of ours, and not of theirs.
            beside.forget(&limit, &["theirs"]);
            (row, begins) = (0, Duration::ZERO);
            continue;
        }
        assert!(all.iter().all(|both| both.theirs == both.ours), "window {row}: {all:?}");
        assert_eq!(all.iter().filter(|both| both.ours).count(), 10, "window {row}: {all:?}");
        begins = Duration::from_nanos(all[0].now.subsec_nanos().into());
        row += 1;
    }
}
