//! Child processes that end with the test, and commands that must succeed.

use std::{
    borrow::BorrowMut,
    fmt::Debug,
    fs, io,
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Output},
    time::{Duration, Instant},
};

/// Runs `command` to its end and returns what it printed.
///
/// # Panics
/// If it cannot be started or fails; the message holds the last lines that it printed.
pub fn run(mut command: impl BorrowMut<Command>) -> String {
    let command = command.borrow_mut();
    let output = output(command);
    let printed = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(
        output.status.success(),
        "{}",
        tools::failure(&typed(command), output.status, &printed.concat())
    );
    let [stdout, _] = printed;
    stdout.into_owned()
}

/// The command as one would type it, in one line, its end left out if it is long.
fn typed(command: &Command) -> String {
    const MAX_LENGTH: usize = 120;
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    // Some arguments are whole scripts.
    let line = words.iter().flat_map(|word| word.split_whitespace()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_LENGTH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Panics because a program is missing, or cannot be executed.
fn cannot_start(command: &Command, error: &io::Error) -> ! {
    panic!("cannot start `{}`: {error}\nhint: `cargo xtask setup` installs it", typed(command))
}

/// Runs `command` to its end, whatever that is.
///
/// # Panics
/// If it cannot be started: the program is missing.
pub fn output(command: &mut Command) -> Output {
    dies_with_thread(command).output().unwrap_or_else(|error| cannot_start(command, &error))
}

/// Polls `ready` every 20 ms until it gives something, at most for `limit`.
///
/// # Panics
/// After `limit`, naming `what` was awaited.
pub fn wait_for<T>(what: impl Debug, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain for {what:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Lets the kernel kill the child when the thread that starts it ends, so that nothing outlives a
/// test that was itself killed.
fn dies_with_thread(command: &mut Command) -> &mut Command {
    // SAFETY: prctl with PR_SET_PDEATHSIG is a plain system call and async-signal-safe; the closure
    // allocates nothing.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        })
    }
}

/// A child in the background, killed on drop.
#[derive(Debug)]
pub struct Background {
    child: Child,
}

impl Background {
    /// Starts `command`. The child ends with the calling thread at the latest.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        let child = dies_with_thread(command).spawn();
        let child = child.unwrap_or_else(|error| cannot_start(command, &error));
        Self { child }
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal`, one of libc's constants.
    pub fn signal(&self, signal: i32) {
        let pid = self.child.id().cast_signed();
        // SAFETY: kill takes plain numbers; the child is not reaped yet, so the id is still its own.
        unsafe { libc::kill(pid, signal) };
    }

    /// The exit status, if it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// If it is still running after `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        wait_for("the end of a child process", limit, || self.try_wait())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The time that a process has had of all CPUs so far.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn cpu_time(pid: u32) -> Duration {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the clock's number is written to a live variable.
    let found = unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) };
    assert_eq!(found, 0, "the clock of process {pid}");
    // SAFETY: all zeros are a valid `timespec`.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the time is written to a live variable.
    let read = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(read, 0, "the time of process {pid}");
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The memory that a process has for itself, in bytes: what is not a file, nor shared with the kernel.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn own_memory(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("{path} does not tell RssAnon")) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(work: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let panic = std::panic::catch_unwind(work).expect_err("it fails");
        *panic.downcast::<String>().expect("a message")
    }

    #[test]
    fn a_failure_names_the_command_its_status_and_its_last_lines() {
        let script = "seq 1 100; echo broken >&2; exit 3";
        let text = message(|| drop(run(tools::SH.command().args(["-c", script]))));
        let first = "`sh -c seq 1 100; echo broken >&2; exit 3` failed (exit status: 3)\n  82\n";
        assert!(text.starts_with(first) && text.ends_with("\n  100\n  broken"), "{text}");
        let text = message(|| drop(run(tools::own("no-such-program").arg("x".repeat(200)))));
        assert!(text.starts_with("cannot start `no-such-program xxx"), "{text}");
        assert!(text.contains("…`: No such file or directory"), "{text}");
    }
}
