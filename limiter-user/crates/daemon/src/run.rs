//! One daemon: what it owns (`control`), served on a socket.
//!
//! A start reads the configuration, takes its own socket, puts the limits in force and attaches. Only then are the
//! cluster and the dashboard started (`services`), and what keeps them from it ends nothing.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::services::Services;
use crate::socket::Socket;
use crate::{http, kernel_log, notify, privileges};
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use control::cluster::key_file;
use control::rules::reload;
use control::{Access, Core, Host, Started, log_failure};
use dataplane::LinkEvents;
use model::instance::address;
use settings::{Arguments, DaemonConfig, Settings};

/// How long requests may take to end when the daemon does.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the files of `settings` can be used that cluster and dashboard need. A daemon starts without them, and
/// tries again.
///
/// # Errors
/// What is wrong with the first one that cannot.
pub fn check_files(settings: &Settings) -> Result<(), Failure> {
    let cluster = settings.cluster();
    if cluster.is_on() {
        key_file::read(&cluster.key_file)
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
    let access = Access::new(config.admin_group.as_deref())?;
    let socket = Socket::bind(&config.socket, &config.socket_group)?;
    let Started { host, config, floor, links, kernel_log } =
        control::start(given, settings, &access)?;
    // Their files and ports may need what is given up next.
    let services = Services::prepare(&config, floor, &host);
    // Before there are other threads: each has privileges of its own.
    privileges::give_up()?;
    // One thread: what may block is done in others, which inherit what is left of the privileges.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::PRIVILEGE, format!("cannot start: {error}")))?
        .block_on(async {
            kernel_log::forward(kernel_log);
            serve(&config, &socket, access, host, services, links).await
        })
}

/// Serves the API until a signal comes.
async fn serve(
    config: &DaemonConfig,
    socket: &Socket,
    access: Access,
    host: Host,
    mut services: Services,
    links: Option<LinkEvents>,
) -> Result<(), Failure> {
    let io = |error: std::io::Error| Failure::new(exit::NEGATIVE, format!("cannot serve: {error}"));
    let listener = tokio::net::UnixListener::from_std(socket.listener()?).map_err(io)?;
    // Before anybody hears that the daemon is ready: until then a signal ends the process without a word.
    let mut terminate = signal(SignalKind::terminate()).map_err(io)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io)?;
    let hangup = signal(SignalKind::hangup()).map_err(io)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let routes = http::guarded(host.clone(), access);
    let service = routes.into_make_service_with_connect_info::<http::Peer>();
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        // An error means that the sender is gone, which is as good a reason to stop.
        let _ = stopped.await;
    });
    let mut server = tokio::spawn(server.into_future());
    host.start_leases()?;
    services.begin(&host).await;
    tracing::info!("ready: serving {}", config.socket.display());
    if host.with(|core| Ok(core.attached())).await?.is_empty() {
        let then = "attach to one with `limiter attach IFACE`, or run with --interface IFACE";
        tracing::warn!(
            "attached to no interface, so nothing is limited; {}",
            address(then, config.instance.as_ref())
        );
    }
    // Units that are ordered after this one may rely on limits, socket and signals from here on.
    notify::ready();
    host.with(Core::tell_started).await?;
    let outcome = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        failure = control::go_on(&host, links) => Err(failure),
        () = reload_on(hangup, &host) => Ok(()),
        never = services.keep_starting(&host) => match never {},
        ended = &mut server => {
            Err(Failure::new(exit::NEGATIVE, format!("the API has ended by itself: {ended:?}")))
        }
    };
    tracing::info!("stopping");
    notify::stopping();
    services.end().await;
    // Streams of events end with this one; else each would hold up the end for as long as requests may take.
    log_failure(host.with(Core::tell_stopping).await);
    // It takes no further requests, and those that are at work may end: an answer that a client waits for is not lost.
    if outcome.is_ok()
        && stop.send(()).is_ok()
        && timeout(SHUTDOWN_TIMEOUT, &mut server).await.is_err()
    {
        tracing::warn!("requests were cut off after {SHUTDOWN_TIMEOUT:?}");
        server.abort();
    }
    outcome?;
    control::end(&host, config.on_exit).await
}

/// Reads the configuration again whenever `hangup` comes.
async fn reload_on(mut hangup: Signal, host: &Host) {
    while hangup.recv().await.is_some() {
        notify::reloading();
        if let Err(failure) =
            host.with(|core| reload::reload(&mut core.rules, &ChangeOptions::default())).await
        {
            let hint = failure.hint.as_deref().unwrap_or_default();
            tracing::error!("the configuration was not read again: {failure} ({hint})");
        }
        // After a failure, too: systemd waits for it, and the former configuration is still in
        // force.
        notify::ready();
    }
}
