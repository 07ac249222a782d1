//! The error that reaches an operator: what is wrong, what to do, and the exit code.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use model::{Explain, Fault, chain};

/// Exit codes of every command.
pub mod exit {
    /// It worked.
    pub const OK: u8 = 0;
    /// The answer is no, or the daemon is degraded.
    pub const NEGATIVE: u8 = 1;
    /// Wrong usage or configuration.
    pub const USAGE: u8 = 2;
    /// No daemon answers, or only one whose state is in doubt.
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

    /// The HTTP status of an answer that is this failure: the one table of statuses, beside that of exit codes.
    pub const fn status(&self) -> StatusCode {
        match self.code {
            exit::USAGE => StatusCode::BAD_REQUEST,
            // It is the daemon that lacks a privilege: 403 would say that the client does.
            exit::PRIVILEGE | exit::UNREACHABLE => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The same where what is in force may forbid the request: then a no is no fault of the daemon.
    pub const fn status_of_change(&self) -> StatusCode {
        match self.code {
            exit::NEGATIVE => StatusCode::CONFLICT,
            _ => self.status(),
        }
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

/// The exit code of a command that an error ends: the one place that decides it.
const fn code(fault: Fault) -> u8 {
    match fault {
        Fault::Input => exit::USAGE,
        Fault::Refused => exit::NEGATIVE,
        Fault::Privilege => exit::PRIVILEGE,
    }
}

impl<E: Explain> From<E> for Failure {
    fn from(error: E) -> Self {
        // Here alone errors become what an operator sees, so that libraries need to know of neither
        // codes nor statuses.
        Self { message: chain(&error), hint: error.hint(), code: code(error.fault()) }
    }
}
