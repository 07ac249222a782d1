//! Input that an operator has to change.

use crate::explain::{Explain, Fault, chain};
use crate::units::DurationError;
use crate::{ModelError, UnitError};

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
}

impl Explain for Invalid {
    fn fault(&self) -> Fault {
        Fault::Input
    }

    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

impl From<UnitError> for Invalid {
    fn from(error: UnitError) -> Self {
        Self::new(chain(&error)).with_hint(error.hint())
    }
}

impl From<ModelError> for Invalid {
    fn from(error: ModelError) -> Self {
        Self::new(chain(&error)).with_hint(error.hint())
    }
}

impl Explain for UnitError {
    fn fault(&self) -> Fault {
        Fault::Input
    }

    fn hint(&self) -> Option<String> {
        Some(Self::hint(self))
    }
}

impl Explain for DurationError {
    fn fault(&self) -> Fault {
        Fault::Input
    }

    fn hint(&self) -> Option<String> {
        Some(Self::hint(self))
    }
}

impl Explain for ModelError {
    fn fault(&self) -> Fault {
        Fault::Input
    }

    fn hint(&self) -> Option<String> {
        Some(Self::hint(self))
    }
}
