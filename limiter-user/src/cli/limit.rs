//! `limiter limit set`, `import`, `list`, `unset` and `shadow`
//!
//! What cannot be a limit is refused here, so that it needs no daemon to be told.

use std::fs;
use std::io;
use std::path::Path;

use hyper::Method;

use super::limit_args::SetArgs;
use super::output::Output;
use super::safety::{SafetyArgs, warn};
use api::client::{Client, escape};
use api::error::{Failure, exit};
use api::requests::ShadowRequest;
use api::{LimitRemoved, LimitSet, LimitsImported, ShadowSet, ShadowUnset};
use model::Target;

pub(super) async fn set(
    client: &Client,
    output: &mut Output<'_>,
    arguments: SetArgs,
) -> Result<u8, Failure> {
    let path = format!("/v1/limits{}", arguments.safety.query(&[])?);
    let request = arguments.input()?;
    // The daemon reads it again. Here it is for an answer where no daemon runs, not for safety.
    request.limit()?;
    let report: LimitSet = client.send(Method::PUT, &path, &request).await?;
    warn(&report.applied.warnings);
    output.print(&report)
}

/// The text of a file, or of standard input. The hint says what it should be.
///
/// # Errors
/// If it cannot be read.
pub(super) fn read_text(file: &Path, hint: &str) -> Result<String, Failure> {
    let read = if file == Path::new("-") {
        io::read_to_string(io::stdin())
    } else {
        fs::read_to_string(file)
    };
    read.map_err(|error| {
        Failure::new(exit::USAGE, format!("cannot read {}: {error}", file.display())).hint(hint)
    })
}

pub(super) async fn import(
    client: &Client,
    output: &mut Output<'_>,
    file: &Path,
    safety: SafetyArgs,
) -> Result<u8, Failure> {
    let path = format!("/v1/limits/import{}", safety.query(&[])?);
    let hint = "give a text file with a line TARGET RATE [BURST] for each limit, or - for stdin";
    let text = read_text(file, hint)?;
    // As it is: the daemon reads it line by line as it comes, and names the line that is wrong.
    let report: LimitsImported = client.send_text(&path, text).await?;
    warn(&report.applied.warnings);
    output.print(&report)
}

pub(super) async fn unset(
    client: &Client,
    output: &mut Output<'_>,
    target: Target,
    safety: SafetyArgs,
) -> Result<u8, Failure> {
    // In the query, as a prefix has a slash.
    let path = format!("/v1/limits{}", safety.query(&[("target", &target.to_string())])?);
    let report: LimitRemoved = client.delete(&path).await?;
    warn(&report.applied.warnings);
    output.print(&report)
}

pub(super) async fn set_shadow(
    client: &Client,
    output: &mut Output<'_>,
    request: ShadowRequest,
) -> Result<u8, Failure> {
    request.limit()?;
    // Nothing to confirm, unlike `set`: a shadow limit drops nothing.
    let report: ShadowSet = client.send(Method::PUT, "/v1/shadows", &request).await?;
    output.print(&report)
}

pub(super) async fn unset_shadow(
    client: &Client,
    output: &mut Output<'_>,
    target: Target,
) -> Result<u8, Failure> {
    let path = format!("/v1/shadows?target={}", escape(&target.to_string()));
    let report: ShadowUnset = client.delete(&path).await?;
    output.print(&report)
}
