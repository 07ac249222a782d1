//! Which glibc a binary needs: that of the machine it was built on may be newer than the target's.

use std::path::Path;

use anyhow::{Result, bail};

use crate::run::Cmd;

/// The glibc of Debian 12.
const OLDEST: (u32, u32) = (2, 36);

/// An error if `binary` needs a later glibc than Debian 12 has.
pub(super) fn check(binary: &Path) -> Result<()> {
    let symbols = Cmd::new(&tools::OBJDUMP).args(["-T"]).args([binary]).capture()?;
    match newest(&symbols) {
        // By number, as a text would take 2.4 for later than 2.36.
        Some((major, minor)) if (major, minor) > OLDEST => bail!(
            "{} needs glibc {major}.{minor}, and Debian 12 has {}.{}: build it on Debian 12",
            binary.display(),
            OLDEST.0,
            OLDEST.1
        ),
        _ => Ok(()),
    }
}

/// The latest version of glibc in a table of dynamic symbols.
fn newest(symbols: &str) -> Option<(u32, u32)> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let mut parts = rest[..end].split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.2.5) read\n0 DF *UND* 0 (GLIBC_2.34) pthread_join\n\
                       0 DF *UND* 0 (GCC_3.0) _Unwind_Resume\n0 DF *UND* 0 (GLIBC_2.4) x\n";
        assert_eq!(newest(symbols), Some((2, 34)));
        assert_eq!(newest("0 DF *UND* 0 (GLIBC_PRIVATE) x\n"), None);
        assert!(newest("GLIBC_2.39)") > Some(OLDEST));
    }
}
