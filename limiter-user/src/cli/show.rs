//! `limiter show`

use std::net::IpAddr;

use super::output::Output;
use api::client::{Client, escape};
use api::error::{Failure, exit};
use api::{ClusterSourceReport, KeyReport, SourceReport};
use model::overrides::Descriptor;

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    address: &str,
    cluster: bool,
) -> Result<u8, Failure> {
    // Refused here, so that it needs no daemon to be told.
    let address: IpAddr = address.trim().parse().map_err(|_| {
        Failure::new(exit::USAGE, format!("{address:?} is not an IP address"))
            .hint("give one address of the source, such as 198.51.100.7 or 2001:db8::1")
    })?;
    if cluster {
        let path = format!("/v1/cluster/sources/{address}");
        let report: ClusterSourceReport = client.get(&path).await?;
        output.print(&report)?;
        // A sum that lacks a host is no sum: scripts must see that without reading the report.
        return Ok(if report.unanswered.is_empty() { exit::OK } else { exit::NEGATIVE });
    }
    let report: SourceReport = client.get(&format!("/v1/sources/{address}")).await?;
    output.print(&report)
}

/// `limiter show --key`: a domain, and the entries of a descriptor.
pub(super) async fn key(
    client: &Client,
    output: &mut Output<'_>,
    key: &[String],
) -> Result<u8, Failure> {
    let (domain, entries) = key.split_first().map_or(("", &[][..]), |(d, rest)| (d.as_str(), rest));
    let descriptor = Descriptor::parse(domain, entries)?;
    output.show::<KeyReport>(client, &format!("/v1/keys?for={}", escape(descriptor.text()))).await
}
