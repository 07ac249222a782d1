//! What is told about the data plane: the bodies of the API, which `--json` prints as they are, and
//! the same as text.

mod limit;
mod source;
mod stats;
mod status;
mod text;

pub use limit::{LimitList, LimitRemoved, LimitReport, LimitSet, LimitsImported};
pub use source::{Average, Sort, SourceReport, TopEntry, TopReport};
pub use stats::{CounterReport, StatsReport, TallyReport};
pub use status::{
    AttachReport, DetachReport, EventsReport, Health, InterfaceReport, SketchReport, StatusReport,
    StoreReport, TableReport, VersionReport,
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
