//! Child processes: echoed before they run, with one `PATH` and one form of error.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    fs::File,
    io::{self, BufRead as _, BufReader, Read},
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, anyhow, bail};
use tools::{Tool, failure, root};

use crate::progress::{Log, say};

/// A command to run, in the workspace root if nothing else is said, with nothing on its stdin.
#[derive(Debug, Clone)]
pub(crate) struct Cmd {
    program: OsString,
    args: Vec<OsString>,
    envs: Vec<(String, OsString)>,
    title: Option<String>,
    folder: PathBuf,
}

impl Cmd {
    /// `tool` without arguments.
    pub(crate) fn new(tool: &Tool) -> Self {
        Self::own(tool)
    }

    /// A program that this workspace has built, without arguments.
    pub(crate) fn own(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().into(),
            args: Vec::new(),
            envs: Vec::new(),
            title: None,
            folder: root().to_owned(),
        }
    }

    /// The cargo that runs this program (so that the caller's toolchain is kept), with `args`.
    pub(crate) fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        let cargo = std::env::var_os("CARGO").map_or_else(|| Self::new(&tools::CARGO), Self::own);
        cargo.args(args)
    }

    /// `args` run by the nightly toolchain, which has to be installed.
    pub(crate) fn nightly<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        Self::new(&tools::RUSTUP).args(["run", "nightly"]).args(args)
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.envs.push((key.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Shows the command as `title`, where its words would tell a reader less, or too much.
    pub(crate) fn title(self, title: impl Into<String>) -> Self {
        Self { title: Some(title.into()), ..self }
    }

    /// Runs the command in another folder than the workspace's.
    pub(crate) fn within(self, folder: PathBuf) -> Self {
        Self { folder, ..self }
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
        let sudo = Self::new(&tools::SUDO).args(sudo_args()?);
        Ok(sudo.within(self.folder).args(pairs).args([&self.program]).args(&self.args))
    }

    /// Echoes and runs the command with its output on stderr; an error if it fails.
    pub(crate) fn run(&self) -> Result<()> {
        say(format_args!("$ {self}"));
        // stdout is for what the command as a whole has to say.
        let status = self.command().stdout(io::stderr()).status();
        let status = status.with_context(|| self.cannot_start())?;
        if !status.success() {
            bail!("`{self}` failed ({status})");
        }
        Ok(())
    }

    /// Runs the command with its output in `log` alone; an error with its last lines if it fails.
    pub(crate) fn log(&self, log: &Log) -> Result<()> {
        let (reader, writer) = io::pipe().context("cannot make a pipe")?;
        log.write(&format!("$ {self}"));
        let mut child = {
            let mut command = self.command();
            // One pipe for both, so that lines are in the order in which they were written.
            let twin = writer.try_clone().context("cannot make a pipe")?;
            command.stdout(twin).stderr(writer);
            // `command` holds the writing ends, too, and the reader waits for the last of them.
            command.spawn().with_context(|| self.cannot_start())?
        };
        let mut tail = String::new();
        each_line(reader, |line| {
            log.write(line);
            tail.push_str(line);
            tail.push('\n');
        })?;
        let status = child.wait().with_context(|| format!("cannot wait for `{self}`"))?;
        if !status.success() {
            let text = failure(&self.to_string(), status, &tail);
            bail!("{text}\nall of its output is in {}", log.path().display());
        }
        Ok(())
    }

    /// Runs the command without echo and returns its stdout; an error with its stderr if it fails.
    pub(crate) fn capture(&self) -> Result<String> {
        let output = self.command().output().with_context(|| self.cannot_start())?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(anyhow!(failure(&self.to_string(), output.status, &stderr)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Echoes and runs the command and hands every line of its stdout to `each` as it comes.
    pub(crate) fn stream(&self, each: impl FnMut(&str)) -> Result<ExitStatus> {
        say(format_args!("$ {self}"));
        let mut child =
            self.command().stdout(Stdio::piped()).spawn().with_context(|| self.cannot_start())?;
        if let Some(stdout) = child.stdout.take() {
            each_line(stdout, each)?;
        }
        child.wait().with_context(|| format!("cannot wait for `{self}`"))
    }

    /// Becomes the command, with the caller's stdin: signals reach it alone, and its exit status is
    /// ours. Returns only if it cannot be started.
    pub(crate) fn exec(&self) -> anyhow::Error {
        let error = self.command().stdin(Stdio::inherit()).exec();
        anyhow!(error).context(self.cannot_start())
    }

    /// Starts the command with its output in `log` and returns at once. The caller ends it.
    pub(crate) fn spawn(&self, log: File) -> Result<Child> {
        let stderr = log.try_clone().context("cannot share a log file")?;
        let mut command = self.command();
        command.stdout(log).stderr(stderr).spawn().with_context(|| self.cannot_start())
    }

    fn command(&self) -> Command {
        let mut command = tools::own(&self.program);
        command
            .args(&self.args)
            .current_dir(&self.folder)
            // Whoever asks a question would wait for ever for an answer that nobody sees the question of.
            .stdin(Stdio::null())
            .envs(self.envs.iter().map(|(key, value)| (key, value)));
        command
    }

    fn cannot_start(&self) -> String {
        let shown = Path::new(&self.program).display();
        format!("cannot start `{shown}`: `cargo xtask setup --check` tells what is missing")
    }
}

/// Hands over each line of `source` until its end.
fn each_line(source: impl Read, mut each: impl FnMut(&str)) -> Result<()> {
    let mut lines = BufReader::new(source);
    let mut line = Vec::new();
    // Bytes rather than `lines()`: one byte of another encoding would end the reading, and the
    // child would block.
    while lines.read_until(b'\n', &mut line).context("cannot read a child's output")? > 0 {
        each(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
    Ok(())
}

/// Prints the title, or the command as one would type it, less the arguments' quoting.
impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(title) = &self.title {
            return write!(f, "{title}");
        }
        for (key, value) in &self.envs {
            write!(f, "{key}={} ", value.display())?;
        }
        // Cargo gives its full path to the programs it runs, which nobody would type.
        let is_cargo = Path::new(&self.program).file_name() == Some("cargo".as_ref());
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
    if tools::SUDO.find().is_none() {
        bail!("not root, and there is no sudo: run this as root");
    }
    // sudo replaces PATH even with -E, hence env.
    let mut path = OsString::from("PATH=");
    path.push(tools::search_path());
    Ok(vec!["-E".into(), "env".into(), path])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Cmd {
        Cmd::new(&tools::SH).args(["-c", script])
    }

    #[test]
    fn shown_as_typed() {
        let cmd = Cmd::own("/etc/init.d/x").args(["a", "b"]).env("K", "v");
        assert_eq!(cmd.to_string(), "K=v /etc/init.d/x a b");
        assert_eq!(Cmd::own("/opt/rust/bin/cargo").args(["fmt"]).to_string(), "cargo fmt");
    }

    #[test]
    fn capture_returns_stdout_or_the_reason() {
        assert_eq!(sh("echo out; echo err >&2").capture().unwrap(), "out\n");
        let error = sh("echo broken >&2; exit 3").capture().unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains('3'), "{error}");
        let error = Cmd::own("no-such-program-anywhere").capture().unwrap_err().to_string();
        assert!(error.contains("no-such-program-anywhere"), "{error}");
    }

    #[test]
    fn stream_hands_over_lines_and_the_status() {
        let mut lines = Vec::new();
        let cmd = sh("printf 'one\\n\\ntwo'; exit 4");
        let status = cmd.stream(|line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines, ["one", "", "two"]);
        assert_eq!(status.code(), Some(4));
    }

    #[test]
    fn a_logged_failure_names_command_status_and_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::at(dir.path().join("a.log")).unwrap();
        sh("echo out; echo err >&2").log(&log).unwrap();
        let error = sh("echo before; echo broken >&2; exit 3").log(&log).unwrap_err().to_string();
        for part in ["`sh -c ", "exit status: 3", "\n  before\n  broken\n", "a.log"] {
            assert!(error.contains(part), "{error}");
        }
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(text.contains("\nout\nerr\n"), "{text}");
    }
}
