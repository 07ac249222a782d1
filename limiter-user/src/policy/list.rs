//! Lists of limits as text: a line each, `TARGET [CLASS] [as-one] RATE[+RATE] [BURST[+BURST]] [OPTION…]`,
//! `#` begins a comment.

use std::collections::HashMap;

use clap::ValueEnum;

use super::class::Class;
use super::limits::Changes;
use super::model::{LimitSpec, Target, Whom};
use super::wording::Wording;
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
    /// What the text after whom a limit is for was found to mean: the class, whether it is shared, and
    /// the number of the amount.
    known: HashMap<Box<str>, (Class, bool, u32)>,
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
        let (whom, rest) = content.split_once(char::is_whitespace).unwrap_or((content, ""));
        let whom: Whom = whom.parse()?;
        // Most lines of a long list end like others. Whether an amount is good does not depend on whom
        // it is for.
        let (target, number) = match self.known.get(rest) {
            Some(&(class, together, number)) => {
                let target = Target { whom, class, together };
                target.check()?;
                (target, number)
            }
            None => {
                let limit = parse_limit(whom, rest, content)?;
                let number = self.limits.number(limit.amount());
                if self.known.len() >= REMEMBERED {
                    self.known.clear();
                }
                let Target { class, together, .. } = limit.target;
                self.known.insert(rest.into(), (class, together, number));
                (limit.target, number)
            }
        };
        self.limits.set_numbered(target, number);
        self.lines.push(self.line);
        Ok(())
    }
}

/// How a line should look.
const EXAMPLE: &str = "write TARGET RATE [BURST], for instance 198.51.100.7 1000pps 2000; see `limiter limit import --help`";

/// Reads what comes after whom a limit is for, in `line`.
fn parse_limit(whom: Whom, rest: &str, line: &str) -> Result<LimitSpec, Failure> {
    let refuse = |text: String| Err(Failure::new(exit::USAGE, text).hint(EXAMPLE));
    let ((class, together), rest) = Target::kind(rest)?;
    let mut words = rest.split_whitespace().peekable();
    let Some(rates) = words.next() else {
        return refuse(format!("{line:?} is not a limit"));
    };
    let is_option = |word: &str| word.contains('=') || word == NO_ENFORCE;
    let bursts = words.next_if(|word| !is_option(word));
    let mut wording = Wording {
        rates: rates.split('+').collect(),
        bursts: bursts.map_or_else(Vec::new, |bursts| bursts.split('+').collect()),
        enforce: true,
        ban: None,
        scope: None,
        partition: None,
    };
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let place = match name {
            "scope" => {
                let scope = named(name, value)?;
                if wording.scope.replace(scope).is_some() {
                    return refuse(format!("{name} is there twice"));
                }
                continue;
            }
            "partition" => {
                let partition = named(name, value)?;
                if wording.partition.replace(partition).is_some() {
                    return refuse(format!("{name} is there twice"));
                }
                continue;
            }
            NO_ENFORCE if value.is_empty() && wording.enforce => {
                wording.enforce = false;
                continue;
            }
            "ban-after" => &mut wording.ban.get_or_insert_default().after,
            "ban-factor" => &mut wording.ban.get_or_insert_default().factor,
            "ban-for" => &mut wording.ban.get_or_insert_default().lasts,
            _ => return refuse(format!("{line:?} is not a limit: what is {word:?}?")),
        };
        if place.replace(value).is_some() {
            return refuse(format!("{name} is there twice"));
        }
    }
    wording.limit(Target { whom, class, together }).map_err(|(_, failure)| failure)
}

/// What an option's value names.
fn named<T: ValueEnum>(option: &str, value: &str) -> Result<T, Failure> {
    T::from_str(value, false).map_err(|_| {
        let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<_> = names.map(|one| format!("{option}={}", one.get_name())).collect();
        Failure::new(exit::USAGE, format!("what is {option}={value}?"))
            .hint(format!("write {}, or leave it out", names.join(" or ")))
    })
}

/// The option for a limit that is only counted.
const NO_ENFORCE: &str = "no-enforce";

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
    fn a_line_says_whatever_a_command_can() {
        let limits = parse(
            "default udp:53 100pps 200\ndefault udp:53 as-one 50kpps\n10.0.0.0/8 as-one 1gbit\n\
             192.0.2.1 1000pps+10mbit 2000+64kbyte ban-for=10m # two\n192.0.2.2 10mbit+1000pps\n\
             192.0.2.3 tcp/syn,!ack 40/minute no-enforce\n192.0.2.4 40/minute 50\n\
             192.0.2.5 5pps 9 ban-factor=3 ban-after=2s ban-for=1h\n\
             192.0.2.6 5pps scope=cluster partition=conservative no-enforce\n\
             192.0.2.7 5pps scope=cluster partition=available\n\
             192.0.2.8 5pps partition=majority-reclaim scope=cluster",
        )
        .unwrap();
        let found: Vec<_> = limits
            .iter()
            .map(|limit| {
                let report = crate::report::LimitReport::new(&limit, 1);
                format!("{}: {}", limit.target.short(), report.summary())
            })
            .collect();
        assert_eq!(
            found,
            [
                "default udp:53: 100pps burst 200 packets",
                "default udp:53 as-one: 50kpps burst 60000 packets",
                "10.0.0.0/8 as-one: 1gbit burst 150 mbyte",
                "192.0.2.1: 1000pps burst 2000 packets and 10mbit burst 64 kbyte, ban 10m after 5s at 10×",
                "192.0.2.2: 1000pps burst 1200 packets and 10mbit burst 1500 kbyte",
                "192.0.2.3 tcp/syn,!ack: 40/minute burst 1 packet, not enforced",
                "192.0.2.4: 40/minute burst 50 packets",
                "192.0.2.5: 5pps burst 9 packets, ban 1h after 2s at 3×",
                "192.0.2.6: 5pps burst 6 packets, not enforced, cluster-wide",
                "192.0.2.7: 5pps burst 6 packets, cluster-wide (available)",
                "192.0.2.8: 5pps burst 6 packets, cluster-wide (majority-reclaim)",
            ]
        );
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
            (
                "1.1.1.1 udp:53 5pps\n1.1.1.1 udp:53 5pps",
                "line 2",
                "1.1.1.1 udp:53 has a limit already",
            ),
            ("1.1.1.1 udp:0 5pps", "line 1", "0 is not a port"),
            ("1.1.1.1 tcp/syn", "line 1", "not a limit"),
            ("1.1.1.1 as-one 5pps", "line 1", "single source"),
            ("1.1.1.0/24 as-one 5pps\n1.1.1.1 as-one 5pps", "line 2", "single source"),
            ("1.1.1.0/24 as-one 5pps ban-for=5m", "line 1", "share"),
            ("1.1.1.1 5pps+6pps", "line 1", "both count packets"),
            ("1.1.1.1 5pps ban=5m", "line 1", "what is \"ban=5m\"?"),
            ("1.1.1.1 5pps ban-for=5m ban-for=6m", "line 1", "ban-for is there twice"),
            ("1.1.1.1 5pps ban-after=5s", "line 1", "how long it lasts"),
            ("1.1.1.1 5pps scope=world", "line 1", "what is scope=world?"),
            ("1.1.1.1 5pps scope=local scope=local", "line 1", "scope is there twice"),
            ("1.1.1.1 5pps partition=conservative", "line 1", "no partition policy"),
            ("1.1.1.0/24 as-one 5pps scope=cluster", "line 1", "each source has by itself"),
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
