//! Leases of strict limits of packets: the host's daemon says what it wants of the central store, and is brought that.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::client::Client;
use api::{LeaseWanted, LeasesBrought, LeasesWanted};
use decide::act::{Act, Role};
use decide::central::{Answer, LAST, MAX_KEYS, Name, PARTIAL, Question};
use futures_util::future::join_all;
use hyper::Method;
use model::meter::{Choice, Limit};
use tokio::time::{sleep, timeout};

use crate::central::Central;
use crate::service::Service;

/// The domain of all packets in the store.
const DOMAIN: &str = "packets";

/// How soon a daemon is asked again that did not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// How long an answer is waited for: the daemon answers sooner.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks the daemon at `socket` as long as the runtime lives, where there is a store.
pub(crate) fn start(service: Arc<Service>, socket: PathBuf) {
    tokio::spawn(async move {
        let Some(central) = &service.central else { return };
        let daemon = Client::new(&socket);
        let (mut leases, mut warned) = (Vec::new(), false);
        loop {
            let problem = central.health().problem();
            let brought = LeasesBrought { problem, leases: std::mem::take(&mut leases) };
            let wanted = daemon.send(Method::POST, "/v1/leases", &brought);
            let why = match timeout(TIMEOUT, wanted).await {
                Ok(Ok(LeasesWanted { leases: wanted })) => {
                    leases = bring(central, wanted).await;
                    warned = false;
                    continue;
                }
                Ok(Err(failure)) => failure.to_string(),
                Err(_) => format!("no answer in {} s", TIMEOUT.as_secs()),
            };
            // What was brought then is lost, and has an end.
            if !std::mem::replace(&mut warned, true) {
                tracing::warn!("the daemon wants no leases of strict limits: {why}");
            }
            sleep(PAUSE).await;
        }
    });
}

/// Gives back what is not wanted any more, and asks for what is.
async fn bring(central: &Central, wanted: Vec<LeaseWanted>) -> Vec<(u64, Option<u64>)> {
    let (back, wanted): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|it| it.number.is_none());
    let domain = Name::new(DOMAIN, &[]);
    for part in back.chunks(MAX_KEYS) {
        central.tell(&domain, part.iter().map(|it| question(it, Act::Refund)).collect());
    }
    let calls = wanted.chunks(MAX_KEYS).map(|part| async {
        let questions = part.iter().map(|it| question(it, Act::Take)).collect();
        let answers = central.ask(&domain, questions).await.unwrap_or_default();
        let mut charged = answers.into_iter().map(|answer| match answer {
            Answer::Standing(_, charged) => Some(charged),
            Answer::Foreign | Answer::ReadOnly => None,
        });
        let numbers = part.iter().filter_map(|it| it.number);
        numbers.map(|number| (number, charged.next().flatten())).collect::<Vec<_>>()
    });
    join_all(calls).await.concat()
}

fn question(wanted: &LeaseWanted, act: Act) -> Question {
    let limit = Limit {
        requests: wanted.requests,
        window: Duration::from_nanos(wanted.window_ns),
        algorithm: Choice::TokenBucket,
        burst: Some(wanted.burst),
        granularity: None,
    };
    let name = Name::new(DOMAIN, &[("source", &wanted.source), ("class", &wanted.class)]);
    let mut question = Question::new(&name, &limit, Role::Enforced, act, wanted.tokens);
    question.set(LAST | PARTIAL);
    question
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_a_partial_charge_of_its_source() {
        let wanted = LeaseWanted {
            number: Some(7),
            tokens: 85,
            source: "192.0.2.1/32".into(),
            class: "udp:53".into(),
            requests: 1_000,
            window_ns: 1_000_976_562,
            burst: 780,
        };
        let asked = question(&wanted, Act::Take);
        let key = br#"limiter:{packets}:g:["source","192.0.2.1/32","class","udp:53"]"#;
        assert_eq!(asked.key, key);
        assert_eq!(asked.argument[..3], [b't', b'e', LAST | PARTIAL]);
        assert_eq!(asked.argument[3..11], 85_u64.to_be_bytes());
        assert_eq!(question(&wanted, Act::Refund).argument[0], b'r');
    }
}
