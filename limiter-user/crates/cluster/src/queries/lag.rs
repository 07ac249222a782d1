//! How long packets take between hosts.

use model::digest::{Digest, Percentiles};

/// Round trips that a digest has before the next one is begun: some minutes' worth.
const MAX: u64 = 4096;

/// Round trips of late, ms, in little memory.
#[derive(Clone, Debug)]
pub struct Lag {
    present: Digest,
    former: Option<Digest>,
}

impl Default for Lag {
    fn default() -> Self {
        Self { present: Digest::small(), former: None }
    }
}

impl Lag {
    /// Adds a round trip.
    pub fn add(&mut self, round_trip: std::time::Duration) {
        // A digest forgets nothing: two take turns, so that old round trips go and there are always some.
        if self.present.count() >= MAX {
            self.former = Some(std::mem::replace(&mut self.present, Digest::small()));
        }
        self.present.add(round_trip.as_secs_f64() * 1e3);
    }

    /// All that is known.
    fn whole(&self) -> Digest {
        let mut whole = self.present.clone();
        self.former.iter().for_each(|former| whole.merge(former));
        whole
    }

    /// As it is sent.
    pub fn bytes(&self) -> Vec<u8> {
        self.whole().bytes()
    }

    /// Percentiles, ms; `None` if there was no round trip.
    pub fn percentiles(&self) -> Option<Percentiles> {
        self.whole().percentiles()
    }
}

/// Those of all hosts together.
pub fn merged<'a>(digests: impl Iterator<Item = &'a [u8]>) -> Option<Percentiles> {
    let mut all = Digest::small();
    // What cannot be read is left out: one faulty member must not hide what all others say.
    digests.filter_map(Digest::read).for_each(|digest| all.merge(&digest));
    all.percentiles()
}

/// Those of one host; `None` if it had none, or they are nonsense.
pub fn read(bytes: &[u8]) -> Option<Percentiles> {
    Digest::read(bytes)?.percentiles()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn hosts_merge_to_the_whole_and_old_round_trips_are_forgotten() {
        let mut hosts = [Lag::default(), Lag::default()];
        for ms in 1..=1000 {
            hosts[ms % 2].add(Duration::from_millis(ms as u64));
        }
        let bytes = hosts.each_ref().map(Lag::bytes);
        assert!(bytes.iter().all(|bytes| bytes.len() < 1100), "{}", bytes[0].len());
        let all = merged(bytes.iter().map(Vec::as_slice)).unwrap();
        assert!(
            (all.p50 / 500.0 - 1.0).abs() < 0.03 && (all.p99 / 990.0 - 1.0).abs() < 0.02,
            "{all:?}"
        );
        assert_eq!(all.max, 1000.0);
        assert_eq!(read(&bytes[1]).unwrap().max, 999.0);
        for _ in 0..2 * MAX {
            hosts[0].add(Duration::from_millis(2));
        }
        assert_eq!(hosts[0].percentiles().unwrap().max, 2.0);
        assert_eq!((merged([].into_iter()), Lag::default().percentiles()), (None, None));
    }
}
