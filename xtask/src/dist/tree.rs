//! What the package installs, and what it says of itself.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::PROGRAMS;
use crate::{run::Cmd, workspace};

/// The scripts that run when the package is installed and removed.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Where the configuration lies.
const CONFIG: &str = "etc/limiter/limiter.toml";

/// One for the daemon without an instance, one for each instance.
const UNITS: [&str; 2] = ["limiter.service", "limiter@.service"];

/// That of `limiter-serve`, as it is.
const SERVE_UNIT: &str = "limiter-serve.service";

/// What monitoring needs to know of the limiter.
const SHARED: [&str; 3] =
    ["grafana/limiter.json", "prometheus/limiter.rules.test.yml", "prometheus/limiter.rules.yml"];

/// What the units say for systemd 253 and later, and what does the same in Debian 12's 252: there,
/// `limiter reload` waits and tells `systemctl` how it went.
const RELOAD: [(&str, &str); 2] = [
    ("Type=notify-reload", "Type=notify\nExecReload=@LIMITER@ reload"),
    (
        "# Needs systemd 253; before that, Type=notify with an ExecReload= does the same, less the waiting.\n",
        "",
    ),
];

/// The fields of the control file.
pub(super) struct Control<'a> {
    pub(super) version: &'a str,
    pub(super) architecture: &'a str,
    pub(super) depends: &'a str,
}

/// Puts everything but the binaries under `root`; `generated` has the manual pages and completions.
pub(super) fn lay_out(root: &Path, generated: &Path, config: &str) -> Result<()> {
    let packaging = workspace::root().join("packaging");
    fs::create_dir_all(root.join("usr/bin")).context("cannot make the tree")?;
    write(&root.join(CONFIG), config)?;
    let units = root.join("usr/lib/systemd/system");
    for unit in UNITS {
        let text = for_debian_12(&read(&packaging.join(unit))?)?;
        write(&units.join(unit), &text)?;
    }
    copy(&packaging.join(SERVE_UNIT), &units.join(SERVE_UNIT))?;
    let completions = generated.join("completions");
    for name in PROGRAMS {
        for (from, to) in [
            (format!("{name}.bash"), format!("bash-completion/completions/{name}")),
            (format!("_{name}"), format!("zsh/vendor-completions/_{name}")),
            (format!("{name}.fish"), format!("fish/vendor_completions.d/{name}.fish")),
        ] {
            copy(&completions.join(from), &root.join("usr/share").join(to))?;
        }
    }
    for page in files(&generated.join("man"))? {
        let to = root.join("usr/share/man/man8").join(page.file_name().unwrap_or_default());
        copy(&page, &to)?;
        // Without the time, so that the same tree makes the same package.
        Cmd::new(&tools::GZIP).args(["-9n"]).args([to]).capture()?;
    }
    let shared = root.join("usr/share/limiter");
    for file in SHARED {
        copy(&packaging.join(file), &shared.join(file))?;
    }
    let documents = root.join("usr/share/doc/limiter");
    copy(&packaging.join("debian/copyright"), &documents.join("copyright"))?;
    for file in files(&packaging.join("examples"))? {
        copy(&file, &documents.join("examples").join(file.file_name().unwrap_or_default()))?;
    }
    // The pages link to each other.
    let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(PathBuf::from);
    for name in workspace::files("md")?.into_iter().chain(licences) {
        copy(&workspace::root().join(&name), &documents.join(&name))?;
    }
    Ok(())
}

/// Writes the package's own files; everything else has to be there.
pub(super) fn describe(root: &Path, control: &Control<'_>) -> Result<()> {
    let (from, to) = (workspace::root().join("packaging/debian"), root.join("DEBIAN"));
    let size = Cmd::new(&tools::DU).args(["-sk"]).args([root]).capture()?;
    let text = read(&from.join("control"))?
        .replace("@VERSION@", control.version)
        .replace("@ARCHITECTURE@", control.architecture)
        .replace("@SIZE@", size.split_whitespace().next().unwrap_or("0"))
        .replace("@DEPENDS@", control.depends);
    let sums = Cmd::new(&tools::SH)
        .args(["-c", "cd \"$0\" && find usr -type f -exec md5sum {} +"])
        .args([root])
        .capture()?;
    write(&to.join("md5sums"), &sums)?;
    write(&to.join("control"), &text)?;
    // So that dpkg keeps what the operator has changed, and asks at an upgrade.
    write(&to.join("conffiles"), &format!("/{CONFIG}\n"))?;
    for script in SCRIPTS {
        let path = to.join(script);
        copy(&from.join(script), &path)?;
        allow(&path, 0o755)?;
    }
    Ok(())
}

/// The unit for a systemd that does not know `Type=notify-reload`.
fn for_debian_12(unit: &str) -> Result<String> {
    let mut text = unit.to_owned();
    for (newer, older) in RELOAD {
        // A unit that was reworded would be shipped as it is, and systemd 252 refuses its type.
        ensure!(text.contains(newer), "the unit has no `{}`", newer.trim());
        text = text.replacen(newer, older, 1);
    }
    // The same daemon that it starts.
    let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=")?.strip_suffix(" run"));
    let start = start.context("the unit does not start with `limiter run`")?.to_owned();
    Ok(text.replacen("@LIMITER@", &start, 1))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    let written = path.parent().map_or(Ok(()), fs::create_dir_all);
    written
        .and_then(|()| fs::write(path, text))
        .with_context(|| format!("cannot write {}", path.display()))?;
    // Whatever the umask of who builds: a unit or a page that only root can read is no use.
    allow(path, 0o644)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    write(to, &read(from)?)
}

fn allow(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory);
    let entries = entries.with_context(|| format!("cannot read {}", directory.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_fit_for_debian_12() {
        for (unit, reload) in
            UNITS.into_iter().zip(["limiter reload", "limiter --instance %i reload"])
        {
            let text = read(&workspace::root().join("packaging").join(unit)).unwrap();
            let older = for_debian_12(&text).unwrap();
            assert!(!older.contains("notify-reload") && !older.contains("@LIMITER@"), "{older}");
            let wanted = format!("\nType=notify\nExecReload=/usr/bin/{reload}\n");
            assert!(older.contains(&wanted), "{older}");
            assert!(for_debian_12(&older).is_err(), "what is replaced must be there");
        }
    }

    #[test]
    fn instances_are_hardened_alike() {
        let [one, each] = UNITS.map(|unit| {
            let text = read(&workspace::root().join("packaging").join(unit)).unwrap();
            let settings = text.lines().filter(|line| !line.starts_with('#') && line.contains('='));
            settings.map(str::to_owned).collect::<Vec<_>>()
        });
        // All else says where things are.
        let own = ["Description", "ExecStart", "RuntimeDirectory", "StateDirectory", "AssertPath"];
        let in_both = |line: &&String| !own.iter().any(|key| line.starts_with(key));
        let shared = |unit: &[String]| unit.iter().filter(in_both).cloned().collect::<Vec<_>>();
        assert_eq!(shared(&one), shared(&each));
        assert!(shared(&one).len() > 30, "{one:?}");
        for setting in ["RuntimeDirectory=limiter/%i", "StateDirectory=limiter/%i"] {
            assert!(each.iter().any(|line| line == setting), "{each:?}");
        }
        assert!(
            one.iter().any(|line| line == "RuntimeDirectoryPreserve=yes"),
            "sockets of instances"
        );
    }

    #[test]
    fn no_filter_comes_between_the_hosts_of_a_cluster() {
        for unit in UNITS {
            let text = read(&workspace::root().join("packaging").join(unit)).unwrap();
            let settings: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
            // What is filtered here is the whole cgroup's, and its peers are only in the configuration.
            for filter in
                ["IPAddressDeny", "IPIngressFilterPath", "IPEgressFilterPath", "SocketBindDeny"]
            {
                assert!(!settings.iter().any(|line| line.starts_with(filter)), "{unit}: {filter}");
            }
            for needed in ["AF_INET ", "AF_INET6", "AF_NETLINK"] {
                let families =
                    settings.iter().find(|it| it.starts_with("RestrictAddressFamilies="));
                assert!(families.is_some_and(|it| it.contains(needed)), "{unit}: {needed}");
            }
            // Before anything configures the network, and with nothing that would wait for it.
            assert!(settings.contains(&"Before=network-pre.target"), "{unit}");
            let waits = |line: &&&str| line.starts_with("After=") && line.contains("network");
            assert_eq!(settings.iter().find(waits), None, "{unit}");
        }
    }

    #[test]
    fn the_control_file_has_every_field() {
        let text = read(&workspace::root().join("packaging/debian/control")).unwrap();
        for field in ["@VERSION@", "@ARCHITECTURE@", "@SIZE@", "@DEPENDS@"] {
            assert!(text.contains(field), "{field}");
        }
        for script in SCRIPTS {
            let text = read(&workspace::root().join("packaging/debian").join(script)).unwrap();
            assert!(text.starts_with("#!/bin/sh\nset -e\n"), "{script}");
        }
    }
}
