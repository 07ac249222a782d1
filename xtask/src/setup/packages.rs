//! Debian packages: the programs that tests, demo and benchmarks need.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Result, bail};

use super::report::Report;
use crate::{
    run::{Cmd, say},
    workspace,
};

/// A package, and the program it is wanted for.
struct Package {
    name: &'static str,
    program: &'static str,
    /// The service it would start; none is wanted.
    service: Option<&'static str>,
}

const fn package(name: &'static str, program: &'static str) -> Package {
    Package { name, program, service: None }
}

const PACKAGES: [Package; 19] = [
    package("iproute2", "ip"),
    package("iputils-ping", "ping"),
    package("nftables", "nft"),
    package("iptables", "iptables"),
    package("hping3", "hping3"),
    Package { service: Some("iperf3"), ..package("iperf3", "iperf3") },
    Package { service: Some("nginx"), ..package("nginx-light", "nginx") },
    package("curl", "curl"),
    package("openssl", "openssl"),
    package("chromium", "chromium"),
    package("npm", "npm"),
    package("tcpreplay", "tcpreplay"),
    package("tshark", "tshark"),
    package("ethtool", "ethtool"),
    Package { service: Some("prometheus"), ..package("prometheus", "promtool") },
    package("dpkg-dev", "dpkg-shlibdeps"),
    package("mmdebstrap", "mmdebstrap"),
    package("e2fsprogs", "mke2fs"),
    package("qemu-system-x86", "qemu-system-x86_64"),
];

/// The names of all packages.
pub(super) fn names() -> Vec<&'static str> {
    PACKAGES.iter().map(|package| package.name).collect()
}

/// Installs those of `names` whose program is absent, all by one apt-get.
pub(super) fn bring(report: &mut Report, names: &[&str]) {
    let wanted = || PACKAGES.iter().filter(|package| names.contains(&package.name));
    let absent: Vec<&Package> = wanted().filter(|package| find(package).is_none()).collect();
    let failure = if absent.is_empty() || !report.may_install() {
        None
    } else {
        install(&absent).err().map(|error| format!("{error:#}"))
    };
    for package in wanted() {
        let fresh = absent.iter().any(|&missing| std::ptr::eq(missing, package));
        let state = if fresh { "installed" } else { "ok" };
        if find(package).is_some() {
            report.there(state, package.name, "");
            continue;
        }
        let why = failure.clone().unwrap_or_else(|| format!("no `{}` in PATH", package.program));
        report.missing(package.name, &why, &mend(package));
    }
}

fn find(package: &Package) -> Option<std::path::PathBuf> {
    workspace::find_program(package.program)
}

fn mend(package: &Package) -> String {
    if workspace::find_program("apt-get").is_some() {
        return format!("apt-get install {}", package.name);
    }
    format!("install what provides `{}` on this system", package.program)
}

fn install(absent: &[&Package]) -> Result<()> {
    if workspace::find_program("apt-get").is_none() {
        bail!("there is no apt-get to install it with");
    }
    let names: Vec<&str> = absent.iter().map(|package| package.name).collect();
    say(format_args!("packages: installing {}", names.join(", ")));
    let services: Vec<&str> = absent.iter().filter_map(|package| package.service).collect();
    let before = running(&services);
    let quiet = Quiet::impose(&services)?;
    // An unreachable third-party source must not stand in the way of what the others have.
    if let Err(error) = apt_get(&["update"])?.run() {
        say(format_args!("packages: {error:#}; trying with the lists that are there"));
    }
    let arguments = ["install", "--yes", "--no-install-recommends"];
    if apt_get(&arguments)?.args(&names).run().is_err() {
        // One that this release does not have stops all of them, so each on its own; what is
        // still absent after that is reported by name.
        for name in names {
            if let Err(error) = apt_get(&arguments)?.args([name]).run() {
                say(format_args!("packages: {error:#}"));
            }
        }
    }
    quiet.lift()?;
    stop_started(&services, &before)
}

fn apt_get(arguments: &[&str]) -> Result<Cmd> {
    Cmd::new("apt-get")
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
    fn impose(services: &'a [&'a str]) -> Result<Self> {
        let has_systemd = Path::new("/run/systemd/system").is_dir();
        let services = if has_systemd { services } else { &[] };
        systemctl(&["mask", "--runtime"], services)?;
        Ok(Self { services })
    }

    /// Ends that, and leaves the services disabled, so that they do not come up at the next boot.
    fn lift(self) -> Result<()> {
        systemctl(&["unmask", "--runtime"], self.services)?;
        for service in self.services {
            // One that was not installed after all has nothing to disable.
            if let Err(error) = systemctl(&["disable", "--now"], &[service]) {
                say(format_args!("packages: {error:#}"));
            }
        }
        Ok(())
    }
}

fn systemctl(arguments: &[&str], services: &[&str]) -> Result<()> {
    if services.is_empty() {
        return Ok(());
    }
    Cmd::new("systemctl").args(arguments).args(services).into_root()?.run()
}

/// Stops services that run although they should not have been started; an error if they stay.
fn stop_started(services: &[&str], before: &BTreeSet<u32>) -> Result<()> {
    for &service in services {
        let started = || running(&[service]).difference(before).count();
        if started() == 0 {
            continue;
        }
        Cmd::new(format!("/etc/init.d/{service}")).args(["stop"]).into_root()?.run()?;
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
    fn names_are_unique() {
        let names = names();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }
}
