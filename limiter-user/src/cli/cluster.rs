//! `limiter cluster`

use std::path::PathBuf;

use clap::Subcommand;

use super::args::Global;
use super::config::key_file;
use super::output::Output;
use crate::cluster::key_file::generate;
use crate::error::{Failure, exit};
use crate::report::KeyGenerated;

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Make and change the key that all hosts of the cluster have
    #[command(subcommand)]
    Key(KeyCommand),
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Make a file with a new key, which only its owner can read; needs no daemon
    ///
    /// Do so on one host, and copy the file to all others: who has no such key is no member. Exit code 1 if
    /// the file is there already.
    Generate {
        /// The file [default: key_file of the configuration's [cluster], or /etc/limiter/cluster.key]
        file: Option<PathBuf>,
        /// Replace the file if it is there
        #[arg(long)]
        force: bool,
    },
}

pub(super) fn run(
    output: &mut Output<'_>,
    global: &Global,
    command: ClusterCommand,
) -> Result<u8, Failure> {
    let ClusterCommand::Key(KeyCommand::Generate { file, force }) = command;
    let file = match file {
        Some(file) => file,
        None => key_file(global)?,
    };
    let replaced = generate(&file, force)?;
    output.print(&KeyGenerated { file: file.display().to_string(), replaced })?;
    Ok(exit::OK)
}
