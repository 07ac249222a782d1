//! Sources that come seldom under limits of the cluster: no host has heard of them, and what it may use without
//! end is less than a packet. They get through all the same, and no source gets more than its limit.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    thread::sleep,
    time::{Duration, Instant},
};

use tests::{Sender, Timeline, frame, hosts::Hosts, timeline::excess};

/// When a client sends that tries as TCP does, s: until it gets an answer, here to the end.
const TRIES: [u64; 6] = [0, 1, 3, 7, 15, 31];

/// Sources of a kind, under a limit of their own.
struct Kind {
    what: &'static str,
    limit: &'static str,
    burst: u64,
    /// Packets a second.
    rate: f64,
    net: u8,
    sources: u8,
    /// When its packets are sent, ms, and to which host.
    sends: Vec<(u64, usize)>,
    /// Of those each source may lose so many.
    loses: usize,
}

impl Kind {
    fn source(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.net, number + 1)
    }

    fn prefix(&self) -> String {
        format!("198.18.{}.0/24", self.net)
    }
}

/// One packet each `every` ms for so long, to each of so many hosts in turn.
fn each(every: u64, until: u64, hosts: usize) -> Vec<(u64, usize)> {
    (0..).map(|n| (n * every, n as usize % hosts)).take_while(|(at, _)| *at < until).collect()
}

/// Clients begin one after the other, so that the packet of one is no other's.
const APART: u64 = 50;

/// Sends all, and asserts for each kind that nobody loses more than it may or gets more than its limit.
fn run(hosts: &Hosts, kinds: &[Kind]) {
    let all: Vec<usize> = (0..hosts.daemons.len()).collect();
    for kind in kinds {
        let (prefix, burst) = (kind.prefix(), kind.burst.to_string());
        let set = ["limit", "set", kind.limit, "--burst", &burst, "--for", &prefix];
        hosts.daemons[0].cli().ok(&[&set[..], &["--scope", "cluster"]].concat());
    }
    hosts.wait_limits(&all, kinds.len());
    hosts.wait_even(&all);
    // A larger floor brings no tokens: who comes soon after a host has joined finds less.
    sleep(Duration::from_secs(4));
    let timelines: Vec<_> = hosts.fleet.hosts.iter().map(Timeline::of_all).collect();
    let mut due: Vec<(u64, usize, Ipv4Addr)> = Vec::new();
    for kind in kinds {
        for number in 0..kind.sources {
            let after = u64::from(number) * APART;
            due.extend(kind.sends.iter().map(|(at, to)| (at + after, *to, kind.source(number))));
        }
    }
    due.sort_unstable();
    let wires: Vec<_> = hosts.fleet.hosts.iter().map(|lab| Sender::new(lab).wire()).collect();
    let begun = Instant::now();
    let mut late = Duration::ZERO;
    for (at, host, source) in due {
        let at = begun + Duration::from_millis(at);
        sleep(at.saturating_duration_since(Instant::now()));
        late = late.max(at.elapsed());
        wires[host].send(&frame::udp(IpAddr::V4(source), 100));
    }
    println!("packets are sent {late:?} late at worst");
    sleep(Duration::from_millis(200));
    let times: Vec<_> = timelines.into_iter().map(Timeline::stop_all).collect();
    let mut wrong = Vec::new();
    for kind in kinds {
        let mut lost: BTreeMap<usize, u32> = BTreeMap::new();
        let mut beyond = 0.0_f64;
        for number in 0..kind.sources {
            let of = |all: &Vec<(Ipv4Addr, Duration)>| -> Vec<Duration> {
                let its = all.iter().filter(|(from, _)| *from == kind.source(number));
                its.map(|(_, at)| *at).collect()
            };
            let passed: Vec<_> = times.iter().map(of).collect();
            let count: usize = passed.iter().map(Vec::len).sum();
            *lost.entry(kind.sends.len() - count.min(kind.sends.len())).or_default() += 1;
            let burst = kind.burst.max(all.len() as u64);
            beyond = beyond.max(excess(&passed, kind.rate, burst as f64));
        }
        let (hosts, sent) = (all.len(), kind.sends.len());
        println!(
            "{hosts} hosts, {} burst {}, {}: of {sent} packets each are lost (packets: sources) {lost:?}; \
             {beyond:.2} beyond one bucket at worst",
            kind.limit, kind.burst, kind.what
        );
        if lost.keys().any(|lost| *lost > kind.loses) || beyond > 0.05 {
            wrong.push((kind.limit, kind.what, lost, beyond));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What is sent in all cases, to so many hosts.
fn kinds(hosts: usize) -> Vec<Kind> {
    let tries: Vec<_> = TRIES.iter().map(|at| (at * 1000, 0)).collect();
    let to_all = |sends: &[(u64, usize)]| -> Vec<(u64, usize)> {
        let to = |(at, _): &(u64, usize)| (0..hosts).map(|to| (*at, to)).collect::<Vec<_>>();
        sends.iter().flat_map(to).collect()
    };
    let slow = 5.0 / 60.0;
    let kind = |what, (limit, burst, rate), net, sources, sends: Vec<_>, loses| Kind {
        what,
        limit,
        burst,
        rate,
        net,
        sources,
        sends,
        loses,
    };
    let one = ("5/minute", 1, slow);
    let five = ("5/minute", 5, slow);
    let twenty = ("20pps", 24, 20.0);
    let alone = hosts == 1;
    let known = [vec![(0, 0)], vec![(2500, 0); 12]].concat();
    vec![
        // Two or three of six are within the limit.
        kind("clients that try as TCP does", one, 1, 20, tries.clone(), 4),
        kind("clients that try as TCP does", five, 2, 20, tries, 3),
        kind("one packet each 15 s", one, 3, 10, each(15_000, 32_000, hosts), 0),
        kind("one packet each 4 s", twenty, 4, 10, each(4000, 32_000, hosts), 0),
        kind("one packet each 4 s to each", twenty, 5, 10, to_all(&each(4000, 32_000, 1)), 0),
        // Until its share has come: mostly none or one, more on a busy machine.
        kind(
            "one packet each 100 ms",
            twenty,
            6,
            3,
            each(100, 20_000, 1),
            if alone { 0 } else { 3 },
        ),
        kind("five at once", twenty, 8, 10, vec![(0, 0); 5], if alone { 0 } else { 4 }),
        // By then it has all that nobody else wants, and has had it for long enough.
        kind("half of the burst, once it is known", twenty, 9, 10, known, 0),
        // More than the limit, everywhere: the sum is what counts.
        kind(
            "a packet each second to each",
            five,
            7,
            3,
            to_all(&each(1000, 32_000, 1)),
            usize::MAX,
        ),
    ]
}

#[test]
fn a_host_that_has_everything_starves_nobody() {
    run(&Hosts::start(1, &[]), &kinds(1));
}

#[test]
fn three_hosts_starve_nobody() {
    run(&Hosts::start(3, &[]), &kinds(3));
}
