use std::path::Path;

use serde_json::Value;

use super::*;
use crate::daemon::Shared;
use crate::daemon::fake::Fake;
use crate::http;

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
    let shared = Shared::new(fake.core(&directory));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            let server = axum::serve(listener, http::router(shared));
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
        let set = ["limit", "set", "10mbit", "--for", "2001:db8::/48", "--json"];
        let (code, text) = limiter(socket, &set);
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, document["limit"]["rate"].as_str()), (0, Some("10mbit")));
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
        let shared = ["limit", "set", "1gbit", "--for", "10.0.0.0/8", "--as-one"];
        assert_eq!(limiter(socket, &shared).0, 0);
        let (_, text) = limiter(socket, &["limit", "list"]);
        for part in ["default udp:53 ", "200pps + 10mbit", "10m after 5s", "10.0.0.0/8 as-one "] {
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
        (&["limit", "set", "5pps", "--as-one", "--for", "192.0.2.1"], 2),
        (&["limit", "set", "5pps", "--ban-factor", "3"], 2),
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
