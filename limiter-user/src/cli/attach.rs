//! `limiter attach` and `limiter detach`

use hyper::Method;

use super::args::AttachArgs;
use super::output::Output;
use crate::client::{Client, escape};
use crate::error::{Failure, exit};
use crate::http::AttachRequest;
use crate::report::{AttachReport, DetachReport};

pub(super) async fn attach(
    client: &Client,
    output: &mut Output<'_>,
    arguments: AttachArgs,
) -> Result<u8, Failure> {
    let AttachArgs { interface: name, mode, replace } = arguments;
    let request = AttachRequest { name, mode, replace };
    let report: AttachReport = client.send(Method::POST, "/v1/interfaces", &request).await?;
    output.print(&report)?;
    Ok(exit::OK)
}

pub(super) async fn detach(
    client: &Client,
    output: &mut Output<'_>,
    interface: &str,
) -> Result<u8, Failure> {
    let path = format!("/v1/interfaces/{}", escape(interface));
    let report: DetachReport = client.delete(&path).await?;
    output.print(&report)?;
    Ok(exit::OK)
}
