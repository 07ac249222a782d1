//! `limiter top`

mod app;
mod filter;
mod history;
mod line;
mod run;
#[cfg(test)]
mod tests;
mod view;

use std::io::{IsTerminal, stdin, stdout};

use super::args::TopArgs;
use super::output::Output;
use crate::client::Client;
use crate::error::{Failure, exit};
use crate::report::{By, ClusterTopReport, GroupsReport, PortsReport, Sort, TopReport};

/// Lines that are printed once, unless told otherwise.
const LINES: usize = 20;

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    arguments: &TopArgs,
) -> Result<u8, Failure> {
    if arguments.n == Some(0) {
        return Err(Failure::new(exit::USAGE, "0 lines cannot be listed")
            .hint("ask for at least 1, such as `-n 20`"));
    }
    if arguments.cluster && arguments.by != By::Source {
        let message = format!("hosts of a cluster are not summed up by {}", arguments.by.name());
        return Err(Failure::new(exit::USAGE, message)
            .hint("leave out --by, or ask one host by leaving out --cluster"));
    }
    if arguments.once || output.is_json() {
        return once(client, output, arguments).await;
    }
    if arguments.by == By::Port {
        return Err(Failure::new(exit::USAGE, "ports cannot be watched, only listed")
            .hint("write `limiter top --by port --once`"));
    }
    if !stdout().is_terminal() || !stdin().is_terminal() {
        return Err(Failure::new(exit::USAGE, "top needs a terminal to watch")
            .hint("write `limiter top --once` to print a list, or `--json` for a document"));
    }
    run::watch(client, arguments).await
}

async fn once(
    client: &Client,
    output: &mut Output<'_>,
    arguments: &TopArgs,
) -> Result<u8, Failure> {
    let n = arguments.n.unwrap_or(LINES);
    match arguments.by {
        By::Source if arguments.cluster => {
            let report: ClusterTopReport =
                client.get(&sources(n, arguments.sort, false, true)).await?;
            output.print(&report)?;
            let well = report.unanswered.is_empty();
            return Ok(if well { exit::OK } else { exit::NEGATIVE });
        }
        By::Source => {
            let report: TopReport = client.get(&sources(n, arguments.sort, false, false)).await?;
            output.print(&report)?;
        }
        By::Prefix | By::Class => {
            let report: GroupsReport = client.get(&groups(arguments.by, n, arguments.sort)).await?;
            output.print(&report)?;
        }
        By::Port => {
            let report: PortsReport = client.get(&format!("/v1/ports?n={n}")).await?;
            output.print(&report)?;
        }
    }
    Ok(exit::OK)
}

/// The resource with the heaviest sources, of one host or of all.
fn sources(n: usize, sort: Sort, live: bool, cluster: bool) -> String {
    let live = if live { "&live=true" } else { "" };
    let place = if cluster { "/cluster" } else { "" };
    format!("/v1{place}/top?n={n}&sort={}{live}", sort.name())
}

/// The resource with sums over sources.
fn groups(by: By, n: usize, sort: Sort) -> String {
    format!("/v1/groups?by={}&n={n}&sort={}", by.name(), sort.name())
}
