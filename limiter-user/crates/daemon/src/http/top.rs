//! The heaviest: sources, and sums over them.

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};

use super::handlers::{Answer, conflict, unreadable};
use api::error::{Failure, exit};
use api::requests::{GroupsQuery, PortsQuery, TopQuery};
use api::{GroupsReport, PortsReport, TopReport};
use control::{Shared, groups, ports};
use model::traffic::GroupBy;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/v1/top", get(top))
        .route("/v1/groups", get(summed))
        .route("/v1/ports", get(by_port))
}

pub(super) fn check(n: usize) -> Result<(), Failure> {
    let most = TopQuery::MAX;
    if (1..=most).contains(&n) {
        return Ok(());
    }
    let failure = Failure::new(exit::USAGE, format!("{n} lines cannot be listed"));
    Err(failure.hint(format!("ask for 1 to {most}")))
}

async fn top(
    State(shared): State<Shared>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Answer<TopReport> {
    let Query(TopQuery { n, sort, live }) = query.map_err(unreadable)?;
    check(n)?;
    groups::prepare(&shared).await?;
    let look = move |core: &mut control::Core| {
        Ok(if live { core.top(n, sort) } else { core.top_now(n, sort) })
    };
    Ok(Json(shared.with(look).await?))
}

async fn summed(
    State(shared): State<Shared>,
    query: Result<Query<GroupsQuery>, QueryRejection>,
) -> Answer<GroupsReport> {
    let Query(GroupsQuery { by, n, sort }) = query.map_err(unreadable)?;
    check(n)?;
    match by {
        GroupBy::Prefix => {
            let rollup = groups::by_prefix(&shared, None).await?;
            let rows = rollup.rows().map(|row| (row.net.to_string(), row.sums));
            Ok(Json(GroupsReport::heaviest(by, sort, n, rows)))
        }
        GroupBy::Class => {
            let classes = groups::by_class(&shared).await?;
            let rows = classes.into_iter().map(|(class, sums)| (class.to_string(), sums));
            Ok(Json(GroupsReport::heaviest(by, sort, n, rows)))
        }
        GroupBy::Source | GroupBy::Port => Err(not_summed(by).into()),
    }
}

/// Sources are summed up by something else.
pub(super) fn not_summed(by: GroupBy) -> Failure {
    let message = format!("sources are not summed up by {}", by.name());
    Failure::new(exit::USAGE, message).hint("ask for by=prefix or by=class")
}

async fn by_port(
    State(shared): State<Shared>,
    query: Result<Query<PortsQuery>, QueryRejection>,
) -> Answer<PortsReport> {
    let Query(PortsQuery { n, over_ms }) = query.map_err(unreadable)?;
    check(n)?;
    if !(100..=60_000).contains(&over_ms) {
        let message = format!("packets cannot be looked at for {over_ms} ms");
        return Err(Failure::new(exit::USAGE, message).hint("ask for 100 to 60000 ms").into());
    }
    let counted = ports(&shared, n, Duration::from_millis(over_ms)).await;
    Ok(Json(counted.map_err(conflict)?))
}
