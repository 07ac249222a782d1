//! Disk images of a Debian suite, made once and kept until what they are made from changes.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{run::Cmd, workspace};

/// What every guest has besides its own packages.
// Named, as the minimal variant has no first process and makes no initial RAM disk.
const PACKAGES: [&str; 5] = ["systemd-sysv", "udev", "dbus", "kmod", "initramfs-tools"];

/// Files of every guest: where, and what.
const FILES: [(&str, &str); 5] = [
    ("usr/local/lib/agent.sh", include_str!("agent.sh")),
    ("etc/systemd/system/agent.service", include_str!("agent.service")),
    ("etc/fstab", "/dev/vda / ext4 defaults 0 0\n"),
    // Only what it takes to mount the disk: a small one is unpacked sooner.
    ("etc/initramfs-tools/conf.d/guest", "MODULES=list\n"),
    ("usr/share/initramfs-tools/modules.d/guest", "virtio_pci\nvirtio_blk\next4\n"),
];

/// Units that only take time where nobody logs in and nothing lasts.
const MASKED: [&str; 11] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "man-db.timer",
    "modprobe@dm_mod.service",
    "modprobe@efi_pstore.service",
    "modprobe@loop.service",
];

/// Adds kernels to a root.
const KERNELS: &str = include_str!("kernels.sh");

/// What an image is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec<'a> {
    /// Its name in the cache.
    pub(crate) name: &'a str,
    /// The Debian suite: it decides which kernel the package `kernel` is.
    pub(crate) suite: &'a str,
    /// The package with the kernel.
    pub(crate) kernel: &'a str,
    /// Packages besides the minimal variant and systemd.
    pub(crate) packages: &'a [&'a str],
    /// More kernels, of any suite: patterns of the names of their packages.
    pub(crate) kernels: &'a [&'a str],
    /// The suites that these are in. Nothing else comes from there.
    pub(crate) kernel_suites: &'a [&'a str],
    /// Size of the disk, MiB; what is not written takes no space.
    pub(crate) disk_mib: u32,
}

/// A disk that guests copy, and the kernel and initial RAM disk to boot it with.
#[derive(Debug)]
pub(crate) struct Image {
    folder: PathBuf,
}

impl Image {
    /// The image of `spec`, made if it is not in the cache.
    pub(crate) fn make(spec: &Spec<'_>) -> Result<Self> {
        let cache = workspace::target_dir()?.join("guest/images");
        let folder = cache.join(spec.name);
        fs::create_dir_all(&cache).context("cannot make the folder of images")?;
        let lock = cache.join(format!("{}.lock", spec.name));
        let lock =
            File::create(&lock).with_context(|| format!("cannot make {}", lock.display()))?;
        // Tests that run side by side want the same image.
        lock.lock().context("cannot wait for who makes the same image")?;
        let image = Self { folder };
        let (key, kept) = (key(spec), image.folder.join("inputs"));
        if fs::read_to_string(&kept).is_ok_and(|kept| kept == key) {
            return Ok(image);
        }
        image.build(spec)?;
        // Last: what was interrupted is made again.
        fs::write(&kept, key).with_context(|| format!("cannot write {}", kept.display()))?;
        Ok(image)
    }

    /// The disk, a raw ext4 file system.
    pub(super) fn disk(&self) -> PathBuf {
        self.folder.join("disk")
    }

    /// The suite's own kernel, or that of another release.
    pub(super) fn kernel(&self, release: Option<&str>) -> PathBuf {
        self.boot("vmlinuz", release)
    }

    pub(super) fn initrd(&self, release: Option<&str>) -> PathBuf {
        self.boot("initrd.img", release)
    }

    fn boot(&self, name: &str, release: Option<&str>) -> PathBuf {
        self.folder.join(release.map_or_else(|| name.to_owned(), |it| format!("{name}-{it}")))
    }

    /// The releases of all kernels in the image.
    pub(crate) fn releases(&self) -> Result<Vec<String>> {
        let mut releases = Vec::new();
        for entry in fs::read_dir(&self.folder).context("cannot read the image's folder")? {
            let name = entry?.file_name();
            let release = name.to_str().and_then(|name| name.strip_prefix("vmlinuz-"));
            releases.extend(release.map(str::to_owned));
        }
        releases.sort();
        Ok(releases)
    }

    /// Packages come by the host's own apt configuration, now: guests reach no network.
    fn build(&self, spec: &Spec<'_>) -> Result<()> {
        let (root, files) = (self.folder.join("root"), self.folder.join("files"));
        remove(&self.folder)?;
        fs::create_dir_all(&files).context("cannot make the image's folder")?;
        let mut mmdebstrap =
            // A directory, from which mke2fs fills the disk without mounting it.
            Cmd::new(&tools::MMDEBSTRAP).args(["--variant=minbase", "--format=directory"]);
        mmdebstrap = mmdebstrap.args([format!("--include={}", include(spec))]);
        for (number, (to, text)) in FILES.iter().enumerate() {
            let from = files.join(number.to_string());
            fs::write(&from, text).context("cannot write the image's files")?;
            let parent = Path::new(to).parent().unwrap_or(Path::new(""));
            mmdebstrap = mmdebstrap.args([
                format!("--essential-hook=mkdir -p \"$1/{}\"", parent.display()),
                format!("--essential-hook=upload '{}' '/{to}'", from.display()),
            ]);
        }
        if !spec.kernels.is_empty() {
            let script = files.join("kernels.sh");
            fs::write(&script, KERNELS).context("cannot write the image's files")?;
            mmdebstrap = mmdebstrap
                .args([format!("--aptopt=APT::Default-Release \"{}\"", spec.suite)])
                .args(spec.kernel_suites.iter().map(|suite| add_suite(spec.suite, suite)))
                .args([format!(
                    "--customize-hook=sh '{}' \"$1\" '{}'",
                    script.display(),
                    spec.kernels.join("' '")
                )]);
        }
        mmdebstrap
            .args(["--customize-hook=chroot \"$1\" systemctl --quiet enable agent.service"])
            .args([format!(
                "--customize-hook=chroot \"$1\" systemctl --quiet mask {}",
                MASKED.join(" ")
            )])
            .args([spec.suite.as_ref(), root.as_os_str()])
            .into_root()?
            .run()?;
        let mut boot = vec![root.join("vmlinuz"), root.join("initrd.img")];
        if !spec.kernels.is_empty() {
            let files = fs::read_dir(root.join("boot")).context("cannot read the root's /boot")?;
            let files = files.collect::<std::io::Result<Vec<_>>>()?.into_iter();
            boot.extend(files.map(|file| file.path()).filter(|path| is_boot_file(path)));
        }
        Cmd::new(&tools::CP)
            .args(["--dereference"])
            // They are links in the root, and the root goes.
            .args(&boot)
            .args([&self.folder])
            .into_root()?
            .run()?;
        Cmd::new(&tools::MKE2FS)
            .args(["-q", "-t", "ext4", "-d"])
            .args([root.as_os_str(), self.disk().as_os_str()])
            .args([format!("{}M", spec.disk_mib)])
            .into_root()?
            .run()?;
        remove(&root)?;
        // Who is not root has to read them.
        Cmd::new(&tools::CHMOD).args(["-R", "a+rX"]).args([&self.folder]).into_root()?.run()
    }
}

/// A kernel or an initial RAM disk, by the name that Debian gives it.
fn is_boot_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with("vmlinuz-") || name.starts_with("initrd.img-")
}

/// An option that adds a suite, of the same mirror as the image's own, whichever that is.
fn add_suite(own: &str, other: &str) -> String {
    let list = "\"$1/etc/apt/sources.list\"";
    format!("--setup-hook=sed -n 's/ {own} / {other} /p' {list} >>{list}")
}

fn remove(folder: &Path) -> Result<()> {
    Cmd::new(&tools::RM).args(["--recursive", "--force"]).args([folder]).into_root()?.run()
}

fn include(spec: &Spec<'_>) -> String {
    let own = [spec.kernel].into_iter().chain(spec.packages.iter().copied());
    PACKAGES.into_iter().chain(own).collect::<Vec<_>>().join(",")
}

/// Everything that an image depends on.
fn key(spec: &Spec<'_>) -> String {
    // The script only where it runs: it changes no other image.
    let script = if spec.kernels.is_empty() { "" } else { KERNELS };
    format!("{spec:?}\n{}\n{MASKED:?}\n{FILES:?}\n{script}", include(spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_another_one_if_its_inputs_are() {
        let spec = Spec {
            name: "a",
            suite: "s",
            kernel: "k",
            packages: &["p"],
            kernels: &[],
            kernel_suites: &[],
            disk_mib: 1,
        };
        assert_eq!(key(&spec), key(&spec.clone()));
        for other in [
            Spec { suite: "t", ..spec },
            Spec { kernel: "l", ..spec },
            Spec { packages: &["p", "q"], ..spec },
            Spec { disk_mib: 2, ..spec },
            Spec { kernels: &["m"], ..spec },
        ] {
            assert_ne!(key(&spec), key(&other));
        }
        assert!(key(&spec).contains("echo ready"), "the agent is an input, too");
        assert_eq!(include(&spec), "systemd-sysv,udev,dbus,kmod,initramfs-tools,k,p");
    }
}
