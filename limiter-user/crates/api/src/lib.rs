//! What is told about the data plane: the bodies of the API, which `--json` prints as they are, and
//! the same as text.

pub mod address;
mod capture;
mod central;
mod change;
mod changes;
pub mod client;
mod cluster;
mod config;
mod decisions;
pub mod error;
mod fleet;
mod groups;
mod history;
pub mod instances;
mod keys;
mod leases;
mod limit;
mod lists;
mod overrides;
mod overview;
mod peers;
mod ports;
pub mod requests;
mod shadow;
mod shares;
mod sketch;
mod source;
mod stats;
mod status;
mod suggest;
pub mod text;
mod top;

pub use capture::{CaptureBatch, CaptureReport, CaptureRequest, CaptureStarted, SampleReport};
pub use central::CentralReport;
pub use change::{Applied, ConfirmReport, Diff, PendingReport, Replaced, Rule};
pub use changes::ChangesReport;
pub use cluster::{ClusterForgotten, ClusterFounded, ClusterLeft, ClusterStatus, KeyGenerated};
pub use config::{
    CheckReport, ConfigReport, DefaultReport, FileEntryReport, FileLimitReport, KeyDiff,
    ReloadReport, SchemaReport, SettingReport, SettingsReport, Shadowed,
};
pub use decisions::{DeniedKey, KeyReport, TopKeysReport};
pub use fleet::{
    ClusterDistinctReport, ClusterSourceReport, ClusterTopEntry, ClusterTopReport, DistinctGroup,
    DistinctHost, HostSource, SourceSums, Unanswered,
};
pub use groups::{ClusterGroupEntry, ClusterGroupsReport, GroupEntry, GroupsReport};
pub use history::{HistoryReport, ReasonSeries};
pub use keys::KeysReport;
pub use leases::{LeaseWanted, LeasesBrought, LeasesReport, LeasesWanted};
pub use limit::{
    DiffReport, LimitList, LimitOrigin, LimitRemoved, LimitReport, LimitSet, LimitsImported,
    TierReport,
};
pub use lists::{ListChanged, ListDiff, ListDone, ListEntry, ListReport};
pub use overrides::{Followed, OverrideEntry, OverridesChanged, OverridesReport};
pub use overview::{
    Commands, CostReport, Flow, Offender, OverviewReport, ReasonFlow, Shown, Verdict, VerdictLevel,
    reasons,
};
pub use peers::{
    ClockReport, OtherCluster, OverageReport, PeerDetails, PeerReport, PeerState, PeersReport,
    RefusedReport, RegionReport,
};
pub use ports::{PortCounts, PortEntry, PortsReport};
pub use shadow::{ShadowReport, ShadowSet, ShadowSource, ShadowUnset, ShadowsReport};
pub use shares::{
    FLOORS_HOLD, FallbackAsked, FallbackTold, FloorTold, FloorsTold, KeyAsked, STORE_HOLDS,
    SharesAsked, SharesTold,
};
pub use sketch::{SKETCH_RATES, SketchCells, SketchEstimate, SketchReport};
pub use source::{Average, SharedReport, SourceReport, SourceShadowReport, moment};
pub use stats::{CounterReport, LatencyReport, StatsReport, TallyReport};
pub use status::{
    AttachReport, DetachReport, EventsReport, Health, OccupantReport, ServiceReport, StatusReport,
    StoreReport, VersionReport,
};

pub use suggest::{
    AlgorithmReport, LightReport, ProposalReport, Question, SuggestQuery, SuggestReport, percent,
};
pub use top::{TopEntry, TopReport};

use std::io::{self, Write};
use std::time::SystemTime;

/// A report for people.
pub trait Print {
    /// Writes the report as text, complete.
    ///
    /// # Errors
    /// Whatever `out` fails with.
    fn print(&self, out: &mut dyn Write) -> io::Result<()>;

    /// Writes it for somebody at a terminal, if there is one. Where it has a wide table, that leaves out what
    /// does not fit.
    ///
    /// # Errors
    /// As [`Print::print`].
    // Most reports are narrow, and what a script reads must not depend on the width of a terminal.
    fn print_on(&self, out: &mut dyn Write, _terminal: Option<&Terminal>) -> io::Result<()> {
        self.print(out)
    }
}

/// A terminal that a report is printed on.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// Characters in a line.
    pub width: u16,
    /// The present, from which ages count.
    pub now: SystemTime,
}
