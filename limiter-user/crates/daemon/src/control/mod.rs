//! The daemon: one owner of data plane and store, served on a socket.
//!
//! Limits come first. A start reads the configuration, takes its own socket and the store, puts the limits in force
//! and attaches; if one of these fails it ends, and what was there before goes on. Only then are the cluster and the
//! dashboard started (`services`), and what keeps them from it ends nothing, nor does an interface that is not there
//! yet (`interfaces`): a host that boots is protected before its network is up.

mod bans;
mod capture;
mod change;
pub mod cluster;
mod confirm;
mod core;
mod events;
mod file_limits;
mod file_lists;
pub mod groups;
mod history;
mod interfaces;
mod kept_changes;
mod kernel_log;
mod lists;
mod live;
mod notify;
mod overview;
mod plane;
mod ports;
mod privileges;
mod refused;
mod replicated;
mod scrape;
mod services;
mod shared;
mod socket;
mod suggest;
mod top;
mod trials;
mod views;
mod warnings;

use api::requests::ChangeOptions;
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use self::interfaces::Wanted;
use self::services::Services;

pub use self::core::{Core, no_such_limit};
pub use confirm::check_period;
pub use overview::Watching;
pub use plane::{Buckets, Links, Plane, Policies, Samples, Shares};
pub use ports::ports;
pub use shared::{Actor, Shared, acting};
pub use socket::{Socket, SocketGuard};
pub use suggest::{Question, suggest};
pub use top::{RATE_INTERVAL, Scan};

use crate::http;
use ::cluster::ClusterConfig;
use api::error::{Failure, exit};
use dataplane::{Dataplane, KernelLog, LinkEvents, Options};
use model::Share;
use model::instance::{Instance, address};
use model::interface::Mode;
use settings::web::WebConfig;
use settings::{Arguments, DaemonConfig, OnExit, Settings};
use state::Store;

/// How long requests may take to end when the daemon does.
const GRACE: Duration = Duration::from_secs(5);

/// Whether the files of `settings` can be used that cluster and dashboard need. A daemon starts without them, and
/// tries again.
///
/// # Errors
/// What is wrong with the first one that cannot.
pub fn check_files(settings: &Settings) -> Result<(), Failure> {
    let cluster = settings.cluster();
    if cluster.is_on() {
        cluster::key_file::read(&cluster.key_file)
            .map_err(|failure| settings.blame("cluster_key_file", failure))?;
    }
    http::web::check_files(&settings.web())
}

/// Runs a daemon with `settings`, which came from `given`, until SIGTERM or SIGINT; reads the
/// configuration again on SIGHUP.
///
/// # Errors
/// If it cannot start, or an internal error leaves its state in doubt. The data plane works on.
pub fn run(given: Arguments, settings: Settings) -> Result<(), Failure> {
    let config = settings.daemon();
    config.options.shape()?;
    let access = http::Access::new(config.admin_group.as_deref())?;
    let socket = Socket::bind(&config.socket, &config.socket_group)?;
    let store = Store::open(&config.state_dir)?;
    // From here on, what an unconfirmed file says does not count.
    let from = refused::at_start(&given, settings, store.path())?;
    let (socket_path, state_dir) = (config.socket, config.state_dir);
    let mut config = DaemonConfig { socket: socket_path, state_dir, ..from.settings.daemon() };
    let cluster = cluster::Before::read(&config.cluster, &config.state_dir);
    let floor = cluster.as_ref().map(|cluster| cluster.floor);
    config.options.hash_secret = cluster.and_then(|cluster| cluster.hash_secret);
    let config = &config;
    access.set(http::Admins::of(config.admin_group.as_deref())?);
    let configure = |core: &mut Core| {
        core.start_from(given, from);
        core.access = Some(access.clone());
    };
    // What comes from now on is noticed, even before it is looked at.
    let links = LinkEvents::new()
        .inspect_err(|error| tracing::warn!("cannot notice new interfaces at once: {error}"));
    let (core, kernel_log) = start(config, store, floor, configure)?;
    let shared = Shared::new(core);
    // Their files and ports may need what is given up next.
    let services = Services::prepare(config, floor.unwrap_or(Share::NONE), &shared);
    // Before there are other threads: each has privileges of its own.
    privileges::give_up()?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::PRIVILEGE, format!("cannot start: {error}")))?
        .block_on(async {
            kernel_log::forward(kernel_log);
            serve(config, &socket, access, shared, services, links.ok()).await
        })
}

/// Opens the data plane, puts the limits in force and attaches; in a cluster `floor` is what sources may use
/// of its limits. Also returns what the kernel program writes, if it does.
fn start(
    config: &DaemonConfig,
    store: Store,
    floor: Option<Share>,
    configure: impl FnOnce(&mut Core),
) -> Result<(Core, Option<KernelLog>), Failure> {
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
    core.protect(&config.management);
    core.resume_unconfirmed()?;
    core.settle_cluster()?;
    floor.map_or(Ok(()), |floor| core.begin_with_floor(floor))?;
    // Those that are addresses; names are found later, and members tell of each other.
    let seeds = config.cluster.seeds.iter().filter_map(|seed| seed.host().parse().ok());
    log_failure(core.set_peers(&seeds.collect()));
    core.open_history(took_over);
    core.open_changes();
    bring_up(&mut core, config, took_over)?;
    Ok((core, kernel_log))
}

/// Puts the limits in force and attaches; leaves nothing of its own where nothing is protected by it.
fn bring_up(core: &mut Core, config: &DaemonConfig, took_over: bool) -> Result<(), Failure> {
    // Limits first: an interface is protected from its first packet on.
    let enforced = core.enforce();
    // Now it runs where others were to be replaced, if all went well.
    if took_over && enforced.is_ok() {
        let before = core.attached();
        let on = if before.is_empty() { "no interface".into() } else { before.join(", ") };
        tracing::info!("took over the data plane on {on}");
    }
    let wanted = Wanted::new(&config.interfaces, config.mode, config.replace);
    let brought_up = enforced.and_then(|()| core.attach_at_start(wanted));
    if brought_up.is_err() && !took_over {
        log_failure(core.detach_all());
    }
    brought_up
}

fn log_failure(result: Result<(), Failure>) {
    if let Err(failure) = result {
        tracing::error!("{failure}");
    }
}

/// Serves the API until a signal comes.
async fn serve(
    config: &DaemonConfig,
    socket: &Socket,
    access: http::Access,
    shared: Shared,
    mut services: Services,
    links: Option<LinkEvents>,
) -> Result<(), Failure> {
    let io = |error: std::io::Error| Failure::new(exit::NEGATIVE, format!("cannot serve: {error}"));
    let listener = tokio::net::UnixListener::from_std(socket.listener()?).map_err(io)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(io)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io)?;
    let hangup = signal(SignalKind::hangup()).map_err(io)?;
    let (stop, mut stopped) = watch::channel(false);
    let routes = http::guarded(shared.clone(), access);
    let service = routes.into_make_service_with_connect_info::<http::Peer>();
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        // An error means that the sender is gone, which is as good a reason to stop.
        let _ = stopped.wait_for(|stop| *stop).await;
    });
    let mut server = tokio::spawn(server.into_future());
    services.begin(&shared);
    tracing::info!("ready: serving {}", config.socket.display());
    if shared.with(|core| Ok(core.attached())).await?.is_empty() {
        let then = "attach to one with `limiter attach IFACE`, or run with --interface IFACE";
        tracing::warn!(
            "attached to no interface, so nothing is limited; {}",
            address(then, config.instance.as_ref())
        );
    }
    notify::ready();
    shared.with(Core::tell_started).await?;
    let outcome = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        failure = tick(&shared) => Err(failure),
        () = reload_on(hangup, &shared) => Ok(()),
        failure = confirm::watch(&shared) => Err(failure),
        failure = history::keep(&shared) => Err(failure),
        failure = interfaces::watch(links, &config.interfaces, &shared) => Err(failure),
        never = services.keep_starting(&shared) => match never {},
        ended = &mut server => {
            Err(Failure::new(exit::NEGATIVE, format!("the API has ended by itself: {ended:?}")))
        }
    };
    tracing::info!("stopping");
    notify::stopping();
    services.end().await;
    // Whoever streams events does not hold up the end.
    log_failure(shared.with(Core::tell_stopping).await);
    if outcome.is_ok() && stop.send(true).is_ok() && timeout(GRACE, &mut server).await.is_err() {
        tracing::warn!("requests were cut off after {GRACE:?}");
        server.abort();
    }
    outcome?;
    log_failure(shared.with(Core::revert_at_end).await);
    log_failure(history::keep_at_end(&shared).await);
    match config.on_exit {
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

/// Reads the configuration again whenever `hangup` comes.
async fn reload_on(mut hangup: Signal, shared: &Shared) {
    while hangup.recv().await.is_some() {
        notify::reloading();
        if let Err(failure) = shared.with(|core| core.reload(&ChangeOptions::default())).await {
            let hint = failure.hint.as_deref().unwrap_or_default();
            tracing::error!("the configuration was not read again: {failure} ({hint})");
        }
        notify::ready();
    }
}

/// Does what is due every second, until that fails.
async fn tick(shared: &Shared) -> Failure {
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

#[cfg(any(test, feature = "fake"))]
#[allow(missing_docs, clippy::unwrap_used, reason = "tests alone use it")]
pub mod fake;
#[cfg(test)]
mod reload_tests;
#[cfg(test)]
mod replicated_tests;
#[cfg(test)]
mod tests;
