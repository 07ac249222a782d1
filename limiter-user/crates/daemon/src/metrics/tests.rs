use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use limiter_common::abi::{Counters, Internal, Reason, Tally};

use super::*;
use api::OverageReport;
use control::fake::Fake;
use control::scrape::{Clustered, Slow};
use model::Distinct;
use model::digest::Percentiles;
use telemetry::Sample;

fn scrape() -> Scrape {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.state().interfaces = vec!["eth\"0".into()];
    let mut core = fake.core(&directory);
    core.interfaces
        .attach(&mut core.rules, "eth\"0", model::interface::Mode::Generic, false)
        .unwrap();
    let slow = Slow {
        status: core.status().unwrap(),
        gate: 16,
        allowed: 1,
        denied: 3,
        bans: 2,
        shadows: 4,
    };
    let mut counters = Counters::default();
    for reason in Reason::ALL {
        let packets = 100 + reason as u64;
        counters.verdicts[reason as usize] = Tally { packets, bytes: 60 * packets };
    }
    counters.internal[Internal::EventsLost as usize] = 9;
    let distinct = Distinct { sources: 1234.5, standard_error: 0.016, window_s: 1.07 };
    let time = SystemTime::UNIX_EPOCH;
    Scrape {
        sample: Sample { time, monotonic_ns: 1, counters, noise: 0.25, distinct: Some(distinct) },
        slow: Arc::new(slow),
        age: Duration::from_millis(500),
        uptime: Duration::from_secs(90),
        cluster: Some(cluster()),
    }
}

fn cluster() -> Clustered {
    let overage = OverageReport {
        partition: model::Partition::Conservative,
        limit: "default udp:53".into(),
        ratio: 0.75,
        bound: 2.0,
        passed: 9000,
        seconds: 10.5,
    };
    Clustered {
        members: 3,
        home: 0.5,
        left_out: 5,
        untracked: 7,
        loans: [3, 1],
        regions: vec![("eu".into(), 2, 0.75), ("us".into(), 1, 0.25)],
        lag: Some(Percentiles { p99: 20.0, ..Percentiles::default() }),
        frames: [7, 8, 9],
        refused: vec![("forged", 2)],
        overage: Arc::new(vec![overage]),
        ..Clustered::default()
    }
}

/// The samples of a text, by name and labels.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap()).map(|(k, v)| (k, v.parse().unwrap())).collect()
}

#[test]
fn every_counter_is_told_in_both_formats() {
    let latency = Latency::default();
    latency.working().record(Duration::from_millis(2));
    let text = openmetrics(scrape(), &latency).unwrap();
    assert!(text.ends_with("# EOF\n"));
    let found = samples(&text);
    for reason in Reason::ALL {
        let verdict = if reason.passes() { "pass" } else { "drop" };
        let labels = format!("{{verdict=\"{verdict}\",reason=\"{}\"}}", reason.name());
        let packets = (100 + reason as u64) as f64;
        assert_eq!(found[format!("limiter_packets_total{labels}").as_str()], packets);
        assert_eq!(found[format!("limiter_bytes_total{labels}").as_str()], 60.0 * packets);
    }
    for (name, value) in [
        ("limiter_events_lost_total{cause=\"ring_full\"}", 9.0),
        ("limiter_buckets{state=\"free\"}", 13.0),
        ("limiter_buckets{state=\"idle\"}", 2.0),
        ("limiter_buckets{state=\"busy\"}", 1.0),
        ("limiter_table_capacity", 16.0),
        ("limiter_distinct_sources", 1234.5),
        ("limiter_distinct_sources_standard_error_ratio", 0.016),
        ("limiter_sketch_noise_packets", 0.25),
        ("limiter_gate_packets", 16.0),
        ("limiter_list_entries{list=\"deny\"}", 3.0),
        ("limiter_bans", 2.0),
        ("limiter_trials", 4.0),
        ("limiter_interface_info{interface=\"eth\\\"0\",mode=\"generic\"}", 1.0),
        ("limiter_degraded", 0.0),
        ("limiter_uptime_seconds", 90.0),
        ("limiter_cluster_members", 3.0),
        ("limiter_cluster_home_ratio", 0.5),
        ("limiter_cluster_left_out", 5.0),
        ("limiter_cluster_untracked", 7.0),
        ("limiter_cluster_region_members{region=\"eu\"}", 2.0),
        ("limiter_cluster_region_home_ratio{region=\"us\"}", 0.25),
        ("limiter_cluster_region_loans{loans=\"borrowed\"}", 3.0),
        ("limiter_cluster_region_loans{loans=\"lent\"}", 1.0),
        ("limiter_cluster_lag_seconds{quantile=\"0.99\"}", 0.02),
        ("limiter_cluster_frames_total{frames=\"lost\"}", 9.0),
        ("limiter_cluster_refused_packets_total{reason=\"forged\"}", 2.0),
        ("limiter_cluster_overage_ratio{limit=\"default udp:53\"}", 0.75),
        ("limiter_cluster_overage_bound_ratio{limit=\"default udp:53\"}", 2.0),
        ("limiter_table_look_age_seconds", 0.5),
        ("limiter_core_work_seconds_count", 1.0),
        ("limiter_core_work_seconds_bucket{le=\"0.001\"}", 0.0),
        ("limiter_core_work_seconds_bucket{le=\"0.0025\"}", 1.0),
    ] {
        assert_eq!(found.get(name), Some(&value), "{name} in {text}");
    }
    assert_eq!(samples(&classic(&text)), found, "both formats have the same samples");
    assert!(!text.contains("192.0.2"), "no source is a label");
}
