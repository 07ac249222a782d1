use super::*;
use api::ReasonSeries;

fn history(dropped: &[Option<f64>], reason: &str) -> HistoryReport {
    let steps = dropped.len();
    let some = dropped.iter().map(|value| value.map(|_| 10.0)).collect::<Vec<_>>();
    HistoryReport {
        step_seconds: 10,
        time: (0..steps).map(|i| 1_800_000_000.0 + 10.0 * i as f64).collect(),
        seconds: some.clone(),
        passed_pps: some.clone(),
        dropped_pps: dropped.to_vec(),
        passed_bps: some.clone(),
        dropped_bps: some.clone(),
        tracked: some.clone(),
        promotions: some.clone(),
        distinct: vec![None; steps],
        noise: some,
        reasons: vec![ReasonSeries {
            verdict: "drop".into(),
            reason: reason.into(),
            pps: dropped.to_vec(),
        }],
    }
}

fn top(dropped: u64) -> TopReport {
    let entry = serde_json::json!({
        "source": "198.51.100.7/32", "state": "limited", "limit": null, "passed": 5, "dropped": dropped,
        "bytes": 700, "first_seen": "2027-01-15T08:00:10.000Z", "last_seen": null, "pps": 9.0,
        "pps_seconds": 1.0, "by_prefix": null,
    });
    serde_json::from_value(serde_json::json!({ "sources": [entry], "tracked": 1 })).unwrap()
}

fn sentences(history: &HistoryReport, top: &TopReport) -> Vec<String> {
    verdict::sentences(history, &Sources::new(top))
}

#[test]
fn buckets_of_one_source_are_one_offender() {
    let mut report = top(300);
    let udp = TopEntry {
        class: Some("udp:53".parse().unwrap()),
        dropped: 500,
        first_seen: Some("2027-01-15T07:00:00.000Z".into()),
        ..report.sources[0].clone()
    };
    let other = TopEntry {
        source: "198.51.100.8/32".parse().unwrap(),
        dropped: 600,
        ..report.sources[0].clone()
    };
    let conforming = TopEntry {
        source: "198.51.100.9/32".parse().unwrap(),
        dropped: 0,
        ..report.sources[0].clone()
    };
    report.sources.extend([udp, other, conforming]);
    let Sources { all, have_lost } = Sources::new(&report);
    let told: Vec<_> = all.iter().map(|it| (it.net.to_string(), it.dropped)).collect();
    assert!(have_lost && all[0].limits == ["none", "udp:53 none"], "{:?}", all[0].limits);
    assert_eq!(told, [("198.51.100.7/32".into(), 800), ("198.51.100.8/32".into(), 600)]);
    let said = sentences(&history(&[Some(30.0)], "over_limit"), &report);
    let wanted = "198.51.100.7 hurts us most, since 2027-01-15T07:00:00.000Z: 800 packets of it were dropped by \
                  its limit, 57.1 % of those of the 2 worst sources.";
    assert_eq!(said[1], wanted);
    let Sources { all, have_lost } = Sources::new(&top(0));
    assert!(!have_lost && all.len() == 1, "nobody is an offender");
}

#[test]
fn what_nobody_knows_at_the_beginning_is_left_out() {
    let known = history(&[None, None, Some(1.0), None, Some(2.0)], "over_limit").known();
    assert_eq!(known.dropped_pps, [Some(1.0), None, Some(2.0)]);
    assert_eq!((known.time.len(), known.reasons[0].pps.len()), (3, 3));
    let nothing = history(&[None, None], "over_limit").known();
    assert_eq!(nothing.time.len(), 2);
}

#[test]
fn the_verdict_says_who_since_when_and_whom_we_hurt() {
    let said = sentences(&history(&[Some(0.0), None, Some(30.0)], "over_limit"), &top(300));
    assert!(said[0].starts_with("300 packets (60.0 % of all) were dropped"), "{said:?}");
    assert!(said[0].ends_with("2027-01-15T08:00:20.000Z."), "{said:?}");
    assert!(
        said[1].starts_with("198.51.100.7 hurts us most, since 2027-01-15T08:00:10"),
        "{said:?}"
    );
    assert!(said[2].starts_with("We hurt nobody"), "{said:?}");
    let said = sentences(&history(&[Some(30.0)], "set_full"), &top(0));
    assert!(said[1].contains("may have hurt") && said[1].contains("set_full 300"), "{said:?}");
    let said = sentences(&history(&[Some(0.0)], "over_limit"), &top(0));
    assert_eq!(said, ["Nobody is hurting us: all 100 packets passed."]);
    assert_eq!(sentences(&history(&[None], "x"), &top(0)), ["Nothing is known of this time."]);
}

#[test]
fn marks_are_at_round_moments() {
    let start = 1_800_000_007.0;
    assert_eq!(chart::ticks(start, start + 300.0)[..2], [1_800_000_060.0, 1_800_000_120.0]);
    let hour = chart::ticks(start, start + 3600.0);
    assert!(hour.len() == 6 && hour.iter().all(|mark| mark % 600.0 == 0.0), "{hour:?}");
    assert!(chart::ticks(start, start + 604_800.0).len() <= 8);
}

#[test]
fn a_chart_has_gaps_and_a_title() {
    let times: Vec<_> = (0..6).map(|i| 1_800_000_000.0 + f64::from(i)).collect();
    let values = [Some(1.0), Some(2.0), None, Some(3.0), Some(4.0), None];
    let svg = chart::svg("a < b", &times, &[("x & y".into(), &values)]).unwrap();
    assert!(svg.starts_with("<svg role=\"img\" aria-label=\"a &lt; b\""), "{svg}");
    assert!(svg.contains("<title>a &lt; b</title>"));
    assert!(svg.contains("x &amp; y"));
    // Two parts of the line; mesh and legend are other shapes of other colours.
    let lines = svg.matches("stroke=\"#009E73\"").count();
    assert_eq!(lines, 3, "two parts and a legend: {svg}");
    for none in [&[][..], &times[..1]] {
        chart::svg("little", none, &[("x".into(), &values[..none.len()])]).unwrap();
    }
}

#[test]
fn what_comes_from_outside_cannot_be_markup() {
    assert_eq!(escape("<b a='1'>\"&\u{1b}"), "&lt;b a=&#39;1&#39;&gt;&quot;&amp;\u{fffd}");
}
