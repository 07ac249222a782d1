//! How the failure of a child process is told.

use std::process::ExitStatus;

/// The most lines of a child's output that a message repeats.
const MAX_LINES: usize = 20;

/// Says that `command` failed, how it ended, and the last lines that it printed.
#[must_use]
pub fn failure(command: &str, status: ExitStatus, printed: &str) -> String {
    let mut text = format!("`{command}` failed ({status})");
    for line in last(printed) {
        text.push_str("\n  ");
        text.push_str(line.trim_end());
    }
    text
}

/// The last lines of what was printed that a message repeats.
#[must_use]
pub fn last_lines(printed: &str) -> String {
    last(printed).join("\n")
}

fn last(printed: &str) -> Vec<&str> {
    let mut lines: Vec<_> = printed.lines().filter(|line| !line.trim().is_empty()).collect();
    lines.split_off(lines.len().saturating_sub(MAX_LINES))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn the_last_lines_are_told() {
        let stderr: String = (0..40).map(|line| format!("line {line}\n\n")).collect();
        let text = failure("make all", ExitStatus::from_raw(2 << 8), &stderr);
        assert!(text.starts_with("`make all` failed (exit status: 2)\n  line 20\n"), "{text}");
        assert!(text.ends_with("\n  line 39"), "{text}");
        let silent = failure("true", ExitStatus::from_raw(9), "");
        assert_eq!(silent, "`true` failed (signal: 9 (SIGKILL))");
    }
}
