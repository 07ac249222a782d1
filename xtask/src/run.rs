//! Child processes: echoed before they run, with one `PATH` and one form of error.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    fs::File,
    io::{BufRead as _, BufReader},
    os::unix::fs::MetadataExt as _,
    process::{Child, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::workspace;

/// Prints one message line to stderr.
pub(crate) fn say(message: impl fmt::Display) {
    eprintln!("xtask: {message}");
}

/// A command to run in the workspace root, with nothing on its stdin.
#[derive(Debug, Clone)]
pub(crate) struct Cmd {
    program: OsString,
    args: Vec<OsString>,
    envs: Vec<(String, OsString)>,
}

impl Cmd {
    /// `program` without arguments.
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self { program: program.as_ref().into(), args: Vec::new(), envs: Vec::new() }
    }

    /// The cargo that runs this program (so that the caller's toolchain is kept), with `args`.
    pub(crate) fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        Self::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())).args(args)
    }

    /// `args` run by the nightly toolchain, which has to be installed.
    pub(crate) fn nightly<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        Self::new("rustup").args(["run", "nightly"]).args(args)
    }

    /// Adds arguments.
    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.envs.push((key.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// The same command as root: itself if we are root, else through sudo.
    pub(crate) fn into_root(self) -> Result<Self> {
        if is_root()? {
            return Ok(self);
        }
        // sudo drops most of the environment, so what was set on purpose is set again inside.
        let pairs = self.envs.iter().map(|(key, value)| {
            let mut pair = OsString::from(key);
            pair.push("=");
            pair.push(value);
            pair
        });
        Ok(Self::new("sudo").args(sudo_args()?).args(pairs).args([&self.program]).args(&self.args))
    }

    /// Echoes and runs the command with its output on stderr; an error if it fails.
    pub(crate) fn run(&self) -> Result<()> {
        let status = self.status_to(std::io::stderr())?;
        self.demand(status)
    }

    /// Echoes and runs the command with its stdout on ours, and returns how it ended.
    pub(crate) fn status(&self) -> Result<ExitStatus> {
        self.status_to(Stdio::inherit())
    }

    fn status_to(&self, stdout: impl Into<Stdio>) -> Result<ExitStatus> {
        say(format_args!("$ {self}"));
        self.command().stdout(stdout).status().with_context(|| self.cannot_start())
    }

    /// Runs the command without echo and returns its stdout; an error with its stderr if it fails.
    pub(crate) fn capture(&self) -> Result<String> {
        let output = self.command().output().with_context(|| self.cannot_start())?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("`{self}` failed ({}): {}", output.status, stderr.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Echoes and runs the command and hands every line of its stdout to `each` as it comes.
    pub(crate) fn stream(&self, mut each: impl FnMut(&str)) -> Result<ExitStatus> {
        say(format_args!("$ {self}"));
        let mut child =
            self.command().stdout(Stdio::piped()).spawn().with_context(|| self.cannot_start())?;
        if let Some(stdout) = child.stdout.take() {
            let mut lines = BufReader::new(stdout);
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).context("cannot read test output")? > 0 {
                each(String::from_utf8_lossy(&line).trim_end_matches('\n'));
                line.clear();
            }
        }
        child.wait().with_context(|| format!("cannot wait for `{self}`"))
    }

    /// Starts the command with its output in `log` and returns at once. The caller ends it.
    pub(crate) fn spawn(&self, log: File) -> Result<Child> {
        let stderr = log.try_clone().context("cannot share a log file")?;
        let mut command = self.command();
        command.stdout(log).stderr(stderr).spawn().with_context(|| self.cannot_start())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .current_dir(workspace::root())
            .stdin(Stdio::null())
            .env("PATH", workspace::search_path())
            .envs(self.envs.iter().map(|(key, value)| (key, value)));
        command
    }

    fn demand(&self, status: ExitStatus) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        bail!("`{self}` failed ({status})")
    }

    fn cannot_start(&self) -> String {
        format!("cannot start `{}`: is it installed?", self.program.display())
    }
}

/// Prints the command as one would type it, less the arguments' quoting.
impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in &self.envs {
            write!(f, "{key}={} ", value.display())?;
        }
        // Cargo gives its full path to the programs it runs, which nobody would type.
        let is_cargo = std::path::Path::new(&self.program).file_name() == Some("cargo".as_ref());
        let program = if is_cargo { OsStr::new("cargo") } else { &self.program };
        write!(f, "{}", program.display())?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", arg.display()))
    }
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> Result<bool> {
    // The owner of /proc/self is the effective user; asking it this way needs no libc.
    let meta = std::fs::metadata("/proc/self").context("cannot read /proc/self: is it mounted?")?;
    Ok(meta.uid() == 0)
}

/// The arguments of a `sudo` that keeps the environment, up to the assignments and the program.
pub(crate) fn sudo_args() -> Result<Vec<OsString>> {
    if workspace::find_program("sudo").is_none() {
        bail!("not root, and there is no sudo: run this as root");
    }
    // sudo replaces PATH even with -E, hence env.
    let mut path = OsString::from("PATH=");
    path.push(workspace::search_path());
    Ok(vec!["-E".into(), "env".into(), path])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_as_typed() {
        let cmd = Cmd::new("/etc/init.d/x").args(["a", "b"]).env("K", "v");
        assert_eq!(cmd.to_string(), "K=v /etc/init.d/x a b");
        assert_eq!(Cmd::new("/opt/rust/bin/cargo").args(["fmt"]).to_string(), "cargo fmt");
    }

    #[test]
    fn capture_returns_stdout_or_the_reason() {
        let sh = |script: &str| Cmd::new("sh").args(["-c", script]).capture();
        assert_eq!(sh("echo out; echo err >&2").unwrap(), "out\n");
        let error = sh("echo broken >&2; exit 3").unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains('3'), "{error}");
        let error = Cmd::new("no-such-program-anywhere").capture().unwrap_err().to_string();
        assert!(error.contains("no-such-program-anywhere"), "{error}");
    }

    #[test]
    fn stream_hands_over_lines_and_the_status() {
        let mut lines = Vec::new();
        let cmd = Cmd::new("sh").args(["-c", "printf 'one\\n\\ntwo'; exit 4"]);
        let status = cmd.stream(|line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines, ["one", "", "two"]);
        assert_eq!(status.code(), Some(4));
    }
}
