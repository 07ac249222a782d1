//! Limits for a cluster on one of its hosts: how a host comes to be in one, and that such limits are set,
//! kept, told and removed like others.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    cli::{Answer, answer, limiter_binary},
    frame,
    observer::Then,
    process, v4,
};

/// A folder with a key and a configuration.
struct Files {
    home: TempDir,
}

impl Files {
    fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a temporary folder") }
    }

    fn key(&self) -> PathBuf {
        self.home.path().join("cluster.key")
    }

    fn config(&self) -> PathBuf {
        self.home.path().join("limiter.toml")
    }

    /// Makes a key, and a configuration with more in it.
    fn write(&self, more: &str) {
        if !self.key().exists() {
            let made = run(&["cluster", "key", "generate", &self.key().display().to_string()]);
            assert_eq!((made.code, &made.json["replaced"]), (0, &json!(false)), "{made:?}");
        }
        let text = format!(
            "[cluster]\nname = \"edge-1\"\nlisten = \"192.0.2.10:7700\"\nkey_file = \"{}\"\n{more}",
            self.key().display()
        );
        fs::write(self.config(), text).expect("the file can be written");
    }

    fn daemon(&self, lab: &Lab) -> Daemon {
        process::run(lab.receiver.ip(&["address", "add", "192.0.2.10/32", "dev", "lo"]));
        let config = self.config().display().to_string();
        Daemon::start_with(lab, DaemonOptions::with(&["--config", &config]))
    }
}

/// Runs a command that needs no daemon.
fn run(arguments: &[&str]) -> Answer {
    answer(tools::own(limiter_binary()).arg("--json").args(arguments))
}

fn limits(daemon: &Daemon) -> Value {
    daemon.cli().ok(&["limit", "list"])["limits"].clone()
}

#[test]
fn a_limit_for_the_cluster_is_enforced_kept_and_told() {
    let (lab, files) = (Lab::new(1), Files::new());
    files.write("[[limit]]\nfor = \"203.0.113.0/24\"\nrate = \"5kpps\"\nscope = \"cluster\"\n");
    let mut daemon = files.daemon(&lab);
    daemon.cli().ok(&["cluster", "init"]);
    let set = ["limit", "set", "1000pps", "--burst", "2000", "--scope", "cluster"];
    let set = daemon.cli().ok(&set);
    assert_eq!(
        (&set["limit"]["scope"], &set["limit"]["partition"]),
        (&json!("cluster"), &json!("auto"))
    );
    // All of it is its own.
    let status = daemon.cli().run(&["status"]);
    assert_eq!((status.code, &status.json["state"]), (0, &json!("ok")), "{status:?}");
    let cluster = &status.json["cluster"];
    assert_eq!((&cluster["members"], &cluster["home"]), (&json!(1), &json!(1.0)), "{cluster}");
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sent = Sender::new(&lab)
        .send(vec![Stream::new(frame::udp(v4(66), 100), 20_000.0, 60_000)])
        .remove(0);
    let (admitted, due) = (observer.read().from(v4(66)), 1000.0 * sent.seconds());
    println!("{admitted} of {due:.0} and a burst of 2000");
    // More than the floor is its own when it is seen to need it, which a busy machine takes some tenths of a
    // second for, and brings no tokens.
    assert!((0.8 * due..=due + 2000.0).contains(&(admitted as f64)), "{admitted} of {due}");
    let shown = daemon.cli().ok(&["show", &v4(66).to_string()]);
    assert_eq!(shown["limit"]["scope"], "cluster", "{shown:#}");
    // It outlives the daemon, with its scope; so does that of the file.
    daemon.kill();
    daemon.restart(&lab);
    let list = limits(&daemon);
    assert_eq!(list.as_array().map(Vec::len), Some(2), "{list:#}");
    assert!(list.as_array().into_iter().flatten().all(|limit| limit["scope"] == "cluster"));
    assert_eq!((&list[0]["origin"], &list[1]["origin"]), (&json!("runtime"), &json!("file")));
    // One for this host hides it, which is told, until it is removed.
    let hidden = daemon.cli().ok(&["limit", "set", "7pps"]);
    let warning = hidden["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("--scope cluster"), "{hidden:#}");
    assert_eq!(limits(&daemon)[0]["scope"], "local");
    daemon.cli().ok(&["limit", "unset"]);
    assert_eq!(limits(&daemon)[0]["rate"], "1000pps");
    daemon.cli().ok(&["limit", "unset"]);
    assert_eq!(limits(&daemon).as_array().map(Vec::len), Some(1));
    // Denials, too.
    let deny = ["deny", "add", "192.0.2.77", "--scope", "cluster"];
    daemon.cli().ok(&deny);
    assert_eq!(daemon.cli().ok(&["deny", "list"])["entries"][0]["scope"], "cluster");
    assert_eq!(daemon.cli().run(&["allow", "add", "192.0.2.78", "--scope", "cluster"]).code, 2);
    // Of what is changed of [cluster] the weight needs no restart.
    files.write("weight = 7\nregion = \"far\"\n");
    let told = daemon.cli().ok(&["reload"]);
    assert_eq!(told["restart"][0]["key"], "cluster_region", "{told:#}");
    assert_eq!(told["live"][0]["key"], "cluster_weight", "{told:#}");
    process::wait_for("the weight", Duration::from_secs(5), || {
        (daemon.cli().run(&["status"]).json["cluster"]["weight"] == 7).then_some(())
    });
}

#[test]
fn without_a_cluster_such_limits_are_refused() {
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::idle());
    for arguments in [
        &["limit", "set", "5pps", "--scope", "cluster"][..],
        &["deny", "add", "192.0.2.77", "--scope", "cluster"],
        &["limit", "set", "5pps", "--scope", "cluster", "--dry-run"],
    ] {
        let refused = daemon.cli().run(arguments);
        let hint = refused.json["error"]["hint"].as_str().unwrap_or_default();
        assert!(refused.code == 2 && hint.contains("[cluster]"), "{arguments:?}: {refused:?}");
    }
    let set = ["limit", "set", "5pps", "--partition", "conservative", "--scope", "local"];
    assert_eq!(daemon.cli().run(&set).code, 2);
    assert_eq!(limits(&daemon), json!([]));
}

#[test]
fn the_key_is_made_once_and_checked() {
    let files = Files::new();
    files.write("");
    let (key, config) = (files.key().display().to_string(), files.config().display().to_string());
    let mode = fs::metadata(files.key()).expect("a key").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let check = || run(&["config", "check", &config]);
    assert_eq!(check().code, 0);
    // Without a name the one of the configuration is meant.
    let again = run(&["--config", &config, "cluster", "key", "generate"]);
    assert_eq!(again.code, 1, "{again:?}");
    let before = fs::read(files.key()).expect("a key");
    assert_eq!(run(&["--config", &config, "cluster", "key", "generate", "--force"]).code, 0);
    assert_ne!(fs::read(files.key()).expect("a key"), before);
    for (damage, about) in [(0o644, "others than its owner"), (0, "cannot read")] {
        if damage == 0 {
            fs::remove_file(files.key()).expect("a key");
        } else {
            fs::set_permissions(files.key(), fs::Permissions::from_mode(damage)).expect("a key");
        }
        let refused = check();
        let error = &refused.json["error"];
        let message = error["message"].as_str().unwrap_or_default();
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(message.starts_with(&format!("{config}:4:12: cluster.key_file")), "{message}");
        assert!(message.contains(about) && message.contains(&key), "{message}");
        assert!(error["hint"].is_string(), "{refused:?}");
    }
}
