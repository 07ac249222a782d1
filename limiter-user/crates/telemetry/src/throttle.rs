//! How many events of a kind are told one by one.

use std::time::Duration;

use clap::ValueEnum;

use super::event::Kind;

/// Events of a kind in a second.
const RATE: f64 = 10.0;
/// Events of a kind at once.
const BURST: f64 = 20.0;

#[derive(Clone, Copy, Debug)]
// One for each kind: a flood of `limited` must not hide the one `set_full`.
struct Allowance {
    tokens: f64,
    at: Duration,
    suppressed: u64,
}

/// Lets few events of each kind through, so that a flood of them costs neither log nor listeners, and
/// counts the others.
#[derive(Clone, Debug)]
pub struct Throttle(Vec<Allowance>);

impl Default for Throttle {
    fn default() -> Self {
        let full = Allowance { tokens: BURST, at: Duration::ZERO, suppressed: 0 };
        Self(vec![full; Kind::value_variants().len()])
    }
}

impl Allowance {
    fn earn(&mut self, now: Duration) {
        let earned = now.saturating_sub(self.at).as_secs_f64() * RATE;
        self.tokens = (self.tokens + earned).min(BURST);
        // Never back: the same time would be earned twice.
        self.at = self.at.max(now);
    }
}

impl Throttle {
    /// Whether an event of a kind may be told at `now`, since any one moment.
    pub fn admits(&mut self, kind: Kind, now: Duration) -> bool {
        let Some(allowance) = self.0.get_mut(kind as usize) else { return true };
        allowance.earn(now);
        if allowance.tokens < 1.0 {
            // Counted, so that nothing is silent (P5): the number is told afterwards.
            allowance.suppressed += 1;
            return false;
        }
        allowance.tokens -= 1.0;
        true
    }

    /// How many events of each kind were not told since this was asked last, of those with any.
    pub fn suppressed(&mut self) -> Vec<(Kind, u64)> {
        let all = Kind::value_variants().iter().zip(&mut self.0);
        all.map(|(kind, allowance)| (*kind, std::mem::take(&mut allowance.suppressed)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_a_kind_is_counted_and_does_not_hide_others() {
        let mut throttle = Throttle::default();
        let second = Duration::from_secs(1);
        let admitted = |throttle: &mut Throttle, now| {
            (0..100).filter(|_| throttle.admits(Kind::Limited, now)).count()
        };
        assert_eq!(admitted(&mut throttle, second), 20);
        assert!(throttle.admits(Kind::Policy, second));
        assert_eq!(throttle.suppressed(), [(Kind::Limited, 80)]);
        assert!(throttle.suppressed().is_empty());
        assert_eq!(admitted(&mut throttle, 2 * second), 10);
        assert_eq!(admitted(&mut throttle, second), 0, "time that runs back earns nothing");
        assert_eq!(admitted(&mut throttle, 60 * second), 20);
    }
}
