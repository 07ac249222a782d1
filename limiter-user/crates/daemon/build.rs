//! Embeds what the dashboard draws its charts with, which `cargo xtask build` fetches, or leaves it out
//! where it is not there: a page without it says so. `LIMITER_ASSETS` tells which of the two it has to be.

use std::env;
use std::path::Path;

const ASSETS: &str = "LIMITER_ASSETS";

#[expect(dead_code, unreachable_pub, reason = "xtask includes the same file")]
mod assets {
    include!("assets.rs");
}

/// Puts what the dashboard draws its charts with beside the artefacts, to be embedded.
fn embed_assets(root: &Path) -> anyhow::Result<()> {
    println!("cargo::rustc-check-cfg=cfg(chart_library)");
    println!("cargo::rerun-if-env-changed={ASSETS}");
    println!("cargo::rerun-if-changed=assets.rs");
    let folder = format!("{}-{}", assets::PACKAGE, assets::VERSION);
    let folder = root.join("target/assets").join(folder);
    // Of what is not there, cargo would think that it has changed each time.
    if folder.exists() {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    let there = assets::FILES.iter().all(|(file, _)| folder.join(file).is_file());
    match env::var(ASSETS).as_deref() {
        Ok("require") if !there => {
            anyhow::bail!("no {}: run `cargo xtask setup`", folder.display());
        }
        Ok("skip") => return Ok(()),
        _ if !there => {
            println!("cargo::warning=built without charts: run `cargo xtask build`");
            return Ok(());
        }
        _ => {}
    }
    let out = env::var("OUT_DIR")?;
    for (file, name) in assets::FILES {
        std::fs::copy(folder.join(file), Path::new(&out).join(name))?;
    }
    println!("cargo::rustc-cfg=chart_library");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let root = env::var("CARGO_MANIFEST_DIR")?;
    embed_assets(Path::new(&root).ancestors().nth(3).unwrap_or(Path::new(".")))
}
