//! `limiter status`

use super::output::Output;
use api::client::Client;
use api::error::{Failure, exit};
use api::{Health, StatusReport};

pub(super) async fn run(client: &Client, output: &mut Output<'_>) -> Result<u8, Failure> {
    let report: StatusReport = client.get("/v1/status").await?;
    output.print(&report)?;
    Ok(match report.state {
        Health::Ok => exit::OK,
        // For scripts, which need not read the report.
        Health::Degraded => exit::NEGATIVE,
    })
}
