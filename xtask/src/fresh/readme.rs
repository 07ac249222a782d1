//! What the README tells a newcomer to type.

use anyhow::{Context as _, Result};

use crate::run::Cmd;

/// The text of the README.
pub(super) struct Readme(String);

impl Readme {
    /// The committed one.
    pub(super) fn committed() -> Result<Self> {
        // As the tree in the root: commands and code must be of one commit.
        Ok(Self(Cmd::new(&tools::GIT).args(["show", "HEAD:README.md"]).capture()?))
    }

    /// The line that installs what has to be there before the commands.
    pub(super) fn prerequisites(&self) -> Result<String> {
        self.command("apt-get install")
    }

    /// The first line of a code block that begins with `start`, or with `sudo` before it, as it stands
    /// but for the `sudo` and the comment.
    pub(super) fn command(&self, start: &str) -> Result<String> {
        let mut is_code = false;
        let found = self.0.lines().find_map(|line| {
            if line.starts_with("```") {
                is_code = !is_code;
                return None;
            }
            let line = line.split(" #").next().unwrap_or(line).trim();
            // The root has no sudo: who is in there is root.
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            (is_code && line.starts_with(start)).then(|| line.to_owned())
        });
        found.with_context(|| format!("no code block of the README has a line `{start}`"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tools::Need;

    use super::*;
    use crate::workspace;

    #[test]
    fn commands_come_out_of_code_blocks() {
        let readme = Readme(
            "run cargo xtask demo\n```\nls\nsudo make all # yes\n```\nmake none\n".to_owned(),
        );
        assert_eq!(readme.command("make").unwrap(), "make all");
        assert!(readme.command("run").is_err() && readme.command("cargo").is_err());
    }

    #[test]
    fn the_readme_names_what_the_table_needs_to_start() {
        let readme = Readme(fs::read_to_string(workspace::root().join("README.md")).unwrap());
        let line = readme.prerequisites().unwrap();
        let named: Vec<_> = line.split(' ').skip(2).filter(|word| !word.starts_with('-')).collect();
        let packages = tools::needed(&[Need::Start]).filter_map(tools::Tool::package);
        assert_eq!(named, packages.collect::<Vec<_>>());
        for command in ["cargo xtask demo", "cargo xtask test"] {
            assert_eq!(readme.command(command).unwrap(), command);
        }
    }
}
