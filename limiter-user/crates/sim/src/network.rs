//! The network between hosts: it loses, delays, doubles and reorders, and it can be cut.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clock::Span;
use super::rng::Rng;

/// How messages fare.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Conditions {
    /// The least time on the way.
    pub delay: Span,
    /// What comes to that at most, evenly spread: messages closer together than this change places.
    pub jitter: Span,
    /// The probability that a message is lost.
    pub loss: f64,
    /// The probability that it comes twice.
    pub duplicate: f64,
    /// The probability that it is late.
    pub late: f64,
    /// By how much at most.
    pub late_by: Span,
}

impl Default for Conditions {
    fn default() -> Self {
        let span = |ms| Span(Duration::from_millis(ms));
        Self {
            delay: span(1),
            jitter: span(1),
            loss: 0.0,
            duplicate: 0.0,
            late: 0.0,
            late_by: span(0),
        }
    }
}

#[derive(Debug)]
pub(super) struct Network {
    /// Between hosts of one region, and of different ones.
    pub(super) conditions: [Conditions; 2],
    /// The region of each host.
    regions: Vec<usize>,
    /// For each ordered pair, how many cuts there are: a way may be cut in one direction.
    cuts: Vec<u8>,
    rng: Rng,
}

impl Network {
    pub(super) fn new(conditions: [Conditions; 2], regions: Vec<usize>, rng: Rng) -> Self {
        let pairs = regions.len() * regions.len();
        Self { conditions, regions, cuts: vec![0; pairs], rng }
    }

    /// Cuts the way from one host to another, or mends it.
    pub(super) fn cut(&mut self, from: usize, to: usize, cut: bool) {
        let at = from * self.regions.len() + to;
        let cuts = &mut self.cuts[at];
        // Two partitions may cut one way: it is whole when both are mended.
        *cuts = if cut { cuts.saturating_add(1) } else { cuts.saturating_sub(1) };
    }

    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts[from * self.regions.len() + to] > 0
    }

    /// Whether two hosts are in different regions.
    pub(super) fn is_far(&self, from: usize, to: usize) -> bool {
        self.regions[from] != self.regions[to]
    }

    /// Whether two hosts hear each other.
    pub(super) fn both_ways(&self, one: usize, other: usize) -> bool {
        !self.is_cut(one, other) && !self.is_cut(other, one)
    }

    /// How long the copies of a message take: none if it is lost.
    pub(super) fn send(&mut self, from: usize, to: usize) -> [Option<Duration>; 2] {
        let conditions = self.conditions[usize::from(self.is_far(from, to))];
        if self.is_cut(from, to) || self.rng.chance(conditions.loss) {
            return [None, None];
        }
        // Each copy takes a time of its own: so the second may come first, or long after.
        let second = self.rng.chance(conditions.duplicate);
        [Some(self.delay(conditions)), second.then(|| self.delay(conditions))]
    }

    fn delay(&mut self, c: Conditions) -> Duration {
        let late = if self.rng.chance(c.late) {
            c.late_by.0.mul_f64(self.rng.unit())
        } else {
            Duration::ZERO
        };
        c.delay.0 + c.jitter.0.mul_f64(self.rng.unit()) + late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_its_figures() {
        let conditions = Conditions {
            loss: 0.2,
            duplicate: 0.1,
            late: 0.5,
            late_by: Span(Duration::from_millis(100)),
            ..Conditions::default()
        };
        let mut network = Network::new([conditions; 2], vec![0; 2], Rng::new(1));
        let (mut lost, mut twice, mut late) = (0, 0, 0);
        for _ in 0..10_000 {
            match network.send(0, 1) {
                [None, _] => lost += 1,
                [Some(delay), second] => {
                    assert!(delay >= conditions.delay.0 && delay <= Duration::from_millis(102));
                    twice += usize::from(second.is_some());
                    late += usize::from(delay > Duration::from_millis(2));
                }
            }
        }
        assert!((1800..2200).contains(&lost), "{lost}");
        assert!((700..900).contains(&twice), "{twice}");
        assert!((3700..4300).contains(&late), "{late}");
    }

    #[test]
    fn it_is_another_one_between_regions() {
        let far = Conditions { delay: Span(Duration::from_millis(80)), ..Conditions::default() };
        let mut network = Network::new([Conditions::default(), far], vec![0, 0, 1], Rng::new(1));
        for (from, to, least) in [(0, 1, 1), (1, 2, 80), (2, 0, 80)] {
            let delay = network.send(from, to)[0].unwrap();
            assert!((least..least + 2).contains(&delay.as_millis()), "{from} to {to}: {delay:?}");
            assert_eq!(network.is_far(from, to), least > 1);
        }
    }

    #[test]
    fn a_cut_holds_in_its_direction_until_all_are_mended() {
        let mut network = Network::new([Conditions::default(); 2], vec![0; 3], Rng::new(1));
        network.cut(0, 1, true);
        network.cut(0, 1, true);
        network.cut(0, 1, false);
        assert_eq!(network.send(0, 1), [None, None]);
        assert!(network.send(1, 0)[0].is_some() && !network.both_ways(1, 0));
        network.cut(0, 1, false);
        assert!(network.send(0, 1)[0].is_some() && network.both_ways(0, 1));
    }
}
