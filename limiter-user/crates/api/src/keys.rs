//! The keys of the cluster.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::Print;
use model::rotation::{ACCEPTED, GONE, Stage};

/// `GET /v1/cluster/keys`, and `limiter cluster key status`: the keys that are in use, in short, never themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysReport {
    /// The rotation that is under way, or was last; 0 if there never was one.
    pub number: u64,
    /// How far this host is with it.
    pub stage: Stage,
    /// The key that this host seals with: 4 hexadecimal digits that say nothing about it.
    pub sealing: String,
    /// Another one that it accepts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<String>,
    /// Members that are there, this host included.
    pub members: usize,
    /// The host that leads rotations at present.
    pub leader: String,
    /// Members that are not as far as they are to be, if this host leads.
    pub waiting: Vec<String>,
    /// Whether somebody was lost lately, without whom nothing is decided.
    pub lost: bool,
    /// Frames that came sealed with a key that this host does not accept, or were changed on their way, since
    /// the daemon started.
    pub refused: u64,
    /// The file with the keys, once they have been changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Why it does not go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Default for KeysReport {
    fn default() -> Self {
        Self {
            number: 0,
            // A host that has never rotated is in the same state as after a rotation: one key, and
            // none beside it.
            stage: Stage::Forgotten,
            sealing: String::new(),
            accepted: None,
            members: 1,
            leader: String::new(),
            waiting: Vec::new(),
            lost: false,
            refused: 0,
            file: None,
            problem: None,
        }
    }
}

impl KeysReport {
    /// How far it is, in a sentence.
    pub fn told(&self) -> String {
        let Self { number, sealing, .. } = self;
        let other = self.accepted.as_deref().unwrap_or("-");
        match self.stage {
            Stage::Accepted => {
                format!("rotation {number}: key {sealing} is used, the new key {other} is accepted")
            }
            Stage::Using => format!(
                "rotation {number}: the new key {sealing} is used, the old key {other} is accepted for \
                 {} seconds after all use the new one",
                ACCEPTED.as_secs()
            ),
            Stage::Forgotten => match (&self.accepted, number) {
                (Some(_), _) => format!("key {sealing} is used, and key {other} accepted"),
                (None, 0) => format!("key {sealing} is used, that of the key file"),
                (None, _) => format!("key {sealing} is used, since rotation {number}"),
            },
        }
    }
}

impl Print for KeysReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.told())?;
        writeln!(out, "members: {}, led by {}", self.members, self.leader)?;
        if !self.waiting.is_empty() {
            writeln!(out, "not as far: {}", self.waiting.join(", "))?;
        }
        // Only here does it wait for the lost one: the new key is not used before all can read it.
        if self.lost && self.stage == Stage::Accepted {
            let gone = GONE.as_secs();
            writeln!(
                out,
                "somebody was lost: it goes on with all, or {gone} seconds later without"
            )?;
        }
        // Shown, as a host that was left behind looks the same on the wire as somebody who
        // guesses.
        if self.refused > 0 {
            writeln!(out, "frames with another key: {}", self.refused)?;
        }
        if let Some(problem) = &self.problem {
            writeln!(out, "it does not go on: {problem}")?;
        }
        // They have the old key alone, so no frame can bring them the new one.
        if let (Some(file), true) = (&self.file, self.number > 0) {
            writeln!(
                out,
                "hosts that were away get the new key from {file}: copy it to their key file"
            )?;
        }
        Ok(())
    }
}
