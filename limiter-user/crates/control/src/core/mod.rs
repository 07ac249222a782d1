//! The one owner of what a daemon has: the rules in force, and what watches over them.
//!
//! Each part is a service of its own, which works on the rules that it is given. What needs several of them is here. It
//! decides nothing: `model` and `limiter-common` do.

pub mod scrape;
mod status;
mod warnings;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bans::Bans;
use super::capture::Captures;
use super::events::EventLog;
use super::history::Past;
use super::interfaces::Interfaces;
use super::plane::{Plane, attached, sample};
use super::rules::{Rules, lists, overrides};
use super::services::Services;
use super::top::Top;
use ::cluster::ClusterConfig;
use api::error::Failure;
use api::{OccupantReport, SourceReport, StatsReport, TopReport};
use model::instance::Instance;
use model::tables::OnFull;
use model::traffic::{Sort, Whose};
use state::Store;
use telemetry::detect::Jump;
use telemetry::{Bus, Sample, What};

/// The rules of this host, and the services that work on them. Whatever is done goes through `&mut self`, one after the
/// other.
pub struct Core {
    /// Limits and lists, in store and data plane.
    pub rules: Rules,
    /// Where the program is to run.
    pub interfaces: Interfaces,
    /// The heaviest sources.
    pub top: Top,
    /// The destinations to which most is sent.
    pub destinations: Top,
    /// What went on.
    pub past: Past,
    /// Who captures.
    pub captures: Captures,
    /// The cluster and the dashboard, if this host is to have them.
    pub services: Services,
    pub(super) bans: Bans,
    scrapes: scrape::Known,
    /// Which instance this is.
    pub(super) instance: Option<Instance>,
    started: Instant,
}

impl Core {
    /// Takes both over. Nothing changes until [`Rules::enforce`].
    pub fn new(plane: Box<dyn Plane>, store: Store, on_full: OnFull) -> Self {
        Self {
            rules: Rules::new(plane, store, on_full),
            interfaces: Interfaces::default(),
            top: Top::new(Whose::Sources),
            destinations: Top::new(Whose::Destinations),
            past: Past::default(),
            captures: Captures::default(),
            services: Services::default(),
            bans: Bans::default(),
            scrapes: None,
            instance: None,
            started: Instant::now(),
        }
    }

    /// The data plane.
    pub(super) fn plane(&self) -> &dyn Plane {
        &*self.rules.plane
    }

    /// How long the daemon has run.
    pub(super) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The interfaces that are attached to.
    pub fn attached(&self) -> Vec<String> {
        attached(self.plane())
    }

    /// The heaviest sources at the latest look, which is shared by all who watch: up to three seconds old.
    pub fn top(&mut self, n: usize, sort: Sort) -> TopReport {
        self.top.watched(&self.rules, n, sort)
    }

    /// The heaviest sources, or destinations: as [`Core::top`] if `live`, else at present.
    pub fn heaviest(&mut self, whose: Whose, n: usize, sort: Sort, live: bool) -> TopReport {
        let top = match whose {
            Whose::Sources => &mut self.top,
            Whose::Destinations => &mut self.destinations,
        };
        if live { top.watched(&self.rules, n, sort) } else { top.now(&self.rules, n, sort) }
    }

    /// How long to wait before rates of sources, or destinations, are known, if they are not yet.
    pub fn prepare_top(&mut self, whose: Whose) -> Option<Duration> {
        let top = match whose {
            Whose::Sources => &mut self.top,
            Whose::Destinations => &mut self.destinations,
        };
        top.prepare(&*self.rules.plane)
    }

    /// What is known of the source that `address` belongs to.
    ///
    /// # Errors
    /// If the data plane cannot be read.
    pub fn source(&self, address: IpAddr) -> Result<SourceReport, Failure> {
        let mut report = status::source(&self.rules, address)?;
        self.bans.complete(&mut report);
        Ok(report)
    }

    /// The counters.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn stats(&self) -> Result<StatsReport, Failure> {
        Ok(StatsReport::new(&self.plane().counters()?))
    }

    /// What is on an interface.
    ///
    /// # Errors
    /// As [`dataplane::Attachments::occupant`].
    pub fn occupant(&self, interface: &str) -> Result<OccupantReport, Failure> {
        let (ifindex, program_id) = self.plane().occupant(interface)?;
        Ok(OccupantReport { ifindex, program_id })
    }

    /// `config` with what the configuration says now of keys that take effect without a restart.
    pub fn live_cluster(&self, config: &ClusterConfig) -> ClusterConfig {
        let Ok(taken) = self.rules.file.taken() else { return config.clone() };
        let ClusterConfig { seeds, weight, .. } = taken.cluster();
        ClusterConfig { seeds, weight, ..config.clone() }
    }

    /// What is told of what happens.
    pub const fn events(&mut self) -> &mut EventLog {
        &mut self.rules.events
    }

    /// Where samples and events can be listened to.
    pub fn bus(&self) -> Bus {
        self.rules.events.bus().clone()
    }

    /// What the data plane counts at present.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn sample(&self) -> Result<Sample, Failure> {
        sample(self.plane())
    }

    /// Goes on with the history that an earlier daemon has kept beside the store, and keeps it there.
    /// `same_maps` says whether the counters may be the ones that it was made of.
    pub(super) fn open_history(&mut self, same_maps: bool) {
        match self.sample() {
            Ok(now) => {
                self.past.open(&self.rules.state_dir().join("history"), &now, same_maps);
                self.rules.events.jump = Jump::after(&self.past.history.distinct());
            }
            Err(failure) => self.past.note(Some(failure.to_string())),
        }
    }

    /// What is due every second.
    pub fn tick(&mut self) {
        let rules = &mut self.rules;
        rules.plane.refresh_clock();
        rules.plane.take_back();
        rules.events.tell_of_plane(&mut *rules.plane);
        rules.tell_of_leases();
        match sample(&*rules.plane) {
            Ok(sample) => {
                self.past.history.record(&sample);
                rules.events.tell_of_sample(&sample, &*rules.plane);
                rules.events.bus().sample(&Arc::new(sample));
            }
            Err(failure) => tracing::error!("{failure}"),
        }
        self.top.look_if_watched(&*rules.plane);
        self.destinations.look_if_watched(&*rules.plane);
        self.captures.end_forgotten(rules);
        lists::expire(rules);
        overrides::expire(rules);
        self.bans.ban(rules, Instant::now());
    }

    /// Tells that the daemon works. Cannot fail.
    pub fn tell_started(&mut self) -> Result<(), Failure> {
        self.events().tell(What::Started { version: env!("CARGO_PKG_VERSION").into() });
        Ok(())
    }

    /// Tells that the daemon ends, which also ends what streams events and overrides. Cannot fail.
    pub fn tell_stopping(&mut self) -> Result<(), Failure> {
        self.events().tell(What::Stopping);
        self.rules.end_following();
        Ok(())
    }

    /// Removes all protection.
    ///
    /// # Errors
    /// As [`dataplane::Attachments::detach_all`].
    pub fn detach_all(&mut self) -> Result<(), Failure> {
        Ok(self.rules.plane.detach_all()?)
    }
}
