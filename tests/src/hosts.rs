//! Daemons that are one cluster, and what they admit together.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Daemon, DaemonOptions, Fleet, Lab, Sender, Stream, Timeline,
    cli::limiter_binary,
    frame, process,
    sender::Sending,
    timeline::{busiest, excess},
};

/// The port that daemons listen on.
pub const PORT: u16 = 7700;

/// How long hosts may take to find each other and to divide shares, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);

/// How a host is started.
fn options(key: &Path, host: usize, name: &str, seeds: &[usize], more: &[&str]) -> DaemonOptions {
    let mut arguments = vec![
        "--cluster-name".to_owned(),
        name.to_owned(),
        "--cluster-listen".to_owned(),
        format!("{}:{PORT}", Fleet::address(host)),
        "--cluster-key-file".to_owned(),
        key.display().to_string(),
    ];
    for seed in seeds {
        arguments.push("--cluster-seeds".to_owned());
        arguments.push(format!("{}:{PORT}", Fleet::address(*seed)));
    }
    arguments.extend(more.iter().map(ToString::to_string));
    DaemonOptions { arguments, ..DaemonOptions::default() }
}

fn key_file(folder: &TempDir) -> PathBuf {
    folder.path().join("cluster.key")
}

fn generate(key: &Path) {
    let mut generate = tools::own(limiter_binary());
    process::run(generate.args(["cluster", "key", "generate"]).arg(key));
}

/// A daemon of a cluster without other hosts, so that its program knows their frames. It listens at an address of
/// the receiver, and its key is in a folder, where it has to stay for restarts.
///
/// # Panics
/// If it does not answer.
#[must_use]
pub fn alone(lab: &Lab, listen: IpAddr, folder: &TempDir, more: &[&str]) -> Daemon {
    let key = key_file(folder);
    generate(&key);
    let (listen, key) = (SocketAddr::from((listen, PORT)).to_string(), key.display().to_string());
    let cluster = ["--cluster-listen", &listen, "--cluster-key-file", &key];
    Daemon::start_with(lab, DaemonOptions::with(&[&cluster, more].concat()))
}

/// The name of a host.
#[must_use]
pub fn name(host: usize) -> String {
    format!("edge-{}", host + 1)
}

/// The name of a region.
#[must_use]
pub fn region(region: usize) -> String {
    format!("region-{}", region + 1)
}

/// Daemons on the hosts of a network, of which the first one mostly has founded a cluster.
#[derive(Debug)]
pub struct Hosts {
    /// The daemons, in the order of the hosts.
    pub daemons: Vec<Daemon>,
    /// The network.
    pub fleet: Fleet,
    folder: TempDir,
}

impl Hosts {
    /// Starts `count` daemons with `more` arguments, and waits until they see each other.
    ///
    /// # Panics
    /// If they do not.
    #[must_use]
    pub fn start(count: usize, more: &[&str]) -> Self {
        Self::start_on(Fleet::new(0), count, more)
    }

    /// The same in so many regions, `region-1` and so on in turn, with `delay` between them.
    ///
    /// # Panics
    /// As [`Hosts::start`].
    #[must_use]
    pub fn start_in_regions(count: usize, regions: usize, delay: Duration, more: &[&str]) -> Self {
        Self::start_on(Fleet::in_regions(0, regions, delay), count, more)
    }

    fn start_on(fleet: Fleet, count: usize, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        generate(&key_file(&folder));
        let mut hosts = Self { daemons: Vec::new(), fleet, folder };
        for host in 0..count {
            hosts.join(more);
            if host == 0 {
                hosts.daemons[0].cli().ok(&["cluster", "init"]);
            }
        }
        hosts.wait_members(&(0..count).collect::<Vec<_>>(), count as u64);
        hosts
    }

    /// Starts `count` daemons that belong to no cluster yet, each with the same hosts as seeds.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn start_apart(count: usize, seeds: &[usize], more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        generate(&key_file(&folder));
        let mut hosts = Self { daemons: Vec::new(), fleet: Fleet::new(0), folder };
        for _ in 0..count {
            hosts.start_one(seeds, more);
        }
        hosts
    }

    /// Starts one more host with these hosts as seeds.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_one(&mut self, seeds: &[usize], more: &[&str]) {
        self.start_host(&name(self.fleet.hosts.len()), &self.key_file(), seeds, more);
    }

    /// Starts one more host.
    ///
    /// # Panics
    /// If it does not start.
    pub fn join(&mut self, more: &[&str]) {
        self.join_as(&name(self.fleet.hosts.len()), more);
    }

    /// As [`Hosts::join`], with a name that another one may have.
    ///
    /// # Panics
    /// If it does not start.
    pub fn join_as(&mut self, name: &str, more: &[&str]) {
        let seeds = self.first_two();
        self.start_host(name, &self.key_file(), &seeds, more);
    }

    /// As [`Hosts::join`], with a key of its own.
    ///
    /// # Panics
    /// If it does not start.
    pub fn join_with_other_key(&mut self, more: &[&str]) {
        let host = self.fleet.hosts.len();
        let key = self.folder.path().join(format!("{host}.key"));
        generate(&key);
        let seeds = self.first_two();
        self.start_host(&name(host), &key, &seeds, more);
    }

    /// Two seeds, as far as there are so many hosts.
    fn first_two(&self) -> Vec<usize> {
        (0..self.fleet.hosts.len().min(2)).collect()
    }

    fn start_host(&mut self, name: &str, key: &Path, seeds: &[usize], more: &[&str]) {
        let host = self.fleet.hosts.len();
        self.fleet.add_host();
        let mut options = options(key, host, name, seeds, more);
        if self.fleet.backbone.is_some() {
            let region = region(self.fleet.region_of(host));
            options.arguments.extend(["--cluster-region".to_owned(), region]);
        }
        self.daemons.push(Daemon::start_with(&self.fleet.hosts[host], options));
    }

    /// The key file, which all hosts read.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        key_file(&self.folder)
    }

    /// What a host says of itself in its cluster.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn status(&self, host: usize) -> Value {
        self.daemons[host].cli().run(&["status"]).json["cluster"].clone()
    }

    /// What a host tells of all hosts.
    #[must_use]
    pub fn peers(&self, host: usize) -> Value {
        self.daemons[host].cli().run(&["peers"]).json
    }

    /// Datagrams that came to a host when there was no room for them in its socket.
    ///
    /// # Panics
    /// If the kernel does not count them.
    #[must_use]
    pub fn no_room(&self, host: usize) -> u64 {
        self.datagrams(host, "RcvbufErrors")
    }

    /// Datagrams that a host has sent.
    ///
    /// # Panics
    /// If the kernel does not count them.
    #[must_use]
    pub fn sent(&self, host: usize) -> u64 {
        self.datagrams(host, "OutDatagrams")
    }

    /// What the kernel counts of a host's datagrams by such a name.
    fn datagrams(&self, host: usize, counter: &str) -> u64 {
        let counts =
            self.fleet.hosts[host].receiver.command(&tools::CAT).arg("/proc/net/snmp").output();
        let text = String::from_utf8(counts.expect("counts").stdout).expect("text");
        let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
        let names = lines.next().into_iter().flat_map(str::split_whitespace);
        let values = lines.next().into_iter().flat_map(str::split_whitespace);
        let found = names.zip(values).find(|(name, _)| *name == counter);
        let count = found.and_then(|(_, value)| value.parse().ok());
        count.unwrap_or_else(|| panic!("no {counter} in {text}"))
    }

    /// The home share of a host, as a part of the whole.
    #[must_use]
    pub fn home(&self, host: usize) -> f64 {
        self.status(host)["home"].as_f64().unwrap_or(-1.0)
    }

    /// Waits until each of `hosts` sees so many members.
    ///
    /// # Panics
    /// If they do not.
    pub fn wait_members(&self, hosts: &[usize], count: u64) {
        process::wait_for(format!("{count} members"), TIMEOUT, || {
            hosts.iter().all(|&host| self.status(host)["members"] == count).then_some(())
        });
    }

    /// Waits until each of `hosts` has its part of shares, by a tenth.
    ///
    /// # Panics
    /// If they do not come.
    pub fn wait_even(&self, hosts: &[usize]) {
        let (begun, part) = (Instant::now(), 1.0 / hosts.len() as f64);
        let mut last = Vec::new();
        process::wait_for("even home shares", TIMEOUT, || {
            let homes: Vec<f64> = hosts.iter().map(|&host| self.home(host)).collect();
            if homes != last {
                eprintln!("  {:.1} s: home shares {homes:.3?}", begun.elapsed().as_secs_f64());
                last.clone_from(&homes);
            }
            homes.iter().all(|home| (home - part).abs() < 0.1 * part).then_some(())
        });
        eprintln!("home shares are even after {:.1} s", begun.elapsed().as_secs_f64());
    }

    /// Waits until all `hosts` know that they, and nobody else, count: from then on most of them decide.
    ///
    /// # Panics
    /// If they do not.
    pub fn wait_counted(&self, hosts: &[usize]) {
        process::wait_for("a recount", TIMEOUT, || {
            let counted = |&host: &usize| {
                let era = self.kept(host)["state"]["shares"]["era"].clone();
                era["counts"] == true && era["tally"]["hosts"] == hosts.len()
            };
            hosts.iter().all(counted).then_some(())
        });
    }

    /// Waits until a limit of the cluster is in force on each of `hosts`.
    ///
    /// # Panics
    /// If it is not.
    pub fn wait_limit(&self, hosts: &[usize], rate: &str) -> Duration {
        let begun = Instant::now();
        for &host in hosts {
            let cli = self.daemons[host].cli();
            process::wait_for(format!("the limit on {}", name(host)), TIMEOUT, || {
                let limits = cli.ok(&["limit", "list"])["limits"].clone();
                (limits[0]["rate"] == rate && limits[0]["scope"] == "cluster").then_some(())
            });
        }
        begun.elapsed()
    }

    /// Waits until so many limits are in force on each of `hosts`.
    ///
    /// # Panics
    /// If they are not.
    pub fn wait_limits(&self, hosts: &[usize], count: usize) {
        for &host in hosts {
            let cli = self.daemons[host].cli();
            process::wait_for(format!("{count} limits on {}", name(host)), TIMEOUT, || {
                let limits = cli.ok(&["limit", "list"])["limits"].clone();
                (limits.as_array().map(Vec::len) == Some(count)).then_some(())
            });
        }
    }

    /// Begins to note when packets of `source` pass on each host.
    #[must_use]
    pub fn watch(&self, source: Ipv4Addr) -> Watch<'_> {
        Watch::new(&self.fleet, source)
    }

    /// Begins to note when packets of any source pass on each host.
    #[must_use]
    pub fn watch_all(&self) -> Watch<'_> {
        Watch::by(&self.fleet, Timeline::of_all)
    }

    /// Begins to send what comes from `source` to a host, so many packets a second.
    #[must_use]
    pub fn send(&self, host: usize, source: Ipv4Addr, rate: f64) -> Sending {
        flood(&self.fleet, host, source, rate)
    }

    /// Ends the daemon of a host as a crash would.
    pub fn kill(&mut self, host: usize) {
        self.daemons[host].kill();
    }

    /// Starts the daemon of a host again.
    pub fn restart(&mut self, host: usize) {
        self.daemons[host].restart(&self.fleet.hosts[host]);
    }

    /// The log of a host.
    #[must_use]
    pub fn log(&self, host: usize) -> String {
        self.daemons[host].log()
    }

    /// Takes what a host keeps of its shares.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn kept(&self, host: usize) -> Value {
        let file = self.daemons[host].state_folder().join("cluster.json");
        let text = fs::read_to_string(file).expect("what a host keeps");
        serde_json::from_str(&text).expect("JSON")
    }
}

/// Begins to send what comes from `source` to a host, so many packets a second.
#[must_use]
pub fn flood(fleet: &Fleet, host: usize, source: Ipv4Addr, rate: f64) -> Sending {
    let stream = Stream::new(frame::udp(IpAddr::V4(source), 100), rate, 1 << 24);
    Sender::new(&fleet.hosts[host]).start(vec![stream])
}

/// A packet gets its time when all of its batch are judged. The most packets that came together after their
/// host had none for a while: they may have been judged any time before.
fn late(times: &[Duration]) -> usize {
    const WHILE: Duration = Duration::from_millis(10);
    const TOGETHER: Duration = Duration::from_millis(1);
    let pairs = times.iter().zip(times.iter().skip(1));
    let after_a_while = pairs.filter(|(one, next)| **next - **one >= WHILE).map(|(_, next)| *next);
    let batch = |first: Duration| {
        let from = times.partition_point(|time| *time < first);
        times.partition_point(|time| *time < first + TOGETHER) - from
    };
    after_a_while.map(batch).max().unwrap_or(0).min(BATCH)
}

/// Packets of a batch at most, as the kernel takes them from a device.
const BATCH: usize = 64;

/// Since the epoch, as timelines tell it.
#[must_use]
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970")
}

/// Timelines that are being written.
#[derive(Debug)]
pub struct Watch<'a> {
    timelines: Vec<Timeline<'a>>,
    begun: Duration,
}

impl<'a> Watch<'a> {
    /// Begins to note when packets of `source` pass on each host.
    #[must_use]
    pub fn new(fleet: &'a Fleet, source: Ipv4Addr) -> Self {
        Self::by(fleet, |lab| Timeline::new(lab, source))
    }

    fn by(fleet: &'a Fleet, begin: impl Fn(&'a Lab) -> Timeline<'a>) -> Self {
        let timelines = fleet.hosts.iter().map(begin).collect();
        Self { timelines, begun: now() }
    }

    /// How many packets have passed on each host so far.
    #[must_use]
    pub fn so_far(&self) -> Vec<u64> {
        self.timelines.iter().map(Timeline::passed).collect()
    }

    /// How many packets of any source have passed on a host so far.
    #[must_use]
    pub fn passed_of(&self, host: usize, source: IpAddr) -> u64 {
        self.timelines[host].passed_of(source)
    }

    /// How long they have been written, in seconds.
    #[must_use]
    pub fn elapsed(&self) -> f64 {
        (now() - self.begun).as_secs_f64()
    }

    /// As [`Admitted::counts`], of the packets that are noted so far.
    #[must_use]
    pub fn counts(&self, from: f64, to: f64) -> Vec<usize> {
        let at = |seconds: f64| self.begun + Duration::from_secs_f64(seconds);
        self.timelines.iter().map(|it| it.passed_within(at(from), at(to))).collect()
    }

    /// Ends them.
    #[must_use]
    pub fn stop(self) -> Admitted {
        let times = self.timelines.into_iter().map(Timeline::stop).collect();
        Admitted { times, begun: self.begun }
    }
}

/// When packets passed, on each host.
#[derive(Clone, Debug)]
pub struct Admitted {
    times: Vec<Vec<Duration>>,
    begun: Duration,
}

impl Admitted {
    /// How many passed on each host, from `from` until `to` after the start.
    #[must_use]
    pub fn counts(&self, from: f64, to: f64) -> Vec<usize> {
        let at = |seconds: f64| self.begun + Duration::from_secs_f64(seconds);
        let within = |times: &Vec<Duration>| {
            times.iter().filter(|&&time| time >= at(from) && time < at(to)).count()
        };
        self.times.iter().map(within).collect()
    }

    /// What part of `rate` was used, all hosts together, from `from` until `to` after the start.
    #[must_use]
    pub fn utilisation(&self, rate: f64, from: f64, to: f64) -> f64 {
        self.counts(from, to).iter().sum::<usize>() as f64 / (rate * (to - from))
    }

    /// When, from `from` on, `part` of `rate` was used again for half a second, in seconds after that.
    #[must_use]
    pub fn back(&self, rate: f64, part: f64, from: f64, to: f64) -> Option<f64> {
        const HALF: f64 = 0.5;
        let steps = ((to - from - HALF) / 0.02) as u32;
        let mut starts = (0..=steps).map(|step| f64::from(step) * 0.02);
        starts.find(|at| self.utilisation(rate, from + at, from + at + HALF) >= part)
    }

    /// Asserts that no second had more than the limit has room for, and prints by how much it was kept.
    ///
    /// # Panics
    /// If one had 1 % more, those not counted that a busy machine has let wait for their time.
    pub fn assert_kept(&self, what: &str, rate: f64, burst: f64) {
        let (most, beyond) = (self.busiest() as f64, self.beyond(rate, burst));
        let late = self.times.iter().map(|times| late(times)).sum::<usize>() as f64;
        println!(
            "{what}: {most} packets in the busiest second, {:.2} % of {}; {beyond:.1} beyond the bucket at worst; \
             {late} may have been late",
            100.0 * most / (rate + burst),
            rate + burst
        );
        assert!(most <= 1.01 * (rate + burst) + late, "{what}: {most} in a second, {late} late");
        assert!(beyond <= 0.01 * (rate + burst) + late, "{what}: {beyond} beyond, {late} late");
    }

    /// The most packets that passed in any second, all hosts together.
    #[must_use]
    pub fn busiest(&self) -> u64 {
        busiest(&self.times, Duration::from_secs(1))
    }

    /// By how many packets all hosts together went beyond a bucket of the whole limit at worst.
    #[must_use]
    pub fn beyond(&self, rate: f64, burst: f64) -> f64 {
        excess(&self.times, rate, burst)
    }

    /// Prints how many passed on each host in each second.
    pub fn print(&self, seconds: u32) {
        for second in 0..seconds {
            let second = f64::from(second);
            println!("  second {second}: {:?}", self.counts(second, second + 1.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_waited_for_their_time_are_known() {
        let ms = Duration::from_millis;
        let every = |count: u64| (0..count).map(ms);
        assert_eq!(late(&every(100).collect::<Vec<_>>()), 0);
        let stalled = every(10).chain([ms(50); 20]).chain([ms(60); 5]).chain((61..70).map(ms));
        assert_eq!(late(&stalled.collect::<Vec<_>>()), 20);
        assert_eq!(late(&[[ms(1)].as_slice(), &[ms(50); 200]].concat()), BATCH);
    }
}
