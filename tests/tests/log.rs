//! The daemon's log: what the kernel program writes to it, and its form.

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    net::IpAddr,
    os::fd::AsFd as _,
    time::Duration,
};

use aya::programs::loaded_programs;
use serde_json::Value;
use tempfile::TempDir;
use tests::{
    Daemon, DaemonOptions, Lab, Sender, Stream,
    cli::answer,
    cost, frame,
    process::{Background, wait_for},
    program, v4, v6,
};

/// Lines that a CPU may write at once, and in each second after.
const LINES: u64 = 20;

/// A daemon with a configuration file of its own.
fn daemon(lab: &Lab, home: &TempDir, text: &str) -> Daemon {
    let path = configure(home, text);
    let daemon = Daemon::start_with(lab, DaemonOptions::with(&["--config", &path]));
    daemon.cli().limit("1000pps", Some("100"), None);
    daemon
}

fn configure(home: &TempDir, text: &str) -> String {
    let path = home.path().join("limiter.toml");
    fs::write(&path, text).expect("a configuration file");
    path.display().to_string()
}

/// Gives each of `sources` a bucket, on one CPU.
fn promote(lab: &Lab, sources: impl IntoIterator<Item = IpAddr>) {
    let streams = sources
        .into_iter()
        .map(|source| Stream::new(frame::udp(source, 100), 5000.0, 300).with_burst(300));
    let sent = Sender::new(lab).on_cpu(0).send(streams.collect());
    assert!(sent.iter().all(|sent| sent.packets() == 300));
}

/// Lines of the kernel program.
fn lines(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("kernel: ")).collect()
}

/// How many lines tell of a new bucket, and the sum of what lines tell was left out.
fn told(log: &str) -> (u64, u64) {
    let lines = lines(log);
    let promoted = lines.iter().filter(|line| line.contains("got a bucket")).count() as u64;
    let left_out = lines.iter().filter_map(|line| {
        let (before, _) = line.split_once(" packets more of which nothing was written")?;
        before.split_whitespace().last()?.parse::<u64>().ok()
    });
    (promoted, left_out.sum())
}

fn promotions(daemon: &Daemon) -> u64 {
    daemon.cli().stats().internal.promotions
}

/// Instructions of a daemon's program, as the verifier left them.
fn instructions(daemon: &Daemon) -> usize {
    let id = program::id(daemon);
    let info = loaded_programs().filter_map(Result::ok).find(|info| info.id() == id);
    let fd = info.expect("the program").fd().expect("its descriptor");
    cost::instructions(fd.as_fd()).len()
}

#[test]
fn the_kernel_program_writes_while_a_daemon_wants_it() {
    let lab = Lab::new(1);
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut daemon = daemon(&lab, &home, "kernel_log = true\n");
    promote(&lab, [v4(1), v6(1, 1)]);
    for source in ["198.51.100.1", "2001:db8:7:1::1"] {
        let line = format!("kernel: {source} got a bucket (CPU 0)");
        wait_for(&line, Duration::from_secs(5), || daemon.log().contains(&line).then_some(()));
    }

    // A flood of promotions is no flood of lines, and none of them is forgotten.
    promote(&lab, (1..=200).map(|site| v6(2, site)).chain((2..=200).map(v4)));
    std::thread::sleep(Duration::from_millis(1500));
    promote(&lab, [v4(201)]);
    wait_for("the last line", Duration::from_secs(5), || {
        daemon.log().contains("198.51.100.201 got").then_some(())
    });
    let ((told, left_out), promotions_on) = (told(&daemon.log()), promotions(&daemon));
    println!("{promotions_on} promotions: {told} told, {left_out} left out");
    assert_eq!(told + left_out, promotions_on, "{:#?}", lines(&daemon.log()));
    assert!(told <= 4 * LINES && left_out > 100, "{told} told, {left_out} left out");
    let on = instructions(&daemon);

    // A packet that a line is written about can be sampled as well.
    let (cli, file) = (daemon.cli(), home.path().join("samples").display().to_string());
    let capture = std::thread::spawn(move || {
        cli.ok(&["capture", "--source", "198.51.100.202", "--for", "3s", "-w", &file])
    });
    std::thread::sleep(Duration::from_secs(1));
    promote(&lab, [v4(202)]);
    assert_eq!(capture.join().expect("a capture")["matched"], 300);
    assert!(daemon.log().contains("kernel: 198.51.100.202 got a bucket"));

    // Nobody reads: it goes on without.
    assert!(daemon.terminate().success());
    promote(&lab, [v4(203)]);

    configure(&home, "kernel_log = false\n");
    daemon.restart(&lab);
    assert!(daemon.log().contains("took over"), "{}", daemon.log());
    let written = lines(&daemon.log()).len();
    promote(&lab, [v4(204), v6(3, 1)]);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(promotions(&daemon), promotions_on + 4);
    assert_eq!(lines(&daemon.log()).len(), written, "{:#?}", lines(&daemon.log()));
    let off = instructions(&daemon);
    println!("{off} instructions when it is off, {on} when it is on");
    assert!(off < on, "the kernel has taken nothing out: {off} and {on}");

    // A daemon that dies leaves a program that writes for nobody, and the next one has its own.
    configure(&home, "kernel_log = true\n");
    daemon.kill();
    daemon.restart(&lab);
    daemon.kill();
    promote(&lab, [v4(205)]);
    daemon.restart(&lab);
    promote(&lab, [v4(206)]);
    wait_for("a line of the new program", Duration::from_secs(5), || {
        daemon.log().contains("198.51.100.206 got a bucket").then_some(())
    });
    let log = daemon.log();
    assert!(!lines(&log).iter().any(|line| line.contains("100.205")), "{:#?}", lines(&log));
    assert_eq!(promotions(&daemon), promotions_on + 6);
    daemon.assert_accounted(&lab);
}

/// The lines of a log, each of which must be an object.
fn objects(log: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let objects: Vec<Value> = log.lines().map(parse).collect();
    for object in &objects {
        for key in ["timestamp", "level", "target", "message"] {
            assert!(object[key].is_string(), "no {key} in {object}");
        }
    }
    objects
}

fn has(objects: &[Value], level: &str, target: &str, message: &str) -> bool {
    objects.iter().any(|object| {
        object["level"] == level
            && object["target"].as_str().is_some_and(|found| found.starts_with(target))
            && object["message"].as_str().is_some_and(|found| found.contains(message))
    })
}

#[test]
fn a_log_of_json_is_nothing_but_json() {
    let lab = Lab::new(1);
    let home = tempfile::tempdir().expect("a temporary folder");
    let daemon = daemon(&lab, &home, "log_format = \"json\"\nkernel_log = true\n");
    promote(&lab, [v4(1)]);
    let limited = "198.51.100.1";
    wait_for("the kernel's line", Duration::from_secs(5), || {
        has(&objects(&daemon.log()), "INFO", "limiter::kernel", limited).then_some(())
    });
    let written = objects(&daemon.log());
    assert!(has(&written, "INFO", "daemon", "ready: serving"), "{written:#?}");
    let set = written.iter().find(|object| object["event"] == "policy");
    assert!(set.is_some_and(|set| set["target"] == "event"), "{written:#?}");

    // Why a daemon ends is told there, too: here it finds the socket in use. By the environment.
    configure(&home, "");
    let failed = answer(daemon.command(&lab).env("LIMITER_LOG_FORMAT", "json"));
    let written = objects(&failed.stderr);
    assert_ne!(failed.code, 0);
    assert!(has(&written, "ERROR", "limiter", "sock"), "{written:#?}");
    let failed = answer(&mut daemon.command(&lab));
    assert!(failed.stderr.contains("error: "), "text is the default: {}", failed.stderr);
}

#[test]
fn a_daemon_outlives_whoever_reads_its_log() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    daemon.kill();
    let (log, its_end) = io::pipe().expect("a pipe");
    let mut running = Background::start(daemon.command(&lab).stderr(its_end));
    let has_started = |line: io::Result<String>| line.is_ok_and(|it| it.contains("has started"));
    // It is closed with that line.
    assert!(BufReader::new(log).lines().any(has_started), "the daemon has ended");
    // Each is a line of the log.
    for rate in ["1000pps", "2000pps"] {
        let limit = daemon.cli().limit(rate, Some("100"), None);
        assert_eq!(daemon.cli().limits(), [limit]);
    }
    assert_eq!(running.try_wait(), None, "it goes on");
    drop(running);
    daemon.restart(&lab);
}
