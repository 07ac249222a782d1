//! Both error sides of the gate, under a sketch that tells sources apart and under one that does not:
//! packets of conforming sources that are dropped, and what others get beyond their limit.

use std::{net::Ipv4Addr, time::Instant};

use tests::{
    Daemon, DaemonOptions, Lab, Program, frame,
    model::traffic::Random,
    program::{now_ns, stay_on_cpu},
};

/// How long traffic runs at least, and at most: on a busy machine it takes longer until floods are beyond their limits.
const SECONDS: std::ops::RangeInclusive<f64> = 3.0..=30.0;
/// Sources of each behaviour under each limit.
const SOURCES: u64 = 10;
/// Limits: packets per second and burst. Sources of limit i are in 10.i.0.0/16.
const LIMITS: [(u64, u64); 5] = [(400, 1000), (500, 64), (200, 200), (100, 16), (20, 300)];
const SECOND: f64 = 1e9;

/// What a source does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    /// It sends whenever its limit lets it, and never else.
    Conforming,
    /// It sends all the time.
    Flood,
    /// It sends more than its gate at once, waits, and again.
    Pulses,
}

/// A source and what became of its packets.
struct Source {
    behaviour: Behaviour,
    limit: (u64, u64),
    frame: Vec<u8>,
    /// What it may send at present by its own reckoning, and since when.
    tokens: f64,
    since: f64,
    /// Of its pulse.
    left: u64,
    next_pulse: f64,
    sent: u64,
    dropped: u64,
    /// A bucket that is filled by what is admitted and emptied at the limit's rate.
    level: f64,
    admitted_at: f64,
    most: f64,
}

impl Source {
    fn new(behaviour: Behaviour, limit: (u64, u64), address: Ipv4Addr) -> Self {
        Self {
            behaviour,
            limit,
            frame: frame::udp(address.into(), 60),
            tokens: limit.1 as f64,
            since: now_ns() as f64,
            left: 0,
            next_pulse: 0.0,
            sent: 0,
            dropped: 0,
            level: 0.0,
            admitted_at: 0.0,
            most: 0.0,
        }
    }

    fn wants_to_send(&mut self, now: f64, random: &mut Random) -> bool {
        let (rate, burst) = (self.limit.0 as f64, self.limit.1 as f64);
        match self.behaviour {
            Behaviour::Flood => true,
            Behaviour::Conforming => {
                let earned = (now - self.since).max(0.0) / SECOND * rate;
                self.tokens = (self.tokens + earned).min(burst);
                self.since = self.since.max(now);
                self.tokens >= 1.0
            }
            Behaviour::Pulses => {
                if self.left == 0 && now >= self.next_pulse {
                    self.left = 1 + random.below(40);
                    self.next_pulse = now + random.below(300_000_000) as f64;
                }
                self.left > 0
            }
        }
    }

    fn send(&mut self, program: &Program) {
        let before = now_ns() as f64;
        let passed = program.passes(&self.frame);
        let after = now_ns() as f64;
        self.sent += 1;
        self.dropped += u64::from(!passed);
        self.left = self.left.saturating_sub(1);
        // Earns from the last moment at which the program can have charged it.
        self.tokens -= 1.0;
        self.tokens = self.tokens.max(0.0);
        self.since = after;
        if passed {
            // The longest that can lie between: in favour of the program by some µs.
            let drained = (after - self.admitted_at) / SECOND * self.limit.0 as f64;
            self.level = (self.level - drained).max(0.0) + 1.0;
            self.admitted_at = before;
            self.most = self.most.max(self.level);
        }
    }

    /// Whether it has sent, in so many seconds, what no limit lets pass.
    fn floods(&self, seconds: f64) -> bool {
        let (rate, burst) = (self.limit.0 as f64, self.limit.1 as f64);
        self.sent as f64 > burst * 1.25 + rate * seconds
    }

    /// Most packets beyond burst + rate · T in any interval T.
    fn excess(&self) -> f64 {
        (self.most - self.limit.1 as f64).max(0.0)
    }
}

/// Lets every behaviour under every limit meet packets of random sources, and checks both sides.
fn measure(what: &str, arguments: &[&str], saturated: bool) {
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(arguments));
    let cli = daemon.cli();
    // Random sources are no burden on the table: their buckets are full again after a microsecond.
    cli.limit("1000kpps", Some("2000"), None);
    let mut sources = Vec::new();
    for (index, (rate, burst)) in (0u8..).zip(LIMITS) {
        let prefix = format!("10.{index}.0.0/16");
        let limit = cli.limit(&format!("{rate}pps"), Some(&burst.to_string()), Some(&prefix));
        println!("{what}: {rate} pps, burst {burst}: gate {}", limit.gate);
        for (row, behaviour) in
            (0u8..).zip([Behaviour::Conforming, Behaviour::Flood, Behaviour::Pulses])
        {
            sources.extend((0..SOURCES).map(|host| {
                let address = Ipv4Addr::new(10, index, row, host as u8 + 1);
                Source::new(behaviour, (rate, burst), address)
            }));
        }
    }
    stay_on_cpu();
    let program = Program::new(&daemon);
    let mut random = Random(7);
    let mut noise = frame::udp(Ipv4Addr::new(198, 18, 0, 1).into(), 60);
    let (start, mut spoofed) = (Instant::now(), 0u64);
    loop {
        let seconds = start.elapsed().as_secs_f64();
        let mut floods = sources.iter().filter(|source| source.behaviour == Behaviour::Flood);
        let enough = seconds >= *SECONDS.start() && floods.all(|source| source.floods(seconds));
        if enough || seconds >= *SECONDS.end() {
            break;
        }
        let at = random.below(sources.len() as u64) as usize;
        let source = &mut sources[at];
        let turn = match source.behaviour {
            // A flood stays one where the machine does something else most of the time.
            Behaviour::Conforming | Behaviour::Flood => 8,
            Behaviour::Pulses => 1,
        };
        for _ in 0..turn {
            if source.wants_to_send(now_ns() as f64, &mut random) {
                source.send(&program);
            }
        }
        for _ in 0..3 {
            let spoof = 0xc612_0000 | random.below(1 << 17) as u32;
            noise[26..30].copy_from_slice(&spoof.to_be_bytes());
            let _judged = program.passes(&noise);
            spoofed += 1;
        }
    }
    let status = cli.run(&["status"]).json;
    println!("{what}: {spoofed} packets of random sources, noise {}", status["sketch"]["noise"]);
    let internal = cli.ok(&["stats"])["internal"].clone();
    let noisy = status["sketch"]["noise"].as_f64().unwrap_or_default();
    println!(
        "{what}: {} buckets given, {} of them in the place of others",
        internal["promotions"], internal["evictions"]
    );
    assert_eq!(noisy >= 16.0, saturated, "{what}: the noise is not as meant: {status:#}");
    for behaviour in [Behaviour::Conforming, Behaviour::Flood, Behaviour::Pulses] {
        for limit in LIMITS {
            let group = || sources.iter().filter(|s| s.behaviour == behaviour && s.limit == limit);
            let sent: u64 = group().map(|source| source.sent).sum();
            let dropped: u64 = group().map(|source| source.dropped).sum();
            let excess = group().map(Source::excess).fold(0.0, f64::max);
            let allowed = (limit.1 / 8).max(2);
            println!(
                "{what}: {behaviour:?} under {} pps, burst {}: {sent} sent, {dropped} dropped, at \
                 most {excess:.2} beyond the limit ({allowed} allowed)",
                limit.0, limit.1
            );
            assert!(sent >= SOURCES * limit.1.min(40), "{what}: {behaviour:?} sent too little");
            if behaviour == Behaviour::Conforming {
                assert_eq!(dropped, 0, "{what}: conforming packets of {limit:?} dropped");
            } else if behaviour == Behaviour::Flood {
                assert!(dropped > 0, "{what}: a flood of {limit:?} met no limit");
            }
            // Time is known to some µs.
            assert!(excess <= allowed as f64 + 0.1, "{what}: {behaviour:?} of {limit:?}");
        }
    }
    assert_eq!(internal["set_full"], 0, "{what}: {internal}");
}

#[test]
fn an_unsaturated_sketch_neither_drops_nor_admits_too_much() {
    measure("unsaturated", &[], false);
}

#[test]
fn a_saturated_sketch_neither_drops_nor_admits_too_much() {
    // So few buckets that random sources take them from one another all the time, or soon all would
    // have one and none would be in the sketch.
    let arguments = ["--sketch-epsilon", "0.04", "--max-sources", "4096"];
    measure("saturated", &arguments, true);
}
