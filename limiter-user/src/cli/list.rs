//! `limiter allow` and `limiter deny`

use std::io;

use super::args::ListCommand;
use super::output::Output;
use crate::client::{Client, escape};
use crate::error::{Failure, exit};
use crate::policy::lists::{Action, Listing};
use crate::report::{ListChanged, ListReport};

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    action: Action,
    command: ListCommand,
) -> Result<u8, Failure> {
    let path = format!("/v1/lists/{action}");
    match command {
        ListCommand::List => {
            let report: ListReport = client.get(&path).await?;
            output.print(&report)?;
        }
        ListCommand::Add { targets, ttl, reason } => {
            // What cannot be an entry is refused here, so that it needs no daemon to be told.
            Listing::new(action, ttl, reason.clone())?;
            let mut query = Vec::new();
            query.extend(ttl.map(|ttl| format!("ttl_seconds={}", ttl.as_secs())));
            query.extend(reason.map(|reason| format!("reason={}", escape(&reason))));
            let path = format!("{path}?{}", query.join("&"));
            let report: ListChanged = client.send_text(&path, text(targets)?).await?;
            output.print(&report)?;
        }
        ListCommand::Del { targets } => {
            let path = format!("{path}/remove");
            let report: ListChanged = client.send_text(&path, text(targets)?).await?;
            output.print(&report)?;
        }
    }
    Ok(exit::OK)
}

/// The targets, one in a line.
fn text(targets: Vec<String>) -> Result<String, Failure> {
    if targets == ["-"] {
        return io::read_to_string(io::stdin()).map_err(|error| {
            Failure::new(exit::USAGE, format!("cannot read standard input: {error}"))
                .hint("give addresses and prefixes as text, one in a line")
        });
    }
    if targets.iter().any(|target| target == "-") {
        return Err(Failure::new(exit::USAGE, "- stands among other targets")
            .hint("give either targets, or - to read them from standard input"));
    }
    Ok(targets.join("\n"))
}
