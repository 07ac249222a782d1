//! `limiter limit set`, `list` and `unset`
//!
//! What cannot be a limit is refused here, so that it needs no daemon to be told.

use hyper::Method;

use super::output::Output;
use crate::client::{Client, escape};
use crate::error::{Failure, exit};
use crate::http::SetRequest;
use crate::policy::Target;
use crate::report::{LimitList, LimitRemoved, LimitSet};

pub(super) async fn set(
    client: &Client,
    output: &mut Output<'_>,
    rate: String,
    burst: Option<String>,
    target: String,
) -> Result<u8, Failure> {
    let request = SetRequest { target, rate, burst };
    request.limit()?;
    let report: LimitSet = client.send(Method::PUT, "/v1/limits", &request).await?;
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
) -> Result<u8, Failure> {
    let target: Target = target.parse()?;
    let path = format!("/v1/limits?target={}", escape(&target.to_string()));
    let report: LimitRemoved = client.delete(&path).await?;
    output.print(&report)?;
    Ok(exit::OK)
}
