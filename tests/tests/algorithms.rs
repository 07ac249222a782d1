//! `limiter simulate algorithms`: the laboratory, from the command line to the browser. It needs no daemon.

use std::{collections::BTreeSet, path::Path, time::Duration, time::Instant};

use serde_json::Value;
use tests::{Browser, Lab, cli::limiter_binary, frame, pcap, v4};

/// Runs the laboratory and returns what it prints.
fn simulate(arguments: &[&str]) -> String {
    let mut command = tools::own(limiter_binary());
    command.args(["simulate", "algorithms"]).args(arguments);
    let output = command.output().expect("a report");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&simulate(&[arguments, &["--json"]].concat())).expect("one document")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn packets_of_a_file_are_judged_by_their_sources() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("some.pcap");
    // Every 10 ms two packets of one source and one of another.
    let frames: Vec<_> = (0..900).map(|i| frame::udp(v4(66 + u8::from(i % 3 == 0)), 100)).collect();
    pcap::write(&file, &frames, 3333).expect("a file");
    let report = json(&["--pcap", path(&file), "--limit", "150pps"]);
    let patterns = report["patterns"].as_array().expect("patterns");
    assert_eq!(patterns.len(), 1, "{report}");
    assert_eq!((&patterns[0]["sources"], &patterns[0]["requests"]), (&2.into(), &900.into()));
    for row in report["algorithms"].as_array().expect("algorithms") {
        let number = |key: &str| row[key].as_u64().expect("a number");
        // 200 a second, of which 150 are admitted; the other source conforms.
        assert!((148..=number("bound")).contains(&number("most_in_window")), "{row}");
        assert_eq!(number("conforming_denied"), 0, "{row}");
    }
    let beside = json(&["--capture", path(&file), "--pattern", "edge", "--limit", "150pps"]);
    let names = beside["patterns"].as_array().expect("patterns").iter().map(|it| &it["name"]);
    assert!(names.eq(["edge", "capture"]), "{beside}");
    let text = simulate(&["--capture", path(&file), "--limit", "150pps"]);
    assert!(text.contains("samples: a part of the traffic"), "{text}");
}

#[test]
fn a_default_run_takes_seconds() {
    let start = Instant::now();
    let report = json(&[]);
    assert_eq!(report["algorithms"].as_array().map(Vec::len), Some(6));
    let took = start.elapsed();
    println!("{took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_browser_shows_each_line_by_its_dashes_too() {
    let lab = &Lab::new(1);
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    simulate(&["--html", path(&page)]);
    let size = std::fs::metadata(&page).expect("a page").len();
    assert!(size < 2 << 20, "{size} bytes");
    let url = format!("file://{}", page.display());
    let mut browser = Browser::start(&lab.receiver);
    for (width, dark) in [(400, false), (1600, true)] {
        browser.look(width, 1000, dark);
        browser.open(&url);
        browser.assert_fits(width);
        browser.assert_readable(dark);
    }
    // Of each chart its name, its legend, the dashes of its lines, how many lines hide a part of the legend, and
    // whether its highest line goes up.
    let charts = browser.eval(
        "[...document.querySelectorAll('svg[role=img]')].map(chart => {
           const lines = [...chart.querySelectorAll('polyline:not([stroke=\"#000000\"])')];
           const texts = [...chart.querySelectorAll('text')].filter(it => /[a-z]/.test(it.textContent));
           const left = Math.min(...texts.map(it => it.getBoundingClientRect().left));
           const high = chart.getBoundingClientRect().height;
           return {
             name: chart.getAttribute('aria-label'),
             legend: texts.map(it => it.textContent.trim()),
             dashes: [...new Set(lines.map(it => getComputedStyle(it).strokeDasharray))],
             hidden: lines.filter(it => it.getBoundingClientRect().right > left).length,
             rises: Math.max(...lines.map(it => it.getBoundingClientRect().height)) > high / 3 }; })",
    );
    let charts = charts.as_array().expect("charts");
    assert_eq!(charts.len(), 2 * 15, "two of each pattern");
    let texts = |value: &Value| -> BTreeSet<String> {
        let all = value.as_array().expect("texts").iter();
        all.map(|it| it.as_str().expect("text").to_owned()).collect()
    };
    for chart in charts {
        let (legend, dashes) = (texts(&chart["legend"]), texts(&chart["dashes"]));
        for name in ["fixed-window of 60 s", "sub-windows of 15 s", "sub-windows of 1 s"] {
            assert!(legend.contains(name), "{name} in {chart}");
        }
        assert_eq!((legend.len(), dashes.len()), (7, 7), "each line has its own dashes: {chart}");
        assert_eq!((&chart["hidden"], &chart["rises"]), (&0.into(), &true.into()), "{chart}");
    }
    assert!(browser.text("[role=status]").contains("none is over its bound"));
    browser.assert_self_contained(&url);
}
