//! What `limiter-serve` tells of keys.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Print, text};
use model::overrides::Descriptor;

/// A key that was denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedKey {
    /// The key; a descriptor as `api user=7`.
    pub key: String,
    /// Units denied, an estimate.
    pub denied: u64,
    /// Not fewer than that.
    pub at_least: u64,
    /// Not more than that.
    pub at_most: u64,
}

/// `top --keys`: those who were denied most lately.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopKeysReport {
    /// Over how long this is, s.
    pub seconds: f64,
    /// Units denied of all keys.
    pub denied: u64,
    /// The keys, the most denied first.
    pub keys: Vec<DeniedKey>,
}

impl Print for TopKeysReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.keys.is_empty() {
            let mut table = text::table(&["KEY", "DENIED", "NO LESS", "NO MORE"], 1);
            for DeniedKey { key, denied, at_least, at_most } in &self.keys {
                let numbers = [denied, at_least, at_most].map(ToString::to_string);
                table.add_row([key.clone()].into_iter().chain(numbers));
            }
            writeln!(out, "{}", table.trim_fmt())?;
        }
        writeln!(out, "{} denied in the last {:.0} s", self.denied, self.seconds)
    }
}

/// `show --key`: how a descriptor stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyReport {
    /// Whose state it is.
    #[serde(rename = "for")]
    pub descriptor: Descriptor,
    /// The path of its rule, if it has one.
    pub rule: Option<String>,
    /// Its limit as text; none if it has none.
    pub limit: Option<String>,
    /// Whether the limit is of its own, by `limiter rule`.
    pub own: bool,
    /// Units that have room now.
    pub remaining: u64,
    /// How long until one unit more has room, if none has, else until all that was used counts no more, s.
    pub reset_s: Option<f64>,
}

impl Print for KeyReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.descriptor)?;
        let rule = self.rule.as_deref().unwrap_or("none");
        let Some(limit) = &self.limit else { return writeln!(out, "no limit; rule {rule}") };
        let whose = if self.own { "of its own" } else { "of its rule" };
        writeln!(out, "limit {limit}, {whose}; rule {rule}")?;
        let reset = self.reset_s.filter(|reset| *reset > 0.0);
        let what = if self.remaining == 0 { "one more" } else { "all" };
        let reset = reset.map(|reset| format!(", {what} in {reset:.1} s")).unwrap_or_default();
        writeln!(out, "{} left{reset}", self.remaining)
    }
}
