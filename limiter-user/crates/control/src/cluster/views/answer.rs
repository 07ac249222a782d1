//! What this host answers, others and itself.

use std::collections::HashMap;

use limiter_common::abi::ABI_VERSION;

use super::Cluster;
use crate::views::{heaviest_here, known, points, registers, with_rates};
use crate::{RATE_INTERVAL, groups};
use api::error::Failure;
use cluster::queries::groups::{Group, Grouped, Groups, MAX_ROWS, choose};
use cluster::queries::{Answer, Host, MAX_PLACES, Question};
use cluster::wire::{Rejection, Versions};
use model::Class;
use model::{
    rollup::Sums,
    traffic::{GroupBy, Sort, Whose},
};

/// Answers a question.
pub(super) async fn answer(cluster: &Cluster, question: Question) -> Answer {
    let shared = &cluster.shared;
    let answered = match question {
        Question::Ping => Ok(Answer::Pong),
        Question::Host => host(cluster).await,
        Question::Candidates { sort, n, live } => candidates(cluster, sort, n as usize, live).await,
        Question::Points(places) => {
            shared.with(move |core| Ok(Answer::Points(points(core, &places)))).await
        }
        Question::Source(address) => source(cluster, address).await,
        // All of them: there are few classes, so nothing is left out and the list is certain at
        // once.
        Question::Groups { by: GroupBy::Class, .. } => {
            groups::by_class(shared).await.map(|classes| Answer::Groups(of_classes(classes)))
        }
        Question::Groups { sort, n, .. } => {
            let rollup = groups::by_prefix(shared, None).await;
            rollup.map(|rollup| Answer::Groups(choose(sort, n as usize, rollup.rows())))
        }
        // Sorted as in the first round: what has no place is cut at the light end.
        Question::GroupsOf { nets, sort } => {
            let rollup = groups::by_prefix(shared, Some(nets)).await;
            rollup.map(|rollup| Answer::Groups(choose(sort, MAX_PLACES, rollup.rows())))
        }
        // A host with the same hash needs no list: that is the case nearly always, every five
        // seconds.
        Question::FileLimits(hash) => {
            let limits = shared.with(|core| Ok(core.rules.file.clustered())).await;
            limits.map(|limits| {
                Answer::FileLimits((limits.hash != hash).then(|| limits.list.clone()))
            })
        }
        Question::Distinct => {
            shared.with(|core| Ok(Answer::Distinct(registers(core.plane())))).await
        }
    };
    // The text comes from this host and is shown on another one's terminal, hence without control
    // characters.
    answered.unwrap_or_else(|failure| {
        let text: String = failure.message.chars().filter(|char| !char.is_control()).collect();
        Answer::Trouble(text.chars().take(90).collect())
    })
}

fn of_classes(classes: HashMap<Class, Sums>) -> Groups {
    let tracked = classes.values().map(|sums| sums.tally.sources).sum();
    let rows = classes.iter().map(|(class, sums)| Grouped::new(Group::Class(*class), sums));
    // A data plane has room for fewer classes than that.
    Groups { rows: rows.take(MAX_ROWS).collect(), tracked, left_out: 0, bar: 0.0 }
}

async fn candidates(
    cluster: &Cluster,
    sort: Sort,
    n: usize,
    live: bool,
) -> Result<Answer, Failure> {
    // Rates need two scans. It waits here, without the core, until the second one is there.
    let shared = &cluster.shared;
    groups::prepare(shared, Whose::Sources).await?;
    let found = shared.with(move |core| Ok(heaviest_here(core, n, sort, live))).await?;
    Ok(Answer::Candidates(found))
}

async fn source(cluster: &Cluster, address: std::net::IpAddr) -> Result<Answer, Failure> {
    let before = cluster.shared.with(move |core| known(core, address)).await?;
    let began = tokio::time::Instant::now();
    // Between two looks and outside the core, which others use meanwhile.
    tokio::time::sleep(RATE_INTERVAL).await;
    let now = cluster.shared.with(move |core| known(core, address)).await?;
    Ok(Answer::Source(Box::new(with_rates(now, &before, began.elapsed()))))
}

async fn host(cluster: &Cluster) -> Result<Answer, Failure> {
    let known = cluster.shared.with(|core| Ok((core.uptime(), core.rules.file.clustered().hash)));
    let (uptime, file_limits) = known.await?;
    let shares = cluster.shares.borrow().clone();
    let report = cluster.link.report.borrow().clone();
    let counts = &report.counts;
    let (members, versions) = {
        let members = cluster.link.members.borrow();
        (members.len(), members.get(&cluster.me).map_or(Versions::THESE, |me| me.versions))
    };
    // By number: a version that does not know a reason can still pass its count on.
    let rejected = (0..).zip(Rejection::ALL).map(|(at, why)| (at, counts.rejected(why).packets));
    Ok(Answer::Host(Box::new(Host {
        version: env!("CARGO_PKG_VERSION").into(),
        protocol: versions.newest.into(),
        abi: ABI_VERSION,
        uptime_s: uptime.as_secs(),
        home: shares.home.part(),
        floor: shares.floor.part(),
        keys: shares.keys as u64,
        limited: shares.limited as u64,
        left_out: shares.left_out as u64,
        grants: shares.grants.map(|count| count as u64),
        loans: shares.loans.map(|count| count as u64),
        limits: *cluster.digest.borrow(),
        file_limits,
        members: members as u64,
        received: counts.received,
        sent: counts.sent,
        lost: counts.unsent + report.lost,
        rejected: rejected.filter(|(_, packets)| *packets > 0).collect(),
        lag: cluster.views.noticed(|noticed| noticed.lag.bytes()),
    })))
}
