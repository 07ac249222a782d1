//! Loading many limits at once.

use std::{
    fmt::Write as _,
    fs::File,
    io::{Seek as _, Write as _},
    net::Ipv4Addr,
    process::Command,
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
    let list = list(limits);
    let before = Memory::of(daemon.pid());
    let mut command = Command::new(limiter_binary());
    command.arg("--socket").arg(daemon.socket()).args(["--json", "limit", "import", "-"]);
    let start = Instant::now();
    let imported = answer(command.stdin(list));
    let seconds = start.elapsed().as_secs_f64();
    assert!(imported.code == 0, "limiter limit import: {imported:#?}");
    assert_eq!(imported.json["changed"].as_u64(), Some(u64::from(limits)), "{imported:#?}");
    Load { limits, seconds, before, after: Memory::of(daemon.pid()) }
}

/// A list of limits, to be read from its beginning. Rates differ, as they would.
fn list(limits: u32) -> File {
    let mut text = String::new();
    for i in 0..limits {
        let source = Ipv4Addr::from_bits(FIRST + i);
        writeln!(text, "{source} {}pps 2000", 1000 + i % 100).expect("writing to a string");
    }
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("room for a list of limits");
    file.rewind().expect("a file has a beginning");
    file
}
