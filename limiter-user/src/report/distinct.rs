//! How many sources send.

use serde::{Deserialize, Serialize};

use crate::observe::Distinct;

/// Distinct sources in the last full window, estimated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistinctReport {
    /// How many.
    pub sources: f64,
    /// The standard error of that, in sources.
    pub standard_error: f64,
    /// The window, s.
    pub window_s: f64,
}

impl From<Distinct> for DistinctReport {
    fn from(distinct: Distinct) -> Self {
        let standard_error = distinct.sources * distinct.standard_error;
        Self { sources: distinct.sources, standard_error, window_s: distinct.window_s }
    }
}

impl DistinctReport {
    /// In a few words.
    pub fn summary(&self) -> String {
        let Self { sources, standard_error, window_s } = self;
        format!("{sources:.0} ± {standard_error:.0} distinct in {window_s:.2} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_told_in_sources() {
        let distinct = Distinct { sources: 20_000.0, standard_error: 0.01625, window_s: 1.0737 };
        let report = DistinctReport::from(distinct);
        assert_eq!(report.summary(), "20000 ± 325 distinct in 1.07 s");
    }
}
