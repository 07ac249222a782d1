//! A shell in the receiving network namespace, with traffic to look at and the dashboard at an address outside.

use std::{
    ffi::OsString,
    fs,
    io::{self, IsTerminal as _, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::{fs::symlink, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use ::tests::{Daemon, Lab, Sender, cli::limiter_binary};

use crate::{progress::say, traffic};

/// Where the daemon serves the dashboard in its namespace.
pub(crate) const DASHBOARD: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
/// How long traffic goes on at most, minutes.
const MINUTES: u64 = 30;

/// Prints the commands to try next.
pub(crate) fn print_commands(out: &mut impl Write) -> io::Result<()> {
    let show = format!("limiter show {}", traffic::flood());
    for (command, what) in [
        ("limiter top", "the heaviest sources, once a second"),
        (&show, "what happens to the flood, and why"),
        ("limiter capture --dropped -c 20", "the next packets that are dropped"),
    ] {
        writeln!(out, "  {command:<34} {what}")?;
    }
    Ok(())
}

/// Runs a shell until it ends, and returns its exit status. Traffic goes on meanwhile.
///
/// # Errors
/// If there is no port for the dashboard, or the shell cannot be started.
pub(crate) fn run(lab: &Lab, daemon: &Daemon) -> io::Result<ExitCode> {
    let dashboard = forward(lab)?;
    let folder = tempfile::tempdir()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| send(lab, &stop));
        let ended = (|| {
            banner(dashboard)?;
            let mut child = command(lab, daemon, folder.path())?.spawn()?;
            // From here on Ctrl-C is the shell's: it ends what runs there, not the demo. A signal that
            // comes a moment earlier ends both.
            for signal in [libc::SIGINT, libc::SIGQUIT] {
                // SAFETY: to ignore a signal needs no handler.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }
            child.wait()
        })();
        stop.store(true, Ordering::Relaxed);
        let status = ended?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
    })
}

/// Sends what all sources send, a minute at a time, until `stop` or the time is up.
fn send(lab: &Lab, stop: &AtomicBool) {
    let actors = traffic::actors();
    for _ in 0..MINUTES {
        // The times of all frames are kept until the end, so that does not come too late.
        let streams = actors.iter().map(|actor| actor.background(60)).collect();
        let sending = Sender::new(lab).start(streams);
        while !stop.load(Ordering::Relaxed) && !sending.has_ended() {
            thread::sleep(Duration::from_millis(50));
        }
        let _sent = sending.stop();
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
    say(format_args!("the traffic has ended after {MINUTES} minutes"));
}

fn banner(dashboard: SocketAddr) -> io::Result<()> {
    let mut out = Vec::new();
    writeln!(
        out,
        "\nThis shell is in the receiving network namespace. The sources send on for\n\
         {MINUTES} minutes, the flood {} packets a second. Three commands to try:",
        traffic::MAX_BACKGROUND_RATE
    )?;
    print_commands(&mut out)?;
    writeln!(out, "The dashboard: http://{dashboard}/")?;
    writeln!(out, "`exit` removes everything.\n")?;
    io::stderr().write_all(&out)
}

/// The shell, with the client that was built in front of the `PATH`.
fn command(lab: &Lab, daemon: &Daemon, folder: &Path) -> io::Result<Command> {
    let programs = folder.join("bin");
    fs::create_dir(&programs)?;
    symlink(fs::canonicalize(limiter_binary())?, programs.join("limiter"))?;
    let given = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths([programs.clone()].into_iter().chain(std::env::split_paths(&given)));
    let path = path.map_err(io::Error::other)?;
    let shell = shell();
    let mut command = lab.receiver.command(&shell);
    command
        .env("PATH", path)
        .env("LIMITER_SOCKET", daemon.socket())
        .env("LIMITER_CONFIG", "/dev/null")
        .env_remove("LIMITER_INSTANCE")
        .env("PS1", PROMPT);
    if io::stdin().is_terminal() {
        // What the user's own file sets comes before.
        let file = folder.join("rc");
        let programs = programs.display();
        let own = if is_bash(&shell) { "[ -f ~/.bashrc ] && . ~/.bashrc\n" } else { "" };
        fs::write(&file, format!("{own}PATH='{programs}':$PATH\nPS1='{PROMPT}'\n"))?;
        if is_bash(&shell) {
            command.arg("--rcfile").arg(&file);
        } else {
            command.env("ENV", &file);
        }
    }
    // SAFETY: prctl is a plain system call and async-signal-safe; the closure allocates nothing. A shell that
    // is hung up ends its jobs, and one that is killed does not.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGHUP) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    Ok(command)
}

const PROMPT: &str = "(limiter demo) # ";

/// The user's shell, or one that every Debian has.
fn shell() -> OsString {
    let own = std::env::var_os("SHELL").map(PathBuf::from);
    let all = own.into_iter().chain(["/bin/bash", "/bin/sh"].map(PathBuf::from));
    all.into_iter().find(|path| path.is_file()).map_or("sh".into(), PathBuf::into_os_string)
}

fn is_bash(shell: &OsString) -> bool {
    Path::new(shell).file_name() == Some("bash".as_ref())
}

/// Carries connections from a port outside the namespaces to the dashboard. Returns its address.
fn forward(lab: &Lab) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    // A socket stays in the namespace that it was made in, so this thread has one outside and makes others
    // inside. It ends with the process.
    let _detached = lab.receiver.spawn_inside(move || {
        for outside in listener.incoming().flatten() {
            // Without a daemon the browser is told so by the end of its connection.
            let Ok(inside) = TcpStream::connect(DASHBOARD) else { continue };
            let Ok(both) = outside.try_clone().and_then(|o| Ok((o, inside.try_clone()?))) else {
                continue;
            };
            thread::spawn(move || carry(&outside, &inside));
            thread::spawn(move || carry(&both.1, &both.0));
        }
    });
    Ok(address)
}

/// Copies bytes until one side has no more, and tells the other side.
fn carry(mut from: &TcpStream, mut to: &TcpStream) {
    // Whatever goes wrong, both have nothing more to say to each other.
    let _copied = io::copy(&mut from, &mut to);
    let _closed = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_commands_fit_a_terminal() {
        let mut out = Vec::new();
        print_commands(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("\n  limiter show 198.51.100.66 "), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
