//! What keeps one limit on three hosts: the limiter, or HAProxy with a stick table that its peers have, too.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, TcpStream},
    thread::sleep,
    time::Duration,
};

use serde::Serialize;
use tempfile::TempDir;
use tests::{
    Fleet,
    hosts::{Hosts, name},
    lab::RX_V4,
    process::{Background, wait_for},
};

use crate::{BURST, HOSTS, RATE, load::PORT};

/// Where the server behind HAProxy listens.
const BEHIND: u16 = 8080;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Who keeps the limit.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contender {
    Limiter,
    Haproxy,
}

/// It, on its hosts.
pub(crate) enum Running {
    Limiter(Hosts),
    Haproxy { fleet: Fleet, processes: Vec<Background>, _folder: TempDir },
}

impl Contender {
    /// Starts it on three hosts, and waits until they know each other.
    pub(crate) fn start(self) -> Running {
        match self {
            Self::Limiter => Running::Limiter(limiter()),
            Self::Haproxy => haproxy(),
        }
    }

    /// Where connections come to that it lets through.
    pub(crate) const fn server(self) -> (Ipv4Addr, u16) {
        match self {
            Self::Limiter => (RX_V4, PORT),
            Self::Haproxy => (Ipv4Addr::LOCALHOST, BEHIND),
        }
    }
}

impl Running {
    pub(crate) const fn fleet(&self) -> &Fleet {
        match self {
            Self::Limiter(hosts) => &hosts.fleet,
            Self::Haproxy { fleet, .. } => fleet,
        }
    }

    /// Ends it.
    pub(crate) fn stop(self) {
        match self {
            Self::Limiter(hosts) => drop(hosts),
            Self::Haproxy { processes, .. } => {
                for mut process in processes {
                    process.signal(libc::SIGTERM);
                    process.wait(TIMEOUT);
                }
            }
        }
    }
}

fn limiter() -> Hosts {
    let (hosts, all) = (Hosts::start(HOSTS, &[]), [0, 1, 2]);
    let (rate, burst) = (format!("{RATE}pps"), BURST.to_string());
    let set = ["limit", "set", &rate, "--burst", &burst, "--syn", "--scope", "cluster"];
    hosts.daemons[0].cli().ok(&set);
    hosts.wait_limit(&all, &rate);
    hosts.wait_even(&all);
    hosts.wait_counted(&all);
    hosts
}

fn haproxy() -> Running {
    let (fleet, folder) = (Fleet::new(HOSTS), tempfile::tempdir().expect("a temporary folder"));
    let peers = (0..HOSTS).fold(String::new(), |mut text, host| {
        writeln!(text, "  peer {} {}:1024", name(host), Fleet::address(host)).expect("room");
        text
    });
    let config = folder.path().join("haproxy.cfg");
    // Only what is let through is counted: otherwise a source that goes on is let through never.
    let text = format!(
        "global\n  maxconn 4096\n  nbthread 1\n\
         defaults\n  mode tcp\n  timeout connect 1s\n  timeout client 1s\n  timeout server 1s\n\
         peers fleet\n{peers}\
         frontend in\n  bind {RX_V4}:{PORT}\n\
         \x20 stick-table type ip size 100k expire 30s store conn_rate(1s) peers fleet\n\
         \x20 tcp-request connection reject if {{ src_conn_rate ge {RATE} }}\n\
         \x20 tcp-request connection track-sc0 src\n\
         \x20 default_backend out\n\
         backend out\n  server here {}:{BEHIND}\n",
        Ipv4Addr::LOCALHOST
    );
    fs::write(&config, text).expect("room for a configuration");
    let start = |(at, host): (usize, &tests::Lab)| {
        let mut command = host.receiver.command(&tools::HAPROXY);
        command.arg("-db").arg("-f").arg(&config).args(["-L", &name(at)]);
        let process = Background::start(&mut command);
        wait_for("HAProxy", TIMEOUT, || {
            host.receiver.run_inside(|| TcpStream::connect((RX_V4, PORT)).ok())
        });
        process
    };
    let processes = fleet.hosts.iter().enumerate().map(start).collect();
    // Peers try again after some seconds where one was not there yet.
    sleep(Duration::from_secs(6));
    Running::Haproxy { fleet, processes, _folder: folder }
}
