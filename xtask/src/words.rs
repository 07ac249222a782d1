//! Words that the tree has given up, and what it says instead.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::workspace;

/// Each with its successor. One that ends with `_` stands for all that begin so.
const RETIRED: [(&str, &str); 32] = [
    ("MOST", "MAX"),
    ("MOST_", "MAX_"),
    ("LEAST_", "MIN_"),
    ("LONGEST", "MAX_LEN"),
    ("LONGEST_", "MAX_"),
    ("SHORTEST", "MIN_"),
    ("PATIENCE", "TIMEOUT"),
    ("AGAIN", "RETRY_INTERVAL"),
    ("Whom", "Selector"),
    ("Wording", "LimitInput"),
    ("LimitSpec", "Limit"),
    ("Drawn", "Charge"),
    ("Price", "CostMultiplier"),
    ("Asker", "QueryClient"),
    ("Answerer", "QueryServer"),
    ("Saying", "Message"),
    ("KeptFile", "StateFile"),
    ("Giver", "RefundWorker"),
    ("Ceded", "PendingTransfer"),
    ("Mandate", "QuorumLease"),
    ("Elsewhen", "StaleRecipient"),
    ("Stranger", "UnknownMember"),
    ("Overrun", "QueueFull"),
    ("obey", "handle_command"),
    ("Denial", "DropCacheEntry"),
    ("DENIALS", "DROP_CACHE_ENTRIES"),
    ("NEARBY", "PREFIX_BITMAP"),
    ("NEARBY_", "PREFIX_BITMAP_"),
    ("Rights", "ShareSlot"),
    ("RIGHTS", "SHARES"),
    ("is_shared", "is_cluster"),
    ("SingleAsOne", "SingleAggregate"),
];

/// Looks through all Rust files.
pub(crate) fn check() -> Result<()> {
    let mut found = Vec::new();
    // This file has to name what it forbids.
    for file in workspace::files("rs")?.iter().filter(|file| !file.ends_with("xtask/src/words.rs"))
    {
        let name = file.display();
        let text = fs::read_to_string(workspace::root().join(file));
        let text = text.with_context(|| format!("cannot read {name}"))?;
        for (number, line) in (1..).zip(text.lines()) {
            let words = code(line).split(|c: char| !c.is_alphanumeric() && c != '_');
            for (old, new) in words.filter_map(successor) {
                found.push(format!("{name}:{number}: {old} is {new} now"));
            }
        }
    }
    if found.is_empty() { Ok(()) } else { bail!("retired words:\n{}", found.join("\n")) }
}

/// A line without its comment.
fn code(line: &str) -> &str {
    // Prose may use them: some are plain words of English.
    line.split("//").next().unwrap_or_default()
}

fn successor(word: &str) -> Option<(&str, &'static str)> {
    let is = |old: &str| word == old || old.ends_with('_') && word.starts_with(old);
    RETIRED.into_iter().find(|(old, _)| is(old)).map(|(_, new)| (word, new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retired_words_have_successors() {
        assert_eq!(successor("MOST_BYTES"), Some(("MOST_BYTES", "MAX_")));
        assert_eq!(successor("Whom"), Some(("Whom", "Selector")));
        assert_eq!((successor("MAX_BYTES"), successor("Whoms")), (None, None));
        assert_eq!(code("let a = b; // Whom it is for."), "let a = b; ");
    }
}
