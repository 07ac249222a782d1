//! Runs the client's commands as an operator would and reads their JSON.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    process,
    reports::{Limit, Show, Stats},
};

/// The `limiter` binary: `LIMITER_BIN`, or the one built beside this program.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn limiter_binary() -> PathBuf {
    std::env::var_os("LIMITER_BIN").map_or_else(|| built_binary("limiter"), PathBuf::from)
}

/// A binary of the workspace that is built beside this program.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn built_binary(name: &str) -> PathBuf {
    // Below another root, a thread with mounts of its own no longer finds it.
    static OWN: LazyLock<PathBuf> =
        LazyLock::new(|| std::env::current_exe().expect("the path of this program"));
    let own = OWN.as_path();
    // Tests are one folder below the binaries.
    let folder = own.ancestors().skip(1).find(|folder| !folder.ends_with("deps"));
    let path = folder.map(|folder| folder.join(name)).unwrap_or_default();
    assert!(
        path.exists(),
        "there is no {name} at {}: run the tests with `cargo xtask test`",
        path.display()
    );
    path
}

/// What a command answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// The document on stdout, `Null` where stdout is empty.
    pub json: Value,
    /// Text on stderr.
    pub stderr: String,
}

/// A client of one daemon.
#[derive(Clone, Debug)]
pub struct Cli {
    socket: PathBuf,
}

impl Cli {
    /// A client of the daemon at `socket`.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Runs a command with `--json`.
    ///
    /// # Panics
    /// If it cannot be started, or prints something else than one JSON document.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Answer {
        let mut command = tools::own(limiter_binary());
        command.arg("--socket").arg(&self.socket).arg("--json").args(arguments);
        answer(&mut command)
    }

    /// Runs a command that must succeed.
    ///
    /// # Panics
    /// If it does not.
    pub fn ok(&self, arguments: &[&str]) -> Value {
        let answer = self.run(arguments);
        assert!(answer.code == 0, "limiter {arguments:?}: {answer:#?}");
        answer.json
    }

    fn read<T: DeserializeOwned>(&self, arguments: &[&str]) -> T {
        let json = self.ok(arguments);
        serde_json::from_value(json.clone())
            .unwrap_or_else(|error| panic!("limiter {arguments:?}: {error} in {json:#}"))
    }

    /// `stats`.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.read(&["stats"])
    }

    /// `show SOURCE`.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn show(&self, source: impl ToString) -> Show {
        self.read(&["show", &source.to_string()])
    }

    /// `limit set RATE --burst BURST`, for one target or for everyone.
    ///
    /// # Panics
    /// If it fails.
    pub fn limit(&self, rate: &str, burst: Option<&str>, target: Option<&str>) -> Limit {
        let mut arguments = vec!["limit", "set", rate];
        arguments.extend(burst.iter().flat_map(|burst| ["--burst", burst]));
        arguments.extend(target.iter().flat_map(|target| ["--for", target]));
        let json = self.ok(&arguments);
        serde_json::from_value(json["limit"].clone())
            .unwrap_or_else(|error| panic!("limiter {arguments:?}: {error} in {json:#}"))
    }

    /// `limit list`.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn limits(&self) -> Vec<Limit> {
        let json = self.ok(&["limit", "list"]);
        serde_json::from_value(json["limits"].clone())
            .unwrap_or_else(|error| panic!("limit list: {error} in {json:#}"))
    }
}

/// Runs any command that prints one JSON document or nothing.
///
/// # Panics
/// If it cannot be started, or prints something else.
pub fn answer(command: &mut Command) -> Answer {
    let output = process::output(command);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let json = match stdout.trim() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|error| {
            panic!("{command:?} prints no JSON document: {error}\n{text}\n{stderr}")
        }),
    };
    Answer { code: output.status.code().unwrap_or(-1), json, stderr }
}
