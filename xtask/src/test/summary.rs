//! Adding up what the test runner prints.

use std::fmt;

/// Numbers of tests by outcome.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// What the failed ones said.
    messages: Vec<String>,
}

impl Summary {
    /// One failure that the test runner does not count.
    pub(crate) const FAILURE: Self =
        Self { passed: 0, failed: 1, skipped: 0, messages: Vec::new() };

    /// Reads a closing line `test result: ok. 3 passed; 0 failed; 1 ignored; …`; none if `line` is
    /// something else.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        // The text, as the JSON of the test runner is for nightly alone.
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut summary = Self::default();
        for count in counts.split(';') {
            let Some((number, what)) = count.trim().split_once(' ') else { continue };
            let field = match what {
                "passed" => &mut summary.passed,
                "failed" => &mut summary.failed,
                "ignored" => &mut summary.skipped,
                _ => continue,
            };
            *field = number.parse().ok()?;
        }
        Some(summary)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.messages.extend_from_slice(&other.messages);
    }

    /// With what the failed tests said, as the test runner prints it from `failures:` on.
    pub(crate) fn saying(self, messages: Vec<String>) -> Self {
        Self { messages, ..self }
    }

    /// What the failed tests said.
    pub(crate) fn messages(&self) -> &[String] {
        &self.messages
    }

    /// How many passed, and how many failed.
    pub(crate) const fn counts(&self) -> (u64, u64) {
        (self.passed, self.failed)
    }

    /// Whether no test passed or failed.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed + self.failed == 0
    }

    /// Whether no test failed.
    pub(crate) fn is_success_or_empty(&self) -> bool {
        self.failed == 0
    }

    /// Whether tests ran and none failed.
    pub(crate) fn is_success(&self) -> bool {
        // A filter that matches nothing must not look like success.
        self.failed == 0 && !self.is_empty()
    }
}

/// `N passed, M failed`, and `, K skipped` if any were.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(passed: u64, failed: u64, skipped: u64) -> Summary {
        Summary { passed, failed, skipped, messages: Vec::new() }
    }

    #[test]
    fn reads_closing_lines() {
        let line = "test result: FAILED. 12 passed; 3 failed; 4 ignored; 0 measured; \
                    5 filtered out; finished in 0.02s";
        assert_eq!(Summary::parse(line), Some(of(12, 3, 4)));
        let line = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(Summary::parse(line), Some(of(1, 0, 0)));
    }

    #[test]
    fn other_lines_are_not_results() {
        for line in ["", "running 3 tests", "test a::b ... ok", " test result: ok. 1 passed;"] {
            assert_eq!(Summary::parse(line), None, "{line}");
        }
    }

    #[test]
    fn nothing_run_is_no_success() {
        let mut total = Summary::default();
        assert!(!total.is_success() && total.is_success_or_empty());
        total.add(&of(2, 0, 1));
        assert!(total.is_success());
        assert_eq!(total.to_string(), "2 passed, 0 failed, 1 skipped");
        total.add(&Summary::FAILURE);
        assert!(!total.is_success());
        assert_eq!(total.to_string(), "2 passed, 1 failed, 1 skipped");
    }
}
