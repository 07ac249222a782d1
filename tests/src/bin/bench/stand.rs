//! Wires with a contender at the end of each, all there at once, so that rounds can alternate
//! between them.

use std::{
    io::{BufWriter, Seek as _, Write as _},
    net::Ipv4Addr,
};

use aya::{Ebpf, programs::ProgramFd};
use tempfile::TempDir;
use tests::{
    Cli, Daemon, Lab,
    cli::{answer, limiter_binary},
    hosts, process, program,
};

use crate::{
    arguments::Arguments,
    cell::{Cell, Entry, Family, Limit, Pattern},
    contender::Contender,
    firewall, forced,
    layout::FLOOR_LINES,
    object::{self, CAPACITY},
};

/// A contender at the end of a wire.
struct Stand {
    kind: Kind,
    entry: Entry,
    lab: Lab,
    program: Program,
    /// What a limit is set for beside that of each source, as options of `limit set`.
    target: Option<&'static [&'static str]>,
}

/// A contender, and of the limiter, whether prefixes are on its deny list.
// A daemon of its own: to fill and empty a list in each round would take longer than all the rest.
#[derive(Clone, Copy, Eq, PartialEq)]
struct Kind {
    contender: Contender,
    listed: bool,
}

impl Kind {
    fn of(cell: &Cell) -> Self {
        let listed = cell.contender.is_ours() && cell.pattern == Pattern::Listed;
        Self { contender: cell.contender, listed }
    }
}

/// What is attached there.
enum Program {
    Own(Ebpf),
    Daemon(Daemon),
}

/// All of them.
pub(crate) struct Stands {
    stands: Vec<Stand>,
}

impl Stands {
    /// Builds the wires of all `cells`.
    ///
    /// # Panics
    /// If one cannot be built.
    pub(crate) fn new(arguments: &Arguments, cells: &[Cell]) -> Self {
        let mut kinds: Vec<Kind> = Vec::new();
        for kind in cells.iter().map(Kind::of) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let mut stands = Self { stands: Vec::new() };
        let key = tempfile::tempdir().expect("a temporary folder");
        for kind in &kinds {
            let lab = lab();
            let program = match kind.contender {
                Contender::XdpDrop => own(&lab, "drop_all", "BUCKETS", 1),
                Contender::Floor => own(&lab, "floor", "LINES", FLOOR_LINES),
                Contender::LruHash => own(&lab, "lru_hash", "BUCKETS", CAPACITY),
                // A veth device takes frames from XDP only while its peer runs XDP. Passing them is
                // cheaper than the alternative, generic receive offload.
                Contender::Nft | Contender::Hashlimit => own(&lab, "pass_all", "BUCKETS", 1),
                Contender::LimiterCluster => Program::Daemon(founder(&lab, &key)),
                Contender::Limiter | Contender::LimiterDenying => {
                    let daemon = Daemon::start(&lab);
                    if kind.contender == Contender::LimiterDenying {
                        deny(&daemon, others(arguments.denied, arguments.denied_anywhere));
                    }
                    if kind.listed {
                        deny(&daemon, prefixes(arguments.listed, arguments.listed_length));
                    }
                    Program::Daemon(daemon)
                }
            };
            if kind.contender.is_xdp() {
                firewall::discard(&lab);
            }
            stands.add(*kind, Entry::Attached, lab, program);
        }
        // After the daemons, on whose maps these programs work.
        let is_forced = |cell: &&Cell| cell.entry == Entry::Forced;
        let forced: Vec<Kind> = cells.iter().filter(is_forced).map(Kind::of).collect();
        for kind in kinds.into_iter().filter(|kind| forced.contains(kind)) {
            let lab = lab();
            let program = match stands.daemon(kind) {
                Some(daemon) => Program::Own(object::attach(forced::load(daemon), "limiter", &lab)),
                None => own(&lab, "lru_hash_forced", "BUCKETS", CAPACITY),
            };
            stands.add(kind, Entry::Forced, lab, program);
        }
        stands
    }

    fn add(&mut self, kind: Kind, entry: Entry, lab: Lab, program: Program) {
        self.stands.push(Stand { kind, entry, lab, program, target: None });
    }

    fn daemon(&self, kind: Kind) -> Option<&Daemon> {
        self.stands.iter().find_map(|stand| match &stand.program {
            Program::Daemon(daemon) if stand.kind == kind => Some(daemon),
            _ => None,
        })
    }

    /// Sets the limits of every contender. The firewalls start with empty tables.
    ///
    /// # Panics
    /// If one refuses.
    pub(crate) fn set_limits(&mut self, pattern: Pattern) {
        let limit = pattern.limit();
        let takes = |it: &&mut Stand| pattern.takes(it.kind.contender, Family::Ipv4);
        for stand in self.stands.iter_mut().filter(takes) {
            match (stand.kind.contender, &mut stand.program) {
                (Contender::LruHash, Program::Own(object)) => object::set_limit(object, limit),
                (contender, Program::Daemon(daemon)) => {
                    let cli = daemon.cli();
                    if let Some(target) = stand.target {
                        cli.ok(&[&["limit", "unset"], target].concat());
                    }
                    let shared = contender == Contender::LimiterCluster;
                    let scope = ["--scope", if shared { "cluster" } else { "local" }];
                    match pattern.windows() {
                        Some(windows) => {
                            cli.ok(&[&["limit", "set"], windows.as_slice()].concat());
                        }
                        None => set(&cli, pattern.limit_of_each(), &scope),
                    }
                    stand.target = pattern.target();
                    if let Some(target) = stand.target {
                        set(&cli, limit, target);
                    }
                }
                (Contender::Nft, _) => firewall::nft(&stand.lab, limit),
                (Contender::Hashlimit, _) => firewall::hashlimit(&stand.lab, limit),
                _ => {}
            }
        }
    }

    /// The wire of a cell.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn lab(&self, cell: &Cell) -> &Lab {
        let fits = |it: &&Stand| it.kind == Kind::of(cell) && it.entry == cell.entry;
        &self.stands.iter().find(fits).expect("a wire").lab
    }

    /// Packets that a cell's contender has let through so far; `None` where its verdict is forced.
    ///
    /// # Panics
    /// If the firewall does not say.
    pub(crate) fn admitted(&self, cell: &Cell) -> Option<u64> {
        let count = match cell.contender {
            Contender::Hashlimit => firewall::admitted_by_hashlimit,
            _ => firewall::admitted_by_nft,
        };
        (cell.entry == Entry::Attached).then(|| count(self.lab(cell)))
    }

    /// Packets by verdict and reason that a cell's daemon has counted so far, always in the same order; none
    /// where there is no daemon.
    ///
    /// # Panics
    /// If the daemon does not say.
    pub(crate) fn reasons(&self, cell: &Cell) -> Vec<(String, u64)> {
        let Some(daemon) = self.daemon(Kind::of(cell)) else { return Vec::new() };
        let counters = daemon.cli().stats().counters.into_iter();
        counters.map(|it| (format!("{}/{}", it.verdict, it.reason), it.packets)).collect()
    }

    /// The program of an XDP contender as it is attached; `None` for the others.
    ///
    /// # Panics
    /// If the kernel does not give it.
    pub(crate) fn program(&mut self, cell: &Cell) -> Option<ProgramFd> {
        let attached = self.stands.iter_mut().find(|stand| {
            stand.kind == Kind::of(cell)
                && stand.entry == Entry::Attached
                && cell.contender.is_xdp()
        })?;
        Some(match &mut attached.program {
            Program::Daemon(daemon) => program_of(daemon),
            Program::Own(object) => {
                let name = match cell.contender {
                    Contender::LruHash => "lru_hash",
                    Contender::Floor => "floor",
                    _ => "drop_all",
                };
                object::handle(object, name)
            }
        })
    }
}

/// A wire with a queue for each CPU that may send.
fn lab() -> Lab {
    let queues = Pattern::ALL.map(Pattern::cpus).into_iter().max();
    Lab::new(queues.unwrap_or(1) as u32)
}

fn own(lab: &Lab, name: &'static str, map: &str, entries: u32) -> Program {
    Program::Own(object::attach(object::load(map, entries), name, lab))
}

fn set(cli: &Cli, Limit { rate, burst }: Limit, options: &[&str]) {
    let (rate, burst) = (format!("{rate}pps"), burst.to_string());
    cli.ok(&[&["limit", "set", &rate, "--burst", &burst], options].concat());
}

/// The one host of a cluster.
fn founder(lab: &Lab, key: &TempDir) -> Daemon {
    // A new network namespace has its loopback device down.
    process::run(lab.receiver.ip(&["link", "set", "lo", "up"]));
    let daemon = hosts::alone(lab, Ipv4Addr::LOCALHOST.into(), key, &["--cluster-name", "bench"]);
    // Without a cluster it has no share, and each random packet would get a bucket: another thing to measure.
    daemon.cli().ok(&["cluster", "init"]);
    daemon
}

/// The program that the daemon has attached.
fn program_of(daemon: &Daemon) -> ProgramFd {
    program::info(daemon).fd().expect("the daemon's program can be opened")
}

/// Sources that take no part: in a row, or anywhere.
fn others(count: u32, anywhere: bool) -> impl Iterator<Item = String> {
    // What takes part is in 10.0.0.0/8, of which the former has nothing and the latter one in 4000.
    let source = move |number: u32| match anywhere {
        // Times an odd number, each comes once.
        true => number.wrapping_mul(0x9e37_79b1),
        false => 0x8000_0000 + number,
    };
    (0..count).map(source).map(|source| Ipv4Addr::from_bits(source).to_string())
}

/// Prefixes of `length` bits, all over what takes part: a million of 30 bits are a quarter of it.
fn prefixes(count: u32, length: u32) -> impl Iterator<Item = String> {
    // Times an odd number, each comes once.
    let prefix = move |number: u32| {
        10 << 24 | (number.wrapping_mul(0x9e37_79b1) << (32 - length) & 0xff_ffff)
    };
    (0..count).map(prefix).map(move |prefix| format!("{}/{length}", Ipv4Addr::from_bits(prefix)))
}

/// Puts them on the deny list.
fn deny(daemon: &Daemon, sources: impl Iterator<Item = String>) {
    let mut list = BufWriter::new(tempfile::tempfile().expect("a temporary file"));
    for source in sources {
        writeln!(list, "{source}").expect("room for a list of addresses");
    }
    list.rewind().expect("a file has a beginning");
    let list = list.into_inner().expect("room for a list of addresses");
    let mut command = tools::own(limiter_binary());
    command.arg("--socket").arg(daemon.socket()).args(["--json", "deny", "add", "-"]);
    let added = answer(command.stdin(list));
    assert_eq!(added.code, 0, "{added:?}");
}
