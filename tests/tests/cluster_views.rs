//! What an operator hears of all hosts of a cluster, from any one of them: against exact counts of what was
//! sent to each.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;
use tests::{
    Daemon, DaemonOptions, Fleet, Flood, Sender, Stream,
    cli::{Answer, answer, limiter_binary},
    flood::Sources,
    frame,
    process::wait_for,
    sender::Sending,
    zipf::Zipf,
};

/// The signal that a process cannot refuse to stop at.
const SIGSTOP: i32 = 19;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Hosts with one key.
struct Hosts {
    fleet: Fleet,
    daemons: Vec<Daemon>,
    home: TempDir,
}

impl Hosts {
    fn start(hosts: usize) -> Self {
        let (fleet, home) = (Fleet::new(hosts), tempfile::tempdir().expect("a temporary folder"));
        let mut hosts = Self { fleet, daemons: Vec::new(), home };
        let key = hosts.home.path().join("cluster.key").display().to_string();
        let mut generate = tools::own(limiter_binary());
        let made = answer(generate.args(["--json", "cluster", "key", "generate", &key]));
        assert_eq!(made.code, 0, "{made:?}");
        for host in 0..hosts.fleet.hosts.len() {
            hosts.configure(host, true);
            let config = hosts.config(host).display().to_string();
            let options = DaemonOptions::with(&["--config", &config]);
            hosts.daemons.push(Daemon::start_with(&hosts.fleet.hosts[host], options));
            if host == 0 {
                hosts.daemons[0].cli().ok(&["cluster", "init"]);
            }
        }
        hosts.wait_complete();
        hosts
    }

    fn config(&self, host: usize) -> PathBuf {
        self.home.path().join(format!("{host}.toml"))
    }

    fn configure(&self, host: usize, clustered: bool) {
        let seeds =
            if host == 0 { "[]".into() } else { format!("[\"{}:7700\"]", Fleet::address(0)) };
        let text = format!(
            "[cluster]\nname = \"edge-{host}\"\nlisten = \"{}:7700\"\nkey_file = \"{}\"\nseeds = {seeds}\n",
            Fleet::address(host),
            self.home.path().join("cluster.key").display()
        );
        let text = if clustered { text } else { String::new() };
        fs::write(self.config(host), text).expect("the file can be written");
    }

    /// Waits until every host knows all.
    fn wait_complete(&self) {
        for daemon in &self.daemons {
            wait_for("all members", TIMEOUT, || {
                let peers = daemon.cli().run(&["peers"]).json["peers"].clone();
                let there = peers.as_array().into_iter().flatten();
                let there = there.filter(|peer| peer["details"].is_object()).count();
                (there == self.daemons.len()).then_some(())
            });
        }
    }

    fn ask(&self, host: usize, arguments: &[&str]) -> Answer {
        self.daemons[host].cli().run(arguments)
    }

    /// Sets a limit of its own on each host. A slow one has no gate: a bucket counts the first packet.
    fn limit(&self, rate: &str) {
        for daemon in &self.daemons {
            daemon.cli().ok(&["limit", "set", rate, "--burst", "20"]);
        }
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {value:#}"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text {key} in {value:#}"))
}

/// The metrics of the cluster that a text names.
fn clustered(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("limiter_cluster_")).collect()
}

/// The hosts that a report names as not having answered.
fn unanswered(report: &Value) -> Vec<&str> {
    list(report, "unanswered").iter().map(|host| text(host, "host")).collect()
}

#[test]
fn the_heaviest_of_three_hosts_are_those_of_exact_counts() {
    let hosts = Hosts::start(3);
    hosts.limit("5pps");
    let first = Ipv4Addr::new(10, 0, 0, 0).to_bits();
    let mut zipf = Zipf::new(11);
    let mut exact: BTreeMap<Ipv4Addr, (u64, u64)> = BTreeMap::new();
    let mut frames = vec![Vec::new(); 3];
    let mut send = |host: usize, source: Ipv4Addr, size: usize| {
        let count = exact.entry(source).or_default();
        (count.0, count.1) = (count.0 + 1, count.1 + size as u64);
        frames[host].push(frame::udp(source.into(), size));
    };
    for i in 0..60_000_usize {
        // Who is where depends on the source, so that hosts have different ones; some are everywhere.
        let source = zipf.source();
        let host = if source.is_multiple_of(5) { i % 3 } else { source as usize % 3 };
        send(host, Ipv4Addr::from_bits(first + source), 64 + i % 7 * 50);
    }
    // One that is nowhere among the first hundred, and is the second one of all together.
    let hidden = Ipv4Addr::new(192, 0, 2, 77);
    for host in 0..3 {
        for own in 0..150 {
            let source = Ipv4Addr::from_bits(Ipv4Addr::new(172, 16, host, 0).to_bits() + own);
            (0..60).for_each(|_| send(host.into(), source, 100));
        }
        (0..55).for_each(|_| send(host.into(), hidden, 100));
    }
    let sending: Vec<_> = hosts
        .fleet
        .hosts
        .iter()
        .zip(frames)
        .map(|(lab, frames)| {
            let count = frames.len() as u64;
            Sender::new(lab).start(vec![Stream::cycle(frames, 40_000.0, count)])
        })
        .collect();
    sending.into_iter().for_each(|sending| drop(sending.join()));
    sleep(Duration::from_millis(300));
    for (host, sort, n) in
        [(0, "packets", 40), (1, "bytes", 40), (2, "packets", 200), (1, "packets", 1)]
    {
        let n_text = n.to_string();
        let began = Instant::now();
        let report =
            hosts.ask(host, &["top", "--cluster", "--once", "--sort", sort, "-n", &n_text]);
        let took = began.elapsed();
        assert_eq!((report.code, unanswered(&report.json)), (0, vec![]), "{report:?}");
        let report = report.json;
        let weigh = |count: &(u64, u64)| if sort == "packets" { count.0 } else { count.1 };
        let mut order: Vec<_> = exact.iter().collect();
        order.sort_by_key(|(_, count)| std::cmp::Reverse(weigh(count)));
        let told = list(&report, "sources");
        assert_eq!(told.len(), n);
        for (place, (told, (_, wanted))) in told.iter().zip(&order).enumerate() {
            let source: Ipv4Addr =
                text(told, "source").trim_end_matches("/32").parse().expect("a source");
            let count = exact[&source];
            let packets = number(told, "passed") + number(told, "dropped");
            assert_eq!((packets as u64, number(told, "bytes") as u64), count, "{source}");
            assert_eq!(weigh(&count), weigh(wanted), "{sort}: place {place} has {source}");
        }
        assert_eq!(report["exact"], true, "{report:#}");
        println!(
            "top --cluster -n {n} --sort {sort} on edge-{host}: all {n} of {} sources as exactly counted, \
             after {took:.0?} ({:.0} ms in the daemon)",
            exact.len(),
            number(&report, "took_seconds") * 1e3
        );
    }
    let report =
        hosts.ask(0, &["top", "--cluster", "--once", "--sort", "packets", "-n", "200"]).json;
    let found =
        list(&report, "sources").iter().find(|it| text(it, "source").starts_with("192.0.2.77"));
    assert_eq!(found.map(|it| number(it, "hosts") as u64), Some(3));
    sums_are_those_of_exact_counts(&hosts, &exact);
    // What one host has is less.
    let alone = hosts.ask(0, &["top", "--once", "--sort", "packets", "-n", "10000"]).json;
    assert!(number(&alone, "tracked") < number(&report, "tracked"));
}

/// Sums by prefix and by class, of all hosts.
fn sums_are_those_of_exact_counts(hosts: &Hosts, exact: &BTreeMap<Ipv4Addr, (u64, u64)>) {
    let mut prefixes: BTreeMap<Ipv4Addr, (u64, u64)> = BTreeMap::new();
    for (source, (packets, bytes)) in exact {
        let sums = prefixes.entry(Ipv4Addr::from_bits(source.to_bits() & !0xff)).or_default();
        (sums.0, sums.1) = (sums.0 + packets, sums.1 + bytes);
    }
    let mut order: Vec<_> = prefixes.values().map(|(packets, _)| *packets).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    let arguments = ["top", "--cluster", "--once", "--sort", "packets", "--by"];
    let told_of = |group: &Value| {
        let packets = number(group, "passed") + number(group, "dropped");
        (packets as u64, number(group, "bytes") as u64)
    };
    for (host, n) in [(0, 30), (2, 3)] {
        let n_text = n.to_string();
        let report = hosts.ask(host, &[&arguments[..], &["prefix", "-n", &n_text]].concat());
        assert_eq!((report.code, unanswered(&report.json)), (0, vec![]), "{report:?}");
        let (report, told) = (&report.json, list(&report.json, "groups"));
        assert_eq!((report["exact"].as_bool(), told.len()), (Some(true), n), "{report:#}");
        for (group, wanted) in told.iter().zip(&order) {
            let net: Ipv4Addr =
                text(group, "group").trim_end_matches("/24").parse().expect("a /24");
            assert_eq!((told_of(group), told_of(group).0), (prefixes[&net], *wanted), "{net}");
        }
        println!(
            "top --cluster --by prefix -n {n}: as exactly counted, of {} ({:.0} ms in the daemon)",
            prefixes.len(),
            number(report, "took_seconds") * 1e3
        );
    }
    let report = hosts.ask(1, &[&arguments[..], &["prefix", "-n", "300"]].concat()).json;
    assert_eq!(report["exact"], true, "{report:#}");
    // Each host has a /24 of 172.16 alone; the hidden one is on all three.
    let own = list(&report, "groups").iter().find(|it| text(it, "group") == "172.16.1.0/24");
    assert_eq!(own.map(|it| number(it, "hosts") as u64), Some(1));
    let hidden = list(&report, "groups").iter().find(|it| text(it, "group") == "192.0.2.0/24");
    assert_eq!(hidden.map(|it| number(it, "hosts") as u64), Some(3));
    let report = hosts.ask(1, &[&arguments[..], &["class"]].concat()).json;
    let all = exact.values().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    let told: Vec<_> = list(&report, "groups").iter().map(told_of).collect();
    assert_eq!(told, [all], "{report:#}");
    assert_eq!(number(&report, "tracked"), number(&list(&report, "groups")[0], "sources"));
}

#[test]
fn rates_and_one_source_are_summed_and_who_does_not_answer_is_named() {
    let mut hosts = Hosts::start(3);
    hosts.limit("100pps");
    let source = Ipv4Addr::new(198, 51, 100, 7);
    let rates = [500.0, 1000.0, 2000.0];
    let stream = |rate| vec![Stream::new(frame::udp(source.into(), 100), rate, u64::MAX)];
    let sending: Vec<_> = hosts
        .fleet
        .hosts
        .iter()
        .zip(rates)
        .map(|(lab, rate)| Sender::new(lab).start(stream(rate)))
        .collect();
    wait_for("a source that every host limits", TIMEOUT, || {
        let limited = |daemon: &Daemon| daemon.cli().show(source).state == "limited";
        hosts.daemons.iter().all(limited).then_some(())
    });
    sleep(Duration::from_millis(1500));
    let is_near = |what: &str, found: f64, wanted: f64| {
        println!("{what}: {found:.1}, sent {wanted:.1}");
        (found / wanted - 1.0).abs() < 0.12
    };
    let near = |what: &str, found: f64, wanted: f64| {
        assert!(is_near(what, found, wanted), "{what}: {found}, not {wanted}");
    };
    // A sender that stands still for a twentieth of a second is within its limit for as long.
    let top = wait_for("a source that is limited everywhere", TIMEOUT, || {
        let top = hosts.ask(1, &["top", "--cluster", "--once", "--sort", "pps"]);
        assert_eq!(top.code, 0, "{top:?}");
        (text(&list(&top.json, "sources")[0], "state") == "limited").then_some(top)
    });
    let heaviest = &list(&top.json, "sources")[0];
    assert_eq!(text(heaviest, "source"), "198.51.100.7/32");
    near("packets/s of the heaviest", number(heaviest, "pps"), 3500.0);
    near("bits/s of it", number(heaviest, "bps"), 3500.0 * 800.0);

    // It looks for a fifth of a second: a sender that stood still for a moment, or makes up for that, seems a tenth off.
    let show = wait_for("what each host was sent", TIMEOUT, || {
        let began = Instant::now();
        let show = hosts.ask(2, &["show", "198.51.100.7", "--cluster"]);
        println!("show --cluster took {:.0?}", began.elapsed());
        assert_eq!((show.code, unanswered(&show.json)), (0, vec![]), "{show:?}");
        let each = list(&show.json, "hosts");
        assert_eq!(each.len(), 3, "{show:?}");
        let rate = |host| number(host, "passed_pps") + number(host, "dropped_pps");
        let mut told = each.iter().zip(rates);
        told.all(|(host, sent)| is_near(text(host, "host"), rate(host), sent)).then_some(show)
    });
    let each = list(&show.json, "hosts");
    let sums = &list(&show.json, "sums")[0];
    let sum = |key| each.iter().map(|host| number(host, key)).sum::<f64>();
    for key in ["passed", "dropped", "bytes"] {
        assert_eq!(number(sums, key), sum(key), "{key}");
    }
    near("what three hosts let through", number(sums, "passed_pps"), 300.0);
    assert_eq!(number(sums, "hosts"), 3.0);

    // A daemon that hangs. All ask at once: it is gone after some seconds, and then nobody waits for it.
    hosts.daemons[2].signal(SIGSTOP);
    let began = Instant::now();
    let ask = |arguments: &'static [&'static str]| {
        let hosts = &hosts;
        move || (hosts.ask(0, arguments), began.elapsed())
    };
    let [(top, took), (groups, _), (show, _), (peers, _)] = thread::scope(|scope| {
        [
            scope.spawn(ask(&["top", "--cluster", "--once", "--sort", "pps"])),
            scope.spawn(ask(&["top", "--cluster", "--once", "--by", "prefix"])),
            scope.spawn(ask(&["show", "198.51.100.7", "--cluster"])),
            scope.spawn(ask(&["peers"])),
        ]
        .map(|asking| asking.join().expect("a command ends"))
    });
    println!("with a daemon that hangs, top --cluster took {took:.0?}");
    for answer in [&top, &groups, &show, &peers] {
        assert_eq!((answer.code, unanswered(&answer.json)), (1, vec!["edge-2"]), "{answer:?}");
    }
    assert!(took < Duration::from_millis(1800), "{took:?}");
    near("without it", number(&list(&top.json, "sources")[0], "pps"), 1500.0);
    let state = |peers: &Value, name| {
        let peer = list(peers, "peers").iter().find(|peer| text(peer, "host") == name);
        peer.map_or("nobody", |peer| text(peer, "state")).to_owned()
    };
    assert!(["silent", "suspect"].contains(&state(&peers.json, "edge-2").as_str()), "{peers:?}");
    drop(Sending::stop_all(sending));

    // It dies, and is gone; nobody waits for it any more.
    hosts.daemons[2].kill();
    wait_for("the others to notice", TIMEOUT, || {
        let peers = hosts.ask(0, &["peers"]);
        (state(&peers.json, "edge-2") == "gone" && peers.code == 0).then_some(())
    });
    let top = hosts.ask(0, &["top", "--cluster", "--once"]);
    assert_eq!((top.code, unanswered(&top.json)), (0, vec![]), "{top:?}");
    let lab = &hosts.fleet.hosts[2];
    hosts.daemons[2].restart(lab);
    hosts.wait_complete();
    // On a busy machine somebody may suspect it for a moment.
    wait_for("edge-2 to be alive", TIMEOUT, || {
        (state(&hosts.ask(0, &["peers"]).json, "edge-2") == "alive").then_some(())
    });
}

#[test]
fn distinct_sources_are_merged_where_hosts_have_one_hash_key() {
    let mut hosts = Hosts::start(3);
    // Each has two thirds in common with the next one.
    let floods: Vec<_> = hosts
        .fleet
        .hosts
        .iter()
        .zip(0_u32..)
        .map(|(lab, host)| {
            let first = Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + host * 3000);
            let sources = Sources::RoundRobin(IpAddr::from(first), 9000);
            Flood::new(sources, 1 << 30).at_rate(4 * 9000).start(lab)
        })
        .collect();
    let groups = |hosts: &Hosts| {
        let peers = hosts.ask(1, &["peers"]).json;
        list(&peers["distinct"], "groups").to_vec()
    };
    // One that began with the floods has not seen all.
    wait_for("a window of all sources", TIMEOUT, || {
        let groups = groups(&hosts);
        let found = groups.iter().map(|group| number(&group["distinct"], "sources"));
        (found.sum::<f64>() > 13_500.0).then_some(())
    });
    let mut errors = Vec::new();
    for _ in 0..5 {
        sleep(Duration::from_millis(2300));
        let groups = groups(&hosts);
        assert_eq!(groups.len(), 1, "{groups:#?}");
        assert_eq!(list(&groups[0], "hosts").len(), 3);
        let found = number(&groups[0]["distinct"], "sources");
        errors.push(100.0 * (found / 15_000.0 - 1.0));
    }
    println!("15000 distinct sources on three hosts with 9000 each: {errors:+.2?} % off");
    // Sources stay the same, so all estimates have one error.
    assert!(errors.iter().all(|error| error.abs() < 4.0 * 1.625), "{errors:?}");

    // A host whose maps are of a time when it was in no cluster has another key.
    let lab = &hosts.fleet.hosts[2];
    assert!(hosts.daemons[2].terminate().success());
    fs::remove_dir_all(hosts.daemons[2].pins()).expect("the data plane can be removed");
    hosts.configure(2, false);
    hosts.daemons[2].restart(lab);
    assert!(hosts.daemons[2].terminate().success());
    hosts.configure(2, true);
    hosts.daemons[2].restart(lab);
    hosts.wait_complete();
    sleep(Duration::from_millis(2300));
    let groups = groups(&hosts);
    let sizes: Vec<_> = groups.iter().map(|group| list(group, "hosts").len()).collect();
    assert_eq!(sizes, [2, 1], "{groups:#?}");
    assert_eq!(text(&list(&groups[1], "hosts")[0], "host"), "edge-2");
    let found = number(&groups[0]["distinct"], "sources");
    assert!((found / 12_000.0 - 1.0).abs() < 4.0 * 0.01625, "{found}");
    for flood in floods {
        let _sent = flood.stop();
    }
}

#[test]
fn peers_tell_of_clocks_lag_limits_and_what_is_refused() {
    let hosts = Hosts::start(3);
    // Some pings.
    sleep(Duration::from_millis(2500));
    let peers = hosts.ask(2, &["peers"]);
    assert_eq!(peers.code, 0, "{peers:?}");
    let peers = peers.json;
    let names: Vec<_> = list(&peers, "peers").iter().map(|peer| text(peer, "host")).collect();
    assert_eq!(names, ["edge-0", "edge-1", "edge-2"]);
    for (host, peer) in list(&peers, "peers").iter().enumerate() {
        let wanted = if host == 2 { "this" } else { "alive" };
        assert_eq!(text(peer, "state"), wanted);
        assert_eq!(text(peer, "address"), format!("{}:7700", Fleet::address(host)));
        let details = &peer["details"];
        assert_eq!((number(details, "members"), &details["limits_same"]), (3.0, &true.into()));
        assert!(number(&details["lag_ms"], "p50") > 0.0);
        if host < 2 {
            // All have one clock here.
            let (ahead, error) =
                (number(&peer["clock"], "ahead_ms"), number(&peer["clock"], "error_ms"));
            println!("edge-{host}: {ahead:+.3} ms ahead, give or take {error:.3} ms");
            assert!(ahead.abs() <= error + 0.001 && error < 50.0, "{peer:#}");
        }
    }
    let lag = &peers["lag_ms"];
    println!("round trips: p50 {:.2} ms, p99 {:.2} ms", number(lag, "p50"), number(lag, "p99"));
    // Nonsense from somebody without the key is counted, and explained.
    let target = format!(
        "exec 3<>/dev/udp/{}/7700; for i in 1 2 3; do printf hello >&3; done",
        Fleet::address(0)
    );
    let mut shell = hosts.fleet.hosts[1].receiver.command(&tools::BASH);
    assert!(shell.args(["-c", &target]).status().expect("a shell").success());
    wait_for("the count", TIMEOUT, || {
        let peers = hosts.ask(1, &["peers"]).json;
        let refused = list(&list(&peers, "peers")[0]["details"], "refused").to_vec();
        let foreign = refused.iter().find(|refused| text(refused, "reason") == "foreign")?;
        assert!(text(foreign, "meaning").contains("not from a limiter"));
        (number(foreign, "packets") == 3.0).then_some(())
    });
    let mut printed = tools::own(limiter_binary());
    let printed = printed.arg("--socket").arg(hosts.daemons[1].socket()).arg("peers").output();
    let printed = String::from_utf8(printed.expect("it runs").stdout).expect("text");
    println!("{printed}");
    assert!(printed.contains("edge-0") && printed.contains("not from a limiter"), "{printed}");
}

#[test]
fn what_all_hosts_let_through_is_counted_and_told() {
    let hosts = Hosts::start(3);
    let set = ["limit", "set", "2kpps", "--burst", "400", "--scope", "cluster"];
    hosts.daemons[0].cli().ok(&set);
    let source = Ipv4Addr::new(198, 51, 100, 9);
    let stream = || vec![Stream::new(frame::udp(source.into(), 100), 4000.0, u64::MAX)];
    let sending: Vec<_> =
        hosts.fleet.hosts.iter().map(|lab| Sender::new(lab).start(stream())).collect();
    let overage = |host: usize| {
        let status = hosts.ask(host, &["status"]).json;
        list(&status, "overage").iter().find(|it| text(it, "limit") == "default").cloned()
    };
    sleep(Duration::from_secs(16));
    for host in 0..3 {
        let found = wait_for("the limit to be judged", TIMEOUT, || overage(host));
        let (ratio, passed) = (number(&found, "ratio"), number(&found, "passed"));
        let seconds = number(&found, "seconds");
        println!(
            "edge-{host}: {passed} packets passed in {seconds:.1} s: {ratio:.3} of what may be"
        );
        assert!((0.3..=1.0).contains(&ratio), "{found:#}");
        assert_eq!(number(&found, "bound"), 1.0);
    }
    drop(Sending::stop_all(sending));
    // One is refused: without any there is no such count.
    let target = format!("echo hello > /dev/udp/{}/7700", Fleet::address(1));
    let mut shell = hosts.fleet.hosts[0].receiver.command(&tools::BASH);
    assert!(shell.args(["-c", &target]).status().expect("a shell").success());
    // All that rules and dashboard ask for is there, and all that there is can be seen.
    let socket = hosts.daemons[1].socket();
    let metrics = wait_for("the refused one to be counted", TIMEOUT, || {
        let (_, metrics) = tests::api::get(&socket, "/metrics", "text/plain");
        metrics.contains("\nlimiter_cluster_refused_packets_total{").then_some(metrics)
    });
    let there: BTreeSet<_> =
        metrics.lines().filter(|line| !line.starts_with('#')).flat_map(clustered).collect();
    assert!(there.len() >= 9, "{there:?}");
    let file = |name| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging");
        fs::read_to_string(format!("{folder}/{name}")).expect("a file of the package")
    };
    let (rules, dashboard) = (file("prometheus/limiter.rules.yml"), file("grafana/limiter.json"));
    let asked = clustered(&rules);
    assert!(asked.len() >= 4 && asked.is_subset(&there), "{asked:?} of {there:?}");
    assert_eq!(clustered(&dashboard), there);
    let peers = hosts.ask(2, &["peers"]).json;
    assert!(!list(&peers, "overage").is_empty(), "{peers:#}");
}

#[test]
fn a_host_in_no_cluster_says_so() {
    let lab = tests::Lab::new(1);
    let daemon = Daemon::start(&lab);
    for arguments in [&["peers"][..], &["top", "--cluster"], &["show", "192.0.2.1", "--cluster"]] {
        let told = daemon.cli().run(arguments);
        assert_eq!(told.code, 1, "{told:?}");
        assert!(told.json["error"]["message"].to_string().contains("in no cluster"), "{told:?}");
        assert!(told.json["error"]["hint"].is_string(), "{told:?}");
    }
    let told = daemon.cli().run(&["top", "--cluster", "--by", "prefix"]);
    assert_eq!(told.code, 1, "{told:?}");
    let told = daemon.cli().run(&["top", "--cluster", "--by", "port"]);
    assert_eq!(told.code, 2, "{told:?}");
}
