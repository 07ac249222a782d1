//! `limiter suggest`

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use super::args::SuggestArgs;
use super::output::Output;
use api::client::{Client, escape};
use api::error::Failure;
use api::{SuggestQuery, SuggestReport};

/// How long the daemon may take beside watching.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(30);

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    arguments: &SuggestArgs,
) -> Result<u8, Failure> {
    let SuggestArgs { target, share, over } = arguments;
    let over_ms = u64::try_from(over.as_millis()).unwrap_or(u64::MAX);
    // What cannot be asked is refused here, so that it needs no daemon to be told.
    let query = SuggestQuery { target: target.clone(), share: *share, over_ms };
    let over = query.question()?.over;
    let path = format!("/v1/suggest?target={}&share={share}&over_ms={over_ms}", escape(target));
    let client = client.clone().patient(over + TIMEOUT_MARGIN);
    let report: SuggestReport = counting_down(over, client.get(&path)).await?;
    output.print(&report)
}

/// Waits for an answer that takes `over`, and says on a terminal for how much longer.
pub(super) async fn counting_down<T>(over: Duration, answer: impl Future<Output = T>) -> T {
    tokio::pin!(answer);
    // stdout has the proposal alone, as a script copies it from there.
    let mut terminal = stderr();
    if !terminal.is_terminal() {
        return answer.await;
    }
    let (began, mut ticks) = (Instant::now(), tokio::time::interval(Duration::from_secs(1)));
    loop {
        tokio::select! {
            answer = &mut answer => {
                // A terminal that is gone needs no clean line.
                let _ = write!(terminal, "\r\x1b[K");
                return answer;
            }
            _ = ticks.tick() => {
                let left = over.saturating_sub(began.elapsed()).as_secs_f64().ceil();
                let _ = write!(terminal, "\r\x1b[Kwatching what sources send: {left:.0} s left");
            }
        }
    }
}

/// Reads a share such as `0.1%` or `0.001`.
pub(super) fn parse_share(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim(), 0.01),
        None => (text.trim(), 1.0),
    };
    let value: f64 = number.parse().map_err(|_| "not a share: write 0.1% or 0.001".to_owned())?;
    Ok(value * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_or_a_fraction() {
        for (text, share) in [("0.1%", 0.001), ("0.001", 0.001), ("5 %", 0.05)] {
            assert!((parse_share(text).unwrap() - share).abs() < 1e-12, "{text}");
        }
        assert!(parse_share("few").is_err() && parse_share("%").is_err());
    }
}
