//! Wires with a contender at the end of each, all there at once, so that rounds can alternate
//! between them.

use std::{
    io::{Seek as _, Write as _},
    net::Ipv4Addr,
    path::Path,
};

use aya::{
    Ebpf,
    programs::{ProgramFd, loaded_programs},
};
use tests::{
    Daemon, DaemonOptions, Lab,
    cli::{answer, limiter_binary},
    process,
};

use crate::{
    cell::{Cell, Entry, Limit},
    contender::Contender,
    firewall, forced,
    object::{self, CAPACITY},
};

/// A contender at the end of a wire.
struct Stand {
    contender: Contender,
    entry: Entry,
    lab: Lab,
    program: Program,
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
    /// Builds all wires.
    ///
    /// # Panics
    /// If one cannot be built.
    pub(crate) fn new(denied: u32, anywhere: bool) -> Self {
        let mut stands = Self { stands: Vec::new() };
        let key = tempfile::tempdir().expect("a temporary folder");
        for contender in Contender::ALL {
            let lab = Lab::new(1);
            let program = match contender {
                Contender::XdpDrop => own(&lab, "drop_all", 1),
                Contender::LruHash => own(&lab, "lru_hash", CAPACITY),
                // A veth device takes frames from XDP only while its peer runs XDP. Passing them is
                // cheaper than the alternative, generic receive offload.
                Contender::Nft | Contender::Hashlimit => own(&lab, "pass_all", 1),
                Contender::LimiterDenying if denied == 0 => continue,
                Contender::Limiter | Contender::LimiterDenying | Contender::LimiterCluster => {
                    let daemon = match contender {
                        Contender::LimiterCluster => founder(&lab, key.path()),
                        _ => Daemon::start(&lab),
                    };
                    if contender == Contender::LimiterDenying {
                        deny(&daemon, denied, anywhere);
                    }
                    Program::Daemon(daemon)
                }
            };
            if contender.is_xdp() {
                firewall::discard(&lab);
            }
            stands.stands.push(Stand { contender, entry: Entry::Attached, lab, program });
        }
        // After the daemons, on whose maps these programs work.
        let ours = Contender::ALL.into_iter().filter(|contender| contender.is_ours());
        for contender in ours.chain([Contender::LruHash]) {
            let lab = Lab::new(1);
            let program = match stands.daemon(contender) {
                Some(daemon) => Program::Own(object::attach(forced::load(daemon), "limiter", &lab)),
                None if contender.is_ours() => continue,
                None => own(&lab, "lru_hash_forced", CAPACITY),
            };
            stands.stands.push(Stand { contender, entry: Entry::Forced, lab, program });
        }
        stands
    }

    fn daemon(&self, contender: Contender) -> Option<&Daemon> {
        self.stands.iter().find_map(|stand| match &stand.program {
            Program::Daemon(daemon) if stand.contender == contender => Some(daemon),
            _ => None,
        })
    }

    /// Sets the limit of every contender. The firewalls start with empty tables.
    ///
    /// # Panics
    /// If one refuses.
    pub(crate) fn set_limit(&mut self, limit: Limit) {
        for stand in &mut self.stands {
            match (stand.contender, &mut stand.program) {
                (Contender::LruHash, Program::Own(object)) => object::set_limit(object, limit),
                (_, Program::Daemon(daemon)) => {
                    let (rate, burst) = (format!("{}pps", limit.rate), limit.burst.to_string());
                    let shared = stand.contender == Contender::LimiterCluster;
                    let scope = if shared { "cluster" } else { "local" };
                    let set = ["limit", "set", &rate, "--burst", &burst, "--scope", scope];
                    daemon.cli().ok(&set);
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
        let fits = |it: &&Stand| it.contender == cell.contender && it.entry == cell.entry;
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

    /// The program of an XDP contender as it is attached; `None` for the others.
    ///
    /// # Panics
    /// If the kernel does not give it.
    pub(crate) fn program(&mut self, contender: Contender) -> Option<ProgramFd> {
        let attached = self.stands.iter_mut().find(|stand| {
            stand.contender == contender && stand.entry == Entry::Attached && contender.is_xdp()
        })?;
        Some(match &mut attached.program {
            Program::Daemon(daemon) => program_of(daemon),
            Program::Own(object) => {
                let name = if contender == Contender::LruHash { "lru_hash" } else { "drop_all" };
                object::handle(object, name)
            }
        })
    }
}

fn own(lab: &Lab, name: &'static str, sources: u32) -> Program {
    Program::Own(object::attach(object::load(sources), name, lab))
}

/// The one host of a cluster.
fn founder(lab: &Lab, folder: &Path) -> Daemon {
    let key = folder.join("cluster.key").display().to_string();
    process::run(tools::own(limiter_binary()).args(["cluster", "key", "generate", &key]));
    // A new network namespace has its loopback device down.
    process::run(lab.receiver.ip(&["link", "set", "lo", "up"]));
    let listen = ["--cluster-name", "bench", "--cluster-listen", "127.0.0.1:7700"];
    let arguments = [&listen[..], &["--cluster-key-file", &key]].concat();
    let daemon = Daemon::start_with(lab, DaemonOptions::with(&arguments));
    // Without a cluster it has no share, and each random packet would get a bucket: another thing to measure.
    daemon.cli().ok(&["cluster", "init"]);
    daemon
}

/// The program that the daemon has attached.
fn program_of(daemon: &Daemon) -> ProgramFd {
    let status = daemon.cli().run(&["status"]).json;
    let id = &status["interfaces"][0]["program_id"];
    let id = id.as_u64().unwrap_or_else(|| panic!("no program in {status}"));
    let info = loaded_programs().filter_map(Result::ok).find(|info| u64::from(info.id()) == id);
    info.and_then(|info| info.fd().ok()).expect("the daemon's program is loaded")
}

/// Puts sources on the deny list that take no part: in a row, or anywhere.
fn deny(daemon: &Daemon, count: u32, anywhere: bool) {
    let mut list = tempfile::tempfile().expect("a temporary file");
    // What takes part is in 10.0.0.0/8, of which the former has nothing and the latter one in 4000.
    let source = |number: u32| match anywhere {
        // Times an odd number, each comes once.
        true => number.wrapping_mul(0x9e37_79b1),
        false => 0x8000_0000 + number,
    };
    for source in (0..count).map(source).map(Ipv4Addr::from_bits) {
        writeln!(list, "{source}").expect("room for a list of addresses");
    }
    list.rewind().expect("a file has a beginning");
    let mut command = tools::own(limiter_binary());
    command.arg("--socket").arg(daemon.socket()).args(["--json", "deny", "add", "-"]);
    let added = answer(command.stdin(list));
    assert_eq!(added.code, 0, "{added:?}");
}
