//! `/v1/lists/…`: the allow and deny lists.

use axum::extract::{Path, Query, State};

use super::answer::{Answer, Parsed, answer, answer_or_conflict};
use api::error::Failure;
use api::requests::{ChangeQuery, ClearQuery, ListQuery};
use api::{ListChanged, ListReport};
use control::Shared;
use model::lists::{Action, Listing, read};

pub(super) async fn list(
    State(shared): State<Shared>,
    Parsed(Path(action)): Parsed<Path<Action>>,
) -> Answer<ListReport> {
    answer(&shared, move |core| Ok(core.list(action))).await
}

pub(super) async fn add(
    State(shared): State<Shared>,
    Parsed(Path(action)): Parsed<Path<Action>>,
    Parsed(Query(query)): Parsed<Query<ListQuery>>,
    Parsed(targets): Parsed<String>,
) -> Answer<ListChanged> {
    let how = query.how();
    let listing = Listing::new(action, query.ttl(), query.reason)
        .and_then(|listing| listing.scoped(query.scope))
        .map_err(Failure::from)?;
    answer_or_conflict(&shared, move |core| {
        // In the core's thread: only the core knows to which prefixes targets are cut.
        let targets = read(&targets, core.prefixes())?;
        core.list_add(&targets, &listing, &how)
    })
    .await
}

pub(super) async fn remove(
    State(shared): State<Shared>,
    Parsed(Path(action)): Parsed<Path<Action>>,
    Parsed(Query(query)): Parsed<Query<ChangeQuery>>,
    Parsed(targets): Parsed<String>,
) -> Answer<ListChanged> {
    answer_or_conflict(&shared, move |core| {
        let targets = read(&targets, core.prefixes())?;
        core.list_remove(action, &targets, &query.how())
    })
    .await
}

pub(super) async fn clear(
    State(shared): State<Shared>,
    Parsed(Path(action)): Parsed<Path<Action>>,
    Parsed(Query(query)): Parsed<Query<ClearQuery>>,
) -> Answer<ListChanged> {
    answer_or_conflict(&shared, move |core| core.list_clear(action, &query.how())).await
}
