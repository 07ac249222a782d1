//! `limiter report`

use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::time::Duration;

use super::args::{ReportArgs, ReportFormat};
use super::output::{Output, write_file};
use api::client::{Client, escape};
use api::error::{Failure, exit};
use api::{LimitList, StatusReport};
use report::IncidentReport;

/// Limits from which on only their number is told: the page is to be mailed, and opened by a browser.
const MAX_LIMITS: u64 = 10_000;

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    arguments: &ReportArgs,
) -> Result<u8, Failure> {
    let format = if output.is_json() { ReportFormat::Json } else { arguments.format };
    let to_stdout = arguments.out == Path::new("-");
    if to_stdout && matches!(format, ReportFormat::Html) && stdout().is_terminal() {
        return Err(Failure::new(exit::USAGE, "the report is a page for a browser")
            .hint("write it to a file: `limiter report --out report.html`"));
    }
    let text = |duration: Duration| escape(&humantime::format_duration(duration).to_string());
    let (since, until) = (text(arguments.since), text(arguments.until));
    let step = arguments.step.map(|step| format!("&step={}", text(step))).unwrap_or_default();
    let history = client.get(&format!("/v1/history?since={since}&until={until}{step}")).await?;
    // Before the limits, as it says how many they are: a million of them would be the page.
    let status: StatusReport = client.get("/v1/status").await?;
    let limits = match status.limits {
        0..=MAX_LIMITS => client.get("/v1/limits").await?,
        _ => LimitList { limits: Vec::new() },
    };
    let top = client.get("/v1/top?n=100&sort=dropped").await?;
    let happened = client.get("/v1/changes").await?;
    let report = IncidentReport::new(history, top, limits, happened, status);
    // Whole before the file is touched: a failure leaves the report that is there.
    let content = match format {
        ReportFormat::Html => report.html(),
        ReportFormat::Csv => Ok(report.csv()),
        ReportFormat::Json => serde_json::to_string(&report)
            .map(|text| text + "\n")
            .map_err(|error| error.to_string()),
    };
    let content = content.map_err(|problem| {
        Failure::new(exit::NEGATIVE, format!("cannot write the report: {problem}"))
    })?;
    if to_stdout {
        output.raw(content.as_bytes())?;
    } else {
        write_file(&arguments.out, &content, "name another file with --out, or - for stdout")?;
        eprintln!("wrote {}", arguments.out.display());
    }
    Ok(exit::OK)
}
