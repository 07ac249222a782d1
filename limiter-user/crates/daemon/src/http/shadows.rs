//! `/v1/shadows`: shadow limits.

use axum::Json;
use axum::extract::{Query, State};

use super::answer::{Answer, Parsed, answer, change};
use api::error::{Failure, exit};
use api::requests::{ShadowQuery, ShadowRequest, ShadowsQuery, TopQuery};
use api::{ShadowSet, ShadowUnset, ShadowsReport};
use control::Host;
use control::rules::shadows;
use model::Target;

pub(super) async fn start(
    State(host): State<Host>,
    Parsed(Json(request)): Parsed<Json<ShadowRequest>>,
) -> Answer<ShadowSet> {
    let limit = request.limit()?;
    change(&host, move |core| shadows::set(&mut core.rules, &limit)).await
}

pub(super) async fn stop(
    State(host): State<Host>,
    Parsed(Query(query)): Parsed<Query<ShadowQuery>>,
) -> Answer<ShadowUnset> {
    let target: Target = query.target.parse().map_err(Failure::from)?;
    change(&host, move |core| shadows::unset(&mut core.rules, &target)).await
}

pub(super) async fn list(
    State(host): State<Host>,
    Parsed(Query(ShadowsQuery { n })): Parsed<Query<ShadowsQuery>>,
) -> Answer<ShadowsReport> {
    // As `top::check_count`, but none of the sources is an answer too: the trials themselves.
    if n > TopQuery::MAX {
        let failure = Failure::new(exit::USAGE, format!("{n} sources cannot be listed"));
        return Err(failure.hint(format!("ask for {} at the most", TopQuery::MAX)).into());
    }
    answer(&host, move |core| Ok(shadows::list(&core.rules, n))).await
}
