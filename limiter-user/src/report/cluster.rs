//! The cluster.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::Print;

/// `cluster key generate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyGenerated {
    /// The file with the new key.
    pub file: String,
    /// Whether there was another file.
    pub replaced: bool,
}

impl Print for KeyGenerated {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let replaced = if self.replaced { ", in the place of another" } else { "" };
        writeln!(out, "{}: a new key{replaced}; copy it to all hosts of the cluster", self.file)
    }
}
