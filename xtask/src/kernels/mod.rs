//! `kernels`: the limiter in guests with other kernels and other numbers of CPUs than this machine has.
//!
//! All guests have one root, of the oldest Debian that is served; only the kernel differs.

mod plan;
mod rows;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use plan::{Boot, Kernel, REFUSED, SCENARIOS};
use serde_json::{Value, json};
use tools::Need;

use crate::{
    build,
    guest::{Guest, Image, Machine, PANIC, Spec},
    progress::{say, span},
    setup,
};

/// Packages with the newest kernel: since 7.0 its files are in two.
const NEWEST: [&str; 2] =
    [r"linux-binary-7\.[^-]*-cloud-amd64", r"linux-modules-7\.[^-]*-cloud-amd64"];
const IMAGE: Spec<'static> = Spec {
    name: "kernels",
    suite: "bookworm",
    kernel: "linux-image-cloud-amd64",
    packages: &["iproute2", "nftables", "ppp", "wireguard-tools"],
    kernels: &[
        r"linux-image-5\.10\.[^-]*-[0-9]*-cloud-amd64",
        r"linux-image-6\.12\.[^-]*-cloud-amd64",
        r"linux-image-6\.12\.[^-]*-rt-amd64",
        r"linux-image-6\.18\.[^-]*-cloud-amd64",
        NEWEST[0],
        NEWEST[1],
    ],
    kernel_suites: &["bullseye", "trixie", "trixie-backports"],
    disk_mib: 2048,
};
/// With the oldest and the newest kernel alone: it is made in a third of the time.
const REDUCED: Spec<'static> = Spec {
    name: "kernels-reduced",
    packages: &["iproute2", "nftables"],
    kernels: &NEWEST,
    kernel_suites: &["trixie-backports"],
    disk_mib: 1024,
    ..IMAGE
};
/// The programs that go into each guest.
const PROGRAMS: [&str; 2] = ["limiter", "kernels"];
/// How long all scenarios of a machine may take.
const TIMEOUT: Duration = Duration::from_secs(400);
/// How often a machine whose kernel panicked gets another chance.
// Emulated, a CPU may still run the breakpoint that another one has just patched away where XDP programs are called
// (`int3` at bpf_dispatcher_xdp_func). With 16 CPUs about every second machine does when the daemon starts again.
const MORE_TRIES: u32 = 5;
/// How long a daemon in an emulated machine may take to start, seconds.
const START: u32 = 240;

/// Arguments of `cargo xtask kernels`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only the oldest and the newest kernel, with 8 CPUs: 3 minutes instead of 40
    #[arg(long)]
    reduced: bool,
    /// Only kernels whose release begins so, as `6.1.`
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    /// Only machines with so many CPUs
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
}

/// Boots every machine of the plan; a failure if a row is outside the bounds.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    let begin = Instant::now();
    let mut boots = if args.reduced { plan::reduced() } else { plan::full() };
    boots.retain(|boot| {
        let is_kernel = |kernel: &String| boot.kernel.release.starts_with(kernel);
        args.kernel.as_ref().is_none_or(is_kernel) && args.cpus.is_none_or(|cpus| boot.cpus == cpus)
    });
    // Before anything is built.
    ensure!(
        !boots.is_empty(),
        "no machine of the plan has that kernel and so many CPUs: see `--help`"
    );
    setup::ensure(&[Need::Kernel, Need::Charts, Need::Dist, Need::Guest])?;
    let folder = build::for_guests(&PROGRAMS)?;
    let image = Image::make(if args.reduced { &REDUCED } else { &IMAGE })?;
    say(format_args!("programs and image: {}", span(begin.elapsed())));
    // A package that has gone is better told at the start than after half an hour.
    boots.iter().try_for_each(|boot| release(&image, boot.kernel).map(drop))?;
    println!("{}", rows::HEADER);
    let mut rows = Vec::new();
    if !args.reduced && args.kernel.is_none() && args.cpus.is_none() {
        let row = refuse(&image, &folder)?;
        print(std::slice::from_ref(&row));
        say(format_args!("{}: {}", rows::name(&row), row["error"].as_str().unwrap_or_default()));
        rows.push(row);
    }
    for (number, boot) in boots.iter().enumerate() {
        let begin = Instant::now();
        let found = measure(&image, &folder, boot)?;
        let name = found.first().map(rows::name).unwrap_or_default();
        let (number, all) = (number + 1, boots.len());
        say(format_args!("{number}/{all} {name}, …: {}", span(begin.elapsed())));
        print(&found);
        rows.extend(found);
    }
    if let Some(path) = &args.json {
        let text = format!("{:#}\n", json!({ "kernels": rows }));
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let outside = rows.iter().filter(|row| rows::complaint(row).is_some()).count();
    say(format_args!(
        "{} rows in {}, {outside} outside the bounds",
        rows.len(),
        span(begin.elapsed())
    ));
    Ok(if outside == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the rows, and what is wrong with them.
fn print(rows: &[Value]) {
    print!("{}", rows::table(rows));
    for row in rows {
        if let Some(complaint) = rows::complaint(row) {
            say(format_args!("{}: {complaint}", rows::name(row)));
        }
    }
}

/// Boots a machine, and tries everything in it. Does so again where its kernel panics.
fn measure(image: &Image, programs: &Path, boot: &Boot) -> Result<Vec<Value>> {
    let release = release(image, boot.kernel)?;
    let mut panics = 0;
    loop {
        // A machine that does not boot is a result, too, and the others go on.
        let text = flood(image, programs, boot, &release);
        let text = text.unwrap_or_else(|error| format!("{error:#}"));
        if panics == MORE_TRIES || !text.contains(PANIC) {
            return Ok(rows::rows(boot, &release, &text));
        }
        panics += 1;
        say(format_args!("{release} with {} CPU(s) has panicked: once more", boot.cpus));
    }
}

/// What the program prints in the guest.
fn flood(image: &Image, programs: &Path, boot: &Boot, release: &str) -> Result<String> {
    let mut guest = start(image, programs, release, boot.cpus)?;
    guest.check(&format!("echo {} >/proc/sys/net/core/bpf_jit_enable", u8::from(boot.jit)))?;
    let links: String = boot.links().iter().map(|link| format!(" --link {link}")).collect();
    let script = format!(
        "cd /root && LIMITER_TEST_TIMEOUT={START} ./kernels --table {}{links} {}",
        boot.table,
        SCENARIOS.join(" ")
    );
    Ok(guest.run_with(&script, &[], TIMEOUT)?.text)
}

/// Starts the daemon where it cannot work.
fn refuse(image: &Image, programs: &Path) -> Result<Value> {
    let (release, cpus) = (release(image, REFUSED)?, 1);
    let mut guest = start(image, programs, &release, cpus)?;
    let output = guest.run("/root/limiter run --interface lo")?;
    Ok(rows::refusal(&release, cpus, output.status, &output.text))
}

fn start(image: &Image, programs: &Path, release: &str, cpus: u32) -> Result<Guest> {
    let machine = Machine {
        name: "kernels",
        release: Some(release),
        cpus,
        memory_mib: 1024,
        cards: &[],
        keeps_disk: false,
    };
    let mut guest = Guest::start(image, &machine)?;
    guest.wait_for_boot()?;
    for program in PROGRAMS {
        guest.copy_in(&programs.join(program), &format!("/root/{program}"))?;
    }
    guest.check("chmod +x /root/limiter /root/kernels")?;
    Ok(guest)
}

/// The release in the image that a kernel of the plan has.
fn release(image: &Image, kernel: Kernel) -> Result<String> {
    let found = image.releases()?.into_iter().find(|release| kernel.is(release));
    found.with_context(|| format!("the image has no kernel {}", kernel.release))
}
