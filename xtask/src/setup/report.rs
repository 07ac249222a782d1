//! One line per item, and what to do about each that is missing.

use anyhow::{Result, bail};

use crate::run::say;

/// What to do with an item that is not there, and how much to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Report everything, change nothing.
    Check,
    /// Report everything, install what is missing.
    Install,
    /// Install what is missing, say nothing of what is there.
    Ensure,
}

/// Collects the outcome of all items.
#[derive(Debug)]
pub(super) struct Report {
    mode: Mode,
    missing: Vec<String>,
}

impl Report {
    pub(super) fn new(mode: Mode) -> Self {
        Self { mode, missing: Vec::new() }
    }

    pub(super) fn may_install(&self) -> bool {
        self.mode != Mode::Check
    }

    /// Checks one item, installs it if that is wanted, and checks again.
    ///
    /// `check` returns a detail worth showing (a version) or why the item does not do; `mend` is
    /// the advice if it stays so. Returns whether the item is there in the end.
    pub(super) fn item(
        &mut self,
        name: &str,
        mend: &str,
        check: impl Fn() -> Result<String>,
        install: impl FnOnce() -> Result<()>,
    ) -> bool {
        let why = match check() {
            Ok(detail) => return self.there("ok", name, &detail),
            Err(why) => why,
        };
        if !self.may_install() {
            return self.missing(name, &format!("{why:#}"), mend);
        }
        say(format_args!("{name}: {why:#}; installing"));
        match install().and_then(|()| check()) {
            Ok(detail) => self.there("installed", name, &detail),
            Err(why) => self.missing(name, &format!("{why:#}"), mend),
        }
    }

    /// Notes an item that is there; `state` is `ok` or `installed`. Returns true.
    pub(super) fn there(&self, state: &str, name: &str, detail: &str) -> bool {
        if state != "ok" || self.mode != Mode::Ensure {
            say(format_args!("{state:<9} {name:<18} {detail}").to_string().trim_end());
        }
        true
    }

    /// Notes an item that is missing, why, and how to mend it by hand. Returns false.
    pub(super) fn missing(&mut self, name: &str, why: &str, mend: &str) -> bool {
        say(format_args!("{:<9} {name:<18} {why}; mend: {mend}", "missing"));
        self.missing.push(name.to_owned());
        false
    }

    /// An error naming everything that is missing.
    pub(super) fn finish(self) -> Result<()> {
        if self.missing.is_empty() {
            return Ok(());
        }
        bail!("missing: {}; see above how to mend it", self.missing.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::anyhow;

    use super::*;

    #[test]
    fn checking_never_installs() {
        let mut report = Report::new(Mode::Check);
        let there =
            report.item("x", "do it", || Err(anyhow!("absent")), || panic!("must not install"));
        assert!(!there);
        assert!(report.finish().unwrap_err().to_string().contains('x'));
    }

    #[test]
    fn an_installation_counts_only_if_the_check_then_passes() {
        let present = Cell::new(false);
        let check = || if present.get() { Ok("1".to_owned()) } else { Err(anyhow!("absent")) };
        let mut report = Report::new(Mode::Install);
        assert!(!report.item("x", "do it", check, || Ok(())));
        assert!(report.item("y", "do it", check, || {
            present.set(true);
            Ok(())
        }));
        assert!(report.item("z", "do it", check, || panic!("is there already")));
        let error = report.finish().unwrap_err().to_string();
        assert!(error.contains('x') && !error.contains('y') && !error.contains('z'), "{error}");
    }
}
