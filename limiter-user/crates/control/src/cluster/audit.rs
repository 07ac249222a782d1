//! Counts whether all hosts together keep limits: [`cluster::audit`] with a clock and a network.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use siphasher::sip::SipHasher24;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::link::{Command, monotonic};
use super::{Cluster, Inbox};
use crate::core::Core;
use api::OverageReport;
use api::error::Failure;
use cluster::Moment;
use cluster::audit::{Allowed, Audit, Counter, Key, MAX_REPORTED, Observation, PERIOD, WINDOW};
use cluster::link::ClusterId;
use cluster::wire::{Content, Topic};
use dataplane::ClusterMember;
use model::{Partition, Unit};

/// Buckets that are looked at while the core is locked: less than a millisecond's work.
// Other work on the core waits for each part.
const AT_ONCE: usize = 32_768;

/// Buckets that are looked at closely, at most.
// More than are reported, since the heaviest by average need not be the heaviest now.
const CLOSELY: usize = 4 * MAX_REPORTED;

/// Limits that are judged, at most.
// A host with a million limits would otherwise keep a text for each.
const MAX_LIMITS: usize = 256;

/// For how long it matters that hosts were lost: what was let through meanwhile is judged, and told late.
const LATELY: Duration = WINDOW.saturating_add(PERIOD.saturating_mul(2));

/// The most hosts that were lost at a time, lately.
#[derive(Debug, Default)]
struct Lost(VecDeque<(Moment, u32)>);

impl Lost {
    /// Notes how many are lost, and tells the most that were lately.
    fn most(&mut self, now: Moment, lost: u32) -> u32 {
        self.0.retain(|(when, _)| now.since(*when) <= LATELY);
        // Fewer than now do not matter any more.
        while self.0.back().is_some_and(|(_, before)| *before <= lost) {
            self.0.pop_back();
        }
        self.0.push_back((now, lost));
        self.0.front().map_or(lost, |(_, most)| *most)
    }
}

/// A limit that sources of this host are under.
struct Watched {
    target: String,
    allowed: Allowed,
    partition: Partition,
}

/// Tells others what this host lets through, and judges what all do, until the link is gone.
pub(super) async fn serve(
    cluster: Cluster,
    mut inbox: Inbox,
    tell: watch::Sender<Arc<Vec<OverageReport>>>,
) {
    let mut auditor = Auditor {
        // The number tells this run's counts from those of the run before, which were higher.
        counter: Counter::new(getrandom::u64().unwrap_or_default()),
        audit: Audit::default(),
        limits: BTreeMap::new(),
        lost: Lost::default(),
        buckets: BTreeMap::new(),
        cluster,
    };
    let mut ticks = interval(PERIOD);
    // Missed turns must not follow one another at once: they would all count the same moment.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            came = inbox.recv() => match came {
                Some((from, bytes)) => {
                    // An unreadable report is another version's. It must not end the audit.
                    if let Ok(told) = cluster::audit::CounterReport::read(&bytes) {
                        auditor.audit.hear(monotonic(), from, told);
                    }
                }
                None => return,
            },
            _ = ticks.tick() => match auditor.turn().await {
                Ok(found) => drop(tell.send(Arc::new(found))),
                Err(failure) => tracing::debug!("what is let through cannot be counted: {failure}"),
            },
        }
    }
}

/// What this host has counted, what others have told of theirs, and the limits that all are judged by.
struct Auditor {
    cluster: Cluster,
    counter: Counter,
    audit: Audit,
    limits: BTreeMap<u64, Watched>,
    lost: Lost,
    /// Where sources that are counted have their buckets.
    buckets: BTreeMap<Key, usize>,
}

impl Auditor {
    async fn turn(&mut self) -> Result<Vec<OverageReport>, Failure> {
        let Some(id) = self.cluster.link.report.borrow().cluster else { return Ok(Vec::new()) };
        let now = monotonic();
        let (members, hosts) = self.members().await?;
        for member in members {
            self.note(id, &member, hosts);
        }
        // The counter drops sources that are silent. Their buckets would pile up here.
        let counted: std::collections::BTreeSet<_> = self.counter.keys().collect();
        self.buckets.retain(|key, _| counted.contains(key));
        let told = self.counter.tell(now);
        // A cluster without traffic under its limits should not send anything for them.
        if !told.passed.is_empty() {
            let content = Content::Other(Topic::Counters, told.bytes());
            let members = Arc::clone(&self.cluster.link.members.borrow());
            for to in members.keys().filter(|host| **host != self.cluster.me) {
                let content = content.clone();
                self.cluster.link.order(Command::Send { to: *to, digest: None, content });
            }
        }
        // This host's counts take the same way as all others, so they are judged by the same
        // rules.
        self.audit.hear(now, self.cluster.me, told);
        self.audit.forget_old(now);
        Ok(self.judge())
    }

    /// The buckets under limits of the cluster that let most through, and those that are counted; and how many hosts
    /// have shares of these.
    async fn members(&self) -> Result<(Vec<ClusterMember>, u32), Failure> {
        let shared = &self.cluster.shared;
        let look = |core: &mut Core| {
            let any = core.rules.in_force().in_cluster();
            // Without a cluster limit there is nothing to scan, however large the table is.
            Ok((if any { core.plane().buckets() } else { 0 }, core.plane().monotonic_ns()))
        };
        let (buckets, now_ns) = shared.with(look).await?;
        let mut most: BinaryHeap<Reverse<(bool, u64, usize)>> = BinaryHeap::new();
        for first in (0..buckets).step_by(AT_ONCE) {
            let part = first..buckets.min(first + AT_ONCE);
            let found = shared.with(move |core| Ok(heaviest(core, part, now_ns))).await?;
            most.extend(found);
            while most.len() > CLOSELY {
                most.pop();
            }
        }
        let mut at: Vec<_> = most.into_iter().map(|Reverse((.., bucket))| bucket).collect();
        // Sources that are counted stay so: a count with gaps would not say what passed in a
        // window.
        at.extend(self.buckets.values());
        at.sort_unstable();
        at.dedup();
        shared
            .with(move |core| {
                let mut members = Vec::with_capacity(at.len());
                crate::views::cluster_members(
                    core.plane(),
                    &mut at.into_iter(),
                    &mut |mut member| {
                        // The data plane does not know what becomes of it while hosts are lost.
                        if let Some(limit) = core.rules.limit_for(&member.limit.target) {
                            member.limit.scope = limit.scope;
                        }
                        members.push(member);
                    },
                );
                Ok((members, core.plane().cluster_terms().map_or(1, |terms| terms.hosts)))
            })
            .await
    }

    fn note(&mut self, id: ClusterId, member: &ClusterMember, hosts: u32) {
        let tier = member.limit.tier();
        // The kernel counts passed packets, so limits in bytes cannot be judged. Limits that only
        // observe let everything pass.
        let (true, Unit::Packets) = (member.limit.enforce, tier.rate.unit()) else { return };
        // All hosts have the number of the cluster, and nobody else: nobody can make sources meet.
        let hasher = SipHasher24::new_with_keys(id.0, u64::from_be_bytes(*b"audit\0\0\0"));
        let target = member.limit.target.to_string();
        let limit = hasher.hash(target.as_bytes());
        let source = hasher.hash(format!("{} {}", member.source, member.class).as_bytes());
        let rate = tier.rate.per_second();
        // Known ones are renewed even if all places are taken: their rate may have changed.
        if self.limits.len() < MAX_LIMITS || self.limits.contains_key(&limit) {
            // Each host has a packet of its own: together at least as many as there are hosts.
            let allowed = Allowed { rate, burst: tier.burst.max(hosts.into()) as f64 };
            let partition = member.limit.scope.partition().unwrap_or_default();
            self.limits.insert(limit, Watched { target, allowed, partition });
        }
        let key = Key { limit, source };
        let (passed, since) = (member.bucket.counts.passed, member.bucket.counts.since_ns);
        self.buckets.insert(key, member.bucket.bucket);
        self.counter.look(monotonic(), Observation { key, passed, since, rate });
    }

    fn judge(&mut self) -> Vec<OverageReport> {
        let allowed = self.limits.iter().map(|(limit, known)| (*limit, known.allowed)).collect();
        let now = monotonic();
        let found = self.audit.judge(now, &allowed);
        let lost = u32::try_from(self.cluster.shares.borrow().lost.len()).unwrap_or(u32::MAX);
        // Each of them may be on a side of its own.
        let sides = self.lost.most(now, lost).saturating_add(1);
        // Limits that nobody uses any more make room.
        self.limits.retain(|limit, _| found.contains_key(limit));
        let told = found.iter().filter_map(|(limit, found)| {
            let Watched { target, partition, .. } = self.limits.get(limit)?;
            Some(OverageReport {
                limit: target.clone(),
                ratio: found.ratio,
                bound: partition.bound(sides),
                partition: *partition,
                passed: found.passed,
                seconds: found.seconds,
            })
        });
        told.collect()
    }
}

/// Of the buckets in `part`, those that are over their share, and those that let most through on average.
fn heaviest(core: &Core, part: Range<usize>, now_ns: u64) -> Vec<Reverse<(bool, u64, usize)>> {
    let mut most = BinaryHeap::new();
    core.plane().shares().cluster_buckets(part, &mut |bucket| {
        let seconds = now_ns.saturating_sub(bucket.counts.since_ns) / 1_000_000_000 + 1;
        most.push(Reverse((bucket.limited, bucket.counts.passed / seconds, bucket.bucket)));
        if most.len() > CLOSELY {
            most.pop();
        }
    });
    most.into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_hosts_count_until_what_was_let_through_meanwhile_is_judged() {
        let mut lost = Lost::default();
        let at = |seconds| Moment(0).after(Duration::from_secs(seconds));
        let most = [(0, 0), (2, 1), (4, 2), (6, 1), (8, 0), (18, 0), (19, 0), (21, 0), (40, 0)]
            .map(|(second, now)| lost.most(at(second), now));
        assert_eq!(most, [0, 1, 2, 2, 2, 2, 1, 0, 0]);
        assert_eq!(lost.most(at(41), 3), 3);
    }
}
