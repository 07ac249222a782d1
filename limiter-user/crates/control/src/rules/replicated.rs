//! Limits and denials of the cluster: what is set here for all its hosts, and what others have set.
//!
//! What the cluster says is stored like what was set on this host, and marked as the cluster's. What was set
//! for this host alone goes before it, as it goes before the configuration file, until it is removed. All
//! changes of the replica are durable in the transaction of what they change here.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use ipnet::IpNet;

use super::Rules;
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use cluster::limits::{Applied, Item, Now, Replica, Value, WallMs};
use cluster::{ClusterConfig, HostId};
use dataplane::ClusterTerms;
use limiter_common::share::FLOORS;
use model::Share;
use model::lists::{ListChanges, Listing, Lists};
use model::overrides::{Descriptor, Override, OverrideChanges, Overrides};
use model::record::Row;
use model::scope::no_cluster;
use model::{Change, Changes, Limit, Limits, Target, Tier, Unit};
use telemetry::event::By;

/// The replica, if this host is to be in a cluster.
#[derive(Default)]
pub(crate) struct Replicated(Option<Part>);

/// What this host knows of the cluster's limits and denials.
struct Part {
    replica: Replica,
    /// Limits of the cluster that cannot be in force on this host, and why.
    unfit: BTreeMap<Target, String>,
    /// Why what the cluster said last could not be put in force.
    problem: Option<String>,
}

/// Milliseconds since 1970.
pub(crate) fn wall() -> WallMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Whether a limit is one of all hosts together.
pub(crate) fn is_clusters(limit: &Limit) -> bool {
    limit.scope.is_cluster()
}

impl Replicated {
    /// Takes up the replica that is `stored`, if the host is to be in a cluster.
    pub(crate) fn join(&mut self, config: &ClusterConfig, stored: &BTreeMap<String, String>) {
        self.0 = None;
        if !config.is_on() {
            return;
        }
        let kept = stored.iter().map(|(key, row)| (key.as_str(), row.as_str()));
        let replica = Replica::new(kept);
        self.0 = Some(Part { replica, unfit: BTreeMap::new(), problem: None });
    }

    /// Whether this host is to be in a cluster.
    pub(super) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The replica, if the host is in a cluster.
    pub(crate) fn replica(&self) -> Option<&Replica> {
        self.0.as_ref().map(|part| &part.replica)
    }

    /// The same, for its members, its digest and those of others.
    pub(crate) fn replica_mut(&mut self) -> Option<&mut Replica> {
        self.0.as_mut().map(|part| &mut part.replica)
    }

    /// Whether the cluster can have these limits.
    ///
    /// # Errors
    /// The first one that is for the cluster, if this host is in none.
    pub(super) fn check(&self, changes: &Changes) -> Result<(), Failure> {
        if self.is_on() {
            return Ok(());
        }
        let for_cluster = changes.iter().find_map(|change| match change {
            Change::Set(limit) if is_clusters(&limit) => Some(limit.target),
            _ => None,
        });
        for_cluster.map_or(Ok(()), |target| {
            Err(no_cluster(&format!("the limit for {}", target.short())).into())
        })
    }

    /// Notes in the replica what changes of limits mean for the cluster, where `former` is what they replace.
    /// Returns the rows that are to be stored with them.
    ///
    /// # Errors
    /// If the replica has no room; then it is as it was before.
    pub(super) fn rows(&mut self, changes: &Changes, former: &Limits) -> Result<Vec<Row>, Failure> {
        self.set(changes.iter().filter_map(|change| match change {
            Change::Set(limit) if !limit.scope.is_cluster() => None,
            Change::Set(limit) => Some((Item::Limit(limit.target), Some(Value::Limit(limit)))),
            Change::Unset(target) => {
                former.get(&target).filter(is_clusters).map(|_| (Item::Limit(target), None))
            }
        }))
    }

    /// As [`Replicated::rows`], for changes of the lists that are `stored`.
    pub(super) fn list_rows(
        &mut self,
        changes: &ListChanges,
        stored: &Lists,
    ) -> Result<Vec<Row>, Failure> {
        let denied = |net: &IpNet, listing| (Item::Denied(*net), listing);
        self.set(changes.iter().filter_map(|(net, listing)| match (listing, stored.get(net)) {
            (Some(listing), _) if !listing.cluster => None,
            (Some(listing), _) => Some(denied(net, Some(Value::Denied(listing.clone())))),
            // One that has ended does so on all hosts.
            (None, Some(was)) if was.is_over(now_seconds()) => None,
            (None, was) => was.is_some_and(|was| was.cluster).then(|| denied(net, None)),
        }))
    }

    /// As [`Replicated::rows`], for changes of the overrides that are `stored`.
    pub(super) fn override_rows(
        &mut self,
        changes: &OverrideChanges,
        stored: &Overrides,
    ) -> Result<Vec<Row>, Failure> {
        self.set(changes.iter().filter_map(|(descriptor, to)| {
            let item = Item::Override(descriptor.clone());
            match (to, stored.get(descriptor)) {
                (Some(to), _) => to.cluster.then_some((item, Some(Value::Override(*to)))),
                // One that has ended does so on all hosts.
                (None, Some(was)) if was.is_over(now_seconds()) => None,
                (None, was) => was.is_some_and(|was| was.cluster).then_some((item, None)),
            }
        }))
    }

    fn set(
        &mut self,
        items: impl Iterator<Item = (Item, Option<Value>)>,
    ) -> Result<Vec<Row>, Failure> {
        let Some(Part { replica, .. }) = &mut self.0 else { return Ok(Vec::new()) };
        for (item, value) in items {
            let present = replica.get(&item);
            if present == value {
                continue;
            }
            if !replica.set(wall(), item.clone(), value.as_ref()) && value.is_some() {
                replica.undo();
                let message = format!("the cluster has no room for {item}");
                return Err(Failure::new(exit::NEGATIVE, message)
                    .hint("remove limits or denials of the cluster that are not needed any more"));
            }
        }
        Ok(replica.unsaved())
    }

    /// Notes whether what was set in the replica is durable, or undone.
    pub(super) fn settle(&mut self, durable: bool) {
        let Some(Part { replica, .. }) = &mut self.0 else { return };
        if durable { replica.saved() } else { replica.undo() }
    }

    /// Notes whether a limit of the cluster can be in force here.
    fn note_fit(&mut self, target: Target, fit: Result<(), Failure>) -> bool {
        let Some(Part { unfit, .. }) = &mut self.0 else { return fit.is_ok() };
        match fit {
            Ok(()) => {
                unfit.remove(&target);
                true
            }
            Err(failure) => {
                tracing::warn!("a limit of the cluster is not in force here: {failure}");
                unfit.insert(target, failure.to_string());
                false
            }
        }
    }

    /// What the operator should know of limits for the cluster, of those that are in force.
    pub(crate) fn warnings(&self, in_force: &Limits) -> Vec<String> {
        let mut warnings = Vec::new();
        let Some(Part { replica, unfit, problem }) = &self.0 else {
            let alone = in_force.iter().filter(|limit| limit.scope.is_cluster()).count();
            if alone > 0 {
                warnings.push(format!(
                    "{alone} limits are for the cluster, but this daemon is in none: they hold for this host \
                     alone; see [cluster] in `limiter config default`"
                ));
            }
            return warnings;
        };
        if let Some((target, why)) = unfit.first_key_value() {
            warnings.push(format!(
                "{} limits of the cluster are not in force here: {why} ({})",
                unfit.len(),
                target.short()
            ));
        }
        if let Some(problem) = problem {
            warnings.push(format!("what the cluster says cannot be put in force: {problem}"));
        }
        let report = replica.report();
        if report.clock_ahead_ms > WRONG_CLOCK_MS {
            let ahead = report.clock_ahead_ms / 1000;
            warnings.push(format!(
                "changes of the cluster are stamped {ahead} s ahead of this host's clock: that of this host \
                 or of another one is wrong"
            ));
        }
        if let Some((item, why)) = replica.odd() {
            warnings.push(format!(
                "what the cluster says of {item} is not in force here, because this version does not understand \
                 it: {why}"
            ));
        }
        if report.refused.ahead > 0 {
            warnings.push(format!(
                "{} changes of the cluster were not taken, because they are stamped more than a day ahead of \
                 this host's clock",
                report.refused.ahead
            ));
        }
        warnings
    }
}

/// Stores what the replica says and the limits and lists do not: after a daemon that was in no cluster,
/// or a crash. Nothing is in force before [`Rules::enforce`].
///
/// # Errors
/// If it cannot be stored.
pub(crate) fn settle(rules: &mut Rules) -> Result<(), Failure> {
    let Some(replica) = rules.replicated.replica() else { return Ok(()) };
    let items: Vec<_> = replica.iter().collect();
    let Taken { limits, lists, overrides } =
        changes_by_cluster(rules, items.into_iter().map(|(item, value)| (item, Some(value))));
    if !limits.is_empty() {
        rules.store.apply(&limits)?;
    }
    if !lists.is_empty() {
        rules.store.list_then(&lists, |_| ())?;
    }
    if !overrides.is_empty() {
        rules.store.override_with(&overrides, &[])?;
    }
    rules.file.merge(rules.store.lists());
    Ok(())
}

/// Lets sources use `floor` of each limit of the cluster, before limits are in force; all of it if the host is `alone`:
/// it has everything, and its last daemon had delegated nothing. Returns how much that is.
///
/// # Errors
/// If the data plane refuses.
pub(crate) fn begin_with_floor(
    rules: &mut Rules,
    floor: Share,
    alone: bool,
) -> Result<Share, Failure> {
    let alone = alone && rules.plane.has_everything();
    // How many others there are is known when they are heard.
    let (floor, hosts) = if alone { (Share::WHOLE, 1) } else { (floor, 2) };
    rules.plane.set_floor(floor, hosts, is_clusters).map_err(|error| {
        Failure::from(error).context("cannot put the limits of the cluster in force")
    })?;
    Ok(floor)
}

/// The cluster's denial of a source or prefix, which follows on an entry of this host alone that is
/// removed.
pub(super) fn denied_by_cluster(rules: &Rules, net: &IpNet) -> Option<Listing> {
    rules.store.lists().get(net).filter(|listing| !listing.cluster)?;
    match rules.replicated.replica()?.get(&Item::Denied(*net))? {
        Value::Denied(listing) if !listing.is_over(now_seconds()) => {
            Some(Listing { cluster: true, ..listing })
        }
        _ => None,
    }
}

/// The cluster's limit for a descriptor.
pub(super) fn overridden(rules: &Rules, descriptor: &Descriptor) -> Option<Override> {
    match rules.replicated.replica()?.get(&Item::Override(descriptor.clone()))? {
        Value::Override(to) => Some(Override { cluster: true, ..to }),
        _ => None,
    }
}

/// The warning that a limit of this host hides one of the cluster.
pub(super) fn hides_cluster(rules: &Rules, changes: &Changes) -> Option<String> {
    let cluster = rules.layers().cluster?;
    let hidden = changes.iter().find_map(|change| match change {
        Change::Set(limit) if !limit.scope.is_cluster() => cluster.limit_of(&limit.target),
        _ => None,
    })?;
    Some(format!(
        "the cluster has a limit for {}, which this one hides on this host until `limiter limit unset`; \
         to change it on all hosts add --scope cluster",
        hidden.target.short()
    ))
}

/// The warning that sources which conform to a limit of the cluster may lose packets at hosts that have not
/// heard of them.
pub(super) fn cold_sources(rules: &Rules, changes: &Changes) -> Option<String> {
    let ClusterTerms { floor, hosts, frame } = rules.plane.cluster_terms()?;
    let at_once = |tier: &Tier, as_one: bool| {
        let packet = if tier.rate.unit() == Unit::Bytes { f64::from(frame) } else { 1.0 };
        let burst = tier.burst as f64 / packet;
        // What sources share has a packet for none of them.
        let cold = match as_one {
            true => floor * burst,
            false => {
                let home = (FLOORS as f64 * floor).min(1.0);
                1.0 + (floor + home) / 2.0 * (burst - f64::from(hosts)).max(0.0)
            }
        };
        (cold, burst)
    };
    let limits = changes.iter().filter_map(|change| match change {
        Change::Set(limit) if limit.scope.is_cluster() => Some(limit),
        _ => None,
    });
    limits.filter(|_| hosts > 1).find_map(|limit| {
        let tiers = std::iter::once(limit.tier()).chain(limit.also);
        let tiers = tiers.map(|tier| at_once(&tier, limit.target.aggregate));
        let (cold, burst) = tiers.min_by(|(one, _), (other, _)| one.total_cmp(other))?;
        (cold.floor() < burst.floor()).then(|| {
            format!(
                "{}: of {burst:.0} packets at once a host that has seen none lately lets {cold:.0} through; the others \
                 are lost, until it has its share, some tenths of a second later",
                limit.target.short(),
                cold = cold.floor(),
                burst = burst.floor(),
            )
        })
    })
}

/// What the cluster changes in the store of this host.
#[derive(Default)]
struct Taken {
    limits: Changes,
    lists: ListChanges,
    overrides: OverrideChanges,
}

/// What `items` of the cluster change in the store of this host.
fn changes_by_cluster(
    rules: &mut Rules,
    items: impl Iterator<Item = (Item, Option<Value>)>,
) -> Taken {
    let (mut limits, mut lists) = (Vec::new(), ListChanges::new());
    let mut overrides = OverrideChanges::new();
    for (item, value) in items {
        match (item, value) {
            (Item::Limit(target), value) => {
                let stored = rules.store.limits().get(&target);
                rules.replicated.note_fit(target, Ok(()));
                let wanted = match value {
                    Some(Value::Limit(limit)) => Some(limit),
                    _ => None,
                };
                if stored.is_some_and(|limit| !limit.scope.is_cluster()) || stored == wanted {
                    continue;
                }
                let change = wanted.map_or(Change::Unset(target), Change::Set);
                let fit = fits(rules, change, &limits);
                if rules.replicated.note_fit(target, fit) {
                    limits.push(change);
                }
            }
            (Item::Denied(net), value) => {
                let stored = rules.store.lists().get(&net);
                let wanted = match value {
                    Some(Value::Denied(listing)) => Some(Listing { cluster: true, ..listing }),
                    _ => None,
                };
                let over = wanted.as_ref().is_some_and(|listing| listing.is_over(now_seconds()));
                let own = stored.is_some_and(|listing| !listing.cluster);
                let managed = rules.management.check(&net.into()).is_err();
                let (ipv4, ipv6) = rules.plane.prefixes();
                let bits = if net.addr().is_ipv4() { ipv4 } else { ipv6 };
                let finer = net.prefix_len() > bits;
                if own || over || managed || finer || stored == wanted.as_ref() {
                    continue;
                }
                lists.push((net, wanted));
            }
            (Item::Override(descriptor), value) => {
                let stored = rules.store.overrides().get(&descriptor);
                let wanted = match value {
                    Some(Value::Override(to)) => Some(Override { cluster: true, ..to }),
                    _ => None,
                };
                let over = wanted.is_some_and(|wanted| wanted.is_over(now_seconds()));
                let own = stored.is_some_and(|stored| !stored.cluster);
                if !(own || over || stored == wanted.as_ref()) {
                    overrides.push((descriptor, wanted));
                }
            }
        }
    }
    Taken { limits: limits.into_iter().collect(), lists, overrides }
}

/// Whether a change that others have made can be made here, after those `before` it.
fn fits(rules: &Rules, change: Change, before: &[Change]) -> Result<(), Failure> {
    let Change::Set(limit) = change else { return Ok(()) };
    let (ipv4, ipv6) = rules.plane.prefixes();
    limit.check_prefix(ipv4, ipv6)?;
    rules.management.check(&limit.target)?;
    if limit.target.class.is_any() {
        return Ok(());
    }
    let changes = before.iter().copied().chain([change]).collect();
    Ok(rules.layers().check_classes(&changes)?)
}

/// Takes a packet of the replica on another host, which is called `name`.
///
/// # Errors
/// If what it says cannot be stored or put in force; then nothing has changed, and it comes again.
pub(crate) fn receive(
    rules: &mut Rules,
    now: Now,
    from: HostId,
    name: &str,
    bytes: &[u8],
) -> Result<(), Failure> {
    // It comes again when that is decided: the replicas differ until then.
    if rules.unconfirmed.nothing().is_err() {
        return Ok(());
    }
    let Some(replica) = rules.replicated.replica_mut() else { return Ok(()) };
    let applied = replica
        .receive(now, from, bytes)
        .map_err(|error| Failure::new(exit::NEGATIVE, format!("from {name}: {error}")))?;
    let rows = replica.unsaved();
    if rows.is_empty() {
        return Ok(());
    }
    let items = applied.into_iter().map(|Applied { item, value, .. }| (item, value));
    let told = changes_by_cluster(rules, items);
    let done = take_from_cluster(rules, &told, rows);
    let problem = done.as_ref().err().map(ToString::to_string);
    if let Some(part) = &mut rules.replicated.0 {
        part.problem = problem;
    }
    if done.is_ok() {
        tell_taken(rules, name, &told);
    }
    done
}

fn take_from_cluster(rules: &mut Rules, told: &Taken, rows: Vec<Row>) -> Result<(), Failure> {
    let Taken { limits, lists, overrides } = told;
    // These first: should the daemon end in between, the start goes on from the older replica.
    let mut changed = Ok(());
    if !lists.is_empty() {
        changed = rules.change_lists_with(lists, &[]);
    }
    if changed.is_ok() && !overrides.is_empty() {
        changed = rules.change_overrides_with(overrides, &[]);
    }
    if changed.is_err() {
        rules.replicated.settle(false);
        return changed;
    }
    rules.change_with(limits, rows)
}

fn tell_taken(rules: &mut Rules, name: &str, told: &Taken) {
    let Taken { limits, lists, overrides } = told;
    let by = rules.events.by.replace(By::cluster(name));
    for change in limits.iter().take(NAMED) {
        let what = match change {
            Change::Set(limit) => {
                let summary = rules.report(&limit).summary();
                format!("limit for {}: {summary}", limit.target.short())
            }
            Change::Unset(target) => format!("limit for {} removed", target.short()),
        };
        rules.events.tell_policy(what, &ChangeOptions::default(), None);
    }
    if limits.len() > NAMED {
        let more = limits.len() - NAMED;
        rules.events.tell_policy(
            format!("{more} more limits changed"),
            &ChangeOptions::default(),
            None,
        );
    }
    let mut tell = |count: usize, what: &str| {
        if count > 0 {
            rules.events.tell_policy(format!("{count} {what}"), &ChangeOptions::default(), None);
        }
    };
    tell(lists.len(), "entries of the deny list changed");
    tell(overrides.len(), "overrides changed");
    rules.events.by = by;
}

/// What the replica has to tell others now.
///
/// # Errors
/// If what must be durable before cannot be stored; then nothing is to be told.
pub(crate) fn packets(rules: &mut Rules, now: Now) -> Result<Vec<(HostId, Vec<u8>)>, Failure> {
    let Some(replica) = rules.replicated.replica_mut() else { return Ok(Vec::new()) };
    let packets = replica.poll(now);
    let rows = replica.unsaved();
    if !rows.is_empty() {
        rules.change_with(&Changes::default(), rows)?;
    }
    Ok(packets)
}

/// Changes from the cluster that are named before they are only counted.
const NAMED: usize = 8;

/// A clock that is wrong by so much is told, ms.
const WRONG_CLOCK_MS: u64 = 60_000;

/// Seconds since 1970.
fn now_seconds() -> u32 {
    model::lists::now()
}
