//! `limiter limit set`, `import`, `list` and `unset`
//!
//! What cannot be a limit is refused here, so that it needs no daemon to be told.

use std::fs;
use std::io;
use std::path::Path;

use hyper::Method;

use super::output::Output;
use super::safety::{SafetyArgs, warn};
use crate::client::Client;
use crate::error::{Failure, exit};
use crate::http::SetRequest;
use crate::policy::Target;
use crate::report::{LimitList, LimitRemoved, LimitSet, LimitsImported};

pub(super) async fn set(
    client: &Client,
    output: &mut Output<'_>,
    request: SetRequest,
    safety: SafetyArgs,
) -> Result<u8, Failure> {
    request.limit()?;
    let path = format!("/v1/limits{}", safety.query(&[])?);
    let report: LimitSet = client.send(Method::PUT, &path, &request).await?;
    warn(&report.applied);
    output.print(&report)?;
    Ok(exit::OK)
}

pub(super) async fn import(
    client: &Client,
    output: &mut Output<'_>,
    file: &Path,
    safety: SafetyArgs,
) -> Result<u8, Failure> {
    let path = format!("/v1/limits/import{}", safety.query(&[])?);
    let read = if file == Path::new("-") {
        io::read_to_string(io::stdin())
    } else {
        fs::read_to_string(file)
    };
    let text = read.map_err(|error| {
        Failure::new(exit::USAGE, format!("cannot read {}: {error}", file.display()))
            .hint("give a text file with a line TARGET RATE [BURST] for each limit, or - for stdin")
    })?;
    let report: LimitsImported = client.send_text(&path, text).await?;
    warn(&report.applied);
    output.print(&report)?;
    Ok(exit::OK)
}

pub(super) async fn list(client: &Client, output: &mut Output<'_>) -> Result<u8, Failure> {
    let report: LimitList = client.get("/v1/limits").await?;
    output.print(&report)?;
    Ok(exit::OK)
}

pub(super) async fn unset(
    client: &Client,
    output: &mut Output<'_>,
    target: &str,
    safety: SafetyArgs,
) -> Result<u8, Failure> {
    let target: Target = target.parse()?;
    let path = format!("/v1/limits{}", safety.query(&[("target", &target.to_string())])?);
    let report: LimitRemoved = client.delete(&path).await?;
    warn(&report.applied);
    output.print(&report)?;
    Ok(exit::OK)
}
