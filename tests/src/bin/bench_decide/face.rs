//! What is sent and read over each face.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{
    client::{Exchange, Request},
    contender::Contender,
};

/// A way to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Face {
    Resp,
    RespPipelined,
    Http,
    Grpc,
    /// gRPC, 10,000 calls a second: what Envoy would see beside its time-out.
    GrpcPaced,
}

impl Face {
    pub(crate) const ALL: [Self; 5] =
        [Self::Resp, Self::RespPipelined, Self::Http, Self::Grpc, Self::GrpcPaced];

    pub(crate) const fn contenders(self) -> &'static [Contender] {
        use Contender::{Constant, Limiter, Redis, RedisIncr, Throttlecrab};
        match self {
            Self::Resp | Self::RespPipelined => {
                &[Limiter, Throttlecrab, Constant, Redis, RedisIncr]
            }
            Self::Http => &[Limiter, Throttlecrab, Constant],
            Self::Grpc | Self::GrpcPaced => &[Limiter, Throttlecrab, Constant],
        }
    }
}

/// GCRA as a script, in µs of the server's clock: the time at which a key is as good as new.
pub(crate) const SCRIPT: &str = "
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local burst, count, period, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local each = period * 1000000 / count
local tolerance = each * burst
local free = tonumber(redis.call('GET', KEYS[1]) or now)
if free < now then free = now end
local next = free + each * cost
if next - now > tolerance then
  return {1, burst, math.floor((tolerance - (free - now)) / each), math.ceil((next - now - tolerance) / 1000000), math.ceil((free - now) / 1000000)}
end
redis.call('SET', KEYS[1], string.format('%.0f', next), 'PX', math.ceil((next - now) / 1000))
return {0, burst, math.floor((tolerance - (next - now)) / each), -1, math.ceil((next - now) / 1000000)}
";

/// Appends a command about a key: its name, the key, and the limit.
pub(crate) fn command(name: &str, to: &mut Vec<u8>, key: u64) {
    let key = format!("user{key:08}");
    texts(to, &[name, &key, "99", "1000", "60", "1"]);
}

fn texts(to: &mut Vec<u8>, texts: &[&str]) {
    let mut text = String::new();
    let _ = write!(text, "*{}\r\n", texts.len());
    for each in texts {
        let _ = write!(text, "${}\r\n{each}\r\n", each.len());
    }
    to.extend_from_slice(text.as_bytes());
}

/// What plain connections exchange with a contender.
pub(crate) fn exchange(face: Face, contender: Contender, script: &str) -> Exchange {
    let script = script.to_owned();
    let request: Request = match (face, contender) {
        (Face::Http, Contender::Throttlecrab) => Box::new(|to, key| {
            let body = format!(
                r#"{{"key":"user{key:08}","max_burst":99,"count_per_period":1000,"period":60,"quantity":1}}"#
            );
            let head =
                "POST /throttle HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
            let length = body.len();
            to.extend_from_slice(
                format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes(),
            );
        }),
        (Face::Http, _) => Box::new(|to, key| {
            let target = format!("/v1/decide?domain=bench&rule=user&key=user{key:08}");
            to.extend_from_slice(
                format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes(),
            );
        }),
        (_, Contender::Throttlecrab) => Box::new(|to, key| command("THROTTLE", to, key)),
        (_, Contender::Redis) => Box::new(move |to, key| {
            let key = format!("user{key:08}");
            texts(to, &["EVALSHA", &script, "1", &key, "100", "1000", "60", "1"]);
        }),
        (_, Contender::RedisIncr) => {
            Box::new(|to, key| texts(to, &["INCR", &format!("count{key:08}")]))
        }
        _ => Box::new(|to, key| command("CL.THROTTLE", to, key)),
    };
    Exchange { request, answer: if face == Face::Http { http_answer } else { resp_answer } }
}

fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[..end], end + 2))
}

/// A reply of numbers. An error is none: the benchmark stops there.
fn resp_answer(bytes: &[u8]) -> Option<usize> {
    let (first, mut at) = line(bytes)?;
    assert!(!first.starts_with(b"-"), "{}", String::from_utf8_lossy(first));
    if let Some(count) = first.strip_prefix(b"*") {
        let count: usize = std::str::from_utf8(count).ok()?.parse().ok()?;
        for _ in 0..count {
            at += line(&bytes[at..])?.1;
        }
    }
    Some(at)
}

fn http_answer(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let status = text.split(' ').nth(1);
    assert!(matches!(status, Some("200" | "429")), "{text}");
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    })?;
    (bytes.len() >= head + length).then_some(head + length)
}
