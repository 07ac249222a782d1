//! A bare Debian root, and commands in it.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{progress::Step, run::Cmd, setup, workspace};

/// Where the tree lies in the root.
const TREE: &str = "root/limiter";

/// Programs that rustup stands in for.
const PROXIES: [&str; 7] =
    ["cargo", "rustc", "rustdoc", "rustfmt", "cargo-fmt", "cargo-clippy", "clippy-driver"];

/// Files that say where packages come from, and who may be trusted for them; those in a home begin
/// with `~`.
const SETTINGS: [&str; 12] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/npmrc",
    "/usr/local/share/ca-certificates",
    "~/.cargo/config",
    "~/.cargo/config.toml",
    "~/.cargo/credentials.toml",
    "~/.config/pip/pip.conf",
    "~/.pip/pip.conf",
    "~/.npmrc",
    "~/.curlrc",
];

/// How the names of variables begin that do the same, in lower case.
const VARIABLES: [&str; 16] = [
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "cargo_http_",
    "cargo_net_",
    "cargo_registr",
    "cargo_source_",
    "rustup_dist_server",
    "rustup_update_root",
    "pip_",
    "npm_config_",
    "node_extra_ca_certs",
    "ssl_cert_",
    "curl_ca_bundle",
    "requests_ca_bundle",
];

/// Gives `$1` the file systems of a machine of its own, the toolchains in `$2` (what is written there
/// goes to `$3`), and runs the rest in it. The root is a mount, as `ip netns` wants it to be, and the bpffs is
/// a new one, since pins are no part of a network namespace.
const ENTER: &str = r#"set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount -t sysfs sysfs "$1/sys"
mount -t bpf bpf "$1/sys/fs/bpf"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/run"
mount -t overlay -o "lowerdir=$2,upperdir=$3/upper,workdir=$3/work" overlay "$1/root/.rustup"
root=$1
shift 3
exec chroot "$root" "$@"
"#;

/// A root below `target/fresh`.
pub(super) struct Root<'a> {
    suite: &'a str,
}

impl<'a> Root<'a> {
    /// Makes one of Debian's release `suite`, with the tree that is committed; a former one goes.
    pub(super) fn make(suite: &'a str) -> Result<Self> {
        let root = Self { suite };
        let step = Step::begin(format!("fresh: a bare Debian {suite}"), None);
        let log = step.log("fresh-root")?;
        let base = folder().join(format!("{suite}.tar"));
        let sh = |script: &str| Cmd::new(&tools::SH).args(["-ec", script, "sh"]);
        if !base.exists() {
            // Renamed when it is complete: what was interrupted is never taken for a root.
            let part = base.with_extension("tar.part");
            std::fs::create_dir_all(folder()).context("cannot make target/fresh")?;
            Cmd::new(&tools::MMDEBSTRAP)
                .args(["--variant=minbase", "--format=tar", suite])
                .args([&part])
                .args(mirrors(suite)?)
                .into_root()?
                .log(&log)?;
            sh(r#"mv "$1" "$2""#).args([&part, &base]).into_root()?.log(&log)?;
        }
        root.remove()?;
        let tree = folder().join("tree.tar");
        // What a newcomer clones: files that were never committed must not help.
        Cmd::new(&tools::GIT).args(["archive", "-o"]).args([&tree]).args(["HEAD"]).log(&log)?;
        sh(r#"mkdir -p "$1/root" "$1-rustup/upper" "$1-rustup/work"
            tar -xf "$2" -C "$1/root"
            mkdir -p "$1/root/root/limiter" "$1/root/root/.cargo/bin" "$1/root/root/.rustup"
            tar -xf "$3" -C "$1/root/root/limiter""#)
        .args([&root.place(), &base, &tree])
        .into_root()?
        .log(&log)?;
        let rustup = tools::RUSTUP.find().context("there is no rustup to hand in")?;
        // The file itself: a link would point to where the root has nothing.
        let rustup = rustup.canonicalize().context("cannot find rustup's own file")?;
        sh(r#"cp "$1" "$2/root/.cargo/bin/rustup"
            cd "$2/root/.cargo/bin"; shift 2; for name; do ln -sf rustup "$name"; done"#)
        .args([&rustup, &root.path()])
        .args(PROXIES)
        .into_root()?
        .log(&log)?;
        for (from, to) in settings() {
            sh(r#"mkdir -p "$(dirname "$2")"; cp -aL "$1" "$2""#)
                .args([&from, &root.path().join(to)])
                .into_root()?
                .log(&log)?;
        }
        let apt = Cmd::new(&tools::APT_CONFIG).args(["dump", "Acquire"]).capture()?;
        // Nobody is there to say yes.
        let apt = format!("{apt}APT::Get::Assume-Yes \"true\";\n");
        sh(r#"printf %s "$1" >"$2/etc/apt/apt.conf.d/99fresh""#)
            .args([apt.as_str().as_ref(), root.path().as_os_str()])
            .into_root()?
            .log(&log)?;
        // Without lists apt-get knows no package; a newcomer's machine has them.
        root.run("apt-get update")?.log(&log)?;
        step.done();
        Ok(root)
    }

    /// The one that a failed run has kept.
    pub(super) fn kept(suite: &'a str) -> Result<Self> {
        let root = Self { suite };
        if !root.path().is_dir() {
            bail!("no run in {suite} has failed: there is no {}", root.path().display());
        }
        Ok(root)
    }

    /// A command that runs `line` with a shell in the tree.
    pub(super) fn run(&self, line: &str) -> Result<Cmd> {
        let command = self.command(&["sh", "-c", &format!("cd /{TREE} && {line}")])?;
        // The whole would show what may be in variables: proxies have passwords.
        Ok(command.title(format!("{line} (in {})", self.path().display())))
    }

    /// A command that starts a shell in the tree.
    pub(super) fn enter(&self) -> Result<Cmd> {
        self.command(&["bash", "-c", &format!("cd /{TREE} && exec bash")])
    }

    fn command(&self, arguments: &[&str]) -> Result<Cmd> {
        let rustup = env::var_os("RUSTUP_HOME").map(PathBuf::from);
        let rustup = rustup.or_else(|| Some(env::home_dir()?.join(".rustup")));
        let rustup = rustup.context("neither RUSTUP_HOME nor HOME is set: set one of them")?;
        let mut written = self.place();
        written.as_mut_os_string().push("-rustup");
        let variables = env::vars().filter(|(name, _)| is_handed_in(name));
        Cmd::new(&tools::UNSHARE)
            .args(["--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--"])
            .args([&tools::SH])
            .args(["-c", ENTER, "sh"])
            .args([&self.path(), &rustup, &written])
            // Nothing of the caller's shell, which may be what makes the commands work.
            .args(["env", "-i", "HOME=/root", "LANG=C.UTF-8"])
            .args([format!("TERM={}", env::var("TERM").unwrap_or_default())])
            .args(["PATH=/root/.cargo/bin:/usr/sbin:/usr/bin:/sbin:/bin"])
            .args(variables.map(|(name, value)| format!("{name}={value}")))
            .args(arguments)
            .into_root()
    }

    /// Removes it, if it is there.
    pub(super) fn remove(&self) -> Result<()> {
        // Its mounts have gone with the namespace that they were made in.
        Cmd::new(&tools::SH)
            .args(["-ec", r#"rm -rf "$1" "$1-rustup""#, "sh"])
            .args([self.place()])
            .into_root()?
            .capture()?;
        Ok(())
    }

    fn place(&self) -> PathBuf {
        folder().join(self.suite)
    }

    fn path(&self) -> PathBuf {
        self.place().join("root")
    }
}

fn folder() -> PathBuf {
    workspace::root().join("target/fresh")
}

/// Files of [`SETTINGS`] that are here, and their places in a root.
fn settings() -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let here = SETTINGS.iter().filter_map(|name| match name.strip_prefix("~/") {
        Some(rest) => Some((env::home_dir()?.join(rest), Path::new("root").join(rest))),
        None => Some((PathBuf::from(name), PathBuf::from(name.trim_start_matches('/')))),
    });
    here.filter(|(from, _)| from.exists())
}

fn is_handed_in(variable: &str) -> bool {
    let name = variable.to_lowercase();
    VARIABLES.iter().any(|start| name.starts_with(start))
}

/// Sources of `suite` on the mirrors that this machine's apt uses; none where it has no apt, which
/// leaves the choice to mmdebstrap.
fn mirrors(suite: &str) -> Result<Vec<String>> {
    if tools::APT_GET.find().is_none() {
        return Ok(Vec::new());
    }
    Ok(sources(&setup::repositories()?, suite))
}

fn sources(repositories: &str, suite: &str) -> Vec<String> {
    let mut sources = Vec::new();
    for repository in repositories.lines() {
        let suites = match repository.trim_end_matches('/').rsplit('/').next() {
            Some("debian") => vec![suite.to_owned(), format!("{suite}-updates")],
            Some("debian-security") => vec![format!("{suite}-security")],
            _ => Vec::new(),
        };
        for suite in suites {
            let source = format!("deb {repository} {suite} main");
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_kept_and_releases_changed() {
        let repositories = "http://mirror.example/debian/\nhttp://mirror.example/debian/\n\
                            http://other.example/debian-security/\nhttp://third.example/node\n";
        assert_eq!(
            sources(repositories, "trixie"),
            [
                "deb http://mirror.example/debian/ trixie main",
                "deb http://mirror.example/debian/ trixie-updates main",
                "deb http://other.example/debian-security/ trixie-security main",
            ]
        );
        assert!(sources("", "trixie").is_empty());
    }

    #[test]
    fn only_what_concerns_package_indices_is_handed_in() {
        for name in ["HTTPS_PROXY", "no_proxy", "PIP_INDEX_URL", "npm_config_registry"] {
            assert!(is_handed_in(name), "{name}");
        }
        for name in ["RUSTUP_TOOLCHAIN", "CARGO", "CARGO_TARGET_DIR", "PATH", "CI"] {
            assert!(!is_handed_in(name), "{name}");
        }
    }
}
