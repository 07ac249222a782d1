//! `limiter run`

use std::path::PathBuf;

use super::args::{Malformed, RunArgs};
use crate::daemon::{self, Config};
use crate::dataplane::Options;
use crate::error::{Failure, exit};

pub(super) fn run(arguments: RunArgs, socket: PathBuf) -> Result<u8, Failure> {
    daemon::run(&config(arguments, socket))?;
    Ok(exit::OK)
}

fn config(arguments: RunArgs, socket: PathBuf) -> Config {
    Config {
        interfaces: arguments.interfaces,
        mode: arguments.mode,
        replace: arguments.replace,
        socket,
        socket_group: arguments.socket_group,
        state_dir: arguments.state_dir,
        on_exit: arguments.on_exit,
        options: Options {
            pin_dir: arguments.pin_dir,
            epsilon: arguments.sketch_epsilon,
            delta: arguments.sketch_delta,
            window: arguments.sketch_window,
            max_sources: arguments.max_sources,
            max_limits: arguments.max_limits,
            ipv4_prefix: arguments.ipv4_prefix,
            ipv6_prefix: arguments.ipv6_prefix,
            drop_malformed: arguments.malformed == Malformed::Drop,
            on_full: arguments.on_full,
            reset: arguments.reset_state,
        },
    }
}
