//! How much there is to read: production lines by crate.
//!
//! A line counts unless it is blank, a comment, or belongs to tests: folders and files called so, and
//! modules under `cfg(test)` at the end of a file.

use std::fs;
use std::path::{Path, PathBuf};

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
        let lines: usize =
            production(&folder.join("src"))?.iter().map(|(_, text)| count(text)).sum();
        println!("{lines:>7} {name}");
        sum += lines;
    }
    println!("{sum:>7} in all");
    Ok(())
}

/// The files of a folder by their paths in it, each as far as it is production.
pub(crate) fn production(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()));
    for entry in entries? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            let below = production(&path)?.into_iter();
            files.extend(below.map(|(file, text)| (Path::new(&name).join(file), text)));
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            let text = fs::read_to_string(&path);
            let mut text = text.with_context(|| format!("cannot read {}", path.display()))?;
            text.truncate(text.find(TESTS).unwrap_or(text.len()));
            files.push((name.into(), text));
        }
    }
    Ok(files)
}

/// How the tests at the end of a file begin.
// By text, not by a parser: it has to do for this tree alone, where rustfmt sees to the form.
const TESTS: &str = "#[cfg(test)]\nmod tests {";

fn count(text: &str) -> usize {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blanks_and_tests_do_not_count() {
        let text = "//! What.\n\nuse a;\n/// How.\nfn f() {\n    // Why.\n    g(); // so\n}\n\n";
        let folder = tempfile::tempdir().unwrap();
        let tests = format!("{text}{TESTS}\n    use super::*;\n}}\n");
        fs::create_dir_all(folder.path().join("a/tests")).unwrap();
        for (file, text) in
            [("a/mod.rs", tests.as_str()), ("tests.rs", text), ("a/tests/b.rs", text)]
        {
            fs::write(folder.path().join(file), text).unwrap();
        }
        let files = production(folder.path()).unwrap();
        assert_eq!(files, [("a/mod.rs".into(), text.to_owned())]);
        assert_eq!(count(&files[0].1), 4);
    }
}
