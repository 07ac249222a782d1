//! The page.

use super::chart::{self, Line};
use super::{IncidentReport, Source, Sources, escape, time};
use api::HistoryReport;
use api::text::thousands;
use model::target::short_prefix;
use telemetry::Event;

/// Limits that the page lists; more are counted.
// A million rows would be a page that no browser opens.
const LIMITS: usize = 100;

/// The style of a page.
// In the page itself: it is mailed around and opened where nothing else can be fetched.
const STYLE: &str = "\
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--soft:#5b6470;--line:#d5dae0;--box:#f3f5f7}\
@media(prefers-color-scheme:dark){:root{--fg:#e6e9ed;--bg:#14171b;--soft:#9aa4b0;--line:#343b44;--box:#1e2329}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:60rem;margin:2rem auto;padding:0 1rem}\
.verdict{background:var(--box);border-left:4px solid #d55e00;padding:.5rem 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}.soft{color:var(--soft)}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}\
th,td{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
figure{margin:1rem 0}figcaption{font-weight:600}\
svg{width:100%;min-width:44rem;height:auto}svg text{fill:var(--fg)}\
svg [stroke=\"#000000\"]{stroke:var(--fg)}";

/// A page that needs nothing from elsewhere: its title, already escaped, and what is in it.
pub fn document(title: &str, main: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>limiter: {title}</title>\n<style>{STYLE}</style></head>\n<body><main>\n{main}</main></body></html>\n"
    )
}

/// A table; columns from `numbers` on are numbers.
pub fn table(name: &str, header: &[&str], numbers: usize, rows: &[Vec<String>]) -> String {
    let class = |i: usize| if i >= numbers { " class=\"n\"" } else { "" };
    let cells = |tag: &str, row: &mut dyn Iterator<Item = &str>| {
        let cell = |(i, text): (usize, &str)| {
            // Read out with each cell to those who do not see the table.
            let scope = if tag == "th" { " scope=\"col\"" } else { "" };
            format!("<{tag}{}{scope}>{}</{tag}>", class(i), escape(text))
        };
        row.enumerate().map(cell).collect::<String>()
    };
    let name = escape(name);
    if rows.is_empty() {
        return format!("<h2>{name}</h2><p class=\"soft\">None.</p>\n");
    }
    let head = cells("th", &mut header.iter().copied());
    let body: String = rows
        .iter()
        .map(|row| format!("<tr>{}</tr>\n", cells("td", &mut row.iter().map(String::as_str))))
        .collect();
    format!(
        "<h2>{name}</h2><div class=\"wide\"><table aria-label=\"{name}\"><thead><tr>{head}</tr></thead>\n\
         <tbody>{body}</tbody></table></div>\n"
    )
}

fn events(name: &str, events: &[Event], from: f64) -> String {
    let moment = |event: &Event| {
        let since = event.time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        since.as_secs_f64()
    };
    let rows: Vec<_> = events
        .iter()
        .rev()
        .filter(|event| moment(event) >= from)
        .map(|event| {
            let by = event.what.by().map_or("", |by| by.user.as_str()).to_owned();
            vec![time(moment(event)), event.what.kind().name().into(), event.what.to_string(), by]
        })
        .collect();
    table(name, &["Time", "Event", "What", "By"], 4, &rows)
}

fn charts(history: &HistoryReport) -> Result<String, String> {
    // Drops by reason, passes as one line: seven colours can be told apart, and reasons to pass
    // hurt nobody.
    let mut packets: Vec<Line<'_>> = vec![("passed".into(), &history.passed_pps)];
    for row in history.reasons.iter().filter(|row| row.verdict == "drop") {
        packets.push((format!("dropped, {}", row.reason), &row.pps));
    }
    let bits: [Line<'_>; 2] =
        [("passed".into(), &history.passed_bps), ("dropped".into(), &history.dropped_bps)];
    let mut sources: Vec<Line<'_>> = vec![("buckets in use".into(), &history.tracked)];
    if history.distinct.iter().any(Option::is_some) {
        sources.push(("distinct sources in a window".into(), &history.distinct));
    }
    let mut page = String::new();
    for (title, lines) in [
        ("Packets per second, by verdict and reason", &packets[..]),
        ("Bits per second", &bits[..]),
        ("Sources", &sources[..]),
    ] {
        let svg = chart::svg(title, &history.time, lines)?;
        // Where the page is narrow, a chart of its width could not be read.
        page.push_str(&format!("<h2>{}</h2>\n<div class=\"wide\">{svg}</div>\n", escape(title)));
    }
    Ok(page)
}

fn sources(report: &IncidentReport) -> String {
    let Sources { all, have_lost } = Sources::new(&report.top);
    let row = |source: Source| {
        vec![
            short_prefix(&source.net),
            source.limits.join(", "),
            source.first_seen.unwrap_or_default(),
            thousands(source.pps.round() as u64),
            thousands(source.passed),
            thousands(source.dropped),
            thousands(source.bytes),
        ]
    };
    let rows: Vec<_> = all.into_iter().map(row).collect();
    let header =
        ["Source", "Limit", "Bucket since", "Packets/s", "Passed", "Dropped", "Bytes offered"];
    let name = if have_lost { "Top offenders at present" } else { "Heaviest sources at present" };
    table(name, &header, 3, &rows)
}

fn limits(report: &IncidentReport) -> String {
    let limits = report.limits.limits.iter().take(LIMITS);
    let rows: Vec<_> = limits.map(|limit| vec![limit.target.short(), limit.summary()]).collect();
    let mut page = table("Limits in force", &["For", "Limit"], 2, &rows);
    // By the status: the list is left out where there are more than ten thousand.
    let more = report.status.limits.saturating_sub(rows.len() as u64);
    if more > 0 {
        page.push_str(&format!("<p class=\"soft\">and {more} more</p>\n"));
    }
    page
}

/// The page of a report.
///
/// # Errors
/// If a chart cannot be drawn, with the reason.
pub(crate) fn page(report: &IncidentReport) -> Result<String, String> {
    let history = &report.history.known();
    let step = history.step_seconds;
    let from = history.time.first().map_or(0.0, |first| first - step as f64);
    let until = history.time.last().copied().unwrap_or_default();
    let verdict: String =
        report.verdict.iter().map(|sentence| format!("<p>{}</p>", escape(sentence))).collect();
    let warnings: Vec<_> =
        report.status.warnings.iter().map(|warning| vec![warning.clone()]).collect();
    let warnings = match warnings.is_empty() {
        true => String::new(),
        false => table("Warnings at present", &["Warning"], 1, &warnings),
    };
    let (begin, end) = (time(from), time(until));
    let main = format!(
        "<h1>What the limiter saw</h1>\n<p class=\"soft\">{begin} to {end}, in steps of {step} s. A gap in a \
         line: nobody counted; what came in it is in the step after it.</p>\n\
         <div class=\"verdict\" role=\"status\">{verdict}</div>\n{}{}{}{}{}{warnings}\
         <p class=\"soft\">limiter {}; events and changes since the daemon has started.</p>\n",
        charts(history)?,
        sources(report),
        limits(report),
        events("Changes", &report.happened.changes, from),
        events("Events", &report.happened.events, from),
        escape(&report.status.version),
    );
    Ok(document(&format!("{begin} to {end}"), &main))
}
