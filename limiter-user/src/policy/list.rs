//! Lists of limits as text: a line each, `TARGET RATE [BURST]`, `#` begins a comment.

use std::collections::HashMap;

use super::limits::Changes;
use super::model::{LimitSpec, Target};
use super::units::{Rate, parse_burst};
use crate::error::{Failure, exit};

/// The longest line, bytes.
const LONGEST: usize = 4096;

/// How many ways to write an amount are remembered.
const REMEMBERED: usize = 1 << 16;

/// Reads a list as its text comes, so that the text need not be kept.
#[derive(Debug, Default)]
pub struct Reader {
    limits: Changes,
    /// The line that each of them is in.
    lines: Vec<u32>,
    line: u32,
    /// The beginning of a line whose end is still to come.
    partial: Vec<u8>,
    /// What the text after a target was found to mean: the number of its amount.
    known: HashMap<Box<str>, u32>,
}

impl Reader {
    /// Reads some text, which may end anywhere.
    ///
    /// # Errors
    /// The first line that is no limit, by its number; then the whole list is refused.
    pub fn push(&mut self, text: &[u8]) -> Result<(), Failure> {
        let mut lines = text.split_inclusive(|byte| *byte == b'\n');
        if !self.partial.is_empty()
            && let Some(rest) = lines.next()
        {
            self.partial.extend_from_slice(rest);
            if rest.ends_with(b"\n") {
                let line = std::mem::take(&mut self.partial);
                self.read(&line)?;
            }
        }
        for line in lines {
            if line.ends_with(b"\n") {
                self.read(line)?;
            } else {
                self.partial.extend_from_slice(line);
            }
        }
        if self.partial.len() > LONGEST {
            let line = std::mem::take(&mut self.partial);
            self.read(&line)?;
        }
        Ok(())
    }

    /// The limits that were read. Each target may occur once.
    ///
    /// # Errors
    /// As [`Reader::push`].
    pub fn finish(mut self) -> Result<Changes, Failure> {
        let last = std::mem::take(&mut self.partial);
        if !last.is_empty() {
            self.read(&last)?;
        }
        self.check_repetition()?;
        Ok(self.limits)
    }

    fn check_repetition(&self) -> Result<(), Failure> {
        let Some(place) = self.limits.repeated() else { return Ok(()) };
        let (target, line) = (self.limits.at(place).0.short(), self.lines[place]);
        Err(Failure::new(exit::USAGE, format!("line {line}: {target} has a limit already"))
            .hint("keep one line for each target"))
    }

    fn read(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.line += 1;
        let read = if line.len() > LONGEST {
            Err(Failure::new(exit::USAGE, format!("a limit takes less than {LONGEST} bytes"))
                .hint(EXAMPLE))
        } else {
            std::str::from_utf8(line)
                .map_err(|_| Failure::new(exit::USAGE, "it is not UTF-8 text").hint(EXAMPLE))
                .and_then(|line| self.read_text(line))
        };
        read.map_err(|failure| {
            // What comes first is told first.
            let earlier = self.check_repetition().err();
            earlier.unwrap_or_else(|| failure.context(format!("line {}", self.line)))
        })
    }

    fn read_text(&mut self, line: &str) -> Result<(), Failure> {
        let content = line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            return Ok(());
        }
        let (target, amount) = content.split_once(char::is_whitespace).unwrap_or((content, ""));
        // Most lines of a long list end like others. Whether an amount is good does not depend on the
        // target.
        let (target, number) = match (target.parse::<Target>(), self.known.get(amount)) {
            (Ok(target), Some(number)) => (target, *number),
            _ => {
                let limit = parse_line(content)?;
                let number = self.limits.number(limit.amount());
                if self.known.len() >= REMEMBERED {
                    self.known.clear();
                }
                self.known.insert(amount.into(), number);
                (limit.target, number)
            }
        };
        self.limits.set_numbered(target, number);
        self.lines.push(self.line);
        Ok(())
    }
}

/// How a line should look.
const EXAMPLE: &str = "write TARGET RATE [BURST], for instance 198.51.100.7 1000pps 2000";

fn parse_line(line: &str) -> Result<LimitSpec, Failure> {
    let mut words = line.split_whitespace();
    let (Some(target), Some(rate), burst, None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Failure::new(exit::USAGE, format!("{line:?} is not a limit")).hint(EXAMPLE));
    };
    let target: Target = target.parse()?;
    let rate: Rate = rate.parse()?;
    let burst = burst.map(|burst| parse_burst(burst, rate.unit())).transpose()?;
    Ok(LimitSpec::new(target, rate, burst)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Limits;

    fn parse(text: &str) -> Result<Limits, Failure> {
        let mut reader = Reader::default();
        reader.push(text.as_bytes())?;
        let mut limits = Limits::default();
        limits.apply(&reader.finish()?);
        Ok(limits)
    }

    const LIST: &str =
        "# who\ndefault 1000pps\n\n198.51.100.7 10mbit 64kbyte # é\n2001:db8::/48 5pps 9";

    #[test]
    fn a_list_has_a_limit_a_line() {
        let limits = parse(LIST).unwrap();
        assert_eq!(limits.len(), 3);
        let burst = |target: &str| limits.get(&target.parse().unwrap()).unwrap().burst;
        assert_eq!((burst("default"), burst("198.51.100.7")), (1200, 64_000));
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn it_may_come_in_any_pieces() {
        let whole = parse(LIST).unwrap();
        for size in 1..=LIST.len() {
            let mut reader = Reader::default();
            for piece in LIST.as_bytes().chunks(size) {
                reader.push(piece).unwrap();
            }
            let mut limits = Limits::default();
            limits.apply(&reader.finish().unwrap());
            assert_eq!(limits, whole, "{size}");
        }
    }

    #[test]
    fn equal_amounts_are_equal_however_they_are_written() {
        let limits = parse("1.1.1.1 1kpps 2000\n1.1.1.2 1000pps  2k\n1.1.1.3 1kpps 2000").unwrap();
        assert_eq!(limits.amounts().map(|(_, count)| count).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_bad_line_is_named_and_the_list_refused() {
        let long = format!("\n{} 5pps", "1".repeat(2 * LONGEST));
        for (text, line, about) in [
            ("default 1000pps\n198.51.100.7 10mbps", "line 2", "mbps"),
            ("198.51.100.7/24 5pps", "line 1", "host bits"),
            ("198.51.100.7 5pps\n198.51.100.7/24 5pps", "line 2", "host bits"),
            ("198.51.100.7", "line 1", "not a limit"),
            ("\n\nfoo", "line 3", "foo"),
            ("198.51.100.7 5pps 9 9", "line 1", "not a limit"),
            ("198.51.100.7 5pps\n\n198.51.100.7/32 6pps", "line 3", "already"),
            ("1.1.1.1 5pps\n1.1.1.1 5pps\nfoo", "line 2", "already"),
            (&long, "line 2", "bytes"),
        ] {
            let error = parse(text).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(line) && text.contains(about), "{text}");
            assert_eq!(error.code, exit::USAGE);
            assert!(error.hint.is_some(), "{error:?}");
        }
        let error = Reader::default().push(b"default 5pps\n\xff 5pps\n").unwrap_err();
        assert!(error.message.contains("line 2: it is not UTF-8"), "{error}");
    }
}
