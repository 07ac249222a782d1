//! Shares go on while limits change: a host that takes very many limits at once renews the grants of its sources and
//! of those of other hosts meanwhile.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use aya::maps::{Array, Map, MapData};
use dataplane::kernel::monotonic_ns;
use limiter_common::share::Grant;
use tests::{Sender, Stream, frame, hosts::Hosts, process};

/// Sources that send more than their floor to both hosts all the time.
const SOURCES: u16 = 1000;
/// Limits that are imported meanwhile, none of them theirs. A daemon without optimisation needs seconds for so many.
const LIMITS: u32 = 100_000;
/// Buckets that a host has room for.
const BUCKETS: &str = "16384";
/// How often a host renews the grants that it gives.
const ROUND: Duration = Duration::from_millis(200);
/// By how much later a renewal may come. A grant ends half a second after the message that it came with.
const LATE: Duration = Duration::from_millis(150);
/// How often grants are looked at.
const LOOK: Duration = Duration::from_millis(10);

fn source(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(172, 16, high, low).into()
}

/// A grant that is looked at.
struct Watched {
    until_ns: u64,
    /// When it was first seen so.
    at: Instant,
    lapsed: bool,
}

/// What became of a host's grants in a time.
#[derive(Default)]
struct Found {
    grants: usize,
    /// From one renewal to the next one, ascending.
    gaps: Vec<Duration>,
    lapses: usize,
    /// The longest that nobody looked, which a gap may be too long by.
    blind: Duration,
}

impl Found {
    fn gap(&self, part: f64) -> Duration {
        let at = (self.gaps.len() as f64 * part) as usize;
        let last = self.gaps.len().saturating_sub(1);
        self.gaps.get(at.min(last)).copied().unwrap_or_default()
    }

    fn print(&self, what: &str) {
        println!(
            "{what}: {} grants, {} renewals, {:.0?} apart (99 %: {:.0?}, longest {:.0?}, {:.0?} of it may be ours), \
             {} lapsed",
            self.grants,
            self.gaps.len(),
            self.gap(0.5),
            self.gap(0.99),
            self.gap(1.0),
            self.blind,
            self.lapses
        );
    }
}

/// The words of a host's buckets: a grant, and the floor.
fn shares(pins: &Path) -> Array<MapData, [u64; 2]> {
    let map = MapData::from_pin(pins.join("shares")).and_then(Map::from_map_data);
    map.and_then(Array::try_from).expect("the pinned map of shares")
}

fn grant(shares: &Array<MapData, [u64; 2]>, bucket: u32) -> Grant {
    Grant(shares.get(&bucket, 0).expect("a bucket's words")[0])
}

/// The buckets that have grants now.
fn granted(shares: &Array<MapData, [u64; 2]>) -> BTreeMap<u32, Watched> {
    let has = |bucket: &u32| grant(shares, *bucket).holds(monotonic_ns());
    let seen = |bucket| {
        let until_ns = grant(shares, bucket).until_ns();
        (bucket, Watched { until_ns, at: Instant::now(), lapsed: false })
    };
    (0..shares.len()).filter(has).map(seen).collect()
}

/// Looks at the grants that there are until it is to stop.
fn look(pins: &Path, stop: &AtomicBool) -> Found {
    let shares = shares(pins);
    let mut seen = granted(&shares);
    let mut found = Found { grants: seen.len(), ..Found::default() };
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
        for (bucket, seen) in &mut seen {
            let grant = grant(&shares, *bucket);
            let now = Instant::now();
            if grant.until_ns() != seen.until_ns {
                found.gaps.push(now - seen.at);
                (seen.until_ns, seen.at) = (grant.until_ns(), now);
            }
            let lapsed = !grant.holds(monotonic_ns());
            found.lapses += usize::from(lapsed && !seen.lapsed);
            seen.lapsed = lapsed;
        }
        found.blind = found.blind.max(last.elapsed());
        last = Instant::now();
    }
    found.gaps.sort_unstable();
    found
}

/// Does `work`, and looks at the grants of all hosts meanwhile.
fn watching<T>(hosts: &Hosts, what: &str, work: impl FnOnce() -> T) -> (T, Vec<Found>) {
    let stop = Arc::new(AtomicBool::new(false));
    let threads = hosts.daemons.iter().map(|daemon| {
        let (pins, stop): (PathBuf, _) = (daemon.pins().into(), Arc::clone(&stop));
        thread::spawn(move || look(&pins, &stop))
    });
    let threads: Vec<_> = threads.collect();
    let done = work();
    stop.store(true, Ordering::Relaxed);
    let found: Vec<Found> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .collect();
    for (host, found) in found.iter().enumerate() {
        found.print(&format!("{what}, host {}", host + 1));
    }
    (done, found)
}

/// Writes a list of so many limits of single sources from 10.0.0.0 on, and its path.
fn list(folder: &Path) -> String {
    let mut text = String::new();
    for i in 0..LIMITS {
        let [_, a, b, c] = i.to_be_bytes();
        writeln!(text, "10.{a}.{b}.{c} {}pps", 100 + i % 50).expect("writing to a string");
    }
    let path = folder.join("list");
    std::fs::write(&path, text).expect("a list in a temporary folder");
    path.display().to_string()
}

#[test]
fn grants_go_on_while_very_many_limits_are_imported() {
    let hosts = Hosts::start(2, &["--max-sources", BUCKETS]);
    hosts.wait_even(&[0, 1]);
    hosts.daemons[0].cli().ok(&["limit", "set", "20pps", "--burst", "40", "--scope", "cluster"]);
    hosts.wait_limit(&[0, 1], "20pps");
    let frames: Vec<_> = (0..SOURCES).map(|number| frame::udp(source(number), 100)).collect();
    // Each source sends 12 packets a second to each host, where 20 may come to both.
    let stream = || Stream::cycle(frames.clone(), 12.0 * f64::from(SOURCES), 1 << 24);
    let sending = |host: usize| Sender::new(&hosts.fleet.hosts[host]).start(vec![stream()]);
    let sendings = [sending(0), sending(1)];
    process::wait_for("a grant for each source", Duration::from_secs(120), || {
        let all = |pins| granted(&shares(pins)).len() >= usize::from(SOURCES);
        hosts.daemons.iter().all(|daemon| all(daemon.pins())).then_some(())
    });
    // Whoever came last has its part by then.
    thread::sleep(Duration::from_secs(5));

    watching(&hosts, "before", || thread::sleep(Duration::from_secs(5)));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = list(folder.path());
    let begun = Instant::now();
    let (imported, found) = watching(&hosts, "during the import", || {
        hosts.daemons[0].cli().ok(&["limit", "import", &path])
    });
    println!("{LIMITS} limits are in force after {:.1?}", begun.elapsed());
    assert_eq!(imported["changed"], LIMITS);
    watching(&hosts, "after", || thread::sleep(Duration::from_secs(2)));
    for sending in sendings {
        drop(sending.stop());
    }
    for (host, found) in found.iter().enumerate() {
        let least = usize::from(SOURCES) * 95 / 100;
        assert!(found.grants >= least, "host {host} has grants for {} sources", found.grants);
        assert_eq!(found.lapses, 0, "grants of host {host} have ended");
        let longest = found.gap(1.0);
        assert!(
            longest <= ROUND + LATE + found.blind,
            "host {host}: {longest:?} without a renewal"
        );
        assert!(found.gaps.len() > found.grants, "host {host} has renewed little");
    }
}
