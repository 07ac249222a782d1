//! What this host tells others of its sources.

use std::hash::Hasher as _;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use limiter_common::gate::MAX_GATE;
use siphasher::sip::SipHasher24;

use super::core::Core;
use super::plane::Plane;
use super::rules::Rules;
use api::error::Failure;
use api::{Average, LimitReport};
use cluster::queries::{
    BucketInfo, Candidates, Counted, Distinct, SourceClass, SourceInfo, distinct,
};
use dataplane::ClusterMember;
use model::Limit;
use model::lists::find;
use model::source::{Source, SourceState};
use model::traffic::{Sort, Usage};

/// A moment as it is sent.
fn ms(at: Option<SystemTime>) -> Option<u64> {
    let since = at?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

/// The heaviest sources, at the latest look if `live`; [`crate::top::Top::prepare`] goes before.
pub(super) fn heaviest_here(core: &mut Core, n: usize, sort: Sort, live: bool) -> Candidates {
    let plane = &*core.rules.plane;
    if live {
        core.top.watch(plane, n);
    } else {
        core.top.look_now(plane, n);
    }
    let (buckets, tracked) = core.top.latest(n, sort);
    let sources = core.top.looked_at(plane, buckets, sort);
    let sample = core.sample().ok();
    let totals = sample.as_ref().and_then(|sample| core.top.totals(sample));
    Candidates { sources: counted(plane, &sources), tracked, totals }
}

/// What has been counted of those of these sources that have a bucket.
pub(super) fn points(core: &Core, places: &[SourceClass]) -> Vec<Counted> {
    let buckets: Vec<_> = places
        .iter()
        .filter_map(|place| core.plane().bucket_of(place.source.trunc(), place.class))
        .collect();
    counted(core.plane(), &core.top.looked_at(core.plane(), &buckets, Sort::Dropped))
}

fn counted(plane: &dyn Plane, sources: &[(Source, Average)]) -> Vec<Counted> {
    // Nearly all have the same one.
    let mut last: Option<(Limit, u64, u64)> = None;
    let mut counted = |(source, average): &(Source, Average)| {
        let (limit, gate) = match (source.limit, &last) {
            (None, _) => (0, MAX_GATE.into()),
            (Some(limit), Some((known, number, gate))) if *known == limit => (*number, *gate),
            (Some(limit), _) => {
                let gate = plane.gate_of(&limit);
                let number = number_of(&limit);
                last = Some((limit, number, gate.into()));
                (number, gate.into())
            }
        };
        Counted {
            place: SourceClass { source: source.source, class: source.class },
            state: source.state,
            limit,
            passed: source.passed,
            dropped: source.dropped,
            bytes: source.bytes,
            uncounted: 2 * gate.saturating_sub(1),
            pps: average.pps,
            bps: average.bps,
            seconds: average.seconds,
            first_seen_ms: ms(source.first_seen),
            last_seen_ms: ms(source.last_seen),
        }
    };
    // Groups are of this host: members may have others, or none.
    sources.iter().filter(|(source, _)| !source.is_group).map(&mut counted).collect()
}

/// The limit that this host has for a source, and the number that it is told by to others.
pub(super) fn limit_at(rules: &Rules, place: &SourceClass) -> Option<(LimitReport, u64)> {
    let sources = rules.plane.source(place.source.addr()).ok()?;
    let limit = match sources.iter().find(|source| source.class == place.class) {
        Some(source) => source.limit,
        // It has no bucket here.
        None => {
            let all = rules.layers().explain(place.source).into_iter();
            let own = |limit: &Limit| limit.target.class == place.class && !limit.target.aggregate;
            all.map(|(limit, _)| limit).find(own)
        }
    }?;
    let mut report = LimitReport::new(&limit, rules.plane.gate_of(&limit));
    rules.complete(&mut report);
    Some((report, number_of(&limit)))
}

/// What is known of the source that `address` belongs to, rates left out.
///
/// # Errors
/// If the data plane cannot be read.
pub(super) fn known(core: &Core, address: IpAddr) -> Result<SourceInfo, Failure> {
    let rules = &core.rules;
    let report = core.source(address)?;
    let sources = rules.plane.source(address)?;
    let held = |source: &Source| {
        let limit = source.limit.as_ref().map(|limit| {
            let mut report = LimitReport::new(limit, rules.plane.gate_of(limit));
            rules.complete(&mut report);
            report.summary()
        });
        BucketInfo {
            class: source.class,
            state: source.state,
            limit,
            estimate: source.estimate,
            got: Usage {
                passed: source.passed,
                dropped: source.dropped,
                bytes: source.bytes,
                ..Usage::default()
            },
            share: source.share.map(|held| [held.share, held.floor]),
        }
    };
    Ok(SourceInfo {
        source: report.source,
        listed: find(rules.listed(), report.source).map(|(_, listing)| listing.action),
        buckets: sources.iter().map(held).collect(),
    })
}

/// The distinct sources of the last full window, as others merge them.
pub(super) fn registers(plane: &dyn Plane) -> Option<Distinct> {
    let found = plane.registers()?;
    let ranks = distinct::pack(&found.ranks);
    Some(Distinct { key: found.key, window: found.window, ranks })
}

/// As [`dataplane::ShareMaps::cluster_members`], with whom the limits are for.
pub(super) fn cluster_members(
    plane: &dyn Plane,
    buckets: &mut dyn Iterator<Item = usize>,
    visit: &mut dyn FnMut(ClusterMember),
) {
    plane.shares().cluster_members(buckets, &mut |mut member| {
        let target = plane.target_of(member.source, member.class);
        member.limit.target = target.unwrap_or(member.limit.target);
        visit(member);
    });
}

/// A number that stands for what a limit says, whoever says it.
fn number_of(limit: &Limit) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(LimitReport::new(limit, 0).summary().as_bytes());
    hasher.finish().max(1)
}

/// Puts rates into what is known now, from what was known so long before.
pub(super) fn with_rates(mut now: SourceInfo, before: &SourceInfo, apart: Duration) -> SourceInfo {
    let seconds = apart.as_secs_f64().max(1e-3);
    for held in &mut now.buckets {
        let before = before.buckets.iter().find(|before| before.class == held.class);
        // One that got its bucket meanwhile begins at nothing.
        let before = before
            .filter(|before| {
                before.state != SourceState::Light && before.got.passed <= held.got.passed
            })
            .map_or_else(Usage::default, |before| before.got);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let got = &mut held.got;
        got.passed_pps = rate(got.passed, before.passed);
        got.dropped_pps = rate(got.dropped, before.dropped);
        got.bps = 8.0 * rate(got.bytes, before.bytes);
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Class;

    fn known(state: SourceState, passed: u64, dropped: u64) -> SourceInfo {
        let held = BucketInfo {
            class: Class::ANY,
            state,
            limit: None,
            estimate: 0,
            got: Usage { passed, dropped, bytes: 100 * (passed + dropped), ..Usage::default() },
            share: None,
        };
        SourceInfo { source: "192.0.2.1/32".parse().unwrap(), listed: None, buckets: vec![held] }
    }

    #[test]
    fn rates_are_of_the_time_between() {
        let rates = |before, now| {
            let Usage { passed_pps, dropped_pps, bps, .. } =
                with_rates(now, &before, Duration::from_millis(250)).buckets[0].got;
            ([passed_pps, dropped_pps], bps)
        };
        let limited = SourceState::Limited;
        let before = known(limited, 100, 50);
        assert_eq!(rates(before, known(limited, 125, 150)), ([100.0, 400.0], 400_000.0));
        // It has another bucket since.
        let before = known(limited, 100, 50);
        assert_eq!(rates(before, known(limited, 10, 5)).0, [40.0, 20.0]);
        let light = known(SourceState::Light, 0, 0);
        assert_eq!(rates(light, known(limited, 10, 0)).0, [40.0, 0.0]);
    }
}
