//! What a machine and an interface lack to run the limiter well, and what to do about it. Nothing is
//! changed, attached or pinned, and no daemon is needed.

mod holders;
mod host;
mod interface;
mod store;

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use api::{CentralReport, Print};
use model::Explain as _;
use model::instance::Instance;

use host::Host;
use interface::Device;

/// How a check ended, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Grade {
    /// As it should be.
    Ok,
    /// It works, but worse than it could.
    Warn,
    /// It does not work so.
    Fail,
}

impl Grade {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// What was looked at; scripts may rely on the name.
    pub name: &'static str,
    pub state: Grade,
    pub found: String,
    /// What to do about it; present unless all is well.
    pub remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: Grade::Ok, found: found.into(), remedy: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: Grade::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: Grade::Fail, found: found.into(), remedy: Some(remedy.into()) }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Diagnosis {
    /// The worst that was found.
    pub state: Grade,
    /// The interface that was looked at, if one was named.
    pub interface: Option<String>,
    /// The checks, of the machine first.
    pub checks: Vec<Check>,
}

impl Diagnosis {
    fn new(interface: Option<&str>, checks: Vec<Check>) -> Self {
        // By the order of `Grade`: its worst comes last for this.
        let state = checks.iter().map(|check| check.state).max().unwrap_or(Grade::Ok);
        Self { state, interface: interface.map(Into::into), checks }
    }

    fn count(&self, grade: Grade) -> usize {
        self.checks.iter().filter(|check| check.state == grade).count()
    }
}

impl Print for Diagnosis {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for check in &self.checks {
            writeln!(out, "{:<5} {:<17} {}", check.state.name(), check.name, check.found)?;
            if let Some(remedy) = &check.remedy {
                // On a line of its own, so that a command in it can be copied whole.
                writeln!(out, "{:<5} {:<17} -> {remedy}", "", "")?;
            }
        }
        let (warnings, failures) = (self.count(Grade::Warn), self.count(Grade::Fail));
        match (warnings, failures) {
            (0, 0) => writeln!(out, "all is well"),
            _ => writeln!(out, "{failures} failed, {warnings} to look at"),
        }
    }
}

/// Looks at the machine, with pins in `pin_dir`, and at `interface`, if one is named; for `instance`, if
/// that is named.
pub(crate) fn examine(
    pin_dir: &Path,
    interface: Option<&str>,
    instance: Option<&Instance>,
) -> Diagnosis {
    // An interface that is not there is one more check, not an error: what was found of the machine is still told.
    let mut checks = Host::find(pin_dir).checks();
    if let Some(name) = interface {
        match Device::find(name, pin_dir, instance) {
            Ok(device) => checks.extend(device.checks()),
            // A finding, not the command's failure: what was found of the machine is worth telling
            // all the same.
            Err(error) => checks.push(Check::fail(
                "interface",
                error.to_string(),
                error.hint().unwrap_or_else(|| "`ip link` lists the interfaces".into()),
            )),
        }
    }
    Diagnosis::new(interface, checks)
}

/// What `limiter-serve` has told of the central store.
pub(crate) fn examine_store(report: &CentralReport) -> Diagnosis {
    Diagnosis::new(None, store::checks(report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_check_is_the_state() {
        let checks =
            [Check::ok("a", "x"), Check::warn("b", "y", "do"), Check::fail("c", "z", "do")];
        let state = |n: usize| Diagnosis::new(None, checks[..n].to_vec()).state;
        assert_eq!([1, 2, 3].map(state), [Grade::Ok, Grade::Warn, Grade::Fail]);
        let mut text = Vec::new();
        Diagnosis::new(None, checks.to_vec()).print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("-> do") && text.ends_with("1 failed, 1 to look at\n"), "{text}");
    }

    #[test]
    fn an_unknown_interface_is_one_failure() {
        let diagnosis = examine(Path::new("/sys/fs/bpf/limiter"), Some("nonsense0"), None);
        let check = diagnosis.checks.last().unwrap();
        assert_eq!((check.name, check.state), ("interface", Grade::Fail));
        assert!(check.remedy.as_ref().unwrap().contains("lo"), "{check:?}");
        assert_eq!(diagnosis.state, Grade::Fail);
    }
}
