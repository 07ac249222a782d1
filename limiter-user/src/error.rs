//! The error that reaches an operator: what is wrong, what to do, and the exit code.

use serde::{Deserialize, Serialize};

use crate::dataplane;
use crate::policy::units::DurationError;
use crate::policy::{ModelError, StoreError, UnitError};

/// Exit codes of every command.
pub mod exit {
    /// It worked.
    pub const OK: u8 = 0;
    /// The answer is no, or the daemon is degraded.
    pub const NEGATIVE: u8 = 1;
    /// Wrong usage or configuration.
    pub const USAGE: u8 = 2;
    /// No daemon answers.
    pub const UNREACHABLE: u8 = 3;
    /// Privileges are missing, or the kernel refuses.
    pub const PRIVILEGE: u8 = 4;
}

/// A failure as it is told to the operator, on the terminal and over the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What is wrong, with its causes.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The exit code, see [`exit`].
    pub code: u8,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, code }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Puts what was being done before the message.
    #[must_use]
    pub fn context(self, context: impl std::fmt::Display) -> Self {
        Self { message: format!("{context}: {}", self.message), ..self }
    }
}

/// An error and its causes on one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some libraries repeat their cause in their own message.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

impl From<UnitError> for Failure {
    fn from(error: UnitError) -> Self {
        Self { message: chain(&error), hint: Some(error.hint()), code: exit::USAGE }
    }
}

impl From<DurationError> for Failure {
    fn from(error: DurationError) -> Self {
        Self { message: error.to_string(), hint: Some(error.hint()), code: exit::USAGE }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self { message: chain(&error), hint: Some(error.hint()), code: exit::USAGE }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { message: chain(&error), hint: error.hint(), code: error.code() }
    }
}

impl From<dataplane::Error> for Failure {
    fn from(error: dataplane::Error) -> Self {
        Self { message: chain(&error), hint: error.hint(), code: error.code() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read the map")]
        struct Outer(#[source] std::io::Error);
        let error = Outer(std::io::Error::other("no such map"));
        assert_eq!(chain(&error), "cannot read the map: no such map");
    }
}
