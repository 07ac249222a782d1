//! Limits that a central store keeps for all hosts: what its script is asked, and what it answers.
//!
//! The script is `decide.lua`, for Redis 6.2 and later, and Valkey. It decides by the store's clock, in one step: of all keys
//! of a decision each is charged, or none. One call has the decisions of many requests.

use std::time::Duration;

use limiter_common::gcra::Ticks;
use model::meter::{Choice, Limit, PARTS, TICK_NS, ticks};
use sha2::{Digest as _, Sha256};

use crate::act::{Act, Role, Standing};
use crate::key::Entry;

#[cfg(test)]
mod tests;

/// The script. Its first key is [`Name::since`] of all that follow.
pub const SCRIPT: &str = include_str!("decide.lua");

/// Keys of a call at the most.
pub const MAX_KEYS: usize = 64;

/// Bytes of a question, and where its flags are.
const QUESTION: usize = 36;
const FLAGS: usize = 2;

/// Bytes of an answer, behind the store's time.
const TIME: usize = 8;
const ANSWER: usize = 33;

/// The longest text that is to be read in the store, bytes.
const MAX_NAME: usize = 200;

/// What a double counts to without a gap: the numbers of Lua are such.
const MAX_EXACT: u64 = 1 << 53;

/// A question is the last one of its decision.
pub const LAST: u8 = 1;
/// A quota that is kept elsewhere has room: no quotas deny.
pub const QUOTA_HAS_ROOM: u8 = 2;
/// All quotas that are kept elsewhere are used up, and there are some.
pub const QUOTA_IS_OVER: u8 = 4;
/// As many units as have room are to be used, and not all or none: the key is over if that is none. Its wait is that for one
/// unit more.
pub const PARTIAL: u8 = 8;

/// What is asked about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The key that its state has in the store.
    pub key: Vec<u8>,
    /// The rest: an argument of the script.
    pub argument: [u8; QUESTION],
}

/// What a descriptor is called in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The domain. Keys of a domain are in one slot of a cluster: its limits are charged together, or none of them.
    pub domain: String,
    /// The descriptor.
    pub descriptor: String,
}

impl Name {
    /// The name of a descriptor.
    #[must_use]
    pub fn new(domain: &str, entries: &[Entry<'_>]) -> Self {
        let texts = entries.iter().flat_map(|(key, value)| [*key, *value]);
        // Plain texts always make JSON.
        let descriptor = serde_json::to_string(&texts.collect::<Vec<_>>()).unwrap_or_default();
        // A brace would end the part of the key that chooses the slot.
        let is_plain = !domain.contains(['{', '}']);
        Self { domain: short(domain, is_plain), descriptor: short(&descriptor, true) }
    }

    /// The key of when the memory of its domain began, in µs since 1970. Without it, it begins now. Until a limit's window
    /// has passed since then, no more than what was earned has room: what was used before is forgotten.
    #[must_use]
    pub fn since(&self) -> Vec<u8> {
        format!("limiter:{{{}}}:since", self.domain).into_bytes()
    }
}

/// A text, or its hash if it is not to be read.
fn short(text: &str, is_plain: bool) -> String {
    if is_plain && text.len() <= MAX_NAME {
        return text.to_owned();
    }
    // Not the hash of tables: nobody is to find another text of the same one, and it has no secret.
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().fold("sha256-".to_owned(), |name, byte| name + &format!("{byte:02x}"))
}

impl Question {
    /// Asks about a descriptor under a limit that admits something.
    #[must_use]
    pub fn new(name: &Name, limit: &Limit, role: Role, act: Act, cost: u64) -> Self {
        // Up to the next µs: never more than the limit.
        let window = limit.window.as_nanos().div_ceil(1_000) as u64;
        let parts = limit.granularity.unwrap_or(PARTS);
        // What is counted under another window means something else. A debt in time does not. A log has times as well, but
        // only those of its window.
        let (kind, state, numbers) = match limit.algorithm {
            Choice::TokenBucket => {
                let unit = ticks(limit.window).div_ceil(limit.requests.max(1)) * TICK_NS;
                let burst = limit.burst.unwrap_or(limit.requests);
                (b'g', "g".to_owned(), [unit / 1_000, unit % 1_000, burst])
            }
            Choice::FixedWindow => (b'f', format!("f{window}"), [limit.requests, window, 0]),
            Choice::SlidingWindow => (b's', format!("s{window}"), [limit.requests, window, 0]),
            Choice::SubWindows => {
                let part = window.div_ceil(parts);
                (b'p', format!("p{part}x{parts}"), [limit.requests, part, parts])
            }
            Choice::SlidingLog => (b'l', format!("l{window}"), [limit.requests, window, 0]),
        };
        let Name { domain, descriptor } = name;
        let key = format!("limiter:{{{domain}}}:{state}:{descriptor}").into_bytes();
        let act = match act {
            Act::Take => b't',
            Act::Peek => b'p',
            Act::Owe => b'o',
            Act::Refund => b'r',
            Act::Reset => b'z',
        };
        let role = match role {
            Role::Enforced => b'e',
            Role::Quota => b'q',
            Role::Shadow => b's',
        };
        // The limit comes last, as one text: the script reads it once for all keys under it.
        let mut argument = [act, role, 0].to_vec();
        argument.extend(cost.min(MAX_EXACT).to_be_bytes());
        argument.push(kind);
        for number in numbers {
            argument.extend(number.min(MAX_EXACT).to_be_bytes());
        }
        let mut question = Self { key, argument: [0; QUESTION] };
        question.argument.copy_from_slice(&argument);
        question
    }

    /// Sets some of [`LAST`], [`QUOTA_HAS_ROOM`], [`QUOTA_IS_OVER`] and [`PARTIAL`]. All but the last one are a matter of the
    /// decision, and read where it ends.
    pub const fn set(&mut self, flags: u8) {
        self.argument[FLAGS] |= flags;
    }
}

/// What is answered about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// How it stands, and how many units were charged.
    Standing(Standing, u64),
    /// Its state is something that no script of this kind has written.
    Foreign,
    /// The store takes no changes: it is full, or a copy.
    ReadOnly,
}

/// All that a call is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// The store's time, since 1970.
    pub now: Duration,
    /// In the order of the questions.
    pub all: Vec<Answer>,
}

impl Answers {
    /// Reads what the script has returned to so many questions; `None` if it is nothing of the kind.
    #[must_use]
    pub fn read(reply: &[u8], questions: usize) -> Option<Self> {
        let (time, rest) = reply.split_first_chunk::<TIME>()?;
        let (answers, []) = rest.as_chunks::<ANSWER>() else { return None };
        if answers.len() != questions {
            return None;
        }
        let now = Duration::from_micros(u64::from_be_bytes(*time));
        let all = answers.iter().map(Answer::read).collect::<Option<_>>()?;
        Some(Self { now, all })
    }
}

impl Answer {
    fn read(answer: &[u8; ANSWER]) -> Option<Self> {
        let (status, numbers) = answer.split_first()?;
        let (numbers, _) = numbers.as_chunks::<8>();
        let [charged, remaining, wait, renews] =
            <[[u8; 8]; 4]>::try_from(numbers).ok()?.map(u64::from_be_bytes);
        let time = |us: u64| -> Ticks { ticks(Duration::from_micros(us)) };
        match status {
            0 | 1 => {
                let wait = (wait as i64 >= 0).then(|| time(wait));
                let admitted = *status == 1;
                let standing =
                    Standing { admitted, remaining, wait, renews: time(renews), tracked: true };
                Some(Self::Standing(standing, charged))
            }
            2 => Some(Self::Foreign),
            3 => Some(Self::ReadOnly),
            _ => None,
        }
    }
}
