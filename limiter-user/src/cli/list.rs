//! `limiter allow` and `limiter deny`

use std::io;

use super::args::ListCommand;
use super::output::Output;
use super::safety::warn;
use api::client::Client;
use api::error::{Failure, exit};
use api::{ListChanged, ListReport};
use model::lists::{Action, Listing};

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    action: Action,
    command: ListCommand,
) -> Result<u8, Failure> {
    let path = format!("/v1/lists/{action}");
    let (path, targets) = match command {
        ListCommand::List => return output.show::<ListReport>(client, &path).await,
        ListCommand::Add { targets, ttl, reason, scope, yes, safety } => {
            // What cannot be an entry is refused here, so that it needs no daemon to be told.
            Listing::new(action, ttl, reason.clone())?.scoped(scope)?;
            // Whole seconds, as the kernel keeps the end of an entry in seconds since boot.
            let ttl = ttl.map(|ttl| ttl.as_secs().to_string());
            let mut more = Vec::new();
            more.extend(ttl.as_deref().map(|ttl| ("ttl_seconds", ttl)));
            more.extend(scope.map(|scope| ("scope", scope.name())));
            more.extend(reason.as_deref().map(|reason| ("reason", reason)));
            more.extend(yes.then_some(("yes", "true")));
            (format!("{path}{}", safety.query(&more)?), text(targets)?)
        }
        ListCommand::Clear { yes, safety } => {
            let yes = yes.then_some(("yes", "true"));
            // Without --yes it is asked all the same: the daemon refuses, and says how many entries would go.
            (format!("{path}/clear{}", safety.query(yes.as_slice())?), String::new())
        }
        // One request for all: a list that is half removed would be neither what it was nor what
        // was wanted.
        ListCommand::Del { targets, safety } => {
            (format!("{path}/remove{}", safety.query(&[])?), text(targets)?)
        }
    };
    let report: ListChanged = client.send_text(&path, targets).await?;
    warn(&report.applied.warnings);
    output.print(&report)
}

/// The targets: those given as arguments in one line, so that no error speaks of lines.
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
    // In one line, so that errors name no line: there is none to look for.
    Ok(targets.join(" "))
}
