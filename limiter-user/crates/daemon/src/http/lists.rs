//! `/v1/lists/…`: the allow and deny lists.

use axum::extract::{Path, Query, State};

use super::answer::{Answer, Parsed, Refusal, answer, change};
use api::error::Failure;
use api::requests::{ChangeQuery, ClearQuery, ListQuery};
use api::{ListChanged, ListReport};
use control::Host;
use control::rules::lists;
use model::lists::{Action, Listing, read};

pub(super) async fn list(
    State(shared): State<Host>,
    Parsed(Path(action)): Parsed<Path<Action>>,
) -> Answer<ListReport> {
    answer(&shared, move |core| Ok(lists::list(&core.rules, action))).await
}

pub(super) async fn add(
    State(shared): State<Host>,
    Parsed(Path(action)): Parsed<Path<Action>>,
    Parsed(Query(query)): Parsed<Query<ListQuery>>,
    Parsed(targets): Parsed<String>,
) -> Answer<ListChanged> {
    let how = query.how();
    let listing = Listing::new(action, query.ttl(), query.reason)
        .and_then(|listing| listing.scoped(query.scope))
        .map_err(Failure::from)?;
    // Before the core is locked: there may be very many.
    let targets = read(&targets, prefixes(&shared).await?).map_err(Failure::from)?;
    change(&shared, move |core| lists::add(&mut core.rules, &targets, &listing, &how)).await
}

pub(super) async fn remove(
    State(shared): State<Host>,
    Parsed(Path(action)): Parsed<Path<Action>>,
    Parsed(Query(query)): Parsed<Query<ChangeQuery>>,
    Parsed(targets): Parsed<String>,
) -> Answer<ListChanged> {
    // Before the core is locked: there may be very many.
    let targets = read(&targets, prefixes(&shared).await?).map_err(Failure::from)?;
    change(&shared, move |core| lists::remove(&mut core.rules, action, &targets, &query.how()))
        .await
}

pub(super) async fn clear(
    State(shared): State<Host>,
    Parsed(Path(action)): Parsed<Path<Action>>,
    Parsed(Query(query)): Parsed<Query<ClearQuery>>,
) -> Answer<ListChanged> {
    change(&shared, move |core| lists::clear(&mut core.rules, action, &query.how())).await
}

async fn prefixes(shared: &Host) -> Result<(u8, u8), Refusal> {
    Ok(shared.with(|core| Ok(core.rules.prefixes())).await?)
}
