//! bpf-linker, whose LLVM has to be the nightly compiler's.

use std::{
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::{
    item::{Item, Remedy, cargo_install},
    toolchain,
};
use crate::run::Cmd;

/// The crate, and its program.
pub(super) const NAME: &str = "bpf-linker";
/// The LLVM major versions it has a `rust-llvm-N` feature for.
const LLVM: RangeInclusive<u32> = 20..=22;
/// Links to a few bytes of BPF; any library would do.
const PROBE: &str = "#![no_std]\n#[unsafe(no_mangle)]\n\
                     pub extern \"C\" fn probe(x: u32) -> u32 { x.wrapping_mul(3) }\n";

/// The bpf-linker that fits the nightly.
pub(super) fn item() -> Item {
    let advice = toolchain::nightly().and_then(|rustc| install(rustc.llvm));
    let advice = advice.map_or_else(
        |error| format!("{NAME}, once there is a nightly it fits: {error:#}"),
        |cmd| cmd.to_string(),
    );
    let remedy = Remedy::command(advice, |log| install(toolchain::nightly()?.llvm)?.log(log));
    Item::new(NAME, Duration::from_secs(70), remedy, || check(toolchain::nightly()?.llvm))
}

/// The last version that can use rustc's own LLVM, so that none has to be on the system.
fn version() -> &'static str {
    tools::BPF_LINKER.least.unwrap_or_default()
}

fn install(llvm: u32) -> Result<Cmd> {
    ensure!(
        LLVM.contains(&llvm),
        "{NAME} {} knows LLVM {} to {} and nightly has {llvm}: install a {NAME} linked to \
         the system's LLVM {llvm} (Debian packages llvm-{llvm}-dev and libpolly-{llvm}-dev, then \
         `cargo install {NAME} --no-default-features --features llvm-{llvm}`)",
        version(),
        LLVM.start(),
        LLVM.end(),
    );
    // An LLVM reads the bitcode of its own version and of older ones alone.
    let feature = format!("rust-llvm-{llvm}");
    Ok(cargo_install(NAME, version()).args(["--no-default-features", "--features", &feature]))
}

/// Version, recorded LLVM and, because only this is proof, a link with the nightly's bitcode.
fn check(llvm: u32) -> Result<String> {
    tools::BPF_LINKER.check().map_err(|why| anyhow!(why))?;
    let path = tools::BPF_LINKER.find().context("is not in PATH")?;
    let shown = path.display();
    // First what cargo noted, as it says which LLVM is wrong; a failed link would not.
    if let Some(built) = recorded_features(&path).and_then(|features| llvm_of(&features))
        && built != llvm
    {
        bail!("{shown} was built for LLVM {built} and nightly has {llvm}");
    }
    try_link(&path).with_context(|| format!("{shown} cannot link what nightly compiles"))?;
    Ok(format!("{shown}, links LLVM {llvm} bitcode"))
}

/// The features `cargo install` recorded for the binary at `path`, if it came from there.
fn recorded_features(path: &Path) -> Option<Vec<String>> {
    let root = path.parent().filter(|bin| bin.ends_with("bin"))?.parent()?;
    parse_crates2(&fs::read_to_string(root.join(".crates2.json")).ok()?)
}

fn parse_crates2(text: &str) -> Option<Vec<String>> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let (_, install) = json["installs"]
        .as_object()?
        .iter()
        .find(|(key, _)| key.split(' ').next() == Some(NAME))?;
    let features = install["features"].as_array()?;
    Some(features.iter().filter_map(|feature| feature.as_str().map(str::to_owned)).collect())
}

/// The LLVM major version that features name; none if they do not say or name several.
fn llvm_of(features: &[String]) -> Option<u32> {
    let mut majors = features
        .iter()
        .filter_map(|name| name.strip_prefix("rust-").unwrap_or(name).strip_prefix("llvm-"))
        .filter_map(|major| major.parse().ok());
    let first = majors.next()?;
    majors.all(|major| major == first).then_some(first)
}

fn try_link(linker: &Path) -> Result<()> {
    let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
    let file = |name: &str| -> PathBuf { dir.path().join(name) };
    let (source, bitcode, object) = (file("probe.rs"), file("probe.bc"), file("probe.o"));
    fs::write(&source, PROBE).with_context(|| format!("cannot write {}", source.display()))?;
    // Compiled for this machine, as `core` is there for it, and turned to BPF by the linker.
    Cmd::nightly(["rustc", "--crate-type=lib", "--emit=llvm-bc", "-Copt-level=2", "-o"])
        .args([&bitcode, &source])
        .capture()?;
    Cmd::nightly([linker])
        .args(["--target", "bpfel", "-o"])
        .args([&object, &bitcode])
        .env("RUST_BACKTRACE", "0")
        .capture()?;
    let bytes = fs::read(&object).with_context(|| format!("cannot read {}", object.display()))?;
    ensure!(is_bpf_object(&bytes), "its output is not a BPF object");
    Ok(())
}

/// Whether `bytes` are a little-endian ELF file for the machine `EM_BPF`.
fn is_bpf_object(bytes: &[u8]) -> bool {
    const EM_BPF: [u8; 2] = 247_u16.to_le_bytes();
    bytes.starts_with(b"\x7fELF") && bytes.get(18..20) == Some(EM_BPF.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(features: &[&str]) -> Vec<String> {
        features.iter().map(|&feature| feature.to_owned()).collect()
    }

    #[test]
    fn reads_the_record_of_cargo_install() {
        let text = r#"{"installs":{
            "bpf-linker-extra 1.0.0 (registry+x)":{"features":["llvm-19"],"bins":["other"]},
            "bpf-linker 0.10.4 (registry+x)":{"features":["rust-llvm-22"],"bins":["bpf-linker"]}}}"#;
        assert_eq!(parse_crates2(text), Some(names(&["rust-llvm-22"])));
        for text in ["", "[]", "{}", r#"{"installs":{}}"#, r#"{"installs":{"bpf-linker 1":{}}}"#] {
            assert_eq!(parse_crates2(text), None, "{text}");
        }
    }

    #[test]
    fn features_tell_the_llvm_unless_they_are_silent() {
        assert_eq!(llvm_of(&names(&["rust-llvm-22"])), Some(22));
        assert_eq!(llvm_of(&names(&["llvm-21", "llvm-link-static"])), Some(21));
        assert_eq!(llvm_of(&names(&["llvm-21", "rust-llvm-22"])), None);
        assert_eq!(llvm_of(&names(&["default"])), None);
        assert_eq!(llvm_of(&[]), None);
    }

    #[test]
    fn an_unknown_llvm_is_refused_with_advice() {
        let command = install(22).unwrap().to_string();
        assert!(command.contains(" bpf-linker@0.10.4 "), "{command}");
        assert!(command.ends_with(" --features rust-llvm-22"), "{command}");
        for llvm in [19, 23] {
            let advice = install(llvm).unwrap_err().to_string();
            assert!(advice.contains(&format!("llvm-{llvm}")), "{advice}");
        }
    }

    #[test]
    fn only_bpf_objects_pass() {
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(18, 0);
        assert!(!is_bpf_object(&elf));
        elf.extend(247_u16.to_le_bytes());
        assert!(is_bpf_object(&elf));
        elf[18] = 62;
        assert!(!is_bpf_object(&elf));
    }
}
