//! Redis and Valkey, the real ones: a server of its own for each test, and what can happen to it.
//!
//! A server has a Unix socket in a temporary folder, and a port at an address that no other process of this
//! machine has. [`Proxy`] stands between it and a client where the network is to be slow or cut.

mod certificates;
mod cluster;
mod options;
mod proxy;
mod sentinel;

use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
pub use tools::Store as Version;

use crate::{
    namespace::{Entrance, unique},
    process::{Background, wait_for},
    resp::Resp,
};
pub use certificates::make_certificates;
pub use cluster::Cluster;
pub use options::{Login, StoreOptions, Tls};
pub use proxy::{Direction, Proxy};
pub use sentinel::{MASTER, Sentinels};

const TIMEOUT: Duration = Duration::from_secs(20);

/// The first port; those of clusters' buses are 10,000 above.
const FIRST_PORT: u16 = 16_400;

/// An address of the loopback interface for this process alone, so that no port of it is taken.
///
/// # Panics
/// If there are no processes with ids beyond 22 bits.
#[must_use]
pub fn own_address() -> Ipv4Addr {
    // Linux gives ids of 22 bits at most. Addresses that begin with 127.0 stay for everybody.
    const FIRST: u32 = Ipv4Addr::new(127, 64, 0, 0).to_bits();
    assert!(std::process::id() < 1 << 22, "the id of a process has 22 bits");
    Ipv4Addr::from_bits(FIRST + std::process::id())
}

/// A port there that this process has not used yet.
#[must_use]
pub fn own_port() -> SocketAddr {
    own_port_at(own_address())
}

/// The same at another address, which only this process uses.
fn own_port_at(address: impl Into<IpAddr>) -> SocketAddr {
    let number = u16::try_from(unique()).ok().and_then(|number| FIRST_PORT.checked_add(number));
    SocketAddr::new(address.into(), number.expect("a test program starts few servers"))
}

/// A server, killed on drop. Its log is printed if the test panics.
#[derive(Debug)]
pub struct Store {
    process: Background,
    home: TempDir,
    address: SocketAddr,
    version: Version,
    login: Option<Login>,
    entrance: Option<Entrance>,
    is_sentinel: bool,
}

impl Store {
    /// Starts the version that the environment names, without a password, and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&StoreOptions::default())
    }

    /// Starts one as `options` say, and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start_with(options: &StoreOptions) -> Self {
        Self::launch(options, false)
    }

    /// Starts one that copies what `master` has, and waits until it has all of it. It has the master's login.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn replica_of(master: &Self, options: &StoreOptions) -> Self {
        let address = master.address;
        let mut options = options.clone();
        options.settings.push(format!("replicaof {} {}", address.ip(), address.port()));
        options.login.clone_from(&master.login);
        let replica = Self::start_with(&options);
        let is_up = || replica.info("replication").contains("master_link_status:up").then_some(());
        wait_for("a replica's copy", TIMEOUT, is_up);
        replica
    }

    fn launch(options: &StoreOptions, is_sentinel: bool) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let address = own_port_at(options.address.unwrap_or_else(own_address));
        let version = options.version();
        assert!(
            options.tls == Tls::Off || version.has_tls(),
            "{} was built without TLS: ask `Version::has_tls` first",
            version.name()
        );
        if options.tls != Tls::Off {
            make_certificates(home.path(), own_address());
        }
        fs::write(
            home.path().join("conf"),
            options.configuration(home.path(), address, is_sentinel),
        )
        .expect("a configuration");
        let entrance = options.namespace.clone();
        let process = spawn(version, entrance.as_ref(), home.path(), is_sentinel);
        let login = options.login.clone();
        let store = Self { process, home, address, version, login, entrance, is_sentinel };
        store.wait_ready();
        store
    }

    /// Where its port is; with TLS if it was started so.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its Unix socket, without TLS in any case.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("sock")
    }

    /// A file of its folder: `ca.crt`, `server.crt`, `client.crt`, `client.key` if it was started with TLS.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Which version it is.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// A connection, logged in.
    ///
    /// # Panics
    /// If it takes none.
    #[must_use]
    pub fn client(&self) -> Resp {
        self.try_client().expect("the store takes a connection")
    }

    /// A connection that has not logged in.
    ///
    /// # Panics
    /// If it takes none.
    #[must_use]
    pub fn anonymous(&self) -> Resp {
        Resp::unix(&self.socket()).expect("the store takes a connection")
    }

    /// Sends one command of any texts, and returns the reply.
    ///
    /// # Panics
    /// If there is none.
    pub fn call(&self, command: &[&str]) -> Value {
        self.client().call(command)
    }

    /// Sends one command of texts with spaces between them, and returns the reply.
    ///
    /// # Panics
    /// If there is none.
    pub fn ask(&self, command: &str) -> Value {
        self.client().ask(command)
    }

    /// What it tells of itself in a section of `INFO`.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn info(&self, section: &str) -> String {
        self.call(&["INFO", section]).as_str().unwrap_or_default().to_owned()
    }

    /// How often it has been asked a command, by its name in small letters.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        let start = format!("cmdstat_{command}:calls=");
        let all = self.info("commandstats");
        let line = all.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Stops it where it is: connections stay, nothing is answered.
    pub fn pause(&self) {
        self.process.signal(libc::SIGSTOP);
    }

    /// Lets it go on after a pause.
    pub fn resume(&self) {
        self.process.signal(libc::SIGCONT);
    }

    /// Kills it in the middle of what it does.
    ///
    /// # Panics
    /// If it does not end.
    pub fn kill(&mut self) {
        self.process.signal(libc::SIGKILL);
        wait_for("a store's end", TIMEOUT, || self.process.try_wait());
    }

    /// Starts it again, killed first if it runs. It has what its append-only file or a `SAVE` has kept, so by default
    /// nothing.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn restart(&mut self) {
        self.kill();
        self.process =
            spawn(self.version, self.entrance.as_ref(), self.home.path(), self.is_sentinel);
        self.wait_ready();
    }

    /// The same without anything that it has kept.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn restart_empty(&mut self) {
        self.kill();
        // Before version 7 an append-only file lies in the folder itself.
        for name in ["dump.rdb", "appendonly.aof", "nodes.conf"] {
            let _absent = fs::remove_file(self.path(name));
        }
        let _absent = fs::remove_dir_all(self.path("appendonlydir"));
        self.restart();
    }

    fn try_client(&self) -> std::io::Result<Resp> {
        let mut client = Resp::unix(&self.socket())?;
        if let Some(login) = &self.login {
            let reply = client.try_call(&["AUTH", &login.user, &login.password])?;
            assert_eq!(reply, "OK", "the store takes the password");
        }
        Ok(client)
    }

    fn wait_ready(&self) {
        wait_for(self.version.name(), TIMEOUT, || {
            let reply = self.try_client().ok()?.try_call(&["PING"]).ok()?;
            // While it loads it says so in place of the answer.
            (reply == "PONG").then_some(())
        });
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} at {}:\n{}", self.version.name(), self.address, self.log());
        }
    }
}

fn spawn(
    version: Version,
    entrance: Option<&Entrance>,
    home: &Path,
    is_sentinel: bool,
) -> Background {
    let log = File::options().create(true).append(true).open(home.join("log")).expect("a log");
    let mut command = match entrance {
        None => version.tool().command(),
        Some(entrance) => entrance.own(version.tool()),
    };
    command.arg(home.join("conf")).args(is_sentinel.then_some("--sentinel"));
    command.stdout(log.try_clone().expect("a log")).stderr(log);
    Background::start(&mut command)
}
