//! How the owner of data plane and store begins, goes on and ends.
//!
//! Limits come first. A start takes the store, puts the limits in force and attaches; if one of these fails it ends,
//! and what was there before goes on. An interface that is not there yet ends nothing (`interfaces`): a host that
//! boots is protected before its network is up.

mod history;
mod interfaces;

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::access::{Access, Admins};
use super::cluster::{self, floor_of};
use super::core::Core;
use super::handle::CoreHandle;
use super::host::Host;
use super::interfaces::Interfaces;
use super::rules::{at_start, confirm, reload, replicated};
use api::error::Failure;
use dataplane::{Dataplane, KernelLog, LinkEvents};
use model::Share;
use settings::{Arguments, DaemonConfig, OnExit, Settings};
use state::Store;

/// What has started.
pub struct Started {
    /// The owner of data plane and store.
    pub host: Host,
    /// What is in effect: not what the file says, if that was not confirmed.
    pub config: DaemonConfig,
    /// What sources may use of the cluster's limits before the cluster runs.
    pub floor: Share,
    /// What happens to interfaces, where the kernel tells.
    pub links: Option<LinkEvents>,
    /// What the kernel program writes, if it does.
    pub kernel_log: Option<KernelLog>,
}

/// Opens store and data plane as `settings` say, which came from `given`; puts the limits in force and attaches.
/// From then on `access` lets those change something who may.
///
/// # Errors
/// If it cannot start. What was in force before stays so.
pub fn start(given: Arguments, settings: Settings, access: &Access) -> Result<Started, Failure> {
    let asked = settings.daemon();
    let mut store = Store::open(&asked.state_dir)?;
    // From here on, what an unconfirmed file says does not count.
    let from = at_start(&given, settings, &mut store)?;
    let (socket, state_dir) = (asked.socket, asked.state_dir);
    let mut config = DaemonConfig { socket, state_dir, ..from.settings.daemon() };
    let cluster = cluster::Before::read(&config.cluster, &config.state_dir);
    let floor = cluster.as_ref().map(|cluster| cluster.floor);
    config.options.hash_secret = cluster.and_then(|cluster| cluster.hash_secret);
    access.set(Admins::of(config.admin_group.as_deref())?);
    let configure = |core: &mut Core| {
        reload::start_from(&mut core.rules, given, from);
        core.rules.access = Some(access.clone());
    };
    // What comes from now on is noticed, even before it is looked at.
    let links = LinkEvents::new()
        .inspect_err(|error| tracing::warn!("cannot notice new interfaces at once: {error}"));
    let (core, floor, kernel_log) = open(&config, store, floor, configure)?;
    Ok(Started { host: Host::new(core), config, floor, links: links.ok(), kernel_log })
}

/// Opens the data plane, puts the limits in force and attaches; in a cluster `floor` is what sources may use
/// of its limits, unless it has all of them. Also returns what they may use, and what the kernel program writes, if it
/// does.
fn open(
    config: &DaemonConfig,
    store: Store,
    floor: Option<Share>,
    configure: impl FnOnce(&mut Core),
) -> Result<(Core, Share, Option<KernelLog>), Failure> {
    for limit in store.limits().iter() {
        limit
            .check_prefix(config.options.ipv4_prefix, config.options.ipv6_prefix)
            .map_err(|error| Failure::from(error).context("a stored limit does not fit"))?;
    }
    let mut plane = Dataplane::open(&config.options)?;
    let took_over = plane.took_over();
    let kernel_log = plane.take_log();
    let mut core = Core::new(Box::new(plane), store, config.options.on_full);
    core.instance.clone_from(&config.instance);
    configure(&mut core);
    let rules = &mut core.rules;
    rules.protect(&config.management);
    confirm::resume(rules)?;
    replicated::settle(rules)?;
    let floor = match floor {
        Some(floor) => replicated::begin_with_floor(rules, floor, floor == floor_of(Share::WHOLE))?,
        None => Share::NONE,
    };
    // Those that are addresses; names are found later, and members tell of each other.
    let seeds = config.cluster.seeds.iter().filter_map(|seed| seed.host().parse().ok());
    log_failure(rules.set_peers(&seeds.collect()));
    core.open_history(took_over);
    let state_dir = core.rules.state_dir().to_owned();
    core.rules.events.open_changes(&state_dir);
    bring_up(&mut core, config, took_over)?;
    Ok((core, floor, kernel_log))
}

/// Puts the limits in force and attaches; leaves nothing of its own where nothing is protected by it.
pub(crate) fn bring_up(
    core: &mut Core,
    config: &DaemonConfig,
    took_over: bool,
) -> Result<(), Failure> {
    // Limits first: an interface is protected from its first packet on.
    let enforced = core.rules.enforce();
    // Now it runs where others were to be replaced, if all went well.
    if took_over && enforced.is_ok() {
        let before = core.attached();
        let on = if before.is_empty() { "no interface".into() } else { before.join(", ") };
        tracing::info!("took over the data plane on {on}");
    }
    core.interfaces = Interfaces::new(&config.interfaces, config.mode, config.replace);
    let brought_up = enforced.and_then(|()| core.interfaces.attach_at_start(&mut core.rules));
    if brought_up.is_err() && !took_over {
        log_failure(core.detach_all());
    }
    brought_up
}

/// Logs what has failed and ends nothing.
pub fn log_failure(result: Result<(), Failure>) {
    if let Err(failure) = result {
        tracing::error!("{failure}");
    }
}

/// Does what is due as time goes by and as interfaces come, until that fails.
pub async fn go_on(shared: &CoreHandle, links: Option<LinkEvents>) -> Failure {
    tokio::select! {
        failure = tick(shared) => failure,
        failure = revert_overdue(shared) => failure,
        failure = history::keep(shared) => failure,
        failure = interfaces::watch(links, shared) => failure,
    }
}

/// Reverts changes when they are due, until that is no longer possible.
async fn revert_overdue(shared: &CoreHandle) -> Failure {
    let wake = match shared.with(|core| Ok(core.rules.unconfirmed.wake())).await {
        Ok(wake) => wake,
        Err(failure) => return failure,
    };
    loop {
        match shared.with(|core| Ok(confirm::revert_overdue(&mut core.rules))).await {
            Err(failure) => return failure,
            // Either is a reason to look again.
            Ok(Some(wait)) => drop(timeout(wait, wake.notified()).await),
            Ok(None) => wake.notified().await,
        }
    }
}

/// Does what is due every second, until that fails.
async fn tick(shared: &CoreHandle) -> Failure {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        seconds.tick().await;
        let ticked = shared.with(|core| {
            core.tick();
            Ok(())
        });
        if let Err(failure) = ticked.await {
            return failure;
        }
    }
}

/// Leaves what `on_exit` says, when a daemon ends in order.
///
/// # Errors
/// If the state is in doubt, or what was to be detached cannot be.
pub async fn end(shared: &CoreHandle, on_exit: OnExit) -> Result<(), Failure> {
    log_failure(shared.with(|core| confirm::revert_at_end(&mut core.rules)).await);
    log_failure(history::keep_at_end(shared).await);
    match on_exit {
        OnExit::Keep => match &shared.with(|core| Ok(core.attached())).await?[..] {
            [] => tracing::info!("stopped; nothing was attached, so nothing is limited"),
            on => tracing::info!("stopped; the limits stay in force on {}", on.join(", ")),
        },
        OnExit::Detach => {
            shared.with(Core::detach_all).await?;
            tracing::info!("stopped; nothing is limited any more");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::rules::limits;
    use api::requests::ChangeOptions;
    use model::{Limit, Target};

    #[tokio::test]
    async fn the_watch_reverts_in_time() {
        let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
        let limit = Limit::new(Target::DEFAULT, "5pps".parse().unwrap(), None).unwrap();
        let period = Some(Duration::from_secs(1));
        let how = ChangeOptions { confirm: period, ..ChangeOptions::default() };
        let shared = CoreHandle::new(fake.core(&directory));
        let watching = tokio::spawn({
            let shared = shared.clone();
            async move { revert_overdue(&shared).await }
        });
        shared.with(move |core| limits::set(&mut core.rules, &limit, &how)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(fake.state().limits.len(), 1);
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert!(fake.state().limits.is_empty());
        watching.abort();
    }
}
