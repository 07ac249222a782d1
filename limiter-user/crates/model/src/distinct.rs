//! How many distinct sources send.

use serde::{Deserialize, Serialize};

/// Distinct sources in a window, estimated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distinct {
    /// The estimate.
    pub sources: f64,
    /// The standard error of that, as a fraction of it.
    pub standard_error: f64,
    /// The window, s.
    pub window_s: f64,
}

impl Distinct {
    /// In a few words, with the error that two thirds of estimates stay within.
    pub fn summary(&self) -> String {
        let Self { sources, standard_error, window_s } = self;
        // The error grows with the number, so it is shown in sources, not only as a percentage.
        let error = sources * standard_error;
        format!("{sources:.0} ± {error:.0} distinct sources in {window_s:.2} s")
    }
}
