//! Runs the demonstration in a child process, so that whatever ends it, a parent removes all that it made:
//! the child may be killed in the middle of anything, and needs no handler of its own.

use std::{
    fs,
    io::{self, Write as _},
    mem,
    process::ExitCode,
    thread::sleep,
    time::{Duration, Instant},
};

use ::tests::leftovers;
use tempfile::TempDir;

/// Signals that end the demonstration.
const ENDS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// How long programs that somebody started in the shell may take to end by themselves.
const GRACE: Duration = Duration::from_secs(2);
/// How long the kernel may take to end them.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Does `work` in a child process, and removes what it and its children made. Returns its exit status, or
/// 128 and the signal that ended it. To be called before there is another thread.
///
/// # Errors
/// If there is no room for temporary files, or the kernel refuses a process.
pub(crate) fn supervise(work: impl FnOnce() -> ExitCode) -> io::Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("limiter-demo-").tempdir()?;
    let terminal = Terminal::save();
    // Those whose parent ends become children of this process, so that none is lost.
    // SAFETY: prctl with this option takes one number.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    let signals = signals();
    change_mask(libc::SIG_BLOCK, &signals);
    let parent = std::process::id();
    // SAFETY: there is one thread, so the child may do whatever this process may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(in_child(parent, folder, &signals, work)),
        child => {
            wait(child, &signals);
            end_others(child);
            // Until it is reaped its process id is nobody else's.
            leftovers::remove_of(child.unsigned_abs());
            drop(folder);
            terminal.restore();
            Ok(exit_code(reap(child)))
        }
    }
}

fn in_child(
    parent: u32,
    folder: TempDir,
    signals: &libc::sigset_t,
    work: impl FnOnce() -> ExitCode,
) -> ExitCode {
    // SAFETY: prctl with this option takes one number.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if std::os::unix::process::parent_id() != parent {
        return ExitCode::FAILURE;
    }
    for signal in ENDS {
        // Whoever starts this in the background of a script has it ignore them.
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    change_mask(libc::SIG_UNBLOCK, signals);
    // All temporary files are in the folder, which the parent removes.
    // SAFETY: there is one thread.
    unsafe { std::env::set_var("TMPDIR", folder.keep()) };
    work()
}

/// The signals that end the demonstration, those that a background process gets from its terminal, and that of
/// a child's end.
fn signals() -> libc::sigset_t {
    // SAFETY: all zeros are a valid, empty set on Linux, and sigaddset takes a live set and a signal.
    unsafe {
        let mut set = mem::zeroed();
        for signal in ENDS.into_iter().chain([libc::SIGCHLD, libc::SIGTTOU]) {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) {
    // SAFETY: the set is live; nobody asks for the old one.
    unsafe { libc::pthread_sigmask(how, &raw const *set, std::ptr::null_mut()) };
}

/// Waits until `child` has ended, and does not reap it. Signals go on to the child, which knows whether they
/// end it: one that a terminal sent has reached it already.
fn wait(child: libc::pid_t, signals: &libc::sigset_t) {
    while !has_ended(child) {
        // SAFETY: the set is live; nobody asks for more about the signal.
        let signal = unsafe { libc::sigwaitinfo(&raw const *signals, std::ptr::null_mut()) };
        if ENDS.contains(&signal) {
            // SAFETY: kill takes plain numbers; the child is not reaped, so the id is still its own.
            unsafe { libc::kill(child, signal) };
        } else {
            // Of those that became children some may have ended, too.
            for orphan in children().into_iter().filter(|it| *it != child) {
                let _running = try_reap(orphan);
            }
        }
    }
}

fn has_ended(child: libc::pid_t) -> bool {
    // SAFETY: all zeros are a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the result is written to a live variable. Its process id is 0 if nothing has ended.
    unsafe {
        let waited = libc::waitid(libc::P_PID, child.unsigned_abs(), &raw mut info, options);
        waited != 0 || info.si_pid() != 0
    }
}

/// Ends all children but `child`, which has ended already, and the children that these leave.
fn end_others(child: libc::pid_t) {
    let began = Instant::now();
    while began.elapsed() < TIMEOUT {
        let rest: Vec<_> = children().into_iter().filter(|it| *it != child).collect();
        if rest.is_empty() {
            return;
        }
        for other in rest {
            if try_reap(other) {
                continue;
            }
            let signal = if began.elapsed() < GRACE { libc::SIGHUP } else { libc::SIGKILL };
            for signal in [signal, libc::SIGCONT] {
                // SAFETY: kill takes plain numbers; it is not reaped, so the id is still its own.
                unsafe { libc::kill(other, signal) };
            }
        }
        sleep(Duration::from_millis(10));
    }
}

/// Reaps a child if it has ended, and tells whether it had.
fn try_reap(child: libc::pid_t) -> bool {
    // SAFETY: waitpid takes plain numbers; nobody asks for the status.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) != 0 }
}

/// Reaps a child that has ended, and returns its wait status.
fn reap(child: libc::pid_t) -> libc::c_int {
    let mut status = 0;
    // SAFETY: the status is written to a live variable.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// The children of this process.
fn children() -> Vec<libc::pid_t> {
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &libc::pid_t| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        parent_in(&stat) == Some(own)
    };
    pids.filter(is_child).collect()
}

/// The parent's process id in `/proc/PID/stat`: the second field after the name, which may hold anything.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The code a shell would report, and a word on stderr if it was a signal.
fn exit_code(status: libc::c_int) -> ExitCode {
    let code = if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let what = match signal {
            libc::SIGINT => "interrupted".to_owned(),
            _ => format!("ended by signal {signal}"),
        };
        // The terminal may have gone.
        let _unsaid = writeln!(io::stderr(), "{what}: what the demo made is removed");
        128 + signal
    } else {
        libc::WEXITSTATUS(status)
    };
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The modes of the terminal and who reads from it, which a shell that is killed leaves as its programs had
/// them.
struct Terminal(Option<libc::termios>);

impl Terminal {
    fn save() -> Self {
        // SAFETY: all zeros are a valid `termios`.
        let mut modes: libc::termios = unsafe { mem::zeroed() };
        // SAFETY: these calls take numbers, and write to a live variable.
        let saved = unsafe {
            libc::tcgetpgrp(0) == libc::getpgrp() && libc::tcgetattr(0, &raw mut modes) == 0
        };
        Self(saved.then_some(modes))
    }

    fn restore(&self) {
        let Some(modes) = &self.0 else { return };
        // SAFETY: these calls take numbers and a live variable. SIGTTOU, which they may bring, is blocked.
        unsafe {
            // A shell that ended by itself has done so; then there is nothing to mend, nor anything to take
            // from another job.
            if libc::kill(-libc::tcgetpgrp(0), 0) != 0 {
                libc::tcsetpgrp(0, libc::getpgrp());
                libc::tcsetattr(0, libc::TCSANOW, &raw const *modes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_read_whatever_the_name() {
        assert_eq!(parent_in("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in(""), None);
        assert_eq!(parent_in("12 (sh) S"), None);
    }

    #[test]
    fn a_status_is_what_a_shell_reports() {
        assert_eq!(exit_code(5 << 8), ExitCode::from(5));
        assert_eq!(exit_code(libc::SIGINT), ExitCode::from(130));
    }
}
