//! What is tried: a flood of five times a limit, from all CPUs, beside senders that keep to theirs.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread,
    time::Duration,
};

use clap::ValueEnum;
use tests::{
    Daemon, Lab, Observer, Sender, Sent, Stream, frame, program, reports::Limit, sender::Sending,
    v4,
};

/// Packets a second, and packets: little enough for a machine that is emulated.
const RATE: u64 = 400;
// Five seconds' worth: a busy host stops the guest for a while, and a full bucket would lose that time. It once
// stopped one of 16 CPUs for three.
const BURST: u64 = 5 * RATE;
/// Bytes of a frame.
const FRAME: usize = 500;
/// How much more than its limit a flood offers.
const EXCESS: f64 = 5.0;
/// How long it goes on.
const FLOOD: Duration = Duration::from_secs(4);
/// Packets in a window of a minute: what a flood offers in less than a second.
const WINDOW: u64 = 4 * RATE;
/// How long a flood takes with all that goes with it, and how much more for each CPU: with 16 it once took longer.
const SCENARIO: Duration = Duration::from_secs(8);
const START_OF_CPU: Duration = Duration::from_secs(1);
/// How long frames may be on their way.
const ARRIVAL: Duration = Duration::from_millis(300);
/// Senders beside the flood, each at half its own limit.
const CONFORMING: u8 = 4;
/// Sources that share an aggregate, of 203.0.113.0/24.
const SHARING: u8 = 32;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Scenario {
    /// A limit that each source has by itself
    Source,
    /// One limit that many sources share
    Aggregate,
    /// A limit of bytes
    Bytes,
    /// A limit of a source, while the daemon ends and starts again
    Restart,
    /// A limit of a source in fixed windows
    FixedWindow,
    /// A limit of a source in sliding windows
    SlidingWindow,
}

/// Amounts in the limit's unit.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) admitted: u64,
    pub(crate) expected: f64,
    pub(crate) offered: u64,
    /// By the guest's clock, from the first frame to the last.
    pub(crate) seconds: f64,
    /// Packets.
    pub(crate) conforming_dropped: u64,
}

impl Scenario {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Aggregate => "aggregate",
            Self::Bytes => "bytes",
            Self::Restart => "restart",
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
        }
    }

    /// The sources of the flood. Each scenario has its own, so that buckets are full at its start.
    fn sources(self) -> Vec<IpAddr> {
        match self {
            Self::Source => vec![v4(1)],
            Self::Bytes => vec![v4(2)],
            Self::Restart => vec![v4(3)],
            Self::FixedWindow => vec![v4(4)],
            Self::SlidingWindow => vec![v4(5)],
            Self::Aggregate => {
                (1..=SHARING).map(|host| Ipv4Addr::new(203, 0, 113, host).into()).collect()
            }
        }
    }

    fn conforming(self) -> impl Iterator<Item = IpAddr> {
        (0..CONFORMING).map(move |number| v4(100 + 10 * self as u8 + number))
    }

    /// Sets the flood's limit, beside that of everybody; returns it.
    fn limit(self, daemon: &Daemon) -> Limit {
        let bytes = |packets: u64| packets * FRAME as u64;
        let (rate, burst) = (format!("{RATE}pps"), BURST.to_string());
        let own = daemon.cli().limit(&rate, Some(&burst), None);
        let set = |arguments: &[&str]| {
            let json = daemon.cli().ok(&[&["limit", "set"], arguments].concat());
            serde_json::from_value(json["limit"].clone()).expect("the answer has the limit")
        };
        match self {
            Self::Source | Self::Restart => own,
            Self::Aggregate => {
                set(&[&rate, "--burst", &burst, "--for", "203.0.113.0/24", "--aggregate"])
            }
            Self::Bytes => {
                let rate = format!("{}byte/s", bytes(RATE));
                let burst = format!("{}byte", bytes(BURST));
                set(&[&rate, "--burst", &burst, "--for", &v4(2).to_string()])
            }
            Self::FixedWindow | Self::SlidingWindow => {
                let (rate, source) = (format!("{WINDOW}/minute"), self.sources()[0].to_string());
                set(&[&rate, "--for", &source, "--algorithm", self.name()])
            }
        }
    }

    pub(crate) fn run(
        self,
        lab: &Lab,
        daemon: &mut Daemon,
        observer: &Observer<'_>,
        cpus: usize,
    ) -> Outcome {
        let limit = self.limit(daemon);
        if self.counts_in_windows() {
            avoid_an_edge(SCENARIO + START_OF_CPU * cpus as u32);
        }
        let stream = |source, rate| Stream::new(frame::udp(source, FRAME), rate, 1 << 20);
        let beside = self.conforming().map(|source| stream(source, RATE as f64 / 2.0)).collect();
        let beside = Sender::new(lab).start(beside);
        let frames: Vec<_> =
            self.sources().into_iter().map(|source| frame::udp(source, FRAME)).collect();
        let rate = EXCESS * RATE as f64 / cpus as f64;
        let flood = |cpu| {
            let mut frames = frames.clone();
            // On each CPU another one first, so that CPUs do not send for the same source in step.
            frames.rotate_left(cpu % SHARING as usize % self.sources().len());
            // The first one leaves the bucket with room for what it earns until the others have started, which takes
            // a machine of many CPUs a while.
            let stream = Stream::cycle(frames, rate, 1 << 20).with_burst(RATE);
            Sender::new(lab).on_cpu(cpu).start(vec![stream])
        };
        let floods: Vec<_> = (0..cpus).map(flood).collect();
        thread::sleep(FLOOD);
        if matches!(self, Self::Restart) {
            daemon.terminate();
            daemon.restart(lab);
            thread::sleep(FLOOD / 4);
        }
        // At once: one after the other, the last ones would send less than the limit for a while.
        let sent = Sending::stop_all(floods);
        let beside = beside.stop();
        thread::sleep(ARRIVAL);
        let observed = observer.read();
        let unit = if limit.unit == "bytes" { FRAME as u64 } else { 1 };
        let seconds = Sent::together(&sent).seconds();
        let passed = self.sources().into_iter().map(|source| observed.from(source)).sum::<u64>();
        let conforming = self.conforming().map(|source| observed.from(source)).sum::<u64>();
        Outcome {
            admitted: passed * unit,
            expected: self.allowance(&limit, seconds)
                + (self.allowed_packets(&limit, cpus) * unit) as f64,
            offered: sent.iter().map(Sent::packets).sum::<u64>() * unit,
            seconds,
            conforming_dropped: beside.iter().map(Sent::packets).sum::<u64>() - conforming,
        }
    }

    /// What a flood of so many seconds is to get, in the limit's unit.
    fn allowance(self, limit: &Limit, seconds: f64) -> f64 {
        // All within one window, and nothing in the one before.
        if self.counts_in_windows() { limit.burst_amount as f64 } else { limit.allowance(seconds) }
    }

    fn counts_in_windows(self) -> bool {
        matches!(self, Self::FixedWindow | Self::SlidingWindow)
    }

    /// Packets that are promised beyond burst and rate.
    fn allowed_packets(self, limit: &Limit, cpus: usize) -> u64 {
        if self.counts_in_windows() {
            // CPUs that meet admit nothing beyond a window.
            return limit.gate;
        }
        // Below the gate a source has no bucket yet; an aggregate has no gate. One packet for each other CPU
        // that meets in a bucket, which owes it.
        let gate = if matches!(self, Self::Aggregate) { 0 } else { limit.gate };
        gate + cpus as u64 - 1
    }
}

/// Waits until the windows of a minute, which begin at multiples of it since boot, have no edge for so long.
fn avoid_an_edge(takes: Duration) {
    const MINUTE: Duration = Duration::from_secs(60);
    let since = Duration::from_nanos(program::now_ns() % MINUTE.as_nanos() as u64);
    if MINUTE - since < takes {
        thread::sleep(MINUTE - since);
    }
}
