//! One limit on three hosts: the limiter beside HAProxy's peers, with the same load, the same faults and one judge.

#[path = "../bench_sketch/arguments.rs"]
mod arguments;
mod contender;
mod load;
#[path = "../bench_sketch/table.rs"]
mod table;

use std::{
    io,
    process::ExitCode,
    thread::sleep,
    time::{Duration, Instant},
};

use arguments::Arguments;
use contender::Contender;
use load::{Clients, Server};
use serde::Serialize;
use tests::{machine::Machine, timeline::busiest};

const HOSTS: usize = 3;
/// Connections a second that the fleet may accept of one source, and as many more at once.
const RATE: u64 = 200;
const BURST: u64 = 20;
/// What a source tries at a host, a second.
const LOAD: u64 = 600;
/// How long a run takes, s.
const SECONDS: u64 = 15;
/// From when on it is judged how much of the limit is used.
const WARM: Duration = Duration::from_secs(3);
/// When the network is cut into two, and when that is over, s.
const CUT: std::ops::Range<u64> = 5..10;

/// What happens in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Fault {
    /// Clients come to all hosts.
    None,
    /// They come to one host at a time, each second to the next one.
    Moving,
    /// One host is cut off from the two others for a third of the time.
    Partition,
}

/// A run.
#[derive(Debug, Serialize)]
struct Row {
    contender: Contender,
    fault: Fault,
    /// By what part of rate + burst the worst second is more.
    worst_overage: f64,
    /// What part of the rate is accepted, all hosts together.
    utilisation: f64,
    /// What a host sends to the others.
    bytes_per_second: f64,
}

/// All figures of a run.
#[derive(Debug, Serialize)]
struct Figures {
    machine: Machine,
    rate: u64,
    burst: u64,
    load: u64,
    results: Vec<Row>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::of_this_process("bench-fleet") {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if !tests::is_root() {
        eprintln!("this benchmark needs root: run `cargo xtask bench fleet` as root or with sudo");
        return ExitCode::from(4);
    }
    let machine = Machine::read();
    let mut results = Vec::new();
    for fault in [Fault::None, Fault::Moving, Fault::Partition] {
        for contender in [Contender::Limiter, Contender::Haproxy] {
            eprintln!("{contender:?}, {fault:?}");
            results.push(measure(contender, fault));
        }
    }
    let figures = Figures { machine, rate: RATE, burst: BURST, load: LOAD, results };
    if let Err(error) = figures.print(&mut io::stdout().lock()) {
        eprintln!("cannot print the result: {error}");
        return ExitCode::FAILURE;
    }
    arguments.write(&figures)
}

fn measure(contender: Contender, fault: Fault) -> Row {
    let running = contender.start();
    let fleet = running.fleet();
    let (begun, (address, port)) = (Instant::now(), contender.server());
    let server = |host| Server::start(host, address, port, begun);
    let servers: Vec<Server> = fleet.hosts.iter().map(server).collect();
    let clients: Vec<Clients> = fleet.hosts.iter().map(Clients::start).collect();
    let before = fleet.sent();
    for second in 0..SECONDS {
        for (host, clients) in clients.iter().enumerate() {
            let here = fault != Fault::Moving || second as usize % HOSTS == host;
            clients.come(if here { LOAD } else { 0 });
        }
        if fault == Fault::Partition && second == CUT.start {
            fleet.split(&[&[0, 1], &[2]]);
        } else if fault == Fault::Partition && second == CUT.end {
            fleet.split(&[&[0, 1, 2]]);
        }
        sleep((begun + Duration::from_secs(second + 1)).saturating_duration_since(Instant::now()));
    }
    let bytes = fleet.sent() - before;
    clients.into_iter().for_each(Clients::stop);
    let times: Vec<Vec<Duration>> = servers.into_iter().map(Server::stop).collect();
    running.stop();
    let end = Duration::from_secs(SECONDS);
    let judged = times.iter().flatten().filter(|time| (WARM..end).contains(time)).count();
    let most = busiest(&times, Duration::from_secs(1)) as f64;
    Row {
        contender,
        fault,
        worst_overage: (most / (RATE + BURST) as f64 - 1.0).max(0.0),
        utilisation: judged as f64 / (RATE as f64 * (end - WARM).as_secs_f64()),
        bytes_per_second: bytes as f64 / (HOSTS as u64 * SECONDS) as f64,
    }
}

impl Figures {
    fn print(&self, out: &mut impl io::Write) -> io::Result<()> {
        self.machine.print(out)?;
        writeln!(
            out,
            "\n{} connections a second and {} at once, of one source, on {HOSTS} hosts; {} a second come to each",
            self.rate, self.burst, self.load
        )?;
        let row = |row: &Row| {
            [
                format!("{:?}", row.contender).to_lowercase(),
                format!("{:?}", row.fault).to_lowercase(),
                format!("{:.1} %", 100.0 * row.worst_overage),
                format!("{:.3}", row.utilisation),
                format!("{:.0}", row.bytes_per_second),
            ]
        };
        let rows: Vec<_> = self.results.iter().map(row).collect();
        let header = ["contender", "fault", "worst second over", "utilisation", "bytes/s a host"];
        table::print(out, header, 2, &rows)?;
        out.flush()
    }
}
