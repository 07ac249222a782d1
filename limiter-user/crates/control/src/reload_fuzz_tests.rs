//! Files that are nearly right: whatever they say, reading them never panics, and what is refused
//! changes nothing.

use std::path::Path;

use clap::FromArgMatches;

use super::fake::Fake;
use crate::rules::{limits, lists, reload};
use api::error::exit;
use model::lists::{Action, Lists};
use settings::{Arguments, ConfigFile, RunArgs};

/// Files that are tried.
const FILES: u32 = 100_000;

/// Every so many that are good, one is put in force.
const RELOADED: u32 = 20;

/// What a mutation puts in: what means something to TOML or to a limit, and what never should occur.
const PIECES: [&[u8]; 60] = [
    b"=",
    b"\"",
    b"'",
    b"[",
    b"]",
    b"[[",
    b"]]",
    b"{",
    b"}",
    b"#",
    b"\n",
    b"\r",
    b",",
    b".",
    b"-",
    b"\0",
    b"\xff",
    "é".as_bytes(),
    b"\"\"\"",
    b"0",
    b"9999999999999999999999",
    b"-1",
    b"1e999",
    b"nan",
    b"true",
    b"1979-05-27T07:32:00Z",
    b"0.0.0.0/0",
    b"::ffff:1.2.3.4/97",
    b"2001:db8::1",
    b"0pps",
    b"18446744073709551615gbit",
    b"0.000001/hour",
    b"default",
    b"[limits]",
    b"[[limit]]\nfor = \"default\"\nrate = \"5pps\"\n",
    b"proto = \"tcp\"\n",
    b"proto = 256\n",
    b"dport = 53\n",
    b"dport = \"50-60\"\n",
    b"dport = \"60-0\"\n",
    b"syn = true\n",
    b"sport = 53\n",
    b"dst = \"192.0.2.0/24\"\n",
    b"by = \"destination\"\n",
    b"by = \"source\"\n",
    b"tcp_flags = \"syn,!syn\"\n",
    b"aggregate = true\n",
    b"ban = { for = \"1s\" }\n",
    b"\"1mbit\"",
    b"for = \"192.0.2.1/32\"\n",
    b"scope = \"cluster\"\n",
    b"scope = \"local\"\n",
    b"partition = \"conservative\"\n",
    b"partition = \"majority-reclaim\"\n",
    b"[cluster]\nlisten = \"192.0.2.10:7700\"\n",
    b"seeds = [\"a:1\", \"[::1]:1\"]\n",
    b"weight = 0\n",
    b"[[deny]]\nfor = ",
    b"[[allow]]\nfor = \"192.0.2.9\"\n",
    b"[\"192.0.2.66\", \"198.51.100.99\"]",
];

/// A small generator (xorshift64*), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    }

    /// A range of `text`, mostly a short one.
    fn range(&mut self, text: &[u8]) -> std::ops::Range<usize> {
        let start = self.next(text.len() + 1);
        let longest = if self.next(4) == 0 { 200 } else { 8 };
        start..(start + self.next(longest)).min(text.len())
    }

    fn mutate(&mut self, text: &mut Vec<u8>) {
        let range = self.range(text);
        let piece = PIECES[self.next(PIECES.len())].iter().copied();
        match self.next(6) {
            0 => drop(text.drain(range)),
            1 => drop(text.splice(range, piece)),
            2 => drop(text.splice(range.start..range.start, piece)),
            3 => {
                let copy = text[range].to_vec();
                let at = self.next(text.len() + 1);
                text.splice(at..at, copy);
            }
            4 => {
                if let Some(byte) = text.get_mut(range.start) {
                    *byte ^= 1 << self.next(8);
                }
            }
            // A line in the place of another.
            _ => {
                let mut lines: Vec<_> =
                    text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                let (from, to) = (self.next(lines.len()), self.next(lines.len()));
                lines[to] = lines[from].clone();
                *text = lines.join(&b'\n');
            }
        }
    }
}

/// What `limiter run` is given.
fn given() -> Arguments {
    let matches = RunArgs::command().get_matches_from(["limiter", "run"]);
    let run = matches.subcommand_matches("run").unwrap();
    let socket = "/run/limiter/limiter.sock".into();
    Arguments::new(RunArgs::from_arg_matches(run).unwrap(), socket, None, None, &[&matches, run])
}

/// The keys without the explanations: what is changed should be read.
fn keys() -> String {
    let lines = settings::example();
    let keys = lines.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    keys.collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn no_file_makes_it_panic_and_a_refused_one_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let mut core = fake.core(&directory);
    let path = Path::new("limiter.toml");
    let example = keys();
    let good = ConfigFile::parse(path, example.as_bytes()).unwrap();
    let given = given();
    reload::configure(&mut core.rules, given.clone(), given.with(good).unwrap());
    core.rules.enforce().unwrap();
    assert_eq!(limits::list(&core.rules).limits.len(), 12);
    let mut random = Random(0x5eed);
    let (mut accepted, mut refused, mut failed) = (0, 0, 0);
    for number in 0..FILES {
        let mut text = example.clone().into_bytes();
        for _ in 0..=random.next(4) {
            random.mutate(&mut text);
        }
        match ConfigFile::parse(path, &text).and_then(|file| given.with(file)) {
            Ok(settings) => {
                accepted += 1;
                if accepted % RELOADED != 0 {
                    continue;
                }
                // The data plane may still refuse it.
                let before = limits::list(&core.rules);
                fake.state().fail_publish = accepted % (3 * RELOADED) == 0;
                let listed =
                    [Action::Allow, Action::Deny].map(|action| lists::list(&core.rules, action));
                let wanted: Vec<_> = settings.file.limits().iter().collect();
                let wanted_lists = settings.file.lists().clone();
                if reload::take_settings(&mut core.rules, settings).is_ok() {
                    assert_eq!(fake.state().limits, wanted, "{number}");
                    let actions = |lists: &Lists| -> Vec<_> {
                        lists.iter().map(|(net, listing)| (*net, listing.action)).collect()
                    };
                    assert_eq!(actions(&fake.state().lists), actions(&wanted_lists), "{number}");
                } else {
                    failed += 1;
                    let still = [Action::Allow, Action::Deny]
                        .map(|action| lists::list(&core.rules, action));
                    assert_eq!(still, listed, "{number}");
                    assert_eq!(limits::list(&core.rules), before, "{number}");
                    assert_eq!(fake.state().limits.len(), before.limits.len(), "{number}");
                }
                fake.state().fail_publish = false;
            }
            Err(failure) => {
                refused += 1;
                assert_eq!(failure.code, exit::USAGE, "{number}: {failure}");
                assert!(failure.hint.is_some(), "{number}: {failure}");
                assert!(failure.message.starts_with("limiter.toml:"), "{number}: {failure}");
            }
        }
    }
    println!("{FILES} files: {accepted} good, {refused} refused, {failed} not put in force");
    assert!(accepted > FILES / 100 && refused > FILES / 4 && failed > 0);
}
