//! Lists of limits as text: a line each, `TARGET [CLASS] [aggregate] RATE[+RATE] [BURST[+BURST]] [OPTION…]`,
//! `#` begins a comment.

use std::collections::HashMap;

use super::class::Class;
use super::input::{BAN_UNVERIFIED, EXAMPLE, LimitInput, NO_ENFORCE};
use super::invalid::Invalid;
use super::limits::Changes;
use crate::limit::Limit;
use crate::target::{Selector, Target};

/// The longest line, bytes.
const MAX_LEN: usize = 4096;

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
    /// What the text after whom a limit is for was found to mean: the class, whether it is shared, and
    /// the number of the amount.
    known: HashMap<Box<str>, (Class, bool, u32)>,
}

impl Reader {
    /// Reads some text, which may end anywhere.
    ///
    /// # Errors
    /// The first line that is no limit, by its number; then the whole list is refused.
    pub fn push(&mut self, text: &[u8]) -> Result<(), Invalid> {
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
        // A text without line breaks must not fill the memory: the line is refused as soon as it is
        // too long.
        if self.partial.len() > MAX_LEN {
            let line = std::mem::take(&mut self.partial);
            self.read(&line)?;
        }
        Ok(())
    }

    /// The limits that were read. Each target may occur once.
    ///
    /// # Errors
    /// As [`Reader::push`].
    pub fn finish(mut self) -> Result<Changes, Invalid> {
        // The last line need not end.
        let last = std::mem::take(&mut self.partial);
        if !last.is_empty() {
            self.read(&last)?;
        }
        self.check_repetition()?;
        Ok(self.limits)
    }

    fn check_repetition(&self) -> Result<(), Invalid> {
        let Some(place) = self.limits.repeated() else { return Ok(()) };
        let (target, line) = (self.limits.at(place).0.short(), self.lines[place]);
        Err(Invalid::new(format!("line {line}: {target} has a limit already"))
            .with_hint("keep one line for each target"))
    }

    fn read(&mut self, line: &[u8]) -> Result<(), Invalid> {
        self.line += 1;
        let read = if line.len() > MAX_LEN {
            Err(Invalid::new(format!("a limit takes less than {MAX_LEN} bytes")).with_hint(EXAMPLE))
        } else {
            std::str::from_utf8(line)
                .map_err(|_| Invalid::new("it is not UTF-8 text").with_hint(EXAMPLE))
                .and_then(|line| self.read_text(line))
        };
        read.map_err(|error| {
            // What comes first is told first.
            let earlier = self.check_repetition().err();
            earlier.unwrap_or_else(|| error.context(format!("line {}", self.line)))
        })
    }

    fn read_text(&mut self, line: &str) -> Result<(), Invalid> {
        let content = line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            return Ok(());
        }
        let (whom, rest) = content.split_once(char::is_whitespace).unwrap_or((content, ""));
        let whom: Selector = whom.parse()?;
        // Most lines of a long list end like others. Whether an amount is good does not depend on whom
        // it is for.
        let (target, number) = match self.known.get(rest) {
            Some(&(class, aggregate, number)) => {
                let target = Target { whom, class, aggregate };
                // What was remembered is of other sources: whether this one may be aggregate
                // depends on it.
                target.check()?;
                (target, number)
            }
            None => {
                let limit = parse_limit(whom, rest, content)?;
                let number = self.limits.number(limit.amount);
                // Forgotten at once rather than one by one: where all lines differ, nothing that is
                // remembered pays.
                if self.known.len() >= REMEMBERED {
                    self.known.clear();
                }
                let Target { class, aggregate, .. } = limit.target;
                self.known.insert(rest.into(), (class, aggregate, number));
                (limit.target, number)
            }
        };
        self.limits.set_numbered(target, number);
        self.lines.push(self.line);
        Ok(())
    }
}

/// Reads what comes after whom a limit is for, in `line`.
fn parse_limit(whom: Selector, rest: &str, line: &str) -> Result<Limit, Invalid> {
    let refuse = |text: String| Err(Invalid::new(text).with_hint(EXAMPLE));
    let ((class, aggregate), rest) = Target::kind(rest)?;
    let mut words = rest.split_whitespace().peekable();
    let Some(rates) = words.next() else {
        return refuse(format!("{line:?} is not a limit"));
    };
    let is_option = |word: &str| word.contains('=') || [NO_ENFORCE, BAN_UNVERIFIED].contains(&word);
    let bursts = words.next_if(|word| !is_option(word));
    let mut input = LimitInput {
        rate: rates.split('+').collect(),
        burst: bursts.into_iter().flat_map(|bursts| bursts.split('+')).collect(),
        ..LimitInput::default()
    };
    for word in words {
        match input.take_word(word) {
            Some(taken) => taken?,
            None => return refuse(format!("{line:?} is not a limit: what is {word:?}?")),
        }
    }
    input.limit_for(Target { whom, class, aggregate }).map_err(|(_, error)| error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Explain as _;
    use crate::Limits;

    fn parse(text: &str) -> Result<Limits, Invalid> {
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
        let long = format!("\n{} 5pps", "1".repeat(2 * MAX_LEN));
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
            (
                "1.1.1.1 udp:53 5pps\n1.1.1.1 udp:53 5pps",
                "line 2",
                "1.1.1.1 udp:53 has a limit already",
            ),
            ("1.1.1.1 udp:0 5pps", "line 1", "0 is not a port"),
            ("1.1.1.1 tcp/syn", "line 1", "not a limit"),
            ("1.1.1.1 aggregate 5pps", "line 1", "single source"),
            ("1.1.1.0/24 aggregate 5pps\n1.1.1.1 aggregate 5pps", "line 2", "single source"),
            ("1.1.1.0/24 aggregate 5pps ban-for=5m", "line 1", "share"),
            ("1.1.1.1 5pps+6pps", "line 1", "both count packets"),
            ("1.1.1.1 5pps ban=5m", "line 1", "what is \"ban=5m\"?"),
            ("1.1.1.1 5pps ban-for=5m ban-for=6m", "line 1", "ban-for is there twice"),
            ("1.1.1.1 5pps ban-after=5s", "line 1", "how long it lasts"),
            ("1.1.1.1 5pps scope=world", "line 1", "what is scope=world?"),
            ("1.1.1.1 5pps scope=local scope=local", "line 1", "scope is there twice"),
            ("1.1.1.1 5pps no-enforce no-enforce", "line 1", "no-enforce is there twice"),
            ("1.1.1.1 5pps partition=conservative", "line 1", "no partition policy"),
            ("1.1.1.1 5pps reserve=9", "line 1", "only a limit that sources share"),
            ("1.1.1.0/24 aggregate 5pps reserve=91", "line 1", "too little"),
            ("1.1.1.0/24 aggregate 5pps reserve=some", "line 1", "what is reserve=some?"),
            ("1.1.1.0/24 aggregate 5pps reserve=9 reserve=8", "line 1", "reserve is there twice"),
        ] {
            let error = parse(text).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(line) && text.contains(about), "{text}");
            assert!(error.hint().is_some(), "{error:?}");
        }
        let error = Reader::default().push(b"default 5pps\n\xff 5pps\n").unwrap_err();
        assert!(error.to_string().contains("line 2: it is not UTF-8"), "{error}");
    }
}
