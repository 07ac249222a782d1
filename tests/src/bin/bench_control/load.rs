//! Loading many limits at once.

use std::{
    fmt::Write as _,
    fs::File,
    io::{Seek as _, Write as _},
    net::Ipv4Addr,
    time::Instant,
};

use serde::Serialize;
use tests::{
    Daemon,
    cli::{answer, limiter_binary},
};

use crate::memory::Memory;

/// The first source that gets a limit.
const FIRST: u32 = Ipv4Addr::new(10, 0, 0, 0).to_bits();

/// What it took to load limits.
#[derive(Debug, Serialize)]
pub(crate) struct Load {
    /// What was run.
    pub(crate) command: String,
    /// How many.
    pub(crate) limits: u32,
    /// From the start of the command until its answer: all are stored and in force.
    pub(crate) seconds: f64,
    /// The daemon before.
    pub(crate) before: Memory,
    /// The daemon after.
    pub(crate) after: Memory,
}

/// Loads `limits` limits of single sources into a daemon that has none.
///
/// # Panics
/// If not all of them are new.
pub(crate) fn load(daemon: &Daemon, limits: u32) -> Load {
    // A hundred policies: with one alone the daemon would write a single slot.
    run(daemon, limits, &["limit", "import", "-"], |i| format!("{}pps 2000", 1000 + i % 100))
}

/// Puts `sources` sources on the deny list of a daemon whose list is empty.
///
/// # Panics
/// If not all of them are new.
pub(crate) fn deny(daemon: &Daemon, sources: u32) -> Load {
    run(daemon, sources, &["deny", "add", "-"], |_| String::new())
}

fn run(daemon: &Daemon, limits: u32, command: &[&str], rest: impl Fn(u32) -> String) -> Load {
    // Before the clock starts: a file, as a pipe would have the writer's time in the figure.
    let list = list(limits, rest);
    let before = Memory::new(daemon.pid());
    let name = command[..2].join(" ");
    let mut process = tools::own(limiter_binary());
    process.arg("--socket").arg(daemon.socket()).arg("--json").args(command);
    let start = Instant::now();
    let imported = answer(process.stdin(list));
    let seconds = start.elapsed().as_secs_f64();
    assert!(imported.code == 0, "limiter {name}: {imported:#?}");
    assert_eq!(imported.json["changed"].as_u64(), Some(u64::from(limits)), "{imported:#?}");
    Load { command: name, limits, seconds, before, after: Memory::new(daemon.pid()) }
}

/// A list of sources and what is said of each, to be read from its beginning.
fn list(limits: u32, rest: impl Fn(u32) -> String) -> File {
    let mut text = String::new();
    for i in 0..limits {
        let source = Ipv4Addr::from_bits(FIRST + i);
        writeln!(text, "{source} {}", rest(i)).expect("writing to a string");
    }
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("room for a list of limits");
    file.rewind().expect("a file has a beginning");
    file
}
