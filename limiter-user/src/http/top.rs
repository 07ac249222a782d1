//! The heaviest: sources, and sums over them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Extension, Json, Router};
use tokio::sync::Mutex;

use super::Refusal;
use super::handlers::{Answer, conflict, unreadable};
use super::types::{GroupsQuery, PortsQuery, TopQuery};
use crate::daemon::{Shared, ports};
use crate::error::{Failure, exit};
use crate::policy::Class;
use crate::report::{By, GroupsReport, PortsReport, Rollup, Sort, Sums, TopReport};

/// Buckets that are summed up at once: about a millisecond's work, then the core is free for others.
const AT_ONCE: usize = 16_384;

/// One sum over all sources at a time: it may need some megabytes for a moment.
type Turn = Arc<Mutex<()>>;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/v1/top", get(top))
        .route("/v1/groups", get(groups))
        .route("/v1/ports", get(by_port))
        .layer(Extension(Turn::default()))
}

pub(super) fn check(n: usize) -> Result<(), Failure> {
    let most = TopQuery::MOST;
    if (1..=most).contains(&n) {
        return Ok(());
    }
    let failure = Failure::new(exit::USAGE, format!("{n} lines cannot be listed"));
    Err(failure.hint(format!("ask for 1 to {most}")))
}

/// Two looks apart from each other make a rate; the core is free for others in between.
async fn prepare(shared: &Shared, sort: Sort) -> Result<(), Failure> {
    while let Some(wait) = shared.with(move |core| Ok(core.prepare_top(sort))).await? {
        tokio::time::sleep(wait).await;
    }
    Ok(())
}

async fn top(
    State(shared): State<Shared>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Answer<TopReport> {
    let Query(TopQuery { n, sort, live }) = query.map_err(unreadable)?;
    check(n)?;
    prepare(&shared, sort).await?;
    let look = move |core: &mut crate::daemon::Core| {
        Ok(if live { core.top(n, sort) } else { core.top_now(n, sort) })
    };
    Ok(Json(shared.with(look).await?))
}

async fn groups(
    State(shared): State<Shared>,
    Extension(turn): Extension<Turn>,
    query: Result<Query<GroupsQuery>, QueryRejection>,
) -> Answer<GroupsReport> {
    let Query(GroupsQuery { by, n, sort }) = query.map_err(unreadable)?;
    check(n)?;
    let _turn = turn.lock().await;
    // Rates are told in any case.
    prepare(&shared, Sort::Pps).await?;
    match by {
        By::Prefix => {
            let rollup = sum(&shared, Rollup::default(), |rollup, member, sums| {
                rollup.add(&member.source, sums);
            });
            let rows = rollup.await?.rows().map(|(net, sums)| (net.to_string(), sums));
            Ok(Json(GroupsReport::heaviest(by, sort, n, rows)))
        }
        By::Class => {
            let classes = sum(&shared, HashMap::new(), |classes, member, sums| {
                classes.entry(member.class).or_insert_with(Sums::default).add(sums);
            });
            let rows = classes
                .await?
                .into_iter()
                .map(|(class, sums): (Class, Sums)| (class.to_string(), sums));
            Ok(Json(GroupsReport::heaviest(by, sort, n, rows)))
        }
        By::Source | By::Port => {
            let message = format!("sources are not summed up by {}", by.name());
            let failure = Failure::new(exit::USAGE, message);
            Err(Refusal::from(failure.hint("ask for by=prefix or by=class")))
        }
    }
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

/// Adds every source to `sums`, some at a time.
async fn sum<T: Send + 'static>(
    shared: &Shared,
    mut sums: T,
    add: impl Fn(&mut T, &crate::dataplane::Member, &Sums) + Copy + Send + 'static,
) -> Result<T, Failure> {
    let buckets = shared.with(|core| Ok(core.buckets())).await?;
    for first in (0..buckets).step_by(AT_ONCE) {
        let part = first..buckets.min(first + AT_ONCE);
        sums = shared
            .with(move |core| {
                core.members(part, &mut |member, offered| {
                    add(&mut sums, &member, &Sums::of(&member, offered));
                });
                Ok(sums)
            })
            .await?;
    }
    Ok(sums)
}
