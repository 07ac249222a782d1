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
use api::client::Client;
use api::error::{Failure, exit};
use api::{
    ClusterGroupsReport, ClusterTopReport, GroupsReport, PortsReport, TopKeysReport, TopReport,
    Unanswered,
};
use model::traffic::{GroupBy, Sort};

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
    let here_alone = matches!(arguments.by, GroupBy::Port | GroupBy::Destination);
    if arguments.cluster && here_alone {
        let problem = format!("{}s are counted on one host at a time", arguments.by.name());
        return Err(
            Failure::new(exit::USAGE, problem).hint("ask each host by itself: leave out --cluster")
        );
    }
    if arguments.keys {
        if !arguments.once && !output.is_json() {
            return Err(Failure::new(exit::USAGE, "keys cannot be watched, only listed")
                .hint("write `limiter top --keys --once`"));
        }
        let path = format!("/v1/top?n={}", arguments.n.unwrap_or(LINES));
        return output.show::<TopKeysReport>(&arguments.serve.client(), &path).await;
    }
    // A document is printed once by definition, so --json needs no --once.
    if arguments.once || output.is_json() {
        return once(client, output, arguments).await;
    }
    // Samples are for one at a time: who watches ports would keep `limiter capture` out.
    if arguments.by == GroupBy::Port {
        return Err(Failure::new(exit::USAGE, "ports cannot be watched, only listed")
            .hint("write `limiter top --by port --once`"));
    }
    // Keys come from stdin, and without any nothing but a signal would end it.
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
    let TopArgs { by, sort, cluster, .. } = *arguments;
    let n = arguments.n.unwrap_or(LINES);
    let path = match by {
        GroupBy::Source | GroupBy::Destination => sources(by, n, sort, false, cluster),
        GroupBy::Prefix | GroupBy::Class => groups(by, n, sort, cluster),
        GroupBy::Port => format!("/v1/ports?n={n}"),
    };
    match by {
        GroupBy::Source if cluster => {
            let report: ClusterTopReport = client.get(&path).await?;
            output.print(&report)?;
            Ok(all_or_not(&report.unanswered))
        }
        GroupBy::Source | GroupBy::Destination => {
            output.print(&client.get::<TopReport>(&path).await?)
        }
        GroupBy::Prefix | GroupBy::Class if cluster => {
            let report: ClusterGroupsReport = client.get(&path).await?;
            output.print(&report)?;
            Ok(all_or_not(&report.unanswered))
        }
        GroupBy::Prefix | GroupBy::Class => output.print(&client.get::<GroupsReport>(&path).await?),
        GroupBy::Port => output.print(&client.get::<PortsReport>(&path).await?),
    }
}

/// The resource with the heaviest sources, of one host or of all, or destinations. Whoever asks again and again takes the `live` answer:
/// the daemon makes one a second, for all who watch.
fn sources(by: GroupBy, n: usize, sort: Sort, live: bool, cluster: bool) -> String {
    let live = if live { "&live=true" } else { "" };
    let place = if cluster { "/cluster" } else { "" };
    let by = if by == GroupBy::Source { "" } else { "&by=destination" };
    format!("/v1{place}/top?n={n}&sort={}{live}{by}", sort.name())
}

/// The resource with sums over sources, of one host or of all.
fn groups(by: GroupBy, n: usize, sort: Sort, cluster: bool) -> String {
    let place = if cluster { "/cluster" } else { "" };
    format!("/v1{place}/groups?by={}&n={n}&sort={}", by.name(), sort.name())
}

/// Whether all hosts are in a list.
const fn all_or_not(unanswered: &[Unanswered]) -> u8 {
    if unanswered.is_empty() { exit::OK } else { exit::NEGATIVE }
}
