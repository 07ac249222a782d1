//! `/metrics`: what it says, that Prometheus' own tools accept it, the rules and the dashboard, and what a
//! hundred scrapes a second cost.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{
    Cli, Daemon, DaemonOptions, Flood, Lab, Observer, Sender, Sources, Stream, api, frame,
    machine::median, observer::Then, process, reports::Stats, v4,
};

const CLASSIC: &str = "text/plain;version=0.0.4";
const OPENMETRICS: &str = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";

/// Where the files for Prometheus and Grafana are.
fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

/// The samples of a scrape, by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    });
    samples.collect()
}

fn scrape(daemon: &Daemon) -> BTreeMap<String, f64> {
    let (kind, text) = api::get(&daemon.socket(), "/metrics", CLASSIC);
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    samples(&text)
}

/// Asserts that a scrape has the counters of `stats`.
fn assert_same(samples: &BTreeMap<String, f64>, stats: &Stats) {
    for counter in &stats.counters {
        let labels = format!("verdict=\"{}\",reason=\"{}\"", counter.verdict, counter.reason);
        for (what, value) in [("packets", counter.packets), ("bytes", counter.bytes)] {
            let name = format!("limiter_{what}_total{{{labels}}}");
            assert_eq!(samples.get(&name), Some(&(value as f64)), "{name}");
        }
    }
    let sum = |prefix: &str| -> f64 {
        samples.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, value)| value).sum()
    };
    assert_eq!(sum("limiter_packets_total{"), stats.total.packets as f64);
    assert_eq!(sum("limiter_bytes_total{"), stats.total.bytes as f64);
    assert_eq!(samples["limiter_promotions_total"], stats.internal.promotions as f64);
    assert_eq!(samples["limiter_bucket_misses_total"], stats.internal.set_full as f64);
}

#[test]
fn a_scrape_says_what_stats_say_also_after_a_restart() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    cli.limit("1000pps", Some("2000"), None);
    cli.ok(&["deny", "add", "198.51.100.99"]);
    cli.ok(&["allow", "add", "198.51.100.98"]);
    let _flooded = Flood::new(Sources::One(v4(1)), 50_000).send(&lab);
    let _flooded = Flood::new(Sources::One(v4(99)), 1000).send(&lab);
    let crowd = Sources::RoundRobin(Ipv4Addr::new(10, 0, 0, 0).into(), 5000);
    let _flooded = Flood::new(crowd, 100_000).send(&lab);
    let stats = daemon.assert_accounted(&lab);
    let first = scrape(&daemon);
    assert_same(&first, &stats);
    assert!(stats.packets("drop", "over_limit") > 0 && stats.packets("drop", "denied") == 1000);
    let status = cli.run(&["status"]).json;
    let table = &status["table"];
    let buckets = ["free", "idle", "busy"]
        .map(|state| first[&format!("limiter_buckets{{state=\"{state}\"}}")]);
    assert_eq!(Some(buckets.iter().sum::<f64>()), table["capacity"].as_f64());
    assert_eq!(first["limiter_tracked_sources"], buckets[1] + buckets[2], "{table:#}");
    assert_eq!(first["limiter_list_entries{list=\"deny\"}"], 1.0);
    assert_eq!(first["limiter_list_entries{list=\"allow\"}"], 1.0);
    assert_eq!(first["limiter_limits"], 1.0);
    assert_eq!(first["limiter_interface_info{interface=\"rx0\",mode=\"native\"}"], 1.0);
    assert_eq!(first["limiter_degraded"], 0.0, "{status:#}");
    assert!(first["limiter_core_work_seconds_count"] > 5.0);
    let named = first.keys().any(|name| name.contains("198.51") || name.contains("10.0."));
    assert!(!named, "no metric is labelled by a source");

    // Under traffic no counter ever falls.
    let flooding = Flood::new(Sources::One(v4(1)), 400_000).at_rate(100_000).start(&lab);
    let mut before = first;
    let counts = |name: &str| name.split('{').next().is_some_and(|name| name.ends_with("_total"));
    for _ in 0..10 {
        let after = scrape(&daemon);
        for (name, value) in before.iter().filter(|(name, _)| counts(name)) {
            assert!(after[name] >= *value, "{name}: {value}, then {}", after[name]);
        }
        before = after;
        thread::sleep(Duration::from_millis(100));
    }
    daemon.kill();
    daemon.restart(&lab);
    let after = scrape(&daemon);
    for (name, value) in before.iter().filter(|(name, _)| counts(name)) {
        assert!(after[name] >= *value, "{name}: {value}, after a restart {}", after[name]);
    }
    let _flooded = flooding.join();
    let stats = daemon.assert_accounted(&lab);
    assert_same(&scrape(&daemon), &stats);
}

/// Runs promtool on files of the repository.
fn promtool(folder: &Path, arguments: &[&str]) -> String {
    let mut command = tools::PROMTOOL.command();
    process::run(command.args(arguments).current_dir(folder))
}

/// Has promtool check `text`, and returns what it finds fault with.
fn check_metrics(text: &str) -> (bool, String) {
    let mut child = tools::PROMTOOL
        .command()
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs");
    child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn promtool_is_content() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1000pps", None, None);
    let _flooded = Flood::new(Sources::One(v4(1)), 10_000).send(&lab);
    let _counted = daemon.accounted(&lab);
    let (_, classic) = api::get(&daemon.socket(), "/metrics", CLASSIC);
    let (fine, said) = check_metrics(&classic);
    assert!(fine && said.is_empty(), "{said}\n{classic}");
    // It does find fault where there is some.
    let (fine, said) =
        check_metrics(&classic.replace("limiter_promotions_total", "limiter_promotions"));
    assert!(!fine && said.contains("limiter_promotions"), "{said}");

    // The newer format has the same samples, but for what goes on meanwhile.
    let (kind, newer) = api::get(&daemon.socket(), "/metrics", OPENMETRICS);
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    assert!(newer.ends_with("\n# EOF\n") && !classic.contains("# EOF"), "{newer}");
    let names = |text: &str| samples(text).into_keys().collect::<BTreeSet<_>>();
    assert_eq!(names(&newer), names(&classic));
    for line in newer.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a name and a type");
        assert_eq!(kind == "counter", classic.contains(&format!("# TYPE {name}_total counter\n")));
    }

    let folder = packaging().join("prometheus");
    let checked = promtool(&folder, &["check", "rules", "limiter.rules.yml"]);
    assert!(checked.contains("SUCCESS: 27 rules found"), "{checked}");
    println!("{}", promtool(&folder, &["test", "rules", "limiter.rules.test.yml"]));
}

/// The metrics that a PromQL expression, or any text, names.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.starts_with("limiter_")).map(str::to_owned).collect()
}

/// All values of `key` anywhere in `value`.
fn values_of<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get(key));
            object.values().for_each(|value| values_of(value, key, found));
        }
        Value::Array(array) => array.iter().for_each(|value| values_of(value, key, found)),
        _ => {}
    }
}

#[test]
fn rules_and_dashboard_name_what_there_is() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let samples = scrape(&daemon);
    let names: BTreeSet<&str> = samples.keys().filter_map(|name| name.split('{').next()).collect();
    // Only there where sources are counted.
    let counted = ["limiter_distinct_sources", "limiter_distinct_sources_standard_error_ratio"];
    // Only there in a cluster: see `cluster_views.rs`.
    let clustered = |name: &str| name.starts_with("limiter_cluster_");
    // Of another process, and only there with strict limits: see `store_strict.rs` and `strict_packets.rs`.
    let of_store = |name: &str| ["limiter_serve_store_up", "limiter_leases_up"].contains(&name);
    let known = |name: &str| {
        names.contains(name) || counted.contains(&name) || clustered(name) || of_store(name)
    };

    let text = fs::read_to_string(packaging().join("grafana/limiter.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let mut expressions = Vec::new();
    for key in ["expr", "definition"] {
        values_of(&dashboard, key, &mut expressions);
    }
    assert!(expressions.len() >= 50, "{}", expressions.len());
    let mut shown = BTreeSet::new();
    for expression in expressions {
        let expression = expression.as_str().expect("an expression");
        let found = named(expression);
        let unknown: Vec<_> = found.iter().filter(|name| !known(name)).collect();
        assert!(!found.is_empty() && unknown.is_empty(), "{expression}: {unknown:?}");
        shown.extend(found);
    }
    let mut sources = Vec::new();
    values_of(&dashboard["panels"], "datasource", &mut sources);
    assert!(sources.iter().all(|source| source["uid"] == "${datasource}"), "the variable");
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
    // All there is can be seen, but for what belongs to a histogram and how old something is.
    let hidden = |name: &str| {
        let part = ["_bucket", "_sum", "_count"].iter().any(|part| name.ends_with(part));
        part || ["limiter_table_look_age_seconds", "limiter_distinct_sources_window_seconds"]
            .contains(&name)
    };
    let missing: Vec<_> =
        names.iter().filter(|name| !hidden(name) && !shown.contains(**name)).collect();
    assert!(missing.is_empty(), "not on the dashboard: {missing:?}");

    let rules =
        fs::read_to_string(packaging().join("prometheus/limiter.rules.yml")).expect("rules");
    let found = named(&rules);
    assert!(found.len() > 10, "{found:?}");
    // What rules record has a colon before it.
    let unknown: Vec<_> = found.iter().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    // Each alert says what to run.
    let alerts = rules.matches("- alert:").count();
    assert_eq!(rules.matches("summary:").count(), alerts);
    for alert in rules.split("- alert:").skip(1) {
        assert!(alert.contains('`'), "no command: {alert}");
    }
}

/// CPU time that a process has used, and its resident memory in bytes.
fn usage(pid: u32) -> (Duration, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    let number = |at: usize| -> u64 { fields[at].parse().expect("a number") };
    // In hundredths of a second, and in pages.
    (Duration::from_millis(10 * (number(11) + number(12))), 4096 * number(21))
}

/// Runs `status` four times a second for so long, as an operator would. How long each took, s.
fn statuses(cli: &Cli, length: Duration) -> Vec<f64> {
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < length {
        let asked = Instant::now();
        let answer = cli.run(&["status"]);
        assert!(answer.code <= 1, "{answer:?}");
        times.push(asked.elapsed().as_secs_f64());
        thread::sleep(Duration::from_millis(250).saturating_sub(asked.elapsed()));
    }
    times
}

#[test]
fn a_hundred_scrapes_a_second_under_a_flood_cost_little() {
    const SECONDS: u64 = 8;
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::default());
    let cli = &daemon.cli();
    // A table of a quarter of a million sources: a look at it takes a moment.
    cli.limit("1/hour", Some("8"), None);
    let limit = cli.limit("1000pps", Some("2000"), Some("198.51.100.0/24"));
    let observer = Observer::new(&lab, Then::Discard, &["10.0.0.0/8"]);
    let crowd = Sources::RoundRobin(Ipv4Addr::new(10, 0, 0, 0).into(), 1 << 18);
    let flooding = Flood::new(crowd, u64::MAX).at_rate(200_000).start(&lab);
    thread::sleep(Duration::from_secs(3));
    let warm = scrape(&daemon);
    assert!(warm["limiter_tracked_sources"] > 200_000.0);
    let measure = |work: &dyn Fn()| {
        let (cpu, memory) = usage(daemon.pid());
        let start = Instant::now();
        work();
        let (later, grown) = usage(daemon.pid());
        let share = (later - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
        (100.0 * share, grown.saturating_sub(memory))
    };
    let (idle, _) = measure(&|| thread::sleep(Duration::from_secs(SECONDS / 2)));
    let alone = statuses(cli, Duration::from_secs(2));
    // One is over its limit, another keeps to it, while all this goes on.
    let stream = |host, rate: f64| {
        Stream::new(frame::udp(v4(host), 100), rate, (rate * (SECONDS - 1) as f64) as u64)
    };
    let sending = Sender::new(&lab).start(vec![stream(66, 5000.0), stream(10, 900.0)]);
    let operator = thread::spawn({
        let cli = cli.clone();
        move || statuses(&cli, Duration::from_secs(SECONDS - 1))
    });
    let start = Instant::now();
    let slowest = Cell::new(Duration::ZERO);
    let (busy, grown) = measure(&|| {
        for scrapes in 0..100 * SECONDS as u32 {
            let due = Duration::from_millis(10) * scrapes;
            thread::sleep(due.saturating_sub(start.elapsed()));
            let asked = Instant::now();
            let samples = scrape(&daemon);
            assert!(samples["limiter_table_look_age_seconds"] <= 5.0);
            slowest.set(slowest.get().max(asked.elapsed()));
        }
    });
    let rate = 100.0 * SECONDS as f64 / start.elapsed().as_secs_f64();
    let sent = sending.join();
    let beside = operator.join().expect("every status is answered");
    let observed = observer.read();
    let _flooded = flooding.stop();
    println!(
        "{rate:.0} scrapes a second: {busy:.1} % of a CPU, {idle:.1} % without; slowest {:?}; \
         {grown} bytes more memory",
        slowest.get()
    );
    let worst = beside.iter().copied().fold(0.0, f64::max);
    println!(
        "status takes {:.0} ms in the median beside them and {:.0} at most, {:.0} without them",
        1e3 * median(&beside),
        1e3 * worst,
        1e3 * median(&alone)
    );
    assert!(busy - idle < 40.0, "{busy:.1} % of a CPU");
    assert!(grown < 16 << 20, "{grown} bytes more memory");
    assert!(beside.len() as u64 > SECONDS && worst < 2.0, "{beside:.3?}");
    limit.assert_admitted("flood", observed.from(v4(66)), [&sent[0]]);
    assert_eq!(observed.from(v4(10)), sent[1].packets(), "it keeps to its limit");
    daemon.assert_accounted(&lab);
}
