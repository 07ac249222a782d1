//! `/v1/lists/…`: the allow and deny lists.

use axum::extract::{Path, Query, State};

use super::answer::{Answer, Parsed, Refusal, answer, change};
use api::error::{Failure, exit};
use api::requests::{ChangeQuery, ClearQuery, ListQuery};
use api::{ListChanged, ListReport};
use control::Host;
use control::rules::lists;
use model::lists::{Action, Listing, read, read_sources};

pub(super) async fn list(
    State(host): State<Host>,
    Parsed(Path(action)): Parsed<Path<Action>>,
) -> Answer<ListReport> {
    answer(&host, move |core| Ok(lists::list(&core.rules, action))).await
}

pub(super) async fn add(
    State(host): State<Host>,
    Parsed(Path(action)): Parsed<Path<Action>>,
    Parsed(Query(query)): Parsed<Query<ListQuery>>,
    Parsed(targets): Parsed<String>,
) -> Answer<ListChanged> {
    let (how, automatic) = (query.how(), query.automatic);
    let listing = Listing::new(action, query.ttl(), query.reason)
        .and_then(|listing| listing.scoped(query.scope))
        .map_err(Failure::from)?;
    if automatic && action != Action::Deny {
        return Err(Failure::new(exit::USAGE, "only denials are automatic").into());
    }
    // Before the core is locked: there may be very many.
    let read = if automatic { read_sources } else { read };
    let targets = read(&targets, prefixes(&host).await?).map_err(Failure::from)?;
    change(&host, move |core| {
        let add = if automatic { lists::deny_sources } else { lists::add };
        add(&mut core.rules, &targets, &listing, &how)
    })
    .await
}

pub(super) async fn remove(
    State(host): State<Host>,
    Parsed(Path(action)): Parsed<Path<Action>>,
    Parsed(Query(query)): Parsed<Query<ChangeQuery>>,
    Parsed(targets): Parsed<String>,
) -> Answer<ListChanged> {
    // Before the core is locked: there may be very many.
    let targets = read(&targets, prefixes(&host).await?).map_err(Failure::from)?;
    change(&host, move |core| lists::remove(&mut core.rules, action, &targets, &query.how())).await
}

pub(super) async fn clear(
    State(host): State<Host>,
    Parsed(Path(action)): Parsed<Path<Action>>,
    Parsed(Query(query)): Parsed<Query<ClearQuery>>,
) -> Answer<ListChanged> {
    change(&host, move |core| lists::clear(&mut core.rules, action, &query.how())).await
}

async fn prefixes(host: &Host) -> Result<(u8, u8), Refusal> {
    Ok(host.with(|core| Ok(core.rules.prefixes())).await?)
}
