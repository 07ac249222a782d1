//! `limiter top`

use super::args::TopArgs;
use super::output::Output;
use crate::client::Client;
use crate::error::{Failure, exit};
use crate::report::TopReport;

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    arguments: &TopArgs,
) -> Result<u8, Failure> {
    if !arguments.once {
        return Err(Failure::new(exit::USAGE, "top can only print once at present")
            .hint("write `limiter top --once`, or `watch limiter top --once`"));
    }
    let path = format!("/v1/top?n={}&sort={}", arguments.n, arguments.sort.name());
    let report: TopReport = client.get(&path).await?;
    output.print(&report)?;
    Ok(exit::OK)
}
