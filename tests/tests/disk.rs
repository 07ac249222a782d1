//! A disk that is really full, under what the daemon keeps: limits go on, it is said once, and what was
//! counted meanwhile is kept when there is room again.

use std::{
    fs,
    io::Write as _,
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, SmallDisk, Stream, cli::limiter_binary, frame,
    observer::Then, process::wait_for, reports::Limit, v4,
};

/// Room for store, mirror and history, and some.
const DISK: u64 = 16 << 20;
/// The history's file, all of it.
const HISTORY: u64 = 3 << 20;
const PROBLEM: &str = "history cannot be kept in ";

fn start(lab: &Lab) -> (SmallDisk, Daemon) {
    // The namespaces are there already, where others see them, and so is the BPF file system.
    tests::leftovers::mount_bpf();
    let disk = SmallDisk::new(DISK);
    let state = Some(disk.path().join("state"));
    let daemon = Daemon::start_with(lab, DaemonOptions { state, ..DaemonOptions::default() });
    (disk, daemon)
}

/// Warnings of `status` that say that history cannot be kept.
fn warnings(daemon: &Daemon) -> usize {
    let status = daemon.cli().ok(&["status"]);
    let warnings = status["warnings"].as_array().expect("warnings").iter();
    warnings.filter(|text| text.as_str().is_some_and(|text| text.contains(PROBLEM))).count()
}

fn logged(daemon: &Daemon) -> usize {
    daemon.log().lines().filter(|line| line.contains(PROBLEM)).count()
}

/// A flood beside a source that keeps to the limit: the one gets its limit, the other everything.
fn assert_limits(lab: &Lab, limit: &Limit, flood: u8, conforming: u8) {
    let observer = Observer::new(lab, Then::Discard, &[]);
    let stream =
        |host, rate: f64| Stream::new(frame::udp(v4(host), 100), rate, (rate * 3.0) as u64);
    let sent = Sender::new(lab).send(vec![stream(flood, 20_000.0), stream(conforming, 900.0)]);
    let observed = observer.read();
    limit.assert_admitted("flood", observed.from(v4(flood)), [&sent[0]]);
    assert_eq!(observed.from(v4(conforming)), sent[1].packets());
}

/// Packets over their limit, as the report tells, and as the counters do.
fn dropped(daemon: &Daemon) -> (f64, f64) {
    std::thread::sleep(Duration::from_millis(1300));
    let report = daemon.cli().ok(&["report", "--since", "5m", "--step", "1s", "--format", "json"]);
    let column = |values: &Value| -> Vec<f64> {
        let values = values.as_array().expect("a column").iter();
        values.map(|value| value.as_f64().unwrap_or_default()).collect()
    };
    let history = &report["history"];
    let seconds = column(&history["seconds"]);
    let rates = column(&history["dropped_pps"]);
    let counted = seconds.iter().zip(rates).map(|(seconds, rate)| seconds * rate).sum();
    (counted, daemon.cli().stats().verdict("drop") as f64)
}

#[track_caller]
fn assert_counted(daemon: &Daemon, least: f64) {
    let (counted, really) = dropped(daemon);
    println!("{really} dropped, {counted:.1} in the history");
    assert!(
        really >= least && (counted - really).abs() <= 1.0 + really / 1e3,
        "{counted} {really}"
    );
}

#[test]
fn history_without_room_goes_on_in_memory_and_is_kept_when_there_is_some() {
    let lab = Lab::new(1);
    let (disk, mut daemon) = start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("2000"), None);
    assert_eq!(warnings(&daemon), 0);
    daemon.terminate();
    let history = daemon.state_folder().join("history");
    fs::remove_file(&history).expect("the daemon has kept history");
    println!("{} bytes of ballast", disk.fill());

    daemon.restart(&lab);
    assert_limits(&lab, &limit, 66, 10);
    assert_eq!(warnings(&daemon), 1);
    assert_eq!(daemon.cli().ok(&["status"])["state"], "ok", "limits are enforced");
    assert_counted(&daemon, 50_000.0);
    // It has been tried more than once by now.
    assert_eq!(logged(&daemon), 1, "{}", daemon.log());
    assert!(!history.exists());

    disk.make_room();
    let start = Instant::now();
    wait_for("history to be kept", Duration::from_secs(15), || {
        (warnings(&daemon) == 0).then_some(())
    });
    println!("kept {:.1} s after there was room", start.elapsed().as_secs_f64());
    assert!(fs::metadata(&history).expect("the history's file").len() > HISTORY);
    assert_eq!(daemon.log().matches("history is kept again").count(), 1, "{}", daemon.log());
    // Without a chance to write at the end.
    daemon.kill();
    daemon.restart(&lab);
    assert_eq!(warnings(&daemon), 0);
    // The counters went on, and so did the history.
    assert_counted(&daemon, 50_000.0);
    assert_eq!(logged(&daemon), 1, "{}", daemon.log());
    daemon.assert_accounted(&lab);
}

/// Limits for `count` addresses, to be imported.
fn import(daemon: &Daemon, count: u32) -> (i32, String) {
    let mut command = tools::own(limiter_binary());
    command.arg("--socket").arg(daemon.socket()).args(["limit", "import", "-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("limiter starts");
    let limits: String = (0..count)
        .map(|i| format!("10.{}.{}.{} 500pps\n", i >> 16, i >> 8 & 255, i & 255))
        .collect();
    let written = child.stdin.take().expect("its input").write_all(limits.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    written.unwrap_or_else(|error| panic!("{error}: {errors}"));
    (output.status.code().unwrap_or(-1), errors)
}

#[test]
fn a_disk_that_fills_up_costs_no_history_and_no_limit() {
    let lab = Lab::new(1);
    let (disk, mut daemon) = start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("2000"), None);
    println!("{} bytes of ballast", disk.fill());
    // What needs room on the disk is refused, as a whole, and says why.
    let (code, errors) = import(&daemon, 20_000);
    println!("{errors}");
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("No space left") && errors.contains("disk"), "{errors}");
    assert_eq!(daemon.cli().limits(), std::slice::from_ref(&limit));
    assert_limits(&lab, &limit, 66, 10);
    assert_counted(&daemon, 50_000.0);

    // As soon as there is room, changes are taken: no restart is needed.
    disk.make_room();
    let (code, errors) = import(&daemon, 20_000);
    assert_eq!(code, 0, "{errors}");
    let all: Vec<_> = daemon.cli().limits();
    assert_eq!(all.len(), 20_001);
    let removed = daemon.cli().ok(&["limit", "unset", "--for", "10.0.0.7"]);
    println!("{removed}");
    println!("{} bytes of ballast", disk.fill());

    // What is in place already is written to its place.
    daemon.terminate();
    daemon.restart(&lab);
    assert_eq!((warnings(&daemon), logged(&daemon)), (0, 0), "{}", daemon.log());
    assert_eq!(daemon.cli().limits().len(), 20_000);
    assert_counted(&daemon, 50_000.0);
    assert_limits(&lab, &limit, 67, 11);

    disk.make_room();
    let (code, errors) = import(&daemon, 20_000);
    assert_eq!(code, 0, "{errors}");
    assert_eq!(daemon.cli().limits().len(), 20_001);
    daemon.kill();
    daemon.restart(&lab);
    assert_eq!(daemon.cli().limits().len(), 20_001);
    daemon.assert_accounted(&lab);
}
