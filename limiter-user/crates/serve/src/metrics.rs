//! What `/metrics` tells: decisions, how long they took, keys.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use decide::rules::{Rule, Tally};
use decide::scope::Scope;
use decide::shared::Shared;
use model::Stance;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::central::Health;
use crate::latency::Face;
use crate::service::Service;

/// The page of metrics.
pub(crate) fn page(service: &Arc<Service>) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("limiter_serve");
    registry.register_collector(Box::new(Page(Arc::clone(service))));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

#[derive(Debug)]
struct Page(Arc<Service>);

impl Collector for Page {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let service = &self.0;
        let rules = service.rules();
        let help =
            "Keys that were decided on, by rule and code; rule - is that of limits in requests";
        let mut decisions = to.encode_descriptor("decisions", help, None, MetricType::Counter)?;
        let of_rule = |rule: &'_ Arc<Rule>| (rule.path.clone(), Arc::clone(&rule.tally));
        let mut write = |path: &str, tally: &Tally| {
            let Tally { ok, over, shadow, untracked, .. } = tally;
            let codes = [("ok", ok), ("over", over), ("shadow", shadow), ("untracked", untracked)];
            codes.iter().try_for_each(|(code, count)| {
                let labels = [("rule", path), ("code", code)];
                let count = count.load(Ordering::Relaxed);
                decisions.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)
            })
        };
        write("-", &service.named)?;
        rules.all().iter().map(of_rule).try_for_each(|(path, tally)| write(&path, &tally))?;
        let help = "Of these, those without a share of the cluster's limit, or the store's answer";
        let mut alone = to.encode_descriptor("alone", help, None, MetricType::Counter)?;
        for rule in rules.all().iter().filter(|rule| rule.scope != Scope::Host) {
            let count = rule.tally.alone.load(Ordering::Relaxed);
            let labels = [("rule", rule.path.as_str())];
            let mut family = alone.encode_family(&labels)?;
            family.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        let help = "How long answers took, by face";
        let mut latencies =
            to.encode_descriptor("answer", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for face in Face::ALL {
            let (sum, count, classes) = service.latencies.read(face);
            let labels = [("face", face.name())];
            let mut family = latencies.encode_family(&labels)?;
            family.encode_histogram::<NoLabelSet>(sum, count, &classes, None)?;
        }
        let help = "Addresses far above their limit: denied by the kernel, spared, refused by the daemon, lost";
        let mut push_downs = to.encode_descriptor("push_downs", help, None, MetricType::Counter)?;
        for (result, count) in service.push_downs.counts().all() {
            let labels = [("result", result)];
            let mut family = push_downs.encode_family(&labels)?;
            family.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        let table = &service.states().table;
        let (keys, counts) = (table.keys(), table.counts());
        let help = "Keys with a bucket, also those that are as good as new";
        to.encode_descriptor("keys", help, None, MetricType::Gauge)?.encode_gauge(&keys)?;
        let shared = service.states().shared.as_ref();
        let help = "Keys that need a share of the cluster's limit";
        let mut wanted = to.encode_descriptor("cluster_keys", help, None, MetricType::Gauge)?;
        wanted.encode_gauge(&shared.map_or(0, |shared| shared.count() as u64))?;
        let help = "Decisions on more such keys, which had this host's floor";
        let mut left_out = to.encode_descriptor("left_out", help, None, MetricType::Counter)?;
        let count = shared.map_or(0, Shared::left_out);
        left_out.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        if let Some(central) = &service.central {
            encode_store(central.health(), &mut to)?;
            let help = "Who answers about rules with on_error: cluster: the store, floors in between, or the escrow's shares";
            let mut stances = to.encode_descriptor("stance", help, None, MetricType::Gauge)?;
            let present = service.stance().map(|(stance, _)| stance);
            for stance in Stance::ALL.iter().filter(|_| present.is_some()) {
                let labels = [("stance", stance.name())];
                let mut family = stances.encode_family(&labels)?;
                family.encode_gauge(&i64::from(present == Some(*stance)))?;
            }
            let help = "Keys in use that this host admits a little of before the store knows";
            let mut synced = to.encode_descriptor("synced_keys", help, None, MetricType::Gauge)?;
            synced.encode_gauge(
                &service.states().synced.as_ref().map_or(0, |it| it.count() as u64),
            )?;
        }
        let help = "Descriptors with a limit of their own, by `limiter rule`";
        let mut overrides = to.encode_descriptor("overrides", help, None, MetricType::Gauge)?;
        overrides.encode_gauge(&(service.overrides().len() as u64))?;
        let help = "Keys that there is room for";
        let mut capacity = to.encode_descriptor("capacity", help, None, MetricType::Gauge)?;
        capacity.encode_gauge(&table.capacity())?;
        let help = "Buckets that went for other keys: as good as new, still busy, or a busy one of a sub-window or log, or of the cluster";
        let mut evictions = to.encode_descriptor("evictions", help, None, MetricType::Counter)?;
        let side = service.states().side.as_ref().map_or(0, decide::side::Side::evicted_busy);
        let cluster = shared.map_or(0, |shared| shared.side().evicted_busy());
        for (bucket, count) in [
            ("full", counts.evicted),
            ("busy", counts.evicted_busy),
            ("side", side),
            ("cluster", cluster),
        ] {
            let labels = [("bucket", bucket)];
            let mut family = evictions.encode_family(&labels)?;
            family.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }
}

/// What it tells of the store.
fn encode_store(health: &Health, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
    let help = "Whether the store answers";
    let mut up = to.encode_descriptor("store_up", help, None, MetricType::Gauge)?;
    up.encode_gauge(&i64::from(health.is_up()))?;
    let counters = [
        ("store_keys", "Keys that the store has decided on", &health.keys),
        ("store_failures", "Calls of the store that were not answered", &health.failures),
        ("store_unusable", "Keys whose state in the store cannot be used", &health.unusable),
        (
            "store_turned_away",
            "Decisions that the store was not asked about, as too many were waiting",
            &health.turned_away,
        ),
    ];
    for (name, help, counter) in counters {
        let mut counts = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        let count = counter.load(Ordering::Relaxed);
        counts.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    let help = "How long calls of the store took";
    let unit = Some(&Unit::Seconds);
    let mut latency = to.encode_descriptor("store_call", help, unit, MetricType::Histogram)?;
    let (sum, count, classes) = health.latency.read();
    latency.encode_histogram::<NoLabelSet>(sum, count, &classes, None)
}
