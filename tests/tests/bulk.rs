//! Many limits at once: all of them are stored and in force, or none.

use std::{fmt::Write as _, path::Path, thread, time::Duration};

use aya::maps::{HashMap, Map, MapData};
use limiter_common::key::{ClassKey, SourceKey};
use tests::{Cli, Daemon, DaemonOptions, Lab};

/// Writes a list of `count` limits of single sources from 10.0.0.0 on, and its path.
fn list(folder: &Path, count: u32) -> String {
    let mut text = String::new();
    for i in 0..count {
        let [_, a, b, c] = i.to_be_bytes();
        writeln!(text, "10.{a}.{b}.{c} {}pps", 100 + i % 50).expect("writing to a string");
    }
    let path = folder.join("list");
    std::fs::write(&path, text).expect("a list in a temporary folder");
    path.display().to_string()
}

/// The kernel's map of limits of single sources.
fn exact(daemon: &Daemon) -> HashMap<MapData, ClassKey, u32> {
    let data = MapData::from_pin(daemon.pins().join("exact")).expect("a pinned map");
    Map::from_map_data(data).expect("a map of a known type").try_into().expect("a hash map")
}

fn keys(map: &HashMap<MapData, ClassKey, u32>) -> usize {
    map.keys().filter(|key| key.as_ref().is_ok_and(|key| key.source.is_ipv4())).count()
}

fn count(cli: &Cli) -> usize {
    cli.limits().len()
}

#[test]
fn a_list_that_the_kernel_refuses_in_the_middle_changes_nothing() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--max-limits", "10000"]));
    let cli = daemon.cli();
    let folder = tempfile::tempdir().expect("a temporary folder");
    cli.limit("7pps", Some("7"), Some("10.0.0.5"));

    // Somebody else takes half of the room, which the daemon cannot know.
    let mut map = exact(&daemon);
    let stranger = |low| ClassKey { source: SourceKey { high: 1 << 63, low }, class: 0 };
    let strangers: Vec<_> = (0..5000).map(stranger).collect();
    for stranger in &strangers {
        map.insert(stranger, 0, 0).expect("room for a key");
    }
    let path = list(folder.path(), 9000);
    let refused = cli.run(&["limit", "import", &path]);
    assert_eq!(refused.code, 4, "{refused:#?}");
    assert!(refused.stderr.contains("the limits stay as they were"), "{refused:#?}");
    assert!(refused.stderr.contains("cannot change the limit of 10.0."), "{refused:#?}");
    assert_eq!((count(&cli), keys(&map)), (1, 1), "one limit, as before");
    assert_eq!(cli.limits()[0].rate, "7pps");
    assert_eq!(cli.run(&["status"]).code, 0, "nothing is in doubt");

    for stranger in &strangers {
        map.remove(stranger).expect("the key is still there");
    }
    let imported = cli.ok(&["limit", "import", &path]);
    assert_eq!(imported["changed"], 9000, "one of them in the place of another");
    assert_eq!((count(&cli), keys(&map)), (9000, 9000));
    daemon.kill();
    daemon.restart(&lab);
    assert_eq!((count(&cli), keys(&map)), (9000, 9000), "after a restart too");
}

#[test]
fn more_limits_than_there_is_room_for_are_refused() {
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--max-limits", "10000"]));
    let cli = daemon.cli();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = cli.run(&["limit", "import", &list(folder.path(), 10_001)]);
    assert_eq!(refused.code, 2, "{refused:#?}");
    assert!(refused.stderr.contains("--max-limits"), "{refused:#?}");
    assert_eq!((count(&cli), keys(&exact(&daemon))), (0, 0));
    let imported = cli.ok(&["limit", "import", &list(folder.path(), 10_000)]);
    assert_eq!((imported["changed"].as_u64(), keys(&exact(&daemon))), (Some(10_000), 10_000));
}

#[test]
fn limits_can_change_places() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("list");
    let import = |rates: [&str; 2]| {
        let text = format!("10.0.0.1 {}\n10.0.0.2 {}\n", rates[0], rates[1]);
        std::fs::write(&path, text).expect("a list in a temporary folder");
        cli.ok(&["limit", "import", &path.display().to_string()]);
    };
    import(["100pps", "200pps"]);
    import(["200pps", "100pps"]);
    // Long enough for what is no longer needed to be used again.
    thread::sleep(Duration::from_millis(1500));
    cli.limit("300pps", None, Some("10.0.0.3"));
    cli.limit("400pps", None, Some("10.0.0.4"));
    for (source, rate) in [("10.0.0.1", "200pps"), ("10.0.0.2", "100pps"), ("10.0.0.3", "300pps")] {
        let shown = cli.ok(&["show", source]);
        assert_eq!(shown["limit"]["rate"], rate, "{source}: {shown:#}");
    }
}

#[test]
fn too_many_different_limits_are_refused_and_leave_room_for_others() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("list");
    let mut text = String::new();
    for i in 0..66_000u32 {
        let [_, a, b, c] = i.to_be_bytes();
        writeln!(text, "10.{a}.{b}.{c} {}pps", 100 + i).expect("writing to a string");
    }
    std::fs::write(&path, text).expect("a list in a temporary folder");
    let refused = cli.run(&["limit", "import", &path.display().to_string()]);
    assert_eq!(refused.code, 2, "{refused:#?}");
    assert!(refused.stderr.contains("different rates"), "{refused:#?}");
    assert_eq!((count(&cli), keys(&exact(&daemon))), (0, 0));
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(cli.limit("99pps", None, Some("10.0.0.3")).rate, "99pps");
}
