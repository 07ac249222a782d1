//! Limits that are tried beside those in force.

use std::time::SystemTime;

use super::core::Core;
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::{LimitReport, TrialReport, TrialSource, TrialStarted, TrialStopped, TrialsReport};
use model::{Limit, Target};

impl Core {
    /// Tries a limit: counts what it would drop.
    ///
    /// # Errors
    /// If it cannot be tried there; then what was tried before goes on.
    pub fn start_trial(&mut self, limit: &Limit) -> Result<TrialStarted, Failure> {
        let target = limit.target;
        let (ipv4, ipv6) = self.plane.prefixes();
        limit.check_prefix(ipv4, ipv6)?;
        self.management.check(&target)?;
        if limit.also.is_some() {
            return Err(Failure::new(exit::USAGE, "one rate is tried at a time")
                .hint("try the rate of packets, then that of bytes"));
        }
        self.plane.start_trial(&target, &limit.tier())?;
        self.trials.insert(target, SystemTime::now());
        let what = format!("trying {} for {}", limit.rate, target.short());
        self.tell_policy(what, &ChangeOptions::default(), None);
        Ok(TrialStarted { trying: LimitReport::new(limit, self.plane.gate_of(limit)) })
    }

    /// Ends what is tried for a target.
    ///
    /// # Errors
    /// If nothing is tried for this very target, or the data plane refuses.
    pub fn stop_trial(&mut self, target: &Target) -> Result<TrialStopped, Failure> {
        if !self.plane.stop_trial(target)? {
            let message = format!("nothing is tried for {}", target.short());
            return Err(Failure::new(exit::NEGATIVE, message)
                .hint("`limiter limit trials` shows what is tried"));
        }
        self.trials.remove(target);
        let what = format!("nothing is tried for {} any more", target.short());
        self.tell_policy(what, &ChangeOptions::default(), None);
        Ok(TrialStopped { stopped: *target })
    }

    /// What is tried, with the `n` sources of each that would have lost most.
    pub fn trials(&self, n: usize) -> TrialsReport {
        let trials = self.plane.trials(n).into_iter().map(|view| {
            let since = self.trials.get(&view.target).copied().unwrap_or_else(SystemTime::now);
            let sources = view.most.iter().map(|(source, tried, would_drop)| {
                TrialSource::new(source.source, *tried, *would_drop)
            });
            let in_force = self.limit_for(&view.target);
            TrialReport {
                target: view.target,
                rate: view.tier.rate,
                burst: view.tier.burst_text(),
                in_force: in_force.map(|limit| self.report_in_force(&limit)),
                since: humantime::format_rfc3339_seconds(since).to_string(),
                seconds: since.elapsed().map_or(0.0, |elapsed| elapsed.as_secs_f64()),
                sources: view.sources,
                limited: view.limited,
                packets: view.tried,
                would_drop: view.would_drop,
                share: TrialSource::share(view.tried, view.would_drop),
                most: sources.collect(),
            }
        });
        TrialsReport { trials: trials.collect() }
    }
}
