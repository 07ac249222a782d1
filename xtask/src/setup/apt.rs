//! Debian packages, all by one apt-get.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail};
use tools::Tool;

use crate::{progress::Log, run::Cmd};

pub(super) fn install(tools: &[&Tool], log: &Log) -> Result<()> {
    if tools::APT_GET.find().is_none() {
        bail!("there is no apt-get to install it with");
    }
    let names = packages(tools);
    let services: Vec<&str> = tools.iter().filter_map(|tool| tool.service).collect();
    let before = running(&services);
    // Debian starts what it installs as a service. Only the programs are wanted here.
    let quiet = Quiet::impose(&services, log)?;
    // An unreachable third-party source must not stand in the way of what the others have; where it
    // matters, the installation fails and says so.
    let updated = apt_get(&["update"])?.log(log);
    let arguments = ["install", "--yes", "--no-install-recommends"];
    let mut installed = apt_get(&arguments)?.args(&names).log(log);
    if installed.is_err() && names.len() > 1 {
        // One that this release does not have stops all of them, so each on its own.
        let each = names.iter().map(|name| apt_get(&arguments)?.args([name]).log(log));
        installed = each.collect::<Vec<_>>().into_iter().collect();
    }
    quiet.lift(log)?;
    stop_started(&services, &before, log)?;
    match (installed, updated) {
        (Err(error), Err(update)) => Err(error).context(format!("{update:#}")),
        (installed, _) => installed,
    }
}

/// The addresses that this machine's apt has packages from, one in each line.
pub(crate) fn repositories() -> Result<String> {
    let targets = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"];
    Cmd::new(&tools::APT_GET).args(targets).capture()
}

/// The one command that installs the packages of `tools` by hand.
pub(super) fn advice(tools: &[&Tool]) -> String {
    let names = packages(tools).join(" ");
    if tools::APT_GET.find().is_some() {
        return format!("apt-get install {names}");
    }
    let programs: Vec<_> = tools.iter().map(|tool| tool.program).collect();
    let programs = programs.join(", ");
    format!("install what provides {programs} on this system (Debian's packages: {names})")
}

/// The packages of `tools`, each once.
fn packages(tools: &[&Tool]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for tool in tools {
        if let Some(package) = tool.package()
            && !names.contains(&package)
        {
            names.push(package);
        }
    }
    names
}

fn apt_get(arguments: &[&str]) -> Result<Cmd> {
    Cmd::new(&tools::APT_GET)
        // A host that has just started may be upgrading itself, and holds the lock meanwhile.
        .args(["-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0", "-q"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .into_root()
}

/// Keeps services from being started by their installation. Only systemd can be told so; elsewhere
/// [`stop_started`] has to do.
struct Quiet<'a> {
    services: &'a [&'a str],
}

impl<'a> Quiet<'a> {
    fn impose(services: &'a [&'a str], log: &Log) -> Result<Self> {
        let has_systemd = Path::new("/run/systemd/system").is_dir();
        let services = if has_systemd { services } else { &[] };
        systemctl(&["mask", "--runtime"], services, log)?;
        Ok(Self { services })
    }

    /// Ends that, and leaves the services disabled, so that they do not come up at the next boot.
    fn lift(self, log: &Log) -> Result<()> {
        systemctl(&["unmask", "--runtime"], self.services, log)?;
        for service in self.services {
            // One that was not installed after all has nothing to disable.
            if let Err(error) = systemctl(&["disable", "--now"], &[service], log) {
                log.write(&format!("{error:#}"));
            }
        }
        Ok(())
    }
}

fn systemctl(arguments: &[&str], services: &[&str], log: &Log) -> Result<()> {
    if services.is_empty() {
        return Ok(());
    }
    Cmd::new(&tools::SYSTEMCTL).args(arguments).args(services).into_root()?.log(log)
}

/// Stops services that run although they should not have been started; an error if they stay.
fn stop_started(services: &[&str], before: &BTreeSet<u32>, log: &Log) -> Result<()> {
    for &service in services {
        let started = || running(&[service]).difference(before).count();
        if started() == 0 {
            continue;
        }
        // Its own package's script, so no program of the table.
        Cmd::own(format!("/etc/init.d/{service}")).args(["stop"]).into_root()?.log(log)?;
        if started() > 0 {
            bail!("its installation started {service}, which does not stop: stop it by hand");
        }
    }
    Ok(())
}

/// The processes named like one of `services`.
fn running(services: &[&str]) -> BTreeSet<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
        services.contains(&comm.trim()).then_some(pid)
    });
    pids.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_running_processes_by_name() {
        let comm = fs::read_to_string("/proc/self/comm").unwrap();
        assert!(running(&[comm.trim()]).contains(&std::process::id()));
        assert!(!running(&["no such service"]).contains(&std::process::id()));
    }

    #[test]
    fn each_package_is_named_once() {
        assert_eq!(packages(&[&tools::IP, &tools::NFT, &tools::SS]), ["iproute2", "nftables"]);
    }
}
