//! What is told about the data plane: the bodies of the API, which `--json` prints as they are, and
//! the same as text.

mod change;
mod cleanup;
mod config;
mod limit;
mod lists;
mod source;
mod stats;
mod status;
mod text;

pub use change::{Applied, ConfirmReport, DiffReport, PendingReport, Replaced};
pub use cleanup::{CleanupReport, Remnant, RemnantKind};
pub use config::{
    CheckReport, ConfigReport, DefaultReport, FileLimitReport, KeyDiff, ReloadReport, SchemaReport,
    SettingReport, SettingsReport, Shadowed,
};
pub use limit::{LimitList, LimitOrigin, LimitRemoved, LimitReport, LimitSet, LimitsImported};
pub use lists::{ListChanged, ListEntry, ListReport};
pub use source::{Average, Sort, SourceReport, TopEntry, TopReport};
pub use stats::{CounterReport, StatsReport, TallyReport};
pub use status::{
    AttachReport, DetachReport, EventsReport, Health, InterfaceReport, OccupantReport,
    SketchReport, StatusReport, StoreReport, TableReport, VersionReport,
};

use std::io::{self, Write};

/// A report for people.
pub trait Print {
    /// Writes the report as text.
    ///
    /// # Errors
    /// Whatever `out` fails with.
    fn print(&self, out: &mut dyn Write) -> io::Result<()>;
}
