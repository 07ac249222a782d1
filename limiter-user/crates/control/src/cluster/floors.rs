//! The floors of this host, in a file: `limiter-serve` goes by them, also while there is no daemon.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::core_worker::Floor;
use api::error::{Failure, exit};
use api::{FLOORS_HOLD, FloorTold, FloorsTold};
use state::write_file;

/// Floors that are told at the most. Of more, buckets are as if they had begun at a later one.
const MAX_FLOORS: usize = 256;

/// After such a silence of a `limiter-serve`, another one may take its place.
const SILENCE: Duration = Duration::from_secs(2);

/// The file.
pub(super) struct FloorsFile {
    path: PathBuf,
    told: Mutex<Contents>,
}

struct Contents {
    floors: FloorsTold,
    /// When whoever goes by it was heard last.
    heard: Option<Instant>,
}

impl FloorsFile {
    /// The file of a daemon with this socket; what an earlier one has told in this boot goes on.
    pub(super) fn open(socket: &Path) -> Self {
        let path = FloorsTold::path(socket);
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.trim().to_owned();
        let read = || serde_json::from_slice::<FloorsTold>(&fs::read(&path).ok()?).ok();
        let known = read().filter(|told| told.boot == boot);
        let floors = known.unwrap_or(FloorsTold { boot, full: true, ..FloorsTold::default() });
        Self { path, told: Mutex::new(Contents { floors, heard: None }) }
    }

    fn told(&self) -> MutexGuard<'_, Contents> {
        // What a panic left is what the file says: it is written first.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This host is to have so much without end. Returns when nobody goes by more than that any more.
    ///
    /// # Errors
    /// If it cannot be told.
    pub(super) fn lower(&self, (share, hosts): Floor) -> io::Result<()> {
        let mut told = self.told();
        let Some(last) = told.floors.floors.last() else { return Ok(()) };
        // With more hosts a burst has less to divide.
        let less = (share.min(last.share), hosts.max(last.hosts));
        if less == (last.share, last.hosts) {
            return Ok(());
        }
        told.add(&self.path, less)?;
        let is_read = told.floors.serve.is_some();
        drop(told);
        if is_read {
            sleep(FLOORS_HOLD);
        }
        Ok(())
    }

    /// This host has so much without end.
    ///
    /// # Errors
    /// If it cannot be told: then less is told.
    pub(super) fn raise(&self, floor: Floor) -> io::Result<()> {
        let mut told = self.told();
        let last = told.floors.floors.last().map(|last| (last.share, last.hosts));
        if last == Some(floor) { Ok(()) } else { told.add(&self.path, floor) }
    }

    /// A `limiter-serve` asks for shares. One may have them; another one begins with empty buckets when that is silent.
    ///
    /// # Errors
    /// If another one has them, or it cannot be told.
    pub(super) fn admit(&self, serve: u64) -> Result<(), Failure> {
        let mut told = self.told();
        if told.floors.serve != Some(serve) {
            if told.heard.is_some_and(|heard| heard.elapsed() < SILENCE) {
                let other = "another limiter-serve of this host shares limits of the cluster";
                return Err(Failure::new(exit::NEGATIVE, other)
                    .hint("let one limiter-serve a host have rules with scope: cluster"));
            }
            let last = told.floors.floors.last().map(|last| (last.share, last.hosts));
            let mut next = FloorsTold { serve: Some(serve), ..told.floors.clone() };
            if told.floors.serve.is_some() {
                next.full = false;
                next.floors.clear();
                // The other one may go by what it has read until then.
                let at_ns = since_boot() + FLOORS_HOLD.as_nanos() as u64;
                let last = last.map(|(share, hosts)| FloorTold { at_ns, share, hosts });
                next.floors.extend(last);
            }
            let failed =
                |error| Failure::new(exit::NEGATIVE, format!("cannot tell the floors: {error}"));
            told.write(&self.path, next).map_err(failed)?;
        }
        told.heard = Some(Instant::now());
        Ok(())
    }
}

impl Contents {
    fn add(&mut self, path: &Path, (share, hosts): Floor) -> io::Result<()> {
        let mut next = self.floors.clone();
        // In their order, also where the last one begins in a moment.
        let at_ns = next.floors.last().map_or(0, |last| last.at_ns).max(since_boot());
        next.floors.push(FloorTold { at_ns, share, hosts });
        let more = next.floors.len().saturating_sub(MAX_FLOORS);
        next.floors.drain(..more);
        next.full &= more == 0;
        self.write(path, next)
    }

    fn write(&mut self, path: &Path, next: FloorsTold) -> io::Result<()> {
        let text = serde_json::to_vec(&next)?;
        write_file(path, |file| {
            // `limiter-serve` is another user, and this is no secret: whatever the process's mask.
            file.get_ref().set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(&text)
        })?;
        self.floors = next;
        Ok(())
    }
}

/// How long this boot lasts, with the time that the machine was suspended, ns.
fn since_boot() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |now| Duration::from(now).as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Share;

    fn file(path: &Path) -> FloorsTold {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn read(path: &Path) -> Vec<(f64, u32)> {
        file(path).floors.iter().map(|floor| (floor.share.part(), floor.hosts)).collect()
    }

    #[test]
    fn less_is_told_before_it_is_so_and_more_after() {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("limiter.sock");
        let path = FloorsTold::path(&socket);
        let part = Share::from_part;
        let first = FloorsFile::open(&socket);
        first.lower((part(0.5), 1)).unwrap();
        assert!(!path.exists(), "nothing is less than nothing");
        first.raise((part(0.5), 1)).unwrap();
        first.lower((part(0.75), 2)).unwrap();
        first.raise((part(0.75), 2)).unwrap();
        assert_eq!(read(&path), [(0.5, 1), (0.5, 2), (0.75, 2)]);
        // Nobody reads it yet, so nobody is waited for.
        let begun = Instant::now();
        first.lower((part(0.25), 2)).unwrap();
        assert!(begun.elapsed() < FLOORS_HOLD);
        // Nobody has used buckets before whoever reads it first.
        first.admit(7).unwrap();
        assert!(file(&path).full && read(&path).len() == 4);
        first.lower((part(0.125), 2)).unwrap();
        assert!(begun.elapsed() >= FLOORS_HOLD);
        assert!(first.admit(8).unwrap_err().message.contains("another limiter-serve"));
        // A later daemon goes on with it.
        let next = FloorsFile::open(&socket);
        next.admit(7).unwrap();
        assert_eq!(read(&path)[3..], [(0.25, 2), (0.125, 2)]);
        for hosts in 0..2 * MAX_FLOORS as u32 {
            next.raise((part(0.5), hosts)).unwrap();
        }
        assert!(!file(&path).full && read(&path).len() == MAX_FLOORS);
        // Another one begins with empty buckets.
        let later = FloorsFile::open(&socket);
        later.admit(8).unwrap();
        assert_eq!((file(&path).full, read(&path).len()), (false, 1));
    }
}
