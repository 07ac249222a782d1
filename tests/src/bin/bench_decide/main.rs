//! `limiter-serve` beside others, over the same faces, with the same clients, in turn; and decisions alone.

#[path = "../bench_sketch/arguments.rs"]
mod arguments;
mod client;
mod constant;
mod contender;
mod engine;
mod face;
mod grpc;
#[path = "../bench_sketch/table.rs"]
mod table;

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use arguments::Arguments;
use client::Sample;
use contender::{CONSTANT_PORTS, Contender, Servers};
use engine::Decision;
use face::{Face, SCRIPT};
use limiter_common::abi::Policy;
use model::{Limit, Target, compile::compile};
use serde::Serialize;
use tests::machine::{Machine, median};

/// Clients at once.
const CONNECTIONS: u64 = 50;
/// Commands that a client sends at once, where they are pipelined.
const DEPTH: usize = 16;
/// Calls a second where they are paced.
const PACE: u32 = 10_000;
/// How long a measurement takes.
const SPAN: Duration = Duration::from_secs(2);
/// Rounds; each measures every contender once.
const ROUNDS: usize = 5;

/// The median of a contender's rounds.
#[derive(Debug, Serialize)]
struct Row {
    face: Face,
    contender: Contender,
    #[serde(flatten)]
    sample: Sample,
}

/// All figures of a run.
#[derive(Debug, Serialize)]
struct Figures {
    machine: Machine,
    connections: u64,
    depth: usize,
    results: Vec<Row>,
    decisions: Vec<Decision>,
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--constant") {
        return outcome(serve_constant());
    }
    let arguments = match Arguments::of_this_process("bench-decide") {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match measure() {
        Ok(figures) => match figures.print(&mut io::stdout().lock()) {
            Ok(()) => arguments.write(&figures),
            Err(error) => outcome(Err(error)),
        },
        Err(error) => outcome(Err(error)),
    }
}

fn outcome(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the benchmark has failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_constant() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(constant::serve(CONSTANT_PORTS))
}

fn measure() -> io::Result<Figures> {
    let machine = Machine::read();
    let policy = policy();
    let decisions = [1_000, 1_000_000].map(|keys| {
        let decision = engine::measure(keys, policy);
        eprintln!("{decision:?}");
        decision
    });
    let _servers = Servers::start()?;
    let script = load_script()?;
    // One thread of clients: the servers have the rest of the machine.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut results = Vec::new();
    for face in Face::ALL {
        let contenders = face.contenders();
        let mut rounds = vec![Vec::new(); contenders.len()];
        for round in 0..=ROUNDS {
            for (&contender, samples) in contenders.iter().zip(&mut rounds) {
                let sample = runtime.block_on(run(face, contender, &script))?;
                // The first one is to warm up: keys come into being.
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        let rows = contenders.iter().zip(rounds).map(|(&contender, samples)| {
            let of =
                |field: fn(&Sample) -> f64| median(&samples.iter().map(field).collect::<Vec<_>>());
            let sample = Sample {
                per_second: of(|sample| sample.per_second),
                p50_us: of(|sample| sample.p50_us),
                p99_us: of(|sample| sample.p99_us),
            };
            eprintln!("{face:?}, {contender:?}: {sample:?}");
            Row { face, contender, sample }
        });
        results.extend(rows);
    }
    Ok(Figures {
        machine,
        connections: CONNECTIONS,
        depth: DEPTH,
        results,
        decisions: decisions.into(),
    })
}

async fn run(face: Face, contender: Contender, script: &str) -> io::Result<Sample> {
    let (port, depth) = match face {
        Face::Resp => (contender.resp(), 1),
        Face::RespPipelined => (contender.resp(), DEPTH),
        Face::Http => (contender.http(), 1),
        Face::Grpc | Face::GrpcPaced => {
            let is_throttlecrab = contender == Contender::Throttlecrab;
            let client = grpc::Client::connect(contender.grpc(), is_throttlecrab).await?;
            let call = move |key| client.clone().ask(key);
            return match face {
                Face::GrpcPaced => client::open_loop(call, PACE, SPAN).await,
                _ => client::calls(call, CONNECTIONS, SPAN).await,
            };
        }
    };
    let exchange = Arc::new(face::exchange(face, contender, script));
    client::closed_loop(port, exchange, CONNECTIONS, depth, SPAN).await
}

/// Brings the script into Redis: the name that it has there.
fn load_script() -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", Contender::Redis.resp()))?;
    let length = SCRIPT.len();
    write!(stream, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${length}\r\n{SCRIPT}\r\n")?;
    // `$40`, and a SHA-1 in hexadecimal.
    let mut answer = [0; 47];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[5..45]).into_owned())
}

/// About as much as the rule of the benchmark gives a key.
fn policy() -> Policy {
    let rate = "17pps".parse().expect("a rate");
    let limit = Limit::new(Target::DEFAULT, rate, Some(100)).expect("there is such a limit");
    compile(&limit, 27, 1_514).expect("it can be compiled")
}

impl Figures {
    fn print(&self, to: &mut impl io::Write) -> io::Result<()> {
        self.machine.print(to)?;
        let header = ["face", "contender", "a second", "p50 µs", "p99 µs"];
        let rows = self.results.iter().map(|row| {
            let figures = [row.sample.per_second, row.sample.p50_us, row.sample.p99_us];
            let [a_second, p50, p99] = figures.map(|figure| format!("{figure:.0}"));
            [format!("{:?}", row.face), format!("{:?}", row.contender), a_second, p50, p99]
        });
        table::print(to, header, 2, &rows.collect::<Vec<_>>())?;
        for decision in &self.decisions {
            writeln!(
                to,
                "{} keys: {:.0} ns a decision, {:.0} ns a packet in the kernel's engine, two threads {:.2} times one, \
                 {:.0} bytes a key",
                decision.keys,
                decision.decide_ns,
                decision.kernel_ns,
                decision.two_threads,
                decision.bytes_a_key,
            )?;
        }
        Ok(())
    }
}
