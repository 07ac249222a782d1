//! `limiter stats`

use super::output::Output;
use crate::client::Client;
use crate::error::{Failure, exit};
use crate::report::StatsReport;

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    nonzero: bool,
) -> Result<u8, Failure> {
    let report: StatsReport = client.get("/v1/stats").await?;
    output.print(&if nonzero { report.nonzero() } else { report })?;
    Ok(exit::OK)
}
