//! Bad input and faults: each gets a clear error with a hint and its exit code, and what worked
//! before goes on working.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::Path,
};

use serde_json::Value;
use tests::{
    Bystander, Cli, Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    cli::{Answer, answer, limiter_binary},
    frame,
    lab::RX,
    leftovers::BPF_FOLDER,
    observer::Then,
    process, v4,
};

const USAGE: i32 = 2;
const UNREACHABLE: i32 = 3;
const PRIVILEGE: i32 = 4;

/// Asserts the exit code and that the error, on stderr and in JSON, speaks of all of `about`.
#[track_caller]
fn assert_error(answer: &Answer, code: i32, about: &[&str]) {
    assert_eq!(answer.code, code, "{answer:#?}");
    let error = &answer.json["error"];
    assert_eq!(error["code"], code, "{answer:#?}");
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    assert!(!text("message").is_empty() && !text("hint").is_empty(), "{answer:#?}");
    let json = text("message") + &text("hint");
    for word in about {
        assert!(json.contains(word) && answer.stderr.contains(word), "{word}: {answer:#?}");
    }
}

/// Asserts that a flood is held to `1000pps`, burst 100, so that the limiter still works.
fn assert_still_limits(lab: &Lab, daemon: &Daemon) {
    let limits = daemon.cli().limits();
    let limit = limits.iter().find(|limit| limit.target == "default").expect("a default limit");
    let observer = Observer::new(lab, Then::Discard, &[]);
    // For two seconds: the tokens of the last two clock ticks may be due yet, some eight of them.
    let sent = Sender::new(lab).send(vec![Stream::new(frame::udp(v4(99), 100), 10_000.0, 20_000)]);
    limit.assert_admitted("still", observer.read().from(v4(99)), [&sent[0]]);
    daemon.assert_accounted(lab);
}

/// A lab with a daemon and the limit that [`assert_still_limits`] looks for.
fn working() -> (Lab, Daemon) {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1000pps", Some("100"), None);
    (lab, daemon)
}

/// Runs `limiter run` with folders of its own; it must fail.
fn failing_run(lab: &Lab, home: &Path, arguments: &[&str]) -> Answer {
    let mut command = lab.receiver.own(limiter_binary());
    command.arg("--socket").arg(home.join("s")).args(["--json", "run"]);
    command.arg("--state-dir").arg(home.join("state"));
    command.arg("--pin-dir").arg(Path::new(BPF_FOLDER).join(format!(
        "limiter-test-{}-{}",
        std::process::id(),
        tests::namespace::unique()
    )));
    answer(command.args(arguments))
}

/// Id of the XDP program on the protected interface.
fn xdp_program(lab: &Lab) -> Option<u64> {
    let text = process::run(lab.receiver.ip(&["-json", "link", "show", RX]));
    let links: Value = serde_json::from_str(&text).expect("ip prints JSON");
    links[0]["xdp"]["prog"]["id"].as_u64()
}

#[test]
fn limits_that_make_no_sense() {
    let (lab, daemon) = working();
    let cli = daemon.cli();
    let before = cli.limits();
    for (arguments, about) in [
        (vec!["0pps"], vec!["0pps"]),
        (vec!["10mbps"], vec!["10mbps", "10mbit", "10mbyte"]),
        (vec!["5"], vec!["5pps"]),
        (vec!["100bps"], vec!["bps"]),
        (vec!["nanpps"], vec!["nan"]),
        (vec!["99999999999999999999pps"], vec!["99999999999999999999pps"]),
        (vec!["1000pps", "--burst", "0"], vec!["burst"]),
        (vec!["10mbit", "--burst", "100byte"], vec!["burst", "1514"]),
        (vec!["10mbit", "--burst", "5000"], vec!["5000"]),
        (vec!["1000pps", "--for", "198.51.100.7/24"], vec!["host bits", "198.51.100.0/24"]),
        (vec!["1000pps", "--for", "2001:db8::1/48"], vec!["host bits", "2001:db8::/48"]),
        (vec!["1000pps", "--for", "198.51.100.300"], vec!["198.51.100.300"]),
        (vec!["1000pps", "--for", "2001:db8::/96"], vec!["64"]),
        (vec!["1000pps", "5pps"], vec!["1000pps and 5pps", "packets"]),
        (vec!["1000pps", "--burst", "5", "--burst", "6"], vec!["two bursts of packets"]),
        (vec!["1000pps", "--proto", "tpc"], vec!["tpc", "protocol"]),
        (vec!["1000pps", "--proto", "icmp", "--dport", "8"], vec!["only TCP and UDP have ports"]),
        (vec!["1000pps", "--dport", "0-53"], vec!["0 is not a port"]),
        (vec!["1000pps", "--dport", "2000-1000"], vec!["ends before it begins", "1000-2000"]),
        (vec!["1000pps", "--proto", "udp", "--syn"], vec!["only TCP has flags"]),
        (vec!["1000pps", "--tcp-flags", "syn,!syn"], vec!["contradict"]),
        (
            vec!["1000pps", "--for", "198.51.100.7", "--aggregate"],
            vec!["single source", "198.51.100.7"],
        ),
        (vec!["1000pps", "--for", "2001:db8::/64", "--aggregate"], vec!["single source"]),
        (vec!["1000pps", "--aggregate", "--ban-for", "10m"], vec!["share"]),
        (vec!["1000pps", "--no-enforce", "--ban-for", "10m"], vec!["not enforced"]),
        (vec!["1000pps", "--ban-for", "31days"], vec!["31days", "30days"]),
        (vec!["1000pps", "--ban-for", "10m", "--ban-factor", "0"], vec!["factor"]),
        (
            vec!["1000pps", "--ban-for", "10m", "--ban-after", "100ms"],
            vec!["100ms", "whole seconds"],
        ),
    ] {
        let mut all = vec!["limit", "set"];
        all.extend(&arguments);
        let answer = cli.run(&all);
        println!("{arguments:?}: {}", answer.stderr.trim());
        assert_error(&answer, USAGE, &about);
    }
    assert_eq!(cli.limits(), before, "nothing has changed");
    assert_still_limits(&lab, &daemon);
}

#[test]
fn durations_that_make_no_sense() {
    // None of them needs a daemon to be told.
    let cli = Cli::new(Path::new("/nonexistent/limiter.sock"));
    for (arguments, about) in [
        (
            ["deny", "add", "192.0.2.1", "--ttl", "12"].as_slice(),
            ["--ttl", "write 12s, 12m or 12h"],
        ),
        (&["deny", "add", "192.0.2.1", "--ttl", "-5m"], ["is negative", "write 5m"]),
        (&["report", "--since", "yesterday"], ["yesterday", "10m, 12h or 7d"]),
        (&["limit", "set", "5pps", "--confirm", "--dry-run"], ["--confirm", "10m, 12h or 7d"]),
        (&["suggest", "--over", "5 parsecs"], ["5 parsecs", "10m, 12h or 7d"]),
    ] {
        assert_error(&cli.run(arguments), USAGE, &about);
    }
}

#[test]
fn interfaces_that_do_not_exist() {
    let (lab, daemon) = working();
    let answer = daemon.cli().run(&["attach", "nosuch0"]);
    assert_error(&answer, USAGE, &["nosuch0", RX]);
    assert_still_limits(&lab, &daemon);
}

#[test]
fn without_privileges() {
    let (lab, daemon) = working();
    // The build may be where only root can go, hence a copy.
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let powerless = ["--bounding-set=-all", "--inh-caps=-all"];
    for privileges in [nobody.as_slice(), &powerless] {
        let home = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).expect("own folder");
        let copy = home.path().join("limiter");
        fs::copy(limiter_binary(), &copy).expect("a copy of the program");
        let mut command = lab.receiver.command(&tools::SETPRIV);
        command.args(privileges).arg(&copy).arg("--socket").arg(home.path().join("s"));
        command.args(["--json", "run", "-i", RX, "--state-dir"]).arg(home.path().join("state"));
        let answer = answer(command.arg("--pin-dir").arg(Path::new(BPF_FOLDER).join("limiter-x")));
        println!("{privileges:?}: {}", answer.stderr.trim());
        assert_error(&answer, PRIVILEGE, &["CAP_BPF", "CAP_NET_ADMIN", "root"]);
    }
    assert_still_limits(&lab, &daemon);
}

/// Another program is named, stays until `--replace`, and is gone then.
fn assert_replaces(make: impl FnOnce(&Lab) -> Bystander) {
    let lab = Lab::new(1);
    let other = make(&lab);
    let id = other.id().to_string();
    let home = tempfile::tempdir().expect("a temporary folder");
    let refused = failing_run(&lab, home.path(), &["-i", RX]);
    assert_error(&refused, USAGE, &[RX, &id, "--replace"]);
    let daemon = Daemon::start_with(&lab, DaemonOptions::idle());
    daemon.cli().limit("1000pps", Some("100"), None);
    assert_error(&daemon.cli().run(&["attach", RX]), USAGE, &[RX, &id, "--replace"]);
    assert_eq!(xdp_program(&lab), Some(other.id().into()), "the other one stays");
    let attached = daemon.cli().ok(&["attach", RX, "--replace"]);
    assert_eq!(attached["interface"]["name"], RX);
    assert_eq!(attached["interface"]["program_id"].as_u64(), xdp_program(&lab));
    assert_ne!(xdp_program(&lab), Some(other.id().into()));
    assert_still_limits(&lab, &daemon);
}

#[test]
fn an_interface_with_another_program_on_a_link() {
    assert_replaces(Bystander::passing);
}

#[test]
fn an_interface_with_another_program_without_a_link() {
    assert_replaces(Bystander::without_link);
}

#[test]
fn modes_that_a_driver_lacks() {
    let (lab, daemon) = working();
    daemon.cli().ok(&["detach", RX]);
    let home = tempfile::tempdir().expect("a temporary folder");
    // Nothing is attached in another mode than the one that was asked for.
    let about = [RX, "veth", "offload", "--mode native", "--mode generic"];
    let refused = failing_run(&lab, home.path(), &["-i", RX, "--mode", "offload"]);
    assert_error(&refused, USAGE, &about);
    assert_error(&daemon.cli().run(&["attach", RX, "--mode", "offload"]), USAGE, &about);
    process::run(lab.receiver.ip(&["link", "add", "br0", "type", "bridge"]));
    let refused = daemon.cli().run(&["attach", "br0"]);
    assert_error(&refused, PRIVILEGE, &["br0", "native", "--mode generic", "limiter doctor"]);
    assert_eq!(xdp_program(&lab), None);
    // The way out works.
    daemon.cli().ok(&["attach", "br0", "--mode", "generic"]);
    daemon.cli().ok(&["detach", "br0"]);
    daemon.cli().ok(&["attach", RX, "--mode", "native"]);
    assert_still_limits(&lab, &daemon);
}

#[test]
fn attach_and_detach_at_run_time() {
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::idle());
    daemon.cli().limit("1000pps", Some("100"), None);
    assert_eq!(xdp_program(&lab), None);
    daemon.cli().ok(&["attach", RX]);
    assert_still_limits(&lab, &daemon);
    assert_eq!(daemon.cli().ok(&["detach", RX])["detached"], RX);
    assert_eq!(xdp_program(&lab), None);
    assert_error(&daemon.cli().run(&["detach", RX]), 1, &[RX]);
}

#[test]
fn a_daemon_without_an_interface_says_that_nothing_is_limited() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start_with(&lab, DaemonOptions::idle());
    let log = daemon.log();
    assert!(log.contains("attached to no interface, so nothing is limited"), "{log}");
    assert!(log.contains("limiter attach IFACE"), "{log}");
    daemon.cli().ok(&["attach", RX]);
    daemon.cli().ok(&["detach", RX]);
    daemon.terminate();
    let log = daemon.log();
    assert!(log.contains("nothing was attached, so nothing is limited"), "{log}");
    assert!(!log.contains("stay in force"), "{log}");
    daemon.restart(&lab);
    daemon.cli().ok(&["attach", RX]);
    daemon.terminate();
    let log = daemon.log();
    assert!(log.contains(&format!("the limits stay in force on {RX}")), "{log}");
}

#[test]
fn a_second_daemon_on_the_same_socket() {
    let (lab, daemon) = working();
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut second = lab.receiver.own(limiter_binary());
    second.arg("--socket").arg(daemon.socket()).args(["--json", "run", "--state-dir"]);
    second.arg(home.path()).arg("--pin-dir").arg(daemon.pins());
    let socket = daemon.socket();
    let refused = answer(&mut second);
    println!("{}", refused.stderr.trim());
    assert_error(&refused, USAGE, &[socket.to_str().expect("an ASCII path"), "--socket"]);
    assert_still_limits(&lab, &daemon);
}

#[test]
fn a_stale_socket_is_replaced() {
    let (lab, mut daemon) = working();
    daemon.kill();
    assert!(daemon.socket().exists(), "a killed daemon leaves its socket");
    assert_error(&daemon.cli().run(&["stats"]), UNREACHABLE, &["limiter run"]);
    daemon.restart(&lab);
    assert_still_limits(&lab, &daemon);
}

#[test]
fn no_daemon() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let nothing = folder.path().join("nothing.sock");
    let deaf = folder.path().join("deaf.sock");
    drop(UnixListener::bind(&deaf).expect("a socket"));
    for socket in [nothing, deaf] {
        let cli = Cli::new(&socket);
        let path = socket.to_str().expect("an ASCII path");
        for arguments in [
            ["stats"].as_slice(),
            &["status"],
            &["limit", "list"],
            &["limit", "set", "5pps"],
            &["show", "198.51.100.7"],
            &["top", "--once"],
            &["detach", RX],
        ] {
            assert_error(&cli.run(arguments), UNREACHABLE, &[path, "limiter run"]);
        }
        assert_eq!(cli.run(&["version"]).code, 0, "needs no daemon");
    }
}

/// Overwrites the files of the daemon's store whose names `which` accepts with garbage.
fn corrupt(daemon: &Daemon, which: impl Fn(&str) -> bool) {
    let mut corrupted = 0;
    for entry in fs::read_dir(daemon.state_folder()).expect("the daemon's folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.contains("redb") && which(&name) {
            fs::write(&path, vec![0xa5; 100_000]).expect("the store can be written");
            corrupted += 1;
        }
    }
    assert!(corrupted > 0, "no store in {:?}", daemon.state_folder());
}

#[test]
fn a_store_of_garbage_is_replaced_by_its_mirror() {
    let (lab, mut daemon) = working();
    let limits = daemon.cli().limits();
    daemon.kill();
    corrupt(&daemon, |name| !name.contains("mirror"));
    daemon.restart(&lab);
    let status = daemon.cli().run(&["status"]);
    assert_eq!(status.json["store"]["state"], "recovered", "{status:#?}");
    assert_eq!(daemon.cli().limits(), limits, "the mirror has them");
    assert_still_limits(&lab, &daemon);
}

#[test]
fn a_store_and_mirror_of_garbage_are_refused_and_the_kernel_goes_on() {
    let (lab, mut daemon) = working();
    daemon.kill();
    corrupt(&daemon, |_| true);
    let refused = answer(daemon.command(&lab).arg("--json"));
    assert_error(&refused, USAGE, &["limits.redb"]);
    // The kernel never stopped to limit, whatever the store says.
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sent = Sender::new(&lab).send(vec![Stream::new(frame::udp(v4(1), 100), 10_000.0, 10_000)]);
    let admitted = observer.read().from(v4(1));
    assert!(admitted < sent[0].packets() / 5, "{admitted} of {}", sent[0].packets());
}

#[test]
fn without_a_bpf_file_system() {
    let lab = Lab::new(1);
    let home = tempfile::tempdir().expect("a temporary folder");
    // A mount namespace in which nothing is mounted where pins go. The daemon mounts what it needs
    // there, and all of it is gone with the process.
    let script = "umount -a -t bpf && exec \"$0\" \"$@\"";
    let mut command = lab.receiver.command(&tools::UNSHARE);
    command.args(["--mount", "sh", "-c", script]).arg(limiter_binary());
    command.arg("--socket").arg(home.path().join("s")).args(["run", "-i", RX, "--state-dir"]);
    command.arg(home.path().join("state"));
    let mut daemon = process::Background::start(&mut command);
    let cli = Cli::new(&home.path().join("s"));
    process::wait_for("the daemon's answer", std::time::Duration::from_secs(20), || {
        assert!(daemon.try_wait().is_none(), "the daemon has ended");
        (cli.run(&["status"]).code <= 1).then_some(())
    });
    assert!(xdp_program(&lab).is_some());
    assert!(!Path::new(BPF_FOLDER).join("limiter").exists(), "nothing is pinned outside");
    // A folder that is on another file system is refused, with a way out.
    let folder = home.path().join("pins");
    let mut other = lab.receiver.own(limiter_binary());
    other.arg("--socket").arg(home.path().join("o")).args(["--json", "run", "--pin-dir"]);
    let refused = answer(other.arg(&folder).arg("--state-dir").arg(home.path().join("other")));
    assert_error(&refused, PRIVILEGE, &["BPF file system", "mount -t bpf"]);
}

#[test]
fn unknown_commands_and_arguments() {
    for arguments in [["nonsense"].as_slice(), &["limit", "set"], &["show", "nowhere"], &["top"]] {
        let printed = process::output(tools::own(limiter_binary()).args(arguments));
        assert_eq!(printed.status.code(), Some(USAGE), "{arguments:?}: {printed:?}");
        assert!(!printed.stderr.is_empty() && printed.stdout.is_empty(), "{printed:?}");
    }
}
