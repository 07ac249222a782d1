//! The one owner of limits and data plane.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::{ABI_VERSION, Counters, Internal, Reason};
use limiter_common::peers::MAX_PEERS;

use super::access::Access;
use super::bans::Bans;
use super::capture::Capture;
use super::cluster;
use super::confirm::{Unconfirmed, Undo};
use super::events::EventLog;
use super::file_limits::FileLimits;
use super::history::Past;
use super::interfaces::Wanted;
use super::plane::Plane;
use super::replicated::Replicated;
use super::scrape;
use super::top::Top;
use super::warnings::{self, Warnings};
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::{
    AttachReport, DetachReport, EventsReport, LimitList, LimitRemoved, LimitReport, LimitSet,
    LimitsImported, OccupantReport, ServiceReport, SharedReport, SourceReport, StatsReport,
    StatusReport, StoreReport,
};
use dataplane::SharedCounts;
use model::instance::{Instance, address};
use model::lists::{Action, find};
use model::record::Row;
use model::{Change, Changes, Limit, Limits, Management, Target};
use model::{
    interface::{Attachment, Mode},
    tables::OnFull,
};
use state::Store;
use telemetry::{Bus, Sample, What};

/// Limits, data plane and store of a daemon. Every change goes through `&mut self`.
pub struct Core {
    pub(super) plane: Box<dyn Plane>,
    pub(super) store: Store,
    pub(super) on_full: OnFull,
    pub(super) started: Instant,
    /// Why store and data plane may disagree.
    pub(super) fault: Option<String>,
    pub(super) top: Top,
    pub(super) unconfirmed: Unconfirmed,
    pub(super) management: Management,
    pub(super) file: FileLimits,
    pub(super) bans: Bans,
    /// Since when something is tried.
    pub(super) shadows: BTreeMap<Target, SystemTime>,
    /// Who may change something, where there is an API.
    pub(super) access: Option<Access>,
    /// Which instance this is.
    pub(super) instance: Option<Instance>,
    /// Who listens to what goes on.
    pub(super) bus: Bus,
    /// What metrics have found out.
    pub(super) known: scrape::Known,
    /// What went on.
    pub(super) past: Past,
    /// What was told.
    pub(super) told: EventLog,
    /// Who captures.
    pub(super) capture: Option<Capture>,
    /// How many captures there have been.
    pub(super) captures: u64,
    /// What is the cluster's, if the host is in one.
    pub(super) replicated: Option<Replicated>,
    /// How the host fares in its cluster, once that runs.
    pub(super) cluster: Option<cluster::View>,
    /// The cluster and the dashboard, if this host is to have them.
    pub(super) services: Vec<ServiceReport>,
    /// Interfaces to be attached to.
    pub(super) wanted: Wanted,
}

impl Core {
    /// Takes both over. Nothing changes until [`Core::enforce`].
    pub fn new(plane: Box<dyn Plane>, store: Store, on_full: OnFull) -> Self {
        Self {
            plane,
            store,
            on_full,
            started: Instant::now(),
            fault: None,
            top: Top::default(),
            unconfirmed: Unconfirmed::default(),
            management: Management::default(),
            file: FileLimits::default(),
            bans: Bans::default(),
            shadows: BTreeMap::new(),
            access: None,
            instance: None,
            bus: Bus::default(),
            known: None,
            past: Past::default(),
            told: EventLog::default(),
            capture: None,
            captures: 0,
            replicated: None,
            cluster: None,
            services: Vec::new(),
            wanted: Wanted::default(),
        }
    }

    /// Lets no limit apply to the management addresses `listed`, from [`Core::enforce`] on.
    pub fn protect(&mut self, listed: &[IpNet]) {
        self.management = Management::new(listed, self.plane.prefixes());
        self.plane.exempt(self.management.nets());
    }

    /// Lets frames of the cluster pass unlimited that come from `present`, the addresses of members and seeds.
    pub(super) fn set_peers(&mut self, present: &BTreeSet<IpAddr>) -> Result<(), Failure> {
        let left_out = self.plane.set_peers(present)?;
        if left_out > 0 {
            tracing::warn!(
                "frames of {left_out} hosts of the cluster are limited like any packet: there is room for \
                 {MAX_PEERS} addresses"
            );
        }
        Ok(())
    }

    /// The data plane.
    pub(super) fn plane(&self) -> &dyn Plane {
        &*self.plane
    }

    /// The limits that are stored.
    pub(super) fn limits_in_store(&self) -> &Limits {
        self.store.limits()
    }

    /// Stores changes before anything is in force.
    pub(super) fn store_only(&mut self, undo: &Undo) -> Result<(), Failure> {
        if !undo.limits.is_empty() {
            let rows = self.replicate(&undo.limits, &undo.limits.former(self.store.limits()))?;
            let stored = self.store.apply_with(&undo.limits, &rows, || ());
            self.replicated(stored.is_ok());
            stored?;
        }
        if !undo.lists.is_empty() {
            let rows = self.replicate_lists(&undo.lists)?;
            let stored = self.store.list_with(&undo.lists, &rows, |_| ());
            self.replicated(stored.is_ok());
            stored?;
        }
        // What the file's lists are beneath has changed.
        self.file.merge(self.store.lists());
        Ok(())
    }

    /// Whether the data plane would take changes.
    pub(super) fn try_out(&self, changes: &Changes) -> Result<(), Failure> {
        Ok(self.plane.try_out(changes)?)
    }

    /// Puts the limits of store and file in force.
    ///
    /// # Errors
    /// If the data plane refuses them; then the limits that were in force before still are.
    pub fn enforce(&mut self) -> Result<(), Failure> {
        self.check_file_classes()
            .map_err(|failure| failure.context("cannot put the limits in force"))?;
        // Lists first: with the limits, a fresh data plane takes the place of the one that was there.
        self.plane.publish_lists(self.file.merged.as_ref().unwrap_or(self.store.lists())).map_err(
            |error| Failure::from(error).context("cannot put the stored lists in force"),
        )?;
        let limits = self.in_force().into_owned();
        self.plane
            .publish(&limits)
            .map_err(|error| Failure::from(error).context("cannot put the limits in force"))
    }

    /// The interfaces that are attached to.
    pub fn attached(&self) -> Vec<String> {
        self.plane.attachments().into_iter().map(|attachment| attachment.name).collect()
    }

    pub(super) fn report(&self, limit: &Limit) -> LimitReport {
        let mut report = LimitReport::new(limit, self.plane.gate_of(limit));
        if !limit.scope.is_local()
            && let Some(terms) = self.plane.cluster_terms()
        {
            report.set_hosts(terms.hosts, terms.frame);
        }
        report
    }

    /// A limit in force, with where it comes from.
    pub(super) fn report_in_force(&self, limit: &Limit) -> LimitReport {
        LimitReport { origin: self.origin_of(&limit.target), ..self.report(limit) }
    }

    /// Adds what the data plane does not know of a limit: where it comes from, where it holds, and the ban.
    pub(super) fn complete(&self, limit: &mut LimitReport) {
        limit.origin = self.origin_of(&limit.target);
        let whole = self.limit_for(&limit.target);
        limit.ban = whole.and_then(|limit| limit.ban);
        limit.set_scope(whole.map(|limit| limit.scope).unwrap_or_default());
    }

    /// All limits.
    pub fn limits(&self) -> LimitList {
        let in_force = self.in_force();
        LimitList { limits: in_force.iter().map(|limit| self.report_in_force(&limit)).collect() }
    }

    /// Sets a limit: stored first, then in force.
    ///
    /// # Errors
    /// If it is refused, or either fails; then everything is as it was before.
    pub fn set(&mut self, limit: &Limit, how: &ChangeOptions) -> Result<LimitSet, Failure> {
        let previous = self.limit_for(&limit.target).map(|limit| self.report_in_force(&limit));
        let (count, applied) = self.request(Change::Set(*limit).into(), how)?;
        let changed = count > 0;
        if changed && !how.dry_run {
            let report = self.report(limit);
            let what = format!("limit for {}: {}", limit.target.short(), report.summary());
            self.tell_policy(what, how, None);
        }
        Ok(LimitSet { limit: self.report(limit), changed, previous, applied })
    }

    /// Sets many limits at once: all of them, or none.
    ///
    /// # Errors
    /// If one is refused, or store or data plane fail; then everything is as it was before.
    pub fn import(
        &mut self,
        limits: Changes,
        how: &ChangeOptions,
    ) -> Result<LimitsImported, Failure> {
        let read = limits.len() as u64;
        let added =
            limits.iter().filter(|change| self.limit_for(&change.target()).is_none()).count();
        let (changed, applied) = self.request(limits, how)?;
        if changed > 0 && !how.dry_run {
            self.tell_policy(format!("{changed} limits imported"), how, None);
        }
        give_memory_back();
        Ok(LimitsImported { read, changed, added: added as u64, applied })
    }

    /// Removes a limit that was set at run time. `None` if there is none for this very target.
    ///
    /// # Errors
    /// If the file has it, or store or data plane fail; then everything is as it was before.
    pub fn unset(
        &mut self,
        target: &Target,
        how: &ChangeOptions,
    ) -> Result<Option<LimitRemoved>, Failure> {
        let Some(limit) = self.store.limits().get(target) else {
            return self.file_with(target).map_or(Ok(None), |file| Err(in_file(target, file)));
        };
        let removed = self.report(&limit);
        let (_, applied) = self.request(Change::Unset(*target).into(), how)?;
        if !how.dry_run {
            self.tell_policy(format!("limit for {} removed", target.short()), how, None);
        }
        Ok(Some(LimitRemoved { removed, applied }))
    }

    /// Stores changes, then puts them in force; undoes them in the store if that fails.
    pub(super) fn change(&mut self, changes: &Changes) -> Result<(), Failure> {
        let rows = self.replicate(changes, &changes.former(self.store.limits()))?;
        self.change_with(changes, rows)
    }

    /// As [`Core::change`], where `rows` are what the replica has changed and is to be durable with it.
    pub(super) fn change_with(&mut self, changes: &Changes, rows: Vec<Row>) -> Result<(), Failure> {
        let former = changes.former(self.store.limits());
        let former_rows = self.undoing_rows(&rows);
        let effect = self.layers().effect(changes).into_owned();
        let plane = &mut self.plane;
        let publish = || if effect.is_empty() { Ok(()) } else { plane.change(&effect) };
        let stored = self.store.apply_with(changes, &rows, publish);
        self.replicated(matches!(stored, Ok(Ok(()))));
        let Err(error) = stored? else {
            self.tell_limits();
            return Ok(());
        };
        let failure = Failure::from(error).context("the limits stay as they were");
        let undo = changes.reversed(&former);
        let restored = self.store.apply_with(&undo, &former_rows, || ()).map_err(Failure::from);
        self.publish_again(restored);
        Err(failure)
    }

    /// Tells the data plane all limits after a change has failed and was `undone`: also if it has
    /// changed nothing.
    pub(super) fn publish_again(&mut self, undone: Result<(), Failure>) {
        let restored = undone.and_then(|()| {
            let limits = self.in_force().into_owned();
            self.plane.publish(&limits).map_err(Failure::from)
        });
        if let Err(error) = restored {
            tracing::error!("cannot undo a change that failed: {error}");
            self.fault = Some(format!("a change of limits was half undone: {error}"));
        }
    }

    /// What is known of the source that `address` belongs to.
    ///
    /// # Errors
    /// If the data plane cannot be read.
    pub fn source(&self, address: IpAddr) -> Result<SourceReport, Failure> {
        let mut reports = self.plane.source(address)?.into_iter().map(|source| {
            let gate = source.limit.as_ref().map_or(0, |limit| self.plane.gate_of(limit));
            let mut report = SourceReport::new(&source, gate);
            if let Some(limit) = &mut report.limit {
                self.complete(limit);
            }
            report
        });
        // The first one is always there.
        let none = || Failure::new(exit::NEGATIVE, "the data plane says nothing of the source");
        let mut report = reports.next().ok_or_else(none)?;
        report.classes = reports.collect();
        let source = report.source;
        report.management = self.management.covering(source.addr());
        report.unlimited_frames = self.plane.unlimited_frames(address);
        report.shared = self.shared_by(source);
        let listed = find(self.listed(), source);
        report.listed = listed.map(|(net, listing)| self.entry(net, listing));
        if report.listed.as_ref().is_some_and(|entry| entry.action == Action::Deny) {
            report.last_drop = Some(Reason::Denied.name().into());
        }
        Ok(report)
    }

    /// The limits that a source shares with others, as far as they do not depend on what it sends: of
    /// each class, then of the longest prefix, then the total.
    fn shared_by(&self, source: IpNet) -> Vec<SharedReport> {
        let found = self.layers().explain(source).into_iter().map(|(limit, _)| limit);
        let report = |limit: Limit| {
            let counts = self.plane.shared_counts(&limit.target).unwrap_or_default();
            let SharedCounts { passed, dropped, bytes } = counts;
            SharedReport { limit: self.report_in_force(&limit), passed, dropped, bytes }
        };
        found.filter(|limit| limit.target.aggregate).map(report).collect()
    }

    /// The counters.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn stats(&self) -> Result<StatsReport, Failure> {
        Ok(StatsReport::new(&self.plane.counters()?))
    }

    /// Attaches to an interface.
    ///
    /// # Errors
    /// As [`dataplane::Dataplane::attach`].
    pub fn attach(
        &mut self,
        interface: &str,
        mode: Mode,
        replace: bool,
    ) -> Result<AttachReport, Failure> {
        let attachment = self.plane.attach(interface, mode, replace)?;
        self.now_attached(&attachment);
        Ok(AttachReport { interface: attachment })
    }

    /// Notes and tells that an interface is attached to.
    pub(super) fn now_attached(&mut self, attachment: &Attachment) {
        self.wanted.attached(&attachment.name);
        let (interface, mode) = (attachment.name.clone(), attachment.mode.name().to_owned());
        let by = self.told.by.clone();
        self.tell(What::Attached { interface, mode, by });
    }

    /// What is on an interface.
    ///
    /// # Errors
    /// As [`dataplane::Attachments::occupant`].
    pub fn occupant(&self, interface: &str) -> Result<OccupantReport, Failure> {
        let (ifindex, program_id) = self.plane.occupant(interface)?;
        Ok(OccupantReport { ifindex, program_id })
    }

    /// Detaches from an interface.
    ///
    /// # Errors
    /// As [`dataplane::Attachments::detach`].
    pub fn detach(&mut self, interface: &str) -> Result<DetachReport, Failure> {
        self.plane.detach(interface)?;
        self.wanted.forget(interface);
        let by = self.told.by.clone();
        self.tell(What::Detached { interface: interface.into(), by });
        Ok(DetachReport { detached: interface.into() })
    }

    /// Bits of an IPv4 and an IPv6 address that make a source.
    pub fn prefixes(&self) -> (u8, u8) {
        self.plane.prefixes()
    }

    /// Everything about the daemon.
    ///
    /// # Errors
    /// If the data plane cannot be read.
    pub fn status(&self) -> Result<StatusReport, Failure> {
        let counters = self.plane.counters()?;
        let attachments = self.plane.attachments();
        let (sketch, table) = (self.plane.sketch(), self.plane.table());
        let mut found = Warnings::default();
        warnings::of_store(&mut found, &self.store, self.fault.as_deref());
        warnings::of_changes(&mut found, self);
        warnings::of_cluster(&mut found, self);
        let config = self.config_report();
        warnings::of_config(&mut found, &config);
        warnings::of_history(&mut found, &self.past);
        found.texts.extend(self.cluster_warnings());
        warnings::of_interfaces(&mut found, &attachments);
        warnings::of_wanted(&mut found, &self.wanted);
        warnings::of_services(&mut found, &self.services);
        warnings::of_counters(&mut found, &counters);
        warnings::of_table(&mut found, &table, self.on_full);
        warnings::of_gates(
            &mut found,
            &self.in_force(),
            |limit| self.plane.gate_of(limit),
            &sketch,
        );
        let internal = |internal: Internal| internal_of(&counters, internal);
        let recovered = self.store.recovered().is_some();
        Ok(StatusReport {
            state: found.health(),
            instance: self.instance.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            abi_version: ABI_VERSION,
            uptime_seconds: self.started.elapsed().as_secs(),
            pid: std::process::id(),
            interfaces: attachments,
            sketch,
            table,
            distinct: self.plane.distinct(),
            limits: self.layers().count() as u64,
            default_limit: self.limit_for(&Target::DEFAULT).map(|l| self.report_in_force(&l)),
            config,
            cluster: self
                .cluster
                .as_ref()
                .map(|cluster| Box::new(cluster.report(self.plane.peers()))),
            services: self.services.clone(),
            confirm: self.unconfirmed.report(),
            management: self.management.nets().to_vec(),
            overage: Vec::new(),
            events: EventsReport {
                lost: internal(Internal::EventsLost),
                suppressed: internal(Internal::EventsSuppressed),
            },
            warnings: found
                .texts
                .iter()
                .map(|text| address(text, self.instance.as_ref()))
                .collect(),
            store: StoreReport {
                path: self.store.path().display().to_string(),
                state: if recovered { "recovered" } else { "ok" }.into(),
            },
        })
    }

    /// Where samples and events can be listened to.
    pub fn bus(&self) -> Bus {
        self.bus.clone()
    }

    /// What the data plane counts at present.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn sample(&self) -> Result<Sample, Failure> {
        Ok(Sample {
            time: SystemTime::now(),
            monotonic_ns: self.plane.monotonic_ns(),
            counters: self.plane.counters()?,
            noise: self.plane.noise(),
            distinct: self.plane.distinct(),
        })
    }

    /// What is due every second.
    pub fn tick(&mut self) {
        self.plane.refresh_clock();
        self.tell_of_plane();
        match self.sample() {
            Ok(sample) => {
                self.past.history.record(&sample);
                self.tell_of_sample(&sample);
                self.bus.sample(&Arc::new(sample));
            }
            Err(failure) => tracing::error!("{failure}"),
        }
        self.look_if_watched();
        self.end_forgotten_capture();
        self.expire_lists();
        self.ban(Instant::now());
    }

    /// Removes all protection.
    ///
    /// # Errors
    /// As [`dataplane::Attachments::detach_all`].
    pub fn detach_all(&mut self) -> Result<(), Failure> {
        Ok(self.plane.detach_all()?)
    }
}

/// Returns what a large change needed for a moment. glibc would keep it for the next one, which may
/// never come.
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// One of the counters beside verdicts.
pub(super) fn internal_of(counters: &Counters, internal: Internal) -> u64 {
    counters.internal[internal as usize]
}

/// The failure that removing a limit of the configuration file gets.
fn in_file(target: &Target, file: &str) -> Failure {
    let message = format!("the limit for {} is in {file}, not set at run time", target.short());
    Failure::new(exit::NEGATIVE, message)
        .hint("take it out of the file, then run `limiter reload`; or set another limit for now")
}

/// The failure that asking for a limit that is not set gets.
pub fn no_such_limit(target: &Target) -> Failure {
    Failure::new(exit::NEGATIVE, format!("no limit is set for {}", target.short()))
        .hint("`limiter limit list` shows the limits that are set")
}
