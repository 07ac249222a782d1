//! What each source sends, from several looks at the counts of buckets.
//!
//! The buckets are looked at in parts, so that nobody has to wait for all of them. Each part has its own
//! times, so the rates are exact however long a look takes.

use std::collections::BTreeMap;

use model::digest::{Digest, Percentiles};

/// Sources that a part can lose, because others get their buckets, and still tell of.
const MAX_GONE: usize = 1 << 14;

/// Sources whose packets of each look are to be kept, about.
pub const MAX_SERIES: usize = 1 << 13;

/// A source that sends a larger part of all packets than this is not usual.
const DOMINANT: f64 = 0.5;

/// What a bucket counts of its source at a look.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// The number of the bucket.
    pub bucket: u32,
    /// When the source got it, ns since boot; tells whether it is still the same one.
    pub since_ns: u64,
    /// Packets offered since then.
    pub packets: u64,
    /// Bytes offered since then.
    pub bytes: u64,
}

/// A source between the first look and the last: 56 bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    seen: Observation,
    /// What had been counted when the watch began.
    packets: u64,
    bytes: u64,
    /// The most between two looks, per second.
    // Half the size: seven digits are more than a peak needs, and there may be a million of these.
    peak_packets: f32,
    peak_bytes: f32,
}

impl Entry {
    /// A source that has its bucket since before the watch.
    const fn known(seen: Observation) -> Self {
        let Observation { packets, bytes, .. } = seen;
        Self { seen, packets, bytes, peak_packets: 0.0, peak_bytes: 0.0 }
    }

    /// A source that got its bucket after the last look.
    // From nothing: all that the bucket counts was sent since the last look.
    const fn fresh(seen: Observation) -> Self {
        let before = Observation { packets: 0, bytes: 0, ..seen };
        Self::known(before)
    }

    /// Takes a later look, and how many packets it has sent since.
    fn update(&mut self, seen: Observation, seconds: f64) -> u64 {
        // Counters are read while packets add to them, and pending drops move: a later sum may be
        // a bit less.
        let packets = seen.packets.saturating_sub(self.seen.packets);
        let bytes = seen.bytes.saturating_sub(self.seen.bytes);
        self.peak_packets = self.peak_packets.max((packets as f64 / seconds) as f32);
        self.peak_bytes = self.peak_bytes.max((bytes as f64 / seconds) as f32);
        self.seen = seen;
        packets
    }
}

/// What a source sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SourceRate {
    /// Packets per second, over all the time.
    pub packets: f64,
    /// Bytes per second, over all the time.
    pub bytes: f64,
    /// The most packets between two looks, per second.
    pub peak_packets: f64,
    /// The most bytes between two looks, per second.
    pub peak_bytes: f64,
}

/// Some of the buckets.
#[derive(Debug, Default)]
struct Part {
    first_ns: Option<u64>,
    last_ns: u64,
    /// By the number of the bucket.
    entries: Vec<Entry>,
    gone: Vec<Entry>,
    /// Sources that have sent something between two looks, summed over looks.
    active: u64,
    /// Packets per second between two looks, by the number of the bucket and when the source got it.
    series: BTreeMap<(u32, u64), Vec<u32>>,
}

impl Part {
    fn look(&mut self, now_ns: u64, seen: &[Observation], (series_of, max_series): (u32, usize)) {
        if self.first_ns.is_none() {
            self.first_ns = Some(now_ns);
            self.entries = seen.iter().copied().map(Entry::known).collect();
        } else {
            let seconds = (now_ns.saturating_sub(self.last_ns).max(1)) as f64 / 1e9;
            // Both in the order of buckets: one walk, and no map of a million sources.
            let mut before = std::mem::take(&mut self.entries).into_iter().peekable();
            self.entries.reserve_exact(seen.len());
            for seen in seen {
                while let Some(lost) = before.next_if(|entry| entry.seen.bucket < seen.bucket) {
                    self.lose(lost);
                }
                let same = before.next_if(|entry| entry.seen.bucket == seen.bucket);
                let mut entry = match same {
                    Some(entry) if entry.seen.since_ns == seen.since_ns => entry,
                    // The bucket has another source now: its count is not the former one's.
                    other => {
                        other.into_iter().for_each(|lost| self.lose(lost));
                        Entry::fresh(*seen)
                    }
                };
                let packets = entry.update(*seen, seconds);
                self.active += u64::from(packets > 0);
                let key = (seen.bucket, seen.since_ns);
                // Random sources must not fill memory here either.
                if seen.bucket.is_multiple_of(series_of)
                    && (self.series.len() < max_series || self.series.contains_key(&key))
                {
                    // Looks are a second apart, or more where there are very many sources.
                    let packets = (packets as f64 / seconds).round() as u32;
                    self.series.entry(key).or_default().push(packets);
                }
                self.entries.push(entry);
            }
            before.for_each(|lost| self.lose(lost));
        }
        self.last_ns = now_ns;
    }

    fn lose(&mut self, entry: Entry) {
        // A flood of random sources takes a bucket for a packet or two: without a bound they would fill memory.
        if entry.seen.packets > entry.packets && self.gone.len() < MAX_GONE {
            self.gone.push(entry);
        }
    }

    /// Those who have sent something.
    fn rates(self) -> impl Iterator<Item = (Observation, SourceRate)> {
        let nanoseconds = self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns));
        let seconds = nanoseconds.max(1) as f64 / 1e9;
        let all = self.entries.into_iter().chain(self.gone);
        let sending = all.filter(|entry| entry.seen.packets > entry.packets);
        sending.map(move |Entry { seen, packets, bytes, peak_packets, peak_bytes }| {
            let rate = SourceRate {
                packets: (seen.packets - packets) as f64 / seconds,
                bytes: seen.bytes.saturating_sub(bytes) as f64 / seconds,
                peak_packets: peak_packets.into(),
                peak_bytes: peak_bytes.into(),
            };
            (seen, rate)
        })
    }
}

/// Sources that are watched: 56 bytes for each that has a bucket.
#[derive(Debug)]
pub struct Watch {
    parts: Vec<Part>,
    series_of: u32,
    /// Series of a part, at most.
    max_series: usize,
}

impl Watch {
    /// Watches buckets in so many parts. Of those whose number is a multiple of `series_of`, what came between looks is
    /// kept.
    pub fn new(parts: usize, series_of: u32) -> Self {
        // Buckets are taken by chance: a part may have more than its share.
        let max_series = (2 * MAX_SERIES).div_ceil(parts.max(1));
        let parts = (0..parts).map(|_| Part::default()).collect();
        Self { parts, series_of: series_of.max(1), max_series }
    }

    /// Takes a look at a part, at `now_ns` since boot. The numbers of the buckets must ascend.
    pub fn look(&mut self, part: usize, now_ns: u64, seen: &[Observation]) {
        if let Some(part) = self.parts.get_mut(part) {
            part.look(now_ns, seen, (self.series_of, self.max_series));
        }
    }

    /// What came of `looks` looks, if each source that was watched stands for `each` of them.
    pub fn finish(self, looks: usize, each: u32) -> Rates {
        let mut rates = Rates {
            sources: Vec::new(),
            heaviest: None,
            dominant: None,
            each,
            active: 0.0,
            series: Vec::new(),
            series_each: self.series_of,
            packets: Digest::fine(),
            bytes: Digest::fine(),
            peak_packets: Digest::fine(),
            peak_bytes: Digest::fine(),
        };
        // Sources are active between two looks, so there is one interval less than looks.
        let intervals = looks.saturating_sub(1).max(1) as f64;
        for mut part in self.parts {
            rates.active += f64::from(each) * part.active as f64 / intervals;
            let series = std::mem::take(&mut part.series).into_iter();
            rates.series.extend(series.filter(|(_, counts)| counts.iter().any(|count| *count > 0)));
            for (seen, rate) in part.rates() {
                if rates.heaviest.is_none_or(|(_, heaviest)| rate.packets > heaviest.packets) {
                    rates.heaviest = Some((seen, rate));
                }
                rates.sources.push(rate);
            }
        }
        rates.digest();
        rates
    }
}

/// What sources send, those that sent something.
#[derive(Debug)]
pub struct Rates {
    /// Each of them that was watched.
    pub sources: Vec<SourceRate>,
    /// The bucket of the one that sends most packets, and what it sends.
    pub heaviest: Option<(Observation, SourceRate)>,
    /// The same if it is left out of the percentiles.
    pub dominant: Option<(Observation, SourceRate)>,
    /// How many sources each of these stands for.
    pub each: u32,
    /// Packets per second between looks of some of them, by bucket and when they got it.
    pub series: Vec<((u32, u64), Vec<u32>)>,
    /// How many sources each of those stands for.
    pub series_each: u32,
    /// How many send between two looks, on average.
    pub active: f64,
    /// Packets per second.
    pub packets: Digest,
    /// Bytes per second.
    pub bytes: Digest,
    /// The most packets between two looks, per second.
    pub peak_packets: Digest,
    /// The most bytes between two looks, per second.
    pub peak_bytes: Digest,
}

impl Rates {
    /// Makes the digests, without the dominant source.
    fn digest(&mut self) {
        let mut dominant = self.dominant.map(|(_, rate)| rate);
        let mut digests = [(); 4].map(|()| Digest::fine());
        for source in &self.sources {
            if dominant.take_if(|dominant| dominant == source).is_none() {
                let SourceRate { packets, bytes, peak_packets, peak_bytes } = *source;
                let values = [packets, bytes, peak_packets, peak_bytes];
                digests.iter_mut().zip(values).for_each(|(digest, value)| digest.add(value));
            }
        }
        [self.packets, self.bytes, self.peak_packets, self.peak_bytes] = digests;
    }

    /// Leaves the heaviest source out of the percentiles if it sends more than half of all packets, of which there are
    /// `packets` per second: it may be the one that a limit is wanted for. Returns its part of all, 0 to 1.
    pub fn set_dominant_aside(&mut self, packets: f64) -> Option<f64> {
        let (seen, rate) = self.heaviest?;
        let tracked: f64 = self.sources.iter().map(|source| source.packets).sum();
        // Both are read at moments of their own.
        let part = rate.packets / packets.max(f64::from(self.each) * tracked);
        if part <= DOMINANT {
            return None;
        }
        self.dominant = Some((seen, rate));
        self.digest();
        Some(part)
    }

    /// What a share `rank` of sources (cut to 0..=1) need at the most, by their packets per second between looks; 0 if
    /// these were kept of none. The dominant source is left out.
    pub fn need(&self, rank: f64, of: impl Fn(&[u32]) -> f64) -> f64 {
        let dominant = self.dominant.map(|(seen, _)| (seen.bucket, seen.since_ns));
        let usual = self.series.iter().filter(|(key, _)| Some(*key) != dominant);
        let mut needs: Vec<f64> = usual.map(|(_, counts)| of(counts)).collect();
        needs.sort_unstable_by(f64::total_cmp);
        let at = (rank.clamp(0.0, 1.0) * needs.len() as f64).ceil() as usize;
        needs.get(at.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// Percentiles of packets and bytes per second.
    pub fn percentiles(&mut self) -> Option<[Percentiles; 2]> {
        Some([self.packets.percentiles()?, self.bytes.percentiles()?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn seen(bucket: u32, since_ns: u64, packets: u64) -> Observation {
        Observation { bucket, since_ns, packets, bytes: 100 * packets }
    }

    #[test]
    fn rates_are_of_the_time_between_looks() {
        let mut watch = Watch::new(2, 1);
        watch.look(0, 10 * SECOND, &[seen(1, 5, 1000), seen(3, 6, 50), seen(7, 7, 9)]);
        watch.look(1, 11 * SECOND, &[seen(100, 1, 0)]);
        // Bucket 1 sends on, 3 gets another source, 5 its first one, 7 rests.
        let second = [seen(1, 5, 1100), seen(3, 8, 20), seen(5, 9, 30), seen(7, 7, 9)];
        watch.look(0, 11 * SECOND, &second);
        watch.look(1, 12 * SECOND, &[seen(100, 1, 500)]);
        let third = [seen(1, 5, 1400), seen(3, 8, 20), seen(5, 9, 40), seen(7, 7, 9)];
        watch.look(0, 12 * SECOND, &third);
        watch.look(1, 15 * SECOND, &[seen(100, 1, 500)]);
        let mut rates = watch.finish(3, 1);
        let found: Vec<_> = rates.sources.iter().map(|s| (s.packets, s.peak_packets)).collect();
        // Over two seconds, and over four of the other part.
        assert_eq!(found, [(200.0, 300.0), (10.0, 20.0), (20.0, 30.0), (125.0, 500.0)]);
        assert_eq!(rates.sources[0].bytes, 20_000.0);
        assert_eq!(rates.active, 3.0, "three, then two of the first part; one of the other");
        let [packets, bytes] = rates.percentiles().unwrap();
        assert_eq!((packets.max, bytes.max), (200.0, 20_000.0));
        assert_eq!(rates.packets.count(), 4);
        assert_eq!(
            rates.heaviest.map(|(seen, rate)| (seen.bucket, rate.packets)),
            Some((1, 200.0))
        );
    }

    #[test]
    fn who_loses_the_bucket_has_still_sent() {
        let mut watch = Watch::new(1, 1);
        watch.look(0, SECOND, &[seen(1, 5, 0), seen(2, 5, 0)]);
        watch.look(0, 2 * SECOND, &[seen(1, 5, 10), seen(2, 5, 10)]);
        watch.look(0, 3 * SECOND, &[seen(1, 6, 1)]);
        let rates = watch.finish(3, 1);
        let mut found: Vec<_> = rates.sources.iter().map(|s| s.packets).collect();
        found.sort_unstable_by(f64::total_cmp);
        assert_eq!(found, [0.5, 5.0, 5.0]);
    }

    #[test]
    fn nothing_is_nothing() {
        let mut rates = Watch::new(3, 1).finish(0, 1);
        assert!(rates.sources.is_empty() && rates.percentiles().is_none());
        assert_eq!(rates.active, 0.0);
    }
}
