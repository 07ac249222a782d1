//! The host's end of the connection to a guest's agent (`agent.sh`).

use std::{
    io::{ErrorKind, Read, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// What the agent sends first after each boot.
const READY: &str = "ready";

/// How much longer than the command itself its answer may take: the guest kills what is late.
const GRACE: Duration = Duration::from_secs(60);

/// How often it is looked whether the emulator has connected.
const POLL: Duration = Duration::from_millis(50);

/// How a command in the guest ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    /// Its exit status; 124 if it was killed for being late.
    pub(crate) status: u8,
    /// Its stdout and stderr, as they came.
    pub(crate) text: String,
}

/// A connection to the agent of one guest.
#[derive(Debug)]
pub(super) struct Agent {
    stream: UnixStream,
}

impl Agent {
    /// Waits until the emulator has connected to `listener`; `check` fails if it has ended.
    pub(super) fn accept(
        listener: &UnixListener,
        patience: Duration,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        let until = Instant::now() + patience;
        // An emulator that fails at once never connects: a call that waits would wait for ever.
        listener.set_nonblocking(true).context("cannot listen for the guest")?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).context("cannot use the guest's connection")?;
                    return Ok(Self { stream });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => check()?,
                Err(error) => return Err(error).context("cannot accept the guest's connection"),
            }
            if Instant::now() > until {
                bail!("the emulator did not connect within {} s", patience.as_secs());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Listens for an emulator at `path`.
    pub(super) fn listen(path: &Path) -> Result<UnixListener> {
        UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))
    }

    /// Waits until the guest has booted.
    pub(super) fn wait_until_ready(&mut self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        // A reboot may cut an answer short.
        while self.line(until)? != READY {}
        Ok(())
    }

    /// Runs `script` by the guest's shell with `input` on its stdin.
    pub(super) fn run(&mut self, script: &str, input: &[u8], patience: Duration) -> Result<Output> {
        let head = format!("{} {} {}\n", patience.as_secs().max(1), script.len(), input.len());
        let until = Instant::now() + patience + GRACE;
        // A guest that hangs reads nothing, and a full pipe would wait for ever.
        self.stream.set_write_timeout(Some(patience + GRACE)).context("cannot set a timeout")?;
        for part in [head.as_bytes(), script.as_bytes(), input] {
            self.stream.write_all(part).context("the guest takes no command")?;
        }
        let line = self.line(until)?;
        let (status, length) =
            parse(&line).with_context(|| format!("the guest answers `{line}`"))?;
        let mut output = vec![0; length];
        self.fill(&mut output, until)?;
        Ok(Output { status, text: String::from_utf8_lossy(&output).into_owned() })
    }

    fn line(&mut self, until: Instant) -> Result<String> {
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            self.fill(&mut byte, until)?;
            if byte == *b"\n" {
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            line.extend(byte);
        }
    }

    fn fill(&mut self, mut rest: &mut [u8], until: Instant) -> Result<()> {
        while !rest.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("the guest does not answer in time");
            }
            // Anew for each read: bytes that come one by one would otherwise renew the time.
            self.stream.set_read_timeout(Some(left)).context("cannot set a timeout")?;
            match self.stream.read(rest) {
                Ok(0) => bail!("the guest has ended"),
                Ok(count) => rest = &mut rest[count..],
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error).context("cannot read what the guest answers"),
            }
        }
        Ok(())
    }
}

/// The exit status and the length of the output that follows.
fn parse(line: &str) -> Option<(u8, usize)> {
    let (status, length) = line.split_once(' ')?;
    Some((status.parse().ok()?, length.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::{fs, process, thread};

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// An agent whose guest is a shell of this machine.
    fn shell() -> (Agent, thread::JoinHandle<process::Output>) {
        let (host, guest) = UnixStream::pair().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let text = include_str!("agent.sh")
            .replace("/dev/virtio-ports/agent", "/dev/null")
            .replace("exec <>\"$port\" >&0\n", "")
            .replace("/run/", &format!("{}/", folder.path().display()));
        let script = folder.path().join("agent.sh");
        fs::write(&script, text).unwrap();
        let thread = thread::spawn(move || {
            let (stdin, stdout) = (guest.try_clone().unwrap(), guest);
            let mut command = tools::SH.command();
            let command = command.arg(script).stdin(std::os::fd::OwnedFd::from(stdin));
            let output = command.stdout(std::os::fd::OwnedFd::from(stdout)).output().unwrap();
            drop(folder);
            output
        });
        (Agent { stream: host }, thread)
    }

    #[test]
    fn commands_get_their_input_and_return_status_and_output() {
        let (mut agent, thread) = shell();
        agent.wait_until_ready(SOON).unwrap();
        let output = agent.run("cat; echo err >&2; exit 3", b"in\n\0", SOON).unwrap();
        assert_eq!(output, Output { status: 3, text: "in\n\0err\n".into() });
        let large = vec![b'x'; 300_000];
        let output = agent.run("cat", &large, SOON).unwrap();
        assert_eq!((output.status, output.text.len()), (0, large.len()));
        // What is late is killed, and the next command is not.
        let output = agent.run("sleep 100", b"", Duration::from_secs(1)).unwrap();
        assert_eq!(output.status, 124);
        assert_eq!(agent.run("echo on", b"", SOON).unwrap().text, "on\n");
        drop(agent);
        thread.join().unwrap();
    }

    #[test]
    fn silence_and_the_end_are_errors() {
        let (host, guest) = UnixStream::pair().unwrap();
        let mut agent = Agent { stream: host };
        let error = agent.wait_until_ready(Duration::from_millis(10)).unwrap_err();
        assert!(error.to_string().contains("in time"), "{error}");
        drop(guest);
        let error = agent.wait_until_ready(SOON).unwrap_err();
        assert!(error.to_string().contains("ended"), "{error}");
    }

    #[test]
    fn answers_have_two_numbers() {
        assert_eq!(parse("0 12"), Some((0, 12)));
        assert_eq!(parse("ready"), None);
        assert_eq!(parse("256 1"), None);
    }
}
