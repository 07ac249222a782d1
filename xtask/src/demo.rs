//! `demo`: the real daemon on a veth pair under a flood, and who was limited.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{ExitCode, ExitStatus},
};

use anyhow::Result;

use crate::{build, run::Cmd, setup, workspace};

/// Arguments of `cargo xtask demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON document on stdout, and everything else on stderr
    #[arg(long)]
    json: bool,
    /// Show three hosts that share one limit, one of which dies
    #[arg(long)]
    cluster: bool,
    /// Go on with a shell beside the traffic: `limiter top`, `show`, `capture`, the dashboard
    #[arg(long, conflicts_with_all = ["json", "cluster"])]
    shell: bool,
    /// Handed to the demo as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Sets up, builds and becomes the demo as root: signals, the terminal and the exit status are its own.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    let flags = [(args.json, "--json"), (args.cluster, "--cluster"), (args.shell, "--shell")];
    let flags = flags.into_iter().filter_map(|(is, flag)| is.then_some(flag));
    let program = workspace::target_dir()?.join("debug").join("demo");
    // Before the build, so that nobody waits for it only to hear that root is needed.
    let demo = Cmd::new(program).args(flags).args(&args.args).into_root()?;
    setup::ensure_packages_named(&["iproute2", "nftables"])?;
    build::command(false)?;
    Err(demo.exec())
}

/// The code a shell would report: the program's own, or 128 and the signal that ended it.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_handed_through() {
        let of = |wait_status| exit_code(ExitStatus::from_raw(wait_status));
        assert_eq!(of(0), ExitCode::SUCCESS);
        assert_eq!(of(5 << 8), ExitCode::from(5));
        assert_eq!(of(9), ExitCode::from(137));
    }
}
