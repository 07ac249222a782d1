//! Which processes hold an XDP program: nobody else tells whose it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The processes with a descriptor of a program, or of a link that runs it, as `name (pid)`. Only root sees those of others.
pub(super) fn of(program: u32) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let holds = |process: &Path| {
        let descriptors = fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|it| {
            fs::read_to_string(it.path()).is_ok_and(|text| prog_id(&text) == Some(program))
        })
    };
    let named = processes.filter_map(|process| {
        let path = process.path();
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        if !holds(&path) {
            return None;
        }
        let name = fs::read_to_string(path.join("comm")).ok()?;
        Some(format!("{} ({pid})", name.trim_end()))
    });
    named.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The program that a descriptor is of, as the kernel tells it of programs and links.
fn prog_id(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("prog_id:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_tells_its_program() {
        let link = "pos:\t0\nflags:\t02000000\nlink_type:\txdp\nlink_id:\t3\nprog_tag:\ta04f\nprog_id:\t7\n";
        assert_eq!(prog_id(link), Some(7));
        assert_eq!(prog_id("pos:\t0\nflags:\t02\n"), None);
        assert_eq!(of(u32::MAX), [""; 0]);
    }
}
