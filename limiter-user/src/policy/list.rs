//! Lists of limits as text: a line each, `TARGET RATE [BURST]`, `#` begins a comment.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::model::{LimitSpec, Target};
use super::units::{Rate, parse_burst};
use crate::error::{Failure, exit};

/// Reads a list. Each target may occur once.
///
/// # Errors
/// The first line that is no limit, by its number; then the whole list is refused.
pub fn parse(text: &str) -> Result<BTreeMap<Target, LimitSpec>, Failure> {
    let mut limits = BTreeMap::new();
    for (number, line) in (1u64..).zip(text.lines()) {
        let content = line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let limit = parse_line(content).map_err(|error| error.context(format!("line {number}")))?;
        match limits.entry(limit.target) {
            Entry::Vacant(entry) => {
                entry.insert(limit);
            }
            Entry::Occupied(entry) => {
                let twice = format!("line {number}: {} has a limit already", entry.key().short());
                return Err(Failure::new(exit::USAGE, twice).hint("keep one line for each target"));
            }
        }
    }
    Ok(limits)
}

fn parse_line(line: &str) -> Result<LimitSpec, Failure> {
    let mut words = line.split_whitespace();
    let (Some(target), Some(rate), burst, None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Failure::new(exit::USAGE, format!("{line:?} is not a limit"))
            .hint("write TARGET RATE [BURST], for instance 198.51.100.7 1000pps 2000"));
    };
    let target: Target = target.parse()?;
    let rate: Rate = rate.parse()?;
    let burst = burst.map(|burst| parse_burst(burst, rate.unit())).transpose()?;
    Ok(LimitSpec::new(target, rate, burst)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_limit_a_line() {
        let text =
            "# who\ndefault 1000pps\n\n198.51.100.7 10mbit 64kbyte # a note\n2001:db8::/48 5pps 9";
        let limits = parse(text).unwrap();
        assert_eq!(limits.len(), 3);
        assert_eq!(limits[&Target::Default].burst, 1200);
        assert_eq!(limits[&"198.51.100.7".parse().unwrap()].burst, 64_000);
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn a_bad_line_is_named_and_the_list_refused() {
        for (text, line, about) in [
            ("default 1000pps\n198.51.100.7 10mbps", "line 2", "mbps"),
            ("198.51.100.7/24 5pps", "line 1", "host bits"),
            ("\n\nfoo", "line 3", "foo"),
            ("198.51.100.7 5pps 9 9", "line 1", "not a limit"),
            ("198.51.100.7 5pps\n198.51.100.7/32 6pps", "line 2", "already"),
        ] {
            let error = parse(text).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(line) && text.contains(about), "{text}");
            assert_eq!(error.code, exit::USAGE);
            assert!(error.hint.is_some(), "{error:?}");
        }
    }
}
