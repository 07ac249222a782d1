//! `setup`: what has to be on the machine, from the table of tools, checked and installed where it is
//! missing.
//!
//! Every other command asks for the part it needs, which says nothing of what is there already.

mod apt;
mod assets;
mod bpf_linker;
mod item;
mod peers;
mod python;
mod toolchain;
mod unpacked;

use std::{thread, time::Duration};

use anyhow::{Result, bail};
use tools::Need;

use crate::progress::{Step, say};
pub(crate) use apt::repositories;
use item::{Item, Remedy};
pub(crate) use peers::LIMITS;

/// What building, testing and linting need.
const USUAL: [Need; 6] =
    [Need::Start, Need::Kernel, Need::Charts, Need::Demo, Need::Test, Need::Lint];

/// An item, and why it does not do.
type Missing = (Item, String);

/// `cargo xtask setup`: one line for each item, then what is missing is installed or, with `check`,
/// told.
pub(crate) fn command(check: bool) -> Result<()> {
    let mut missing = Vec::new();
    for item in items(&USUAL) {
        match item.check() {
            Ok(detail) => {
                say(format!("ok       {:<34} {detail}", item.name).trim_end());
            }
            Err(why) => {
                let why = format!("{why:#}");
                say(format_args!("missing  {:<34} {why}", item.name));
                missing.push((item, why));
            }
        }
    }
    if check { told(&missing) } else { install(missing, None) }
}

/// Installs what is missing of what `needs` ask for.
pub(crate) fn ensure(needs: &[Need]) -> Result<()> {
    ensure_all(items(needs), None)
}

/// The same as a part of `step`.
pub(crate) fn ensure_in(step: &Step, needs: &[Need]) -> Result<()> {
    ensure_all(items(needs), Some(step))
}

fn ensure_all(items: impl IntoIterator<Item = Item>, step: Option<&Step>) -> Result<()> {
    let missing = items.into_iter().filter_map(|item| {
        let why = item.check().err()?;
        Some((item, format!("{why:#}")))
    });
    install(missing.collect(), step)
}

/// Everything that `needs` ask for; what another one takes comes before it.
fn items(needs: &[Need]) -> Vec<Item> {
    let mut items: Vec<_> = tools::needed(needs).filter_map(Item::from_tool).collect();
    if needs.contains(&Need::Kernel) {
        items.extend(toolchain::items());
        items.push(bpf_linker::item());
    }
    let (charts, test) = (needs.contains(&Need::Charts), needs.contains(&Need::Test));
    // What comes from the Python index goes into an environment that takes python3 to make.
    let stores = needs.contains(&Need::Stores);
    if test || stores || charts && tools::NPM.check().is_err() {
        items.extend(Item::from_tool(&tools::PYTHON));
    }
    if charts {
        items.push(assets::item());
    }
    if test {
        items.push(peers::item());
    }
    items
}

/// The nightly toolchain with the sources of `core`, without a linker.
pub(crate) fn ensure_nightly() -> Result<()> {
    ensure_all(toolchain::items(), None)
}

/// Whether the library that the dashboard draws its charts with is there.
pub(crate) fn has_charts() -> bool {
    assets::check().is_ok()
}

/// Installs, packages beside all else, and checks again; in a step of its own if `step` is none.
fn install(missing: Vec<Missing>, step: Option<&Step>) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    if let Some(step) = step {
        return told(&install_in(step, missing));
    }
    let names: Vec<_> = missing.iter().map(|(item, _)| item.name.as_str()).collect();
    let expected: Duration = missing.iter().map(|(item, _)| item.expected).sum();
    let step = Step::begin(format!("installing {}", names.join(", ")), Some(expected));
    let missing = install_in(&step, missing);
    step.done();
    told(&missing)
}

/// Installs, and returns what is missing still.
fn install_in(step: &Step, missing: Vec<Missing>) -> Vec<Missing> {
    let (packages, others): (Vec<_>, Vec<_>) =
        missing.into_iter().partition(|(item, _)| matches!(item.remedy, Remedy::Package(_)));
    // What a package is needed for, such as npm and python3, waits for all packages.
    let (late, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|(item, _)| item.is_late);
    let each = |missing: Vec<Missing>| -> Vec<Missing> {
        missing.into_iter().filter_map(|missing| install_one(missing, step)).collect()
    };
    let mut missing = thread::scope(|scope| {
        // apt waits for the network, and cargo for the CPU.
        let packages = scope.spawn(|| install_packages(packages, step));
        let others = each(others);
        let mut missing = packages.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        missing.extend(others);
        missing
    });
    // Afterwards: they are made by programs that the packages bring.
    missing.extend(each(late));
    missing
}

/// Installs packages all at once; returns those that are missing still.
fn install_packages(missing: Vec<Missing>, step: &Step) -> Vec<Missing> {
    let tools: Vec<_> = missing.iter().filter_map(|(item, _)| item.package()).collect();
    if tools.is_empty() {
        return missing;
    }
    let failure = step.log("apt").and_then(|log| apt::install(&tools, &log)).err();
    let still = missing.into_iter().filter_map(|(item, _)| {
        let why = item.check().err()?;
        // One apt-get was for all of them, so its failure says more than what each one lacks.
        Some((item, format!("{:#}", failure.as_ref().unwrap_or(&why))))
    });
    still.collect()
}

/// Installs one item; returns it if it is missing still.
fn install_one((item, why): Missing, step: &Step) -> Option<Missing> {
    let Remedy::Command { install, .. } = &item.remedy else { return Some((item, why)) };
    let log = match step.log(&item.name.replace(' ', "-")) {
        Ok(log) => log,
        Err(error) => return Some((item, format!("{error:#}"))),
    };
    // Checked again: an installation that succeeds may leave another version in front in PATH.
    let error = install(&log).and_then(|()| item.check()).err()?;
    Some((item, format!("{error:#}")))
}

/// An error that names everything in `missing`, with the commands that bring it; the packages share
/// one.
fn told(missing: &[Missing]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let mut text = String::from("missing:");
    // Packages that failed together failed for one reason.
    let mut last = None;
    for (item, why) in missing {
        let repeated = last == Some(why) && why.contains('\n');
        text.push_str(&format!("\n  {}: {}", item.name, if repeated { "the same" } else { why }));
        last = Some(why);
    }
    text.push_str("\ninstall it by hand, then run this again:");
    // One line to copy, at the end: above it lie the thousands of lines that apt and cargo have
    // printed.
    let packages: Vec<_> = missing.iter().filter_map(|(item, _)| item.package()).collect();
    if !packages.is_empty() {
        text.push_str(&format!("\n  {}", apt::advice(&packages)));
    }
    for (item, _) in missing {
        if let Remedy::Command { advice, .. } | Remedy::Hand(advice) = &item.remedy {
            text.push_str(&format!("\n  {advice}"));
        }
    }
    bail!(text)
}

#[cfg(test)]
mod tests {
    use tools::{HPING3, NFT};

    use super::*;

    fn missing(tool: &'static tools::Tool) -> Missing {
        (Item::from_tool(tool).unwrap(), "is not in PATH".to_owned())
    }

    #[test]
    fn one_line_names_all_packages() {
        let text = told(&[missing(&NFT), missing(&HPING3)]).unwrap_err().to_string();
        let lines: Vec<_> = text.lines().filter(|line| line.contains("apt-get install")).collect();
        assert_eq!(lines, ["  apt-get install nftables hping3"], "{text}");
        assert!(text.contains("nft (nftables): is not in PATH"), "{text}");
        assert!(told(&[]).is_ok());
    }

    #[test]
    fn what_fails_alike_is_told_once() {
        let why = "`apt-get` failed\n  for a reason".to_owned();
        let both = [(missing(&NFT).0, why.clone()), (missing(&HPING3).0, why)];
        let text = told(&both).unwrap_err().to_string();
        assert_eq!(text.matches("for a reason").count(), 1, "{text}");
    }
}
