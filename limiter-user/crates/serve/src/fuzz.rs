//! What comes in from anybody, changed at random: nothing brings the process down, or takes memory without a bound.
//!
//! `cargo xtask fuzz` runs these for longer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use decide::rules::{Rules, Tallies};
use futures_util::FutureExt as _;
use prost::Message as _;
use tempfile::TempDir;

use crate::push_down::PushDowns;
use crate::resp::tests::talk;
use crate::rlqs::UsageReports;
use crate::rls::{self, RateLimitRequest};
use crate::service::{Place, Service};

/// How much more memory than at the beginning a run may take, KiB.
const MORE_MEMORY: u64 = 128 * 1024;

const RULES: &str = "domain: d\ndescriptors:\n  - key: k\n    value: a*\n    rate_limit: { name: n, unit: day, \
                     requests_per_unit: 5, burst: 2, algorithm: token-bucket }\n    shadow_mode: false\n    metadata: \
                     { a: [1, { b: c }] }\n    descriptors:\n      - key: l\n        rate_limit: { unlimited: true }\n";

/// Numbers that look random, the same each time.
struct Random(u64);

impl Random {
    const fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % if end == 0 { 1 } else { end }
    }

    /// Some of `samples`, changed in a few places.
    fn changed(&mut self, samples: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = samples[self.below(samples.len())].clone();
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len() + 1);
            match self.below(6) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.below(256) as u8),
                2 => {
                    let other = &samples[self.below(samples.len())];
                    let from = self.below(other.len() + 1);
                    bytes.splice(at..at, other[from..].iter().copied());
                }
                3 => {
                    let again = bytes[at..].to_vec();
                    bytes.extend(again);
                }
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        // Signs that mean something as often as others.
                        let signs = b"*$:-+\r\n{}[]&|>'\"#0129\x7f\x80\xff";
                        *byte = if self.below(2) == 0 {
                            signs[self.below(signs.len())]
                        } else {
                            *byte ^ (1 << self.below(8))
                        };
                    }
                }
            }
            // Longer ones are refused before they are read.
            bytes.truncate(256 * 1024);
        }
        bytes
    }
}

/// The most memory that this process has had, KiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Hands changed samples to `take`, for as long as is wanted.
fn fuzz(samples: &[Vec<u8>], mut take: impl FnMut(&[u8])) {
    let wanted = std::env::var("LIMITER_FUZZ_SECONDS");
    let seconds = wanted.map_or(1, |wanted| wanted.parse().expect("whole seconds"));
    let (begun, mut random, mut inputs) = (Instant::now(), Random(seconds), 0u64);
    samples.iter().for_each(|sample| take(sample));
    let before = memory();
    while begun.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..100 {
            take(&random.changed(samples));
        }
        inputs += 100;
    }
    // The kernel sums it up from several counters, and may come to less.
    let more = memory().saturating_sub(before);
    println!("{inputs} inputs, {more} KiB more");
    assert!(more < MORE_MEMORY, "{more} KiB");
}

fn service() -> (TempDir, Arc<Service>) {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let place = Place::small(&folder.path().join("state"), 1_000);
    let service = Service::open(&place, vec![rules], PushDowns::off(Arc::default()), None).unwrap();
    (folder, Arc::new(service))
}

/// A message with a field of text each: keys, values, lengths.
fn messages() -> Vec<Vec<u8>> {
    let text = |tag: u8, bytes: &[u8]| [&[tag << 3 | 2, bytes.len() as u8], bytes].concat();
    let entry = [text(1, b"k"), text(2, b"abc")].concat();
    let descriptor = [text(1, &entry), text(2, &[8, 5, 16, 1]), text(3, &[8, 1])].concat();
    let request = [text(1, b"d"), text(2, &descriptor), vec![24, 2]].concat();
    let pair = [text(1, b"k"), text(2, b"abc")].concat();
    let usage = [text(1, &text(1, &pair)), text(2, &[8, 5]), vec![24, 9, 32, 3]].concat();
    let report = [text(1, b"d"), text(2, &usage)].concat();
    vec![request, report, Vec::new()]
}

#[test]
fn resp() {
    let (_folder, service) = service();
    let samples = [
        &b"*6\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n$1\r\n1\r\n"
            [..],
        b"CL.THROTTLE k 15 30 60\r\nPING\r\nHELLO 2 AUTH a b\r\nINFO\r\n",
        b"*2\r\n$4\r\nECHO\r\n$3\r\na\r\n\r\n*0\r\n*-1\r\nQUIT\r\n",
    ];
    fuzz(&samples.map(<[u8]>::to_vec), |input| talk(&service, input));
}

#[test]
fn protobuf() {
    let (_folder, service) = service();
    fuzz(&messages(), |input| {
        if let Ok(request) = RateLimitRequest::decode(input) {
            let _ = rls::answer(&service, &request, true).now_or_never();
        }
        if let Ok(reports) = UsageReports::decode(input) {
            crate::rlqs::take(&service, reports);
        }
    });
}

#[test]
fn json() {
    let (_folder, service) = service();
    let sample =
        br#"{"domain":"d","hitsAddend":2,"descriptors":[{"entries":[{"key":"k","value":"abc"}],
        "limit":{"requestsPerUnit":5,"unit":"DAY"},"hits_addend":"3","isNegativeHits":true}]}"#;
    fuzz(&[sample.to_vec()], |input| {
        if let Ok(request) = serde_json::from_slice::<RateLimitRequest>(input) {
            let _ = rls::answer(&service, &request, true)
                .now_or_never()
                .unwrap()
                .map(|answer| answer.json());
        }
    });
}

#[test]
fn yaml() {
    let anchors =
        "domain: d\ndescriptors: &a\n  - &b { key: k, descriptors: [*b, *b] }\n  - <<: *b\n";
    let samples = [RULES.as_bytes().to_vec(), anchors.as_bytes().to_vec()];
    fuzz(&samples, |input| {
        if let Ok(text) = std::str::from_utf8(input) {
            let _ = Rules::read([("fuzz.yaml", text)], &mut Tallies::default());
        }
    });
}
