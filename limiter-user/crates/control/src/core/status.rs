//! How the daemon fares, and what is known of one source.

use std::net::IpAddr;

use ipnet::IpNet;
use limiter_common::abi::{ABI_VERSION, Internal, Reason};

use super::Core;
use super::warnings::{self, Warnings, internal_of};
use crate::rules::{Rules, reload};
use api::error::{Failure, exit};
use api::{EventsReport, SharedReport, SourceReport, StatusReport, StoreReport};
use model::instance::address;
use model::lists::{Action, find};
use model::source::Counts;
use model::{Limit, Target};

/// Limits that a warning of a full table names.
const HOLDERS: usize = 2;

impl Core {
    /// Everything about the daemon.
    ///
    /// # Errors
    /// If the data plane cannot be read.
    pub fn status(&self) -> Result<StatusReport, Failure> {
        let rules = &self.rules;
        let counters = rules.plane.counters()?;
        let attachments = rules.plane.attachments();
        let (sketch, table) = (rules.plane.sketch(), rules.plane.table());
        let mut found = Warnings::default();
        warnings::of_store(&mut found, &rules.store, rules.fault.as_deref());
        warnings::of_changes(&mut found, rules);
        warnings::of_cluster(&mut found, rules);
        warnings::of_leases(&mut found, rules);
        let config = reload::report(rules);
        warnings::of_config(&mut found, &config);
        warnings::of_history(&mut found, &self.past);
        found.texts.extend(rules.replicated.warnings(&rules.in_force()));
        warnings::of_interfaces(&mut found, &attachments);
        warnings::of_frames(&mut found, &attachments, &rules.in_force());
        warnings::of_wanted(&mut found, &self.interfaces);
        warnings::of_services(&mut found, self.services.reports());
        warnings::of_counters(&mut found, &counters);
        let holders = || {
            let holders = rules.plane.holders(HOLDERS).into_iter();
            holders.map(|holder| (holder.clone(), rules.plane.gate_of(&holder.limit))).collect()
        };
        warnings::of_table(&mut found, &table, rules.on_full, holders);
        warnings::of_groups(&mut found, &*rules.plane, &counters, &rules.events.spreading());
        warnings::of_gates(
            &mut found,
            &rules.in_force(),
            |limit| rules.plane.gate_of(limit),
            &sketch,
        );
        let internal = |internal: Internal| internal_of(&counters, internal);
        let recovered = rules.store.recovered().is_some();
        Ok(StatusReport {
            state: found.health(),
            instance: self.instance.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            abi_version: ABI_VERSION,
            uptime_seconds: self.uptime().as_secs(),
            pid: std::process::id(),
            interfaces: attachments,
            sketch,
            table,
            distinct: rules.plane.distinct(),
            limits: rules.layers().count() as u64,
            limits_in_windows: rules
                .in_force()
                .amounts()
                .filter(|(amount, _)| !amount.algorithm.is_bucket())
                .map(|(_, limits)| limits as u64)
                .sum(),
            default_limit: rules.limit_for(&Target::DEFAULT).map(|l| rules.report_in_force(&l)),
            config,
            cluster: rules
                .cluster
                .as_ref()
                .map(|cluster| Box::new(cluster.report(rules.plane.peers()))),
            leases: rules.leases().map(Box::new),
            services: self.services.reports().to_vec(),
            confirm: rules.unconfirmed.report(),
            management: rules.management.nets().to_vec(),
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
                path: rules.store.path().display().to_string(),
                state: if recovered { "recovered" } else { "ok" }.into(),
            },
        })
    }
}

/// What is known of the source that `address` belongs to.
///
/// # Errors
/// If the data plane cannot be read.
pub(super) fn source(rules: &Rules, address: IpAddr) -> Result<SourceReport, Failure> {
    let mut reports = rules.plane.source(address)?.into_iter().map(|source| {
        let gate = source.limit.as_ref().map_or(0, |limit| rules.plane.gate_of(limit));
        let mut report = SourceReport::new(&source, gate);
        if let Some(limit) = &mut report.limit {
            rules.complete(limit);
        }
        report
    });
    // The first one is always there.
    let none = || Failure::new(exit::NEGATIVE, "the data plane says nothing of the source");
    let mut report = reports.next().ok_or_else(none)?;
    report.classes = reports.collect();
    let source = report.source;
    report.management = rules.management.covering(source.addr());
    report.unlimited_frames = rules.plane.unlimited_frames(address);
    report.shared = shared_by(rules, source);
    report.group = rules.plane.group(address).map(|group| {
        let gate = group.limit.as_ref().map_or(0, |limit| rules.plane.gate_of(limit));
        Box::new(SourceReport::new(&group, gate))
    });
    let listed = find(rules.listed(), source);
    report.listed = listed.map(|(net, listing)| rules.entry(net, listing));
    if report.listed.as_ref().is_some_and(|entry| entry.action == Action::Deny) {
        report.last_drop = Some(Reason::Denied.name().into());
    }
    Ok(report)
}

/// The limits that a source shares with others, as far as they do not depend on what it sends: of
/// each class, then of the longest prefix, then the total.
fn shared_by(rules: &Rules, source: IpNet) -> Vec<SharedReport> {
    let found = rules.layers().explain(source).into_iter().map(|(limit, _)| limit);
    let report = |limit: Limit| {
        let counts = rules.plane.shared_counts(&limit.target).unwrap_or_default();
        let Counts { passed, dropped, bytes, .. } = counts;
        let share = rules.plane.share_of(&limit.target).map(Into::into);
        SharedReport { limit: rules.report_in_force(&limit), share, passed, dropped, bytes }
    };
    found.filter(|limit| limit.target.aggregate).map(report).collect()
}
