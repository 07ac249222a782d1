//! `limiter-serve` as its clients see it: Redis clients and HTTP.

use std::{
    ffi::CString,
    fs,
    io::Write as _,
    os::unix::{ffi::OsStringExt as _, fs::PermissionsExt as _, net::UnixStream},
    time::Duration,
};

use serde_json::json;
use tests::{
    process::{self, wait_for},
    resp::encoded,
    serve::Serve,
};

const RULES: &str = "
domain: default
descriptors:
  - key: login
    rate_limit: { unit: hour, requests_per_unit: 3 }
  - key: login
    value: root
    rate_limit: { name: nobody, unit: hour, requests_per_unit: 0 }
  - key: export
    rate_limit: { unit: day, requests_per_unit: 100, algorithm: sliding-log }
  - key: watched
    rate_limit: { unit: day, requests_per_unit: 1 }
    shadow_mode: true
";

#[test]
fn cl_throttle_answers_as_redis_cell_does() {
    let serve = Serve::start(RULES, &[]);
    let mut client = serve.resp();
    // Of redis-cell's own page: 15 more than one at once, 30 in 60 s.
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60 1"), json!([0, 16, 15, -1, 2]));
    assert_eq!(client.ask("cl.throttle user123 15 30 60"), json!([0, 16, 14, -1, 4]));
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60 14"), json!([0, 16, 0, -1, 32]));
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60 1"), json!([1, 16, 0, 2, 32]));
    // More than there ever is.
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60 17"), json!([1, 16, 0, -1, 32]));
    // 0 looks, and below 0 gives back.
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60 -4"), json!([0, 16, 4, -1, 24]));
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60 0"), json!([0, 16, 4, -1, 24]));
    assert_eq!(client.ask("CL.THROTTLE other 0 1 60"), json!([0, 1, 0, -1, 60]));
    for wrong in
        ["CL.THROTTLE k", "CL.THROTTLE k 1 0 60", "CL.THROTTLE k -1 1 60", "CL.THROTTLE k 1 1 x"]
    {
        let reply = client.ask(wrong);
        assert!(reply.as_str().is_some_and(|reply| reply.starts_with("-ERR ")), "{wrong}: {reply}");
    }
    assert_eq!(client.ask("PING"), "PONG");
    assert!(client.ask("FLUSHALL").as_str().is_some_and(|reply| reply.contains("unknown command")));
    let info = client.ask("INFO");
    assert!(info.as_str().is_some_and(|info| info.contains("keys:2\r\n")), "{info}");
    assert_eq!(client.ask("QUIT"), "OK");
    assert!(client.is_closed());
}

#[test]
fn commands_in_a_row_are_answered_in_a_row_and_nonsense_ends_a_connection() {
    let serve = Serve::start(RULES, &[]);
    let mut client = serve.resp();
    // More than is read or written at once, cut anywhere.
    let all = encoded("CL.THROTTLE pipe 9999 1 3600 1").repeat(5_000);
    let mut other = serve.resp();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| all.chunks(10_007).for_each(|part| other.send(part)));
        writer.join().expect("all is sent");
    });
    for at in 0..5_000 {
        assert_eq!(other.reply()[2], 9_999 - at);
    }
    client.send(b"*1\r\n$-7\r\n");
    assert!(client.reply().as_str().is_some_and(|reply| reply.contains("Protocol error")));
    assert!(client.is_closed());
}

#[test]
fn a_kill_forgets_nothing() {
    let mut serve = Serve::start(RULES, &[]);
    for left in (0..10).rev() {
        assert_eq!(serve.resp().ask("CL.THROTTLE k 9 1 3600")[2], left);
    }
    assert_eq!(serve.get("/v1/decide?rule=export&key=a&cost=99").status, 200);
    serve.kill_and_restart();
    assert_eq!(serve.resp().ask("CL.THROTTLE k 9 1 3600")[0], 1);
    assert_eq!(serve.get("/v1/decide?rule=export&key=a&cost=2").status, 429);
    assert_eq!(serve.get("/v1/decide?rule=export&key=a").status, 200);
    // A second one on the same states is refused, and says why.
    let state = serve.path("state").display().to_string();
    let mut second = tools::own(tests::cli::built_binary("limiter-serve"));
    let output = process::output(second.args(["--state-dir", &state]));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && told.contains("another limiter-serve uses"),
        "{told}"
    );
}

#[test]
fn more_keys_are_given_room_and_none_is_forgotten() {
    let mut serve = Serve::start(RULES, &[]);
    for key in 0..300 {
        assert_eq!(serve.resp().ask(&format!("CL.THROTTLE k{key} 0 1 3600"))[0], 0);
    }
    serve.process().signal(libc::SIGTERM);
    let ended = wait_for("its end", Duration::from_secs(20), || serve.process().try_wait());
    assert!(ended.success());
    let states = serve.path("state");
    let size = || -> u64 {
        let files = fs::read_dir(&states).expect("a folder").flatten();
        files.map(|file| file.metadata().map_or(0, |found| found.len())).sum()
    };
    let before = size();
    serve.restart_with(200_000);
    assert!(size() > before + 5_000_000, "{before} {}", size());
    for key in 0..300 {
        assert_eq!(serve.resp().ask(&format!("CL.THROTTLE k{key} 0 1 3600"))[0], 1, "{key}");
    }
}

#[test]
fn decide_tells_what_is_left_and_when_to_come_again() {
    let serve = Serve::start(RULES, &[]);
    let first = serve.get("/v1/decide?rule=login&key=alice");
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.header("ratelimit-policy"), Some("\"default.login\";q=3;w=3600"));
    assert_eq!(first.header("ratelimit"), Some("\"default.login\";r=2;t=1200"));
    assert_eq!(first.json()["items"][0]["remaining"], 2);
    // Looks, gives back, and takes the rest.
    assert_eq!(serve.get("/v1/decide?rule=login&key=alice&act=peek&cost=3").status, 429);
    assert_eq!(serve.get("/v1/decide?rule=login&key=alice&act=refund").status, 200);
    assert_eq!(serve.get("/v1/decide?rule=login&key=alice&cost=3").status, 200);
    let over = serve.get("/v1/decide?rule=login&key=alice");
    assert_eq!((over.status, over.header("retry-after")), (429, Some("1200")));
    assert_eq!(over.header("content-type"), Some("application/problem+json"));
    assert_eq!(over.json()["violated-policies"], json!(["default.login"]));
    // For nginx, which takes a 429 of its authorizer for a failure.
    assert_eq!(serve.get("/v1/decide?rule=login&key=alice&deny_status=403").status, 403);
    assert_eq!(serve.get("/v1/decide?rule=login&key=alice&act=reset").status, 200);
    assert_eq!(serve.get("/v1/decide?rule=login&key=alice").status, 200);
    // Nothing is ever admitted: there is no time to come again.
    let nobody = serve.get("/v1/decide?rule=login&key=root");
    assert_eq!((nobody.status, nobody.header("retry-after")), (429, None));
    assert_eq!(nobody.json()["violated-policies"], json!(["nobody"]));
    // A shadow only counts.
    for _ in 0..3 {
        assert_eq!(serve.get("/v1/decide?rule=watched&key=a").status, 200);
    }
    let from_header = "/v1/decide?rule=login&key_from=x-user";
    assert_eq!(
        serve.http("GET", from_header, "X-User: bob\r\n", "").json()["items"][0]["remaining"],
        2
    );
    let page = serve.get("/metrics").body;
    for line in [
        "limiter_serve_decisions_total{rule=\"default.watched\",code=\"shadow\"} 2",
        "limiter_serve_decisions_total{rule=\"default.login\",code=\"over\"} 3",
        "limiter_serve_answer_seconds_count{face=\"http\"}",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}

#[test]
fn many_keys_are_charged_together_or_not_at_all() {
    let serve = Serve::start(RULES, &[]);
    let ask = |items| serve.http("POST", "/v1/decide", "", &json!({ "items": items }).to_string());
    let one = json!({ "key": "a", "limit": 1, "period": "1h" });
    let many = json!({ "rule": "login", "key": "alice" });
    assert_eq!(ask(json!([one, many])).status, 200);
    let over = ask(json!([one, many]));
    assert_eq!(over.status, 429);
    assert_eq!(over.json()["items"][1]["remaining"], 2);
    // The same key as over RESP: one limit for all who ask.
    assert_eq!(serve.resp().ask("CL.THROTTLE a 0 1 3600")[0], 1);
    assert_eq!(ask(json!([many])).json()["items"][0]["remaining"], 1);
}

#[test]
fn a_wrong_request_is_told_what_is_wrong() {
    let serve = Serve::start(RULES, &[]);
    for (target, status, told) in [
        ("/v1/decide", 400, "give key"),
        ("/v1/decide?key=a", 400, "give a rule, or a limit"),
        ("/v1/decide?key=a&rule=nothing", 404, "no rule nothing in domain default"),
        ("/v1/decide?key=a&rule=login&limit=1", 400, "give a rule, or a limit"),
        ("/v1/decide?key=a&limit=1&period=soon", 400, "period \"soon\""),
        ("/v1/decide?key=a&limit=500&period=1h&algorithm=sliding-log", 400, "take sub-windows"),
        ("/v1/decide?key=a&rule=login&deny_status=200", 400, "from 400 to 499"),
        ("/v1/decide?key=a&rule=login&colour=red", 400, "unknown field `colour`"),
        ("/v1/decide?rule=login&key_from=x-user", 400, "no header x-user"),
    ] {
        let answer = serve.get(target);
        let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        assert!(answer.status == status && detail.contains(told), "{target}: {answer:?}");
    }
    let long = "POST /v1/decide HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 300000\r\n\r\n";
    let long = serve.send(long);
    assert_eq!(long.status, 413);
    let slow =
        "POST /v1/decide HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 30\r\n\r\n";
    assert_eq!(serve.send(slow).status, 408);
}

#[test]
fn json_takes_the_message_of_envoys_service() {
    let serve = Serve::start(RULES, &[]);
    let ask = |body: &serde_json::Value| serve.http("POST", "/json", "", &body.to_string());
    let entries = json!([{ "key": "login", "value": "a" }]);
    let request =
        json!({ "domain": "default", "hitsAddend": 2, "descriptors": [{ "entries": entries }] });
    let answer = ask(&request);
    assert_eq!(answer.status, 200, "{answer:?}");
    let status = &answer.json()["statuses"][0];
    assert_eq!(status["currentLimit"], json!({ "requestsPerUnit": 3, "unit": "HOUR" }));
    assert_eq!(
        (&answer.json()["overallCode"], &status["limitRemaining"]),
        (&json!("OK"), &json!(1))
    );
    assert_eq!(ask(&request).json()["overallCode"], "OVER_LIMIT");
    // A limit of the request's own, and names as protobuf has them.
    let own = json!({ "domain": "default", "descriptors": [
        { "entries": entries, "hits_addend": "0", "limit": { "requests_per_unit": 9, "unit": "DAY" } }
    ]});
    assert_eq!(ask(&own).json()["statuses"][0]["currentLimit"]["unit"], "DAY");
    for (wrong, told) in [
        (json!({ "descriptors": [{ "entries": entries }] }), "domain must not be empty"),
        (json!({ "domain": "default" }), "descriptor list must not be empty"),
        (json!({ "domain": "d", "descriptors": vec![json!({}); 65] }), "too large"),
    ] {
        let answer = ask(&wrong);
        assert!(answer.status == 400 && answer.body.contains(told), "{answer:?}");
    }
}

#[test]
fn rules_are_read_again_all_or_none() {
    let serve = Serve::start(RULES, &[]);
    let status = || serve.get("/v1/decide?rule=added&key=a").status;
    assert_eq!(status(), 404);
    let added =
        format!("{RULES}  - key: added\n    rate_limit: {{ unit: day, requests_per_unit: 1 }}\n");
    serve.reload(&added, "5 rules are in force");
    assert_eq!((status(), status()), (200, 429));
    // One rule is wrong: what was in force stays, and the log says where to look.
    serve.reload(
        &added.replace("unit: day, requests_per_unit: 1 }", "unit: moon, requests_per_unit: 9 }"),
        "unit \"moon\"",
    );
    assert_eq!(status(), 429);
    // `--check` says it before.
    let mut check = tools::own(tests::cli::built_binary("limiter-serve"));
    let output = process::output(check.arg("--check").arg("--rules").arg(serve.path("rules.yaml")));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && told.contains("rules.yaml:"), "{told}");
}

#[test]
fn a_reload_while_it_starts_is_not_its_end() {
    let home = tempfile::tempdir().expect("a folder");
    let path = |name: &str| home.path().join(name);
    // It starts for as long as nobody writes what it reads.
    let name = CString::new(path("rules.yaml").into_os_string().into_vec()).expect("no zero byte");
    // SAFETY: the name ends with a zero byte and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let mut command = tools::own(tests::cli::built_binary("limiter-serve"));
    command.arg("--rules").arg(path("rules.yaml")).arg("--state-dir").arg(path("state"));
    command.args(["--resp", "off", "--grpc", "off", "--http"]);
    command.arg(format!("unix:{}", path("http.sock").display()));
    let mut serve = process::Background::start(&mut command);
    let mut rules = fs::File::create(path("rules.yaml")).expect("somebody reads");
    serve.signal(libc::SIGHUP);
    rules.write_all(RULES.as_bytes()).expect("somebody reads");
    drop(rules);
    let connect = || UnixStream::connect(path("http.sock")).is_ok().then_some(());
    wait_for("HTTP", Duration::from_secs(20), connect);
    // The reload is not forgotten: somebody reads once more.
    fs::write(path("rules.yaml"), RULES).expect("somebody reads");
    assert_eq!(serve.try_wait(), None);
}

#[test]
fn tcp_clients_show_the_token() {
    let home = tempfile::tempdir().expect("a folder");
    let token = home.path().join("token");
    fs::write(&token, "0123456789abcdef\n").expect("a token");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("a file of ours");
    let namespace = tests::Namespace::new("serve");
    let mut command = namespace.own(tests::cli::built_binary("limiter-serve"));
    command.args(["--rules", &home.path().display().to_string(), "--grpc", "off"]);
    command.arg("--state-dir").arg(home.path().join("state"));
    command.arg("--token-file").arg(&token);
    let _serve = process::Background::start(&mut command);
    let curl = |arguments: &[&str]| {
        let mut curl = namespace.command(&tools::CURL);
        let output = process::output(
            curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}"]).args(arguments),
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let health = "http://127.0.0.1:8080/healthz";
    wait_for("HTTP", Duration::from_secs(20), || (curl(&[health]) == "200").then_some(()));
    let decide = "http://127.0.0.1:8080/v1/decide?key=a&limit=5";
    assert_eq!(curl(&[decide]), "401");
    assert_eq!(curl(&["-H", "Authorization: Bearer 0123456789abcdeF", decide]), "401");
    assert_eq!(curl(&["-H", "Authorization: Bearer 0123456789abcdef", decide]), "200");
    let talk = namespace.run_inside(|| {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect("127.0.0.1:6380").expect("a connection");
        stream
            .write_all(
                b"PING\r\nAUTH 0123456789abcdeF\r\nAUTH 0123456789abcdef\r\nPING\r\nQUIT\r\n",
            )
            .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    });
    let kinds: Vec<_> =
        talk.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(kinds, ["-NOAUTH", "-WRONGPASS", "+OK", "+PONG", "+OK"], "{talk}");
}
