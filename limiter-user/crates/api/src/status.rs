//! The daemon, its interfaces and how its data plane fares.

use std::io::{self, Write};
use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::limit::FIRST_LIMIT;
use super::{
    ClusterStatus, ConfigReport, LeasesReport, LimitReport, OverageReport, PendingReport, Print,
    text,
};
use model::Distinct;
use model::instance::{Instance, address};
use model::target::short_prefix;
use model::{
    interface::Attachment,
    tables::{SketchHealth, TableHealth},
};

/// Whether all is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Limits are enforced as promised.
    Ok,
    /// Something is not as it should be; the warnings say what.
    Degraded,
}

/// Events that did not reach the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsReport {
    /// The ring buffer was full.
    pub lost: u64,
    /// Their kind had sent enough in that second.
    pub suppressed: u64,
}

/// The cluster or the dashboard, which start when the limits are in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// `cluster` or `dashboard`.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether it runs, and an interface has its address.
    pub up: bool,
    /// Why it is not up, or was not before; nothing if it was from the start.
    pub problem: Option<String>,
    /// What to do about that.
    pub hint: Option<String>,
    /// How long after the daemon it came up, if it was not from the start.
    pub late_seconds: Option<u64>,
}

impl ServiceReport {
    /// One that has not come up yet.
    pub fn new(name: &str, address: SocketAddr) -> Self {
        let (problem, hint, late_seconds) = (None, None, None);
        Self { name: name.into(), address, up: false, problem, hint, late_seconds }
    }
}

/// Where limits and lists are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReport {
    /// The main file.
    pub path: String,
    /// `ok`, or `recovered` if a damaged file was made anew when the daemon started.
    // A store made anew has lost nothing, but its disk may go on to fail.
    pub state: String,
}

/// `status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Whether all is well.
    pub state: Health,
    /// Which instance it is.
    #[serde(default)]
    pub instance: Option<Instance>,
    /// The daemon's version.
    pub version: String,
    /// The version of the map layouts.
    // Another layout is refused by the next daemon: an operator can see before an upgrade whether
    // maps will be kept.
    pub abi_version: u32,
    /// Since the daemon started.
    pub uptime_seconds: u64,
    /// The daemon's process.
    pub pid: u32,
    /// What it is attached to.
    pub interfaces: Vec<Attachment>,
    /// The sketch's size and noise.
    pub sketch: SketchHealth,
    /// How full the bucket table is.
    pub table: TableHealth,
    /// Distinct sources in the last full window.
    #[serde(default)]
    pub distinct: Option<Distinct>,
    /// How many limits are in force, the default included.
    pub limits: u64,
    /// Of those, counted in windows.
    #[serde(default)]
    pub limits_in_windows: u64,
    /// The limit of sources that no prefix covers.
    pub default_limit: Option<LimitReport>,
    /// The configuration file and its limits.
    #[serde(default)]
    pub config: ConfigReport,
    /// How the host fares in its cluster, if it is in one.
    #[serde(default)]
    pub cluster: Option<Box<ClusterStatus>>,
    /// How strict limits fare, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<Box<LeasesReport>>,
    /// The cluster and the dashboard, if this host is to have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceReport>,
    /// The change that is reverted unless it is confirmed.
    pub confirm: Option<PendingReport>,
    /// Addresses that no limit applies to.
    pub management: Vec<IpNet>,
    /// What was used of limits of the cluster lately, on all its hosts, as counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overage: Vec<OverageReport>,
    /// Events that did not reach the daemon.
    pub events: EventsReport,
    /// What the operator should know.
    pub warnings: Vec<String>,
    /// The store.
    pub store: StoreReport,
}

impl StatusReport {
    /// Tells what was used of limits of the cluster. Where one was exceeded the host's state is degraded.
    pub fn set_overage(&mut self, overage: Vec<OverageReport>) {
        let warnings: Vec<_> = overage.iter().filter_map(OverageReport::warning).collect();
        // Known only to whoever asked the cluster, after the rest of the report was made.
        if !warnings.is_empty() {
            self.state = Health::Degraded;
            self.warnings.extend(warnings);
        }
        self.overage = overage;
    }
}

impl Print for StatusReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let state = match self.state {
            Health::Ok => "ok",
            Health::Degraded => "degraded",
        };
        writeln!(
            out,
            "state       {state}, version {}, pid {}, up {}",
            self.version,
            self.pid,
            text::seconds(self.uptime_seconds)
        )?;
        if let Some(instance) = &self.instance {
            writeln!(out, "instance    {instance}")?;
        }
        if self.interfaces.is_empty() {
            writeln!(out, "interfaces  none")?;
        }
        for interface in &self.interfaces {
            writeln!(
                out,
                "interface   {} ({}), program {}, {} packets received",
                interface.name,
                interface.mode.name(),
                interface.program_id,
                // Beside the sum of `stats`: that every packet is in one counter can be checked by
                // hand (P5).
                interface.rx_packets
            )?;
        }
        let default = self.default_limit.as_ref().map_or("none".into(), LimitReport::summary);
        let limits = match self.limits {
            // A daemon that runs without limits passes all packets, so the line says what to do.
            0 => format!("none; {}", address(FIRST_LIMIT, self.instance.as_ref())),
            limits => format!("{limits}, default {default}"),
        };
        writeln!(out, "limits      {limits}")?;
        writeln!(out, "config      {}", self.config.summary())?;
        if let Some(cluster) = &self.cluster {
            writeln!(out, "cluster     {}", cluster.summary())?;
            writeln!(out, "            {}", cluster.frames())?;
        }
        if let Some(leases) = &self.leases {
            writeln!(out, "leases      {}", leases.summary())?;
        }
        // One that is not up is among the warnings. A late one stays here, as it tells what may
        // fail at the next boot.
        for service in &self.services {
            if let Some(late) = service.late_seconds {
                let (name, late) = (&service.name, text::seconds(late));
                let problem = service.problem.as_deref().unwrap_or_default();
                writeln!(out, "late        the {name} came up {late} after the daemon: {problem}")?;
            }
        }
        if let Some(confirm) = &self.confirm {
            writeln!(out, "confirm     {}", confirm.summary())?;
        }
        if !self.management.is_empty() {
            let nets: Vec<_> = self.management.iter().map(short_prefix).collect();
            writeln!(out, "management  {}", nets.join(", "))?;
        }
        // The noise beside the size: where it comes near the gates, light sources get buckets, and
        // the sketch is too small.
        let sketch = &self.sketch;
        writeln!(
            out,
            "sketch      {} × {} cells, ε {:.2e}, δ {:.2e}, window {:.0} ms, noise {:.2} packets, {}",
            sketch.depth,
            sketch.width,
            sketch.epsilon,
            sketch.delta,
            sketch.window_ms,
            sketch.noise,
            text::size(sketch.memory_bytes)
        )?;
        // Full sets beside buckets: in a full set `on_full` decides, however empty the table is.
        let table = &self.table;
        writeln!(
            out,
            "table       {} of {} buckets taken, {} busy, {} of {} sets full, {}",
            table.occupied,
            table.capacity,
            table.busy,
            table.full_sets,
            table.sets,
            text::size(table.memory_bytes)
        )?;
        if let Some(distinct) = &self.distinct {
            writeln!(out, "sent        {}", distinct.summary())?;
        }
        for overage in &self.overage {
            writeln!(out, "cluster     limit for {}", overage.summary())?;
        }
        writeln!(
            out,
            "events      {} lost, {} suppressed",
            self.events.lost, self.events.suppressed
        )?;
        writeln!(out, "store       {} ({})", self.store.path, self.store.state)?;
        for warning in &self.warnings {
            writeln!(out, "warning     {warning}")?;
        }
        Ok(())
    }
}

/// `version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionReport {
    /// The program's version.
    pub version: String,
    /// The version of the map layouts.
    pub abi_version: u32,
    /// Whether the kernel program is part of this binary.
    // It can be built without the BPF toolchain, and such a binary limits nothing.
    pub kernel_program: bool,
}

impl VersionReport {
    /// This binary's.
    pub fn of_this_binary(kernel_program: bool) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            abi_version: limiter_common::abi::ABI_VERSION,
            kernel_program,
        }
    }
}

impl Print for VersionReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let program = if self.kernel_program { "with" } else { "without" };
        writeln!(
            out,
            "limiter {} (map layout {}, {program} kernel program)",
            self.version, self.abi_version
        )
    }
}

/// `attach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachReport {
    /// The interface.
    pub interface: Attachment,
}

impl Print for AttachReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let interface = &self.interface;
        writeln!(out, "attached to {} in {} mode", interface.name, interface.mode.name())
    }
}

/// What is on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OccupantReport {
    /// The interface's index.
    pub ifindex: u32,
    /// The XDP program on it, ours or another.
    pub program_id: Option<u32>,
}

/// `detach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachReport {
    /// The interface's name.
    pub detached: String,
}

impl Print for DetachReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "detached from {}", self.detached)
    }
}
