//! `limiter doctor`

use std::path::Path;

use super::output::Output;
use crate::doctor::{self, Grade};
use api::error::{Failure, exit};
use model::instance::Instance;

pub(super) fn run(
    output: &mut Output<'_>,
    pin_dir: &Path,
    interface: Option<&str>,
    instance: Option<&Instance>,
) -> Result<u8, Failure> {
    let diagnosis = doctor::examine(pin_dir, interface, instance);
    output.print(&diagnosis)?;
    Ok(match diagnosis.state {
        Grade::Ok => exit::OK,
        // A warning, too: a script that prepares hosts wants all well, and who does not can read the grades.
        Grade::Warn | Grade::Fail => exit::NEGATIVE,
    })
}
