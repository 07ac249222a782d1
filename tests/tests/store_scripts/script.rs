//! The script in a store, and what a host would decide in its place.

use std::time::Duration;

use decide::{
    act::{Act, Role, Standing},
    central::{Answer, Answers, LAST, Name, Question, SCRIPT},
    key::{Secret, Space},
    side::{self, Side},
    states::States,
    table::{self, Table},
};
use limiter_common::atomic::AtomicU64;
use model::meter::{Choice, Limit, Meter, ticks};
use tests::{
    Store,
    resp::{Reply, Resp},
};

/// Hands the script another clock: its seconds and µs are the last two arguments.
const CLOCK: &str = "
local real = redis
local us, seconds = table.remove(ARGV), table.remove(ARGV)
local function at(call)
  return function(command, ...)
    return command == 'TIME' and { seconds, us } or call(command, ...)
  end
end
local redis = { call = at(real.call), pcall = at(real.pcall) }
";

pub(super) const DOMAIN: &str = "t";

/// When the store's memory of it began.
pub(super) fn marker() -> Vec<u8> {
    Name::new(DOMAIN, &[]).since()
}
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const US: Duration = Duration::from_micros(1);

/// The script in a store whose memory is as long as any window.
pub(super) struct Script {
    client: Resp,
    sha: String,
}

impl Script {
    /// By the clock of the store.
    pub(super) fn new(store: &Store) -> Self {
        let mut script = Self::load(store, SCRIPT);
        script.remembers_since(Duration::ZERO);
        script
    }

    /// In a store that takes no writes, and has the marker of its master.
    pub(super) fn of_replica(store: &Store) -> Self {
        Self::load(store, SCRIPT)
    }

    /// By a clock of the test. It is to be ahead of the store's, so that no key expires before its time.
    pub(super) fn with_clock(store: &Store) -> Self {
        let mut script = Self::load(store, &format!("{CLOCK}{SCRIPT}"));
        script.remembers_since(Duration::ZERO);
        script
    }

    fn load(store: &Store, script: &str) -> Self {
        let mut client = store.client();
        let sha = client.call(&["SCRIPT", "LOAD", script]);
        let sha = sha.as_str().expect("a hash").to_owned();
        Self { client, sha }
    }

    /// Sets the time at which the memory of the store began.
    pub(super) fn remembers_since(&mut self, time: Duration) {
        let value = time.as_micros().to_string();
        let reply = self.client.call_bytes(&[b"SET", &marker()[..], value.as_bytes()]);
        assert_eq!(reply, Reply::Bytes(b"OK".to_vec()));
    }

    /// The connection.
    pub(super) const fn client(&mut self) -> &mut Resp {
        &mut self.client
    }

    /// Sends a command of texts with spaces between them; the first key of the questions stands for `KEY`.
    pub(super) fn call(&mut self, command: &str, key: &Question) -> Reply {
        let texts: Vec<&[u8]> = command
            .split(' ')
            .map(|text| if text == "KEY" { &key.key[..] } else { text.as_bytes() })
            .collect();
        self.client.call_bytes(&texts)
    }

    pub(super) fn decide(&mut self, questions: &[Question]) -> Answers {
        self.send(questions, &[])
    }

    /// The same by a clock of the test.
    pub(super) fn decide_at(&mut self, now: Duration, questions: &[Question]) -> Answers {
        self.send(questions, &[now.as_secs().to_string(), now.subsec_micros().to_string()])
    }

    fn send(&mut self, questions: &[Question], clock: &[String]) -> Answers {
        let mut command = vec![b"EVALSHA".to_vec(), self.sha.clone().into_bytes()];
        command.push((questions.len() + 1).to_string().into_bytes());
        command.push(marker());
        command.extend(questions.iter().map(|question| question.key.clone()));
        command.extend(questions.iter().map(|question| question.argument.to_vec()));
        command.extend(clock.iter().map(|number| number.clone().into_bytes()));
        read(&self.client.call_bytes(&command), questions.len())
    }

    /// Asks about one key.
    pub(super) fn ask(&mut self, question: Question) -> Answer {
        self.decide(&[alone(question)]).all[0]
    }
}

/// Reads a reply.
pub(super) fn read(reply: &Reply, questions: usize) -> Answers {
    let Reply::Bytes(bytes) = reply else { panic!("{reply:?}") };
    Answers::read(bytes, questions).unwrap_or_else(|| panic!("{bytes:?}"))
}

/// A question about a key that has a name of its own.
pub(super) fn question(name: &str, limit: &Limit, act: Act, cost: u64) -> Question {
    Question::new(&Name::new(DOMAIN, &[("key", name)]), limit, Role::Enforced, act, cost)
}

/// A question that is a decision.
pub(super) fn alone(mut question: Question) -> Question {
    question.set(LAST);
    question
}

/// How a key stands, and what was charged.
pub(super) fn standing(answer: Answer) -> (Standing, u64) {
    let Answer::Standing(standing, charged) = answer else { panic!("{answer:?}") };
    (standing, charged)
}

/// A limit of an algorithm.
pub(super) const fn limit(algorithm: Choice, requests: u64, window: Duration) -> Limit {
    Limit { algorithm, ..Limit::new(requests, window) }
}

/// One limit of each algorithm.
pub(super) fn each(requests: u64, window: Duration) -> [Limit; 5] {
    [
        Choice::TokenBucket,
        Choice::FixedWindow,
        Choice::SlidingWindow,
        Choice::SubWindows,
        Choice::SlidingLog,
    ]
    .map(|algorithm| limit(algorithm, requests, window))
}

/// A time that is ahead of all stores, at the beginning of windows of any usual length.
pub(super) fn future() -> Duration {
    const DAY: u64 = 86_400;
    let now = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970").as_secs();
    Duration::from_secs((now / DAY + 400) * DAY)
}

/// What a host decides.
pub(super) struct Host {
    pub(super) states: States<Vec<AtomicU64>>,
}

impl Host {
    pub(super) fn new() -> Self {
        let memory = |bytes: usize| (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        let table = Table::create(memory(table::bytes(1_000)), Secret([1, 2]), 0).expect("memory");
        let side = Side::open(memory(side::bytes(1_000, side::LONG)));
        Self { states: States { table, side, shared: None, synced: None } }
    }

    pub(super) fn ask(
        &self,
        name: &str,
        limit: &Limit,
        act: Act,
        cost: u64,
        now: Duration,
    ) -> Standing {
        let key = self.states.table.secret().hash(Space::Named, name.as_bytes());
        let meter = Meter::new(limit).expect("a limit");
        self.states.ask(key, &meter, act, cost, ticks(now))
    }
}

/// Numbers that are the same in each run.
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub(super) fn act(&mut self) -> Act {
        match self.below(20) {
            0..12 => Act::Take,
            12..14 => Act::Peek,
            14..16 => Act::Owe,
            16..19 => Act::Refund,
            _ => Act::Reset,
        }
    }

    /// Most are small; some are about the limit, and some beyond all.
    pub(super) fn cost(&mut self, limit: u64) -> u64 {
        match self.below(20) {
            0 => 0,
            1..14 => 1 + self.below(3),
            14..18 => 1 + self.below(limit),
            18 => limit + self.below(3),
            _ => u64::MAX - self.below(2),
        }
    }
}
