//! `/v1/lists/…`: the allow and deny lists.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection, StringRejection};
use axum::extract::{Path, Query, State};

use super::handlers::{Answer, conflict, unreadable};
use api::error::Failure;
use api::requests::{ChangeQuery, ClearQuery, ListQuery};
use api::{ListChanged, ListReport};
use control::Shared;
use model::lists::{Action, Listing, read};

pub(super) async fn list(
    State(shared): State<Shared>,
    action: Result<Path<Action>, PathRejection>,
) -> Answer<ListReport> {
    let Path(action) = action.map_err(unreadable)?;
    Ok(Json(shared.with(move |core| Ok(core.list(action))).await?))
}

pub(super) async fn add(
    State(shared): State<Shared>,
    action: Result<Path<Action>, PathRejection>,
    query: Result<Query<ListQuery>, QueryRejection>,
    targets: Result<String, StringRejection>,
) -> Answer<ListChanged> {
    let Path(action) = action.map_err(unreadable)?;
    let Query(query) = query.map_err(unreadable)?;
    let targets = targets.map_err(unreadable)?;
    let how = query.how();
    let listing = Listing::new(action, query.ttl(), query.reason)
        .and_then(|listing| listing.scoped(query.scope))
        .map_err(Failure::from)?;
    let added = shared
        .with(move |core| {
            let targets = read(&targets, core.prefixes())?;
            core.list_add(&targets, &listing, &how)
        })
        .await;
    Ok(Json(added.map_err(conflict)?))
}

pub(super) async fn remove(
    State(shared): State<Shared>,
    action: Result<Path<Action>, PathRejection>,
    query: Result<Query<ChangeQuery>, QueryRejection>,
    targets: Result<String, StringRejection>,
) -> Answer<ListChanged> {
    let Path(action) = action.map_err(unreadable)?;
    let how = query.map_err(unreadable)?.how();
    let targets = targets.map_err(unreadable)?;
    let removed = shared
        .with(move |core| {
            let targets = read(&targets, core.prefixes())?;
            core.list_remove(action, &targets, &how)
        })
        .await;
    Ok(Json(removed.map_err(conflict)?))
}

pub(super) async fn clear(
    State(shared): State<Shared>,
    action: Result<Path<Action>, PathRejection>,
    query: Result<Query<ClearQuery>, QueryRejection>,
) -> Answer<ListChanged> {
    let Path(action) = action.map_err(unreadable)?;
    let how = query.map_err(unreadable)?.how();
    let cleared = shared.with(move |core| core.list_clear(action, &how)).await;
    Ok(Json(cleared.map_err(conflict)?))
}
