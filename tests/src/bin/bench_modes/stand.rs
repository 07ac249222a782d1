//! The hosts with their daemons, the store, and what happens to them.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    net::{IpAddr, Ipv4Addr},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    time::Duration,
};

use tempfile::TempDir;
use tests::{
    Fleet, Store,
    hosts::Hosts,
    process::{Background, wait_for},
    store::{MASTER, Proxy, Sentinels, StoreOptions},
};

use crate::{
    plan::{Asking, CLUSTER_KEYS, HOSTS, Job, KEYS, Mode, SINCE, Setup, TIGHT, rules},
    sample::{self, Sample},
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The store's host, after those with a load.
const STORE: usize = HOSTS;
/// A host that loses something.
pub(crate) const VICTIM: usize = HOSTS - 1;

/// How hosts reach the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Direct,
    /// By a proxy, which can delay what passes.
    Proxy,
    /// By sentinels, which know which of two stores it is.
    Sentinels,
}

/// A host's process.
struct Host {
    process: Background,
    jobs: BufReader<UnixStream>,
}

/// All of it. What there is to it ends on drop.
pub(crate) struct Stand {
    processes: Vec<Host>,
    way: Way,
    pub(crate) hosts: Hosts,
    pub(crate) store: Store,
    pub(crate) proxy: Proxy,
    /// Whether hosts answer from their floors while the store does not.
    pub(crate) has_floors: bool,
    sentinels: Option<Sentinels>,
    home: TempDir,
    log: PathBuf,
}

impl Stand {
    /// Three hosts of a cluster, and one with a store.
    pub(crate) fn start(on_error: &str, log: PathBuf) -> Self {
        let mut hosts = Hosts::start(HOSTS, &[]);
        let all: Vec<_> = (0..HOSTS).collect();
        hosts.wait_even(&all);
        hosts.wait_counted(&all);
        hosts.fleet.add_host();
        // In memory, as the folder is that the package uses.
        let home = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        fs::write(home.path().join("rules.yaml"), rules(on_error)).expect("rules are written");
        let store = Store::start_with(&options(&hosts.fleet));
        let proxy = Proxy::to(&store);
        // Hosts that agree to use their shares have their floors until then.
        let has_floors = matches!(on_error, "floor" | "cluster");
        let (processes, sentinels) = (Vec::new(), None);
        let mut stand = Self {
            processes,
            way: Way::Direct,
            hosts,
            store,
            proxy,
            has_floors,
            sentinels,
            home,
            log,
        };
        stand.launch();
        stand
    }

    /// Has the hosts reach the store in such a way.
    pub(crate) fn go(&mut self, way: Way) {
        // Sentinels whose primary was killed are of no use any more.
        if self.way == way && way != Way::Sentinels {
            return;
        }
        self.way = way;
        self.processes.clear();
        self.sentinels =
            (way == Way::Sentinels).then(|| Sentinels::start(&options(&self.hosts.fleet)));
        self.launch();
    }

    pub(crate) const fn sentinels(&mut self) -> Option<&mut Sentinels> {
        self.sentinels.as_mut()
    }

    fn url(&self) -> String {
        match (self.way, &self.sentinels) {
            (Way::Sentinels, Some(sentinels)) => {
                let addresses: Vec<_> =
                    sentinels.addresses().iter().map(ToString::to_string).collect();
                format!("redis-sentinel://{}/{MASTER}", addresses.join(","))
            }
            (Way::Proxy, _) => format!("redis://{}", self.proxy.address()),
            _ => format!("redis://{}", self.store.address()),
        }
    }

    fn launch(&mut self) {
        let jobs = self.home.path().join("jobs.sock");
        let _absent = fs::remove_file(&jobs);
        let listener = UnixListener::bind(&jobs).expect("a socket for jobs");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let log = File::options().create(true).append(true).open(&self.log).expect("a log");
        for host in 0..HOSTS {
            let arguments = [
                "--rules".to_owned(),
                self.home.path().join("rules.yaml").display().to_string(),
                "--state-dir".to_owned(),
                self.states(host).display().to_string(),
                "--daemon".to_owned(),
                self.hosts.daemons[host].socket().display().to_string(),
                "--store".to_owned(),
                self.url(),
                "--keys".to_owned(),
                KEYS.to_string(),
                "--cluster-keys".to_owned(),
                CLUSTER_KEYS.to_string(),
            ];
            let store = format!("redis://{}", self.store.address());
            let setup = Setup { jobs: jobs.clone(), arguments: arguments.into(), store };
            let setup = serde_json::to_string(&setup).expect("plain text is JSON");
            let program = std::env::current_exe().expect("this program has a file");
            let mut command = self.hosts.fleet.hosts[host].receiver.own(program);
            command.arg("--host").arg(setup);
            command.stderr(log.try_clone().expect("a log"));
            let mut process = Background::start(&mut command);
            // One after the other, so that it is known which of them has come.
            let stream = wait_for("a host that asks for jobs", TIMEOUT, || {
                let ended = process.try_wait();
                assert!(ended.is_none(), "a host has ended: see {}", self.log.display());
                listener.accept().ok()
            });
            let (stream, _) = stream;
            stream.set_nonblocking(false).expect("a socket that blocks");
            self.processes.push(Host { process, jobs: BufReader::new(stream) });
        }
    }

    /// Where a host has its states.
    pub(crate) fn states(&self, host: usize) -> PathBuf {
        self.home.path().join(format!("host-{host}"))
    }

    /// Where a host writes its samples.
    pub(crate) fn file(&self, host: usize) -> PathBuf {
        self.home.path().join(format!("samples-{host}"))
    }

    /// The store that has the limits now.
    pub(crate) fn primary(&self) -> &Store {
        match &self.sentinels {
            None => &self.store,
            Some(sentinels) => &sentinels.stores()[sentinels.master()],
        }
    }

    /// Has the store know of nothing but that it was always there, so that limits begin full, and waits until all hosts have
    /// it, and shares of the cluster's limits.
    pub(crate) fn prepare(&mut self, mode: Mode, run: u32) {
        self.primary().ask("FLUSHALL");
        self.primary().call(&["SET", SINCE, "0"]);
        let rule = mode.rule(TIGHT);
        let settle = Job::Settle { rule, key: format!("settle{run}") };
        (0..HOSTS).for_each(|host| self.processes[host].send(&settle));
        (0..HOSTS).for_each(|host| self.processes[host].wait());
    }

    /// Has hosts ask as a load does, which is `during` that; returns what each was answered.
    pub(crate) fn ask<T>(
        &mut self,
        jobs: &[Asking],
        during: impl FnOnce(&mut Self) -> T,
    ) -> (Vec<Vec<Sample>>, T) {
        for (host, job) in self.processes.iter_mut().zip(jobs) {
            host.send(&Job::Load(job.clone()));
        }
        let done = during(self);
        self.processes.iter_mut().zip(jobs).for_each(|(host, _)| host.wait());
        let samples = jobs.iter().map(|job| sample::take(&job.file).expect("a host's samples"));
        (samples.collect(), done)
    }

    /// Calls of the script that the store has answered.
    pub(crate) fn calls(&self) -> u64 {
        let store = self.primary();
        store.calls("evalsha") + store.calls("eval")
    }

    /// Messages that all daemons have sent each other.
    pub(crate) fn messages(&self) -> u64 {
        (0..HOSTS).map(|host| self.hosts.sent(host)).sum()
    }

    /// What a key takes in the store, bytes: the mean of some.
    pub(crate) fn bytes_in_store(&self) -> Option<f64> {
        const SOME: usize = 200;
        let mut client = self.store.client();
        let found = client.call(&["SCAN", "0", "MATCH", "limiter:{modes}:g:*", "COUNT", "1000"]);
        let keys: Vec<_> = found[1].as_array()?.iter().filter_map(|key| key.as_str()).collect();
        let bytes: Vec<f64> = keys
            .iter()
            .take(SOME)
            .filter_map(|key| client.call(&["MEMORY", "USAGE", key]).as_f64())
            .collect();
        (!bytes.is_empty()).then(|| bytes.iter().sum::<f64>() / bytes.len() as f64)
    }

    /// What a key takes on a host, bytes, by the size of a file for so many.
    pub(crate) fn bytes_here(&self, file: &str, keys: u64) -> f64 {
        // Files of the kernel's boot, which is part of their names.
        let mut files = fs::read_dir(self.states(0)).expect("a folder of states").flatten();
        let found = files.find(|found| found.path().file_stem() == Some(OsStr::new(file)));
        let length = found.expect("a file of states").metadata().expect("its length").len();
        length as f64 / keys as f64
    }
}

impl Host {
    fn send(&mut self, job: &Job) {
        let line = serde_json::to_string(job).expect("a job is JSON") + "\n";
        let sent = self.jobs.get_mut().write_all(line.as_bytes());
        sent.unwrap_or_else(|error| panic!("a host takes no jobs: {error}"));
    }

    /// Waits until it has done its job.
    fn wait(&mut self) {
        let mut line = String::new();
        let read = self.jobs.read_line(&mut line);
        if !read.is_ok_and(|length| length > 0) {
            let status = wait_for("a host's end", TIMEOUT, || self.process.try_wait());
            panic!("a host has ended: {status}");
        }
        assert_eq!(line.trim(), "done", "a host has failed");
    }
}

/// A store on a host of its own.
fn options(fleet: &Fleet) -> StoreOptions {
    let IpAddr::V4(address): IpAddr = Fleet::address(STORE) else {
        return StoreOptions::default();
    };
    let address: Option<Ipv4Addr> = Some(address);
    let namespace = Some(fleet.hosts[STORE].receiver.entrance());
    // Without a password it would answer clients of its own host alone.
    StoreOptions { namespace, address, ..StoreOptions::with(&["protected-mode no"]) }
}
