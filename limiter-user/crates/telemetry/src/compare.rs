//! The same limit by each algorithm of the kernel, on what sources have sent second by second.

use limiter_common::algorithm::{Algorithm as Limiter, TokenBucket, Window};
use limiter_common::gcra::{Ticks, ticks};
use model::{Algorithm, Rate, Unit};
use serde::{Deserialize, Serialize};

use super::Rates;
use super::suggest::{HEADROOM, Light, Proposal, rank_of, round_up};

/// A window of a second whose limit is so many times what sources send on average is no limit on it.
const BURSTY: f64 = 4.0;

/// A token bucket is taken if it lets through no more than this part of what any other does.
// It is what cluster limits, groups and shared limits have, too.
const NEARLY: f64 = 1.1;

/// A second's packets are taken to come in so many parts, one after the other.
const PARTS: u64 = 10;

const SECOND_NS: u64 = 1_000_000_000;

/// Seconds of the longest window that is proposed.
const MINUTE: u64 = 60;

/// A limit by one of the algorithms, and what it would have done to sources whose packets were kept second by second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its rate, packets; of a window, its limit.
    pub rate: Rate,
    /// The burst of a token bucket, packets.
    pub burst: Option<u64>,
    /// The most packets of a source that it lets through in any minute.
    pub per_minute: u64,
    /// Sources that would have lost packets.
    pub sources: u64,
    /// The part of packets that would have been dropped, 0 to 1.
    pub share_of_packets: f64,
    /// Whether it is recommended.
    pub recommended: bool,
}

/// The proposal of packets, and windows that leave as many sources alone as it does: about all but `share` (0 to 1).
pub fn compare(rates: &Rates, light: Light, share: f64, proposal: &Proposal) -> Vec<Compared> {
    let Some((_, rank)) = rank_of(rates, light, share) else { return Vec::new() };
    // The share may reach down to sources that are too light to be seen.
    let least = if rank < 0.0 { light.below } else { 0.0 };
    let window = |seconds: u64| {
        let need = rates.need(rank, |counts| most_in(counts, seconds));
        let limit = round_up(HEADROOM * need.max(least * seconds as f64));
        Rate::from_parts(limit, seconds * SECOND_NS, Unit::Packets)
    };
    let second = window(1);
    let is_bursty = second.per_second() > BURSTY * proposal.rate.per_second();
    let rate = if is_bursty { window(MINUTE) } else { second };
    let [limit, bucket_limit] = [rate, proposal.rate].map(|rate| rate.amount());
    let length = ticks(rate.period_ns());
    let bucket = TokenBucket::new(bucket_limit, ticks(SECOND_NS), proposal.burst).ok();
    let [fixed, sliding] = [Window::fixed, Window::sliding].map(|new| new(limit, 0, length).ok());
    let judge = |limit: &dyn Limiter, algorithm: Algorithm| {
        judge(rates, limit, algorithm, if algorithm.is_bucket() { proposal.rate } else { rate })
    };
    let mut all: Vec<Compared> = [
        bucket.map(|it| Compared {
            burst: Some(proposal.burst),
            ..judge(&it, Algorithm::TokenBucket)
        }),
        fixed.map(|it| judge(&it, Algorithm::FixedWindow)),
        sliding.map(|it| judge(&it, Algorithm::SlidingWindow)),
    ]
    .into_iter()
    .flatten()
    .collect();
    // The strictest of those that keep what is usual whole.
    let weight =
        |it: &Compared| it.per_minute as f64 / if it.algorithm.is_bucket() { NEARLY } else { 1.0 };
    if let Some(best) = all.iter_mut().min_by(|one, other| weight(one).total_cmp(&weight(other))) {
        best.recommended = true;
    }
    all
}

/// The most packets of a source in any `seconds`; of a shorter watch, as many as it would have sent in that time.
fn most_in(counts: &[u32], seconds: u64) -> f64 {
    let sum = |counts: &[u32]| counts.iter().map(|count| u64::from(*count)).sum::<u64>();
    let length = usize::try_from(seconds).unwrap_or(usize::MAX);
    match counts.len() {
        0 => 0.0,
        short if short < length => sum(counts) as f64 * seconds as f64 / short as f64,
        _ => counts.windows(length).map(sum).max().unwrap_or_default() as f64,
    }
}

/// What a limit would have done.
fn judge(rates: &Rates, limit: &dyn Limiter, algorithm: Algorithm, rate: Rate) -> Compared {
    let (mut sources, mut dropped, mut all) = (0, 0, 0);
    for (_, counts) in &rates.series {
        let lost = dropped_by(limit, counts);
        sources += u64::from(lost > 0);
        dropped += lost;
        all += counts.iter().map(|count| u64::from(*count)).sum::<u64>();
    }
    // A minute that begins within a window meets one more.
    let windows = MINUTE * SECOND_NS / rate.period_ns();
    let of = |windows: u64| rate.amount().saturating_mul(windows);
    let per_minute = limit.bound().saturating_add(of(windows - 1)).max(of(windows + 1));
    Compared {
        algorithm,
        rate,
        burst: None,
        per_minute,
        sources: sources * u64::from(rates.series_each),
        share_of_packets: dropped as f64 / all.max(1) as f64,
        recommended: false,
    }
}

/// How many packets of a source would have been dropped.
fn dropped_by(limit: &dyn Limiter, counts: &[u32]) -> u64 {
    // All that fit into the kernel have one word.
    let mut state = [0];
    let mut dropped = 0;
    // Windows begin at multiples of their length: here with the first second.
    let start = ticks(3600 * SECOND_NS);
    for (second, count) in (0..).zip(counts) {
        let mut before = 0;
        for part in 1..=PARTS {
            let so_far = u64::from(*count) * part / PARTS;
            let now: Ticks = start + ticks((PARTS * second + part - 1) * (SECOND_NS / PARTS));
            let packets = so_far - before;
            let passed = packets.min(limit.room(&state, now));
            limit.charge(&mut state, now, passed);
            dropped += packets - passed;
            before = so_far;
        }
    }
    dropped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::suggest::{Traffic, backlog, propose};
    use super::super::{Observation, Watch};
    use super::*;

    const NOBODY: Light = Light { sources: Some(0.0), below: 119.0 };

    /// Sources that send so many packets in each second.
    fn rates(sources: &[Vec<u32>]) -> (Rates, Traffic) {
        let mut watch = Watch::new(1, 1);
        let seconds = sources.iter().map(Vec::len).max().unwrap_or_default();
        for second in 0..=seconds {
            let seen = sources.iter().zip(0..).map(|(counts, bucket)| {
                let packets = counts.iter().take(second).map(|count| u64::from(*count)).sum();
                Observation { bucket, since_ns: 1, packets, bytes: 100 * packets }
            });
            watch.look(0, second as u64 * SECOND_NS, &seen.collect::<Vec<_>>());
        }
        let all: u64 = sources.iter().flatten().map(|count| u64::from(*count)).sum();
        let packets = all as f64 / seconds as f64;
        (watch.finish(seconds + 1, 1), Traffic { packets, bytes: 100.0 * packets })
    }

    fn compared(sources: &[Vec<u32>], share: f64) -> Vec<Compared> {
        let (mut rates, traffic) = rates(sources);
        let proposal = propose(&mut rates, NOBODY, traffic, share, Unit::Packets).unwrap();
        compare(&rates, NOBODY, share, &proposal)
    }

    fn texts(all: &[Compared]) -> Vec<String> {
        let text = |it: &Compared| {
            format!("{} {} {} {}", it.rate, it.per_minute, it.sources, it.share_of_packets)
        };
        all.iter().map(text).collect()
    }

    #[test]
    fn steady_traffic_is_kept_whole_by_each() {
        let all = compared(&vec![vec![100; 10]; 40], 0.01);
        assert_eq!(texts(&all), ["120pps 7344 0 0", "120pps 7320 0 0", "120pps 7320 0 0"]);
        let recommended: Vec<_> = all.iter().map(|it| it.recommended).collect();
        assert_eq!(recommended, [true, false, false], "it is as strict as the others, nearly");
    }

    #[test]
    fn bursts_ask_for_a_bucket_or_for_a_long_window() {
        // Three seconds of silence, then 800 packets in two.
        let source = vec![0, 0, 0, 400, 400, 0, 0, 0, 400, 400];
        let all = compared(&vec![source; 40], 0.01);
        assert_eq!((all[0].rate.to_string(), all[0].burst), ("200pps".into(), Some(720)));
        assert_eq!(all[1].rate.to_string(), "480pps", "three times the mean");
        assert!(all.iter().all(|it| it.sources == 0 && it.share_of_packets == 0.0), "{all:?}");
        // Once in ten seconds.
        let mut source = vec![0; 10];
        source[4] = 1000;
        let all = compared(&vec![source; 40], 0.01);
        assert_eq!((all[0].rate.to_string(), all[0].burst), ("120pps".into(), Some(1200)));
        assert_eq!(all[1].rate.to_string(), "7200/minute");
        assert_eq!([all[1].per_minute, all[2].per_minute], [14_400, 14_400]);
        assert!(all.iter().all(|it| it.sources == 0), "{all:?}");
        assert!(all[0].recommended && all[0].per_minute == 1200 + 7200);
    }

    #[test]
    fn what_is_over_each_limit_is_counted() {
        let mut sources = vec![vec![100; 10]; 198];
        sources.extend([vec![1000; 10], vec![500; 10]]);
        let all = compared(&sources, 0.015);
        let sent = 198.0 * 1000.0 + 15_000.0;
        for (found, wanted) in all.iter().zip([
            // The buckets are full at first: 144 packets, and 120 a second from the first packet on.
            (8800.0 - 24.0 + 3800.0 - 24.0) / sent,
            (8800.0 + 3800.0) / sent,
            (8800.0 + 3800.0) / sent,
        ]) {
            assert_eq!((found.rate.to_string().as_str(), found.sources), ("120pps", 2));
            let error = found.share_of_packets / wanted - 1.0;
            assert!(error.abs() < 0.02, "{found:?}, not {wanted}");
        }
    }

    #[test]
    fn an_attacker_makes_no_window_larger() {
        let mut sources: Vec<_> = (1..=44).map(|i| vec![10 + i; 5]).collect();
        sources.push(vec![2500; 5]);
        let (mut rates, traffic) = rates(&sources);
        assert!(rates.set_dominant_aside(traffic.packets) > Some(0.5));
        let proposal = propose(&mut rates, NOBODY, traffic, 0.001, Unit::Packets).unwrap();
        let all = compare(&rates, NOBODY, 0.001, &proposal);
        assert!(all.iter().all(|it| it.rate.to_string() == "65pps" && it.sources == 1), "{all:?}");
        assert!(all.iter().all(|it| it.share_of_packets > 0.5), "{all:?}");
    }

    #[test]
    fn the_most_in_a_time_is_found_wherever_it_begins() {
        let mut counts = vec![1; 100];
        counts[30..50].fill(10);
        assert_eq!(most_in(&counts, 1), 10.0);
        assert_eq!(most_in(&counts, 60), 240.0);
        assert_eq!(most_in(&counts[..30], 60), 60.0, "as if it went on");
        assert_eq!(most_in(&[], 60), 0.0);
    }

    proptest! {
        #[test]
        fn a_bucket_that_holds_the_backlog_drops_nothing(
            counts in prop::collection::vec(0u32..2000, 1..40),
            rate in 1u64..1000,
        ) {
            let burst = backlog(&counts, rate) as u64;
            prop_assume!(burst > 0);
            let bucket = TokenBucket::new(rate, ticks(SECOND_NS), burst).unwrap();
            // A token costs whole ticks, so a second earns one less than the rate.
            let lost = dropped_by(&bucket, &counts);
            prop_assert!(lost <= counts.len() as u64, "{lost}");
            let window = Window::fixed(u64::from(*counts.iter().max().unwrap()), 0, ticks(SECOND_NS)).unwrap();
            prop_assert_eq!(dropped_by(&window, &counts), 0);
        }
    }
}
