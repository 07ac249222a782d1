use std::collections::BTreeSet;
use std::path::Path;

use clap::FromArgMatches;
use serde_json::Value;

use super::settings::{Flag, Variable};
use super::*;
use crate::{LogFormat, RunArgs};
use api::error::{Failure, exit};
use model::Location;
use model::lists::Action;
use model::{Algorithm, Ban, Limit, Limits, OnError, Partition, Scope, Target};

/// What `limiter run` with `arguments` is given.
pub(super) fn given(arguments: &[&str]) -> Arguments {
    let all = ["limiter", "run"].iter().chain(arguments);
    let matches = RunArgs::command().get_matches_from(all);
    let run = matches.subcommand_matches("run").unwrap();
    let socket = "/run/limiter/limiter.sock".into();
    Arguments::new(RunArgs::from_arg_matches(run).unwrap(), socket, None, None, &[&matches, run])
}

pub(super) fn parse(text: &str) -> Result<ConfigFile, Failure> {
    ConfigFile::parse(Path::new("limiter.toml"), text.as_bytes())
}

fn settings(arguments: &[&str], text: &str) -> Result<Settings, Failure> {
    given(arguments).with(parse(text)?)
}

fn value(settings: &Settings, key: &str) -> Value {
    settings.values().into_iter().find(|(name, _)| name == key).unwrap().1
}

fn limit(target: &str, rate: &str, burst: Option<u64>) -> Limit {
    Limit::new(target.parse().unwrap(), rate.parse().unwrap(), burst).unwrap()
}

#[test]
fn the_default_file_is_the_default() {
    let none = given(&[]).with(ConfigFile::default()).unwrap();
    let commented = settings(&[], &default_file()).unwrap();
    assert_eq!(commented.values(), none.values());
    assert!(commented.file.limits().is_empty());
    // With every key in force it says the same; only the examples, which have no default, add to it.
    let example = example();
    let in_force = settings(&[], &example).unwrap();
    for ((key, value), (_, default)) in in_force.values().into_iter().zip(none.values()) {
        assert_eq!(in_force.origin_text(&key), format!("limiter.toml:{}", line_of(&example, &key)));
        let example = ["admin_group", "group_limit", "tunnels"].contains(&key.as_str())
            || key.starts_with("http_");
        let cluster = ["name", "listen", "advertise", "seeds", "bootstrap_expect"]
            .map(|key| format!("cluster_{key}"));
        if !example && !cluster.contains(&key) {
            assert_eq!(value, default, "{key}");
        }
    }
    let limits: Vec<_> = in_force.file.limits().iter().collect();
    let net = limit("203.0.113.0/24", "10mbit", Some(256_000)).enforced(false);
    let ban = Some(Ban { after: 5, factor: 10, lasts: 600, unverified: false });
    let dns = limit("default udp:53", "200pps", None).banning(ban).unwrap();
    let shared = limit("198.51.100.0/24 aggregate", "100kpps", Some(100_000));
    let shared = shared.and("1gbit".parse().unwrap(), Some(16_000_000)).unwrap();
    let shared = shared.reserving(20).unwrap();
    let scope = Scope::Cluster { partition: Partition::Auto };
    let wide = limit("192.0.2.0/24", "500pps", None).scoped(scope).unwrap();
    let strict = Scope::Strict { on_error: OnError::Lease };
    let leased = limit("192.0.2.64/26", "500pps", None).scoped(strict).unwrap();
    let rate = "100/minute".parse().unwrap();
    let target = "203.0.113.128/25".parse().unwrap();
    let windows = Limit::by(target, Algorithm::SlidingWindow, rate, None).unwrap();
    let default = limit("default", "1000pps", Some(2000));
    let [fragments, echo, answers] =
        [("*:fragments", "50pps"), ("icmp:8", "20pps"), ("udp:from-53", "1000pps")]
            .map(|(class, rate)| limit(&format!("default {class}"), rate, None));
    let service = limit("default udp@203.0.113.0/24", "500pps", None);
    let each = limit("203.0.113.0/25 any@each", "50kpps", None);
    let classes = [default, fragments, echo, service, dns, answers];
    assert_eq!(limits, [&classes[..], &[wide, leased, shared, net, each, windows]].concat());
    let denied = in_force.file.lists().iter().filter(|(_, entry)| entry.action == Action::Deny);
    assert_eq!((denied.count(), in_force.file.lists().len()), (2, 3));
}

fn line_of(text: &str, key: &str) -> usize {
    let start = |line: &str| line.starts_with(&format!("{key} =")) || line == format!("[{key}]");
    if let Some(inner) = key.strip_prefix("cluster_") {
        let table = line_of(text, "cluster");
        let rest: Vec<_> = text.lines().skip(table).collect();
        return table + line_of(&rest.join("\n"), inner);
    }
    text.lines().position(start).unwrap_or_else(|| panic!("{key} is not in the file")) + 1
}

#[test]
fn every_option_is_a_key_everywhere() {
    let command = RunArgs::command();
    let run = command.find_subcommand("run").unwrap();
    let ids = |arg: &clap::Arg| arg.get_id().to_string();
    let own = run.get_arguments().filter(|arg| !arg.is_global_set()).map(ids);
    let mut options: BTreeSet<_> = own.filter(|id| id != "help" && id != "version").collect();
    // That is something to do once, not to be found in a file.
    assert!(options.remove("reset_state"));
    options.insert("socket".into());
    let none = given(&[]).with(ConfigFile::default()).unwrap();
    let values: BTreeSet<_> = none.values().into_iter().map(|(key, _)| key).collect();
    assert_eq!(values, options, "what is shown");
    let schema = schema();
    let properties = schema["properties"].as_object().unwrap();
    let mut keys: BTreeSet<_> = properties
        .keys()
        .filter(|key| !["limit", "limits", "allow", "deny"].contains(&key.as_str()))
        .cloned()
        .collect();
    assert!(keys.remove("cluster"));
    let cluster = schema["$defs"]["ClusterArgs"]["properties"].as_object().unwrap();
    keys.extend(cluster.keys().map(|key| format!("cluster_{key}")));
    assert_eq!(keys, options, "what a file can have");
    assert_eq!(schema["additionalProperties"], false);
    for (key, property) in properties {
        assert!(property["description"].is_string(), "{key}");
    }
    for key in LIVE {
        assert!(keys.contains(key), "{key}");
    }
    // Every command has that one.
    assert!(options.remove("socket"));
    for key in &options {
        let arg = run.get_arguments().find(|arg| arg.get_id().as_str() == key).unwrap();
        let variable = arg.get_env().unwrap_or_else(|| panic!("{key} has no variable"));
        assert_eq!(variable.to_str(), Some(Variable(key).to_string().as_str()));
        assert_eq!(format!("--{}", arg.get_long().unwrap()), Flag(key).to_string());
    }
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let text = "max_sources = 4096\nmode = \"generic\"\ninterfaces = [\"eth7\"]\nreplace = true\n";
    let settings = settings(&["--mode", "native", "-i", "eth0", "--replace=false"], text).unwrap();
    for (key, wanted, origin) in [
        ("max_sources", Value::from(4096), "limiter.toml:1"),
        ("mode", "native".into(), "--mode"),
        ("interfaces", vec!["eth0"].into(), "--interface"),
        ("replace", false.into(), "--replace"),
        ("on_full", "pass".into(), "default"),
        ("sketch_window", "134ms".into(), "default"),
    ] {
        assert_eq!((value(&settings, key), settings.origin_text(key)), (wanted, origin.into()));
    }
    let daemon = settings.daemon();
    assert_eq!((daemon.options.max_sources, daemon.interfaces.len()), (4096, 1));
    assert!(!daemon.replace);
}

#[test]
fn the_log_is_as_the_file_says() {
    let text = "kernel_log = true\nlog_format = \"json\"\n";
    let log = |arguments: &[&str], text| {
        let settings = settings(arguments, text).unwrap();
        (settings.daemon().options.kernel_log, settings.log_format())
    };
    assert_eq!(log(&[], ""), (false, LogFormat::Text));
    assert_eq!(log(&[], text), (true, LogFormat::Json));
    assert_eq!(
        log(&["--kernel-log=false", "--log-format", "text"], text),
        (false, LogFormat::Text)
    );
    assert_eq!(log(&["--kernel-log"], ""), (true, LogFormat::Text));
    let failure = settings(&[], "log_format = \"jsn\"").unwrap_err();
    assert!(failure.hint.is_some_and(|hint| hint.contains("`json`")), "{}", failure.message);
}

#[test]
fn limits_may_be_written_in_several_ways() {
    let limits = |text: &str| parse(text).unwrap().limits().iter().collect::<Vec<_>>();
    let wanted = [limit("default", "1000pps", None)];
    assert_eq!(limits("[limits]\ndefault = \"1000pps\""), wanted);
    assert_eq!(limits("limits.default.rate = \"1kpps\""), wanted);
    assert_eq!(limits("[[limit]]\nfor = \"default\"\nrate = \"1kpps\"\nburst = \"1200\""), wanted);
    assert_eq!(limits("limit = [{ for = \"default\", rate = \"1kpps\", burst = 1200 }]"), wanted);
    assert!(limits("").is_empty());
    let [rate, burst] = ["10mbit", "64kbyte"];
    let both = wanted[0].and(rate.parse().unwrap(), Some(64_000)).unwrap();
    for text in [
        format!("limits.default = {{ rate = [\"1kpps\", \"{rate}\"], burst = \"{burst}\" }}"),
        format!(
            "[[limit]]\nfor = \"default\"\nrate = [\"{rate}\", \"1kpps\"]\nburst = [1200, \"{burst}\"]"
        ),
    ] {
        assert_eq!(limits(&text), [both]);
    }
    for (conditions, class) in [
        ("proto = \"udp\"\ndport = 53", "udp:53"),
        ("proto = 17\ndport = \"1000-2000\"", "udp:1000-2000"),
        ("dport = 53", "*:53"),
        ("syn = true", "tcp/syn,!ack"),
        ("syn = false\nproto = \"tcp\"", "tcp"),
        ("tcp_flags = \"rst\"\ndport = 80", "tcp:80/rst"),
        ("proto = \"udp\"\nsport = 53", "udp:from-53"),
        ("icmp = 8", "icmp:8"),
        ("proto = \"icmpv6\"\nicmp = \"1/4\"", "icmpv6:1/4"),
        ("fragments = true", "*:fragments"),
        ("fragments = false\nproto = \"udp\"", "udp"),
        ("dst = \"192.0.2.0/24\"", "any@192.0.2.0/24"),
        ("dst = \"2001:db8::1\"\nsyn = true", "tcp/syn,!ack@2001:db8::1"),
    ] {
        let text = format!(
            "[[limit]]\nfor = \"10.0.0.0/8\"\n{conditions}\naggregate = true\nrate = \"5pps\""
        );
        let target = format!("10.0.0.0/8 {class} aggregate");
        assert_eq!(limits(&text), [limit(&target, "5pps", None)], "{text}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_place_and_a_remedy() {
    for (text, place, message, hint) in [
        ("mdoe = \"native\"", "1:1", "unknown key `mdoe`", "did you mean `mode`"),
        ("colour = 1", "1:1", "unknown key `colour`", "`interfaces`"),
        ("max-sources = 8", "1:1", "unknown key `max-sources`", "`max_sources`"),
        ("\nmode = \"natve\"", "2:8", "unknown value `natve`", "did you mean `native`"),
        ("mode = native", "1:8", "`native` is not a value", "quoted: \"native\""),
        ("mode = 3", "1:8", "expected a string", ""),
        ("max_sources = 3", "1:15", "max_sources: 3 is out of range", "from 8"),
        ("max_sources = -3", "1:15", "whole number", ""),
        ("max_sources = 5000000000", "1:15", "whole number", ""),
        ("sketch_epsilon = 2.0", "1:18", "sketch_epsilon: 2 is out of range", "between"),
        ("sketch_epsilon = nan", "1:18", "out of range", "between"),
        ("sketch_window = \"1 apple\"", "1:17", "not a duration", "config default"),
        ("sketch_window = 134", "1:17", "integer `134`", ""),
        ("sketch_window = \"9h\"", "1:17", "out of range", "60s"),
        ("ipv4_prefix = 33", "1:15", "/33 is out of range", "1 to 32"),
        ("interfaces = \"eth0\"", "1:14", "a list such as", ""),
        ("interfaces = [\"eth0\", \"eth0\"]", "1:14", "eth0 is there twice", "once"),
        ("interfaces = [\"a b\"]", "1:14", "not the name of an interface", "ip link"),
        ("mode = \"native\"\nmode = \"native\"", "2:1", "duplicate key", "keep one"),
        ("[limits]\ndefault = 1000", "2:11", "no unit", "1000pps"),
        ("[limits]\ndefault = \"10mbps\"", "2:11", "ambiguous", "10mbit"),
        ("[limits]\ndefalt = \"1pps\"", "2:1", "unknown key `defalt`", "`default`"),
        ("[limits]\ndefault = { rat = 1 }", "2:13", "unknown key `rat`", "`rate`"),
        ("[limits]\ndefault = { rate = \"1pps\", burst = 0 }", "2:36", "zero", "smallest"),
        ("[limits]\ndefault = [1]", "2:11", "a rate such as", ""),
        ("[[limit]]\nrate = \"1pps\"", "1:1", "`for` is missing", "[[limit]]"),
        ("[[limit]]\nfor = \"10.0.0.1/8\"\nrate = \"1pps\"", "2:7", "host bits", "10.0.0.0/8"),
        ("[[limit]]\nfor = \"1.1.1.1\"\nrate = \"-1pps\"", "3:8", "negative", ""),
        ("[[limit]]\nfor = \"1.1.1.1\"\nrate = \"9tpps\"", "3:8", "", ""),
        (
            "[[limit]]\nfor = \"1.1.1.1\"\nrate = \"1mbit\"\nburst = \"9byte\"",
            "4:9",
            "full frame",
            "burst = \"1514byte\"",
        ),
        (
            "[limits]\ndefault = \"1pps\"\n[[limit]]\nfor = \"default\"\nrate = \"1pps\"",
            "4:7",
            "default has a limit already, in line 2",
            "keep one",
        ),
        ("[[limit]]\nfor = \"2001:db8::1\"\nrate = \"1pps\"", "2:7", "part of a source", "/64"),
        (
            "[limits]\ndefault = { rate = [\"1pps\", \"2pps\"] }",
            "2:29",
            "both count packets",
            "10mbit",
        ),
        ("[limits]\ndefault = { rate = [] }", "2:20", "no rate", "1000pps"),
        ("[limits]\ndefault = { rate = [\"1pps\", {}] }", "2:29", "expected", ""),
        (
            "[limits]\ndefault = { rate = \"1pps\", burst = [5, 6] }",
            "2:40",
            "two bursts",
            "each rate",
        ),
        ("[limits]\ndefault = { rate = \"1pps\", ban = {} }", "2:34", "how long", "10m"),
        (
            "[limits]\ndefault = { rate = \"1pps\", ban = { for = 5 } }",
            "2:34",
            "ban for: \"5\"",
            "10m",
        ),
        (
            "[limits]\ndefault = { rate = \"1pps\", ban = { fro = 5 } }",
            "2:36",
            "unknown key `fro`",
            "`for`",
        ),
        (
            "[limits]\ndefault = { rate = \"1pps\", enforce = false, ban = { for = \"5m\" } }",
            "2:51",
            "not enforced",
            "leave either",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nproto = \"upd\"",
            "4:9",
            "not a protocol",
            "udp",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nproto = 1\ndport = 8",
            "5:9",
            "only TCP and UDP",
            "",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nsport = 53\nfragments = true",
            "5:13",
            "go with a protocol alone",
            "set two limits",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nproto = \"tcp\"\nicmp = 8",
            "5:8",
            "only ICMP",
            "icmpv6",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nicmp = \"echo\"",
            "4:8",
            "not a type of ICMP",
            "3/4",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\ndport = -8",
            "4:9",
            "neither a port",
            "1000-2000",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\ndport = \"8-1\"",
            "4:9",
            "ends before",
            "lower",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\ntcp_flags = \"sin\"",
            "4:13",
            "not a TCP flag",
            "syn",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nproto = \"udp\"\nsyn = true",
            "5:7",
            "only TCP has flags",
            "",
        ),
        (
            "[[limit]]\nfor = \"192.0.2.1\"\naggregate = true\nrate = \"1pps\"",
            "2:7",
            "single source",
            "aggregate",
        ),
        (
            "[[limit]]\nfor = \"2001:db8::/64\"\naggregate = true\nrate = \"1pps\"",
            "2:7",
            "single source",
            "aggregate",
        ),
        (
            "[[limit]]\nfor = \"10.0.0.0/8\"\naggregate = true\nrate = \"1pps\"\nban = { for = \"5m\" }",
            "5:7",
            "share",
            "leave either",
        ),
        (
            "[[limit]]\nfor = \"10.0.0.0/8\"\nrate = \"1pps\"\nreserve = 20",
            "4:11",
            "only a limit that sources share",
            "aggregate",
        ),
        (
            "[[limit]]\nfor = \"default\"\ndport = \"1-9\"\nrate = \"1pps\"\n[[limit]]\nfor = \"10.0.0.0/8\"\ndport = \"5-15\"\nrate = \"1pps\"",
            "7:9",
            "*:5-15 overlaps *:1-9",
            "exclude each other",
        ),
        (
            "[management]\naddresses = [\"192.0.2.0/24\"]\n[[limit]]\nfor = \"192.0.2.7\"\nrate = \"1pps\"",
            "4:7",
            "management addresses",
            "another target",
        ),
        ("[[deny]]\nreason = \"x\"", "1:1", "`for` is missing", "[[deny]]"),
        ("[[deny]]\nfor = 7", "2:7", "a list of them", "config default"),
        ("[[deny]]\nfor = \"192.0.2.300\"", "2:7", "192.0.2.300", ""),
        ("[[deny]]\nfor = [\"192.0.2.1\",\n\"default\"]", "3:1", "default", ""),
        ("[[deny]]\nfor = []", "2:7", "no address", "addresses"),
        (
            "[[deny]]\nfor = \"0.0.0.0/0\"",
            "2:7",
            "all IPv4 addresses",
            "yes = true in this [[deny]]",
        ),
        (
            "[[allow]]\nfor = [\"192.0.2.1\", \"2000::/3\"]",
            "2:21",
            "12.500 % of IPv6",
            "yes = true",
        ),
        ("[[allow]]\nfor = \"10.0.0.1/8\"", "2:7", "host bits", "10.0.0.0/8"),
        ("[[allow]]\nfor = \"2001:db8::1\"", "2:7", "part of a source", "/64"),
        ("[[deny]]\nfor = \"192.0.2.1\"\nraeson = \"x\"", "3:1", "unknown key", "`reason`"),
        ("[[deny]]\nfor = \"192.0.2.1\"\nreason = \"a\\nb\"", "3:10", "reason is longer", "words"),
        ("[[deny]]\nfor = \"192.0.2.1\"\nttl = \"1h\"", "3:1", "unknown key `ttl`", ""),
        (
            "[[allow]]\nfor = \"192.0.2.1\"\n[[deny]]\nfor = [\"192.0.2.0/24\", \"192.0.2.1/32\"]",
            "4:24",
            "192.0.2.1 is listed already, in line 2",
            "keep one",
        ),
        (
            "[management]\naddresses = [\"192.0.2.0/24\"]\n[[deny]]\nfor = \"192.0.2.7\"",
            "4:7",
            "management addresses",
            "another target",
        ),
        ("[cluster]\nlisten = \"edge-1:7700\"", "2:10", "not an address", "config default"),
        ("[cluster]\nlisten = \"192.0.2.1:0\"", "2:10", "port 0", "config default"),
        ("[cluster]\nseeds = [\"a:1\"]", "2:9", "cluster.seeds: there are seeds", "listen ="),
        (
            "[cluster]\nlisten = \"192.0.2.1:7\"\nseeds = [\"a:1\", \"b\"]",
            "3:17",
            "no port",
            "192.0.2",
        ),
        (
            "[cluster]\nlisten = \"192.0.2.1:7\"\nname = \"x\"\nseeds = [\"a:1\", \"A:1\"]",
            "4:9",
            "a:1 is there twice",
            "once",
        ),
        ("[cluster]\nweight = 0", "2:10", "cluster.weight: 0 is out of range", "1 to 1000"),
        ("[cluster]\nweight = -1", "2:10", "whole number", ""),
        ("[cluster]\nname = \"a b\"", "2:8", "cluster.name: \"a b\" is not the name", "edge-1"),
        ("[cluster]\nregion = \"\"", "2:10", "cluster.region: \"\" is not", "edge-1"),
        ("[cluster]\nkeyfile = \"x\"", "2:1", "unknown key `keyfile`", "`key_file`"),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nscope = \"cluster\"",
            "2:7",
            "this host is in none",
            "[cluster]",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nscope = \"world\"",
            "4:9",
            "unknown value `world`",
            "`cluster`",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\npartition = \"conservative\"",
            "4:13",
            "no partition policy",
            "scope cluster",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\ndst = \"192.0.2.1/24\"",
            "4:7",
            "192.0.2.0/24",
            "write 192.0.2.0/24",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nby = \"destination\"\ndst = \"192.0.2.1\"",
            "5:7",
            "one prefix is given too",
            "by destination",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nby = \"destination\"\naggregate = true",
            "2:7",
            "or they share it",
            "leave one of the two out",
        ),
        (
            "[[limit]]\nfor = \"default\"\nrate = \"1pps\"\nby = \"door\"",
            "4:6",
            "door",
            "`destination`",
        ),
        ("[management]\naddresses = [\"bastion\"]", "2:14", "bastion", "address"),
        ("mode = \"native", "1:", "", ""),
        ("[", "1:", "", ""),
        ("é = ", "1:", "", ""),
    ] {
        let error = settings(&[], text).unwrap_err();
        let (told, advice) = (error.to_string(), error.hint.clone().unwrap_or_default());
        println!("{told}\n    {advice}");
        assert!(told.starts_with(&format!("limiter.toml:{place}")), "{text}\n{told}");
        assert!(told.contains(message), "{text}\n{told}");
        assert!(advice.contains(hint) && !advice.is_empty(), "{text}\n{told}\n{advice}");
        assert_eq!(error.code, exit::USAGE, "{text}");
    }
    let error = ConfigFile::parse(Path::new("f"), b"# \xc3\xa9\nmode = \"\xff\"").unwrap_err();
    assert!(error.message.starts_with("f:2:9: this is not UTF-8"), "{error}");
}

#[test]
fn classes_must_go_with_those_that_were_set_at_run_time() {
    let settings =
        settings(&[], "[[limit]]\nfor = \"default\"\ndport = 53\nrate = \"1pps\"").unwrap();
    let stored = |target: &str| Limits::from_iter([limit(target, "1pps", None)]);
    settings.check_classes(&stored("192.0.2.1 *:50-60")).unwrap();
    settings.check_classes(&stored("192.0.2.1 *:53")).unwrap();
    let overlapping =
        parse("[[limit]]\nfor = \"default\"\ndport = \"40-55\"\nrate = \"1pps\"").unwrap();
    let settings = given(&[]).with(overlapping).unwrap();
    let error = settings.check_classes(&stored("192.0.2.1 *:50-60")).unwrap_err();
    assert!(
        error.message.starts_with("limiter.toml:2:7: with what was set at run time"),
        "{error}"
    );
    assert!(error.message.contains("*:40-55 overlaps *:50-60") && error.hint.is_some(), "{error}");
}

#[test]
fn a_flag_is_blamed_for_what_it_says() {
    let error = settings(&["--max-sources", "3"], "max_sources = 4096").unwrap_err();
    assert!(error.message.starts_with("--max-sources: 3 is out of range"), "{error}");
}

#[test]
fn a_named_file_must_be_there() {
    let error =
        ConfigFile::find(Some(Path::new("/nonexistent/limiter.toml")), Path::new("/dev/null"))
            .unwrap_err();
    assert_eq!(error.code, exit::USAGE);
    assert!(error.message.contains("/nonexistent/limiter.toml") && error.hint.is_some());
    let error = ConfigFile::find(Some(Path::new("/dev")), Path::new("/dev/null")).unwrap_err();
    assert_eq!(error.code, exit::USAGE);
    let empty = ConfigFile::find(Some(Path::new("/dev/null")), Path::new("/dev/null")).unwrap();
    assert!(empty.limits().is_empty());
}

#[test]
fn a_limit_remembers_its_place() {
    let file = parse("[[limit]]\nrate = \"1pps\"\n  for = \"192.0.2.1\"").unwrap();
    let target: Target = "192.0.2.1".parse().unwrap();
    assert_eq!(file.place_of_limit(&target), Some(Location { line: 3, column: 9 }));
}

#[test]
fn very_wide_entries_are_listed_with_a_yes() {
    let text =
        b"[[deny]]\nfor = \"0.0.0.0/0\"\nyes = true\n[[allow]]\nfor = \"10.0.0.0/8\"\nyes = false";
    let file = ConfigFile::parse(Path::new("x.toml"), text).unwrap();
    assert_eq!(file.lists().len(), 2);
}

#[test]
fn what_a_source_takes_is_said() {
    assert!(default_file().contains(&format!("{} bytes", dataplane::SOURCE_BYTES)));
}
