//! Where things lie: the workspace and its build output.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::run::Cmd;

pub(crate) use tools::root;

/// The directory cargo builds into, wherever configuration or environment put it.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let metadata = metadata()?;
    let dir = metadata["target_directory"]
        .as_str()
        .context("cargo metadata names no target_directory")?;
    Ok(PathBuf::from(dir))
}

/// The files of the workspace whose names end with `.` and `extension`, relative to its root; not what was built.
/// A tree that was unpacked has no list of what is tracked.
pub(crate) fn files(extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder);
        for entry in entries.with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type()?.is_dir() {
                // What was built, and the folders of git and of editors.
                if name != "target" && !name.as_encoded_bytes().starts_with(b".") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path.strip_prefix(root()).unwrap_or(&path).to_owned());
            }
        }
    }
    // Folders come in any order: messages and tests need one.
    found.sort();
    Ok(found)
}

pub(crate) fn packages() -> Result<Vec<(String, PathBuf)>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let folder = |package: &serde_json::Value| {
        let manifest = Path::new(package["manifest_path"].as_str()?);
        Some((package["name"].as_str()?.to_owned(), manifest.parent()?.to_owned()))
    };
    Ok(packages.iter().filter_map(folder).collect())
}

fn metadata() -> Result<serde_json::Value> {
    let text = Cmd::cargo(["metadata", "--no-deps", "--format-version=1"]).capture()?;
    serde_json::from_str(&text).context("cargo metadata printed something that is not JSON")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What a crate of the product needs of the others, in the order of their names.
    fn crates(metadata: &serde_json::Value) -> BTreeMap<String, Vec<String>> {
        let name = |it: &serde_json::Value| it["name"].as_str().unwrap().to_owned();
        let packages = metadata["packages"].as_array().unwrap();
        let all: Vec<_> = packages.iter().map(name).collect();
        let needs = |package: &serde_json::Value| {
            let needs = package["dependencies"].as_array().unwrap().iter();
            let needs = needs.filter(|it| it["kind"].is_null()).map(name);
            let mut needs: Vec<_> = needs.filter(|it| all.contains(it)).collect();
            needs.sort();
            needs
        };
        let tools = ["limiter-common", "tests", "tests-ebpf", "tools", "xtask"];
        let product = packages.iter().filter(|it| !tools.contains(&name(it).as_str()));
        product.map(|package| (name(package), needs(package))).collect()
    }

    #[test]
    fn the_drawing_of_the_crates_is_true() {
        let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
        let mut drawn: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (from, to) in page.lines().filter_map(|line| line.split_once(" ──> ")) {
            drawn.insert(from.to_owned(), to.split(", ").map(str::to_owned).collect());
        }
        assert_eq!(drawn, crates(&metadata().unwrap()));
    }

    #[test]
    fn links_of_pages_lead_somewhere() {
        let mut links = 0;
        for page in files("md").unwrap() {
            let page = root().join(page);
            let text = fs::read_to_string(&page).unwrap();
            let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            for target in targets.filter(|target| !target.contains("://")) {
                let path = target.split('#').next().unwrap_or_default();
                let there = page.parent().unwrap().join(path);
                assert!(path.is_empty() || there.exists(), "{}: {target}", page.display());
                links += 1;
            }
        }
        assert!(links > 50, "{links} links");
    }
}
