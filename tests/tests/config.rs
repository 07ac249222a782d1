//! The configuration file: its limits are enforced, beneath those set at run time; it is read again
//! as a whole or not at all; flags and the environment win over it.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    cli::{answer, limiter_binary},
    frame,
    observer::Then,
    process::wait_for,
    v4,
};

/// A configuration file in a folder of its own.
struct File {
    home: TempDir,
}

impl File {
    fn new(text: &str) -> Self {
        let file = Self { home: tempfile::tempdir().expect("a temporary folder") };
        file.write(text);
        file
    }

    fn path(&self) -> PathBuf {
        self.home.path().join("limiter.toml")
    }

    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn write(&self, text: &str) {
        fs::write(self.path(), text).expect("the file can be written");
    }

    fn daemon(&self, lab: &Lab, arguments: &[&str]) -> Daemon {
        let name = self.name();
        Daemon::start_with(lab, DaemonOptions::with(&[&["--config", &name], arguments].concat()))
    }
}

const LIMITS: &str = "\
max_sources = 4096

[limits]
default = { rate = \"500pps\", burst = 500 }

[[limit]]
for = \"198.51.100.7\"
rate = \"1500pps\"
burst = 1500
";

/// Each limit in force: target, rate and where it comes from.
fn in_force(daemon: &Daemon) -> Vec<(String, String, String)> {
    let list = daemon.cli().ok(&["limit", "list"]);
    let text = |limit: &Value, key: &str| limit[key].as_str().unwrap_or_default().to_owned();
    let limits = list["limits"].as_array().expect("a list").iter();
    limits.map(|l| (text(l, "target"), text(l, "rate"), text(l, "origin"))).collect()
}

fn limits(expected: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    let own = |(a, b, c): &(&str, &str, &str)| ((*a).into(), (*b).into(), (*c).into());
    expected.iter().map(own).collect()
}

fn config(daemon: &Daemon) -> Value {
    daemon.cli().run(&["status"]).json["config"].clone()
}

#[test]
fn limits_of_the_file_are_enforced_and_read_again() {
    let lab = Lab::new(1);
    let file = File::new(LIMITS);
    let mut daemon = file.daemon(&lab, &[]);
    let cli = daemon.cli();
    let own = ("198.51.100.7/32", "1500pps", "file");
    assert_eq!(in_force(&daemon), limits(&[("default", "500pps", "file"), own]));
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let assert_enforced = |what: &str, hosts: &[u8]| {
        let before: Vec<_> = hosts.iter().map(|host| observer.read().from(v4(*host))).collect();
        let stream = |host: &u8| Stream::new(frame::udp(v4(*host), 100), 5000.0, 10_000);
        let sent = Sender::new(&lab).send(hosts.iter().map(stream).collect());
        for ((host, before), sent) in hosts.iter().zip(before).zip(&sent) {
            let limit = cli.show(v4(*host)).limit.expect("it is limited");
            let admitted = observer.read().from(v4(*host)) - before;
            limit.assert_admitted(&format!("{what}: {}", limit.rate), admitted, [sent]);
        }
    };
    assert_enforced("from the file", &[7, 8]);

    // Changed, removed and added, all at once.
    file.write(
        "max_sources = 8192\n[limits]\ndefault = { rate = \"800pps\", burst = 300 }\n\
         [[limit]]\nfor = \"198.51.100.0/29\"\nrate = \"1100pps\"\nburst = 1000\n",
    );
    let diff = cli.run(&["config", "diff"]);
    assert_eq!((diff.code, &diff.json["applied"]), (1, &json!(false)), "{diff:#?}");
    assert_eq!(cli.ok(&["reload", "--dry-run"]), diff.json);
    assert_eq!(in_force(&daemon), limits(&[("default", "500pps", "file"), own]), "still");
    let reload = cli.ok(&["reload"]);
    for (what, target) in
        [("added", "198.51.100.0/29"), ("changed", "default"), ("removed", "198.51.100.7/32")]
    {
        assert_eq!(reload[what].as_array().map(Vec::len), Some(1), "{what}: {reload:#}");
        assert_eq!(reload[what][0]["target"], target, "{what}: {reload:#}");
    }
    let restart = json!([{"key": "max_sources", "running": 4096, "file": 8192}]);
    assert_eq!(reload["restart"], restart);
    let now = [("default", "800pps", "file"), ("198.51.100.0/29", "1100pps", "file")];
    assert_eq!(in_force(&daemon), limits(&now));
    assert_eq!(cli.ok(&["status"])["table"]["capacity"], 4096, "the old value stays in force");
    assert_enforced("after the reload", &[6, 9]);
    let diff = cli.run(&["config", "diff"]);
    assert_eq!((diff.code, &diff.json["restart"]), (1, &restart), "{diff:#?}");

    // A restart takes what is left, and the limits are where they were.
    daemon.kill();
    file.write(&fs::read_to_string(file.path()).expect("the file").replace("8192", "4096"));
    daemon.restart(&lab);
    assert_eq!(in_force(&daemon), limits(&now));
    assert_eq!(daemon.cli().run(&["config", "diff"]).code, 0);
    daemon.assert_accounted(&lab);
}

#[test]
fn a_bad_file_changes_nothing() {
    let lab = Lab::new(1);
    let file = File::new(LIMITS);
    let daemon = file.daemon(&lab, &[]);
    let (cli, before) = (daemon.cli(), in_force(&daemon));
    for (text, place) in [
        ("[limits]\ndefault = \"5pps\"\n[[limit]]\nfor = \"192.0.2.9\"\nrate = \"9mbps\"", ":5:8:"),
        ("[limits]\ndefalut = \"5pps\"", ":2:1:"),
        ("max_sources = 1\n[limits]\ndefault = \"5pps\"", ":1:15:"),
        ("[limits\n", ":1:"),
    ] {
        file.write(text);
        let path = file.name();
        for arguments in [
            &["reload"][..],
            &["reload", "--dry-run"],
            &["config", "check", &path],
            &["config", "diff", &path],
            &["config", "diff"],
        ] {
            let answer = cli.run(arguments);
            assert_eq!(answer.code, 2, "{arguments:?}: {answer:#?}");
            let error = &answer.json["error"];
            let message = error["message"].as_str().unwrap_or_default();
            assert!(message.starts_with(&format!("{path}{place}")), "{arguments:?}: {message}");
            assert!(error["hint"].is_string(), "{arguments:?}: {error}");
        }
        assert_eq!(in_force(&daemon), before);
    }
    let problem = config(&daemon)["problem"].clone();
    assert!(problem.as_str().is_some_and(|text| text.contains(&file.name())), "{problem}");
    // Without the file, nobody would be limited: that is not taken for a wish.
    fs::remove_file(file.path()).expect("the file is there");
    assert_eq!(cli.run(&["reload"]).code, 2);
    assert_eq!(in_force(&daemon), before);
    file.write(LIMITS);
    let reload = cli.ok(&["reload"]);
    assert_eq!((&reload["added"], &reload["restart"]), (&json!([]), &json!([])), "{reload:#}");
    assert_eq!(config(&daemon)["problem"], Value::Null);

    // A daemon does not start with one either.
    file.write("[limits]\ndefault = \"5\"\n");
    let mut second = daemon.command(&lab);
    let refused = answer(second.arg("--json"));
    assert_eq!(refused.code, 2, "{refused:#?}");
    assert!(refused.stderr.contains(&format!("{}:2:11", file.name())), "{refused:#?}");
}

#[test]
fn a_limit_set_at_run_time_wins_until_it_is_removed() {
    let lab = Lab::new(1);
    let file = File::new(LIMITS);
    let mut daemon = file.daemon(&lab, &[]);
    let cli = daemon.cli();
    cli.limit("900pps", None, None);
    let hidden = [("default", "900pps", "runtime"), ("198.51.100.7/32", "1500pps", "file")];
    assert_eq!(in_force(&daemon), limits(&hidden));
    let status = config(&daemon);
    assert_eq!((&status["limits"], &status["shadowed"]), (&json!(2), &json!(1)), "{status}");
    assert_eq!(cli.show(v4(1)).limit.map(|limit| limit.rate), Some("900pps".into()));
    // A reload does not touch it, nor does a restart.
    file.write(&LIMITS.replace("500pps\", burst = 500", "600pps\", burst = 600"));
    let reload = cli.ok(&["reload"]);
    assert_eq!(reload["changed"], json!([]), "{reload:#}");
    assert_eq!(reload["shadowed"][0]["file"]["rate"], "600pps", "{reload:#}");
    daemon.kill();
    daemon.restart(&lab);
    assert_eq!(in_force(&daemon), limits(&hidden));
    // What the file has is not removed at run time, but comes back to light.
    assert_eq!(cli.run(&["limit", "unset", "--for", "198.51.100.7"]).code, 1);
    let back = cli.ok(&["limit", "unset"])["warnings"][0].to_string();
    assert!(back.contains(&file.name()) && back.contains("in force then"), "{back}");
    let light = [("default", "600pps", "file"), ("198.51.100.7/32", "1500pps", "file")];
    assert_eq!(in_force(&daemon), limits(&light));
    assert_eq!(cli.show(v4(1)).limit.map(|limit| limit.rate), Some("600pps".into()));
    assert_eq!(config(&daemon)["shadowed"], 0);
}

#[test]
fn a_hangup_reads_the_file_again() {
    let lab = Lab::new(1);
    let file = File::new(LIMITS);
    let daemon = file.daemon(&lab, &[]);
    let before = in_force(&daemon);
    file.write("[limits]\ndefault = \"77\"\n");
    daemon.signal(libc::SIGHUP);
    let log = wait_for("the refusal in the log", Duration::from_secs(10), || {
        Some(daemon.log()).filter(|log| log.contains(":2:11: "))
    });
    assert!(log.contains(&file.name()) && log.contains("77pps"), "{log}");
    assert_eq!(in_force(&daemon), before);
    file.write("[limits]\ndefault = \"77pps\"\n");
    daemon.signal(libc::SIGHUP);
    wait_for("the new limit", Duration::from_secs(10), || {
        (in_force(&daemon) == limits(&[("default", "77pps", "file")])).then_some(())
    });
}

/// `config show` with a file, an environment and flags: value and origin of a key.
fn shown(file: &File, environment: &[(&str, &str)], flags: &[&str], key: &str) -> (Value, String) {
    let mut command = tools::own(limiter_binary());
    command.args(["--json", "--config", &file.name(), "config", "show"]).args(flags);
    let shown = answer(command.envs(environment.iter().copied()));
    assert_eq!(shown.code, 0, "{shown:#?}");
    let settings = shown.json["settings"].as_array().expect("a list");
    let setting = settings.iter().find(|setting| setting["key"] == key).expect("the key");
    (setting["value"].clone(), setting["origin"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = File::new("\nmode = \"generic\"\ninterfaces = [\"eth1\"]\n");
    let generic = json!("generic");
    let place = |line: u8| format!("{}:{line}", file.name());
    assert_eq!(shown(&file, &[], &[], "mode"), (generic.clone(), place(2)));
    let environment = [("LIMITER_MODE", "native"), ("LIMITER_INTERFACES", "eth2,eth3")];
    let native = json!("native");
    assert_eq!(shown(&file, &environment, &[], "mode"), (native, "LIMITER_MODE".into()));
    let flags = ["--mode", "generic"];
    assert_eq!(shown(&file, &environment, &flags, "mode"), (generic, "--mode".into()));
    let names = (json!(["eth2", "eth3"]), "LIMITER_INTERFACES".into());
    assert_eq!(shown(&file, &environment, &flags, "interfaces"), names);
    assert_eq!(shown(&file, &[], &[], "on_full"), (json!("pass"), "default".into()));

    // The same holds for a daemon: its flags keep a reload from changing anything.
    let lab = Lab::new(1);
    let file = File::new("max_sources = 4096\nipv4_prefix = 24\n");
    let daemon = file.daemon(&lab, &["--max-sources", "2048"]);
    assert_eq!(daemon.cli().ok(&["status"])["table"]["capacity"], 2048);
    assert_eq!(daemon.cli().show(v4(1)).source, "198.51.100.0/24");
    file.write("max_sources = 8192\nipv4_prefix = 24\n");
    assert_eq!(daemon.cli().run(&["config", "diff"]).code, 0);
}

#[test]
fn the_default_file_is_good_and_the_schema_knows_its_keys() {
    let run = |arguments: &[&str]| {
        let output = tools::own(limiter_binary()).args(arguments).output().expect("limiter runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let file = File::new(&run(&["config", "default"]));
    assert!(run(&["config", "check", &file.name()]).contains("good"));
    let schema: Value = serde_json::from_str(&run(&["config", "schema"])).expect("JSON");
    assert!(schema["properties"]["max_sources"]["description"].is_string());
    let missing = tools::own(limiter_binary())
        .args(["config", "check", "/nonexistent.toml"])
        .output()
        .expect("limiter runs");
    assert_eq!(missing.status.code(), Some(2));
}

/// How many of 50 packets of each source arrive.
fn arrived(observer: &Observer<'_>, lab: &Lab, hosts: &[u8]) -> Vec<u64> {
    let before = observer.read();
    let stream = |host: &u8| Stream::new(frame::udp(v4(*host), 100), 1000.0, 50);
    let sent = Sender::new(lab).send(hosts.iter().map(stream).collect());
    assert!(sent.iter().all(|sent| sent.packets() == 50));
    let after = observer.read();
    hosts.iter().map(|host| after.from(v4(*host)) - before.from(v4(*host))).collect()
}

const LISTS: &str = "\
[[deny]]
for = [\"198.51.100.16/28\", \"198.51.100.7\"]
reason = \"scanners\"

[[allow]]
for = \"198.51.100.20\"
";

#[test]
fn lists_of_the_file_are_in_force_beneath_those_set_at_run_time() {
    let lab = Lab::new(1);
    let file = File::new(LISTS);
    let mut daemon = file.daemon(&lab, &[]);
    let cli = daemon.cli();
    let observer = Observer::new(&lab, Then::Discard, &[]);
    assert_eq!(arrived(&observer, &lab, &[7, 8, 17, 20]), [0, 50, 0, 50]);
    let shown = cli.ok(&["show", "198.51.100.17"]);
    assert_eq!(shown["listed"]["origin"], "file", "{shown:#}");
    assert_eq!(shown["listed"]["reason"], "scanners", "{shown:#}");
    let checked = cli.ok(&["config", "check", &file.name()]);
    assert_eq!(checked["listed"], 3, "{checked}");
    // What is set at run time wins, and is in nobody's way when it is removed.
    let hides = cli.ok(&["allow", "add", "198.51.100.7"]);
    assert!(hides["warnings"][0].as_str().is_some_and(|text| text.contains("wins")), "{hides:#}");
    assert_eq!(arrived(&observer, &lab, &[7]), [50]);
    assert_eq!(config(&daemon)["listed_shadowed"], 1);
    daemon.kill();
    daemon.restart(&lab);
    assert_eq!(arrived(&observer, &lab, &[7, 17]), [50, 0]);
    let in_file = cli.run(&["deny", "del", "198.51.100.16/28"]);
    assert!(in_file.code == 1 && in_file.json.to_string().contains(&file.name()), "{in_file:#?}");
    cli.ok(&["allow", "del", "198.51.100.7"]);
    assert_eq!(arrived(&observer, &lab, &[7]), [0]);
    // One that ends uncovers the file's entry, too.
    cli.ok(&["allow", "add", "198.51.100.7", "--ttl", "1s"]);
    wait_for("its end", Duration::from_secs(10), || {
        (config(&daemon)["listed_shadowed"] == 0).then_some(())
    });
    assert_eq!(arrived(&observer, &lab, &[7]), [0]);
    // Read again as a whole, or not at all.
    file.write("[[deny]]\nfor = \"198.51.100.8\"\n[[allow]]\nfor = \"198.51.100.8\"\n");
    let refused = cli.run(&["reload"]);
    let message = refused.json["error"]["message"].as_str().unwrap_or_default();
    assert!(refused.code == 2 && message.starts_with(&file.name()), "{refused:#?}");
    assert_eq!(arrived(&observer, &lab, &[7, 8, 17, 20]), [0, 50, 0, 50]);
    file.write("[[deny]]\nfor = \"198.51.100.8\"\n");
    let diff = cli.run(&["config", "diff"]);
    assert_eq!(diff.json["lists"]["removed"].as_array().map(Vec::len), Some(3), "{diff:#?}");
    assert_eq!(cli.ok(&["reload"])["lists"]["added"][0]["target"], "198.51.100.8/32");
    assert_eq!(arrived(&observer, &lab, &[7, 8, 17, 20]), [50, 0, 50, 50]);
    daemon.assert_accounted(&lab);
}

#[test]
fn an_unconfirmed_reload_is_reverted_also_after_a_crash() {
    let lab = Lab::new(1);
    let file = File::new(LISTS);
    let mut daemon = file.daemon(&lab, &[]);
    let cli = daemon.cli();
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let other = "[limits]\ndefault = \"5pps\"\n[[deny]]\nfor = \"198.51.100.8\"\n";
    file.write(other);
    let reload = cli.ok(&["reload", "--confirm", "3s"]);
    assert!(
        reload["confirm"]["seconds_left"].as_f64().is_some_and(|left| left > 2.0),
        "{reload:#}"
    );
    assert_eq!(arrived(&observer, &lab, &[8]), [0]);
    assert_eq!(in_force(&daemon), limits(&[("default", "5pps", "file")]));
    assert_eq!(cli.run(&["deny", "add", "192.0.2.1"]).code, 1, "it waits to be confirmed");
    wait_for("the revert", Duration::from_secs(10), || {
        cli.run(&["status"]).json["confirm"].is_null().then_some(())
    });
    assert_eq!(in_force(&daemon), []);
    assert_eq!(arrived(&observer, &lab, &[7, 8]), [0, 50]);
    assert_eq!(config(&daemon)["refused"], file.name());
    // Nor is it in force after a restart, or after a crash while it waits.
    daemon.kill();
    daemon.restart(&lab);
    assert_eq!(arrived(&observer, &lab, &[7, 8]), [0, 50]);
    cli.ok(&["reload", "--confirm", "1h"]);
    assert_eq!(arrived(&observer, &lab, &[8]), [0]);
    daemon.kill();
    daemon.restart(&lab);
    assert_eq!(in_force(&daemon), []);
    assert_eq!(arrived(&observer, &lab, &[7, 8]), [0, 50]);
    assert!(config(&daemon)["refused"].is_string());
    // Once it is confirmed, it is.
    cli.ok(&["reload", "--confirm", "1h"]);
    assert_eq!(cli.ok(&["confirm"])["outcome"], "confirmed");
    daemon.kill();
    daemon.restart(&lab);
    assert_eq!(in_force(&daemon), limits(&[("default", "5pps", "file")]));
    assert_eq!(arrived(&observer, &lab, &[8]), [0]);
    assert_eq!(config(&daemon)["refused"], Value::Null);
}

#[test]
fn some_keys_change_without_a_restart() {
    let lab = Lab::new(1);
    let file = File::new("[limits]\ndefault = { rate = \"5pps\", burst = 5 }\n");
    let daemon = file.daemon(&lab, &[]);
    let cli = daemon.cli();
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let few = arrived(&observer, &lab, &[7])[0];
    assert!(few < 20, "{few} of 50, at 5 pps");
    let unreadable = |verdict: &str| {
        let before = cli.stats().packets(verdict, "malformed");
        let cut = frame::udp(v4(1), 64)[..frame::ETHERNET + 12].to_vec();
        let sent = Sender::new(&lab).send(vec![Stream::new(cut, 5000.0, 100)]);
        (cli.stats().packets(verdict, "malformed") - before, sent[0].packets())
    };
    assert_eq!(unreadable("pass"), (100, 100));
    let text = "malformed = \"drop\"\non_full = \"drop\"\nmax_sources = 64\n\
                [management]\naddresses = [\"198.51.100.0/29\"]\n\
                [limits]\ndefault = { rate = \"5pps\", burst = 5 }\n";
    file.write(text);
    let reload = cli.ok(&["reload"]);
    let keys = |which: &str| {
        let all = reload[which].as_array().expect("a list").iter();
        all.map(|diff| diff["key"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys("live"), ["malformed", "management", "on_full"], "{reload:#}");
    assert_eq!(keys("restart"), ["max_sources"], "{reload:#}");
    assert_eq!(arrived(&observer, &lab, &[7]), [50], "a management address");
    assert_eq!(unreadable("drop"), (100, 100));
    assert_eq!(cli.run(&["limit", "set", "9pps", "--for", "198.51.100.1"]).code, 2);
    // All of it goes back at once if it is not confirmed.
    file.write(&text.replace("198.51.100.0/29", "198.51.100.64/29"));
    cli.ok(&["reload", "--confirm", "1h"]);
    let few = arrived(&observer, &lab, &[7])[0];
    assert!(few < 20, "{few} of 50, at 5 pps");
    cli.ok(&["confirm", "--abort"]);
    assert_eq!(arrived(&observer, &lab, &[7]), [50], "a management address again");
    // A group that is not there changes nothing of the rest.
    file.write("admin_group = \"limiter-no-such-group\"\n");
    assert_eq!(cli.run(&["reload"]).code, 2);
    assert_eq!(arrived(&observer, &lab, &[7]), [50]);
    daemon.assert_accounted(&lab);
}
