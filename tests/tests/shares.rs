//! What a host may use of a limit of the cluster, by real packets: the share of a bucket is changed in the
//! maps of a daemon that has died, so that nobody but the test does.

use std::{
    net::IpAddr,
    path::Path,
    time::{Duration, Instant},
};

use dataplane::{BucketShare, ClusterBucket, Dataplane, Options, SharesChanged, wait_for_packets};
use model::{Share, Target};
use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream, frame, observer::Then, reports::Limit, v4,
};

/// The sources of the default limit are the cluster's.
fn is_clusters(limit: &model::Limit) -> bool {
    limit.target == Target::DEFAULT
}

/// What the daemon's data plane was made with.
fn options(pins: &Path) -> Options {
    Options {
        epsilon: 0.0001,
        delta: 0.15,
        max_sources: 4096,
        max_limits: 1000,
        max_listed: 1000,
        ..Options::usual(pins.into())
    }
}

/// A daemon that has died, and the limits that it had.
struct Left {
    lab: Lab,
    daemon: Daemon,
    /// The default.
    whole: Limit,
    /// That of 198.51.100.50, which is this host's alone.
    local: Limit,
}

impl Left {
    fn new(rate: &str, burst: &str) -> Self {
        let lab = Lab::new(1);
        let arguments = [
            ["--sketch-epsilon", "0.0001"],
            ["--sketch-delta", "0.15"],
            ["--sketch-window", "134ms"],
            ["--max-sources", "4096"],
            ["--max-limits", "1000"],
            ["--max-listed", "1000"],
        ];
        let mut daemon = Daemon::start_with(&lab, DaemonOptions::with(&arguments.concat()));
        let whole = daemon.cli().limit(rate, Some(burst), None);
        let local = daemon.cli().limit("500pps", Some("1000"), Some("198.51.100.50"));
        daemon.kill();
        Self { lab, daemon, whole, local }
    }

    /// Does `work` with the data plane, as a daemon would.
    fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Dataplane) -> T + Send + 'static,
    ) -> T {
        let options = options(self.daemon.pins());
        self.lab.receiver.run_inside(move || {
            let mut dataplane = Dataplane::open(&options)
                .unwrap_or_else(|error| panic!("cannot open the data plane: {error:?}"));
            assert!(dataplane.took_over());
            work(&mut dataplane)
        })
    }
}

fn flood(source: IpAddr, rate: f64) -> Stream {
    Stream::new(frame::udp(source, 100), rate, 1 << 22)
}

fn bucket(dataplane: &Dataplane, source: IpAddr) -> ClusterBucket {
    dataplane.shares.cluster_bucket(source).expect("the source has a bucket of the cluster's limit")
}

fn give(dataplane: &Dataplane, source: IpAddr, part: f64, until_ns: u64) -> SharesChanged {
    let ClusterBucket { bucket, tag, .. } = bucket(dataplane, source);
    let share = BucketShare { bucket, tag, share: Share::from_part(part), until_ns };
    let changed = dataplane.shares.set_shares(&mut [share].into_iter());
    assert_eq!((changed.gone, changed.missed), (0, 0), "{changed:?}");
    changed
}

/// Packets passed, and when.
fn passed(dataplane: &Dataplane, source: IpAddr) -> (u64, Instant) {
    (bucket(dataplane, source).counts.passed, Instant::now())
}

/// Whether so many packets passed in a time as a share of `rate` lets, within 0.5 % and a tick.
fn assert_rate(what: &str, dataplane: &Dataplane, source: IpAddr, rate: f64, seconds: f64) {
    let (before, from) = passed(dataplane, source);
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let (after, to) = passed(dataplane, source);
    let due = rate * (to - from).as_secs_f64();
    let got = (after - before) as f64;
    println!("{what}: {got} of {due:.1}, {:.3} %", 100.0 * got / due);
    // Who is over the limit may wait for two ticks of the coarse clock.
    let slack = due * 0.005 + rate * 0.02 + 1.0;
    assert!((got - due).abs() <= slack, "{what}: {got}, not {due}");
}

#[test]
fn a_source_gets_its_share_and_no_tokens_with_it() {
    let left = Left::new("10kpps", "20000");
    let (shared, local) = (v4(1), v4(50));
    let whole = left.whole.clone();
    let rate = 10_000.0;
    let observer = Observer::new(&left.lab, Then::Discard, &[]);
    left.with(|dataplane| {
        dataplane.set_floor(Share::from_part(0.1), 1, is_clusters).expect("a floor");
    });
    let sending = Sender::new(&left.lab).start(vec![flood(shared, 20_000.0), flood(local, 3000.0)]);
    let start = Instant::now();
    let (first, at) = left.with(move |dataplane| {
        dataplane.set_floor(Share::from_part(0.1), 1, is_clusters).expect("a floor");
        std::thread::sleep(Duration::from_secs(3));
        let (first, at) = passed(dataplane, shared);
        let far = dataplane.table.monotonic_ns() + 60_000_000_000;
        assert_rate("at the floor", dataplane, shared, 0.1 * rate, 3.0);
        for (what, part) in [("raised", 0.5), ("lowered", 0.2), ("raised again", 0.8)] {
            let changed = give(dataplane, shared, part, far);
            wait_for_packets();
            dataplane.shares.give_back(changed);
            assert_rate(what, dataplane, shared, part * rate, 3.0);
        }
        let shown = dataplane.buckets().source(shared).expect("it is there").remove(0);
        let held = shown.share.expect("a share");
        assert!((held.share - 0.8).abs() < 1e-3 && (held.floor - 0.1).abs() < 1e-3, "{held:?}");
        assert!(held.until.is_some(), "{held:?}");
        // Idle, it fills up to what the share has room for.
        (first, at)
    });
    let sent = sending.stop();
    // A floor of a twentieth or more is that of all home shares: half of the burst is there, and a tenth of the other half.
    let burst = (1.0 + 0.1) / 2.0 * 20_000.0;
    let least = burst + 0.1 * rate * (at - start).as_secs_f64();
    println!("burst of the floor: {first} of {least:.0}");
    assert!((first as f64 - least).abs() < least * 0.01 + whole.gate as f64, "{first} {least}");
    let observed = observer.read();
    left.local.assert_admitted("a limit of this host", observed.from(local), [&sent[1]]);
}

#[test]
fn a_share_ends_by_itself_and_on_time() {
    const LONG: Duration = Duration::from_millis(100);
    let left = Left::new("20kpps", "2000");
    let source = v4(1);
    left.with(|dataplane| {
        dataplane.set_floor(Share::from_part(0.05), 1, is_clusters).expect("a floor");
    });
    let sending = Sender::new(&left.lab).start(vec![flood(source, 40_000.0)]);
    let (before, after) = left.with(move |dataplane| {
        dataplane.set_floor(Share::from_part(0.05), 1, is_clusters).expect("a floor");
        std::thread::sleep(Duration::from_secs(1));
        let until_ns = dataplane.table.monotonic_ns() + 1_000_000_000;
        give(dataplane, source, 1.0, until_ns);
        // Nobody does anything any more.
        let at = |ns: u64| {
            let left = ns.saturating_sub(dataplane.table.monotonic_ns());
            std::thread::sleep(Duration::from_nanos(left));
            (bucket(dataplane, source).counts.passed, dataplane.table.monotonic_ns() - ns)
        };
        let long = LONG.as_nanos() as u64;
        let first = at(until_ns - 2_000_000 - long);
        let last = at(until_ns - 2_000_000);
        let end = at(until_ns);
        let later = at(until_ns + long);
        println!("{first:?} {last:?} {end:?} {later:?}");
        (last.0 - first.0, later.0 - end.0)
    });
    drop(sending.stop());
    println!("{before} before, {after} after");
    // 2000 and 100 are due, but for ticks of the coarse clock.
    assert!((1800..=2200).contains(&before), "{before}");
    assert!((80..=112).contains(&after), "{after}");
}

#[test]
fn shares_move_up_and_down_under_a_flood_and_admit_what_they_say() {
    const TURNS: u32 = 60;
    let left = Left::new("20kpps", "10000");
    let source = v4(1);
    left.with(|dataplane| {
        dataplane.set_floor(Share::from_part(0.05), 1, is_clusters).expect("a floor");
    });
    let sending = Sender::new(&left.lab).start(vec![flood(source, 40_000.0)]);
    left.with(move |dataplane| {
        dataplane.set_floor(Share::from_part(0.05), 1, is_clusters).expect("a floor");
        std::thread::sleep(Duration::from_secs(2));
        let (before, _) = passed(dataplane, source);
        let mut due = 0.0;
        let mut since = (Instant::now(), 0.05);
        for turn in 0..TURNS {
            let part = if turn % 2 == 0 { 0.8 } else { 0.2 };
            let far = dataplane.table.monotonic_ns() + 10_000_000_000;
            let changed = give(dataplane, source, part, far);
            let now = Instant::now();
            due += since.1 * 20_000.0 * (now - since.0).as_secs_f64();
            since = (now, part);
            wait_for_packets();
            dataplane.shares.give_back(changed);
            std::thread::sleep(Duration::from_millis(50));
        }
        let (after, now) = passed(dataplane, source);
        due += since.1 * 20_000.0 * (now - since.0).as_secs_f64();
        let got = (after - before) as f64;
        println!("{got} of {due:.0}, {:.3} %", 100.0 * got / due);
        assert!(got <= due * 1.002 + 2.0, "{got} of {due}: more than the shares");
        // Each change waits for the coarse clock, and a denial that is remembered.
        assert!(got >= due * 0.95, "{got} of {due}");
    });
    drop(sending.stop());
}
