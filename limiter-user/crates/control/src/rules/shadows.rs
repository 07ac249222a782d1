//! Limits that are tried beside those in force.

use std::time::SystemTime;

use super::Rules;
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::{LimitReport, ShadowReport, ShadowSet, ShadowSource, ShadowUnset, ShadowsReport};
use model::{Limit, Target};

/// Tries a limit: counts what it would drop.
///
/// # Errors
/// If it cannot be tried there; then what was tried before goes on.
pub fn set(rules: &mut Rules, limit: &Limit) -> Result<ShadowSet, Failure> {
    let target = limit.target;
    let (ipv4, ipv6) = rules.plane.prefixes();
    limit.check_prefix(ipv4, ipv6)?;
    rules.management.check(&target)?;
    if limit.also.is_some() {
        return Err(Failure::new(exit::USAGE, "a shadow limit has one rate")
            .hint("try the rate of packets, then that of bytes"));
    }
    rules.plane.set_shadow(&target, &limit.tier())?;
    rules.shadows.insert(target, SystemTime::now());
    let what = format!("trying {} for {}", limit.rate, target.short());
    rules.events.tell_policy(what, &ChangeOptions::default(), None);
    Ok(ShadowSet { shadow: LimitReport::new(limit, rules.plane.gate_of(limit)) })
}

/// Ends what is tried for a target.
///
/// # Errors
/// If no shadow limit for this very target, or the data plane refuses.
pub fn unset(rules: &mut Rules, target: &Target) -> Result<ShadowUnset, Failure> {
    if !rules.plane.unset_shadow(target)? {
        let message = format!("no shadow limit for {}", target.short());
        return Err(
            Failure::new(exit::NEGATIVE, message).hint("`limiter limit shadow list` shows them")
        );
    }
    rules.shadows.remove(target);
    let what = format!("no shadow limit for {} any more", target.short());
    rules.events.tell_policy(what, &ChangeOptions::default(), None);
    Ok(ShadowUnset { stopped: *target })
}

/// What is tried, with the `n` sources of each that would have lost most.
pub fn list(rules: &Rules, n: usize) -> ShadowsReport {
    let shadows = rules.plane.shadows(n).into_iter().map(|view| {
        let since = rules.shadows.get(&view.target).copied().unwrap_or_else(SystemTime::now);
        let sources = view.most.iter().map(|(source, tried, would_drop)| {
            ShadowSource::new(source.source, *tried, *would_drop)
        });
        let in_force = rules.limit_for(&view.target);
        ShadowReport {
            target: view.target,
            rate: view.tier.rate,
            burst: view.tier.burst_text(),
            algorithm: view.tier.algorithm,
            in_force: in_force.map(|limit| rules.report_in_force(&limit)),
            since: humantime::format_rfc3339_seconds(since).to_string(),
            seconds: since.elapsed().map_or(0.0, |elapsed| elapsed.as_secs_f64()),
            sources: view.sources,
            limited: view.limited,
            packets: view.packets,
            would_drop: view.would_drop,
            share: ShadowSource::share(view.packets, view.would_drop),
            most: sources.collect(),
        }
    });
    ShadowsReport { shadows: shadows.collect() }
}
