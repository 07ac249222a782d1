//! Changes that are tried out, confirmed or reverted; addresses that no limit applies to; and who may
//! do what with how many privileges.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tests::{
    Bystander, Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    cli::{Answer, answer, limiter_binary},
    frame,
    lab::RX,
    observer::Then,
    process::wait_for,
    reports::Limit,
    v4,
};

const NEGATIVE: i32 = 1;
const USAGE: i32 = 2;
const PRIVILEGE: i32 = 4;

/// Asserts the exit code and that the error, on stderr and in JSON, speaks of all of `about`.
#[track_caller]
fn assert_error(answer: &Answer, code: i32, about: &[&str]) {
    assert_eq!(answer.code, code, "{answer:#?}");
    let text = |name: &str| answer.json["error"][name].as_str().unwrap_or_default().to_owned();
    assert!(!text("message").is_empty() && !text("hint").is_empty(), "{answer:#?}");
    let json = text("message") + &text("hint");
    for word in about {
        assert!(json.contains(word) && answer.stderr.contains(word), "{word}: {answer:#?}");
    }
}

/// Counts what a flood of a second from the `host`-th source gets through: that, the seconds it took
/// and what was sent.
fn flood(lab: &Lab, host: u8) -> (u64, f64, u64) {
    let observer = Observer::new(lab, Then::Discard, &[]);
    let before = observer.read().from(v4(host));
    let sent = Sender::new(lab).send(vec![Stream::new(frame::udp(v4(host), 100), 5000.0, 5000)]);
    (observer.read().from(v4(host)) - before, sent[0].seconds(), sent[0].packets())
}

/// Asserts that a flood was held to `limit` rather than to another one, to within five percent: how
/// exact limits are is for others to test.
#[track_caller]
fn assert_held(what: &str, limit: &Limit, (admitted, seconds, sent): (u64, f64, u64)) {
    let allowed = limit.allowance(seconds);
    println!("{what}: admitted {admitted} of {allowed:.1} in {seconds:.4} s, {sent} sent");
    assert!((admitted as f64 / allowed - 1.0).abs() < 0.05, "{what}: {admitted}, not {allowed:.1}");
}

/// The rates of all limits by target.
fn rates(daemon: &Daemon) -> Vec<(String, String)> {
    daemon.cli().limits().into_iter().map(|limit| (limit.target, limit.rate)).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(target, rate)| ((*target).into(), (*rate).into())).collect()
}

fn pending(daemon: &Daemon) -> Option<f64> {
    daemon.cli().run(&["status"]).json["confirm"]["seconds_left"].as_f64()
}

#[test]
fn a_dry_run_prints_the_difference_and_changes_nothing() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let limit = cli.limit("1000pps", Some("1000"), None);
    cli.limit("10mbit", None, Some("203.0.113.0/24"));
    let before = rates(&daemon);
    let shown = cli.ok(&["limit", "set", "5pps", "--dry-run"]);
    let diff = &shown["dry_run"];
    assert_eq!(diff["changed"][0]["target"], "default", "{shown:#}");
    assert_eq!(diff["changed"][0]["old"]["rate"], "1000pps");
    assert_eq!(diff["changed"][0]["new"]["rate"], "5pps");
    assert_eq!((&diff["added"], &diff["removed"]), (&json!([]), &json!([])));
    let removed = cli.ok(&["limit", "unset", "--for", "203.0.113.0/24", "--dry-run"]);
    assert_eq!(removed["dry_run"]["removed"][0]["target"], "203.0.113.0/24");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let list = folder.path().join("list");
    fs::write(&list, "default 1000pps 1000\n198.51.100.7 9pps\n203.0.113.0/24 1pps\n")
        .expect("own");
    let list = list.to_str().expect("an ASCII path");
    let imported = cli.ok(&["limit", "import", list, "--dry-run"]);
    let count = |what: &str| imported["dry_run"][what].as_array().map_or(0, Vec::len);
    assert_eq!((count("added"), count("changed"), count("removed")), (1, 1, 0), "{imported:#}");
    assert_error(
        &cli.run(&["limit", "set", "5pps", "--for", "2001:db8::1", "--dry-run"]),
        USAGE,
        &["64"],
    );
    assert_error(
        &cli.run(&["limit", "unset", "--for", "192.0.2.1", "--dry-run"]),
        NEGATIVE,
        &["192.0.2.1"],
    );
    // As text, on stdout alone.
    let mut command = tools::own(limiter_binary());
    command.arg("--socket").arg(daemon.socket()).args(["limit", "import", list, "--dry-run"]);
    let text = tests::process::run(&mut command);
    for line in
        ["+ 198.51.100.7: 9pps", "~ 203.0.113.0/24: 10mbit", "1 added, 1 changed, 0 removed"]
    {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(rates(&daemon), before);
    assert_held("after dry runs", &limit, flood(&lab, 1));
    daemon.assert_accounted(&lab);
}

#[test]
fn an_unconfirmed_change_is_reverted_in_time() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let limit = cli.limit("1000pps", Some("1000"), None);
    let start = Instant::now();
    let set = cli.ok(&["limit", "set", "500pps", "--burst", "500", "--confirm", "4s"]);
    assert!(set["confirm"]["seconds_left"].as_f64().is_some_and(|left| left > 3.0), "{set:#}");
    // It is in force meanwhile, and nothing else can be changed.
    let tried: Limit = serde_json::from_value(set["limit"].clone()).expect("a limit");
    assert_held("before the revert", &tried, flood(&lab, 1));
    for change in [
        ["limit", "set", "9pps"].as_slice(),
        &["limit", "unset"],
        &["limit", "set", "9pps", "--confirm", "1m"],
    ] {
        assert_error(&cli.run(change), NEGATIVE, &["limiter confirm", "--abort"]);
    }
    cli.ok(&["limit", "set", "9pps", "--dry-run"]);
    assert!(pending(&daemon).is_some_and(|left| left < 4.0 && left > 0.0));
    wait_for("the revert", Duration::from_secs(8), || pending(&daemon).is_none().then_some(()));
    let took = start.elapsed().as_secs_f64();
    println!("reverted after {took:.2} s");
    assert!((4.0..6.0).contains(&took), "{took}");
    assert_eq!(cli.limits(), std::slice::from_ref(&limit));
    assert_held("after the revert", &limit, flood(&lab, 2));
    assert_error(&cli.run(&["confirm"]), NEGATIVE, &["reverted"]);
    daemon.assert_accounted(&lab);
}

#[test]
fn a_change_is_confirmed_or_aborted() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    assert_error(&cli.run(&["confirm"]), NEGATIVE, &["--confirm"]);
    cli.ok(&["limit", "set", "500pps", "--confirm", "1s"]);
    assert_eq!(cli.ok(&["confirm"])["outcome"], "confirmed");
    std::thread::sleep(Duration::from_millis(2200));
    assert_eq!(rates(&daemon), pairs(&[("default", "500pps")]));
    cli.ok(&["limit", "unset", "--confirm", "1h"]);
    assert_eq!(rates(&daemon), []);
    assert_eq!(cli.ok(&["confirm", "--abort"])["outcome"], "reverted");
    let late = cli.run(&["confirm"]);
    assert_error(&late, NEGATIVE, &["was reverted with --abort by "]);
    assert!(!late.stderr.contains("in time"), "{late:#?}");
    assert_eq!(rates(&daemon), pairs(&[("default", "500pps")]));
    assert_eq!(pending(&daemon), None);
    for (period, about) in [("0s", "--confirm 60s"), ("2days", "24h")] {
        let refused = cli.run(&["limit", "set", "9pps", "--confirm", period]);
        assert_error(&refused, USAGE, &["--confirm", about]);
    }
    assert_eq!(cli.run(&["limit", "set", "9pps", "--confirm", "soon"]).code, USAGE);
    assert_eq!(cli.run(&["limit", "set", "9pps", "--confirm", "5s", "--dry-run"]).code, USAGE);
    assert_eq!(rates(&daemon), pairs(&[("default", "500pps")]));
}

#[test]
fn a_killed_daemon_reverts_when_it_is_back() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("1000"), None);
    let old = pairs(&[("default", "1000pps")]);
    // Back in time: it goes on waiting.
    daemon.cli().ok(&["limit", "set", "500pps", "--confirm", "6s"]);
    daemon.kill();
    daemon.restart(&lab);
    assert_eq!(rates(&daemon), pairs(&[("default", "500pps")]));
    assert!(pending(&daemon).is_some_and(|left| left < 6.0));
    wait_for("the revert", Duration::from_secs(10), || pending(&daemon).is_none().then_some(()));
    assert_eq!(rates(&daemon), old);
    // Back too late: it reverts before it answers.
    daemon.cli().ok(&["limit", "set", "9pps", "--confirm", "1s"]);
    daemon.cli().ok(&["status"]);
    daemon.kill();
    std::thread::sleep(Duration::from_millis(1200));
    daemon.restart(&lab);
    assert_eq!(rates(&daemon), old);
    assert_eq!(pending(&daemon), None);
    assert_held("after the revert", &limit, flood(&lab, 1));
    // Who stops the daemon takes away what would revert the change: it does so before.
    daemon.cli().ok(&["limit", "set", "9pps", "--confirm", "1h"]);
    assert!(daemon.terminate().success());
    assert_held("without a daemon", &limit, flood(&lab, 2));
    daemon.restart(&lab);
    assert_eq!(rates(&daemon), old);
    assert_eq!(pending(&daemon), None);
    daemon.assert_accounted(&lab);
}

#[test]
fn management_addresses_are_never_limited() {
    let lab = Lab::new(1);
    let options = ["--management", "198.51.100.1", "--management", "203.0.113.0/24"];
    let mut daemon = Daemon::start_with(&lab, DaemonOptions::with(&options));
    let cli = daemon.cli();
    let limit = cli.limit("1000pps", Some("1000"), None);
    cli.limit("1000pps", Some("1000"), Some("198.51.100.0/24"));
    let equal = cli.ok(&["limit", "set", "5pps", "--for", "198.51.100.1"]);
    assert!(equal["warnings"][0].as_str().is_some_and(|text| text.contains("never")), "{equal:#}");
    let (admitted, _, sent) = flood(&lab, 1);
    assert_eq!(admitted, sent, "a management address");
    assert_held("its neighbour", &limit, flood(&lab, 2));
    let shown = cli.ok(&["show", "198.51.100.1"]);
    assert_eq!((&shown["management"], &shown["limit"]), (&json!("198.51.100.1/32"), &Value::Null));
    assert_eq!(cli.ok(&["show", "198.51.100.2"])["management"], Value::Null);
    let inside = cli.run(&["limit", "set", "5pps", "--for", "203.0.113.7"]);
    assert_error(&inside, USAGE, &["203.0.113.7", "203.0.113.0/24", "--management"]);
    // Without the daemon as well, and not any more once it is off the list.
    daemon.kill();
    let (admitted, _, sent) = flood(&lab, 1);
    assert_eq!(admitted, sent, "a management address, no daemon");
    daemon.restart(&lab);
    let (admitted, _, sent) = flood(&lab, 1);
    assert_eq!(admitted, sent, "a management address, another daemon");
    daemon.cli().ok(&["limit", "unset", "--for", "198.51.100.1"]);
    let (admitted, _, sent) = flood(&lab, 1);
    assert_eq!(admitted, sent, "a management address whose limit is removed");
    daemon.terminate();
    let mut command = daemon.command(&lab);
    let all: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let kept = all.iter().position(|argument| argument == "--management").expect("it is there");
    let mut other = tools::own(command.get_program());
    let mut unmanaged = tests::process::Background::start(other.args(&all[..kept]));
    wait_for("the daemon's answer", Duration::from_secs(20), || {
        assert!(unmanaged.try_wait().is_none(), "the daemon has ended");
        (daemon.cli().run(&["status"]).code <= 1).then_some(())
    });
    assert_held("off the list", &limit, flood(&lab, 1));
    drop(unmanaged);
    for (bad, about) in
        [("0.0.0.0/0", "every source"), ("bastion", "bastion"), ("192.0.2.1/24", "host bits")]
    {
        command = daemon.command(&lab);
        let printed = tests::process::output(command.args(["--management", bad]));
        let text = String::from_utf8_lossy(&printed.stderr).into_owned();
        assert!(printed.status.code() == Some(USAGE) && text.contains(about), "{text}");
    }
}

#[test]
fn who_could_shut_oneself_out_is_warned() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let run = |session: &str, arguments: &[&str]| {
        let mut command = tools::own(limiter_binary());
        command.env("SSH_CONNECTION", session).arg("--socket").arg(daemon.socket());
        answer(command.arg("--json").args(arguments))
    };
    let session = "198.51.100.7 50000 192.0.2.1 22";
    let set = run(session, &["limit", "set", "9pps", "--for", "198.51.100.0/24"]);
    assert_eq!(set.code, 0, "{set:#?}");
    let warning = set.json["warnings"][0].as_str().unwrap_or_default();
    for word in ["198.51.100.7", "9pps", "198.51.100.0/24", "--confirm"] {
        assert!(warning.contains(word) && set.stderr.contains(word), "{word}: {set:#?}");
    }
    for (session, target) in [
        (session, "203.0.113.0/24"),
        (session, "198.51.100.0/24"), // as before
        ("::1 50000 ::1 22", "::/0"),
        ("nonsense", "198.51.100.7"),
    ] {
        let quiet = run(session, &["limit", "set", "9pps", "--for", target]);
        assert_eq!(
            (quiet.code, &quiet.json["warnings"]),
            (0, &Value::Null),
            "{target}: {quiet:#?}"
        );
        assert!(!quiet.stderr.contains("warning"), "{quiet:#?}");
    }
}

#[test]
fn who_could_deny_oneself_is_warned() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let run = |arguments: &[&str]| {
        let mut command = tools::own(limiter_binary());
        command.env("SSH_CONNECTION", "198.51.100.7 50000 192.0.2.1 22");
        let answer =
            answer(command.arg("--socket").arg(daemon.socket()).arg("--json").args(arguments));
        assert_eq!(answer.code, 0, "{arguments:?}: {answer:#?}");
        answer
    };
    let denied = run(&["deny", "add", "198.51.100.0/24", "--dry-run"]);
    let warning = denied.json["warnings"][0].as_str().unwrap_or_default();
    for word in ["198.51.100.7", "198.51.100.0/24", "--confirm"] {
        assert!(warning.contains(word) && denied.stderr.contains(word), "{word}: {denied:#?}");
    }
    for quiet in [
        ["deny", "add", "203.0.113.0/24"].as_slice(),
        &["allow", "add", "198.51.100.7"],
        &["deny", "add", "198.51.100.0/24"], // it is allowed
    ] {
        let quiet = run(quiet);
        assert_eq!(quiet.json["warnings"], Value::Null, "{quiet:#?}");
    }
    let removed = run(&["allow", "del", "198.51.100.7", "--confirm", "1h"]);
    assert!(removed.stderr.contains("confirm it only if"), "{removed:#?}");
}

#[test]
fn another_admin_group_is_taken_at_once() {
    let lab = Lab::new(1);
    let (home, program) = public();
    let file = home.path().join("limiter.toml");
    let write = |text: &str| fs::write(&file, text).expect("own folder");
    write("socket_group = \"games\"\n");
    let path = file.to_str().expect("an ASCII path");
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--config", path]));
    let folder = daemon.socket().parent().expect("its folder").to_owned();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("own folder");
    let change = || {
        let mut command = tools::SETPRIV.command();
        command.arg(format!("--reuid={NOBODY}")).arg(format!("--regid={NOBODY}"));
        command.arg(format!("--groups={},{}", LOOKERS.1, ADMINS.1)).arg(&program);
        command.arg("--socket").arg(daemon.socket());
        answer(command.args(["--json", "deny", "add", "192.0.2.1"])).code
    };
    assert_eq!(change(), PRIVILEGE);
    write("socket_group = \"games\"\nadmin_group = \"operator\"\n");
    assert_eq!(daemon.cli().ok(&["reload"])["live"][0]["key"], "admin_group");
    assert_eq!(change(), 0);
    write("socket_group = \"games\"\n");
    daemon.cli().ok(&["reload"]);
    assert_eq!(change(), PRIVILEGE);
}

/// Capabilities are told as a bit mask.
const NET_ADMIN: u64 = 1 << 12;
const BPF: u64 = 1 << 39;

#[test]
fn a_running_daemon_has_given_up_its_privileges() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    cli.limit("1000pps", Some("1000"), None);
    let tasks = PathBuf::from(format!("/proc/{}/task", daemon.pid()));
    let mut threads = 0;
    for thread in fs::read_dir(&tasks).expect("the daemon's threads") {
        let status = thread.expect("an entry").path().join("status");
        let status = fs::read_to_string(status).expect("a thread that lives");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
        };
        let mask = |name| u64::from_str_radix(&field(name), 16).expect("a mask");
        assert_eq!(mask("CapEff:"), NET_ADMIN | BPF, "{status}");
        assert_eq!(mask("CapPrm:"), NET_ADMIN | BPF);
        assert_eq!(mask("CapBnd:"), NET_ADMIN | BPF);
        assert_eq!((mask("CapInh:"), mask("CapAmb:")), (0, 0));
        assert_eq!(field("NoNewPrivs:"), "1");
        threads += 1;
    }
    assert!(threads > 1, "one serves and one works");
    // What is left is enough.
    cli.ok(&["detach", RX]);
    cli.ok(&["attach", RX]);
    cli.limit("2000pps", Some("1000"), Some("198.51.100.9"));
    cli.ok(&["status"]);
    cli.ok(&["limit", "unset"]);
}

#[test]
fn a_daemon_starts_with_little_and_says_what_is_missing() {
    let lab = Lab::new(1);
    let home = tempfile::tempdir().expect("a temporary folder");
    let start = |capabilities: &str, name: &str| {
        let mut command = lab.receiver.command(&tools::SETPRIV);
        command.arg(format!("--bounding-set=-all{capabilities}")).arg("--inh-caps=-all");
        command.arg(limiter_binary()).arg("--socket").arg(home.path().join(name));
        command.args(["--json", "run", "-i", RX, "--state-dir"]);
        command.arg(home.path().join(format!("{name}-state"))).arg("--pin-dir").arg(
            Path::new(tests::leftovers::BPF_FOLDER).join(format!(
                "{}{}-{name}",
                tests::leftovers::PIN_PREFIX,
                std::process::id()
            )),
        );
        command.args(["--on-exit", "detach"]);
        command
    };
    assert_error(&answer(&mut start(",+bpf", "one")), PRIVILEGE, &["CAP_NET_ADMIN"]);
    assert_error(&answer(&mut start(",+net_admin", "two")), PRIVILEGE, &["CAP_BPF"]);
    let unverified = answer(&mut start(",+bpf,+net_admin", "unverified"));
    assert_error(&unverified, PRIVILEGE, &["missing privileges: CAP_PERFMON"]);
    let mut daemon =
        tests::process::Background::start(&mut start(",+bpf,+net_admin,+perfmon", "three"));
    let cli = tests::Cli::new(&home.path().join("three"));
    wait_for("the daemon's answer", Duration::from_secs(20), || {
        assert!(daemon.try_wait().is_none(), "the daemon has ended");
        (cli.run(&["status"]).code <= 1).then_some(())
    });
    cli.limit("1000pps", Some("1000"), None);
    daemon.signal(libc::SIGTERM);
    assert!(daemon.wait(Duration::from_secs(20)).success());
}

/// Groups that every Debian has.
const LOOKERS: (&str, u32) = ("games", 60);
const ADMINS: (&str, u32) = ("operator", 37);
const NOBODY: u32 = 65_534;

/// A folder that everybody may enter, with a copy of the program: the build may be where only root
/// can go.
fn public() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("own folder");
    let copy = folder.path().join("limiter");
    fs::copy(limiter_binary(), &copy).expect("a copy of the program");
    (folder, copy)
}

#[test]
fn the_group_looks_and_admins_change() {
    let lab = Lab::new(1);
    let options = ["--socket-group", LOOKERS.0, "--admin-group", ADMINS.0];
    let mut daemon = Daemon::start_with(&lab, DaemonOptions::with(&options));
    let (_folder, program) = public();
    let home = daemon.socket().parent().expect("its folder").to_owned();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).expect("own folder");
    let mode = fs::metadata(daemon.socket()).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let socket = daemon.socket();
    let run = |groups: &[u32], arguments: &[&str]| {
        let groups: Vec<_> = groups.iter().map(ToString::to_string).collect();
        let mut command = tools::SETPRIV.command();
        command.arg(format!("--reuid={NOBODY}")).arg(format!("--regid={NOBODY}"));
        if groups.is_empty() {
            command.arg("--clear-groups");
        } else {
            command.arg(format!("--groups={}", groups.join(",")));
        }
        command.arg(&program).arg("--socket").arg(&socket).arg("--json").args(arguments);
        answer(&mut command)
    };
    let changes = [
        ["limit", "set", "5pps"].as_slice(),
        &["limit", "set", "5pps", "--dry-run"],
        &["limit", "unset"],
        &["confirm"],
        &["detach", RX],
        &["attach", RX],
    ];
    daemon.cli().limit("1000pps", None, None);
    assert_error(&run(&[], &["status"]), PRIVILEGE, &["group games"]);
    for look in [
        ["status"].as_slice(),
        &["stats"],
        &["limit", "list"],
        &["top", "--once"],
        &["show", "192.0.2.1"],
    ] {
        let looked = run(&[LOOKERS.1], look);
        assert_eq!(looked.code, 0, "{look:?}: {looked:#?}");
    }
    for change in changes {
        let refused = run(&[LOOKERS.1], change);
        assert_error(&refused, PRIVILEGE, &["group operator", "sudo"]);
    }
    assert_eq!(rates(&daemon), pairs(&[("default", "1000pps")]));
    // What is estimated is to be looked at, but not which cells are whose.
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("own folder");
    let file = folder.path().join("sketch").display().to_string();
    let saved = run(&[LOOKERS.1], &["sketch", "save", &file]);
    assert_eq!(saved.code, 0, "{saved:#?}");
    let estimate = ["sketch", "show", &file, "--estimate", "192.0.2.1"];
    assert_error(&run(&[LOOKERS.1], &estimate), PRIVILEGE, &["group operator", "sudo"]);
    assert_eq!(run(&[LOOKERS.1, ADMINS.1], &estimate).json["estimate"]["packets"], 0);
    // Many other groups are no hindrance.
    let mut many: Vec<u32> = (100_000..100_200).collect();
    many.extend([LOOKERS.1, ADMINS.1]);
    assert_eq!(run(&many, &["limit", "set", "7pps"]).code, 0);
    assert_eq!(rates(&daemon), pairs(&[("default", "7pps")]));
    assert!(daemon.log().contains("refused to user 65534"), "{}", daemon.log());
    // What takes more than the daemon has kept, root does for it.
    daemon.cli().ok(&["detach", RX]);
    let other = Bystander::passing(&lab);
    let replace = ["attach", RX, "--replace"];
    let refused = run(&[LOOKERS.1, ADMINS.1], &replace);
    assert_error(&refused, PRIVILEGE, &["CAP_SYS_ADMIN", "as root", &other.id().to_string()]);
    daemon.cli().ok(&replace);
    daemon.terminate();
    drop(daemon);
    // Without such a group, only root may.
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&options[..2]));
    fs::set_permissions(
        daemon.socket().parent().expect("its folder"),
        fs::Permissions::from_mode(0o755),
    )
    .expect("own folder");
    let mut command = tools::SETPRIV.command();
    command.arg(format!("--reuid={NOBODY}")).arg(format!("--regid={}", ADMINS.1));
    command.arg(format!("--groups={}", LOOKERS.1)).arg(&program).arg("--socket");
    command.arg(daemon.socket()).args(["--json", "limit", "set", "5pps"]);
    assert_error(&answer(&mut command), PRIVILEGE, &["only root", "--admin-group"]);
    let missing = answer(daemon.command(&lab).args(["--json", "--admin-group", "no-such-group"]));
    assert_error(&missing, USAGE, &["no-such-group"]);
}
