//! `limiter cleanup`: removes what dead daemons left. All of it, or nothing if some of it is in use.

use std::fs;
use std::path::PathBuf;

use super::args::CleanupArgs;
use super::cleanup_report::{CleanupReport, Remnant, RemnantKind};
use super::output::Output;
use api::error::{Failure, exit};
use daemon::{Socket, SocketGuard};
use dataplane::Pinned;
use model::instance::{Instance, address};
use model::interface::PinnedOn;

/// Where a daemon may have left something.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) instance: Option<Instance>,
    pub(super) socket: PathBuf,
    pub(super) pin_dir: PathBuf,
}

/// What a dead daemon left in a place.
struct Found {
    place: Place,
    /// Kept until the end, so that no daemon takes over what is being removed.
    guard: SocketGuard,
    pinned: Vec<Pinned>,
}

/// Cleans one place, which nobody may use.
pub(super) fn one(
    output: &mut Output<'_>,
    place: Place,
    arguments: &CleanupArgs,
) -> Result<u8, Failure> {
    let found = find(place, arguments)?;
    finish(output, &[found], Vec::new(), arguments)
}

/// Cleans all places but those of daemons that run. All are looked at before the first is touched, so that a refusal
/// leaves everything as it was.
pub(super) fn all(
    output: &mut Output<'_>,
    places: Vec<Place>,
    arguments: &CleanupArgs,
) -> Result<u8, Failure> {
    // What a daemon serves is in use, and a daemon that runs is no failure of this command.
    let (running, idle): (Vec<_>, Vec<_>) =
        places.into_iter().partition(|place| Socket::is_served(&place.socket));
    let found: Vec<_> =
        // Each place found is locked until the end, so that no daemon can start in it meanwhile.
        idle.into_iter().map(|place| find(place, arguments)).collect::<Result<_, _>>()?;
    let running = running.into_iter().map(|place| place.instance).collect();
    finish(output, &found, running, arguments)
}

fn find(place: Place, arguments: &CleanupArgs) -> Result<Found, Failure> {
    let looked = || {
        // A daemon that serves the socket means no here, and not wrong usage as where two daemons want one socket.
        // The lock first: what is found is still true when it is removed.
        let guard = Socket::guard(&place.socket).map_err(|failure| Failure {
            code: if failure.code == exit::PRIVILEGE { exit::PRIVILEGE } else { exit::NEGATIVE },
            ..failure.context("nothing is removed")
        })?;
        // After the lock: a daemon that starts between look and removal would lose its fresh pins.
        let pinned = Pinned::find(&place.pin_dir)?;
        pinned.iter().try_for_each(|plane| refuse(plane, arguments))?;
        Ok((guard, pinned))
    };
    let (guard, pinned) = looked().map_err(|failure: Failure| {
        let hint = failure.hint.as_deref().map(|hint| address(hint, place.instance.as_ref()));
        Failure { hint, ..failure }
    })?;
    Ok(Found { place, guard, pinned })
}

fn finish(
    output: &mut Output<'_>,
    found: &[Found],
    running: Vec<Option<Instance>>,
    arguments: &CleanupArgs,
) -> Result<u8, Failure> {
    // Listed before anything is removed: after that nobody could tell what it limited.
    let mut remnants = Vec::new();
    for Found { place: Place { instance, socket, .. }, guard, pinned } in found {
        let remnant = |kind, path: &PathBuf, attached: &[PinnedOn]| Remnant {
            kind,
            path: path.clone(),
            attached: attached.into(),
            instance: instance.clone(),
        };
        remnants.extend(pinned.iter().map(|plane| {
            let kind = if plane.staging { RemnantKind::Staging } else { RemnantKind::DataPlane };
            remnant(kind, &plane.path, &plane.attached)
        }));
        if guard.has_stale_socket() {
            remnants.push(remnant(RemnantKind::Socket, socket, &[]));
        }
    }
    if !arguments.dry_run {
        found.iter().try_for_each(remove)?;
    }
    output.print(&CleanupReport { dry_run: arguments.dry_run, remnants, running })
}

fn remove(found: &Found) -> Result<(), Failure> {
    // Pins before the socket: if they cannot be removed, the place is found again by the next call.
    found.pinned.iter().try_for_each(Pinned::remove)?;
    if !found.guard.has_stale_socket() {
        return Ok(());
    }
    let socket = &found.place.socket;
    fs::remove_file(socket).map_err(|error| {
        let message = format!("cannot remove {}: {error}", socket.display());
        Failure::new(exit::PRIVILEGE, message).hint("run as root")
    })
}

/// An error if a data plane is in use, by a process or by packets.
fn refuse(plane: &Pinned, arguments: &CleanupArgs) -> Result<(), Failure> {
    let path = plane.path.display();
    // Not even with --yes: a process that still has its maps would go on as if it limited.
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
        "start a daemon to take it over (`limiter run …`), or repeat with --yes to end its protection",
    ))
}
