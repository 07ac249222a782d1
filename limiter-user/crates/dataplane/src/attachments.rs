//! Where the program runs, and where it and its maps are pinned.

use std::path::PathBuf;

use limiter_common::batch::FULL_FRAME;
use limiter_common::features::Features;
use model::interface::{Attachment, Mode};

use super::attach::{Links, largest_mtu};
use super::link::Interface;
use super::object;
use super::programs::Programs;
use super::{Error, RunTime};

/// What the Ethernet header and two VLAN tags add to the MTU.
const FRAMING: u32 = 22;

/// The loaded program, its links, and the directory that both are pinned in. It knows nothing of limits but when it
/// must wait for them: fresh maps take the place of what was pinned when they have theirs. Dropping it leaves
/// everything pinned and at work, but for fresh maps that were never put in place.
pub struct Attachments {
    pub(super) programs: Programs,
    pin_dir: PathBuf,
    /// Where fresh maps are pinned until [`Attachments::settle`].
    staging: Option<PathBuf>,
    links: Links,
}

impl Attachments {
    /// A loaded program, which runs nowhere yet.
    pub(super) fn new(programs: Programs, pin_dir: PathBuf, staging: Option<PathBuf>) -> Self {
        Self { programs, pin_dir, staging, links: Links::default() }
    }

    /// Sees to it that the program at work serves `features`. If it does not, the one with everything takes its place
    /// on each interface, between two packets. It has the same maps.
    ///
    /// # Errors
    /// If the kernel refuses: then the former program stays at work, on some interfaces at least.
    pub(super) fn require(&mut self, features: Features) -> Result<(), Error> {
        if self.programs.features.has(features) {
            return Ok(());
        }
        let Some(full) = self.programs.full.take() else { return Ok(()) };
        let former = std::mem::replace(&mut self.programs.at_work, full);
        if let Err(error) = self.take_over() {
            self.programs.full = Some(std::mem::replace(&mut self.programs.at_work, former));
            return Err(error);
        }
        self.programs.features = Features::ALL;
        Ok(())
    }

    /// Lets the program run where one runs that is pinned, unless its maps are fresh.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn take_over(&mut self) -> Result<(), Error> {
        if self.staging.is_none() {
            self.links = Links::take_over(&self.pin_dir, &mut self.programs)?;
        }
        Ok(())
    }

    /// Puts fresh maps, which have their limits now, in the place of what was pinned. Whether there were any.
    ///
    /// # Errors
    /// If the kernel refuses, or pins cannot be moved.
    pub(super) fn settle(&mut self) -> Result<bool, Error> {
        let Some(staging) = &self.staging else { return Ok(false) };
        self.links = object::settle(staging, &self.pin_dir, &mut self.programs)?;
        self.staging = None;
        Ok(true)
    }

    /// Attaches the program, whose maps are settled, to an interface. Does nothing if it is attached in this mode
    /// already.
    ///
    /// # Errors
    /// As [`super::Dataplane::attach`].
    pub(super) fn attach(
        &mut self,
        interface: &str,
        mode: Mode,
        replace: bool,
    ) -> Result<(), Error> {
        self.links.attach(&self.pin_dir, &mut self.programs, interface, mode, replace)
    }

    /// Detaches the program from an interface; buckets and counters stay.
    ///
    /// # Errors
    /// An unknown interface, or one that is not ours.
    pub fn detach(&mut self, interface: &str) -> Result<(), Error> {
        self.links.detach(interface)
    }

    /// Detaches from all interfaces and removes the pinned maps. Before the first
    /// [`super::Dataplane::publish`] fresh maps are discarded, and what they were to replace stays at work.
    ///
    /// # Errors
    /// If the pins cannot be removed.
    pub fn detach_all(&mut self) -> Result<(), Error> {
        if let Some(staging) = self.staging.take() {
            object::discard(&staging);
            return Ok(());
        }
        // Pins first: if one cannot be removed, the links that are open here still show what is
        // attached.
        object::remove(&self.pin_dir)?;
        self.links.clear();
        Ok(())
    }

    /// The index of an interface and the id of the XDP program on it, ours or another.
    ///
    /// # Errors
    /// An unknown interface.
    pub fn occupant(&self, interface: &str) -> Result<(u32, Option<u32>), Error> {
        let interface = Interface::named(interface)?;
        Ok((interface.index, interface.program.map(|(_, id)| id)))
    }

    /// The interfaces the program is attached to.
    pub fn attachments(&self) -> Vec<Attachment> {
        match self.links.list() {
            Ok(list) => list.into_iter().map(|(attachment, _)| attachment).collect(),
            Err(error) => {
                tracing::warn!("cannot list interfaces: {error}");
                Vec::new()
            }
        }
    }

    /// The largest frame that can arrive, bytes: byte limits' gates depend on it.
    ///
    /// # Errors
    /// If the kernel does not list the interfaces.
    pub(super) fn max_frame(&self) -> Result<u32, Error> {
        let mut largest = self.links.list()?.into_iter().map(|(_, mtu)| mtu).max();
        if self.staging.is_some() {
            // Fresh maps have no links before `settle`, but the first policies must suit those that come then.
            largest = largest.max(largest_mtu(&self.pin_dir)?);
        }
        Ok(largest.map_or(FULL_FRAME, |mtu| mtu + FRAMING).max(FULL_FRAME))
    }

    /// How long the kernel program has run, and how often, while the kernel measured that; `None` if the
    /// kernel does not tell.
    pub fn run_time(&self) -> Option<RunTime> {
        RunTime::from_ebpf(&self.programs.at_work)
    }
}

impl Drop for Attachments {
    fn drop(&mut self) {
        // Never put in place: what it was to replace goes on.
        if let Some(staging) = &self.staging {
            object::discard(staging);
        }
    }
}
