//! The route of limits that are proposed.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::Refusal;
use super::handlers::{Answer, unreadable};
use crate::control::{Question, Shared, suggest as watch};
use api::SuggestReport;
use api::error::{Failure, exit};
use model::{Selector, Target};

/// Who may watch at the same time: each takes memory for all sources.
static WATCHES: Semaphore = Semaphore::const_new(2);

/// `GET /v1/suggest`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SuggestQuery {
    /// `default`, or the prefix whose sources are meant.
    pub target: String,
    /// The share of sources that a limit may touch, above 0 and at most 0.5.
    pub share: f64,
    /// For how long to watch, milliseconds.
    pub over_ms: u64,
}

impl Default for SuggestQuery {
    fn default() -> Self {
        Self { target: "default".into(), share: 0.001, over_ms: 10_000 }
    }
}

impl SuggestQuery {
    /// The shortest and the longest time to watch.
    pub const TIMES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];

    /// What is asked for.
    ///
    /// # Errors
    /// If the target is neither everyone nor a prefix, or a number is out of its range.
    pub fn question(&self) -> Result<Question, Failure> {
        let target: Target = self.target.parse()?;
        if target != Target::of(target.whom) {
            return Err(Failure::new(exit::USAGE, "a limit is only suggested for all packets")
                .hint("give --for default, an address or a prefix"));
        }
        if let Selector::Prefix(net) = target.whom
            && net.prefix_len() == net.max_prefix_len()
        {
            return Err(Failure::new(exit::USAGE, format!("{} is a single source", net.addr()))
                .hint("`limiter show` tells what it sends; give a prefix of many"));
        }
        if !(self.share > 0.0 && self.share <= 0.5) {
            let percent = 100.0 * self.share;
            let message = format!("a share of {percent} % of sources cannot be meant");
            return Err(Failure::new(exit::USAGE, message)
                .hint("give more than 0 % and at most 50 %, such as --share 0.1%"));
        }
        let over = Duration::from_millis(self.over_ms);
        let [least, most] = Self::TIMES;
        if !(least..=most).contains(&over) {
            let over = humantime::format_duration(over);
            return Err(Failure::new(exit::USAGE, format!("cannot watch for {over}"))
                .hint("give 1 second to 10 minutes, such as --over 10s"));
        }
        Ok(Question { whom: target.whom, share: self.share, over })
    }
}

pub(super) async fn suggest(
    State(shared): State<Shared>,
    query: Result<Query<SuggestQuery>, QueryRejection>,
) -> Answer<SuggestReport> {
    let Query(query) = query.map_err(unreadable)?;
    let question = query.question()?;
    let Ok(_permit) = WATCHES.try_acquire() else {
        let failure = Failure::new(exit::NEGATIVE, "others are being answered just now")
            .hint("ask again in a while: each answer takes as long as its --over");
        return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, failure));
    };
    Ok(Json(watch(&shared, question).await.map_err(|failure| match failure.code {
        exit::NEGATIVE => Refusal(StatusCode::CONFLICT, failure),
        _ => failure.into(),
    })?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let question = |change: &dyn Fn(&mut SuggestQuery)| {
            let mut query = SuggestQuery::default();
            change(&mut query);
            query.question()
        };
        assert_eq!(question(&|_| ()).unwrap().over, Duration::from_secs(10));
        assert!(question(&|query| query.target = "10.0.0.0/8".into()).is_ok());
        for share in [0.0, -1.0, 0.51, f64::NAN, f64::INFINITY] {
            let failure = question(&|query| query.share = share).unwrap_err();
            assert!(failure.code == exit::USAGE && failure.hint.is_some(), "{failure}");
        }
        for over_ms in [0, 999, 600_001, u64::MAX] {
            assert!(question(&|query| query.over_ms = over_ms).is_err(), "{over_ms}");
        }
        for target in ["10.0.0.1", "2001:db8::1", "x", "default udp:53", "10.0.0.0/8 as-one"] {
            assert!(question(&|query| query.target = target.into()).is_err(), "{target}");
        }
    }
}
