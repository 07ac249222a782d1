//! What metrics are made of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use limiter_common::gate::MAX_GATE;

use super::Core;
use api::error::Failure;
use api::{OverageReport, StatusReport};
use model::Target;
use model::digest::Percentiles;
use model::lists::Action;
use telemetry::Sample;

/// How old what takes a look at the whole table may be.
pub const KEPT: Duration = Duration::from_secs(5);

/// What is found out at most once in [`KEPT`].
#[derive(Clone, Debug)]
pub struct Slow {
    /// What `status` says.
    pub status: StatusReport,
    /// The smallest gate in force, packets.
    pub gate: u32,
    /// Entries of the allow list.
    pub allowed: u64,
    /// Entries of the deny list, bans included.
    pub denied: u64,
    /// Of those, bans.
    pub bans: u64,
    /// Limits that are tried.
    pub shadows: u64,
}

/// What a host tells of its cluster.
#[derive(Clone, Debug, Default)]
pub struct Clustered {
    /// Members that are there, this host included.
    pub members: usize,
    /// Those of them that somebody has not heard of for a while.
    pub suspects: usize,
    /// The part of each limit that is this host's own.
    pub home: f64,
    /// Sources that it shares with others.
    pub keys: usize,
    /// Sources beside them that have their floor and no more, because it has no time for so many.
    pub left_out: usize,
    /// Sources beside them that have half of its own part, because it has no room for so many.
    pub untracked: usize,
    /// Sources that it owns of which it has borrowed from other regions, and of which it has lent to them.
    pub loans: [usize; 2],
    /// Regions: their names, hosts that are there, and what is these hosts' own of each limit.
    pub regions: Vec<(String, usize, f64)>,
    /// Round trips of its questions, ms.
    pub lag: Option<Percentiles>,
    /// Frames that it has listened to and sent, and those that were lost here.
    pub frames: [u64; 3],
    /// Packets that it has not listened to, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// What was used of limits.
    pub overage: Arc<Vec<OverageReport>>,
}

/// Everything that a scrape tells.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// Just read.
    pub sample: Sample,
    /// Read some time ago.
    pub slow: Arc<Slow>,
    /// How long ago.
    pub age: Duration,
    /// How long the daemon has run.
    pub uptime: Duration,
    /// The cluster, if the host is in one.
    pub cluster: Option<Clustered>,
}

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
        let (at, slow) = match self.scrapes.as_ref().filter(fresh) {
            Some((at, slow)) => (*at, Arc::clone(slow)),
            None => (now, Arc::new(self.slow()?)),
        };
        self.scrapes = Some((at, Arc::clone(&slow)));
        let age = now.saturating_duration_since(at);
        let uptime = now.saturating_duration_since(self.started);
        Ok(Scrape { sample: self.sample()?, slow, age, uptime, cluster: None })
    }

    fn slow(&self) -> Result<Slow, Failure> {
        let (mut allowed, mut denied, mut bans) = (0, 0, 0);
        for (_, listing) in self.rules.listed().iter() {
            match listing.action {
                Action::Allow => allowed += 1,
                Action::Deny => denied += 1,
            }
            bans += u64::from(listing.ban);
        }
        let limits = self.rules.in_force();
        let gates = limits
            .amounts()
            .map(|(amount, _)| self.rules.plane.gate_of(&amount.of(Target::DEFAULT)));
        Ok(Slow {
            gate: gates.chain([MAX_GATE]).min().unwrap_or(MAX_GATE),
            status: self.status()?,
            allowed,
            denied,
            bans,
            shadows: self.rules.shadows.len() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::fake::Fake;

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
