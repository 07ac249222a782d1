//! Instances have state of their own, in places of their own by default; the interfaces of one daemon
//! share theirs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    cli::{Answer, answer, limiter_binary},
    frame,
    lab::{RX, RX2, TX2},
    leftovers::{BPF_FOLDER, INSTANCE_PREFIX, mount_bpf},
    namespace::unique,
    observer::Then,
    process::{self, Background, wait_for},
    reports::{Limit, Stats},
    v4,
};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Many more frames than any limit here allows, for `seconds`.
fn flood(seconds: f64) -> Vec<Stream> {
    vec![Stream::new(frame::udp(v4(1), 100), 10_000.0, (10_000.0 * seconds) as u64)]
}

/// An instance's daemon, with everything in the usual places, all of which is removed on drop.
struct Instance<'lab> {
    lab: &'lab Lab,
    name: String,
    interface: &'static str,
    process: Option<Background>,
}

impl<'lab> Instance<'lab> {
    /// One that does not run yet.
    fn named(lab: &'lab Lab, role: &str, interface: &'static str) -> Self {
        mount_bpf();
        let name = format!("{INSTANCE_PREFIX}{}-{}-{role}", std::process::id(), unique());
        Self { lab, name, interface, process: None }
    }

    fn running(lab: &'lab Lab, role: &str, interface: &'static str) -> Self {
        let mut instance = Self::named(lab, role, interface);
        instance.start();
        instance
    }

    /// A command for this instance, chosen by flag, in the receiving namespace.
    fn command(&self) -> Command {
        let mut command = self.lab.receiver.own(limiter_binary());
        command.args(["--instance", &self.name]);
        command
    }

    fn start(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_file());
        let log = log.expect("a log among temporary files");
        let mut command = self.command();
        command.args(["run", "-i", self.interface]);
        self.process = Some(Background::start(command.stderr(log)));
        wait_for("the instance's answer", TIMEOUT, || {
            let process = self.process.as_mut().expect("it was started");
            if let Some(status) = process.try_wait() {
                panic!("{} has ended with {status}: {}", self.name, self.log());
            }
            (self.run(&["status"]).code <= 1).then_some(())
        });
    }

    fn stop(&mut self, signal: i32) {
        let mut process = self.process.take().expect("it runs");
        process.signal(signal);
        process.wait(TIMEOUT);
    }

    fn log_file(&self) -> PathBuf {
        std::env::temp_dir().join(format!("limiter-{}.log", self.name))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Runs a command with `--json`.
    fn run(&self, arguments: &[&str]) -> Answer {
        answer(self.command().arg("--json").args(arguments))
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> Value {
        let answer = self.run(arguments);
        assert_eq!(answer.code, 0, "{arguments:?}: {answer:#?}");
        answer.json
    }

    fn limit(&self, rate: &str, burst: &str) -> Limit {
        let set = self.ok(&["limit", "set", rate, "--burst", burst]);
        serde_json::from_value(set["limit"].clone()).expect("a limit")
    }

    fn stats(&self) -> Stats {
        serde_json::from_value(self.ok(&["stats"])).expect("counters")
    }

    fn pins(&self) -> PathBuf {
        Path::new(BPF_FOLDER).join(format!("limiter@{}", self.name))
    }

    fn socket(&self) -> PathBuf {
        Path::new("/run/limiter").join(&self.name).join("limiter.sock")
    }

    fn state(&self) -> PathBuf {
        Path::new("/var/lib/limiter").join(&self.name)
    }
}

impl Drop for Instance<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.name, self.log());
        }
        drop(self.process.take());
        // What was never made cannot be removed.
        let socket = self.socket();
        let folders = [self.pins(), self.state(), socket.with_file_name("")];
        let _removed = folders.map(fs::remove_dir_all);
        let _removed = fs::remove_file(self.log_file());
        // Only if this test was the only reason for them.
        let _removed = ["/run/limiter", "/var/lib/limiter"].map(fs::remove_dir);
    }
}

/// A lab with two wires.
fn two_wires() -> Lab {
    let lab = Lab::new(1);
    lab.add_wire();
    lab
}

/// The program's id on an interface.
fn program_on(lab: &Lab, interface: &str) -> Option<u64> {
    let text = process::run(lab.receiver.ip(&["-json", "link", "show", interface]));
    let links: Value = serde_json::from_str(&text).expect("ip prints JSON");
    links[0]["xdp"]["prog"]["id"].as_u64()
}

#[test]
fn instances_limit_the_same_source_each_by_itself() {
    let lab = two_wires();
    let mut edge = Instance::running(&lab, "edge", RX);
    let mut core = Instance::running(&lab, "core", RX2);
    let (fast, slow) = (edge.limit("1000pps", "1000"), core.limit("300pps", "300"));
    let observers = [RX, RX2].map(|device| Observer::on(&lab, device, Then::Discard, &[]));
    let before = [RX, RX2].map(|device| program_on(&lab, device).expect("attached"));

    // The same source floods both wires at once.
    let sending = Sender::new(&lab).start(flood(2.0));
    let other = Sender::new(&lab).on_device(TX2).send(flood(2.0)).remove(0);
    let sent = sending.join().remove(0);
    let admitted = observers.each_ref().map(|observer| observer.read().from(v4(1)));
    fast.assert_admitted("one instance", admitted[0], [&sent]);
    slow.assert_admitted("the other", admitted[1], [&other]);
    // Exactly what was sent on its wire is in each one's counters.
    for (instance, sent, admitted) in [(&edge, &sent, admitted[0]), (&core, &other, admitted[1])] {
        let stats = instance.stats();
        assert_eq!((stats.sum(), stats.verdict("pass")), (sent.packets(), admitted));
        assert_eq!(instance.ok(&["status"])["instance"], instance.name.as_str());
        let text = process::run(instance.command().arg("status"));
        assert!(text.contains(&format!("instance    {}", instance.name)), "{text}");
        for path in [instance.socket(), instance.pins(), instance.state().join("limits.redb")] {
            assert!(path.exists(), "{path:?}");
        }
    }

    // One dies, the other does not notice; the dead one's limit stays in force.
    let untouched = core.stats();
    edge.stop(libc::SIGKILL);
    assert_eq!(core.stats().sum(), untouched.sum());
    assert_eq!(core.process.as_mut().and_then(Background::try_wait), None);
    let sent = Sender::new(&lab).send(flood(2.0)).remove(0);
    let orphaned = observers[0].read().from(v4(1)) - admitted[0];
    // The bucket is as the flood before left it, or has filled up a little since.
    let least = fast.rate_per_second * sent.seconds() * 0.99;
    let most = fast.allowance(sent.seconds()) * 1.01;
    assert!((least..most).contains(&(orphaned as f64)), "{orphaned} of {least}..{most}");
    assert_eq!(core.stats().sum(), untouched.sum(), "nothing of it is for the other");

    // Both start again, with their own limits, and take over their own programs.
    core.stop(libc::SIGTERM);
    edge.start();
    core.start();
    for (at, (instance, limit)) in [(&edge, &fast), (&core, &slow)].into_iter().enumerate() {
        let limits: Vec<Limit> =
            serde_json::from_value(instance.ok(&["limit", "list"])["limits"].clone())
                .expect("limits");
        assert_eq!(&limits, std::slice::from_ref(limit));
        let now = program_on(&lab, [RX, RX2][at]).expect("still attached");
        assert_ne!(now, before[at], "taken over by a new daemon");
    }
    assert!(edge.stats().sum() >= sent.packets(), "counters are kept");
    assert_eq!(core.stats().sum(), untouched.sum());
}

#[test]
fn interfaces_of_one_daemon_share_a_bucket() {
    let lab = two_wires();
    let options =
        DaemonOptions { interfaces: vec![RX.into(), RX2.into()], ..DaemonOptions::default() };
    let daemon = Daemon::start_with(&lab, options);
    let limit = daemon.cli().limit("1000pps", Some("1000"), None);
    let observers = [RX, RX2].map(|device| Observer::on(&lab, device, Then::Discard, &[]));
    let sending = Sender::new(&lab).start(flood(2.0));
    let other = Sender::new(&lab).on_device(TX2).send(flood(2.0)).remove(0);
    let sent = sending.join().remove(0);
    let admitted: u64 = observers.iter().map(|observer| observer.read().from(v4(1))).sum();
    limit.assert_admitted("both interfaces together", admitted, [&sent, &other]);
    let stats = daemon.cli().stats();
    assert_eq!(stats.sum(), sent.packets() + other.packets());
    assert_eq!(stats.verdict("pass"), admitted);
}

/// Asserts that a command is refused and that its hint speaks of `about`.
#[track_caller]
fn assert_refused(answer: &Answer, code: i32, message: &str, hint: &str) {
    assert_eq!(answer.code, code, "{answer:#?}");
    let error = &answer.json["error"];
    assert!(error["message"].as_str().is_some_and(|text| text.contains(message)), "{answer:#?}");
    assert!(error["hint"].as_str().is_some_and(|text| text.contains(hint)), "{answer:#?}");
}

#[test]
fn an_interface_has_one_instance() {
    let lab = two_wires();
    let edge = Instance::running(&lab, "edge", RX);
    edge.limit("1000pps", "1000");
    let before = program_on(&lab, RX);
    let late = Instance::named(&lab, "late", RX);
    let (owner, way_out) =
        (format!("the instance {}", edge.name), format!("--instance {} detach {RX}", edge.name));
    for replace in [&[][..], &["--replace"]] {
        let refused = late.run(&[&["run", "-i", RX], replace].concat());
        assert_refused(&refused, 2, &owner, &way_out);
        assert!(!late.pins().exists() && !late.socket().exists(), "nothing is half made");
    }
    let other = Instance::running(&lab, "other", RX2);
    for replace in [&[][..], &["--replace"]] {
        assert_refused(&other.run(&[&["attach", RX], replace].concat()), 2, &owner, &way_out);
    }
    // A daemon with pins of its own is told, too, and is told of.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = lab.receiver.own(limiter_binary());
    command.args(["--json", "--socket"]).arg(folder.path().join("s")).args(["run", "-i", RX]);
    command.arg("--state-dir").arg(folder.path()).arg("--pin-dir");
    let pins =
        Path::new(BPF_FOLDER).join(format!("limiter-test-{}-{}", std::process::id(), unique()));
    assert_refused(&answer(command.arg(pins)), 2, &owner, &way_out);
    assert_eq!(program_on(&lab, RX), before, "the first one stays");
    assert_eq!(edge.ok(&["limit", "list"])["limits"].as_array().map(Vec::len), Some(1));

    // `doctor` says so beforehand.
    let found = late.run(&["doctor", RX]);
    let checks = found.json["checks"].as_array().expect("checks");
    let check = checks.iter().find(|check| check["name"] == "xdp-program").expect("a check");
    assert_eq!((&check["state"], found.code), (&"warn".into(), 1), "{check}");
    assert!(check["remedy"].as_str().is_some_and(|text| text.contains(&way_out)), "{check}");
    // The remedy works.
    edge.ok(&["detach", RX]);
    other.ok(&["attach", RX]);
}

#[test]
fn an_absent_instance_is_named() {
    let lab = two_wires();
    let edge = Instance::named(&lab, "edge", RX);
    let way_out = format!("is `limiter --instance {} run` running?", edge.name);
    assert_refused(&edge.run(&["status"]), 3, "no daemon answers on /run/limiter/", &way_out);
    let mut by_environment = lab.receiver.own(limiter_binary());
    by_environment.env("LIMITER_INSTANCE", &edge.name).args(["--json", "status"]);
    assert_refused(&answer(&mut by_environment), 3, &edge.name, &way_out);
    for name in ["Edge", "", "../x", "a.b", "limiter", "e23456789012345678901234567890123"] {
        let mut command = lab.receiver.own(limiter_binary());
        let refused = answer(command.args(["--instance", name, "--json", "status"]));
        assert_refused(&refused, 2, "--instance", "limiter status --help");
    }
    // What flag, environment and file say goes before what the instance does.
    let shown = edge.ok(&["config", "show", "--pin-dir", "/sys/fs/bpf/x"]);
    let settings = shown["settings"].as_array().expect("settings");
    let of = |key| settings.iter().find(|setting| setting["key"] == key).expect("a key");
    assert_eq!(of("pin_dir")["value"], "/sys/fs/bpf/x");
    assert_eq!(of("pin_dir")["origin"], "--pin-dir");
    assert_eq!(of("socket")["value"], edge.socket().to_str().expect("ASCII"));
    assert_eq!(of("state_dir")["value"], edge.state().to_str().expect("ASCII"));
    assert_eq!(of("state_dir")["origin"], format!("default of instance {}", edge.name));
}

#[test]
fn cleanup_finds_what_every_instance_left() {
    let lab = two_wires();
    let mut edge = Instance::running(&lab, "edge", RX);
    let core = Instance::running(&lab, "core", RX2);
    edge.stop(libc::SIGKILL);
    let cleanup = |arguments: &[&str]| {
        let mut command = lab.receiver.own(limiter_binary());
        answer(command.args(["--json", "cleanup"]).args(arguments))
    };
    let all = cleanup(&["--dry-run"]);
    assert_eq!(all.code, 0, "{all:#?}");
    let remnants = all.json["remnants"].as_array().expect("a list");
    let of = |name: &str| remnants.iter().filter(|r| r["instance"] == name).collect::<Vec<_>>();
    let kinds: Vec<_> = of(&edge.name).iter().map(|r| r["kind"].clone()).collect();
    assert_eq!(kinds, ["data-plane", "socket"]);
    assert_eq!(of(&edge.name)[0]["attached"][0]["name"], RX);
    assert!(of(&core.name).is_empty(), "it runs");
    let running = all.json["running"].as_array().expect("a list");
    assert!(running.contains(&core.name.as_str().into()), "{running:?}");
    // By name: only with --yes, for it still limits; and never that of a daemon that runs.
    assert_refused(&edge.run(&["cleanup"]), 1, RX, &format!("--instance {} run", edge.name));
    assert_refused(&core.run(&["cleanup", "--yes"]), 1, "nothing is removed", "stop it first");
    assert!(edge.pins().exists() && core.pins().exists());
    edge.ok(&["cleanup", "--yes"]);
    assert!(!edge.pins().exists() && core.pins().exists());
    wait_for("a free interface", TIMEOUT, || program_on(&lab, RX).is_none().then_some(()));
    assert!(program_on(&lab, RX2).is_some(), "the other one is untouched");
}
