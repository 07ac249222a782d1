//! What is told about the data plane: the bodies of the API, which `--json` prints as they are, and
//! the same as text.

mod capture;
mod change;
mod cleanup;
mod config;
mod distinct;
mod limit;
mod lists;
mod source;
mod stats;
mod status;
mod text;
mod trial;

pub use capture::{CaptureBatch, CaptureReport, CaptureRequest, CaptureStarted, SampleReport};
pub use change::{
    Applied, ConfirmReport, Diff, DiffReport, ListDiff, PendingReport, Replaced, Rule,
};
pub use cleanup::{CleanupReport, Remnant, RemnantKind};
pub use config::{
    CheckReport, ConfigReport, DefaultReport, FileEntryReport, FileLimitReport, KeyDiff,
    ReloadReport, SchemaReport, SettingReport, SettingsReport, Shadowed,
};
pub use distinct::DistinctReport;
pub use limit::{
    BanReport, LimitList, LimitOrigin, LimitRemoved, LimitReport, LimitSet, LimitsImported,
    TierReport,
};
pub use lists::{ListChanged, ListEntry, ListReport};
pub use source::{Average, SharedReport, Sort, SourceReport, TopEntry, TopReport, TriedReport};
pub use stats::{CounterReport, StatsReport, TallyReport};
pub use status::{
    AttachReport, DetachReport, EventsReport, Health, InterfaceReport, MigratedReport,
    OccupantReport, SketchReport, StatusReport, StoreReport, TableReport, VersionReport,
};
pub use trial::{TrialReport, TrialSource, TrialStarted, TrialStopped, TrialsReport};

use std::io::{self, Write};

/// A report for people.
pub trait Print {
    /// Writes the report as text.
    ///
    /// # Errors
    /// Whatever `out` fails with.
    fn print(&self, out: &mut dyn Write) -> io::Result<()>;
}
