//! `limiter version`

use super::output::Output;
use api::VersionReport;
use api::error::Failure;

pub(super) fn run(output: &mut Output<'_>) -> Result<u8, Failure> {
    output.print(&VersionReport::of_this_binary(dataplane::has_program()))
}
