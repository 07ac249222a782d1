//! What is wrong with a configuration file: where, and what to write instead.

use std::path::Path;

use serde::de;

use api::error::{Failure, exit};
use model::Location;

/// How alike two words are, 0 to 1, before one is taken for the other: two wrong letters of five.
const ALIKE: f64 = 0.6;

/// What comes between a message and its hint in an error of serde, which has only a text.
const HINT: &str = "\nhint: ";

/// Where to look further.
const SEE: &str = "`limiter config default` shows every key with its values";

/// A failure at a place in the file, `path:line:column: message`.
pub(super) fn at(path: &Path, text: &str, byte: usize, failure: Failure) -> Failure {
    let Location { line, column } = Location::at(text, byte);
    let hint = failure.hint.clone().unwrap_or_else(|| SEE.into());
    Failure { code: exit::USAGE, ..failure }
        .hint(hint)
        .context(format!("{}:{line}:{column}", path.display()))
}

/// A failure as an error of serde, out of which [`of_toml`] takes the hint again.
pub(super) fn hinted<E: de::Error>(failure: Failure) -> E {
    let Failure { message, hint, .. } = failure;
    E::custom(message + HINT + &hint.unwrap_or_else(|| SEE.into()))
}

/// What the TOML library says, in the words of this program.
pub(super) fn of_toml(path: &Path, text: &str, error: &toml::de::Error) -> Failure {
    let span = error.span().unwrap_or(0..0);
    let failure = explain(error.message().trim(), text.get(span.start..).unwrap_or_default());
    at(path, text, span.start, failure)
}

fn explain(message: &str, there: &str) -> Failure {
    let refuse = |message: String| Failure::new(exit::USAGE, message);
    if let Some((message, hint)) = message.split_once(HINT) {
        return refuse(message.into()).hint(hint);
    }
    // serde puts what it found and what there could be between backticks.
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if message.starts_with("unknown field") || message.starts_with("unknown variant") {
        let (found, known) = words.split_first().map_or(("", &[][..]), |(f, k)| (*f, k));
        let what = if message.contains("field") { "key" } else { "value" };
        let failure = refuse(format!("unknown {what} `{found}`"));
        return match alike(found, known) {
            Some(meant) => failure.hint(format!("did you mean `{meant}`? {SEE}")),
            None => failure.hint(format!("there is `{}`; {SEE}", known.join("`, `"))),
        };
    }
    if message.starts_with("missing field") {
        let name = words.first().copied().unwrap_or_default();
        return refuse(format!("the key `{name}` is missing")).hint(
            "write [[limit]] and below it for = \"198.51.100.0/24\", rate = \"1000pps\", or [[deny]] and \
             below it for = \"198.51.100.7\"",
        );
    }
    // The library speaks of Rust's types, which say nothing to whoever edits the file.
    let message = message
        .replace("expected u32", "expected a whole number from 0 to 4294967295")
        .replace("expected u8", "expected a whole number from 0 to 255")
        .replace("expected f64", "expected a number")
        .replace("expected a sequence", "expected a list such as [\"eth0\"]")
        .replace("expected path string", "expected a string");
    if message.starts_with("duplicate key") {
        return refuse(message).hint("keep one of the two");
    }
    let message = message.replace("wanted string or table", "expected a string");
    // A word without quotes is the usual mistake, and the parser's message about it tells nothing.
    let word = there.split(|c: char| !(c.is_alphanumeric() || "._-/:".contains(c))).next();
    match word.filter(|word| word.starts_with(char::is_alphabetic) && !message.contains("key")) {
        Some(word) => refuse(format!("`{word}` is not a value"))
            .hint(format!("strings are quoted: \"{word}\"; {SEE}")),
        None => refuse(message),
    }
}

/// The word of `known` that was meant by `found`, if one is much like it; the first of equals.
pub fn alike<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let found = found.to_lowercase().replace('-', "_");
    // Flags and keys differ by a dash only, and who writes a flag's name into the file is nearly
    // right.
    let likeness = |word: &&str| {
        let word = word.replace('-', "_");
        strsim::normalized_damerau_levenshtein(&found, &word).max(
            // Half a key's name, such as `window` for `sketch_window`.
            if found.len() > 3 && word.contains(&found) { 0.75 } else { 0.0 },
        )
    };
    // Reversed, as `max_by` keeps the last of equals.
    let best = known.iter().map(|word| (likeness(word), *word)).rev();
    best.filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_lines_and_characters() {
        let place = |byte| {
            let place = Location::at("a = 1\né = \"x\"\n", byte);
            (place.line, place.column)
        };
        assert_eq!((place(0), place(4), place(5)), ((1, 1), (1, 5), (1, 6)));
        assert_eq!((place(6), place(8), place(99)), ((2, 1), (2, 2), (3, 1)));
    }

    #[test]
    fn a_key_that_is_nearly_right_is_recognised() {
        let known = ["interfaces", "mode", "sketch_window", "max_sources", "on_full", "on_exit"];
        for (found, meant) in [
            ("interface", "interfaces"),
            ("max-sources", "max_sources"),
            ("Mode", "mode"),
            ("mdoe", "mode"),
            ("window", "sketch_window"),
            ("on_ful", "on_full"),
        ] {
            assert_eq!(alike(found, &known), Some(meant), "{found}");
        }
        assert_eq!(alike("colour", &known), None);
    }
}
