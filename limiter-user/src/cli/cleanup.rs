//! `limiter cleanup`: removes what dead daemons left. All of it, or nothing if some of it is in use.

use std::fs;
use std::path::Path;

use super::args::CleanupArgs;
use super::output::Output;
use crate::daemon::Socket;
use crate::dataplane::Pinned;
use crate::error::{Failure, exit};
use crate::report::{CleanupReport, Remnant, RemnantKind};

pub(super) fn run(
    output: &mut Output<'_>,
    socket: &Path,
    pin_dir: &Path,
    arguments: &CleanupArgs,
) -> Result<u8, Failure> {
    // Kept until the end, so that no daemon takes over what is being removed.
    let guard = Socket::guard(socket).map_err(|failure| Failure {
        code: if failure.code == exit::PRIVILEGE { exit::PRIVILEGE } else { exit::NEGATIVE },
        ..failure.context("nothing is removed")
    })?;
    let pinned = Pinned::find(pin_dir)?;
    for plane in &pinned {
        refuse(plane, arguments)?;
    }
    let mut remnants: Vec<_> = pinned.iter().map(remnant).collect();
    if guard.has_stale_socket() {
        remnants.push(Remnant {
            kind: RemnantKind::Socket,
            path: socket.into(),
            attached: Vec::new(),
        });
    }
    if !arguments.dry_run {
        for plane in &pinned {
            plane.remove()?;
        }
        if guard.has_stale_socket() {
            fs::remove_file(socket).map_err(|error| {
                let message = format!("cannot remove {}: {error}", socket.display());
                Failure::new(exit::PRIVILEGE, message).hint("run as root")
            })?;
        }
    }
    output.print(&CleanupReport { dry_run: arguments.dry_run, remnants })?;
    Ok(exit::OK)
}

/// An error if a data plane is in use, by a process or by packets.
fn refuse(plane: &Pinned, arguments: &CleanupArgs) -> Result<(), Failure> {
    let path = plane.path.display();
    if let Some(pid) = plane.holder {
        let message = format!("process {pid} uses {path}: nothing is removed");
        return Err(Failure::new(exit::NEGATIVE, message)
            .hint("if that is a daemon, stop it first; it may have another --socket"));
    }
    if plane.attached.is_empty() || arguments.yes || arguments.dry_run {
        return Ok(());
    }
    let on: Vec<_> = plane.attached.iter().map(ToString::to_string).collect();
    let message =
        format!("{path} still limits what {} receives: nothing is removed", on.join(", "));
    Err(Failure::new(exit::NEGATIVE, message).hint(
        "start a daemon to take it over (`limiter run`), or repeat with --yes to end its protection",
    ))
}

fn remnant(plane: &Pinned) -> Remnant {
    let kind = if plane.staging { RemnantKind::Staging } else { RemnantKind::DataPlane };
    Remnant { kind, path: plane.path.clone(), attached: plane.attached.clone() }
}
