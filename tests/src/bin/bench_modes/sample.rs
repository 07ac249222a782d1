//! What became of one decision, and what many of them amount to.

use std::{fs, io, path::Path, time::Duration};

use serde::Serialize;

/// A decision. Its times are of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// When it began, ns.
    pub(crate) begun: u64,
    /// How long it took, ns.
    pub(crate) took: u32,
    /// The number of its key, if that is judged.
    pub(crate) key: Option<u16>,
    pub(crate) admitted: bool,
    /// Whether `on_error` has answered.
    pub(crate) alone: bool,
}

/// Bytes of a sample in a file.
const LENGTH: usize = 16;
const ADMITTED: u8 = 1;
const ALONE: u8 = 2;
const TRACKED: u8 = 4;

impl Sample {
    pub(crate) const fn ended(&self) -> u64 {
        self.begun + self.took as u64
    }

    fn bytes(self) -> [u8; LENGTH] {
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = flag(self.admitted, ADMITTED)
            | flag(self.alone, ALONE)
            | flag(self.key.is_some(), TRACKED);
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&self.begun.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.took.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.key.unwrap_or_default().to_le_bytes());
        bytes[14] = flags;
        bytes
    }

    fn read(bytes: [u8; LENGTH]) -> Self {
        let [b0, b1, b2, b3, b4, b5, b6, b7, t0, t1, t2, t3, k0, k1, flags, _] = bytes;
        let key = u16::from_le_bytes([k0, k1]);
        Self {
            begun: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
            took: u32::from_le_bytes([t0, t1, t2, t3]),
            key: (flags & TRACKED != 0).then_some(key),
            admitted: flags & ADMITTED != 0,
            alone: flags & ALONE != 0,
        }
    }
}

/// Writes samples for the process that judges them.
pub(crate) fn write(path: &Path, all: &[Sample]) -> io::Result<()> {
    fs::write(path, all.iter().flat_map(|sample| sample.bytes()).collect::<Vec<_>>())
}

/// Reads and removes them.
pub(crate) fn take(path: &Path) -> io::Result<Vec<Sample>> {
    let bytes = fs::read(path)?;
    fs::remove_file(path)?;
    Ok(bytes.as_chunks().0.iter().copied().map(Sample::read).collect())
}

/// The time of the clock that all processes of this machine share, ns.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a live variable; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How fast decisions were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Speed {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
}

impl Speed {
    /// Of decisions that were made in a time.
    pub(crate) fn new(samples: &[Sample], within: Duration) -> Self {
        let mut took: Vec<u32> = samples.iter().map(|sample| sample.took).collect();
        let per_second = took.len() as f64 / within.as_secs_f64();
        let [p50_us, p99_us, p999_us] = [0.5, 0.99, 0.999].map(|part| quantile(&mut took, part));
        Self { per_second, p50_us, p99_us, p999_us }
    }
}

/// The value that a part of all is not above, µs; 0 without any.
fn quantile(took: &mut [u32], part: f64) -> f64 {
    if took.is_empty() {
        return 0.0;
    }
    // The least value with such a part at or below it.
    let rank = (took.len() as f64 * part).ceil() as usize;
    let (_, value, _) = took.select_nth_unstable(rank.saturating_sub(1));
    f64::from(*value) / 1e3
}

/// A tenth of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moment {
    /// Decisions a second.
    pub(crate) decisions: f64,
    /// Of keys that are judged, admitted a second.
    pub(crate) admitted: f64,
    pub(crate) p99_us: f64,
    /// The part that `on_error` has answered.
    pub(crate) alone: f64,
}

/// How long a moment is.
pub(crate) const MOMENT: Duration = Duration::from_millis(100);

/// Decisions by the moment in which they were answered.
pub(crate) fn moments(samples: &[Sample], begin: u64, length: Duration) -> Vec<Moment> {
    let count = length.as_nanos().div_ceil(MOMENT.as_nanos()) as usize;
    let mut groups = vec![Vec::new(); count];
    for sample in samples {
        let at = sample.ended().saturating_sub(begin) / MOMENT.as_nanos() as u64;
        if let Some(group) = groups.get_mut(at as usize) {
            group.push(*sample);
        }
    }
    let moment = |group: &Vec<Sample>| {
        let Speed { per_second, p99_us, .. } = Speed::new(group, MOMENT);
        let count = |is: fn(&Sample) -> bool| group.iter().filter(|sample| is(sample)).count();
        let admitted = count(|sample| sample.admitted && sample.key.is_some());
        Moment {
            decisions: per_second,
            admitted: admitted as f64 / MOMENT.as_secs_f64(),
            p99_us,
            alone: count(|sample| sample.alone) as f64 / group.len().max(1) as f64,
        }
    };
    groups.iter().map(moment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(begun_ms: u64, took_us: u32, key: Option<u16>) -> Sample {
        let (begun, took) = (begun_ms * 1_000_000, took_us * 1_000);
        Sample { begun, took, key, admitted: key.is_some(), alone: key.is_none() }
    }

    #[test]
    fn samples_go_through_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let all = [sample(7, 1, Some(0)), sample(u64::MAX / 2_000_000, 4, None)];
        write(file.path(), &all).unwrap();
        assert_eq!(take(file.path()).unwrap(), all);
        assert!(take(file.path()).is_err());
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let samples: Vec<_> = (1..=1_000).rev().map(|us| sample(0, us, None)).collect();
        let speed = Speed::new(&samples, Duration::from_secs(2));
        let expected = Speed { per_second: 500.0, p50_us: 500.0, p99_us: 990.0, p999_us: 999.0 };
        assert_eq!(speed, expected);
        assert_eq!(Speed::new(&samples[..1], Duration::from_secs(1)).p50_us, 1_000.0);
        assert_eq!(Speed::new(&[], Duration::from_secs(1)), Speed::default());
    }

    #[test]
    fn moments_have_what_was_answered_in_them() {
        let samples =
            [sample(1_000, 5, Some(1)), sample(1_099, 2_000, None), sample(1_150, 9, None)];
        let all = moments(&samples, 1_000_000_000, Duration::from_millis(250));
        assert_eq!(all.len(), 3);
        let first = Moment { decisions: 10.0, admitted: 10.0, p99_us: 5.0, alone: 0.0 };
        let second = Moment { decisions: 20.0, admitted: 0.0, p99_us: 2_000.0, alone: 1.0 };
        assert_eq!(all, [first, second, Moment::default()]);
    }
}
