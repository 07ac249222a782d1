//! RLQS, `envoy.service.rate_limit_quota.v3`: each Envoy reports what it was asked for, and is told which part of a limit it
//! keeps, and for how long. All parts together are the limit: see [`decide::quota`].
//!
//! Source: `envoyproxy/data-plane-api`, `envoy/service/rate_limit_quota/v3/rlqs.proto`, `envoy/type/v3/token_bucket.proto`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use decide::key::Entry;
use decide::key::KeyHash;
use decide::quota::{Assignment, RENEWAL, TTL};
use decide::scope::Scope;
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tonic::{Status, Streaming};

use crate::service::Service;

/// The most buckets of a report, and of a proxy.
const MAX_BUCKETS: usize = 10_000;

/// The most pairs of a bucket's name, and the longest text in it, bytes.
const MAX_PAIRS: usize = 32;
const MAX_TEXT: usize = 1_024;

/// How long nobody may ask for a bucket until the proxy is to forget it.
const IDLE: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UsageReports {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    bucket_quota_usages: Vec<Usage>,
}

// What `time_elapsed` says is in whole seconds: the clock here knows better.
#[derive(Clone, PartialEq, prost::Message)]
struct Usage {
    #[prost(message, optional, tag = "1")]
    bucket_id: Option<BucketId>,
    #[prost(uint64, tag = "3")]
    num_requests_allowed: u64,
    #[prost(uint64, tag = "4")]
    num_requests_denied: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
struct BucketId {
    #[prost(btree_map = "string, string", tag = "1")]
    bucket: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct QuotaResponse {
    #[prost(message, repeated, tag = "1")]
    bucket_action: Vec<BucketAction>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct BucketAction {
    #[prost(message, optional, tag = "1")]
    bucket_id: Option<BucketId>,
    #[prost(oneof = "Action", tags = "2, 3")]
    action: Option<Action>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Action {
    #[prost(message, tag = "2")]
    Assign(QuotaAssignment),
    #[prost(message, tag = "3")]
    Abandon(()),
}

#[derive(Clone, PartialEq, prost::Message)]
struct QuotaAssignment {
    #[prost(message, optional, tag = "2")]
    assignment_time_to_live: Option<prost_types::Duration>,
    #[prost(message, optional, tag = "3")]
    rate_limit_strategy: Option<RateLimitStrategy>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RateLimitStrategy {
    #[prost(oneof = "Strategy", tags = "1, 3")]
    strategy: Option<Strategy>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Strategy {
    /// 0 allows all, 1 denies all.
    #[prost(int32, tag = "1")]
    Blanket(i32),
    #[prost(message, tag = "3")]
    Bucket(TokenBucket),
}

#[derive(Clone, PartialEq, prost::Message)]
struct TokenBucket {
    #[prost(uint32, tag = "1")]
    max_tokens: u32,
    // google.protobuf.UInt32Value.
    #[prost(message, optional, tag = "2")]
    tokens_per_fill: Option<u32>,
    #[prost(message, optional, tag = "3")]
    fill_interval: Option<prost_types::Duration>,
}

/// How long what does not change is in force. Reports come each 5 s.
const STEADY: Duration = Duration::from_secs(60);

const ALLOW_ALL: Strategy = Strategy::Blanket(0);
const DENY_ALL: Strategy = Strategy::Blanket(1);

fn written(span: Duration) -> prost_types::Duration {
    prost_types::Duration { seconds: span.as_secs() as i64, nanos: span.subsec_nanos() as i32 }
}

impl Strategy {
    fn of(assignment: Assignment) -> Self {
        match assignment {
            Assignment::Deny => DENY_ALL,
            Assignment::Bucket { tokens, per_fill, every } => Self::Bucket(TokenBucket {
                max_tokens: tokens,
                tokens_per_fill: Some(per_fill),
                fill_interval: Some(written(every)),
            }),
        }
    }
}

/// A proxy's stream.
struct Proxy {
    service: Arc<Service>,
    id: u64,
    /// That of the first report.
    domain: String,
    /// Its buckets that have a limit.
    buckets: HashMap<BucketId, Bucket>,
}

/// One of them.
struct Bucket {
    key: KeyHash,
    /// When somebody asked for it.
    used: Instant,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for bucket in self.buckets.values() {
            self.service.quotas.leave(bucket.key, self.id);
        }
    }
}

/// What is to be done with a bucket for some time.
fn assign(id: BucketId, strategy: Strategy, span: Duration) -> BucketAction {
    let action = Action::Assign(QuotaAssignment {
        assignment_time_to_live: Some(written(span)),
        rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
    });
    BucketAction { bucket_id: Some(id), action: Some(action) }
}

impl Proxy {
    /// Takes what a proxy reports, and answers as far as that does not change each moment.
    fn report(&mut self, reports: UsageReports) -> Result<QuotaResponse, Status> {
        if self.domain.is_empty() {
            self.domain = reports.domain;
        }
        if self.domain.is_empty() || self.domain.len() > MAX_TEXT {
            return Err(Status::invalid_argument("the first report has no domain, or a long one"));
        }
        if reports.bucket_quota_usages.len() > MAX_BUCKETS {
            return Err(Status::invalid_argument(format!("{MAX_BUCKETS} buckets at most")));
        }
        let mut bucket_action = Vec::new();
        for usage in reports.bucket_quota_usages {
            bucket_action.extend(self.take(usage)?);
        }
        Ok(QuotaResponse { bucket_action })
    }

    fn take(&mut self, usage: Usage) -> Result<Option<BucketAction>, Status> {
        let Some(id) = usage.bucket_id else { return Ok(None) };
        let is_long = |(key, value): (&String, &String)| key.len().max(value.len()) > MAX_TEXT;
        if id.bucket.len() > MAX_PAIRS || id.bucket.iter().any(is_long) {
            return Err(Status::invalid_argument("the name of a bucket is too long"));
        }
        // The pairs have no order of their own.
        let entries: Vec<Entry<'_>> =
            id.bucket.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let (service, mut scratch) = (&self.service, String::new());
        let secret = service.states().table.secret();
        let (rules, now, whose) =
            (service.rules(), service.now(), (self.domain.as_str(), &*entries));
        let held = service.overrides().find(&rules, secret, whose, now, &mut scratch);
        let (allowed, denied) = (usage.num_requests_allowed, usage.num_requests_denied);
        let rule = held.as_ref().and_then(|held| held.rule.as_ref());
        if let Some(rule) = rule {
            rule.tally.ok.fetch_add(allowed, Ordering::Relaxed);
            rule.tally.over.fetch_add(denied, Ordering::Relaxed);
        }
        let units = allowed.saturating_add(denied);
        if let Some(rule) = rule.filter(|rule| rule.scope != Scope::Host) {
            // A share ends sooner than what an Envoy is told: it goes by what it does without an assignment.
            rule.tally.alone.fetch_add(units, Ordering::Relaxed);
            return Ok(None);
        }
        let is_shadow = rule.is_some_and(|rule| rule.shadow);
        let limited = held.filter(|_| !is_shadow);
        let limited = limited.and_then(|held| Some((held.key, held.terms?.limit)));
        let (key, limit) = match limited {
            None => return Ok(Some(self.steady(id, ALLOW_ALL))),
            Some((_, limit)) if limit.requests == 0 => return Ok(Some(self.steady(id, DENY_ALL))),
            Some(limited) => limited,
        };
        if self.buckets.len() >= MAX_BUCKETS && !self.buckets.contains_key(&id) {
            return Ok(None);
        }
        let used = Instant::now();
        let bucket = self.buckets.entry(id.clone()).or_insert(Bucket { key, used });
        // Patterns that share a key may have been written anew.
        bucket.key = key;
        if units > 0 {
            bucket.used = used;
        } else if bucket.used.elapsed() > IDLE {
            self.forget(&id);
            let action = Some(Action::Abandon(()));
            return Ok(Some(BucketAction { bucket_id: Some(id), action }));
        }
        let quotas = &self.service.quotas;
        quotas.report(key, &limit, self.id, units, (self.service.since, now));
        let assignment = quotas.assign(key, self.id, now);
        Ok(assignment.map(|assignment| assign(id, Strategy::of(assignment), TTL)))
    }

    /// What holds for a bucket without a limit. It may have had one before the rules were read again.
    fn steady(&mut self, id: BucketId, strategy: Strategy) -> BucketAction {
        self.forget(&id);
        assign(id, strategy, STEADY)
    }

    fn forget(&mut self, id: &BucketId) {
        if let Some(bucket) = self.buckets.remove(id) {
            self.service.quotas.leave(bucket.key, self.id);
        }
    }

    /// What it is to do from now on.
    fn renew(&self) -> QuotaResponse {
        let now = self.service.now();
        let assignment = |(id, bucket): (&BucketId, &Bucket)| {
            let assignment = self.service.quotas.assign(bucket.key, self.id, now)?;
            Some(assign(id.clone(), Strategy::of(assignment), TTL))
        };
        QuotaResponse { bucket_action: self.buckets.iter().filter_map(assignment).collect() }
    }
}

/// Answers the reports of a proxy, and renews what it was assigned, until its stream ends or all are to end.
pub(crate) fn serve(
    service: Arc<Service>,
    reports: Streaming<UsageReports>,
    stop: watch::Receiver<bool>,
) -> impl Stream<Item = Result<QuotaResponse, Status>> + Send {
    let id = service.quotas.newcomer();
    let proxy = Proxy { service, id, domain: String::new(), buckets: HashMap::new() };
    let mut renewal = interval(RENEWAL);
    // What was missed is not made up for.
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    unfold(Some((proxy, reports, renewal, stop)), async |state| {
        let (mut proxy, mut reports, mut renewal, mut stop) = state?;
        loop {
            let answer = tokio::select! {
                report = reports.message() => match report {
                    Ok(None) => return None,
                    Ok(Some(report)) => proxy.report(report),
                    Err(status) => Err(status),
                },
                _ = renewal.tick() => Ok(proxy.renew()),
                () = crate::all_are_to_end(&mut stop) => return None,
            };
            match answer {
                // An answer has one action at least.
                Ok(answer) if answer.bucket_action.is_empty() => {}
                Ok(answer) => return Some((Ok(answer), Some((proxy, reports, renewal, stop)))),
                Err(status) => return Some((Err(status), None)),
            }
        }
    })
}

/// Takes the reports of a proxy that ends after them.
#[cfg(test)]
pub(crate) fn take(service: &Arc<Service>, reports: UsageReports) {
    let service = Arc::clone(service);
    let mut proxy = Proxy { service, id: 0, domain: String::new(), buckets: HashMap::new() };
    if proxy.report(reports).is_ok() {
        proxy.renew();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push_down::PushDowns;
    use crate::service::Place;

    fn rules(more: &str, requests: u32) -> String {
        format!(
            "domain: d\ndescriptors:\n  - key: k\n{more}    rate_limit: {{ unit: second, requests_per_unit: {requests} }}\n"
        )
    }

    fn report(allowed: u64) -> UsageReports {
        let bucket = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let bucket_id = Some(BucketId { bucket });
        let usage = Usage { bucket_id, num_requests_allowed: allowed, num_requests_denied: 0 };
        UsageReports { domain: "d".into(), bucket_quota_usages: vec![usage] }
    }

    #[test]
    fn a_bucket_is_told_what_its_rule_says_by_now() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.yaml");
        std::fs::write(&file, rules("", 100)).unwrap();
        let place = Place::small(&folder.path().join("state"), 1_000);
        let service = Arc::new(
            Service::open(&place, vec![file.clone()], PushDowns::off(Arc::default()), None)
                .unwrap(),
        );
        let buckets = HashMap::new();
        let mut proxy =
            Proxy { service: Arc::clone(&service), id: 0, domain: String::new(), buckets };
        // An earlier process may have assigned all of it.
        assert!(proxy.report(report(1)).unwrap().bucket_action.is_empty());
        assert_eq!(proxy.buckets.len(), 1);
        let mut told = |text: &str| {
            std::fs::write(&file, text).unwrap();
            service.reload().unwrap();
            let mut answer = proxy.report(report(1)).unwrap();
            let Some(Action::Assign(told)) = answer.bucket_action.remove(0).action else {
                panic!()
            };
            (
                told.rate_limit_strategy.and_then(|told| told.strategy),
                proxy.renew().bucket_action.len(),
            )
        };
        assert_eq!(told(&rules("    shadow_mode: true\n", 100)), (Some(ALLOW_ALL), 0));
        assert_eq!(told(&rules("", 0)), (Some(DENY_ALL), 0));
        assert_eq!(told("domain: other"), (Some(ALLOW_ALL), 0));
    }

    #[test]
    fn nonsense_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::small(folder.path(), 1_000);
        let service = Arc::new(
            Service::open(&place, Vec::new(), PushDowns::off(Arc::default()), None).unwrap(),
        );
        let mut proxy = Proxy { service, id: 0, domain: String::new(), buckets: HashMap::new() };
        assert!(proxy.report(UsageReports { domain: String::new(), ..report(1) }).is_err());
        let many = vec![report(1).bucket_quota_usages.remove(0); MAX_BUCKETS + 1];
        assert!(proxy.report(UsageReports { bucket_quota_usages: many, ..report(1) }).is_err());
        let mut long = report(1);
        let name = BTreeMap::from([("k".to_owned(), "v".repeat(MAX_TEXT + 1))]);
        long.bucket_quota_usages[0].bucket_id = Some(BucketId { bucket: name });
        assert!(proxy.report(long).is_err());
    }
}
