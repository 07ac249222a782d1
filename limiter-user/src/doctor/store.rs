//! The central store, as `limiter-serve` knows it.

use api::CentralReport;
use model::Stance;

use super::Check;

/// Clocks this far apart make no difference to limits, ms: the store's alone decides. But logs are hard to compare.
const MAX_AHEAD_MS: u64 = 1_000;

pub(super) fn checks(report: &CentralReport) -> Vec<Check> {
    let mut checks = vec![reached(report)];
    // What it was like before may be so no more, and is worth telling all the same.
    if !report.version.is_empty() {
        checks.push(Check::ok("store-version", report.version.clone()));
    }
    if report.up {
        checks.push(latency(report));
    }
    checks.extend(report.stance.map(|stance| answers(stance, &report.stance_why)));
    checks.extend(report.eviction.as_deref().map(eviction));
    checks.extend(persistence(report));
    if report.up {
        checks.push(clock(report));
    }
    checks
}

fn reached(report: &CentralReport) -> Check {
    let CentralReport { address, problem, since_s, calls, failures, .. } = report;
    match problem {
        Some(problem) => Check::fail(
            "store",
            format!("{address} does not answer since {since_s:.1} s: {problem}"),
            "on_error of each rule says what is answered; see that limiter-serve reaches the store",
        ),
        None => Check::ok(
            "store",
            format!(
                "{address} answers since {since_s:.1} s; {calls} calls, {failures} more failed"
            ),
        ),
    }
}

/// Who answers about rules with `on_error: cluster`.
fn answers(stance: Stance, why: &str) -> Check {
    let (name, text) = ("store-fallback", stance.text());
    if stance == Stance::Store {
        return Check::ok(name, format!("{text} about rules with on_error: cluster"));
    }
    Check::warn(
        name,
        format!("{text} about rules with on_error: cluster, as {why}"),
        "see that all hosts reach the store; while hosts are lost, the others have their floors",
    )
}

fn latency(report: &CentralReport) -> Check {
    let CentralReport { round_trip_us, call_us, timeout_ms, .. } = report;
    let calls = call_us.map(|us| format!(", calls {us:.0} µs on average")).unwrap_or_default();
    let found = format!("a round trip took {round_trip_us} µs{calls}; {timeout_ms} ms at most");
    // A third of the time: the rest is for others' calls and a busy moment.
    if 3 * round_trip_us > 1_000 * timeout_ms {
        let remedy = "give limiter-serve a longer --store-timeout, or a store that is nearer";
        return Check::warn("store-latency", found, remedy);
    }
    Check::ok("store-latency", found)
}

fn eviction(policy: &str) -> Check {
    let found = format!("maxmemory-policy {policy}");
    match policy {
        policy if policy.starts_with("allkeys") || policy.starts_with("volatile") => Check::warn(
            "store-eviction",
            format!(
                "{found}: where memory is full it forgets limits, and who was over them starts anew"
            ),
            "set maxmemory-policy noeviction, in a store of its own",
        ),
        _ => Check::ok("store-eviction", found),
    }
}

fn persistence(report: &CentralReport) -> Option<Check> {
    let name = "store-disk";
    Some(match (report.journal?, report.snapshots) {
        (true, _) => Check::ok(name, "it writes each change to a disk"),
        (false, Some(true)) => Check::ok(
            name,
            "it writes snapshots: a restart forgets what was used since the last one",
        ),
        (false, _) => Check::ok(
            name,
            "it writes nothing: after a restart, limits begin with one unit and fill at their rate",
        ),
    })
}

fn clock(report: &CentralReport) -> Check {
    let found = format!("{} ms ahead of this host's", report.ahead_ms);
    match report.ahead_ms.unsigned_abs() {
        0..=MAX_AHEAD_MS => Check::ok("store-clock", found),
        _ => Check::warn(
            "store-clock",
            found,
            "limits go by the store's clock alone; have NTP set both, so that logs can be compared",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Grade;

    fn report() -> CentralReport {
        CentralReport {
            address: "redis://store".into(),
            up: true,
            since_s: 1.0,
            problem: None,
            version: "Redis 7.0.15".into(),
            round_trip_us: 100,
            call_us: Some(200.0),
            timeout_ms: 20,
            eviction: Some("noeviction".into()),
            journal: Some(true),
            snapshots: None,
            ahead_ms: 3,
            calls: 1,
            keys: 1,
            failures: 0,
            stance: None,
            stance_why: String::new(),
        }
    }

    #[test]
    fn each_check_finds_what_is_wrong() {
        let wrong = |report: &CentralReport| {
            let all = checks(report).into_iter();
            all.filter(|check| check.state != Grade::Ok).map(|check| check.name).collect::<Vec<_>>()
        };
        assert!(wrong(&report()).is_empty());
        let down = CentralReport { up: false, problem: Some("it is gone".into()), ..report() };
        assert_eq!(wrong(&down), ["store"]);
        assert_eq!(wrong(&CentralReport { round_trip_us: 9_000, ..report() }), ["store-latency"]);
        for (stance, found) in [(Stance::Store, None), (Stance::Between, Some("store-fallback"))] {
            let told = CentralReport { stance: Some(stance), ..report() };
            assert_eq!(wrong(&told), found.into_iter().collect::<Vec<_>>());
        }
        let evicts = CentralReport { eviction: Some("allkeys-lru".into()), ..report() };
        assert_eq!(wrong(&evicts), ["store-eviction"]);
        assert_eq!(wrong(&CentralReport { ahead_ms: -2_000, ..report() }), ["store-clock"]);
    }
}
