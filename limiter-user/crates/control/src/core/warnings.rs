//! What an operator should know, told by `status`.

use std::collections::HashMap;

use ipnet::IpNet;
use limiter_common::abi::{Counters, Internal, Reason};
use limiter_common::gate::MAX_GATE;
use limiter_common::peers::FRAMES_PER_SECOND;

use crate::history::Past;
use crate::interfaces::Interfaces;
use crate::plane::Plane;
use crate::rules::{Concern, Rules};
use api::{ConfigReport, Health, ServiceReport};
use dataplane::nic::merging;
use model::price::{Holder, price};
use model::source::Source;
use model::{Amount, Limit, Limits, OnError, Target, Tier, Unit};
use model::{
    interface::{Attachment, Mode},
    tables::{OnFull, SketchHealth, TableHealth},
};
use state::Store;

/// Limits that a warning names before it only counts them.
const NAMED: usize = 3;

/// Warnings, and whether one of them means that limits are not enforced as promised.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    pub(super) texts: Vec<String>,
    degraded: bool,
}

impl Warnings {
    fn note(&mut self, text: impl Into<String>) {
        self.texts.push(text.into());
    }

    fn degraded(&mut self, text: impl Into<String>) {
        self.note(text);
        self.degraded = true;
    }

    /// The verdict over all.
    pub(super) fn health(&self) -> Health {
        if self.degraded { Health::Degraded } else { Health::Ok }
    }
}

/// What is to be said of the host in its cluster.
pub(super) fn of_cluster(warnings: &mut Warnings, rules: &Rules) {
    let Some(cluster) = &rules.cluster else { return };
    for Concern { text, degraded } in cluster.concerns(rules.in_force().in_cluster()) {
        if degraded { warnings.degraded(text) } else { warnings.note(text) }
    }
}

/// What strict limits do without the central store.
pub(super) fn of_leases(warnings: &mut Warnings, rules: &Rules) {
    let Some(leases) = rules.leases() else { return };
    if let Some(problem) = leases.problem {
        let answers = OnError::ALL.map(|on_error| {
            let is = |(amount, _): &(Amount, usize)| amount.scope.on_error() == Some(on_error);
            let limits: usize =
                rules.in_force().amounts().filter(is).map(|(_, limits)| limits).sum();
            (limits > 0).then(|| format!("on_error: {} for {limits}", on_error.name()))
        });
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        warnings.degraded(format!(
            "strict limits have had no leases for {} s ({problem}): {}",
            leases.seconds,
            answers.join(", ")
        ));
    }
    if leases.left_out > 0 {
        warnings.note(format!(
            "{} sources under strict limits have no lease, as there are too many to look at in time",
            leases.left_out
        ));
    }
}

/// What is wrong with the store.
pub(super) fn of_store(warnings: &mut Warnings, store: &Store, fault: Option<&str>) {
    if let Some(fault) = fault {
        warnings.degraded(format!("{fault}; restart the daemon"));
    }
    if let Some(recovered) = store.recovered() {
        warnings.degraded(format!("the store was damaged and has been recovered: {recovered}"));
    }
    if let Some(problem) = store.mirror_problem() {
        warnings.degraded(format!("the store has no mirror at present: {problem}"));
    }
}

/// What is to be said of the configuration file.
pub(super) fn of_config(warnings: &mut Warnings, config: &ConfigReport) {
    if let Some(problem) = &config.problem {
        warnings.note(format!("the configuration was not read again: {problem}"));
    }
    if let Some(file) = &config.refused {
        warnings.note(format!(
            "{file} is not in force, because it was not confirmed, but what it said before: put it right, \
             or take it as it is, with `limiter reload`"
        ));
    }
    if config.listed_shadowed > 0 {
        warnings.note(format!(
            "{} entries of the configuration file's lists are not in force, because others were set at \
             run time: see `limiter config diff`",
            config.listed_shadowed
        ));
    }
    if config.shadowed > 0 {
        warnings.note(format!(
            "{} limits of the configuration file are not in force, because others were set at run \
             time: see `limiter config diff`, remove them with `limiter limit unset`",
            config.shadowed
        ));
    }
}

/// What is wrong with changes that were to be reverted, or with limits that cannot apply.
pub(super) fn of_changes(warnings: &mut Warnings, rules: &Rules) {
    rules.unconfirmed.problems().for_each(|problem| warnings.degraded(problem));
    if rules.management.nets().is_empty() {
        return;
    }
    let limits = rules.in_force();
    let limits = limits.iter();
    let idle: Vec<_> = limits.filter(|limit| rules.management.contains(&limit.target)).collect();
    if let Some(first) = idle.first() {
        warnings.note(format!(
            "{} of the limits never apply, because they are for management addresses: {} and others",
            idle.len(),
            first.target.short()
        ));
    }
}

/// What is wrong with what is kept of the past.
pub(super) fn of_history(warnings: &mut Warnings, past: &Past) {
    past.problems().for_each(|problem| warnings.note(problem.clone()));
}

/// What is to be said of the interfaces.
pub(super) fn of_interfaces(warnings: &mut Warnings, attachments: &[Attachment]) {
    if attachments.is_empty() {
        warnings.note("attached to no interface: nothing is limited; see `limiter attach`");
    }
    for attachment in attachments.iter().filter(|a| a.mode == Mode::Generic) {
        warnings.note(format!(
            "attached to {} in generic mode, which is several times slower than native",
            attachment.name
        ));
    }
    for Attachment { name, .. } in attachments {
        if let Some(offload) = merging(name) {
            warnings.note(format!(
                "{offload} is on: {name} merges frames before they are judged, and each then counts as \
                 one; ethtool -K {name} {offload} off"
            ));
        }
    }
}

/// Which byte limits no frame of full size ever conforms to.
pub(super) fn of_frames(warnings: &mut Warnings, attachments: &[Attachment], limits: &Limits) {
    let largest =
        |it: &Attachment| (it.largest_frame(merging(&it.name).is_some()), it.name.clone());
    let Some((largest, name)) = attachments.iter().map(largest).max() else { return };
    let is_small = |tier: Tier| tier.rate.unit() == Unit::Bytes && tier.burst < u64::from(largest);
    let small = limits.iter().filter(|limit| limit.tiers().any(is_small));
    let small: Vec<_> = small.map(|limit| limit.target.short()).collect();
    if !small.is_empty() {
        let (named, count) = (small[..small.len().min(NAMED)].join(", "), small.len());
        warnings.note(format!(
            "{name} takes frames of up to {largest} bytes, and a frame larger than the burst never passes: \
             {count} limits have a smaller one, such as {named}; set a larger --burst"
        ));
    }
}

/// What is to be said of interfaces that are to be attached to.
pub(super) fn of_wanted(warnings: &mut Warnings, wanted: &Interfaces) {
    for (name, failure) in wanted.problems() {
        let hint = failure.hint.as_deref().unwrap_or_default();
        warnings.degraded(format!("{name} is not protected: {failure}; {hint}"));
    }
}

/// What is to be said of cluster and dashboard.
pub(super) fn of_services(warnings: &mut Warnings, services: &[ServiceReport]) {
    for ServiceReport { name, address, problem, hint, .. } in services.iter().filter(|it| !it.up) {
        let problem = problem.as_deref().unwrap_or("it is about to start");
        let hint = hint.as_deref().map(|hint| format!("; {hint}")).unwrap_or_default();
        warnings.degraded(format!("the {name} is not up at {address}: {problem}{hint}"));
    }
}

/// What counters say that should be zero.
pub(super) fn of_counters(warnings: &mut Warnings, counters: &Counters) {
    let errors = counters.verdicts[Reason::Internal as usize].packets;
    if errors > 0 {
        warnings.degraded(format!("{errors} packets passed because of internal errors"));
    }
    let lost = internal_of(counters, Internal::EventsLost);
    if lost > 0 {
        warnings.note(format!("{lost} events were lost because the ring buffer was full"));
    }
    let over = counters.verdicts[Reason::OverPeerBudget as usize].packets;
    if over > 0 {
        warnings.note(format!(
            "{over} frames with the address of a host of the cluster were dropped, as they were more than \
             {FRAMES_PER_SECOND} a second: somebody may send in its name, and what it says itself is lost with \
             them; `limiter capture --reason over_peer_budget` shows some"
        ));
    }
    let deferred = counters.verdicts[Reason::Deferred as usize].packets;
    if deferred > 0 {
        warnings.note(format!(
            "{deferred} packets passed without a bucket, as too many sources wanted one at once: a flood \
             from forged sources, or a sketch that is too small; see --sketch-epsilon"
        ));
    }
    let evicted = internal_of(counters, Internal::BusyEvictions);
    if evicted > 0 {
        warnings.note(format!("{evicted} sources lost their bucket to others: see --max-sources"));
    }
}

/// Whether sources find a bucket, of which limits in force hold the most.
pub(super) fn of_table(
    warnings: &mut Warnings,
    table: &TableHealth,
    on_full: OnFull,
    holders: impl FnOnce() -> Vec<(Holder, u32)>,
) {
    if table.full_sets > 0 {
        let fate = match on_full {
            OnFull::Pass => "pass unlimited",
            OnFull::Drop => "are dropped",
            OnFull::EvictOldest => "take the bucket of another that limits nobody",
        };
        warnings.degraded(format!(
            "{} of {} sets of the bucket table are full, new sources there {fate}: restart with a \
             larger --max-sources",
            table.full_sets, table.sets
        ));
        for (Holder { limit, buckets }, gate) in holders() {
            let price = price(&limit, gate, table.capacity);
            warnings.note(format!(
                "sources under {} for {} hold {buckets} of {} buckets: {price:.*} forged packets a second \
                 hold all that it may have; a higher rate raises that, and a larger --max-sources",
                limit.rate, limit.target.short(), table.capacity, if price < 10.0 { 3 } else { 0 }
            ));
        }
    }
}

/// Which prefixes have many sources that send too much, or send from too many.
pub(super) fn of_groups(
    warnings: &mut Warnings,
    plane: &dyn Plane,
    counters: &Counters,
    spreading: &[IpNet],
) {
    // A look at the whole table, which is needless where no group ever was over its limit.
    if counters.verdicts[Reason::OverGroup as usize].packets > 0 {
        let (groups, count) = plane.limited_groups(NAMED);
        for Source { source, limit, dropped, .. } in &groups {
            let rate = limit.map(|limit| format!(" of {}", limit.rate)).unwrap_or_default();
            warnings.note(format!(
                "{source} is over the group limit{rate}: {dropped} packets of sources without a bucket dropped"
            ));
        }
        if count > groups.len() {
            warnings.note(format!("{} more groups are over their limit", count - groups.len()));
        }
    }
    for prefix in spreading.iter().take(NAMED) {
        let grouped = match plane.group(prefix.addr()) {
            Some(_) => "",
            None => "; --group-limit limits those of each prefix that have no bucket",
        };
        warnings.note(format!(
            "many sources of {prefix} are over their limits: `limiter limit set RATE --for {prefix} --aggregate` \
             limits all of them together{grouped}"
        ));
    }
    if spreading.len() > NAMED {
        warnings.note(format!("so are many sources of {} more prefixes", spreading.len() - NAMED));
    }
}

/// Whether the sketch keeps light sources out of the table.
pub(super) fn of_gates(
    warnings: &mut Warnings,
    limits: &Limits,
    gate_of: impl Fn(&Limit) -> u32,
    sketch: &SketchHealth,
) {
    // Whom a limit is for does not matter, and there are far fewer amounts than limits.
    let gates: HashMap<_, _> = limits
        .amounts()
        .map(|(amount, _)| (amount, gate_of(&amount.of(Target::DEFAULT))))
        .collect();
    // Strict limits have no gate, whatever they are.
    let at_once = |amount: &Amount| {
        amount.scope.on_error().is_none() && gates.get(amount).is_some_and(|gate| *gate <= 1)
    };
    let count: usize =
        limits.amounts().filter(|(amount, _)| at_once(amount)).map(|(_, limits)| limits).sum();
    let least = gates.values().copied().chain([MAX_GATE]).min().unwrap_or(MAX_GATE);
    if count > 0 {
        let limits = limits.iter().filter(|limit| at_once(&limit.amount));
        let named: Vec<_> =
            limits.take(NAMED.min(count)).map(|limit| limit.target.short()).collect();
        let more = count - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        warnings.note(format!(
            "every source takes a bucket at once under limits that are too slow, or whose burst is too \
             small, for the sketch's window: {}{more}",
            named.join(", ")
        ));
    }
    if least > 1 && sketch.noise >= f64::from(least) {
        warnings.note(format!(
            "the sketch is saturated (noise {:.1} packets, smallest gate {least}): light sources take \
             buckets too; restart with a smaller --sketch-epsilon or --sketch-window",
            sketch.noise
        ));
    }
}

/// One of the counters beside verdicts.
pub(super) fn internal_of(counters: &Counters, internal: Internal) -> u64 {
    counters.internal[internal as usize]
}
