//! Tells the store what this host has admitted by itself, and hears what all hosts have.

use std::sync::Arc;
use std::time::Duration;

use decide::act::Act;
use decide::act::Role;
use decide::central::{Answer, LAST, MAX_KEYS, Question};
use decide::synced::{Due, Synced};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{MissedTickBehavior, interval};

use crate::central::Central;
use crate::memory::Words;
use crate::service::Service;

/// How often is looked for what is to be told.
const LOOK: Duration = Duration::from_millis(5);

/// Keys of a look at the most. The rest is told at the next one.
const MAX_DUE: usize = 64 * MAX_KEYS;

/// Tells the store as long as the runtime lives, if there is one.
pub(crate) fn start(service: Arc<Service>) {
    tokio::spawn(async move {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let (Some(central), Some(synced)) = (&service.central, &service.states().synced) else {
                return;
            };
            // What is not told stays untold, and this host admits no more than its budget.
            if central.health().is_up() {
                tell(&service, central, synced).await;
            }
        }
    });
}

async fn tell(service: &Service, central: &Central, synced: &Synced<Words>) {
    let mut due = synced.due(MAX_DUE, service.now());
    due.sort_by(|one, other| one.name.domain.cmp(&other.name.domain));
    let calls = due
        .chunk_by(|one, next| one.name.domain == next.name.domain)
        .flat_map(|of_domain| of_domain.chunks(MAX_KEYS));
    let mut calls: FuturesUnordered<_> = calls.map(|keys| call(central, keys)).collect();
    while let Some((keys, answers)) = calls.next().await {
        for (due, answer) in keys.iter().zip(answers.unwrap_or_default()) {
            if let Answer::Standing(standing, _) = answer {
                synced.heard(due.key, due.units, standing.renews, service.now());
            }
        }
    }
}

/// Tells of some keys of one domain.
async fn call<'a>(central: &Central, keys: &'a [Due]) -> (&'a [Due], Option<Vec<Answer>>) {
    let question = |due: &Due| {
        let act = if due.units > 0 { Act::Owe } else { Act::Peek };
        let mut question = Question::new(&due.name, &due.limit, Role::Enforced, act, due.units);
        question.set(LAST);
        question
    };
    let Some(first) = keys.first() else { return (keys, None) };
    (keys, central.ask(&first.name, keys.iter().map(question).collect()).await)
}
