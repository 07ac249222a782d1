//! The heaviest on this host: sources, sums over them, and ports.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};

use super::answer::{Answer, Parsed, answer, conflict};
use api::error::{Failure, exit};
use api::requests::{GroupsQuery, PortsQuery, TopQuery};
use api::{GroupsReport, PortsReport, TopReport};
use control::Host;
use model::traffic::{GroupBy, Whose};

pub(super) fn check_count(n: usize) -> Result<(), Failure> {
    let most = TopQuery::MAX;
    if (1..=most).contains(&n) {
        return Ok(());
    }
    let failure = Failure::new(exit::USAGE, format!("{n} lines cannot be listed"));
    Err(failure.hint(format!("ask for 1 to {most}")))
}

/// Sources are summed up by something else.
pub(super) fn not_summed(by: GroupBy) -> Failure {
    let message = format!("sources are not summed up by {}", by.name());
    Failure::new(exit::USAGE, message).hint("ask for by=prefix or by=class")
}

/// Nothing is listed one by one by this.
pub(super) fn not_listed(by: GroupBy, hint: &str) -> Failure {
    Failure::new(exit::USAGE, format!("no lines are listed by {} here", by.name())).hint(hint)
}

pub(super) async fn sources(
    State(host): State<Host>,
    Parsed(Query(TopQuery { by, n, sort, live })): Parsed<Query<TopQuery>>,
) -> Answer<TopReport> {
    check_count(n)?;
    let whose = match by {
        GroupBy::Source => Whose::Sources,
        GroupBy::Destination => Whose::Destinations,
        GroupBy::Prefix | GroupBy::Class | GroupBy::Port => {
            return Err(not_listed(by, "ask for by=source or by=destination").into());
        }
    };
    control::groups::prepare(&host, whose).await?;
    answer(&host, move |core| Ok(core.heaviest(whose, n, sort, live))).await
}

pub(super) async fn groups(
    State(host): State<Host>,
    Parsed(Query(GroupsQuery { by, n, sort })): Parsed<Query<GroupsQuery>>,
) -> Answer<GroupsReport> {
    check_count(n)?;
    Ok(Json(match by {
        GroupBy::Prefix => {
            let rollup = control::groups::by_prefix(&host, None).await?;
            let rows = rollup.rows().map(|row| (row.net.to_string(), row.sums));
            GroupsReport::heaviest(by, sort, n, rows)
        }
        GroupBy::Class => {
            let classes = control::groups::by_class(&host).await?;
            let rows = classes.into_iter().map(|(class, sums)| (class.to_string(), sums));
            GroupsReport::heaviest(by, sort, n, rows)
        }
        GroupBy::Source | GroupBy::Port | GroupBy::Destination => return Err(not_summed(by).into()),
    }))
}

pub(super) async fn ports(
    State(host): State<Host>,
    Parsed(Query(PortsQuery { n, over_ms })): Parsed<Query<PortsQuery>>,
) -> Answer<PortsReport> {
    check_count(n)?;
    // Shorter, chance alone would decide on the ports; longer, a client that is gone would hold the one capture.
    if !(100..=60_000).contains(&over_ms) {
        let message = format!("packets cannot be looked at for {over_ms} ms");
        return Err(Failure::new(exit::USAGE, message).hint("ask for 100 to 60000 ms").into());
    }
    let counted = control::ports(&host, n, Duration::from_millis(over_ms)).await;
    counted.map(Json).map_err(conflict)
}
