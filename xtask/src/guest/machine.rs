//! A virtual machine, emulated in software: it needs no `/dev/kvm`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Child,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use tempfile::TempDir;

pub(crate) use super::agent::Output;
use super::{Card, Image, agent::Agent, monitor::Monitor};
use crate::{run::Cmd, workspace};

/// How long the emulator may take to start.
const START: Duration = Duration::from_secs(30);
/// How long a boot may take. Two at once take 23 s on two idle cores.
const BOOT: Duration = Duration::from_secs(300);
/// How long a command may take, unless the caller says.
const COMMAND: Duration = Duration::from_secs(120);
/// How long a guest may take to shut down.
const SHUTDOWN: Duration = Duration::from_secs(120);

/// What a kernel prints that gives up.
pub(crate) const PANIC: &str = "Kernel panic";

/// What a guest is made of, besides its image.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    /// Its host name, and that of its log.
    pub(crate) name: &'a str,
    /// Which of the image's kernels it boots, if not the suite's own.
    pub(crate) release: Option<&'a str>,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// In the guest they are eth0, eth1, ….
    pub(crate) cards: &'a [Card],
    /// Whether its disk can be copied once it has booted: else it does not stay behind, however the guest ends.
    pub(crate) keeps_disk: bool,
}

/// A machine that runs. Dropped, it is switched off at once.
#[derive(Debug)]
pub(crate) struct Guest {
    name: String,
    emulator: Child,
    agent: Agent,
    monitor: Monitor,
    console: PathBuf,
    /// With its disk, until it has booted if it is not to keep that.
    folder: Option<TempDir>,
    keeps_disk: bool,
}

/// All of a machine at a moment: its memory and its disk.
#[derive(Debug)]
pub(crate) struct Snapshot {
    folder: TempDir,
}

impl Snapshot {
    fn disk(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn memory(&self) -> PathBuf {
        self.folder.path().join("memory")
    }
}

impl Guest {
    /// Switches a machine on, with a copy of the image's disk; [`Guest::wait_for_boot`] waits for it. It
    /// ends with the thread that calls this.
    pub(crate) fn start(image: &Image, machine: &Machine<'_>) -> Result<Self> {
        let mut guest = Self::switch_on(image, machine, &image.disk(), &[])?;
        guest.go_on()?;
        Ok(guest)
    }

    /// Switches a machine on as it was when a snapshot was made. No boot: it goes on.
    pub(crate) fn restore(
        image: &Image,
        machine: &Machine<'_>,
        snapshot: &Snapshot,
    ) -> Result<Self> {
        let memory = format!("exec:cat '{}'", snapshot.memory().display());
        let mut guest = Self::switch_on(image, machine, &snapshot.disk(), &["-incoming", &memory])?;
        guest.monitor.wait_for_memory()?;
        guest.go_on()?;
        Ok(guest)
    }

    /// Switches the emulator of a machine on, which stands still, with a copy of a disk.
    fn switch_on(
        image: &Image,
        machine: &Machine<'_>,
        disk_of: &Path,
        more: &[&str],
    ) -> Result<Self> {
        let place = workspace::target_dir()?.join("guest");
        let console = place.join(format!("{}.log", machine.name));
        // The disk is in the build output, but a socket's path may have 107 bytes.
        let folder = tempfile::tempdir_in(&place).context("cannot make the guest's folder")?;
        let socket = tempfile::tempdir().context("cannot make a folder for the guest's socket")?;
        let (disk, agent) = (folder.path().join("disk"), socket.path().join("agent"));
        let monitor = socket.path().join("monitor");
        Cmd::new(&tools::CP).args(["--sparse=always"]).args([disk_of, &disk]).capture()?;
        // Before the emulator starts: it connects once and does not try again.
        let listener = Agent::listen(&agent)?;
        let log =
            File::create(&console).with_context(|| format!("cannot make {}", console.display()))?;
        let emulator = emulator(image, machine, &disk, [&agent, &monitor]).args(more);
        let mut emulator = emulator.spawn(log)?;
        let agent = Agent::accept(&listener, START, || match emulator.try_wait() {
            Ok(Some(status)) => bail!("the emulator has ended ({status})"),
            _ => Ok(()),
        });
        let both = agent.and_then(|agent| Ok((agent, Monitor::connect(&monitor)?)));
        let both = both.inspect_err(|_| {
            // It may have ended by itself.
            let _ = emulator.kill();
            let _ = emulator.wait();
        });
        let (agent, monitor) = both.with_context(|| printed(machine.name, &console))?;
        let name = machine.name.to_owned();
        let (folder, keeps_disk) = (Some(folder), machine.keeps_disk);
        Ok(Self { name, emulator, agent, monitor, console, folder, keeps_disk })
    }

    /// Lets it stand still, its clock included.
    pub(crate) fn pause(&mut self) -> Result<()> {
        self.monitor.execute("stop", &json!({})).map(drop)
    }

    /// Lets it go on.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        self.monitor.execute("cont", &json!({})).map(drop)
    }

    /// Copies all of it, and lets it go on.
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot> {
        let Some(folder) = &self.folder else { bail!("guest {} keeps no disk", self.name) };
        let disk = folder.path().join("disk");
        let place = workspace::target_dir()?.join("guest");
        let copy = tempfile::tempdir_in(&place).context("cannot make a snapshot's folder")?;
        let snapshot = Snapshot { folder: copy };
        self.pause()?;
        self.monitor.save(&snapshot.memory())?;
        Cmd::new(&tools::CP).args(["--sparse=always"]).args([disk, snapshot.disk()]).capture()?;
        self.go_on()?;
        Ok(snapshot)
    }

    /// Waits until its systemd has started everything.
    pub(crate) fn wait_for_boot(&mut self) -> Result<()> {
        let ready = self.agent.wait_until_ready(BOOT);
        ready.with_context(|| self.failure("does not boot"))?;
        // The emulator has it open. So it does not stay behind, however this ends.
        if let Some(folder) = self.folder.take_if(|_| !self.keeps_disk) {
            folder.close().context("cannot remove the guest's disk")?;
        }
        // Units that have failed are the caller's business.
        self.run_with("systemctl is-system-running --wait", &[], BOOT).map(drop)
    }

    /// Runs a script by its shell, as root.
    pub(crate) fn run(&mut self, script: &str) -> Result<Output> {
        self.run_with(script, &[], COMMAND)
    }

    /// Runs a script with `input` on its stdin; it is killed if it takes longer than `patience`.
    pub(crate) fn run_with(
        &mut self,
        script: &str,
        input: &[u8],
        patience: Duration,
    ) -> Result<Output> {
        let output = self.agent.run(script, input, patience);
        output.with_context(|| self.failure(&format!("does not run `{}`", first_line(script))))
    }

    /// Runs a script that must succeed; returns what it printed.
    pub(crate) fn check(&mut self, script: &str) -> Result<String> {
        let Output { status, text } = self.run(script)?;
        if status == 0 {
            return Ok(text);
        }
        let (name, line) = (&self.name, first_line(script));
        // timeout(1) ends with that.
        let late = if status == 124 { ", which is for taking too long" } else { "" };
        bail!(
            "guest {name}: `{line}` has ended with {status}{late}; it printed last:\n{}",
            tools::last_lines(&text)
        )
    }

    /// Copies a file of the host into the guest.
    pub(crate) fn copy_in(&mut self, from: &Path, to: &str) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let output = self.run_with(&format!("cat >'{to}'"), &content, COMMAND)?;
        if output.status != 0 {
            bail!("guest {}: cannot write {to}: {}", self.name, output.text.trim());
        }
        Ok(())
    }

    /// Asks its systemd to reboot; [`Guest::wait_for_boot`] waits for it.
    pub(crate) fn reboot(&mut self) -> Result<()> {
        self.check(&soon("reboot")).map(drop)
    }

    /// Has its systemd switch it off, and waits for that.
    pub(crate) fn power_off(mut self) -> Result<()> {
        self.check(&soon("poweroff"))?;
        let until = std::time::Instant::now() + SHUTDOWN;
        while std::time::Instant::now() < until {
            match self.emulator.try_wait().context("cannot wait for the emulator")? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} ({status})", self.failure("has not shut down well")),
                None => std::thread::sleep(Duration::from_millis(100)),
            }
        }
        bail!(self.failure("does not shut down"))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where everything lies that it has printed to its serial console.
    pub(crate) fn console(&self) -> &Path {
        &self.console
    }

    fn failure(&self, what: &str) -> String {
        format!("guest {} {what}; {}", self.name, printed(&self.name, &self.console))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

/// The emulator of a machine. Without a network of the emulator's own: what has no card has none.
fn emulator(
    image: &Image,
    machine: &Machine<'_>,
    disk: &Path,
    [agent, monitor]: [&Path; 2],
) -> Cmd {
    let cards = machine.cards.iter().enumerate();
    // It ends with the thread that starts it, however that ends.
    Cmd::new(&tools::SETPRIV)
        // Nothing of this machine's configuration and no default devices: a guest is the same
        // everywhere.
        .args(["--pdeathsig", "KILL", tools::QEMU.program, "-no-user-config", "-nodefaults"])
        .args(["-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-display", "none"])
        .args(["-name", machine.name, "-smp", &machine.cpus.to_string()])
        .args(["-m", &machine.memory_mib.to_string(), "-serial", "stdio"])
        .args(["-kernel".as_ref(), image.kernel(machine.release).as_os_str()])
        .args(["-initrd".as_ref(), image.initrd(machine.release).as_os_str()])
        .args(["-append", &kernel_options(machine.name)])
        .args(["-drive", &format!("file={},format=raw,if=virtio", disk.display())])
        // Without a source of random numbers a boot may have to wait for them.
        .args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"])
        .args(["-chardev", &format!("socket,id=agent,path={}", agent.display())])
        .args(["-device", "virtserialport,chardev=agent,name=agent"])
        // It stands still until it is told to go on.
        .args(["-S", "-qmp", &format!("unix:{},server=on,wait=off", monitor.display())])
        .args(cards.flat_map(|(number, card)| card.arguments(number)))
}

fn kernel_options(name: &str) -> String {
    // On a busy host the kernel finds timers missing and takes the TSC for faster or slower than it
    // is, and then limits by a wrong clock. Mitigations protect nobody here and cost time. A panic starts it anew at
    // once, which ends the command that runs: nobody waits for a guest that is dead. Emulated, a CPU now and then hangs
    // in code that was just patched or loaded, which is as dead.
    format!(
        "root=/dev/vda rw console=ttyS0 loglevel=5 systemd.show_status=1 systemd.hostname={name} \
         net.ifnames=0 no_timer_check tsc=unstable clocksource=hpet mitigations=off softlockup_panic=1 \
         panic=-1"
    )
}

/// A script that ends before what it starts ends the agent, which has to answer first.
fn soon(verb: &str) -> String {
    format!("(sleep 2; systemctl --no-block {verb}) </dev/null >/dev/null 2>&1 &")
}

/// The end of a guest's console, and where all of it is.
fn printed(name: &str, console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let end = until_panic(&text);
    format!("{name} printed last:\n{}\nall of it: {}", tools::last_lines(end), console.display())
}

/// Without what a guest prints that has started anew because its kernel panicked.
fn until_panic(text: &str) -> &str {
    let Some(at) = text.rfind(PANIC) else { return text };
    let line = text[at..].find('\n').unwrap_or(text.len() - at);
    &text[..at + line]
}

fn first_line(script: &str) -> &str {
    script.trim().lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_quote_the_end_of_the_console() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines: Vec<_> = (0..40).map(|number| format!("line {number}\r\n")).collect();
        fs::write(file.path(), lines.concat()).unwrap();
        let text = printed("a", file.path());
        assert!(text.contains("line 39") && text.contains("line 20"), "{text}");
        assert!(!text.contains("line 19"), "{text}");
        assert!(text.contains(&file.path().display().to_string()), "{text}");
        assert!(until_panic("one\nKernel panic: why\n[boot]\ntwo").ends_with(": why"));
        assert_eq!(first_line("\none\ntwo"), "one");
    }
}
