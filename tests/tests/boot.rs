//! Limits are in force before anything else is: neither an address or an interface that comes late nor a port,
//! a key or a certificate that is missing keeps the daemon from enforcing them, and all of it is made up for.

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;
use tests::{
    Daemon, DaemonOptions, Fleet, Lab, Observer, Sender, Sent, Stream,
    cli::limiter_binary,
    fleet::CONTROL,
    frame,
    lab::{RX, RX_V4, RX2, TX2},
    observer::Then,
    process, v4,
};

/// How long what came late may take to be used.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The certificate of tests is for this address.
const HTTPS: u16 = 9443;

/// Files that the cluster and the dashboard need.
struct Files {
    home: TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self { home: tempfile::tempdir().expect("a temporary folder") };
        fs::write(files.at("token"), "0123456789abcdef\n").expect("a token");
        fs::set_permissions(files.at("token"), fs::Permissions::from_mode(0o600)).expect("modes");
        files
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    fn make_key(&self) {
        let mut generate = tools::own(limiter_binary());
        process::run(generate.args(["cluster", "key", "generate"]).arg(self.at("key")));
    }

    fn make_certificate(&self) {
        let mut request = tools::OPENSSL.command();
        request.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        request.args(["-nodes", "-days", "2", "-subj", "/CN=limiter", "-keyout"]);
        process::run(request.arg(self.at("tls.key")).arg("-out").arg(self.at("tls.crt")));
    }

    /// Starts a daemon with a limit in its configuration file, and a cluster and a dashboard on `address`.
    fn start(&self, lab: &Lab, name: &str, address: &str, more: &str, limit: &str) -> Daemon {
        let text = format!(
            "http_listen = \"{address}:{HTTPS}\"\nhttp_token_file = \"{}\"\nhttp_tls_cert = \"{}\"\n\
             http_tls_key = \"{}\"\n[cluster]\nname = \"{name}\"\nlisten = \"{address}:7700\"\n\
             key_file = \"{}\"\n{more}\n[limits]\ndefault = {limit}\n",
            self.name("token"),
            self.name("tls.crt"),
            self.name("tls.key"),
            self.name("key")
        );
        let file = self.name(&format!("{name}.toml"));
        fs::write(&file, text).expect("a configuration");
        Daemon::start_with(lab, DaemonOptions::with(&["--config", &file]))
    }
}

const LOCAL: &str = "{ rate = \"1000pps\", burst = 100 }";
const CLUSTER: &str = "{ rate = \"2000pps\", burst = 200, scope = \"cluster\" }";

/// What passes of a source that sends 4000 frames in a second.
fn admitted(lab: &Lab, observer: &Observer<'_>, source: u8) -> (u64, Sent) {
    let frame = frame::udp(v4(source), 100);
    let sent = Sender::new(lab).send(vec![Stream::new(frame, 4000.0, 4000)]).remove(0);
    (observer.read().from(v4(source)), sent)
}

/// Asserts that [`LOCAL`] holds.
fn assert_limits(lab: &Lab, daemon: &Daemon, source: u8) {
    let observer = Observer::new(lab, Then::Discard, &[]);
    let limits = daemon.cli().limits();
    let limit = limits.iter().find(|limit| limit.target == "default").expect("a default limit");
    let (passed, sent) = admitted(lab, &observer, source);
    limit.assert_admitted("before all has started", passed, [&sent]);
}

/// What is said of a service, and the warning about it.
fn service(status: &Value, name: &str) -> (Value, String) {
    let services = status["services"].as_array().expect("services");
    let service = services.iter().find(|service| service["name"] == name).expect("the service");
    let warnings = status["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut about = warnings.filter(|text| text.starts_with(&format!("the {name} is not up")));
    (service.clone(), about.next().unwrap_or_default().to_owned())
}

/// Asserts that the daemon tells that a service is not up, why, and what to do.
#[track_caller]
fn assert_down(daemon: &Daemon, name: &str, about: &[&str]) {
    let answer = daemon.cli().run(&["status"]);
    assert_eq!((answer.code, &answer.json["state"]), (1, &"degraded".into()), "{answer:#?}");
    let (service, warning) = service(&answer.json, name);
    println!("{warning}");
    assert!(service["up"] == false && service["hint"].is_string(), "{service}");
    for word in about {
        assert!(warning.contains(word), "{word}: {warning}");
    }
    // It is told once, however often it is tried.
    let told = format!("the {name} is not up");
    assert_eq!(daemon.log().matches(&told).count(), 1, "{}", daemon.log());
}

/// Waits until a service is up that was not before.
fn wait_up(daemon: &Daemon, name: &str) {
    let begun = Instant::now();
    let late = process::wait_for(format!("the {name}"), TIMEOUT, || {
        let (service, warning) = service(&daemon.cli().run(&["status"]).json, name);
        (service["up"] == true && warning.is_empty()).then_some(service["late_seconds"].clone())
    });
    println!(
        "the {name} is up after {:.1} s, {late} s after the daemon",
        begun.elapsed().as_secs_f64()
    );
    assert!(late.is_u64(), "it tells that it came late: {late}");
    assert!(daemon.log().contains(&format!("the {name} is up, {late} s after the daemon")));
}

fn dashboard(lab: &Lab, address: &str) -> String {
    let mut curl = lab.receiver.command(&tools::CURL);
    curl.args(["-s", "-k", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}"]);
    let output = process::output(curl.arg(format!("https://{address}:{HTTPS}/login")));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn addresses_may_come_after_the_limits() {
    let (fleet, files) = (Fleet::new(2), Files::new());
    files.make_key();
    files.make_certificate();
    let addresses = [0, 1].map(|host| Fleet::address(host).to_string());
    let change = |host: usize, verb: &str| {
        let address = format!("{}/24", addresses[host]);
        let ip = fleet.hosts[host].receiver.ip(&["address", verb, &address, "dev", CONTROL]);
        process::run(ip);
    };
    change(0, "del");
    change(1, "del");
    let seeds = addresses.each_ref().map(|address| format!("{address}:7700"));
    let seeds = format!("seeds = {seeds:?}\nbootstrap_expect = 2");
    let start = |host: usize, more| {
        let name = format!("edge-{}", host + 1);
        files.start(&fleet.hosts[host], &name, &addresses[host], more, LOCAL)
    };
    let daemons = [start(0, &seeds), start(1, &seeds)];
    for (host, daemon) in daemons.iter().enumerate() {
        assert_limits(&fleet.hosts[host], daemon, 1);
        let about = [&addresses[host], "no interface of this host has", "ip address"];
        assert_down(daemon, "cluster", &about);
        assert_down(daemon, "dashboard", &about);
    }
    change(0, "add");
    change(1, "add");
    for (host, daemon) in daemons.iter().enumerate() {
        wait_up(daemon, "cluster");
        wait_up(daemon, "dashboard");
        assert_eq!(dashboard(&fleet.hosts[host], &addresses[host]), "200");
    }
    process::wait_for("two members", TIMEOUT, || {
        let there = |daemon: &Daemon| daemon.cli().run(&["status"]).json["cluster"]["members"] == 2;
        daemons.iter().all(there).then_some(())
    });
    assert_eq!(daemons[0].cli().ok(&["status"])["state"], "ok");
    assert_limits(&fleet.hosts[0], &daemons[0], 2);
}

#[test]
fn a_port_in_use_does_not_stop_enforcement() {
    let (lab, files) = (Lab::new(1), Files::new());
    files.make_key();
    files.make_certificate();
    let taken = lab.receiver.run_inside(|| {
        let tcp = TcpListener::bind((RX_V4, HTTPS)).expect("a port");
        (tcp, UdpSocket::bind((RX_V4, 7700)).expect("a port"))
    });
    let daemon = files.start(&lab, "edge-1", &RX_V4.to_string(), "", LOCAL);
    assert_limits(&lab, &daemon, 1);
    assert_down(&daemon, "cluster", &["7700", "in use", "ss -lunp"]);
    assert_down(&daemon, "dashboard", &["9443", "in use", "ss -ltnp"]);
    // What a request for the cluster gets says why, too.
    let peers = daemon.cli().run(&["peers"]);
    assert!(peers.code == 1 && peers.stderr.contains("in use"), "{peers:?}");
    drop(taken);
    wait_up(&daemon, "cluster");
    wait_up(&daemon, "dashboard");
    assert_eq!(dashboard(&lab, &RX_V4.to_string()), "200");
    daemon.cli().ok(&["cluster", "init"]);
    assert_eq!(daemon.cli().ok(&["status"])["cluster"]["members"], 1);
}

#[test]
fn a_missing_key_and_a_bad_certificate_do_not_stop_enforcement() {
    let (lab, files) = (Lab::new(1), Files::new());
    fs::write(files.at("tls.crt"), "none").expect("a file");
    fs::write(files.at("tls.key"), "none").expect("a file");
    let mut daemon = files.start(&lab, "edge-1", &RX_V4.to_string(), "", CLUSTER);
    let key = files.name("key");
    assert_down(
        &daemon,
        "cluster",
        &[&key, "No such file", "limiter cluster key generate", "0.00 %"],
    );
    assert_down(&daemon, "dashboard", &["--http-tls-cert", &files.name("tls.crt")]);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    // It has no part of the cluster's limits that anybody knows of.
    assert_eq!(admitted(&lab, &observer, 1).0, 0);
    files.make_key();
    files.make_certificate();
    wait_up(&daemon, "cluster");
    wait_up(&daemon, "dashboard");
    assert_eq!(dashboard(&lab, &RX_V4.to_string()), "200");
    daemon.cli().ok(&["cluster", "init"]);
    process::wait_for("the founder's part", TIMEOUT, || {
        (daemon.cli().run(&["status"]).json["cluster"]["home"] == 1.0).then_some(())
    });
    let (passed, sent) = admitted(&lab, &observer, 2);
    println!(
        "{passed} of 4000 frames passed in {:.2} s when all of the limit is here",
        sent.seconds()
    );
    assert!(passed > 1000, "{passed}");
    // Without its key it knows what it has: all, of which nobody else can have got a part.
    daemon.kill();
    fs::rename(files.at("key"), files.at("away")).expect("the key goes");
    daemon.restart(&lab);
    let warning = service(&daemon.cli().run(&["status"]).json, "cluster").1;
    assert!(warning.contains(&key) && warning.contains("100.00 %"), "{warning}");
    let (passed, sent) = admitted(&lab, &observer, 3);
    println!(
        "{passed} of 4000 frames passed in {:.2} s of a daemon without its key",
        sent.seconds()
    );
    assert!(passed > 1000, "{passed}");
    fs::rename(files.at("away"), files.at("key")).expect("the key comes back");
    wait_up(&daemon, "cluster");
    assert_eq!(daemon.cli().ok(&["status"])["cluster"]["home"], 1.0);
}

/// Makes a wire from [`TX2`], which is up, to [`RX2`], which is not.
fn wire(lab: &Lab) {
    let mut link = lab.sender.ip(&["link", "add", TX2, "type", "veth", "peer", "name", RX2]);
    process::run(link.args(["netns", lab.receiver.name()]));
    lab.sender.sysctl(&format!("net/ipv6/conf/{TX2}/addr_gen_mode"), "1");
    lab.receiver.sysctl(&format!("net/ipv6/conf/{RX2}/addr_gen_mode"), "1");
    process::run(lab.sender.ip(&["link", "set", TX2, "up"]));
}

fn wait_attached(daemon: &Daemon, device: &str) {
    let begun = Instant::now();
    process::wait_for(format!("{device} to be attached to"), TIMEOUT, || {
        let status = daemon.cli().run(&["status"]).json;
        let interfaces = status["interfaces"].as_array().into_iter().flatten();
        interfaces.into_iter().any(|interface| interface["name"] == device).then_some(())
    });
    println!("attached to {device} after {:.2} s", begun.elapsed().as_secs_f64());
}

#[test]
fn an_interface_that_comes_late_is_protected_before_it_is_up() {
    let lab = Lab::new(1);
    // One that never comes is first: it keeps no other from being protected.
    let interfaces = ["absent0", RX2, RX].map(str::to_owned).to_vec();
    let daemon = Daemon::start_with(&lab, DaemonOptions { interfaces, ..DaemonOptions::default() });
    daemon.cli().limit("1000pps", Some("100"), None);
    assert_limits(&lab, &daemon, 1);
    let told = |device: &str| {
        let status = daemon.cli().run(&["status"]);
        assert_eq!((status.code, &status.json["state"]), (1, &"degraded".into()), "{status:?}");
        let warnings = status.json["warnings"].as_array().expect("warnings").clone();
        let about = format!("{device} is not protected: no interface is called {device}");
        warnings.iter().filter_map(Value::as_str).any(|text| text.starts_with(&about))
    };
    assert!(told("absent0") && told(RX2));
    for source in [2, 3] {
        wire(&lab);
        // More than the limit lets through is due at the moment that the wire carries anything.
        let flood = Stream::new(frame::udp(v4(source), 100), 20_000.0, 20_000).with_burst(2000);
        let sending = Sender::new(&lab).on_device(TX2).start(vec![flood]);
        wait_attached(&daemon, RX2);
        assert!(told("absent0") && !told(RX2));
        let observer = Observer::on(&lab, RX2, Then::Discard, &[]);
        let begun = Instant::now();
        process::run(lab.receiver.ip(&["link", "set", RX2, "up"]));
        let sent = sending.join()[0].packets();
        let passed = observer.read().from(v4(source));
        let most = 100.0 + 1000.0 * begun.elapsed().as_secs_f64();
        println!("{passed} of {sent} frames passed, and {most:.0} may have");
        assert!(passed > 100 && passed as f64 <= most, "{passed}, {most:.0}");
        drop(observer);
        // It goes, and comes again.
        process::run(lab.sender.ip(&["link", "del", TX2]));
        process::wait_for("it is missed", TIMEOUT, || told(RX2).then_some(()));
    }
    // Nobody who has detached from an interface wants it to be attached to again.
    wire(&lab);
    wait_attached(&daemon, RX2);
    daemon.cli().ok(&["detach", RX2]);
    process::run(lab.sender.ip(&["link", "del", TX2]));
    wire(&lab);
    std::thread::sleep(Duration::from_millis(500));
    assert!(!told(RX2), "nobody waits for it");
    // Who attaches to it by hand does.
    daemon.cli().ok(&["attach", RX2]);
    process::run(lab.sender.ip(&["link", "del", TX2]));
    process::wait_for("it is missed", TIMEOUT, || told(RX2).then_some(()));
    let begun = Instant::now();
    wire(&lab);
    wait_attached(&daemon, RX2);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(Path::new("/proc").join(daemon.pid().to_string()).exists());
}
