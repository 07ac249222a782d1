use std::path::Path;

use serde_json::Value;

use super::*;
use control::Host;
use control::fake::Fake;
use daemon::http;

/// Runs a command and returns its exit code and what it has written to stdout.
fn limiter(socket: &Path, arguments: &[&str]) -> (u8, String) {
    let mut all: Vec<OsString> =
        vec!["limiter".into(), "--quiet".into(), "--socket".into(), socket.into()];
    all.extend(arguments.iter().map(OsString::from));
    let mut out = Vec::new();
    let code = main(all, &mut out);
    (code, String::from_utf8(out).unwrap())
}

/// Serves a fake data plane for as long as `work` takes.
fn served(work: impl FnOnce(&Path, &Fake)) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("limiter.sock");
    let fake = Fake::default();
    let host = Host::new(fake.core(&directory));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            let server = axum::serve(listener, http::router(host));
            // Ends when `stop` is dropped, which it is also if `work` panics.
            tokio::select! {
                ended = server.into_future() => panic!("the server ended: {ended:?}"),
                _ = stopped => {}
            }
        });
    });
    work(&socket, &fake);
    drop(stop);
    server.join().unwrap();
}

#[test]
fn limits_go_to_the_daemon_and_back() {
    served(|socket, fake| {
        let (code, text) = limiter(socket, &["limit", "set", "1000pps", "--burst", "2000"]);
        assert_eq!((code, text.as_str()), (0, "default: 1000pps burst 2000 packets\n"));
        assert_eq!(fake.state().limits[0].burst, 2000);
        let (_, text) = limiter(socket, &["limit", "set", "1000pps", "--burst", "2000"]);
        assert_eq!(text, "default: 1000pps burst 2000 packets (as before)\n");
        let again = ["limit", "set", "1000pps", "--burst", "2000", "--ban-for", "10m"];
        let (_, text) = limiter(socket, &again);
        let old = "1000pps burst 2000 packets";
        assert_eq!(text, format!("default: {old} → {old}, ban 10m after 5s at 10×\n"));
        let (_, text) = limiter(socket, &["limit", "set", "1000pps", "--burst", "2000", "--json"]);
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["previous"]["ban"]["for_seconds"], 600, "{document:#}");
        assert_eq!((&document["changed"], &document["limit"]["ban"]), (&true.into(), &Value::Null));
        let set = ["limit", "set", "10mbit", "--for", "2001:db8::/48", "--json"];
        let (code, text) = limiter(socket, &set);
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, document["limit"]["rate"].as_str()), (0, Some("10mbit")));
        assert_eq!(document.get("previous"), Some(&Value::Null));
        let (_, text) = limiter(socket, &["limit", "list"]);
        assert!(text.contains("1000pps") && text.contains("2001:db8::/48"), "{text}");
        let (code, text) = limiter(socket, &["limit", "unset", "--for", "2001:db8::/48"]);
        assert_eq!((code, text.as_str()), (0, "2001:db8::/48: removed 10mbit burst 1500 kbyte\n"));
        assert_eq!(limiter(socket, &["limit", "unset", "--for", "2001:db8::/48"]).0, 1);
        let set = ["limit", "set", "10mbit", "200pps", "--burst", "64kbyte", "--ban-for", "10m"];
        let class = ["--proto", "udp", "--dport", "53"];
        let (code, text) = limiter(socket, &[&set[..], &class].concat());
        let told = "default udp:53: 200pps burst 240 packets and 10mbit burst 64 kbyte, \
                    ban 10m after 5s at 10×\n";
        assert_eq!((code, text.as_str()), (0, told));
        let host = ["limit", "set", "1gbit", "--for", "10.0.0.0/8", "--aggregate"];
        assert_eq!(limiter(socket, &host).0, 0);
        let (_, text) = limiter(socket, &["limit", "list"]);
        for part in ["default udp:53 ", "200pps + 10mbit", "10m after 5s", "10.0.0.0/8 aggregate "]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Classes of which neither goes first, and a limit that is for other packets.
        let clash = ["limit", "set", "5pps", "--dport"];
        assert_eq!(limiter(socket, &[&clash[..], &["50-60"]].concat()).0, 0);
        assert_eq!(limiter(socket, &[&clash[..], &["55-65"]].concat()).0, 2);
        assert_eq!(limiter(socket, &["limit", "unset", "--proto", "udp"]).0, 1);
        assert_eq!(limiter(socket, &[&["limit", "unset"], &class[..]].concat()).0, 0);
        assert_eq!(fake.state().limits.len(), 3);
    });
}

#[test]
fn every_report_has_a_text_and_one_document() {
    served(|socket, fake| {
        fake.state().interfaces = vec!["eth0".into()];
        fake.state().sources.insert("192.0.2.1".into(), (100, 7));
        limiter(socket, &["limit", "set", "1000pps"]);
        for (arguments, text) in [
            (&["attach", "eth0"][..], "attached to eth0 in native mode"),
            (&["status"], "state       ok"),
            (&["stats"], "over_limit"),
            (&["top", "--once"], "1 of 1 tracked sources"),
            (&["top", "--once", "--by", "prefix"], "192.0.2.0/24"),
            (&["top", "--once", "--by", "class"], "1 of 1 classes, 1 tracked sources"),
            (&["show", "192.0.2.1"], "state      limited"),
            (&["show", "192.0.2.2"], "no bucket"),
            (&["version"], "limiter "),
            (&["limit", "list"], "default"),
        ] {
            let (code, told) = limiter(socket, arguments);
            assert_eq!(code, 0, "{arguments:?}: {told}");
            assert!(told.contains(text), "{arguments:?}: {told}");
            let (code, document) = limiter(socket, &[arguments, &["--json"]].concat());
            assert_eq!(code, 0, "{arguments:?}: {document}");
            assert!(serde_json::from_str::<Value>(&document).unwrap().is_object(), "{arguments:?}");
        }
        assert_eq!(limiter(socket, &["detach", "eth0"]).0, 0);
        fake.state().full_sets = 1;
        let (code, text) = limiter(socket, &["status"]);
        assert_eq!(code, exit::NEGATIVE);
        assert!(text.contains("degraded") && text.contains("warning     attached to no"), "{text}");
    });
}

#[test]
fn failures_have_a_code_and_a_document() {
    let nowhere = Path::new("/nonexistent/limiter.sock");
    for (arguments, code) in [
        (&["limit", "set", "5"][..], 2),
        (&["limit", "set", "0pps"], 2),
        (&["limit", "set", "-1pps"], 2),
        (&["limit", "set", "10mbps"], 2),
        (&["limit", "set", "5pps", "--burst", "0"], 2),
        (&["limit", "set", "1mbit", "--burst", "100byte"], 2),
        (&["limit", "set", "5pps", "--for", "192.0.2.1/24"], 2),
        (&["limit", "set"], 2),
        (&["limit", "set", "5pps", "6pps"], 2),
        (&["limit", "set", "5pps", "--proto", "icmp", "--dport", "8"], 2),
        (&["limit", "set", "5pps", "--syn", "--tcp-flags", "rst"], 2),
        (&["limit", "set", "5pps", "--aggregate", "--for", "192.0.2.1"], 2),
        (&["limit", "set", "5pps", "--ban-factor", "3"], 2),
        (&["limit", "set", "5pps", "--ban-unverified"], 2),
        (&["limit", "set", "5pps", "--ban-for", "never"], 2),
        (&["limit", "unset", "--proto", "udp", "--syn"], 2),
        (&["limit", "unset", "--for", "x"], 2),
        (&["show", "192.0.2.0/24"], 2),
        (&["top", "-n", "0"], 2),
        (&["top"], 3),
        (&["dance"], 2),
        (&["run", "--sketch-epsilon", "2"], 2),
        (&["status"], 3),
        (&["limit", "list"], 3),
    ] {
        let (got, text) = limiter(nowhere, &[arguments, &["--json"]].concat());
        assert_eq!(got, code, "{arguments:?}: {text}");
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["error"]["code"], code, "{arguments:?}: {text}");
        assert!(document["error"]["hint"].is_string(), "{arguments:?}: {text}");
        let (_, text) = limiter(nowhere, arguments);
        assert_eq!(text, "", "{arguments:?}: data only on stdout");
    }
}

#[test]
fn an_import_counts_what_is_new_and_what_is_not() {
    served(|socket, _| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits");
        let file = path.to_str().unwrap();
        for (list, told, added) in [
            ("default 5pps\n192.0.2.1 6pps", "2 limits read: 2 added, 0 changed, 0 unchanged\n", 1),
            (
                "default 5pps\n192.0.2.1 7pps\n192.0.2.2 8pps",
                "3 limits read: 1 added, 1 changed, 1 unchanged\n",
                0,
            ),
        ] {
            std::fs::write(&path, list).unwrap();
            assert_eq!(limiter(socket, &["limit", "import", file]), (0, told.into()));
            std::fs::write(&path, format!("default 5pps\n192.0.2.{} 7pps", 1 + 2 * added)).unwrap();
            let dry = ["limit", "import", file, "--dry-run", "--json"];
            let document: Value = serde_json::from_str(&limiter(socket, &dry).1).unwrap();
            assert_eq!(document["added"], added, "{document:#}");
        }
    });
}

#[test]
fn very_wide_entries_and_whole_lists_need_a_yes() {
    served(|socket, fake| {
        let refused = |arguments: &[&str], about: &str| {
            let (code, text) = limiter(socket, &[arguments, &["--json"]].concat());
            let document: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((code, &document["error"]["code"]), (2, &2.into()), "{document:#}");
            let message = document["error"]["message"].as_str().unwrap();
            assert!(message.contains(about), "{message}");
            assert!(document["error"]["hint"].as_str().unwrap().contains("--yes"), "{document:#}");
        };
        for list in ["deny", "allow"] {
            refused(&[list, "add", "192.0.2.1", "0.0.0.0/0"], "all IPv4 addresses");
            refused(&[list, "add", "2000::/3"], "12.500 % of IPv6");
            assert_eq!(fake.state().lists.len(), 0, "not half of it");
            let dry = [list, "add", "0.0.0.0/0", "--dry-run", "--json"];
            let (code, text) = limiter(socket, &dry);
            let document: Value = serde_json::from_str(&text).unwrap();
            let warning = document["warnings"][0].as_str().unwrap();
            assert!(code == 0 && warning.contains("all IPv4 addresses"), "{document:#}");
            assert!(warning.contains("needs --yes"), "{document:#}");
            assert_eq!(fake.state().lists.len(), 0, "a dry run");
            let add = [list, "add", "192.0.2.1", "0.0.0.0/0", "--yes", "--json"];
            let (code, text) = limiter(socket, &add);
            let document: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((code, &document["changed"]), (0, &2.into()), "{document:#}");
            assert!(document["warnings"][0].as_str().unwrap().contains("4.29 billion"));
            refused(&[list, "clear"], "removes 2 entries");
            let (code, text) = limiter(socket, &[list, "clear", "--dry-run"]);
            assert!(code == 0 && text.contains("2 removed"), "{text}");
            assert_eq!(fake.state().lists.len(), 2);
            let (code, text) = limiter(socket, &[list, "clear", "--yes"]);
            let (one, all) = ("removed 192.0.2.1 from the", "removed 0.0.0.0/0 from the");
            assert!(code == 0 && text.contains(one) && text.contains(all), "{text}");
            assert_eq!(fake.state().lists.len(), 0);
            let nothing = format!("no entry of the {list} list was set at run time\n");
            let again = [list, "clear", "--yes", "--confirm", "60s"];
            assert_eq!(limiter(socket, &again), (0, nothing));
        }
        // Over the API without the program.
        let client = Client::new(socket);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let post = |path: &str| {
            let sent = client.send_text::<Value>(path, "192.0.2.1\n0.0.0.0/0".into());
            runtime.block_on(sent)
        };
        let refused = post("/v1/lists/deny").unwrap_err();
        assert_eq!(refused.code, exit::USAGE);
        assert!(refused.hint.unwrap().contains("yes=true"));
        assert_eq!(fake.state().lists.len(), 0);
        assert_eq!(post("/v1/lists/deny?yes=true").unwrap()["changed"], 2);
    });
}

#[test]
fn answers_of_lists_name_what_was_done() {
    served(|socket, _| {
        let add = ["deny", "add", "198.18.7.7", "--reason", "scanner"];
        assert_eq!(limiter(socket, &add), (0, "denied 198.18.7.7 (scanner)\n".into()));
        let (_, text) = limiter(socket, &["deny", "add", "198.18.7.7", "--ttl", "1h"]);
        assert!(text.starts_with("denied 198.18.7.7 until "), "{text}");
        assert!(text.ends_with(" UTC; before: denied (scanner)\n"), "{text}");
        let many: Vec<_> = (1..=9).map(|number| format!("192.0.2.{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let (_, text) = limiter(socket, &[&["allow", "add"][..], &many].concat());
        assert_eq!(text, "allowed 9 sources and prefixes\n");
        let (_, text) = limiter(socket, &[&["allow", "del"][..], &many].concat());
        assert_eq!(text, "removed 9 entries from the allow list\n");
        let (_, text) = limiter(socket, &["deny", "del", "198.18.7.7"]);
        assert_eq!(text, "removed 198.18.7.7 from the deny list\n");
        assert_eq!(limiter(socket, &["deny", "add", "198.18.7.7/35"]).0, 2);
    });
}

#[test]
fn without_limits_the_next_command_is_told() {
    served(|socket, fake| {
        fake.state().interfaces = vec!["eth0".into()];
        limiter(socket, &["attach", "eth0"]);
        for command in [&["status"][..], &["limit", "list"]] {
            let (code, text) = limiter(socket, command);
            assert!(code == 0 && text.contains("`limiter limit set 1000pps`"), "{text}");
        }
        limiter(socket, &["limit", "set", "1000pps"]);
        assert!(!limiter(socket, &["status"]).1.contains("limit set"));
    });
}

/// All pages, and the lines of their code blocks that begin with `limiter `.
fn shown() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut pages = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                // Pictures lie beside the pages.
                false if path.extension().is_some_and(|it| it == "md") => pages.push(path),
                false => {}
            }
        }
    }
    let mut shown = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(root).unwrap().display().to_string();
        let mut is_code = false;
        for line in text.lines() {
            is_code ^= line.starts_with("```");
            let line = line.trim().trim_start_matches("$ ").trim_start_matches("sudo ");
            if is_code && line.starts_with("limiter ") {
                shown.push((name.clone(), line.to_owned()));
            }
        }
    }
    shown
}

/// The words of a line as a shell would pass them, without what comes after a comment, pipe or redirection.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while let Some(first) = rest.chars().next() {
        if matches!(first, '#' | '|' | '>' | '<' | '&' | ';') {
            break;
        }
        let (word, after) = match first {
            '"' | '\'' => rest[1..].split_once(first).expect("a closing quote"),
            _ => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    words
}

#[test]
fn sketches_are_saved_merged_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [one, two, both, foreign] = ["one", "two", "both", "foreign"].map(path);
    let nobody = folder.path().join("no.sock");
    served(|socket, fake| {
        let send = |packets| fake.state().sources.insert("192.0.2.1".into(), (packets, 0));
        send(1000);
        std::thread::scope(|scope| {
            let saving = scope.spawn(|| limiter(socket, &["sketch", "save", &one, "--json"]));
            // After the look for rates, and before the epoch that is counted or in it.
            std::thread::sleep(std::time::Duration::from_millis(500));
            send(1600);
            let (code, text) = saving.join().unwrap();
            let saved: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((code, &saved["saves"], &saved["sources"]), (0, &1.into(), &1.into()));
            let rate = saved["packets_per_second"]["max"].as_f64().unwrap();
            assert!((300.0..=600.0).contains(&rate), "600 in 1 to 2 s: {saved:#}");
        });
        assert_eq!(limiter(socket, &["sketch", "save", &two]).0, 0);
        let show = ["sketch", "show", &one, "--estimate", "192.0.2.1", "--json"];
        let shown: Value = serde_json::from_str(&limiter(socket, &show).1).unwrap();
        assert_eq!(shown["estimate"]["source"], "192.0.2.1", "{shown:#}");
        assert_eq!(shown["estimate"]["packets"], shown["packets"], "{shown:#}");
        let (code, text) = limiter(socket, &["sketch", "show", &one, "--estimate", "192.0.2.1"]);
        assert!(code == 0 && text.contains("192.0.2.1: "), "{text}");
        let (code, text) = limiter(socket, &["sketch", "save", "/dev/null"]);
        assert_eq!((code, text.as_str()), (2, ""), "it is still what it was");
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    });
    // Without a daemon.
    let (code, text) = limiter(&nobody, &["sketch", "merge", &one, &two, "-o", &both]);
    assert!(code == 0 && text.starts_with("2 saves, ") && text.contains("5 × 512"), "{text}");
    assert_eq!(limiter(&nobody, &["sketch", "show", &both]).1, text);
    assert_eq!(limiter(&nobody, &["sketch", "show", &both, "--estimate", "192.0.2.1"]).0, 3);
    assert_eq!(
        limiter(&nobody, &["sketch", "merge", &one, "-o", &both]).0,
        2,
        "one is none to merge"
    );
    std::fs::write(&foreign, "limiter-sketch 7\n").unwrap();
    let before = std::fs::read(&both).unwrap();
    for arguments in [
        ["sketch", "merge", &one, &foreign, "-o", &both],
        ["sketch", "merge", &one, &path("none"), "-o", &both],
    ] {
        assert_eq!(limiter(&nobody, &arguments).0, 2);
        assert_eq!(std::fs::read(&both).unwrap(), before, "nothing is written");
    }
}

#[test]
fn every_command_that_is_shown_parses() {
    let shown = shown();
    assert!(shown.len() > 40, "{shown:?}");
    for (page, line) in shown {
        let parsed = <Cli as clap::Parser>::try_parse_from(words(&line));
        let asked = |error: &clap::Error| {
            use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
            matches!(error.kind(), DisplayHelp | DisplayVersion)
        };
        if let Err(error) = parsed.map(drop) {
            assert!(asked(&error), "{page}: {line}: {error}");
        }
    }
}
