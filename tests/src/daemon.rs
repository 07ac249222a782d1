//! The real daemon in the receiving namespace, with a socket, a store and pins of its own.

use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    Cli, Lab, Namespace,
    cli::limiter_binary,
    cover::cover,
    lab::RX,
    leftovers::{BPF_FOLDER, PIN_PREFIX, mount_bpf},
    namespace::unique,
    process::{Background, wait_for},
    reports::Stats,
};

/// How long a daemon may take to start or to stop. Loading takes well under a second on an idle
/// machine; the tests keep it busy.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The variable with another number of seconds, for machines that are emulated.
const TIMEOUT_VARIABLE: &str = "LIMITER_TEST_TIMEOUT";

fn timeout() -> Duration {
    let seconds = std::env::var(TIMEOUT_VARIABLE).ok().and_then(|text| text.parse().ok());
    seconds.map_or(TIMEOUT, Duration::from_secs)
}

/// How a daemon is started.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Interfaces to protect from the start.
    pub interfaces: Vec<String>,
    /// More arguments of `limiter run`.
    pub arguments: Vec<String>,
    /// Folder of its store, if it is not to be beside its socket.
    pub state: Option<PathBuf>,
    /// Files that it sees in the place of others, as [`cover`] has them.
    pub covers: Vec<(PathBuf, PathBuf)>,
}

impl Default for DaemonOptions {
    fn default() -> Self {
        Self {
            interfaces: vec![RX.to_owned()],
            arguments: Vec::new(),
            state: None,
            covers: Vec::new(),
        }
    }
}

impl DaemonOptions {
    /// Protects [`RX`], with more arguments.
    #[must_use]
    pub fn with(arguments: &[&str]) -> Self {
        Self { arguments: arguments.iter().map(ToString::to_string).collect(), ..Self::default() }
    }

    /// Protects nothing yet.
    #[must_use]
    pub fn idle() -> Self {
        Self { interfaces: Vec::new(), ..Self::default() }
    }
}

/// A daemon, killed on drop together with everything that it pinned. Its log is printed if the test
/// panics.
#[derive(Debug)]
pub struct Daemon {
    process: Background,
    home: TempDir,
    pins: PathBuf,
    options: DaemonOptions,
    netns: String,
    /// What the interface had received before.
    baseline: u64,
}

impl Daemon {
    /// Starts a daemon that protects the receiver of `lab`, and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(lab: &Lab) -> Self {
        Self::start_with(lab, DaemonOptions::default())
    }

    /// Starts a daemon in the receiving namespace, and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start_with(lab: &Lab, options: DaemonOptions) -> Self {
        mount_bpf();
        let home = tempfile::tempdir().expect("a temporary folder");
        let pins =
            Path::new(BPF_FOLDER).join(format!("{PIN_PREFIX}{}-{}", std::process::id(), unique()));
        let mut command = command(&lab.receiver, home.path(), &pins, &options);
        let mut daemon = Self {
            process: launch(&mut command, home.path()),
            home,
            pins,
            options,
            netns: lab.receiver.name().to_owned(),
            baseline: lab.received(),
        };
        daemon.wait_ready();
        daemon
    }

    /// Starts the daemon again after it has ended, with the same folders and arguments.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn restart(&mut self, lab: &Lab) {
        assert_eq!(lab.receiver.name(), self.netns, "a daemon restarts where it was");
        self.launch_again(&mut self.command(lab));
    }

    fn launch_again(&mut self, command: &mut Command) {
        self.process = launch(command, self.home.path());
        self.wait_ready();
    }

    /// As [`Daemon::restart`], with fresh maps.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn restart_fresh(&mut self, lab: &Lab) {
        self.launch_again(self.command(lab).arg("--reset-state"));
    }

    /// As [`Daemon::restart`], with the value of an argument that it was given changed.
    ///
    /// # Panics
    /// If it was not given, or the daemon does not answer.
    pub fn restart_with(&mut self, lab: &Lab, argument: &str, value: &str) {
        let at = self.options.arguments.iter().position(|given| given == argument);
        let at = at.unwrap_or_else(|| panic!("{argument} was not given")) + 1;
        value.clone_into(&mut self.options.arguments[at]);
        self.restart(lab);
    }

    /// The command that starts this daemon, for another try with the same folders.
    #[must_use]
    pub fn command(&self, lab: &Lab) -> Command {
        command(&lab.receiver, self.home.path(), &self.pins, &self.options)
    }

    /// As [`Daemon::restart`], with the program at `binary`.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn restart_as(&mut self, lab: &Lab, binary: &Path) {
        self.launch_again(&mut self.command_as(lab, binary));
    }

    /// As [`Daemon::command`], with the program at `binary`.
    #[must_use]
    pub fn command_as(&self, lab: &Lab, binary: &Path) -> Command {
        command_of(binary, &lab.receiver, self.home.path(), &self.pins, &self.options)
    }

    fn wait_ready(&mut self) {
        let cli = self.cli();
        wait_for("the daemon's answer", timeout(), || {
            if let Some(status) = self.process.try_wait() {
                panic!("the daemon has ended with {status}");
            }
            (cli.run(&["status"]).code <= 1).then_some(())
        });
    }

    /// A client of this daemon.
    #[must_use]
    pub fn cli(&self) -> Cli {
        Cli::new(&self.socket())
    }

    /// Path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.home.path().join("limiter.sock")
    }

    /// Folder of its store.
    #[must_use]
    pub fn state_folder(&self) -> PathBuf {
        state_folder(self.home.path(), &self.options)
    }

    /// Folder of its pins.
    #[must_use]
    pub fn pins(&self) -> &Path {
        &self.pins
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(log_file(self.home.path())).unwrap_or_default()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        self.process.signal(signal);
    }

    /// Ends it as a crash would.
    ///
    /// # Panics
    /// If it lives on.
    pub fn kill(&mut self) {
        self.process.signal(libc::SIGKILL);
        self.process.wait(timeout());
    }

    /// Asks it to end, and waits for that.
    ///
    /// # Panics
    /// If it lives on.
    pub fn terminate(&mut self) -> ExitStatus {
        self.process.signal(libc::SIGTERM);
        self.process.wait(timeout())
    }

    /// Frames that the interface has received since the daemon was first started.
    #[must_use]
    pub fn received(&self, lab: &Lab) -> u64 {
        lab.received() - self.baseline
    }

    /// Frames that the interface has received, and the counters, once these add up to them, or after
    /// two seconds, for frames may be on their way for a moment.
    ///
    /// # Panics
    /// If the daemon does not answer.
    #[must_use]
    pub fn accounted(&self, lab: &Lab) -> (u64, Stats) {
        let cli = self.cli();
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let (received, stats) = (self.received(lab), cli.stats());
            if received == stats.sum() || Instant::now() > deadline {
                return (received, stats);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Asserts that every frame the interface has received is in exactly one counter, prints and
    /// returns the counters.
    ///
    /// # Panics
    /// If the sums differ, also from the total that the daemon tells.
    pub fn assert_accounted(&self, lab: &Lab) -> Stats {
        // Read once: TCP repeats itself at any time.
        let (received, stats) = self.accounted(lab);
        println!("{received} received: {}", nonzero(&stats).join(", "));
        assert_eq!(stats.sum(), received, "{:#?}", stats.counters);
        assert_eq!(stats.total.packets, received, "the daemon adds up {:#?}", stats.counters);
        stats
    }
}

/// Counters that are not zero, to be printed.
fn nonzero(stats: &Stats) -> Vec<String> {
    let some = stats.counters.iter().filter(|counter| counter.packets > 0);
    some.map(|c| format!("{}/{} {}", c.verdict, c.reason, c.packets)).collect()
}

fn command(host: &Namespace, home: &Path, pins: &Path, options: &DaemonOptions) -> Command {
    command_of(&limiter_binary(), host, home, pins, options)
}

fn command_of(
    binary: &Path,
    host: &Namespace,
    home: &Path,
    pins: &Path,
    options: &DaemonOptions,
) -> Command {
    let mut command = host.own(binary);
    // Not that of this machine; `--config` among the arguments wins over it.
    command.env("LIMITER_CONFIG", "/dev/null");
    command.arg("--socket").arg(home.join("limiter.sock")).arg("run");
    for interface in &options.interfaces {
        command.args(["-i", interface]);
    }
    command.arg("--state-dir").arg(state_folder(home, options)).arg("--pin-dir").arg(pins);
    command.args(&options.arguments);
    if !options.covers.is_empty() {
        cover(&mut command, &options.covers);
    }
    command
}

fn state_folder(home: &Path, options: &DaemonOptions) -> PathBuf {
    options.state.clone().unwrap_or_else(|| home.join("state"))
}

fn log_file(home: &Path) -> PathBuf {
    home.join("daemon.log")
}

fn launch(command: &mut Command, home: &Path) -> Background {
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log_file(home))
        .expect("a log in the temporary folder");
    Background::start(command.stdout(log.try_clone().expect("a second handle")).stderr(log))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of the daemon:\n{}", self.log());
        }
        self.process.signal(libc::SIGKILL);
        // Links go with their pins, so the interface is free again. A daemon that pinned nothing
        // has no folder.
        let _removed = fs::remove_dir_all(&self.pins);
    }
}
