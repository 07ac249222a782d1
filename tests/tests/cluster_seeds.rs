//! Seeds that change while a daemon runs.

use std::{fs, net::IpAddr, path::Path, time::Duration};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Fleet,
    cli::limiter_binary,
    process::{self, wait_for},
};

const TIMEOUT: Duration = Duration::from_secs(30);

fn configure(folder: &Path, host: usize, seeds: &[IpAddr]) {
    let seeds: Vec<_> = seeds.iter().map(|seed| format!("{seed}:7700")).collect();
    let text = format!(
        "[cluster]\nname = \"edge-{host}\"\nlisten = \"{}:7700\"\nkey_file = \"{}\"\nseeds = {seeds:?}\n",
        Fleet::address(host),
        folder.join("cluster.key").display()
    );
    fs::write(folder.join(format!("{host}.toml")), text).expect("the file can be written");
}

fn start(fleet: &Fleet, folder: &Path, host: usize) -> Daemon {
    let config = folder.join(format!("{host}.toml")).display().to_string();
    Daemon::start_with(&fleet.hosts[host], DaemonOptions::with(&["--config", &config]))
}

fn peers(daemon: &Daemon) -> Value {
    daemon.cli().run(&["peers"]).json
}

fn wait_told(daemon: &Daemon, what: &str) {
    wait_for(what, TIMEOUT, || peers(daemon)["warnings"].to_string().contains(what).then_some(()));
}

#[test]
fn other_seeds_are_taken_over_by_a_reload() {
    let (fleet, home) = (Fleet::new(2), tempfile::tempdir().expect("a temporary folder"));
    let folder = home.path();
    let mut generate = tools::own(limiter_binary());
    process::run(generate.args(["cluster", "key", "generate"]).arg(folder.join("cluster.key")));
    configure(folder, 0, &[]);
    configure(folder, 1, &[Fleet::address(199)]);
    let daemons = [0, 1].map(|host| start(&fleet, folder, host));
    wait_told(&daemons[1], "nobody answers at the seed 10.99.0.200:7700");
    daemons[0].cli().ok(&["cluster", "init"]);
    wait_told(&daemons[1], "this host belongs to no cluster yet");

    // None at all is no reason to found one.
    configure(folder, 1, &[]);
    daemons[1].cli().ok(&["reload"]);
    wait_for("no seed to be told of", TIMEOUT, || {
        (!peers(&daemons[1])["warnings"].to_string().contains("the seed")).then_some(())
    });
    wait_told(&daemons[1], "this host belongs to no cluster yet");
    assert_eq!(peers(&daemons[1])["cluster"], Value::Null);

    configure(folder, 1, &[Fleet::address(0)]);
    let cli = daemons[1].cli();
    let told = cli.ok(&["reload", "--dry-run"]);
    assert_eq!(told["live"][0]["key"], "cluster_seeds", "{told:#}");
    assert_eq!(told["restart"].as_array().map(Vec::len), Some(0), "{told:#}");
    assert_eq!(peers(&daemons[1])["cluster"], Value::Null);
    let told = cli.ok(&["reload"]);
    assert_eq!(told["live"][0]["key"], "cluster_seeds", "{told:#}");
    let begun = std::time::Instant::now();
    wait_for("both to be one cluster", TIMEOUT, || {
        let found = daemons.each_ref().map(|daemon| peers(daemon)["peers"].clone());
        found.iter().all(|peers| peers.as_array().map(Vec::len) == Some(2)).then_some(())
    });
    println!("one cluster {:.1} s after the reload", begun.elapsed().as_secs_f64());
    wait_for("nothing to be said of seeds", TIMEOUT, || {
        (!peers(&daemons[1])["warnings"].to_string().contains("the seed")).then_some(())
    });
    assert_eq!(peers(&daemons[0])["cluster"], peers(&daemons[1])["cluster"]);
    for daemon in &daemons {
        assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    }
}
