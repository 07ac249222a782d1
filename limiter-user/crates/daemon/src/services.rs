//! The cluster and the dashboard: they start when the limits are in force. What keeps one of them from starting
//! never ends the daemon; it is told, and tried again.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::http::web::{Serving, Web};
use api::ServiceReport;
use api::error::{Failure, exit};
use cluster::ClusterConfig;
use control::cluster::{Prepared, Running};
use control::listen::{how_to_find, is_local};
use control::{RETRY_INTERVAL, Shared, log_failure};
use model::Share;
use settings::DaemonConfig;
use settings::web::WebConfig;

/// How a service is started with a configuration of type `C`: `P` is what is prepared for it, `R` what runs.
struct Service<C, P, R> {
    /// As `status` shows it.
    report: ServiceReport,
    address: SocketAddr,
    config: C,
    /// Reads files and binds, which may block.
    prepare: fn(&C, &Shared) -> Result<P, Failure>,
    /// Begins to serve, in the runtime that it is called in.
    start: fn(P, &Shared) -> Result<R, Failure>,
    since: Instant,
    prepared: Option<Result<P, Failure>>,
    running: Option<R>,
}

impl<C: Clone + Send + 'static, P: Send + 'static, R> Service<C, P, R> {
    fn new(
        (name, address): (&str, SocketAddr),
        config: C,
        prepare: fn(&C, &Shared) -> Result<P, Failure>,
        start: fn(P, &Shared) -> Result<R, Failure>,
        shared: &Shared,
    ) -> Self {
        let (report, since) = (ServiceReport::new(name, address), Instant::now());
        let prepared = Some(prepare(&config, shared));
        Self { report, address, config, prepare, start, since, prepared, running: None }
    }

    /// Starts what is prepared, and looks whether it can be reached.
    fn begin(&mut self, shared: &Shared) {
        let started = self.prepared.take().map(|prepared| {
            let running = prepared.and_then(|prepared| (self.start)(prepared, shared));
            running.map(|running| self.running = Some(running))
        });
        let problem = match started {
            Some(Err(failure)) => Some(failure),
            _ if is_local(self.address) => None,
            _ => {
                let ip = self.address.ip();
                let message = format!("no interface of this host has {ip}");
                Some(Failure::new(exit::NEGATIVE, message).hint(how_to_find(ip)))
            }
        };
        self.tell(problem, shared);
    }

    /// Tells what keeps it from being up, if that is news, or that it is.
    fn tell(&mut self, problem: Option<Failure>, shared: &Shared) {
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
        let noted = shared.with_now(|core| {
            core.note_service(report);
            Ok(())
        });
        log_failure(noted);
    }

    /// Tries again until it is up.
    async fn keep_starting(&mut self, shared: &Shared) {
        while !self.report.up {
            sleep(RETRY_INTERVAL).await;
            if self.running.is_none() {
                let (prepare, config, core) = (self.prepare, self.config.clone(), shared.clone());
                let prepared = spawn_blocking(move || prepare(&config, &core)).await;
                self.prepared = Some(prepared.unwrap_or_else(|error| {
                    Err(Failure::new(exit::NEGATIVE, format!("cannot be prepared: {error}")))
                }));
            }
            self.begin(shared);
        }
    }
}

/// What the cluster is started with: its configuration, where it listens, the state directory, and what sources may
/// use of its limits until then.
type ClusterStart = (ClusterConfig, SocketAddr, PathBuf, Share);

/// Those that are to run.
pub(crate) struct Services {
    cluster: Option<Service<ClusterStart, Prepared, Running>>,
    web: Option<Service<(WebConfig, SocketAddr), Web, Serving>>,
}

impl Services {
    /// Prepares those that `config` asks for; `floor` is what sources may use of the cluster's limits meanwhile.
    pub(crate) fn prepare(config: &DaemonConfig, floor: Share, shared: &Shared) -> Self {
        let cluster = config.cluster.listen.map(|listen| {
            let start = (config.cluster.clone(), listen, config.state_dir.clone(), floor);
            Service::new(
                ("cluster", listen),
                start,
                prepare_cluster,
                control::cluster::start,
                shared,
            )
        });
        let web = config.web.listen.map(|listen| {
            let prepare = |(config, listen): &(_, _), _: &Shared| Web::bind(config, *listen);
            let start = |web: Web, shared: &Shared| {
                web.spawn(shared.clone())
                    .map_err(|error| Failure::new(exit::NEGATIVE, format!("cannot serve: {error}")))
            };
            Service::new(
                ("dashboard", listen),
                (config.web.clone(), listen),
                prepare,
                start,
                shared,
            )
        });
        Self { cluster, web }
    }

    /// Starts what is prepared, in the runtime that it is called in.
    pub(crate) fn begin(&mut self, shared: &Shared) {
        if let Some(web) = &mut self.web {
            web.begin(shared);
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.begin(shared);
        }
    }

    /// Tries again what could not start.
    pub(crate) async fn keep_starting(&mut self, shared: &Shared) -> Infallible {
        let Self { cluster, web } = self;
        tokio::join!(
            async {
                if let Some(web) = web {
                    web.keep_starting(shared).await;
                }
            },
            async {
                if let Some(cluster) = cluster {
                    cluster.keep_starting(shared).await;
                }
            }
        );
        pending().await
    }

    /// Ends all that runs.
    pub(crate) async fn end(self) {
        // Pages that are open would keep the daemon waiting.
        drop(self.web);
        if let Some(cluster) = self.cluster.and_then(|cluster| cluster.running) {
            cluster.end().await;
        }
    }
}

fn prepare_cluster(start: &ClusterStart, shared: &Shared) -> Result<Prepared, Failure> {
    let (config, listen, directory, floor) = start;
    let config = shared.with_now(|core| Ok(core.live_cluster(config)))?;
    let prefixes = shared.with_now(|core| Ok(core.prefixes()))?;
    Prepared::new(&config, *listen, directory, prefixes).map_err(|failure| {
        let message = format!(
            "{failure}; until it is, sources may use {:.2} % of each limit of the cluster here",
            100.0 * floor.part()
        );
        Failure { message, ..failure }
    })
}
