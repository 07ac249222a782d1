//! `limiter top`: what it counts against what was sent, and what a user sees in a terminal.

use std::{
    cmp::Reverse,
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Lab, Sender, Stream, frame, pcap, screen::Screen, v4, v6, zipf::Zipf,
};

/// Lines that are compared.
const LINES: usize = 20;

/// What a source has sent.
#[derive(Clone, Copy, Debug, Default)]
struct Exact {
    packets: u64,
    bytes: u64,
}

/// Counts by source, without the limiter.
fn count(frames: &[Vec<u8>]) -> HashMap<IpAddr, Exact> {
    let mut counts: HashMap<IpAddr, Exact> = HashMap::new();
    for frame in frames {
        if let Some(source) = pcap::source(frame) {
            let count = counts.entry(source).or_default();
            count.packets += 1;
            count.bytes += frame.len() as u64;
        }
    }
    counts
}

fn number(entry: &Value, name: &str) -> u64 {
    entry[name].as_u64().unwrap_or_else(|| panic!("no {name} in {entry:#}"))
}

fn address(entry: &Value) -> IpAddr {
    let text = entry["source"].as_str().and_then(|text| text.split('/').next());
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no source in {entry:#}"))
}

/// Sends `frames` once, at `rate`, past a daemon with a limit, and compares `top` with exact counts.
/// Returns the largest bound that it tells, and the largest error that it has.
fn compare(name: &str, frames: &[Vec<u8>], rate: f64, limit: (&str, &str)) -> (u64, u64) {
    let lab = Lab::new(1);
    // So large a table that no seventh source meets a set: a slow limit may have six of its ways. What the link
    // needs counts, too.
    let options = ["--max-sources", "2000000", "--link-control", "limit"];
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&options));
    let cli = daemon.cli();
    cli.limit(limit.0, Some(limit.1), None);
    let stream = Stream::cycle(frames.to_vec(), rate, frames.len() as u64);
    let sent = Sender::new(&lab).send(vec![stream]);
    assert_eq!(sent[0].packets(), frames.len() as u64);
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(daemon.received(&lab), frames.len() as u64, "every frame arrives");
    assert_eq!((stats.internal.evictions, stats.internal.set_full), (0, 0));
    let exact = count(frames);
    let (mut bound, mut worst) = (0, 0);
    for sort in ["packets", "bytes"] {
        let top = cli.ok(&["top", "--once", "-n", &LINES.to_string(), "--sort", sort]);
        let entries = top["sources"].as_array().expect("sources");
        assert_eq!(entries.len(), LINES.min(exact.len()), "{name}");
        let weigh = |exact: &Exact| if sort == "packets" { exact.packets } else { exact.bytes };
        let mut order: Vec<_> = exact.iter().collect();
        order.sort_by_key(|(source, exact)| (Reverse(weigh(exact)), **source));
        let mut told = Vec::new();
        for entry in entries {
            let true_count = exact[&address(entry)];
            let packets = number(entry, "passed") + number(entry, "dropped");
            let uncounted = number(entry, "uncounted");
            let error = true_count.packets.checked_sub(packets);
            let error =
                error.unwrap_or_else(|| panic!("{name}: too many: {entry:#} {true_count:?}"));
            assert!(error <= uncounted, "{name}: {error} > {uncounted}: {entry:#} {true_count:?}");
            (bound, worst) = (uncounted.max(bound), error.max(worst));
            told.push(address(entry));
        }
        // In the very order, as far as the counts are far enough from each other; of equal ones any is right.
        let largest = frames.iter().map(Vec::len).max().unwrap_or_default() as u64;
        let slack = if sort == "packets" { bound } else { bound * largest };
        for (place, (source, (_, wanted))) in told.iter().zip(&order).enumerate() {
            let found = weigh(&exact[source]);
            let off = found.abs_diff(weigh(wanted));
            assert!(off <= slack, "{name} by {sort}: place {place} has {source} with {found}");
        }
        let same = told.iter().zip(&order).filter(|(told, (wanted, _))| *told == *wanted).count();
        println!(
            "{name} by {sort}: {} frames of {} sources, {same} of {} in the same place, error at \
             most {worst}, bound {bound}",
            frames.len(),
            exact.len(),
            told.len()
        );
    }
    (bound, worst)
}

#[test]
fn top_agrees_with_exact_counts_of_a_zipf_flood() {
    let mut zipf = Zipf::new(11);
    let first = Ipv4Addr::new(10, 0, 0, 0).to_bits();
    let frames: Vec<_> = (0..200_000)
        .map(|i| {
            let source = Ipv4Addr::from_bits(first + zipf.source());
            frame::udp(source.into(), 64 + i % 7 * 50)
        })
        .collect();
    // Slow limits have no gate: a bucket counts its source's first packet.
    assert_eq!(compare("zipf, 5pps", &frames, 100_000.0, ("5pps", "20")), (0, 0));
    // With a gate, some packets pass before a source has one.
    let (bound, worst) = compare("zipf, 1000pps", &frames, 100_000.0, ("1000pps", "2000"));
    assert!(bound == 30 && worst > 0, "the gate is at work: {worst} of {bound}");
}

#[test]
fn top_agrees_with_exact_counts_of_real_captures() {
    let Some(folder) = pcap::captures() else { return };
    for name in ["srvloc.pcap", "gnutella.pcap", "bot.pcap", "reddit.pcap"] {
        let frames = pcap::read(&folder.join(name)).expect("a capture can be read");
        let mut frames = frames.unwrap_or_else(|| panic!("{name} is no pcap file of Ethernet"));
        // What the wire takes, whose source can be read.
        frames.retain(|frame| frame.len() <= 1514 && pcap::source(frame).is_some());
        assert!(frames.len() > 200, "{name}: {} frames", frames.len());
        assert_eq!(compare(name, &frames, 20_000.0, ("5pps", "20")), (0, 0), "{name}");
    }
}

#[test]
fn neighbours_and_classes_are_summed_up() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    cli.limit("5pps", Some("10"), None);
    cli.ok(&["limit", "set", "6pps", "--burst", "10", "--proto", "udp", "--dport", "53"]);
    let mut streams = Vec::new();
    for host in 1..=40 {
        streams.push(Stream::new(frame::udp(v4(host), 64), 2000.0, 25).with_burst(25));
        streams.push(Stream::new(frame::udp_to(v4(host), 64, 53), 2000.0, 15).with_burst(15));
    }
    // Ten /64s of one /56, and one elsewhere.
    for site in (0..10).chain([0x500]) {
        streams.push(Stream::new(frame::udp(v6(site, 1), 80), 2000.0, 20).with_burst(20));
    }
    let _sent = Sender::new(&lab).send(streams);
    daemon.assert_accounted(&lab);
    let groups = |by: &str| {
        let report = cli.ok(&["top", "--by", by, "--sort", "packets"]);
        assert_eq!(report["tracked"].as_u64(), Some(91), "{report:#}");
        let groups = report["groups"].as_array().expect("groups").iter();
        let groups = groups.map(|group| {
            let packets = number(group, "passed") + number(group, "dropped");
            (group["group"].as_str().expect("a name").to_owned(), number(group, "sources"), packets)
        });
        groups.collect::<Vec<_>>()
    };
    let wanted = [
        ("198.51.100.0/24".to_owned(), 80, 1600),
        ("2001:db8:7::/56".to_owned(), 10, 200),
        ("2001:db8:7:500::/64".to_owned(), 1, 20),
    ];
    assert_eq!(groups("prefix"), wanted);
    assert_eq!(groups("class"), [("any".to_owned(), 51, 1220), ("udp:53".to_owned(), 40, 600)]);
}

#[test]
fn a_user_watches_a_flood_in_a_terminal() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    daemon.cli().limit("100pps", Some("100"), None);
    let mut screen = Screen::start(&daemon.socket(), &["top"], 30, 130);
    screen.wait("health", |text| text.contains("limiter top  state ok"));
    screen.wait("empty list", |text| text.contains("No source sends enough"));

    // A flood appears, with one that keeps to its limit.
    let start = Instant::now();
    let flood = Stream::new(frame::udp(v4(7), 64), 5000.0, u64::MAX);
    let modest = Stream::new(frame::udp(v4(8), 64), 80.0, u64::MAX).with_burst(60);
    let sending = Sender::new(&lab).start(vec![flood, modest]);
    screen.wait("flood", |text| text.contains("!198.51.100.7"));
    let seconds = start.elapsed().as_secs_f64();
    println!("the flood is on the screen after {seconds:.2} s");
    assert!(seconds < 2.0, "the flood is on the screen after {seconds:.2} s");
    let line_of = |text: &str, source: &str| {
        text.lines().position(|line| line.contains(source)).unwrap_or(usize::MAX)
    };
    let text = screen.wait("rates", |text| {
        text.contains("198.51.100.8 ") && (text.contains("5.00k") || text.contains("4.9"))
    });
    println!("{text}");
    assert!(line_of(&text, "198.51.100.7") < line_of(&text, "198.51.100.8"));
    assert!(text.contains("limited") && text.contains("conforming") && text.contains("100pps"));

    screen.press("p");
    screen.wait("order", |text| text.contains("most pps first"));
    screen.press("/10.9.0.0/16\r");
    screen.wait("filter", |text| text.contains("The filter 10.9.0.0/16 matches none of the 2"));
    screen.press("/\x7f\x7f99\r");
    screen.wait("complaint", |text| text.contains("is not a prefix"));
    screen.press("\x1b");
    std::thread::sleep(Duration::from_millis(300));
    screen.press("/\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7fconforming\r");
    screen.wait("filter", |text| !text.contains("100.7 ") && text.contains("198.51.100.8 "));
    screen.press("\x1b");
    screen.wait("all lines", |text| text.contains("!198.51.100.7"));

    screen.press(" ");
    screen.wait("pause", |text| text.contains("PAUSED"));
    std::thread::sleep(Duration::from_millis(200));
    let lines = |text: String| text.lines().skip(1).collect::<Vec<_>>().join("\n");
    let before = lines(screen.text());
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(lines(screen.text()), before, "nothing changes in a pause");
    screen.press(" ");
    screen.wait("new counts", |text| !text.contains("PAUSED") && lines(text.into()) != before);

    screen.press("\r");
    let text = screen.wait("source", |text| {
        text.contains("198.51.100.7 pps now") && text.contains("last drop  over_limit")
    });
    println!("{text}");
    screen.press("\x1b");
    screen.wait("list", |text| text.contains("SOURCE"));

    screen.resize(10, 40);
    let text = screen.wait("narrow list", |text| {
        text.contains("198.51.100.7") && !text.contains("LIMIT") && text.contains("DROPPED")
    });
    println!("{text}");
    screen.resize(3, 8);
    std::thread::sleep(Duration::from_millis(300));
    screen.resize(30, 130);
    screen.wait("wide list", |text| text.contains("LIMIT"));

    daemon.kill();
    screen.wait("trouble", |text| text.contains("NO ANSWER, trying again"));
    daemon.restart(&lab);
    screen.wait("daemon", |text| !text.contains("NO ANSWER") && text.contains("state ok"));

    assert!(!screen.is_restored(), "it uses the terminal as programs do");
    screen.press("q");
    assert_eq!(screen.ended(), 0);
    assert!(screen.is_restored());
    let _sent = sending.stop();
}

#[test]
fn the_terminal_is_restored_however_it_ends() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    for end in ["ctrl-c", "SIGTERM", "SIGINT"] {
        let mut screen = Screen::start(&daemon.socket(), &["top", "--by", "prefix"], 24, 80);
        screen.wait("screen", |text| text.contains("by prefix"));
        let signal = match end {
            "ctrl-c" => {
                screen.press("\x03");
                None
            }
            "SIGTERM" => Some(libc::SIGTERM),
            _ => Some(libc::SIGINT),
        };
        if let Some(signal) = signal {
            // SAFETY: kill takes plain numbers; the process is this test's child.
            assert_eq!(unsafe { libc::kill(screen.pid(), signal) }, 0);
        }
        assert_eq!(screen.ended(), 0, "{end}");
        assert!(screen.is_restored(), "{end}");
    }
    // Without a terminal there is nothing to watch.
    let refused = tests::process::output(
        tools::own(tests::cli::limiter_binary()).arg("--socket").arg(daemon.socket()).arg("top"),
    );
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--once"), "{refused:?}");
}

/// The sources that `top` lists, and the packets per second of each.
fn listed(top: &Value) -> Vec<(IpAddr, f64)> {
    let entries = top["sources"].as_array().expect("sources").iter();
    entries.map(|entry| (address(entry), entry["pps"].as_f64().expect("a rate"))).collect()
}

#[test]
fn where_nothing_is_dropped_who_sends_most_comes_first_and_who_is_silent_sends_nothing() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    // A bucket from the first packet on, and no drops.
    cli.limit("5pps", Some("20000"), None);
    let stream = |source, rate| Stream::new(frame::udp(source, 64), rate, u64::MAX);
    let mut streams: Vec<_> = (1..=30).map(|host| stream(v4(host), 15.0)).collect();
    streams.extend([stream(v6(7, 1), 1500.0), stream(v4(200), 300.0)]);
    let sending = Sender::new(&lab).start(streams);
    std::thread::sleep(Duration::from_millis(800));
    let top = cli.ok(&["top", "-n", "2"]);
    let heaviest = listed(&top);
    assert_eq!([heaviest[0].0, heaviest[1].0], [v6(7, 0), v4(200)], "{top:#}");
    assert!(heaviest[0].1 > 500.0, "of the last moments: {top:#}");
    assert!((0.2..5.0).contains(&top["sources"][0]["pps_seconds"].as_f64().expect("a time")));
    assert_eq!(number(&top["sources"][0], "dropped"), 0);
    let groups = cli.ok(&["top", "--by", "prefix", "-n", "1"]);
    assert_eq!(groups["groups"][0]["group"], "2001:db8:7:7::/64", "{groups:#}");
    let shown = cli.ok(&["show", &v4(200).to_string()]);
    assert!(shown["pps"].as_f64().is_some_and(|pps| pps > 50.0), "{shown:#}");
    let _sent = sending.stop();

    // The first look is compared with one of while they sent, the second one is not.
    cli.ok(&["top"]);
    std::thread::sleep(Duration::from_millis(250));
    let silent = listed(&cli.ok(&["top"]));
    assert!(silent.iter().all(|(_, pps)| *pps == 0.0), "{silent:?}");
    assert_eq!(silent[0].0, v6(7, 0), "then who has sent most");
    assert_eq!(cli.ok(&["show", &v4(200).to_string()])["pps"], 0.0);
}

#[test]
fn buckets_for_a_class_that_has_gone_are_gone() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    cli.limit("5pps", Some("50"), None);
    let dns = ["--proto", "udp", "--dport", "53"];
    let inside = [&["--for", "198.51.100.0/28"][..], &dns].concat();
    cli.ok(&[&["limit", "set", "6pps", "--burst", "10"][..], &dns].concat());
    let send = |lab: &Lab| {
        let both = |source| {
            let frames = [frame::udp_to(source, 64, 53), frame::udp(source, 64)];
            frames.map(|frame| Stream::new(frame, 500.0, 200))
        };
        let _sent = Sender::new(lab).send([v4(1), v4(99)].into_iter().flat_map(both).collect());
    };
    // The class and the packets dropped of each bucket, by source.
    let buckets = |cli: &tests::Cli| {
        let top = cli.ok(&["top"]);
        let entries = top["sources"].as_array().expect("sources").iter();
        let mut buckets: Vec<_> = entries
            .map(|entry| {
                let class = entry["class"].as_str().unwrap_or("any").to_owned();
                (address(entry), class, number(entry, "dropped"))
            })
            .collect();
        buckets.sort();
        assert_eq!(top["tracked"].as_u64(), Some(buckets.len() as u64), "{top:#}");
        buckets
    };
    let names = |buckets: &[(IpAddr, String, u64)]| -> Vec<_> {
        buckets.iter().map(|(source, class, _)| format!("{source} {class}")).collect()
    };
    send(&lab);
    let before = buckets(&cli);
    let all =
        ["198.51.100.1 any", "198.51.100.1 udp:53", "198.51.100.99 any", "198.51.100.99 udp:53"];
    assert_eq!(names(&before), all);

    // While any limit is for the class, its buckets keep what they owe.
    cli.ok(&[&["limit", "set", "6pps", "--burst", "10"][..], &inside].concat());
    cli.ok(&[&["limit", "unset"][..], &dns].concat());
    assert_eq!(names(&buckets(&cli)), all);
    cli.ok(&[&["limit", "unset"][..], &inside].concat());
    let after = buckets(&cli);
    assert_eq!(names(&after), [all[0], all[2]]);
    assert_eq!(after[0].2, before[0].2, "what the others count stays");
    assert_eq!(cli.ok(&["show", "198.51.100.1"])["classes"], Value::Null);

    // Nor does a restart bring them back, and what is sent now has one bucket.
    daemon.kill();
    daemon.restart(&lab);
    assert_eq!(names(&buckets(&daemon.cli())), [all[0], all[2]]);
    send(&lab);
    assert_eq!(names(&buckets(&daemon.cli())), [all[0], all[2]]);
    daemon.assert_accounted(&lab);
}

#[test]
fn a_list_fits_the_terminal_and_is_complete_elsewhere() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("100pps", Some("100"), None);
    let _sent = Sender::new(&lab).send(vec![Stream::new(frame::udp(v4(7), 64), 5000.0, 2000)]);
    for (width, last) in [(80, true), (40, false)] {
        let mut screen = Screen::start(&daemon.socket(), &["top", "--once"], 24, width);
        let text = screen.wait("end", |text| text.contains("tracked sources"));
        assert_eq!(screen.ended(), 0);
        println!("{text}");
        let header = text.lines().next().expect("a header");
        assert!(header.starts_with("SOURCE") && header.contains("DROPPED"), "{text}");
        assert_eq!(header.contains("LAST"), last, "{text}");
        assert!(
            text.lines().nth(1).is_some_and(|line| line.starts_with("198.51.100.7 ")),
            "{text}"
        );
        assert!(!text.contains("Z"), "ages, not moments: {text}");
    }
    let mut command = tools::own(tests::cli::limiter_binary());
    let output = tests::process::output(
        command.arg("--socket").arg(daemon.socket()).args(["top", "--once"]),
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<_> = text.lines().next().unwrap_or_default().split_whitespace().collect();
    let wanted =
        "SOURCE CLASS STATE LIMIT FIRST SEEN LAST SEEN PPS BITS/S PASSED ERROR DROPPED BYTES";
    assert_eq!(words.join(" "), wanted);
}
