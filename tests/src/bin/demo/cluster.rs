//! Three hosts that share one limit: all of them flooded, then one alone, then one whose daemon dies and
//! comes back.

use std::{
    io::{self, Write},
    net::Ipv4Addr,
    thread::sleep,
    time::{Duration, Instant},
};

use serde::Serialize;
use tests::{
    cli::limiter_binary,
    hosts::{Admitted, Hosts, Watch, flood, now},
    sender::Sending,
};

use crate::{
    picture::{Second, Style},
    progress::Progress,
    report::print_verdict,
};

/// Who floods.
const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 66);
/// The limit, packets a second, and its burst, packets.
const RATE: f64 = 3000.0;
const BURST: f64 = 300.0;
/// What is sent to a flooded host, packets a second.
// More than the whole limit: one host alone could use all of it.
const FLOOD: f64 = 5000.0;
/// How many hosts there are.
const HOSTS: usize = 3;
/// How long after a change it is not asked yet how much of the limit is used, seconds.
const SETTLES: f64 = 1.0;

/// A part of the demonstration.
struct Act {
    /// What happens, for people.
    what: &'static str,
    /// Which hosts are flooded.
    flooded: &'static [usize],
    /// What becomes of the last host's daemon at the start.
    last: Last,
    /// Seconds.
    lasts: f64,
    /// The part of the limit that is to be used at least.
    least: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Stays,
    Dies,
    Returns,
}

const ACTS: [Act; 4] = [
    Act {
        what: "all three are flooded",
        flooded: &[0, 1, 2],
        last: Last::Stays,
        lasts: 5.0,
        least: 0.9,
    },
    Act {
        what: "edge-2 alone is flooded",
        flooded: &[1],
        last: Last::Stays,
        lasts: 4.0,
        least: 0.85,
    },
    Act {
        what: "all three; the daemon of edge-3 is killed",
        flooded: &[0, 1, 2],
        last: Last::Dies,
        lasts: 6.0,
        // Some seconds later the two others, a majority, use what it had beside its floor.
        least: 0.7,
    },
    Act {
        what: "all three; it is started again",
        flooded: &[0, 1, 2],
        last: Last::Returns,
        lasts: 8.0,
        // It waits until what it gave before has ended, and keys change their owners: 0.89 to 0.91 were found.
        least: 0.85,
    },
];

/// The result.
#[derive(Serialize)]
pub(crate) struct Report {
    hosts: usize,
    rate_pps: f64,
    burst: f64,
    acts: Vec<ActReport>,
    /// The most packets that all hosts together let through in any second.
    busiest_second: u64,
    /// How many they let through at worst beyond a bucket of the whole limit, over any span of time.
    beyond: f64,
    /// Whether the limit was never exceeded, and used as far as each act promises.
    pub(crate) ok: bool,
    #[serde(skip)]
    peers: String,
}

#[derive(Serialize)]
struct ActReport {
    what: &'static str,
    seconds: Vec<Vec<usize>>,
    /// The part of the limit that was used, the first second left out.
    used: f64,
    least: f64,
}

/// Runs it.
pub(crate) fn run(progress: &Progress) -> Report {
    progress.step(format_args!(
        "building {HOSTS} hosts, each with a wire of its own, and a network between them"
    ));
    let mut hosts = Hosts::start(HOSTS, &[]);
    let all: Vec<usize> = (0..HOSTS).collect();
    let order = ["limit", "set", "3000pps", "--burst", "300", "--scope", "cluster"];
    progress.step(format_args!("edge-2: limiter {}", order.join(" ")));
    hosts.daemons[1].cli().ok(&order);
    let taken = hosts.wait_limit(&all, "3000pps");
    progress.step(format_args!(
        "in force on all hosts after {:.2} s; dividing the limit",
        taken.as_secs_f64()
    ));
    // The founder has all shares at first: the acts are about a cluster that has settled.
    hosts.wait_even(&all);
    let Hosts { daemons, fleet, .. } = &mut hosts;
    let watch = Watch::new(fleet, SOURCE);
    let begun = now();
    let mut acts = Vec::new();
    for act in &ACTS {
        progress.step(act.what);
        let starts = (now() - begun).as_secs_f64();
        let sending: Vec<_> =
            act.flooded.iter().map(|&host| flood(fleet, host, SOURCE, FLOOD)).collect();
        match act.last {
            Last::Stays => {}
            Last::Dies => daemons[HOSTS - 1].kill(),
            Last::Returns => daemons[HOSTS - 1].restart(&fleet.hosts[HOSTS - 1]),
        }
        follow(progress, &watch, Instant::now() + Duration::from_secs_f64(act.lasts));
        drop(Sending::stop_all(sending));
        acts.push((act, starts));
    }
    let admitted = watch.stop();
    let mut peers = tools::own(limiter_binary());
    let peers = peers.arg("--socket").arg(daemons[0].socket()).arg("peers").output();
    let peers = peers.expect("the client can be run").stdout;
    let peers = String::from_utf8_lossy(&peers).into_owned();
    Report::new(&admitted, &acts, peers)
}

/// Waits until `end`, and tells on a terminal what all hosts let through in each second.
fn follow(progress: &Progress, watch: &Watch<'_>, end: Instant) {
    const SECOND: Duration = Duration::from_secs(1);
    let mut before = watch.so_far();
    while progress.is_live() && Instant::now() + SECOND < end {
        let began = Instant::now();
        sleep(SECOND);
        let (now, took) = (watch.so_far(), began.elapsed().as_secs_f64());
        let rates = now.iter().zip(&before).map(|(now, before)| (now - before) as f64 / took);
        let rates: Vec<_> = rates.map(|rate| format!("{rate:.0}")).collect();
        progress.step(format_args!("  admitted a second: {}", rates.join(" + ")));
        before = now;
    }
    sleep(end.saturating_duration_since(Instant::now()));
}

impl Report {
    fn new(admitted: &Admitted, acts: &[(&Act, f64)], peers: String) -> Self {
        let acts: Vec<_> =
            acts.iter().map(|(act, at)| ActReport::new(admitted, act, *at)).collect();
        let (busiest_second, beyond) = (admitted.busiest(), admitted.beyond(RATE, BURST));
        // Clocks and the sender are exact to about a hundredth.
        let room = 0.01 * (RATE + BURST);
        let kept = busiest_second as f64 <= RATE + BURST + room && beyond <= room;
        let ok = kept && acts.iter().all(|act| act.used >= act.least);
        Self { hosts: HOSTS, rate_pps: RATE, burst: BURST, acts, busiest_second, beyond, ok, peers }
    }

    /// Writes one JSON document.
    pub(crate) fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    /// Writes tables for people.
    pub(crate) fn print(&self, out: &mut impl Write, style: Style) -> io::Result<()> {
        writeln!(
            out,
            "\nOne source, one limit of {RATE} packets a second, {HOSTS} hosts: packets admitted in each\n\
             second.\n\n{:<47}edge-1   edge-2   edge-3      all",
            ""
        )?;
        let mut second = 0;
        for act in &self.acts {
            writeln!(out, "{}", act.what)?;
            for counts in &act.seconds {
                let all = counts.iter().sum::<usize>() as u64;
                // As long as the limit with its burst, so that nothing goes beyond the bar's end.
                let bar = style.bar(Second::new(all, all), (RATE + BURST) as u64);
                write!(out, "{second:>4}   {bar}")?;
                for count in counts {
                    write!(out, " {count:>8}")?;
                }
                writeln!(out, " {all:>8}")?;
                second += 1;
            }
            let short = if act.used < act.least { "  LESS THAN EXPECTED" } else { "" };
            writeln!(out, "  {:.1} % of the limit used{short}", 100.0 * act.used)?;
        }
        writeln!(
            out,
            "\nIn the busiest second {} packets passed, of {} that rate and burst allow; {:.1} beyond one\n\
             bucket of the whole limit at worst.\n",
            self.busiest_second,
            RATE + BURST,
            self.beyond
        )?;
        writeln!(out, "{}", self.peers)?;
        print_verdict(out, self.ok)
    }
}

impl ActReport {
    fn new(admitted: &Admitted, act: &Act, at: f64) -> Self {
        let whole = act.lasts as u32;
        let second = |second: u32| {
            let from = at + f64::from(second);
            admitted.counts(from, from + 1.0)
        };
        Self {
            what: act.what,
            seconds: (0..whole).map(second).collect(),
            used: admitted.utilisation(RATE, at + SETTLES, at + act.lasts),
            least: act.least,
        }
    }
}
