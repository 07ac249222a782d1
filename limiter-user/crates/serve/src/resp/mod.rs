//! Commands of Redis, so that each language has a client: `CL.THROTTLE` as redis-cell answers it.

mod codec;
#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use decide::act::Act;
use limiter_common::gcra::Ticks;
use listen::Connection;
use listen::token::Token;
use model::meter::{Limit, span};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::latency::Face;
use crate::service::Service;

/// Bytes of replies that are written at once. What a client has sent beyond that waits.
const MAX_REPLIES: usize = 64 * 1024;

/// Bytes that are read at once, at least.
const READ: usize = 4 * 1024;

/// How long a client may take until it has shown the token.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long somebody with a wrong token waits for the answer.
const WRONG_TOKEN_DELAY: Duration = Duration::from_secs(1);

/// A client, as far as its commands go.
struct Session<'a> {
    service: &'a Service,
    token: Option<&'a Token>,
    known: bool,
    /// When this batch of commands came.
    now: Ticks,
    replies: Vec<u8>,
    /// Where the texts of a command are.
    texts: Vec<Range<usize>>,
}

/// What follows a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The next one.
    Next,
    /// The connection ends.
    Close,
    /// The token was wrong.
    Wrong,
}

/// Serves a connection until it ends, or all are to.
pub(crate) async fn serve(
    mut stream: Connection,
    service: Arc<Service>,
    token: Option<Arc<Token>>,
    mut stop: watch::Receiver<bool>,
) {
    let mut session = Session {
        service: &service,
        token: token.as_deref(),
        known: token.is_none(),
        now: 0,
        replies: Vec::new(),
        texts: Vec::new(),
    };
    let login = Instant::now() + LOGIN_TIMEOUT;
    // One future for all reads: each that waits for the end takes a lock to say so.
    let mut end = pin!(crate::all_are_to_end(&mut stop));
    let mut input = BytesMut::with_capacity(4 * READ);
    loop {
        let (used, then) = session.batch(&input);
        input.advance(used);
        if !session.replies.is_empty() {
            if then == Then::Wrong {
                sleep(WRONG_TOKEN_DELAY).await;
            }
            if stream.write_all(&session.replies).await.is_err() {
                return;
            }
            session.replies.clear();
            if used > 0 && !input.is_empty() && then != Then::Close {
                // There may be more of them.
                continue;
            }
        }
        if then == Then::Close {
            return;
        }
        // As many commands at once as a client sends, but no read of a few bytes.
        input.reserve(READ);
        let read = async {
            tokio::select! {
                biased;
                read = stream.read_buf(&mut input) => read.is_ok_and(|bytes| bytes > 0),
                () = &mut end => false,
            }
        };
        let goes_on = match session.known {
            true => read.await,
            false => timeout_at(login, read).await.unwrap_or(false),
        };
        if !goes_on {
            return;
        }
    }
}

impl Session<'_> {
    /// Carries out the commands that are whole: how many bytes they have.
    fn batch(&mut self, input: &[u8]) -> (usize, Then) {
        let (mut used, mut commands, mut then) = (0, 0, Then::Next);
        let mut texts = std::mem::take(&mut self.texts);
        self.now = self.service.now();
        while then == Then::Next && self.replies.len() < MAX_REPLIES {
            let rest = &input[used..];
            match codec::command(rest, &mut texts) {
                Ok(Some(length)) => {
                    then = self.command(rest, &texts);
                    used += length;
                    commands += 1;
                }
                Ok(None) if rest.len() < codec::MAX_COMMAND => break,
                Ok(None) => {
                    codec::error(&mut self.replies, "ERR Protocol error: too big command");
                    then = Then::Close;
                }
                Err(error) => {
                    codec::error(&mut self.replies, &format!("ERR Protocol error: {error}"));
                    then = Then::Close;
                }
            }
        }
        self.texts = texts;
        if commands > 0 {
            let took = span(self.service.now().saturating_sub(self.now));
            self.service.latencies.count(Face::Resp, commands, took);
        }
        (used, then)
    }

    fn command(&mut self, input: &[u8], texts: &[Range<usize>]) -> Then {
        let text = |at: usize| texts.get(at).map(|range| &input[range.clone()]);
        let Some(name) = text(0) else { return Then::Next };
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        let out = &mut self.replies;
        if is("QUIT") {
            codec::simple(out, "OK");
            return Then::Close;
        }
        if is("AUTH") {
            // With a user's name or without: there is one user.
            return self.log_in(text(texts.len().max(2) - 1).filter(|_| texts.len() <= 3));
        }
        if is("HELLO") {
            return self.hello(text(1), (texts.len() == 5).then(|| text(4)).flatten());
        }
        if !self.known {
            codec::error(out, "NOAUTH Authentication required.");
            return Then::Next;
        }
        if is("CL.THROTTLE") {
            self.throttle(&texts[1..], input);
        } else if is("PING") {
            match text(1) {
                None => codec::simple(out, "PONG"),
                Some(message) => codec::text(out, message),
            }
        } else if is("ECHO") && texts.len() == 2 {
            codec::text(out, text(1).unwrap_or_default());
        } else if is("INFO") {
            let info = info(self.service);
            codec::text(out, info.as_bytes());
        } else if is("CLIENT") || is("SELECT") {
            // Clients tell their names and choose a database as they connect.
            codec::simple(out, "OK");
        } else if is("COMMAND") {
            codec::array(out, 0);
        } else {
            let name = String::from_utf8_lossy(&name[..name.len().min(64)]);
            codec::error(out, &format!("ERR unknown command '{name}'"));
        }
        Then::Next
    }

    fn log_in(&mut self, shown: Option<&[u8]>) -> Then {
        let out = &mut self.replies;
        match (self.token, shown) {
            (_, None) => {
                codec::error(out, "ERR wrong number of arguments for 'auth' command");
                Then::Next
            }
            (None, _) => {
                codec::error(out, "ERR AUTH called without any token set: give --token-file");
                Then::Next
            }
            (Some(token), Some(shown)) if token.is(shown) => {
                self.known = true;
                codec::simple(out, "OK");
                Then::Next
            }
            _ => {
                codec::error(out, "WRONGPASS invalid username-password pair or user is disabled.");
                Then::Wrong
            }
        }
    }

    /// Tells who this is, in the second version of the protocol.
    fn hello(&mut self, version: Option<&[u8]>, shown: Option<&[u8]>) -> Then {
        if version.is_some_and(|version| version != b"2") {
            codec::error(&mut self.replies, "NOPROTO unsupported protocol version: take 2");
            return Then::Next;
        }
        if let Some(shown) = shown {
            let before = self.replies.len();
            let then = self.log_in(Some(shown));
            if !self.known || then != Then::Next {
                return then;
            }
            self.replies.truncate(before);
        }
        if !self.known {
            codec::error(&mut self.replies, "NOAUTH HELLO must be called with AUTH.");
            return Then::Next;
        }
        let out = &mut self.replies;
        let facts = [("server", "limiter"), ("version", env!("CARGO_PKG_VERSION"))];
        codec::array(out, 2 * facts.len() + 2);
        for (name, value) in facts {
            codec::text(out, name.as_bytes());
            codec::text(out, value.as_bytes());
        }
        codec::text(out, b"proto");
        codec::integer(out, 2);
        Then::Next
    }

    /// `CL.THROTTLE key max_burst count period [quantity]`.
    fn throttle(&mut self, texts: &[Range<usize>], input: &[u8]) {
        let out = &mut self.replies;
        if !(4..=5).contains(&texts.len()) {
            codec::error(out, "ERR wrong number of arguments for 'cl.throttle' command");
            return;
        }
        let key = &input[texts[0].clone()];
        let mut numbers = [1; 4];
        let names = ["max_burst", "count", "period", "quantity"];
        for ((text, number), name) in texts[1..].iter().zip(&mut numbers).zip(names) {
            let text = std::str::from_utf8(&input[text.clone()]).ok();
            let least = if name == "quantity" { i64::MIN } else { i64::from(name != "max_burst") };
            match text.and_then(|text| text.parse::<i64>().ok()).filter(|&value| value >= least) {
                Some(value) => *number = value,
                None => {
                    let message = format!("ERR {name} is no number from {least} on");
                    codec::error(out, &message);
                    return;
                }
            }
        }
        let [max_burst, count, period, quantity] = numbers;
        let burst = max_burst as u64 + 1;
        let limit = Limit {
            burst: Some(burst),
            ..Limit::new(count as u64, Duration::from_secs(period as u64))
        };
        let (act, cost) = match quantity {
            0 => (Act::Peek, 0),
            1.. => (Act::Take, quantity as u64),
            _ => (Act::Refund, quantity.unsigned_abs()),
        };
        match self.service.ask(key, &limit, act, cost, self.now) {
            Ok(standing) => {
                let seconds = |ticks| span(ticks).as_nanos().div_ceil(1_000_000_000) as i64;
                let retry = standing.wait.filter(|_| !standing.admitted).map_or(-1, seconds);
                codec::array(out, 5);
                codec::integer(out, (!standing.admitted).into());
                codec::integer(out, burst as i64);
                codec::integer(out, standing.remaining as i64);
                codec::integer(out, retry);
                codec::integer(out, seconds(standing.renews));
            }
            Err(error) => codec::error(out, &format!("ERR {error}")),
        }
    }
}

/// What `INFO` tells.
fn info(service: &Service) -> String {
    let table = &service.states().table;
    let counts = table.counts();
    let rules = service.rules();
    [
        "# Server".to_owned(),
        format!("limiter_version:{}", env!("CARGO_PKG_VERSION")),
        format!("process_id:{}", std::process::id()),
        "# Keys".to_owned(),
        format!("keys:{}", table.keys()),
        format!("capacity:{}", table.capacity()),
        format!("evicted_full:{}", counts.evicted),
        format!("evicted_busy:{}", counts.evicted_busy),
        format!("untracked:{}", counts.full),
        "# Rules".to_owned(),
        format!("rules:{}", rules.all().len()),
        String::new(),
    ]
    .join("\r\n")
}
