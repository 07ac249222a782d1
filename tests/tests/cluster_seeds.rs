//! Seeds that change while a daemon runs.

use std::{
    fs,
    io::Write as _,
    net::{IpAddr, UdpSocket},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use hickory_resolver::proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{RData, Record, RecordType, rdata::SRV},
};
use serde_json::Value;
use tempfile::TempDir;
use tests::{
    Daemon, DaemonOptions, Fleet,
    cli::limiter_binary,
    process::{self, wait_for},
};

const TIMEOUT: Duration = Duration::from_secs(30);

fn configure(folder: &Path, host: usize, seeds: &[IpAddr]) {
    let seeds: Vec<_> = seeds.iter().map(|seed| format!("{seed}:7700")).collect();
    let text = format!(
        "[cluster]\nname = \"edge-{host}\"\nlisten = \"{}:7700\"\nkey_file = \"{}\"\nseeds = {seeds:?}\n",
        Fleet::address(host),
        folder.join("cluster.key").display()
    );
    fs::write(folder.join(format!("{host}.toml")), text).expect("the file can be written");
}

fn start(fleet: &Fleet, folder: &Path, host: usize) -> Daemon {
    let config = folder.join(format!("{host}.toml")).display().to_string();
    Daemon::start_with(&fleet.hosts[host], DaemonOptions::with(&["--config", &config]))
}

fn peers(daemon: &Daemon) -> Value {
    daemon.cli().run(&["peers"]).json
}

fn wait_told(daemon: &Daemon, what: &str) {
    wait_for(what, TIMEOUT, || peers(daemon)["warnings"].to_string().contains(what).then_some(()));
}

/// Where a host listens that others reach at another address.
const INSIDE: &str = "10.77.0.2";

/// Between `host` and the others addresses are translated, both ways.
fn translate(fleet: &Fleet, host: usize) {
    let (receiver, outside) = (&fleet.hosts[host].receiver, Fleet::address(host));
    process::run(receiver.ip(&["addr", "add", &format!("{INSIDE}/32"), "dev", "lo"]));
    let rules = format!(
        "add table ip nat\n\
         add chain ip nat in {{ type nat hook prerouting priority -100; }}\n\
         add chain ip nat out {{ type nat hook postrouting priority 100; }}\n\
         add rule ip nat in ip daddr {outside} udp dport 7700 dnat to {INSIDE}:7700\n\
         add rule ip nat out ip saddr {INSIDE} snat to {outside}\n"
    );
    process::run(receiver.command(&tools::NFT).arg(rules));
}

fn folder_with_a_key() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut generate = tools::own(limiter_binary());
    let key = folder.path().join("cluster.key");
    process::run(generate.args(["cluster", "key", "generate"]).arg(key));
    folder
}

#[test]
fn a_host_behind_nat_is_reached_where_it_says() {
    let (fleet, home) = (Fleet::new(3), folder_with_a_key());
    let folder = home.path();
    translate(&fleet, 1);
    for host in 0..3 {
        // The third one hears of it from the first alone.
        configure(folder, host, &[Fleet::address(0)]);
    }
    let path = folder.join("1.toml");
    let outside = Fleet::address(1);
    let text = fs::read_to_string(&path).expect("a configuration");
    let inside = text.replace(&format!("listen = \"{outside}"), &format!("listen = \"{INSIDE}"));
    assert_ne!(text, inside);
    fs::write(&path, inside).expect("the file can be written");
    let mut file = fs::OpenOptions::new().append(true).open(&path).expect("a configuration");
    writeln!(file, "advertise = \"{outside}:7700\"").expect("room for a line");
    let daemons = [0, 1, 2].map(|host| start(&fleet, folder, host));
    daemons[0].cli().ok(&["cluster", "init"]);
    for daemon in &daemons {
        wait_for("three members, and what each tells of itself", TIMEOUT, || {
            let told = peers(daemon);
            let known = told["peers"].as_array()?;
            let answers = known.iter().filter(|peer| peer["details"]["members"] == 3).count();
            (known.len() == 3 && answers == 3).then_some(())
        });
    }
    let told = peers(&daemons[2]).to_string();
    assert!(told.contains(&format!("{outside}:7700")) && !told.contains(INSIDE), "{told}");
    let cli = daemons[1].cli();
    cli.ok(&["limit", "set", "1000pps", "--scope", "cluster"]);
    wait_for("an even part", TIMEOUT, || {
        let home = cli.run(&["status"]).json["cluster"]["home"].as_f64()?;
        ((home - 1.0 / 3.0).abs() < 0.03).then_some(())
    });
}

#[test]
fn other_seeds_are_taken_over_by_a_reload() {
    let (fleet, home) = (Fleet::new(2), folder_with_a_key());
    let folder = home.path();
    configure(folder, 0, &[]);
    configure(folder, 1, &[Fleet::address(199)]);
    let daemons = [0, 1].map(|host| start(&fleet, folder, host));
    wait_told(&daemons[1], "nobody answers at the seed 10.99.0.200:7700");
    daemons[0].cli().ok(&["cluster", "init"]);
    wait_told(&daemons[1], "this host belongs to no cluster yet");

    // None at all is no reason to found one.
    configure(folder, 1, &[]);
    daemons[1].cli().ok(&["reload"]);
    wait_for("no seed to be told of", TIMEOUT, || {
        (!peers(&daemons[1])["warnings"].to_string().contains("the seed")).then_some(())
    });
    wait_told(&daemons[1], "this host belongs to no cluster yet");
    assert_eq!(peers(&daemons[1])["cluster"], Value::Null);

    configure(folder, 1, &[Fleet::address(0)]);
    let cli = daemons[1].cli();
    let told = cli.ok(&["reload", "--dry-run"]);
    assert_eq!(told["live"][0]["key"], "cluster_seeds", "{told:#}");
    assert_eq!(told["restart"].as_array().map(Vec::len), Some(0), "{told:#}");
    assert_eq!(peers(&daemons[1])["cluster"], Value::Null);
    let told = cli.ok(&["reload"]);
    assert_eq!(told["live"][0]["key"], "cluster_seeds", "{told:#}");
    let begun = std::time::Instant::now();
    wait_for("both to be one cluster", TIMEOUT, || {
        let found = daemons.each_ref().map(|daemon| peers(daemon)["peers"].clone());
        found.iter().all(|peers| peers.as_array().map(Vec::len) == Some(2)).then_some(())
    });
    println!("one cluster {:.1} s after the reload", begun.elapsed().as_secs_f64());
    wait_for("nothing to be said of seeds", TIMEOUT, || {
        (!peers(&daemons[1])["warnings"].to_string().contains("the seed")).then_some(())
    });
    assert_eq!(peers(&daemons[0])["cluster"], peers(&daemons[1])["cluster"]);
    for daemon in &daemons {
        assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    }
}

/// The name of the service, and what the names of its hosts end with.
const SERVICE: &str = "_limiter._udp.edge.test";
const ZONE: &str = ".edge.test.";

/// A name server on the loopback device of a host.
struct NameServer {
    /// The hosts that records of the service name.
    named: Arc<Mutex<Vec<usize>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    fn start(fleet: &Fleet, host: usize) -> Self {
        let (named, ends) = (Arc::<Mutex<Vec<usize>>>::default(), Arc::<AtomicBool>::default());
        let (zone, end) = (Arc::clone(&named), Arc::clone(&ends));
        let hosts = fleet.hosts.len();
        let serve = move || {
            let socket = UdpSocket::bind("127.0.0.1:53").expect("nobody else answers there");
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
            let mut buffer = [0; 1232];
            while !end.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                let query = Message::from_vec(&buffer[..length]).expect("a query");
                let answer = answer(query, &zone.lock().expect("nobody panics with it"), hosts);
                let bytes = answer.to_vec().expect("an answer that fits");
                socket.send_to(&bytes, from).expect("a way back");
            }
        };
        let thread = Some(fleet.hosts[host].receiver.spawn_inside(serve));
        Self { named, ends, thread }
    }

    fn name(&self, hosts: &[usize]) {
        *self.named.lock().expect("nobody panics with it") = hosts.to_vec();
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

fn answer(mut query: Message, named: &[usize], fleet: usize) -> Message {
    let asked = query.queries.first().expect("a question").clone();
    let record = |data| Record::from_rdata(asked.name().clone(), 1, data);
    let name = asked.name().to_ascii().to_lowercase();
    let host = name.strip_suffix(ZONE).and_then(|name| name.strip_prefix('h')?.parse().ok());
    let service = name == format!("{SERVICE}.");
    match (asked.query_type(), host) {
        (RecordType::SRV, _) if service => {
            for host in named {
                let target = format!("h{host}{ZONE}").parse().expect("a name");
                query.add_answer(record(RData::SRV(SRV::new(0, 0, 7700, target))));
            }
        }
        (RecordType::A, Some(host)) if host < fleet => {
            let IpAddr::V4(address) = Fleet::address(host) else { panic!("hosts have IPv4") };
            query.add_answer(record(RData::A(address.into())));
        }
        (RecordType::AAAA, Some(host)) if host < fleet => {}
        _ => query.metadata.response_code = ResponseCode::NXDomain,
    }
    query.metadata.message_type = MessageType::Response;
    query
}

#[test]
fn a_service_names_seeds_once_it_has_records() {
    let (fleet, home) = (Fleet::new(2), folder_with_a_key());
    let folder = home.path();
    let names = NameServer::start(&fleet, 1);
    let resolver = folder.join("resolv.conf");
    fs::write(&resolver, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").expect("room");
    configure(folder, 0, &[]);
    configure(folder, 1, &[]);
    let path = folder.join("1.toml");
    let text = fs::read_to_string(&path).expect("a configuration");
    fs::write(&path, text.replace("seeds = []", &format!("seeds = [\"{SERVICE}\"]")))
        .expect("the file can be written");
    let config = path.display().to_string();
    let options = DaemonOptions {
        covers: vec![(resolver, "/etc/resolv.conf".into())],
        ..DaemonOptions::with(&["--config", &config])
    };
    let daemons = [start(&fleet, folder, 0), Daemon::start_with(&fleet.hosts[1], options)];
    daemons[0].cli().ok(&["cluster", "init"]);
    wait_told(&daemons[1], &format!("the seed {SERVICE} is not found"));
    // The first one is gone, and its record is not.
    names.name(&[7, 0]);
    wait_for("both to be one cluster", TIMEOUT, || {
        let found = daemons.each_ref().map(|daemon| peers(daemon)["peers"].clone());
        found.iter().all(|peers| peers.as_array().map(Vec::len) == Some(2)).then_some(())
    });
    assert_eq!(peers(&daemons[0])["cluster"], peers(&daemons[1])["cluster"]);
    assert!(!daemons[1].log().contains("panicked"), "{}", daemons[1].log());
}
