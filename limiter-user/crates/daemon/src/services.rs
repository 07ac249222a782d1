//! The cluster and the dashboard: they start when the limits are in force. What keeps one of them from starting
//! never ends the daemon; it is told, and tried again.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::OptionFuture;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::http::web::{AbortOnDrop, Web};
use api::ServiceReport;
use api::error::{Failure, exit};
use cluster::ClusterConfig;
use control::cluster::{Prepared, Running};
use control::listen::{how_to_find, is_local};
use control::{Host, RETRY_INTERVAL, log_failure};
use model::Share;
use settings::DaemonConfig;

/// A service that is to run: `P` is what is prepared for it, `R` what runs.
struct Service<P, R> {
    /// As `status` shows it.
    report: ServiceReport,
    /// Reads files and binds, which may block.
    prepare: Arc<dyn Fn() -> Result<P, Failure> + Send + Sync>,
    /// Begins to serve, in the runtime that it is called in.
    start: fn(P, &Host) -> Result<R, Failure>,
    since: Instant,
    prepared: Option<Result<P, Failure>>,
    running: Option<R>,
}

impl<P: Send + 'static, R> Service<P, R> {
    fn new(
        name: &str,
        address: SocketAddr,
        prepare: impl Fn() -> Result<P, Failure> + Send + Sync + 'static,
        start: fn(P, &Host) -> Result<R, Failure>,
    ) -> Self {
        Self {
            report: ServiceReport::new(name, address),
            start,
            since: Instant::now(),
            // At once: files and ports may need the privileges that are given up next.
            prepared: Some(prepare()),
            prepare: Arc::new(prepare),
            running: None,
        }
    }

    /// Starts what is prepared, and looks whether it can be reached.
    async fn begin(&mut self, host: &Host) {
        // A socket can listen on an address that no interface has yet: such a service runs, but nobody reaches it.
        let started = self.prepared.take().map(|prepared| {
            let running = prepared.and_then(|prepared| (self.start)(prepared, host));
            running.map(|running| self.running = Some(running))
        });
        let problem = match started {
            Some(Err(failure)) => Some(failure),
            _ if is_local(self.report.address) => None,
            _ => {
                let ip = self.report.address.ip();
                let message = format!("no interface of this host has {ip}");
                Some(Failure::new(exit::NEGATIVE, message).hint(how_to_find(ip)))
            }
        };
        self.tell(problem, host).await;
    }

    /// Tells what keeps it from being up, if that is news: every few seconds it would fill the log. Or that it is up.
    async fn tell(&mut self, problem: Option<Failure>, host: &Host) {
        let before = self.report.problem.clone();
        let report = &mut self.report;
        report.up = problem.is_none();
        match problem {
            Some(failure) if before.as_ref() == Some(&failure.message) => return,
            Some(failure) => {
                let hint = failure.hint.as_deref().unwrap_or_default();
                tracing::warn!(
                    "the {} is not up: {failure} ({hint}); trying again every {} s",
                    report.name,
                    RETRY_INTERVAL.as_secs()
                );
                (report.problem, report.hint) = (Some(failure.message), failure.hint);
            }
            None => {
                report.hint = None;
                // The problem stays: it is why the service is late.
                report.late_seconds = before.is_some().then(|| self.since.elapsed().as_secs());
                if let Some(seconds) = report.late_seconds {
                    tracing::info!("the {} is up, {seconds} s after the daemon", report.name);
                }
            }
        }
        let report = self.report.clone();
        let noted = host.with(|core| {
            core.services.note(report);
            Ok(())
        });
        log_failure(noted.await);
    }

    /// Tries again until it is up.
    async fn keep_starting(&mut self, host: &Host) {
        while !self.report.up {
            sleep(RETRY_INTERVAL).await;
            // One that runs only waits for its address.
            if self.running.is_none() {
                let prepare = Arc::clone(&self.prepare);
                // Elsewhere: a disk that hangs must not keep the API from answering.
                let prepared = spawn_blocking(move || prepare()).await;
                self.prepared = Some(prepared.unwrap_or_else(|error| {
                    Err(Failure::new(exit::NEGATIVE, format!("cannot be prepared: {error}")))
                }));
            }
            self.begin(host).await;
        }
    }
}

/// Those that are to run.
pub(crate) struct Services {
    cluster: Option<Service<Prepared, Running>>,
    web: Option<Service<Web, AbortOnDrop>>,
}

impl Services {
    /// Prepares those that `config` asks for; `floor` is what sources may use of the cluster's limits meanwhile.
    pub(crate) fn prepare(config: &DaemonConfig, floor: Share, host: &Host) -> Self {
        let cluster = config.cluster.listen.map(|listen| {
            let (directory, api) = (config.state_dir.clone(), config.socket.clone());
            let (config, host) = (config.cluster.clone(), host.clone());
            let prepare =
                move || prepare_cluster(&config, listen, (&directory, &api), floor, &host);
            Service::new("cluster", listen, prepare, start_cluster)
        });
        let web = config.web.listen.map(|listen| {
            let config = config.web.clone();
            Service::new("dashboard", listen, move || Web::bind(&config, listen), Web::spawn)
        });
        Self { cluster, web }
    }

    /// Starts what is prepared, in the runtime that it is called in.
    pub(crate) async fn begin(&mut self, host: &Host) {
        if let Some(web) = &mut self.web {
            web.begin(host).await;
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.begin(host).await;
        }
    }

    /// Tries again what could not start, and never returns: the daemon goes on when all is up.
    pub(crate) async fn keep_starting(&mut self, host: &Host) -> Infallible {
        let web = self.web.as_mut().map(|web| web.keep_starting(host));
        let cluster = self.cluster.as_mut().map(|cluster| cluster.keep_starting(host));
        tokio::join!(OptionFuture::from(web), OptionFuture::from(cluster));
        pending().await
    }

    pub(crate) async fn end(self) {
        // Pages that are open would keep the daemon waiting.
        drop(self.web);
        if let Some(cluster) = self.cluster.and_then(|cluster| cluster.running) {
            cluster.end().await;
        }
    }
}

fn start_cluster(prepared: Prepared, host: &Host) -> Result<Running, Failure> {
    let running = control::cluster::start(prepared, host)?;
    host.set_cluster(running.cluster().clone());
    Ok(running)
}

fn prepare_cluster(
    config: &ClusterConfig,
    listen: SocketAddr,
    paths: (&Path, &Path),
    floor: Share,
    host: &Host,
) -> Result<Prepared, Failure> {
    // A reload may have changed it since the daemon started.
    let config = host.with_now(|core| Ok(core.live_cluster(config)))?;
    let prefixes = host.with_now(|core| Ok(core.rules.prefixes()))?;
    Prepared::new(&config, listen, paths, prefixes).map_err(|failure| {
        let message = format!(
            "{failure}; until it is, sources may use {:.2} % of each limit of the cluster here",
            100.0 * floor.part()
        );
        Failure { message, ..failure }
    })
}
