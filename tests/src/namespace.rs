//! Network namespaces that vanish with their value.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    net::{Ipv4Addr, TcpStream},
    os::{fd::AsRawFd as _, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread::JoinHandle,
    time::Duration,
};

use crate::leftovers::{self, NAMESPACE_PREFIX};
use crate::{process, require_root};

const FOLDER: &str = "/run/netns";

/// A number that no other caller in this process gets.
#[must_use]
pub fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A named network namespace of this test, deleted on drop with all devices in it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates an empty namespace with `lo` up. `role` ends its name.
    ///
    /// # Panics
    /// Without root's privileges, or if `ip` fails.
    #[must_use]
    pub fn new(role: &str) -> Self {
        require_root();
        leftovers::remove_stale();
        let name = format!("{NAMESPACE_PREFIX}{}-{}-{role}", std::process::id(), unique());
        process::run(tools::IP.command().args(["netns", "add", &name]));
        let namespace = Self { name };
        namespace.quiet_ipv6();
        process::run(namespace.ip(&["link", "set", "lo", "up"]));
        namespace
    }

    /// Keeps the kernel from sending anything by itself, so that counts are exact: no duplicate
    /// address detection, no router solicitation, no link-local addresses, no multicast reports.
    fn quiet_ipv6(&self) {
        for (key, value) in [
            ("accept_dad", "0"),
            ("accept_ra", "0"),
            ("router_solicitations", "0"),
            ("addr_gen_mode", "1"),
            ("ndisc_notify", "0"),
        ] {
            for scope in ["all", "default"] {
                self.sysctl(&format!("net/ipv6/conf/{scope}/{key}"), value);
            }
        }
        let rules = "add table inet quiet
            add chain inet quiet out { type filter hook output priority 0; policy accept; }
            add rule inet quiet out icmpv6 type { mld-listener-report, mld2-listener-report } drop
            add rule inet quiet out icmpv6 type { nd-router-solicit } drop
            add rule inet quiet out ip protocol igmp drop";
        process::run(self.command(&tools::NFT).arg(rules));
    }

    /// Sets a kernel parameter that belongs to the namespace, its name with slashes.
    ///
    /// # Panics
    /// If there is no such parameter.
    pub fn sysctl(&self, name: &str, value: &str) {
        let path = Path::new("/proc/sys").join(name);
        let value = value.to_owned();
        self.run_inside(move || {
            std::fs::write(&path, &value)
                .unwrap_or_else(|error| panic!("cannot write {value} to {path:?}: {error}"));
        });
    }

    /// Name below `/run/netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// A command that runs inside. Only the network is changed: `ip netns exec` would also mount
    /// another `/sys` and so hide the BPF file system.
    ///
    /// # Panics
    /// If the namespace is gone.
    #[must_use]
    pub fn command(&self, tool: &tools::Tool) -> Command {
        self.own(tool)
    }

    /// As [`Namespace::command`], for a program that this workspace builds.
    ///
    /// # Panics
    /// If the namespace is gone.
    #[must_use]
    pub fn own(&self, program: impl AsRef<OsStr>) -> Command {
        self.entrance().own(program)
    }

    /// A way into it for what outlives the borrow.
    #[must_use]
    pub fn entrance(&self) -> Entrance {
        Entrance { path: self.path() }
    }

    /// Waits until somebody takes connections at a port of the loopback interface.
    ///
    /// # Panics
    /// If nobody does within 30 s.
    pub fn wait_for_port(&self, port: u16) {
        process::wait_for(format!("port {port}"), Duration::from_secs(30), || {
            let connect = move || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
            self.run_inside(connect).then_some(())
        });
    }

    /// `ip` with `arguments`, for devices and addresses inside.
    #[must_use]
    pub fn ip(&self, arguments: &[&str]) -> Command {
        let mut command = tools::IP.command();
        command.args(["-n", &self.name]).args(arguments);
        command
    }

    /// Runs `work` to its end in a thread that is inside.
    ///
    /// # Panics
    /// If `work` does.
    pub fn run_inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.spawn_inside(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Starts a thread that is inside and runs `work`.
    #[must_use]
    pub fn spawn_inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.entrance().spawn_inside(work)
    }
}

/// A way into a namespace, for what starts programs or threads there again and again. It does not keep
/// the namespace.
#[derive(Clone, Debug)]
pub struct Entrance {
    path: PathBuf,
}

impl Entrance {
    /// As [`Namespace::own`].
    ///
    /// # Panics
    /// If the namespace is gone.
    #[must_use]
    pub fn own(&self, program: impl AsRef<OsStr>) -> Command {
        let file = open(&self.path);
        let mut command = tools::own(program);
        // SAFETY: setns is a plain system call and async-signal-safe; the closure allocates nothing.
        unsafe { command.pre_exec(move || enter(&file)) };
        command
    }

    /// As [`Namespace::spawn_inside`].
    #[must_use]
    pub fn spawn_inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let path = self.path.clone();
        std::thread::spawn(move || {
            enter(&open(&path))
                .unwrap_or_else(|error| panic!("cannot enter the namespace {path:?}: {error}"));
            work()
        })
    }
}

fn open(path: &Path) -> File {
    File::open(path).unwrap_or_else(|error| panic!("cannot open the namespace {path:?}: {error}"))
}

/// Moves the calling thread into a namespace.
fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for the length of the call, which changes only the calling thread.
    let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    if entered == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        leftovers::delete_namespace(&self.name);
    }
}
