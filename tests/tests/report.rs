//! `limiter report`: what went on as a page, as JSON and as a table, also after a restart.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::Value;
use tests::{Browser, Daemon, Lab, Sender, Stream, cli::limiter_binary, frame, v4, v6};

/// Where pictures are kept.
fn pictures() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    let folder = own.ancestors().skip(1).find(|folder| !folder.ends_with("deps"));
    let folder = folder.and_then(|folder| folder.parent()).expect("the target directory");
    let folder = folder.join("report");
    fs::create_dir_all(&folder).expect("a folder for pictures");
    folder
}

/// Runs `limiter report` and returns what it prints.
fn report(daemon: &Daemon, arguments: &[&str]) -> String {
    let mut command = tools::own(limiter_binary());
    command.arg("--socket").arg(daemon.socket()).arg("report").args(arguments);
    let output = command.output().expect("a report");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(daemon: &Daemon) -> Value {
    let text = report(daemon, &["--since", "5m", "--step", "1s", "--format", "json"]);
    serde_json::from_str(&text).expect("one JSON document")
}

/// Packets of all steps, from their rates and lengths.
fn packets(report: &Value, rates: &Value) -> f64 {
    let seconds = report["history"]["seconds"].as_array().expect("a column");
    let rates = rates.as_array().expect("a column");
    assert_eq!(seconds.len(), rates.len());
    let steps = seconds.iter().zip(rates);
    steps.filter_map(|(seconds, rate)| Some(seconds.as_f64()? * rate.as_f64()?)).sum()
}

fn dropped(report: &Value) -> f64 {
    packets(report, &report["history"]["dropped_pps"])
}

#[test]
fn a_flood_is_in_the_report_and_a_restart_keeps_it() {
    let lab = &Lab::new(1);
    let mut daemon = Daemon::start(lab);
    let cli = daemon.cli();
    cli.limit("100pps", Some("100"), None);
    cli.ok(&["deny", "add", "203.0.113.5", "--reason", "<script>alert('&')</script>"]);
    let frames = |source| vec![Stream::new(frame::udp(source, 100), 2000.0, 6000)];
    let sent = Sender::new(lab).send(frames(v4(66)));
    assert_eq!(sent[0].packets(), 6000);
    std::thread::sleep(Duration::from_millis(1500));
    let over = cli.stats().packets("drop", "over_limit") as f64;
    assert!(over > 5000.0, "{over}");

    let first = json(&daemon);
    let said = first["verdict"].to_string();
    assert!(said.contains("198.51.100.66 hurts us most"), "{said}");
    assert!(said.contains("We hurt nobody who conforms"), "{said}");
    let counted = dropped(&first);
    println!("{over} dropped, {counted:.1} in the history");
    assert!((counted - over).abs() <= 1.0 + over / 1e3, "{counted} of {over}");
    let reasons = first["history"]["reasons"].as_array().expect("reasons");
    let row = reasons.iter().find(|row| row["reason"] == "over_limit").expect("over_limit");
    assert!((packets(&first, &row["pps"]) - over).abs() <= 1.0 + over / 1e3);

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("report.html");
    report(&daemon, &["--since", "10m", "--out", &path.display().to_string()]);
    let page = fs::read_to_string(&path).expect("the page");
    println!("a page of {} bytes", page.len());
    assert!(page.contains("198.51.100.66") && page.contains("<svg role=\"img\""), "{page}");
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("over_limit"));
    assert!(!page.contains("<script"), "nothing from outside is markup");
    let without_namespaces = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for scheme in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!without_namespaces.contains(scheme), "{scheme} in {page}");
    }
    let csv = report(&daemon, &["--since", "1m", "--format", "csv"]);
    let mut lines = csv.lines();
    let header = lines.next().expect("a header");
    assert!(header.starts_with("time,seconds,passed_pps,dropped_pps"), "{header}");
    assert!(header.contains("drop_over_limit_pps"), "{header}");
    let columns = header.split(',').count();
    assert!(lines.all(|line| line.split(',').count() == columns), "{csv}");

    // What is dropped while no daemon runs is counted, too, after a gap.
    daemon.terminate();
    let sent = Sender::new(lab).send(frames(v4(67)));
    assert_eq!(sent[0].packets(), 6000);
    std::thread::sleep(Duration::from_secs(3));
    daemon.restart(lab);
    std::thread::sleep(Duration::from_millis(2500));
    let again = json(&daemon);
    let over = cli.stats().packets("drop", "over_limit") as f64;
    let counted = dropped(&again);
    println!("{over} dropped, {counted:.1} in the history after a restart");
    assert!(over > 10_000.0 && (counted - over).abs() <= 1.0 + over / 1e3, "{counted} of {over}");
    let seconds = again["history"]["seconds"].as_array().expect("a column");
    let mean = seconds.iter().filter_map(Value::as_f64).fold(0.0, f64::max);
    assert!(mean >= 5.0, "the slot after the gap is for all of it: {mean}");
    let present = seconds.iter().position(|seconds| !seconds.is_null()).expect("something");
    assert!(seconds[present..].iter().any(Value::is_null), "a gap: {seconds:?}");
    assert_eq!(cli.run(&["status"]).json["state"], "ok");
}

#[test]
fn what_cannot_be_told_is_refused_and_a_damaged_file_stops_nobody() {
    let lab = &Lab::new(1);
    let mut daemon = Daemon::start(lab);
    for arguments in [
        &["report", "--since", "2weeks"][..],
        &["report", "--since", "1m", "--until", "1h"],
        &["report", "--since", "soon"],
    ] {
        let answer = daemon.cli().run(arguments);
        assert_eq!(answer.code, 2, "{arguments:?}: {answer:?}");
    }
    let nowhere = daemon.cli().run(&["report", "--out", "/nonexistent/report.html"]);
    assert_eq!(nowhere.code, 1, "{nowhere:?}");
    assert!(nowhere.stderr.contains("/nonexistent/report.html"), "{nowhere:?}");
    daemon.terminate();
    let path = daemon.state_folder().join("history");
    assert!(fs::metadata(&path).expect("it is kept").len() < 6 << 20);
    fs::write(&path, "no history").expect("the file can be damaged");
    daemon.restart(lab);
    let status = daemon.cli().ok(&["status"]);
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("history.damaged"), "{status}");
    assert_eq!(status["state"], "ok");
}

#[test]
fn a_browser_shows_the_page_in_all_sizes_and_colours_and_asks_nobody() {
    let lab = &Lab::new(1);
    let daemon = Daemon::start(lab);
    let cli = daemon.cli();
    cli.limit("100pps", Some("100"), None);
    // Long names, and many events.
    let comment = "a-reason-without-a-space-".repeat(8);
    cli.ok(&["deny", "add", "2001:db8:ffff:ffff::/64", "--reason", &comment]);
    for (net, rate) in [("2001:db8:1234:5678::/64", "5kpps"), ("203.0.113.0/24", "10mbit")] {
        cli.ok(&["limit", "set", rate, "--for", net]);
    }
    let mut streams = vec![Stream::new(frame::udp(v4(66), 100), 5000.0, 20_000)];
    for site in 0..20 {
        streams.push(Stream::new(frame::udp(v6(0xff00 | site, 1), 100), 300.0, 1000));
    }
    let _sent = Sender::new(lab).send(streams);
    std::thread::sleep(Duration::from_millis(1200));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("report.html");
    report(&daemon, &["--since", "1m", "--out", &path.display().to_string()]);
    let url = format!("file://{}", path.display());

    let mut browser = Browser::start(&lab.receiver);
    for (width, dark) in [(400, false), (400, true), (1600, false), (1600, true)] {
        browser.look(width, 1000, dark);
        browser.open(&url);
        browser.assert_fits(width);
        // Of each chart how large it is, how high the highest line is that is no axis, and how small its
        // letters are.
        let charts = browser.eval(
            "[...document.querySelectorAll('svg[role=img]')].map(chart => {
               const size = it => { const { width, height } = it.getBoundingClientRect(); return [width, height]; };
               const high = what => [...chart.querySelectorAll(what)].map(it => size(it)[1]);
               return [...size(chart), Math.max(...high('polyline:not([stroke=\"#000000\"])')),
                 Math.min(...high('text')), chart.getAttribute('aria-label')]; })",
        );
        println!("{width} pixels, dark {dark}: {charts}");
        let charts = charts.as_array().expect("charts");
        assert_eq!(charts.len(), 3, "{charts:?}");
        for chart in charts {
            let number = |at: usize| chart[at].as_f64().unwrap_or_default();
            let (across, high, line, letters) = (number(0), number(1), number(2), number(3));
            assert!(across >= 700.0 && high > across / 5.0, "{chart}");
            assert!(line > high / 2.0 && line < high, "a line goes up: {chart}");
            assert!(letters >= 8.0, "letters that can be read: {chart}");
        }
        browser.assert_readable(dark);
        let name = format!("{width}-{}.png", if dark { "dark" } else { "light" });
        browser.screenshot(&pictures().join(&name));
        println!("{}", pictures().join(name).display());
    }
    assert!(browser.text("body").contains("198.51.100.66"));
    browser.assert_self_contained(&url);
}
