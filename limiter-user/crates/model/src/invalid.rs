//! Input that an operator has to change, and the text of an error with its causes.

use super::units::DurationError;
use super::{ModelError, UnitError};

/// Input that cannot be taken: what is wrong with it, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Invalid {
    problem: String,
    hint: Option<String>,
}

impl Invalid {
    /// A problem without a hint.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), hint: None }
    }

    /// Adds what to write instead.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Puts the place of the input before the problem.
    #[must_use]
    pub fn context(self, context: impl std::fmt::Display) -> Self {
        Self { problem: format!("{context}: {}", self.problem), ..self }
    }

    /// What to write instead, if that can be said.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
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

impl From<UnitError> for Invalid {
    fn from(error: UnitError) -> Self {
        Self::new(chain(&error)).with_hint(error.hint())
    }
}

impl From<DurationError> for Invalid {
    fn from(error: DurationError) -> Self {
        Self::new(chain(&error)).with_hint(error.hint())
    }
}

impl From<ModelError> for Invalid {
    fn from(error: ModelError) -> Self {
        Self::new(chain(&error)).with_hint(error.hint())
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
