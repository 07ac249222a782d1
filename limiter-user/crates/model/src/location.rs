//! Where in a file something is.

/// A location in a file, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The line, from 1 on.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl Location {
    /// The location of a byte in `text`.
    pub fn at(text: &str, byte: usize) -> Self {
        // By bytes, as the place may be in the middle of a character.
        let before = &text.as_bytes()[..byte.min(text.len())];
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        // A position within a character counts as that character's.
        let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
        Self { line, column }
    }
}
