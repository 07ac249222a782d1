//! `limiter attach` and `limiter detach`

use hyper::Method;

use super::args::AttachArgs;
use super::output::Output;
use api::client::{Client, escape};
use api::error::{Failure, exit};
use api::requests::AttachRequest;
use api::{AttachReport, DetachReport, OccupantReport};
use dataplane::detach_link;

pub(super) async fn attach(
    client: &Client,
    output: &mut Output<'_>,
    arguments: AttachArgs,
) -> Result<u8, Failure> {
    let AttachArgs { interface: name, mode, replace } = arguments;
    let request = AttachRequest { name, mode, replace };
    let mut attached = client.send(Method::POST, "/v1/interfaces", &request).await;
    if replace
        && let Err(Failure { code: exit::PRIVILEGE, .. }) = attached
        // The link of another program is for CAP_SYS_ADMIN to end, which the daemon has given up.
        // Whoever gives this command may have it.
        && make_room(client, &request.name).await?
    {
        attached = client.send(Method::POST, "/v1/interfaces", &request).await;
    }
    let report: AttachReport = attached?;
    output.print(&report)
}

/// Removes somebody else's link from an interface. The daemon cannot: the kernel hands links of others out to
/// CAP_SYS_ADMIN alone, which it has given up. Returns whether there was one that could be removed.
async fn make_room(client: &Client, name: &str) -> Result<bool, Failure> {
    let path = format!("/v1/interfaces/{}", escape(name));
    let OccupantReport { ifindex, program_id } = client.get(&path).await?;
    let Some(id) = program_id else { return Ok(false) };
    Ok(detach_link(ifindex, id).unwrap_or_else(|error| {
        // The daemon's refusal is the better message: it says what is attached, and how to remove it.
        tracing::debug!("cannot remove XDP program {id}: {error}");
        false
    }))
}

pub(super) async fn detach(
    client: &Client,
    output: &mut Output<'_>,
    interface: &str,
) -> Result<u8, Failure> {
    let path = format!("/v1/interfaces/{}", escape(interface));
    let report: DetachReport = client.delete(&path).await?;
    output.print(&report)
}
