//! `limiter stats`

use super::output::Output;
use api::StatsReport;
use api::client::Client;
use api::error::Failure;

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    nonzero: bool,
) -> Result<u8, Failure> {
    let report: StatsReport = client.get("/v1/stats").await?;
    output.print(&if nonzero { report.nonzero() } else { report })
}
