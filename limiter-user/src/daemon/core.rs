//! The one owner of limits and data plane.

use std::net::IpAddr;
use std::time::Instant;

use limiter_common::abi::{ABI_VERSION, Counters, EventKind, Internal};

use super::plane::Plane;
use super::top::Top;
use super::warnings::{self, Warnings};
use crate::dataplane::{Event, Mode, OnFull};
use crate::error::{Failure, exit};
use crate::policy::model::short_prefix;
use crate::policy::{Change, Changes, LimitSpec, Store, Target};
use crate::report::{
    AttachReport, DetachReport, EventsReport, LimitList, LimitRemoved, LimitReport, LimitSet,
    LimitsImported, SourceReport, StatsReport, StatusReport, StoreReport,
};

/// Limits, data plane and store of a daemon. Every change goes through `&mut self`.
pub struct Core {
    pub(super) plane: Box<dyn Plane>,
    store: Store,
    on_full: OnFull,
    started: Instant,
    /// Why store and data plane may disagree.
    fault: Option<String>,
    pub(super) top: Top,
}

impl Core {
    /// Takes both over. Nothing changes until [`Core::enforce`].
    pub fn new(plane: Box<dyn Plane>, store: Store, on_full: OnFull) -> Self {
        Self { plane, store, on_full, started: Instant::now(), fault: None, top: Top::default() }
    }

    /// Puts the stored limits in force.
    ///
    /// # Errors
    /// If the data plane refuses them; then the limits that were in force before still are.
    pub fn enforce(&mut self) -> Result<(), Failure> {
        self.plane
            .publish(self.store.limits())
            .map_err(|error| Failure::from(error).context("cannot put the stored limits in force"))
    }

    /// The interfaces that are attached to.
    pub fn attached(&self) -> Vec<String> {
        self.plane.attachments().into_iter().map(|attachment| attachment.name).collect()
    }

    fn report(&self, limit: &LimitSpec) -> LimitReport {
        LimitReport::new(limit, self.plane.gate_of(limit))
    }

    /// All limits.
    pub fn limits(&self) -> LimitList {
        LimitList { limits: self.store.limits().iter().map(|limit| self.report(&limit)).collect() }
    }

    /// Sets a limit: stored first, then in force.
    ///
    /// # Errors
    /// If it is refused, or either fails; then everything is as it was before.
    pub fn set(&mut self, limit: &LimitSpec) -> Result<LimitSet, Failure> {
        let (ipv4, ipv6) = self.plane.prefixes();
        limit.check_prefix(ipv4, ipv6)?;
        let before = self.store.limits().get(&limit.target);
        let changed = before != Some(*limit);
        if changed {
            self.change(&Change::Set(*limit).into())?;
            tracing::info!("limit for {}: {}", limit.target.short(), limit.rate);
        }
        Ok(LimitSet { limit: self.report(limit), changed })
    }

    /// Sets many limits at once: all of them, or none.
    ///
    /// # Errors
    /// If one is refused, or store or data plane fail; then everything is as it was before.
    pub fn import(&mut self, mut limits: Changes) -> Result<LimitsImported, Failure> {
        let read = limits.len() as u64;
        limits.forget_present(self.store.limits());
        let changed = limits.len() as u64;
        if changed > 0 {
            self.change(&limits)?;
            tracing::info!("{changed} limits imported");
        }
        drop(limits);
        give_memory_back();
        Ok(LimitsImported { read, changed })
    }

    /// Removes a limit. `None` if none is set for this very target.
    ///
    /// # Errors
    /// If store or data plane fail; then everything is as it was before.
    pub fn unset(&mut self, target: &Target) -> Result<Option<LimitRemoved>, Failure> {
        let Some(limit) = self.store.limits().get(target) else { return Ok(None) };
        let removed = self.report(&limit);
        self.change(&Change::Unset(*target).into())?;
        tracing::info!("limit for {} removed", target.short());
        Ok(Some(LimitRemoved { removed }))
    }

    /// Stores changes, then puts them in force; undoes them in the store if that fails.
    fn change(&mut self, changes: &Changes) -> Result<(), Failure> {
        let former = changes.former(self.store.limits());
        let plane = &mut self.plane;
        let published = self.store.apply_then(changes, || plane.change(changes))?;
        let Err(error) = published else { return Ok(()) };
        let failure = Failure::from(error).context("the limits stay as they were");
        let restored =
            self.store.apply(&changes.reversed(&former)).map_err(Failure::from).and_then(|()| {
                // Also if the data plane changed nothing: it is told what the store says now.
                self.plane.publish(self.store.limits()).map_err(Failure::from)
            });
        if let Err(error) = restored {
            tracing::error!("cannot undo a change that failed: {error}");
            self.fault = Some(format!("a change of limits was half undone: {error}"));
        }
        Err(failure)
    }

    /// What is known of the source that `address` belongs to.
    ///
    /// # Errors
    /// If the data plane cannot be read.
    pub fn source(&self, address: IpAddr) -> Result<SourceReport, Failure> {
        let source = self.plane.source(address)?;
        let gate = source.limit.as_ref().map_or(0, |limit| self.plane.gate_of(limit));
        Ok(SourceReport::new(&source, gate))
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
    /// As [`crate::dataplane::Dataplane::attach`].
    pub fn attach(
        &mut self,
        interface: &str,
        mode: Mode,
        replace: bool,
    ) -> Result<AttachReport, Failure> {
        let attachment = self.plane.attach(interface, mode, replace)?;
        tracing::info!("attached to {} in {} mode", attachment.name, attachment.mode.name());
        Ok(AttachReport { interface: (&attachment).into() })
    }

    /// Detaches from an interface.
    ///
    /// # Errors
    /// As [`crate::dataplane::Dataplane::detach`].
    pub fn detach(&mut self, interface: &str) -> Result<DetachReport, Failure> {
        self.plane.detach(interface)?;
        tracing::info!("detached from {interface}");
        Ok(DetachReport { detached: interface.into() })
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
        warnings::of_interfaces(&mut found, &attachments);
        warnings::of_counters(&mut found, &counters);
        warnings::of_table(&mut found, &table, self.on_full);
        warnings::of_gates(
            &mut found,
            self.store.limits(),
            |limit| self.plane.gate_of(limit),
            &sketch,
        );
        let internal = |internal: Internal| internal_of(&counters, internal);
        let recovered = self.store.recovered().is_some();
        Ok(StatusReport {
            state: found.health(),
            version: env!("CARGO_PKG_VERSION").into(),
            abi_version: ABI_VERSION,
            uptime_seconds: self.started.elapsed().as_secs(),
            pid: std::process::id(),
            interfaces: attachments.iter().map(Into::into).collect(),
            sketch: sketch.into(),
            table: table.into(),
            limits: self.store.limits().len() as u64,
            default_limit: self.store.limits().get(&Target::Default).map(|l| self.report(&l)),
            events: EventsReport {
                lost: internal(Internal::EventsLost),
                suppressed: internal(Internal::EventsSuppressed),
            },
            warnings: found.texts,
            store: StoreReport {
                path: self.store.path().display().to_string(),
                state: if recovered { "recovered" } else { "ok" }.into(),
            },
        })
    }

    /// What is due every second.
    pub fn tick(&mut self) {
        self.plane.refresh_clock();
        self.plane.events(&mut log_event);
        self.top.forget_old();
    }

    /// Removes all protection.
    ///
    /// # Errors
    /// As [`crate::dataplane::Dataplane::detach_all`].
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

fn log_event(event: Event) {
    let source = short_prefix(&event.source);
    match (event.kind, event.limit) {
        (EventKind::Limited, Some(limit)) => {
            tracing::info!("{source} exceeded its limit {}", limit.rate);
        }
        (EventKind::Limited, None) => tracing::info!("{source} exceeded its former limit"),
        (EventKind::SetFull, _) => {
            tracing::warn!("no bucket is free for {source}: its set of the bucket table is full");
        }
    }
}

/// The failure that asking for a limit that is not set gets.
pub fn no_such_limit(target: &Target) -> Failure {
    Failure::new(exit::NEGATIVE, format!("no limit is set for {}", target.short()))
        .hint("`limiter limit list` shows the limits that are set")
}
