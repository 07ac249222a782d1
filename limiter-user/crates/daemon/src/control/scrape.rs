//! What metrics are made of.

use std::sync::Arc;
use std::time::Instant;

use limiter_common::gate::MAX_GATE;

use super::core::Core;
use crate::metrics::{KEPT, Scrape, Slow};
use api::error::Failure;
use model::Target;
use model::lists::Action;

/// What the last scrapes have found out.
pub(super) type Known = Option<(Instant, Arc<Slow>)>;

impl Core {
    /// What metrics tell now. The counters are read afresh; a look at the whole table is at most
    /// [`KEPT`] old, so that many scrapes cost little more than one.
    ///
    /// # Errors
    /// If the data plane cannot be read.
    pub fn scrape(&mut self, now: Instant) -> Result<Scrape, Failure> {
        let fresh = |(at, _): &&(Instant, _)| now.saturating_duration_since(*at) < KEPT;
        let (at, slow) = match self.known.as_ref().filter(fresh) {
            Some((at, slow)) => (*at, Arc::clone(slow)),
            None => (now, Arc::new(self.slow()?)),
        };
        self.known = Some((at, Arc::clone(&slow)));
        let age = now.saturating_duration_since(at);
        let uptime = now.saturating_duration_since(self.started);
        Ok(Scrape { sample: self.sample()?, slow, age, uptime, cluster: None })
    }

    fn slow(&self) -> Result<Slow, Failure> {
        let (mut allowed, mut denied, mut bans) = (0, 0, 0);
        for (_, listing) in self.listed().iter() {
            match listing.action {
                Action::Allow => allowed += 1,
                Action::Deny => denied += 1,
            }
            bans += u64::from(listing.ban);
        }
        let limits = self.in_force();
        let gates =
            limits.amounts().map(|(amount, _)| self.plane.gate_of(&amount.of(Target::DEFAULT)));
        Ok(Slow {
            gate: gates.chain([MAX_GATE]).min().unwrap_or(MAX_GATE),
            status: self.status()?,
            allowed,
            denied,
            bans,
            trials: self.trials.len() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::control::fake::Fake;

    use super::*;

    #[test]
    fn the_table_is_looked_at_once_in_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut core = fake.core(&directory);
        let start = Instant::now();
        let full = |core: &mut Core, after| {
            let scrape = core.scrape(start + after).unwrap();
            assert!(scrape.age < KEPT);
            scrape.slow.status.table.full_sets
        };
        assert_eq!(full(&mut core, Duration::ZERO), 0);
        fake.state().full_sets = 7;
        assert_eq!(full(&mut core, KEPT / 2), 0, "what is known already");
        assert_eq!(full(&mut core, KEPT), 7);
        fake.state().full_sets = 8;
        // An earlier moment, as another thread may have taken it.
        assert_eq!(full(&mut core, KEPT / 2), 7);
        assert_eq!(full(&mut core, KEPT + KEPT / 2), 7);
    }
}
