//! `limiter doctor`

use std::path::Path;

use super::output::Output;
use crate::doctor::{self, Diagnosis, Grade};
use api::client::Client;
use api::error::{Failure, exit};
use model::instance::Instance;

pub(super) fn run(
    output: &mut Output<'_>,
    pin_dir: &Path,
    interface: Option<&str>,
    instance: Option<&Instance>,
) -> Result<u8, Failure> {
    finish(output, &doctor::examine(pin_dir, interface, instance))
}

/// Looks at the central store.
pub(super) async fn run_store(output: &mut Output<'_>, serve: &Client) -> Result<u8, Failure> {
    let report = serve.get("/v1/store").await?;
    finish(output, &doctor::examine_store(&report))
}

fn finish(output: &mut Output<'_>, diagnosis: &Diagnosis) -> Result<u8, Failure> {
    output.print(diagnosis)?;
    Ok(match diagnosis.state {
        Grade::Ok => exit::OK,
        // A warning, too: a script that prepares hosts wants all well, and who does not can read the grades.
        Grade::Warn | Grade::Fail => exit::NEGATIVE,
    })
}
