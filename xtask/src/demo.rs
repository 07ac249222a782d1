//! `demo`: the real daemon on a veth pair under a flood, and who was limited.

use std::{process::ExitCode, thread, time::Duration};

use anyhow::Result;
use tools::Need;

use crate::{
    build::{self, LATER, REQUIRE},
    progress::{Step, say, span},
    run::Cmd,
    setup, workspace,
};

/// How long each step takes on two idle cores where nothing is built yet.
const TOOLS_TIME: Duration = Duration::from_secs(120);
const BUILD_TIME: Duration = Duration::from_secs(90);
const DEMO_TIME: Duration = Duration::from_secs(10);
const CLUSTER_TIME: Duration = Duration::from_secs(35);

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
    let program = workspace::target_dir()?.join("debug/demo");
    // Nobody should wait for the build only to hear that root is needed.
    let demo = Cmd::own(&program).args(flags).args(&args.args).into_root()?;
    let is_cold = !program.exists();
    let about = |time: Duration| is_cold.then_some(time);

    let step = Step::begin("1/3 tools and libraries", about(TOOLS_TIME));
    let libraries = step.log("libraries")?;
    thread::scope(|scope| {
        // The linker takes a while to build, the libraries do not need it.
        if is_cold {
            scope.spawn(|| build(LATER).args(["--keep-going"]).log(&libraries));
        }
        // Only the shell has a dashboard to look at.
        let needs = [Need::Kernel, Need::Demo, Need::Charts];
        setup::ensure_in(&step, if args.shell { &needs } else { &needs[..2] })
    })?;
    step.done();
    let step = Step::begin("2/3 kernel program and daemon", about(BUILD_TIME));
    build(REQUIRE).log(&step.log("build")?)?;
    step.done();
    let time = if args.cluster { CLUSTER_TIME } else { DEMO_TIME };
    say(format_args!("3/3 demo, about {}", span(time)));
    Err(demo.exec())
}

/// The build of what the demo runs, and of nothing else.
fn build(ebpf: &str) -> Cmd {
    let programs =
        ["--package", "limiter-user", "--package", "tests", "--bin", "limiter", "--bin", "demo"];
    build::cargo(["build"], ebpf).args(programs)
}
