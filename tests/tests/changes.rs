//! Policies are changed a thousand times under a flow, and no packet is judged by a half-applied one.
//!
//! Some sources keep to their limits whatever is in force, and some are over their limits whatever is in
//! force. Between two sets of limits, in any state that is neither of them, a source of the former would
//! be denied, or one of the latter let through.

use std::{
    collections::HashMap,
    fs,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    time::{Duration, Instant},
};

use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream, api, frame,
    observer::{Observed, Then},
};

/// Changes to be made at the least.
const CHANGES: usize = 1000;
/// Frames per second that are offered.
const RATE: f64 = 120_000.0;
/// Of those, the ones of sources that send so seldom that they are asked for anew after every change.
const SELDOM: f64 = 6_000.0;
/// Sources of a group that send often, and those that do not.
const OFTEN: u16 = 24;
const FEW: u16 = 150;

/// So little that nothing is left after the first packet.
const NEVER: &str = "1/hour 1";
/// As little, for another price.
const NOR_THIS: &str = "2/hour 1";
/// More than any source sends, with a bucket that is never quite full, so that it is over any of the two
/// above at once.
const ALWAYS: &str = "20/minute 300000";
const AND_THIS: &str = "15/minute 250000";
/// The same for all sources of a group together.
const MUCH: &str = "2000pps 10000000";

/// A source that a group sends from, and whether it always gets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    All,
    Nothing,
}
use Expected::{All, Nothing};

/// What the sources of a group send.
type Kind = fn(IpAddr) -> Vec<u8>;

/// Limits that are changed together, and sources that must not notice.
struct Group {
    what: &'static str,
    /// Between these it goes: target, and rate with burst. `P` is the group's prefix, `C` one in it that
    /// has all its sources, `Q` a prefix in that with half of them.
    sets: [&'static [(&'static str, &'static str)]; 2],
    kind: Kind,
    expected: Expected,
}

fn dns(source: IpAddr) -> Vec<u8> {
    frame::udp_to(source, 60, 53)
}

fn web(source: IpAddr) -> Vec<u8> {
    frame::tcp(source, 80, frame::ACK)
}

fn syn(source: IpAddr) -> Vec<u8> {
    frame::tcp(source, 443, frame::SYN)
}

/// What holds all the time: everyone but the groups is limited to nothing, and two classes are in use.
const ALL_THE_TIME: [(&str, &str); 4] = [
    ("default", NEVER),
    ("192.0.2.128/25 udp", ALWAYS),
    ("192.0.2.128/25 udp:53", ALWAYS),
    ("192.0.2.0/25 tcp", ALWAYS),
];

const GROUPS: [Group; 12] = [
    Group {
        what: "a limit changes its rate and burst",
        sets: [&[("P", NEVER)], &[("P", NOR_THIS)]],
        kind: web,
        expected: Nothing,
    },
    Group {
        what: "a limit that shares its policy with others changes",
        sets: [&[("P", ALWAYS)], &[("P", AND_THIS)]],
        kind: web,
        expected: All,
    },
    Group {
        what: "a prefix within one that loses its limit",
        sets: [&[("P", NEVER)], &[("P", ALWAYS), ("C", NEVER), ("Q", NOR_THIS)]],
        kind: web,
        expected: Nothing,
    },
    Group {
        what: "a prefix within one that gets a limit",
        sets: [&[("P", ALWAYS)], &[("P", NEVER), ("C", AND_THIS), ("Q", ALWAYS)]],
        kind: web,
        expected: All,
    },
    Group {
        what: "a prefix of a class within one that loses its limit",
        sets: [&[("P udp", NEVER)], &[("P udp", ALWAYS), ("C udp", NEVER), ("Q udp", NEVER)]],
        kind: dns,
        expected: Nothing,
    },
    Group {
        what: "a prefix of a class within one that gets a limit",
        sets: [&[("P udp", ALWAYS)], &[("P udp", NEVER), ("C udp", ALWAYS)]],
        kind: dns,
        expected: All,
    },
    Group {
        what: "a narrower class in the place of a wider one",
        sets: [&[("P udp", NEVER)], &[("P udp", ALWAYS), ("P udp:53", NEVER)]],
        kind: dns,
        expected: Nothing,
    },
    Group {
        what: "a narrower class that is let through",
        sets: [&[("P", ALWAYS)], &[("P", NEVER), ("P udp", NEVER), ("P udp:53", ALWAYS)]],
        kind: dns,
        expected: All,
    },
    Group {
        what: "a class that was not there",
        sets: [&[("P", ALWAYS)], &[("P", NEVER), ("default tcp/syn,!ack", ALWAYS)]],
        kind: syn,
        expected: All,
    },
    Group {
        what: "a class of one prefix that was not there",
        sets: [&[("P", ALWAYS)], &[("P", NEVER), ("P tcp:80", ALWAYS)]],
        kind: web,
        expected: All,
    },
    Group {
        what: "a prefix as one within one that gets a limit",
        sets: [
            &[("P", ALWAYS), ("P aggregate", MUCH)],
            &[("P", ALWAYS), ("P aggregate", NEVER), ("C aggregate", MUCH)],
        ],
        kind: web,
        expected: All,
    },
    Group {
        what: "a class as one within one that gets a limit",
        sets: [
            &[("P", ALWAYS), ("P udp aggregate", MUCH)],
            &[("P", AND_THIS), ("P udp aggregate", NEVER), ("P udp:53 aggregate", MUCH)],
        ],
        kind: dns,
        expected: All,
    },
];

/// Groups by number: those that are changed by requests, and the same again in the configuration file.
const NUMBER: usize = 2 * GROUPS.len();

impl Group {
    fn of(index: usize) -> &'static Self {
        &GROUPS[index % GROUPS.len()]
    }

    fn is_in_file(index: usize) -> bool {
        index >= GROUPS.len()
    }

    /// The target of one of its limits as the daemon takes it.
    fn target(index: usize, target: &str) -> String {
        // What is for everyone cannot be for two groups.
        let target = match target {
            "default tcp/syn,!ack" if Self::is_in_file(index) => "default tcp:443/syn,!ack",
            target => target,
        };
        target
            .replace('P', &format!("10.{index}.0.0/16"))
            .replace('C', &format!("10.{index}.0.0/20"))
            .replace('Q', &format!("10.{index}.0.0/25"))
    }

    /// Its sources: those that send often come first. All in C, and some of each kind in Q.
    fn sources(index: usize) -> impl Iterator<Item = IpAddr> {
        let of = move |host: u16| {
            let [_, second] = (index as u16).to_be_bytes();
            // Every other one is in the lower half of a /24, and of the first of these are some.
            let [high, low] = (host / 2 + host % 2 * 1024 + 1).to_be_bytes();
            IpAddr::from(Ipv4Addr::new(10, second, high, low))
        };
        (0..OFTEN + FEW).map(of)
    }

    /// Those targets that only one of the sets has.
    fn only_in(&self, set: usize) -> impl Iterator<Item = &'static str> {
        let other = self.sets[1 - set];
        let targets = self.sets[set].iter().map(|(target, _)| *target);
        targets.filter(move |target| !other.iter().any(|(known, _)| known == target))
    }
}

/// A daemon whose limits are changed.
struct Changing<'a> {
    daemon: &'a Daemon,
    made: usize,
    /// Which of its sets each group is under.
    sets: [usize; NUMBER],
    file: &'a Path,
}

impl Changing<'_> {
    fn request(&mut self, method: &str, path: &str, body: &str) {
        api::request(&self.daemon.socket(), method, path, body);
        self.made += 1;
    }

    /// Sets limits, all at once.
    fn import(&mut self, limits: &[(String, &str)]) {
        let lines: String =
            limits.iter().map(|(target, amount)| format!("{target} {amount}\n")).collect();
        self.request("POST", "/v1/limits/import", &lines);
    }

    fn set(&mut self, target: &str, amount: &str) {
        let (rate, burst) = amount.split_once(' ').expect("a rate and a burst");
        let body = serde_json::json!({ "target": target, "rate": rate, "burst": burst });
        self.request("PUT", "/v1/limits", &body.to_string());
    }

    fn unset(&mut self, target: &str) {
        let target = target.replace(' ', "%20").replace('/', "%2F").replace(',', "%2C");
        self.request("DELETE", &format!("/v1/limits?target={}", target.replace('!', "%21")), "");
    }

    /// The limits of the set that a group is under.
    fn limits(&self, index: usize) -> impl Iterator<Item = (String, &'static str)> {
        let set = Group::of(index).sets[self.sets[index]].iter();
        set.map(move |(target, amount)| (Group::target(index, target), *amount))
    }

    /// Removes the limits of a group that it has no more. None of them is in force any longer.
    fn tidy(&mut self, index: usize) {
        for target in Group::of(index).only_in(1 - self.sets[index]) {
            self.unset(&Group::target(index, target));
        }
    }

    /// Puts the other one of a group's sets in force.
    fn change(&mut self, index: usize) {
        self.sets[index] = 1 - self.sets[index];
        let limits: Vec<_> = self.limits(index).collect();
        match &limits[..] {
            [(target, amount)] => self.set(target, amount),
            several => self.import(several),
        }
        self.tidy(index);
    }

    /// Changes all groups at once: those that are changed by requests, and those of the file.
    fn change_all(&mut self) {
        let requested = || 0..GROUPS.len();
        requested().for_each(|index| self.sets[index] = 1 - self.sets[index]);
        let all = requested().flat_map(|index| self.limits(index)).collect::<Vec<_>>();
        self.import(&all);
        requested().for_each(|index| self.tidy(index));
        self.reload();
    }

    /// Changes all groups of the file: limits are set, changed and removed, all at once.
    fn reload(&mut self) {
        let in_file = GROUPS.len()..NUMBER;
        in_file.for_each(|index| self.sets[index] = 1 - self.sets[index]);
        self.write_file();
        self.request("POST", "/v1/reload", "");
    }

    fn write_file(&self) {
        let limits = (GROUPS.len()..NUMBER).flat_map(|index| self.limits(index));
        let text: String = limits.map(|(target, amount)| in_file(&target, amount)).collect();
        fs::write(self.file, text).expect("a temporary file");
    }
}

/// A limit as the configuration file has it.
fn in_file(target: &str, amount: &str) -> String {
    let mut words = target.split(' ');
    let whom = words.next().unwrap_or_default();
    let (rate, burst) = amount.split_once(' ').expect("a rate and a burst");
    let mut text = format!("[[limit]]\nfor = \"{whom}\"\nrate = \"{rate}\"\nburst = {burst}\n");
    for word in words {
        if word == "aggregate" {
            text += "aggregate = true\n";
            continue;
        }
        let (class, flags) = word.split_once('/').unwrap_or((word, ""));
        let (proto, dport) = class.split_once(':').unwrap_or((class, ""));
        for (key, value) in [("proto", proto), ("dport", dport), ("tcp_flags", flags)] {
            if !value.is_empty() {
                text += &format!("{key} = \"{value}\"\n");
            }
        }
    }
    text
}

/// Streams of all groups: the sources that send often, and the others.
fn streams() -> Vec<Stream> {
    let frames = |range: std::ops::Range<u16>| {
        let (first, many) = (usize::from(range.start), range.len());
        let all = (0..NUMBER).flat_map(|index| {
            Group::sources(index).skip(first).take(many).map(Group::of(index).kind)
        });
        all.collect::<Vec<_>>()
    };
    // For longer than any test takes.
    let stream = |frames, rate: f64| Stream::cycle(frames, rate, (rate * 600.0) as u64);
    vec![stream(frames(0..OFTEN), RATE - SELDOM), stream(frames(OFTEN..OFTEN + FEW), SELDOM)]
}

/// Packets of each source that got through.
fn passed(observed: &Observed) -> HashMap<IpAddr, u64> {
    observed.sources().collect()
}

#[test]
fn no_packet_is_judged_by_a_half_applied_policy() {
    let lab = Lab::new(1);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("limiter.toml");
    fs::write(&file, "").expect("a temporary file");
    let options = DaemonOptions::with(&["--config", file.to_str().expect("UTF-8")]);
    let daemon = Daemon::start_with(&lab, options);
    // Of those in the file, every other one goes from the second set to the first.
    let sets = std::array::from_fn(|index| usize::from(Group::is_in_file(index)) * (index % 2));
    let mut changing = Changing { daemon: &daemon, made: 0, sets, file: &file };
    let from_the_start = ALL_THE_TIME.map(|(target, amount)| (target.to_owned(), amount));
    let groups = (0..GROUPS.len()).flat_map(|index| changing.limits(index));
    let limits: Vec<_> = from_the_start.into_iter().chain(groups).collect();
    changing.import(&limits);
    changing.reload();
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sending = Sender::new(&lab).start(streams());
    // Everyone has sent under each of the sets, and used up what there is for nothing.
    let pause = Duration::from_secs_f64(3.0 * f64::from(FEW) * NUMBER as f64 / SELDOM);
    for _ in 0..2 {
        std::thread::sleep(pause);
        changing.change_all();
    }
    std::thread::sleep(pause);
    let used_up = passed(&observer.read());
    let (start, before, mut round) = (Instant::now(), changing.made, 0);
    while changing.made - before < CHANGES {
        // Each group by itself, beginning with another one each time, and then all of them at once.
        for step in 0..GROUPS.len() {
            changing.change((step * 5 + round) % GROUPS.len());
            changing.reload();
        }
        changing.change_all();
        round += 1;
    }
    let (changes, seconds) = (changing.made - before, start.elapsed().as_secs_f64());
    let sent = sending.stop();
    let stats = daemon.assert_accounted(&lab);
    let after = observer.read();
    assert_eq!(stats.verdict("pass"), after.all, "what passes is what is behind XDP");
    let after = passed(&after);
    let offered: u64 = sent.iter().map(tests::Sent::packets).sum();
    let rate = offered as f64 / tests::Sent::together(&sent).seconds();
    let mut judged = 0;
    let mut wrong = Vec::new();
    for index in 0..NUMBER {
        let (group, how) =
            (Group::of(index), if Group::is_in_file(index) { "file" } else { "API" });
        let sources: Vec<_> = Group::sources(index).collect();
        for (at, source) in sources.iter().enumerate() {
            let count = |passed: &HashMap<IpAddr, u64>| passed.get(source).copied().unwrap_or(0);
            let (stream, place, turn) = if at < usize::from(OFTEN) {
                (&sent[0], index * usize::from(OFTEN) + at, usize::from(OFTEN) * NUMBER)
            } else {
                let place = index * usize::from(FEW) + at - usize::from(OFTEN);
                (&sent[1], place, usize::from(FEW) * NUMBER)
            };
            let sent = (stream.times.len() + turn - 1 - place) / turn;
            judged += sent as u64;
            let expected = match group.expected {
                All => sent as u64,
                Nothing => count(&used_up),
            };
            let difference = count(&after).abs_diff(expected);
            if difference > 0 {
                wrong.push(((group.what, how), *source, difference));
            }
        }
    }
    println!(
        "{offered} packets at {rate:.0} a second, {changes} changes in {seconds:.1} s, {:.0} a second, {} \
         packets judged wrongly",
        changes as f64 / seconds,
        wrong.iter().map(|(_, _, packets)| packets).sum::<u64>(),
    );
    let mut groups: HashMap<(&str, &str), (usize, u64)> = HashMap::new();
    for (what, _, packets) in &wrong {
        let group = groups.entry(*what).or_default();
        *group = (group.0 + 1, group.1 + packets);
    }
    assert!(wrong.is_empty(), "sources and packets by group: {groups:#?}, such as {:?}", wrong[0]);
    assert_eq!(judged, offered, "every packet is one of a group's");
    // Offered is more than the double; a busy machine may not get it all off.
    assert!(rate > 50_000.0, "{rate:.0} packets a second are too few to show anything");
}
