//! Twenty real daemons that keep one limit together, by real packets: all hosts are flooded, then one, then all again
//! while six daemons are killed. Three hosts do not show what grows with their number: messages, votes and floors.

use std::{
    net::Ipv4Addr,
    ops::Range,
    thread::sleep,
    time::{Duration, Instant},
};

use tests::{
    hosts::{Admitted, Hosts, Watch},
    process::{cpu_time, own_memory},
    sender::Sending,
};

const HOSTS: usize = 20;
/// Daemons that go on when the last six are killed at once. With 70 % of the home shares they are a majority.
const LIVING: Range<usize> = 0..14;
const KILLED: Range<usize> = 14..HOSTS;
/// The host that is flooded alone: no seed, and one that lives on.
const ONE: usize = 7;

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const RATE: f64 = 2000.0;
const BURST: f64 = 200.0;
/// What is sent to each host of many, packets a second: those that live on want twice the limit.
const EACH: f64 = 300.0;
/// What is sent to one host alone.
const ALONE: f64 = 5000.0;

/// What is used of the limit once shares have moved. The floors of nineteen idle hosts leave 0.9525 to one.
const USED: f64 = 0.9;
/// For how long: over less time a burst would look like a rate.
const LONG: f64 = 2.0;
/// The floor, as a part of a home share.
const FLOOR: f64 = 0.05;

// Others may starve twenty daemons on two CPUs for seconds, so each step waits until the one before it has settled. A
// quiet machine takes a third of these times at most; `cluster` asks more of three hosts.
const KNOWN: Duration = Duration::from_secs(30);
const MOVED: Duration = Duration::from_secs(15);
/// All notice a loss after 3 to 5 s. Leases of the lost end 2 s later.
const RECLAIMED: Duration = Duration::from_secs(25);

/// What a host may send, bytes a second: four times what it does, as if demand changed all the time.
const TRAFFIC: f64 = 90e3;

/// Twenty hosts with even shares and one limit. Small tables do for one source, and twenty of them fit any machine.
fn twenty() -> Hosts {
    let (all, more) = ((0..HOSTS).collect::<Vec<_>>(), ["--max-sources", "16384"]);
    let mut hosts = Hosts::start(1, &more);
    (1..HOSTS).for_each(|_| hosts.join(&more));
    let begun = Instant::now();
    hosts.wait_members(&all, HOSTS as u64);
    let known = begun.elapsed();
    println!("all know each other {:.1} s after the last start", known.as_secs_f64());
    assert!(known <= KNOWN, "{known:?}");
    let limit = ["limit", "set", "2000pps", "--burst", "200", "--scope", "cluster"];
    hosts.daemons[1].cli().ok(&limit);
    hosts.wait_limit(&all, "2000pps");
    hosts.wait_even(&all);
    hosts.wait_counted(&all);
    hosts
}

/// What daemons and network have used so far.
struct Usage {
    at: Instant,
    cpu: Duration,
    sent: u64,
}

impl Usage {
    fn read(hosts: &Hosts) -> Self {
        let cpu = hosts.daemons.iter().map(|daemon| cpu_time(daemon.pid())).sum();
        Self { at: Instant::now(), cpu, sent: hosts.fleet.sent() }
    }

    /// Prints what a host uses for three seconds from now on, and returns the bytes a second that it sends.
    fn print(hosts: &Hosts, what: &str) -> f64 {
        let before = Self::read(hosts);
        sleep(Duration::from_secs(3));
        let now = Self::read(hosts);
        let per_host = (now.at - before.at).as_secs_f64() * HOSTS as f64;
        let cpu = (now.cpu - before.cpu).as_secs_f64() / per_host;
        let sent = (now.sent - before.sent) as f64 / per_host;
        let memory = hosts.daemons.iter().map(|daemon| own_memory(daemon.pid())).max();
        println!(
            "{what}: a daemon takes {:.1} % of a CPU and {:.1} MB at most, a host sends {:.1} kB/s",
            100.0 * cpu,
            memory.unwrap_or_default() as f64 / 1e6,
            sent / 1e3
        );
        sent
    }
}

/// A change of load or of hosts, and what came of it.
struct Step {
    what: &'static str,
    /// When it began, and when shares had settled or time was up, seconds.
    begun: f64,
    ended: f64,
    settled: bool,
}

impl Step {
    /// Waits until `hosts` use the limit. What is found is asserted later, when no sender is left behind.
    fn wait(what: &'static str, watch: &Watch<'_>, hosts: Range<usize>, timeout: Duration) -> Self {
        let begun = watch.elapsed();
        loop {
            sleep(Duration::from_millis(50));
            let ended = watch.elapsed();
            let passed = &watch.counts((ended - LONG).max(begun), ended)[hosts.clone()];
            let sum = passed.iter().sum::<usize>() as f64;
            // The sum alone would be right, too, if a few hosts had everything.
            let even = sum / passed.len() as f64;
            let fair = passed.iter().all(|&count| count as f64 >= 0.5 * even);
            let settled = fair && sum >= USED * RATE * LONG;
            if settled || ended > begun + timeout.as_secs_f64() {
                return Self { what, begun, ended, settled };
            }
        }
    }

    /// Prints what is used until `end`, and since when. Nobody notices it sooner than `notice`.
    fn judge(&self, admitted: &Admitted, notice: f64, end: f64) {
        let back = admitted.back(RATE, USED, self.begun + notice, end);
        println!(
            "{}: {USED} of the limit is used after {:.2} s, {:.3} in the end",
            self.what,
            back.map_or(f64::NAN, |back| notice + back),
            admitted.utilisation(RATE, self.ended.min(end - 1.0), end)
        );
        assert!(self.settled, "{}: shares have not settled", self.what);
    }
}

#[test]
fn twenty_daemons_keep_one_limit_while_a_flood_moves_and_six_are_killed() {
    let hosts = twenty();
    Usage::print(&hosts, "without load");
    let watch = hosts.watch(SOURCE);
    let flood_all = || (0..HOSTS).map(|host| hosts.send(host, SOURCE, EACH)).collect::<Vec<_>>();

    let sending = flood_all();
    let spread = Step::wait("all flooded", &watch, 0..HOSTS, MOVED);
    let sent = Usage::print(&hosts, "all flooded");
    drop(Sending::stop_all(sending));
    let sending = hosts.send(ONE, SOURCE, ALONE);
    let one = Step::wait("one flooded", &watch, ONE..ONE + 1, MOVED);
    sleep(Duration::from_secs(1));
    drop(sending.stop());
    let sending = flood_all();
    let again = Step::wait("all flooded again", &watch, 0..HOSTS, MOVED);
    // Packets go on to all: a kernel without a daemon has to keep the limit, too.
    hosts.daemons[KILLED].iter().for_each(|daemon| daemon.signal(libc::SIGKILL));
    let killed = Step::wait("six killed", &watch, LIVING, RECLAIMED);
    sleep(Duration::from_secs(2));
    drop(Sending::stop_all(sending));
    let end = watch.elapsed();
    let admitted = watch.stop();
    admitted.print(end as u32);

    admitted.assert_kept("twenty hosts", RATE, BURST);
    spread.judge(&admitted, 0.0, one.begun);
    one.judge(&admitted, 0.0, again.begun);
    again.judge(&admitted, 0.0, killed.begun);
    killed.judge(&admitted, 1.0, end);
    // Grants end in the kernel. Without a limit it would pass 300 packets a second, and none if it closed.
    let from = killed.begun + 2.0;
    let floor = RATE * FLOOR / HOSTS as f64 * (end - from);
    let dead = &admitted.counts(from, end)[KILLED];
    println!(
        "kernels of the killed pass {dead:?} packets in {:.1} s, {floor:.0} are due",
        end - from
    );
    let at_floor = |&count: &usize| (0.7 * floor..=1.2 * floor + 1.0).contains(&(count as f64));
    assert!(dead.iter().all(at_floor), "{floor} {dead:?}");
    // Each host talks to each other one: nothing grows faster with their number.
    assert!(sent <= TRAFFIC, "{sent}");
    hosts.wait_members(&LIVING.collect::<Vec<_>>(), LIVING.len() as u64);
}
