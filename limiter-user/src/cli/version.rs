//! `limiter version`

use super::output::Output;
use crate::error::{Failure, exit};
use crate::report::VersionReport;

pub(super) fn run(output: &mut Output<'_>) -> Result<u8, Failure> {
    output.print(&VersionReport::of_this_binary())?;
    Ok(exit::OK)
}
