//! `/v1/history`

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};

use super::answer::{Answer, Parsed};
use api::HistoryReport;
use api::error::{Failure, exit};
use api::requests::HistoryQuery;
use control::Host;
use model::units::parse_duration;
use telemetry::history::MAX_AGE;

/// `text` as a duration; `name` is what it is for.
fn duration(name: &str, text: &str) -> Result<Duration, Failure> {
    parse_duration(text).map_err(|error| Failure::from(error).context(name))
}

pub(super) async fn history(
    State(host): State<Host>,
    Parsed(Query(HistoryQuery { since, until, step })): Parsed<Query<HistoryQuery>>,
) -> Answer<HistoryReport> {
    let (since, until) = (duration("since", &since)?, duration("until", &until)?);
    let step = step.map(|step| duration("step", &step)).transpose()?;
    // Both are told as "how long ago", so the larger one is the earlier.
    if since <= until {
        let failure = Failure::new(exit::USAGE, "the time to tell of ends before it begins");
        return Err(failure.hint("since must be longer ago than until").into());
    }
    // Cut to what there is, the answer would pass for all of the time that was asked for.
    if since > Duration::from_secs(MAX_AGE) {
        let failure = Failure::new(exit::USAGE, "history does not go back so far");
        return Err(failure.hint("ask for 7days at the most").into());
    }
    let series = host.with(move |core| Ok(core.past.series(since, until, step))).await?;
    // Outside of the core: nobody else has to wait for it.
    Ok(Json(HistoryReport::new(&series)))
}
