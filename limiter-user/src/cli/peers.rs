//! `limiter peers`

use super::output::Output;
use api::PeersReport;
use api::client::Client;
use api::error::{Failure, exit};

pub(super) async fn run(client: &Client, output: &mut Output<'_>) -> Result<u8, Failure> {
    let report: PeersReport = client.get("/v1/cluster/peers").await?;
    output.print(&report)?;
    // For scripts: a host that lacks a limit lets everything through
    // there, and another cluster has the whole limit once more.
    let is_well =
        report.unanswered.is_empty() && report.limits_same && report.other_clusters.is_empty();
    Ok(if is_well { exit::OK } else { exit::NEGATIVE })
}
