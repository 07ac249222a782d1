//! Which limit would leave all but a few sources alone.

use super::Rates;
use model::{Rate, Unit};

/// Sources that must have sent something, or nobody can tell what is usual.
// Below that, a percentile is one source or another.
pub const MIN_SOURCES: usize = 20;

/// What is left above the rate that only the given share of sources exceeds.
// Tomorrow's traffic is not today's: without room, the limit would soon touch those it was to
// spare.
pub(super) const HEADROOM: f64 = 1.2;

/// A burst is this much of a second's rate at the least, as it is where none is given.
const MIN_BURST: f64 = 1.2;

/// Sources without a bucket: too light to be seen one by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Light {
    /// How many of them send at a time; `None` if sources are not counted.
    pub sources: Option<f64>,
    /// Each of them sends fewer packets per second than this.
    pub below: f64,
}

/// All that came meanwhile, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Packets per second.
    pub packets: f64,
    /// Bytes per second.
    pub bytes: f64,
}

/// A limit that is proposed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    /// The rate, rounded up to two digits in packets or kilobits.
    pub rate: Rate,
    /// The burst, in the rate's unit.
    pub burst: u64,
    /// What it would touch.
    pub touches: Touched,
}

/// What a limit would touch in the long run, when bursts are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Touched {
    /// Sources over it.
    pub sources: u64,
    /// Of all sources, those without a bucket included as far as they are counted; 0 to 1.
    pub share_of_sources: f64,
    /// Packets that would be dropped, of all; 0 to 1.
    pub share_of_packets: f64,
    /// Bytes that would be dropped, of all; 0 to 1.
    pub share_of_bytes: f64,
}

/// How many sources there are, and the part of those with a bucket that a limit must leave alone, the lightest first.
/// Below 0 the share is larger than all that have a bucket. `None` if there are fewer than [`MIN_SOURCES`] usual ones.
pub(super) fn rank_of(rates: &Rates, light: Light, share: f64) -> Option<(f64, f64)> {
    let usual = rates.sources.len() - usize::from(rates.dominant.is_some());
    if usual < MIN_SOURCES {
        return None;
    }
    let heavy = usual as f64 * f64::from(rates.each);
    let all = heavy + light.sources.unwrap_or_default();
    // Those over the limit are the heaviest, and all of these have a bucket.
    Some((all, 1.0 - share * all / heavy))
}

/// The limit in `unit` that about `share` (0 to 1) of all sources exceed at the most, with some room;
/// `None` if there are fewer than [`MIN_SOURCES`].
pub fn propose(
    rates: &mut Rates,
    light: Light,
    traffic: Traffic,
    share: f64,
    unit: Unit,
) -> Option<Proposal> {
    let (all, rank) = rank_of(rates, light, share)?;
    let (sent, peaks) = match unit {
        Unit::Packets => (&mut rates.packets, &mut rates.peak_packets),
        Unit::Bytes => (&mut rates.bytes, &mut rates.peak_bytes),
    };
    let (mut usual, peak) = (sent.quantile(rank)?, peaks.quantile(rank)?);
    if unit == Unit::Packets && rank < 0.0 {
        // The share reaches down to sources that are too light to be seen.
        usual = usual.max(light.below);
    }
    let (rate, burst) = match unit {
        Unit::Packets => {
            let amount = round_up(HEADROOM * usual);
            let burst = (amount as f64 * MIN_BURST).ceil() as u64;
            // A burst may go on for several seconds.
            let longest = rates.need(rank, |counts| backlog(counts, amount));
            let burst = burst.max(round_up(HEADROOM * peak.max(longest)));
            (Rate::from_parts(amount, SECOND_NS, unit), burst)
        }
        Unit::Bytes => {
            // Whole kilobits, and kilobytes of which one holds a full frame at the least.
            let kilobits = round_up(HEADROOM * usual * 8.0 / 1000.0);
            let least = (kilobits as f64 * MIN_BURST / 8.0).ceil() as u64;
            let burst = least.max(round_up(HEADROOM * peak / 1000.0)).max(2);
            (Rate::from_parts(kilobits * 125, SECOND_NS, unit), burst * 1000)
        }
    };
    let aside = rates.dominant.map_or(0.0, |_| f64::from(rates.each));
    Some(Proposal { rate, burst, touches: touched(rates, traffic, all + aside, rate) })
}

/// A share that is less than one source: no limit for it can touch anybody but a source that is not usual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TooSmall {
    /// All sources, those without a bucket included as far as they are counted.
    pub sources: f64,
    /// The least share, in whole tenths of a per mille, whose limit of packets touches somebody else, and that
    /// limit; `None` if the heaviest sources send nearly alike.
    pub enough: Option<(f64, Proposal)>,
}

/// Sources that a limit may touch are looked for up to this number of them.
const MAX_TOUCHED: u32 = 10;

/// What is wrong with `share` if it is less than one source.
pub fn too_small(
    rates: &mut Rates,
    light: Light,
    traffic: Traffic,
    share: f64,
) -> Option<TooSmall> {
    let tracked = rates.sources.len() as f64 * f64::from(rates.each);
    let sources = tracked + light.sources.unwrap_or_default();
    if share * sources >= 1.0 {
        return None;
    }
    // So that the limit is between what these sources send and what others do.
    let shares = (1..=MAX_TOUCHED).map(|touched| (f64::from(touched) + 0.5) / sources);
    let mut shares = shares.map(|share| (1e4 * share).ceil() / 1e4).filter(|share| *share <= 0.5);
    // A sample stands for many, and sources may send alike: which share is enough only a shadow limit can tell.
    let aside = rates.dominant.map_or(0, |_| u64::from(rates.each));
    let enough = shares.find_map(|share| {
        let found = propose(rates, light, traffic, share, Unit::Packets)?;
        (found.touches.sources > aside).then_some((share, found))
    });
    Some(TooSmall { sources, enough })
}

const SECOND_NS: u64 = 1_000_000_000;

/// What `rate` would touch of `all` sources, whose traffic is `traffic`.
fn touched(rates: &Rates, traffic: Traffic, all: f64, rate: Rate) -> Touched {
    let limit = rate.per_second();
    let (mut sources, mut packets, mut bytes) = (0, 0.0, 0.0);
    for source in &rates.sources {
        let offered = match rate.unit() {
            Unit::Packets => source.packets,
            Unit::Bytes => source.bytes,
        };
        if offered > limit {
            let dropped = 1.0 - limit / offered;
            sources += 1;
            packets += dropped * source.packets;
            bytes += dropped * source.bytes;
        }
    }
    let each = f64::from(rates.each);
    // What a source sent below the gate is in the traffic but not in its own count.
    let of = |part: f64, whole: f64| if whole > 0.0 { (part / whole).min(1.0) } else { 0.0 };
    Touched {
        sources: sources * u64::from(rates.each),
        share_of_sources: of(each * sources as f64, all),
        share_of_packets: of(each * packets, traffic.packets),
        share_of_bytes: of(each * bytes, traffic.bytes),
    }
}

/// The packets that a source has had more than `rate` a second earned, at the most: what a bucket has to hold.
pub(super) fn backlog(counts: &[u32], rate: u64) -> f64 {
    let (mut level, mut most) = (0_u64, 0);
    for count in counts {
        level = level.saturating_sub(rate) + u64::from(*count);
        most = most.max(level);
    }
    most as f64
}

/// The next larger number of two digits and zeros; at least 1.
pub(super) fn round_up(value: f64) -> u64 {
    let mut unit = 1;
    // 10^17 is more than any rate.
    while value / unit as f64 > 99.0 && unit < 100_000_000_000_000_000 {
        unit *= 10;
    }
    ((value / unit as f64).ceil() as u64).max(1) * unit
}

#[cfg(test)]
mod tests {
    use super::super::{Observation, Watch};
    use super::*;

    const NOBODY: Light = Light { sources: Some(0.0), below: 119.0 };

    /// Sources that send `packets` of 100 bytes a second each, evenly.
    fn rates(packets: &[u64]) -> (Rates, Traffic) {
        let look = |seconds: u64| -> Vec<Observation> {
            let counts = packets.iter().map(|packets| packets * seconds);
            let seen = (0..).zip(counts);
            let seen = seen.map(|(bucket, packets)| Observation {
                bucket,
                since_ns: 1,
                packets,
                bytes: 100 * packets,
            });
            seen.collect()
        };
        let mut watch = Watch::new(1, 1);
        (0..3).for_each(|second| watch.look(0, second * SECOND_NS, &look(second)));
        let sum = packets.iter().sum::<u64>() as f64;
        (watch.finish(3, 1), Traffic { packets: sum, bytes: 100.0 * sum })
    }

    #[test]
    fn numbers_are_rounded_up_to_two_digits() {
        for (value, rounded) in [
            (0.0, 1),
            (1.0, 1),
            (1.2, 2),
            (99.0, 99),
            (99.5, 100),
            (100.0, 100),
            (101.0, 110),
            (123_456.0, 130_000),
            (1e18, 1_000_000_000_000_000_000),
        ] {
            assert_eq!(round_up(value), rounded, "{value}");
        }
    }

    #[test]
    fn few_heavy_sources_are_touched_and_nobody_else() {
        let mut packets = vec![100; 998];
        packets.extend([5000, 10_000]);
        let (mut rates, traffic) = rates(&packets);
        let found = propose(&mut rates, NOBODY, traffic, 0.005, Unit::Packets).unwrap();
        assert_eq!((found.rate.to_string().as_str(), found.burst), ("120pps", 144));
        assert_eq!(found.touches.sources, 2);
        assert!((found.touches.share_of_sources - 0.002).abs() < 1e-9);
        let dropped = (4880.0 + 9880.0) / (998.0 * 100.0 + 15_000.0);
        assert!((found.touches.share_of_packets - dropped).abs() < 1e-6, "{found:?}");
        assert!((found.touches.share_of_bytes - dropped).abs() < 1e-6, "{found:?}");
        let found = propose(&mut rates, NOBODY, traffic, 0.005, Unit::Bytes).unwrap();
        // 100 packets of 100 bytes are 10 kbyte.
        assert_eq!((found.rate.to_string().as_str(), found.burst), ("12kbyte/s", 15_000));
        assert_eq!(found.touches.sources, 2);
    }

    #[test]
    fn a_share_of_less_than_one_source_touches_nobody() {
        let packets: Vec<u64> = (1..=50).map(|i| 10 * i).collect();
        let (mut rates, traffic) = rates(&packets);
        let found = propose(&mut rates, NOBODY, traffic, 0.001, Unit::Packets).unwrap();
        assert_eq!(
            (found.rate.to_string().as_str(), found.touches),
            ("600pps", Touched::default())
        );
    }

    #[test]
    fn a_share_that_is_too_small_is_told_with_one_that_is_enough() {
        let mut packets: Vec<u64> = (1..=44).map(|i| 10 + i).collect();
        packets.push(2500);
        let (mut rates, traffic) = rates(&packets);
        assert_eq!(too_small(&mut rates, NOBODY, traffic, 0.03), None, "1.35 sources");
        let found = too_small(&mut rates, NOBODY, traffic, 0.001).unwrap();
        let (share, proposal) = found.enough.unwrap();
        assert_eq!((found.sources, proposal.touches.sources), (45.0, 1));
        assert!((0.02..0.08).contains(&share), "{share}");
        let proposed = propose(&mut rates, NOBODY, traffic, share, Unit::Packets);
        assert_eq!(proposed, Some(proposal), "what is told is what comes of it");
        // Where all send alike, no share helps.
        let (mut alike, traffic) = self::rates(&[100; 45]);
        assert_eq!(too_small(&mut alike, NOBODY, traffic, 0.001).unwrap().enough, None);
    }

    #[test]
    fn an_attacker_among_few_sources_is_not_usual() {
        let mut packets: Vec<u64> = (1..=44).map(|i| 10 + i).collect();
        packets.push(2500);
        let (mut rates, traffic) = rates(&packets);
        let before = rates.percentiles().unwrap()[0];
        rates.set_dominant_aside(traffic.packets);
        let (seen, dominant) = rates.dominant.unwrap();
        assert_eq!((seen.bucket, dominant.packets), (44, 2500.0));
        for share in [0.001, 0.02] {
            let found = propose(&mut rates, NOBODY, traffic, share, Unit::Packets).unwrap();
            assert_eq!(found.rate.to_string(), "65pps", "54, and a fifth more");
            assert_eq!((found.burst, found.touches.sources), (78, 1));
            assert!((found.touches.share_of_sources - 1.0 / 45.0).abs() < 1e-9);
            assert!(found.touches.share_of_packets > 0.5, "{found:?}");
            let bytes = propose(&mut rates, NOBODY, traffic, share, Unit::Bytes).unwrap();
            assert!(bytes.rate.per_second() < 7000.0, "{bytes:?}");
        }
        // What it sends is still told; and a share that touches one more.
        assert_eq!(before.max, 2500.0);
        let few = too_small(&mut rates, NOBODY, traffic, 0.001).unwrap();
        assert!(few.enough.is_none_or(|(_, found)| found.touches.sources > 1), "{few:?}");
        // Without it there are too few to tell what is usual.
        let mut packets = vec![100; MIN_SOURCES - 1];
        packets.push(100_000);
        let (mut rates, traffic) = self::rates(&packets);
        assert!(propose(&mut rates, NOBODY, traffic, 0.1, Unit::Packets).is_some());
        rates.set_dominant_aside(traffic.packets);
        assert_eq!(propose(&mut rates, NOBODY, traffic, 0.1, Unit::Packets), None);
    }

    #[test]
    fn half_of_all_packets_is_usual() {
        let mut packets = vec![100; 44];
        packets.push(4400);
        let (mut rates, traffic) = rates(&packets);
        rates.set_dominant_aside(traffic.packets);
        assert!(rates.dominant.is_none());
        let found = propose(&mut rates, NOBODY, traffic, 0.001, Unit::Packets).unwrap();
        assert_eq!(found.rate.to_string(), "5300pps");
    }

    #[test]
    fn light_sources_count_as_sources() {
        // Of 100 000 sources 100 may be over the limit: the median of those with buckets.
        let packets: Vec<u64> = (0..200).map(|i| 1000 + i).collect();
        let (mut rates, traffic) = rates(&packets);
        let light = Light { sources: Some(99_800.0), below: 119.0 };
        let found = propose(&mut rates, light, traffic, 0.001, Unit::Packets).unwrap();
        assert_eq!(found.rate.to_string(), "1400pps", "1100 and some room");
        // More may be over it than have buckets: what the others send at the most.
        let found = propose(&mut rates, light, traffic, 0.1, Unit::Packets).unwrap();
        assert_eq!(found.rate.to_string(), "1200pps", "the least that has a bucket");
        let crowd = Light { sources: Some(1e6), below: 2000.0 };
        let found = propose(&mut rates, crowd, traffic, 0.1, Unit::Packets).unwrap();
        assert_eq!(found.rate.to_string(), "2400pps");
    }

    #[test]
    fn bursts_hold_what_was_seen_in_a_second() {
        let mut watch = Watch::new(1, 1);
        let seen = |packets| -> Vec<Observation> {
            let seen =
                (0..30).map(|bucket| Observation { bucket, since_ns: 1, packets, bytes: packets });
            seen.collect()
        };
        // Silence for nine seconds, then a thousand packets in one.
        for second in 0..10 {
            watch.look(0, second * SECOND_NS, &seen(if second == 9 { 1000 } else { 0 }));
        }
        let mut rates = watch.finish(10, 1);
        let traffic = Traffic { packets: 1.0, bytes: 1.0 };
        let found = propose(&mut rates, NOBODY, traffic, 0.01, Unit::Packets).unwrap();
        assert_eq!((found.rate.to_string().as_str(), found.burst), ("140pps", 1200));
    }

    #[test]
    fn a_sample_tells_the_same_as_all() {
        let packets: Vec<u64> = (0..1000).map(|i| 500 + i).collect();
        let (mut all, traffic) = rates(&packets);
        let some: Vec<u64> = packets.iter().copied().step_by(4).collect();
        let (some, _) = rates(&some);
        let mut some = Rates { each: 4, ..some };
        for share in [0.1, 0.01] {
            let [all, some] = [&mut all, &mut some]
                .map(|rates| propose(rates, NOBODY, traffic, share, Unit::Packets).unwrap());
            assert_eq!((all.rate, all.burst), (some.rate, some.burst));
            assert!(all.touches.sources.abs_diff(some.touches.sources) <= 4);
            let shares = (all.touches.share_of_packets, some.touches.share_of_packets);
            assert!((shares.0 - shares.1).abs() < 0.001, "{shares:?}");
        }
    }

    #[test]
    fn three_sources_are_too_few() {
        let (mut rates, traffic) = rates(&[10, 20, 30]);
        assert_eq!(propose(&mut rates, NOBODY, traffic, 0.1, Unit::Packets), None);
    }
}
