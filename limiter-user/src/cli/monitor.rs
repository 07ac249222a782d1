//! `limiter monitor`

use std::io::{IsTerminal, stdout};
use std::ops::ControlFlow;

use super::args::MonitorArgs;
use super::output::Output;
use api::client::Client;
use api::error::{Failure, exit};
use telemetry::Event;
use telemetry::event::{By, Severity};

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    arguments: &MonitorArgs,
) -> Result<u8, Failure> {
    // A program at the other end of a pipe gets what it can parse.
    let as_text = arguments.text || (!output.is_json() && stdout().is_terminal());
    let kinds: Vec<_> = arguments.kinds.iter().map(|kind| kind.name()).collect();
    let path = format!("/v1/events?kinds={}", kinds.join("%2C"));
    client
        .lines(&path, |line| {
            // The first one only says that the daemon streams.
            if line.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            let mut line = match as_text.then(|| serde_json::from_slice(line)) {
                // One of a later daemon is shown as it is.
                None | Some(Err(_)) => line.to_vec(),
                Some(Ok(event)) => text(&event).into_bytes(),
            };
            line.push(b'\n');
            Ok(if output.raw(&line)? { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })
        .await?;
    Ok(exit::OK)
}

/// An event in a line.
fn text(event: &Event) -> String {
    let time = humantime::format_rfc3339_millis(event.time);
    let severity = match event.severity {
        Severity::Info => "",
        Severity::Warning => "WARNING ",
        Severity::Error => "ERROR ",
    };
    let by = event.what.by().map(|By { user, .. }| format!(" (by {user})")).unwrap_or_default();
    format!("{time} {severity}{}: {}{by}", event.what.kind().name(), event.what)
}
