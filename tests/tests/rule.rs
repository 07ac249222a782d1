//! Limits of single keys: `limiter rule` sets them, `limiter-serve` keeps to them as they change.

use std::{fmt::Write as _, fs, time::Duration};

use serde_json::Value;
use tests::{Daemon, Lab, hosts::Hosts, process::wait_for, serve::Serve};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Two requests an hour for each user.
const RULES: &str = "domain: api\ndescriptors:\n  - key: user\n    rate_limit: { unit: hour, requests_per_unit: 2 }\n";

fn start(daemon: &Daemon) -> Serve {
    Serve::start(RULES, &["--daemon", &daemon.socket().display().to_string()])
}

/// How a user stands.
fn standing(serve: &Serve, user: &str) -> Value {
    let answer = serve.get(&format!("/v1/decide?domain=api&rule=user&key={user}&cost=0"));
    answer.json()["items"][0].clone()
}

/// Waits until a user has so many requests in a period, such as `5/1.0`, by what `limiter-serve` says.
fn wait_limit(serve: &Serve, user: &str, expected: &str) {
    wait_for(expected, TIMEOUT, || {
        let user = standing(serve, user);
        (format!("{}/{}", user["limit"], user["period_s"]) == expected).then_some(())
    });
}

/// How many of ten requests of a user are admitted.
fn admitted(serve: &Serve, user: &str) -> usize {
    let path = format!("/v1/decide?domain=api&rule=user&key={user}");
    (0..10).filter(|_| serve.get(&path).status == 200).count()
}

#[test]
fn a_user_has_a_limit_of_its_own_as_long_as_it_is_set() {
    let lab = Lab::default();
    let mut daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    cli.ok(&["rule", "set", "5/hour", "api", "user=gold"]);
    let mut serve = start(&daemon);
    // In force before the first answer.
    assert_eq!((admitted(&serve, "gold"), admitted(&serve, "other")), (5, 2));
    // What was used counts under another limit, as the time that it takes to earn it.
    cli.ok(&["rule", "set", "7/hour", "api", "user=gold", "--burst", "14"]);
    wait_limit(&serve, "gold", "7/3600.0");
    assert_eq!(admitted(&serve, "gold"), 7);
    // Whoever asks what went on is told by key.
    let place = format!("unix:{}", serve.path("http.sock").display());
    let top = cli.ok(&["top", "--keys", "--serve", &place]);
    let denied =
        |place: usize| (top["keys"][place]["key"].clone(), top["keys"][place]["denied"].clone());
    assert_eq!(
        (denied(0), denied(1)),
        (("api user=gold".into(), 8.into()), ("api user=other".into(), 8.into()))
    );
    let shown = |user: &str| cli.ok(&["show", "--serve", &place, "--key", "api", user]);
    let gold = shown("user=gold");
    assert_eq!(
        (&gold["limit"], &gold["own"], &gold["remaining"]),
        (&"7/hour, burst 14".into(), &true.into(), &0.into())
    );
    let other = shown("user=other");
    assert_eq!(
        (&other["limit"], &other["own"], &other["rule"]),
        (&"2/hour".into(), &false.into(), &"api.user".into())
    );
    // For a moment only.
    cli.ok(&["rule", "set", "4/day", "api", "user=guest", "--ttl", "2s"]);
    wait_limit(&serve, "guest", "4/86400.0");
    wait_limit(&serve, "guest", "2/3600.0");
    wait_for("its end", TIMEOUT, || {
        (cli.ok(&["rule", "list"])["overrides"].as_array()?.len() == 1).then_some(())
    });
    // Tried, and not confirmed.
    cli.ok(&["rule", "set", "9/minute", "api", "user=gold", "--confirm", "1s"]);
    wait_limit(&serve, "gold", "9/60.0");
    wait_limit(&serve, "gold", "7/3600.0");
    // Without the daemon the last word counts; a new process of either has it again.
    daemon.kill();
    wait_for("its end in the log", TIMEOUT, || {
        serve.log().contains("stay as they are").then_some(())
    });
    assert_eq!(standing(&serve, "gold")["limit"], 7);
    daemon.restart(&lab);
    wait_limit(&serve, "gold", "7/3600.0");
    serve.kill_and_restart();
    wait_limit(&serve, "gold", "7/3600.0");
    assert_eq!(admitted(&serve, "gold"), 0);
    cli.ok(&["rule", "unset", "api", "user=gold"]);
    wait_limit(&serve, "gold", "2/3600.0");
    let missing = cli.run(&["rule", "unset", "api", "user=gold"]);
    assert!(missing.code == 1 && missing.stderr.contains("no limit of its own"), "{missing:?}");
}

#[test]
fn very_many_are_imported_at_once_or_none() {
    const USERS: usize = 50_000;
    let lab = Lab::default();
    let daemon = Daemon::start(&lab);
    let serve = start(&daemon);
    let line = |user| {
        format!(r#"{{"for":["api","user","{user}"],"limit":{{"rate":"{}/day"}}}}"#, user % 100 + 3)
    };
    let lines: Vec<String> = (0..USERS).map(line).collect();
    let import = |lines: &[String]| {
        let file = serve.path("lines");
        fs::write(&file, lines.join("\n")).expect("a file");
        daemon.cli().run(&["rule", "import", &file.display().to_string(), "--json"])
    };
    let mut wrong = lines.clone();
    let _ = write!(wrong[USERS / 2], ",");
    let refused = import(&wrong);
    assert!(refused.code == 2 && refused.stderr.contains("line 25001"), "{refused:?}");
    let imported = import(&lines);
    assert_eq!(imported.code, 0, "{imported:?}");
    wait_limit(&serve, "49999", "102/86400.0");
    assert_eq!(admitted(&serve, "0"), 3);
    let metrics = serve.get("/metrics").body;
    assert!(metrics.contains("limiter_serve_overrides 50000"), "{metrics}");
}

#[test]
fn a_limit_for_the_cluster_holds_on_all_hosts() {
    let hosts = Hosts::start(2, &[]);
    let far = start(&hosts.daemons[1]);
    hosts.daemons[0].cli().ok(&["rule", "set", "9/hour", "api", "user=gold", "--scope", "cluster"]);
    wait_limit(&far, "gold", "9/3600.0");
    // One of this host alone hides it.
    hosts.daemons[1].cli().ok(&["rule", "set", "4/hour", "api", "user=gold"]);
    wait_limit(&far, "gold", "4/3600.0");
    hosts.daemons[1].cli().ok(&["rule", "unset", "api", "user=gold"]);
    wait_limit(&far, "gold", "9/3600.0");
    hosts.daemons[0].cli().ok(&["rule", "unset", "api", "user=gold"]);
    wait_limit(&far, "gold", "2/3600.0");
}
