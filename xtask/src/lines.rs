//! How much there is to read: production lines by crate.
//!
//! A line counts unless it is blank, a comment, or belongs to tests: folders and files called so, and
//! modules under `cfg(test)` at the end of a file.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::workspace;

/// Prints the production lines of each crate, and their sum.
pub(crate) fn print() -> Result<()> {
    let mut sum = 0;
    for (name, folder) in workspace::packages()? {
        // A test harness is no product.
        if folder.starts_with(workspace::root().join("tests")) {
            continue;
        }
        let lines = of_folder(&folder.join("src"))?;
        println!("{lines:>7} {name}");
        sum += lines;
    }
    println!("{sum:>7} in all");
    Ok(())
}

fn of_folder(folder: &Path) -> Result<usize> {
    let mut sum = 0;
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()));
    for entry in entries? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            sum += if name == "tests" { 0 } else { of_folder(&path)? };
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            let text = fs::read_to_string(&path);
            sum += of_text(&text.with_context(|| format!("cannot read {}", path.display()))?);
        }
    }
    Ok(sum)
}

fn of_text(text: &str) -> usize {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blanks_and_tests_do_not_count() {
        let text = "//! What.\n\nuse a;\n/// How.\nfn f() {\n    // Why.\n    g(); // so\n}\n\n\
                    #[cfg(test)]\nmod tests {\n    use super::*;\n}\n";
        assert_eq!(of_text(text), 4);
    }
}
