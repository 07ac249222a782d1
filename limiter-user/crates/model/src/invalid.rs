//! Input that an operator has to change.

use crate::explain::{Explain, Fault};

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

/// Makes an error with a `hint` of its own one of input, and an [`Invalid`] where that is wanted.
// A macro, since a blanket `From` for all errors with hints would collide with the one for
// `Invalid` itself.
macro_rules! input_error {
    ($error:ty) => {
        impl $crate::explain::Explain for $error {
            fn fault(&self) -> $crate::explain::Fault {
                $crate::explain::Fault::Input
            }

            fn hint(&self) -> Option<String> {
                Some(Self::hint(self))
            }
        }

        impl From<$error> for $crate::invalid::Invalid {
            fn from(error: $error) -> Self {
                Self::new($crate::explain::chain(&error)).with_hint(error.hint())
            }
        }
    };
}

pub(crate) use input_error;
