//! Attaches the program to interfaces, and takes over links that are pinned.

use model::interface::Attachment;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::programs::xdp::XdpLink;
use aya::programs::{Xdp, XdpMode, loaded_links};

use super::error::{Error, Opaque};
use super::foreign::ForeignLink;
use super::link::Interface;
use super::pins::{link_of, path_of_link, pins_of};
use super::programs::Programs;
use crate::nic::{merging, no_offload};
use model::instance::Owner;
use model::interface::Mode;

/// A pinned link of ours.
pub(super) struct Link {
    ifindex: u32,
    mode: Mode,
    link: FdLink,
    path: PathBuf,
}

/// The largest MTU of the interfaces that links in `directory` are on, if any of them is here.
pub(super) fn largest_mtu(directory: &Path) -> Result<Option<u32>, Error> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten();
    let ours = names.filter_map(|entry| link_of(entry.file_name()));
    let indices: Vec<u32> = ours.map(|(_, ifindex)| ifindex).collect();
    // Links may be on interfaces of another network namespace, whose MTU nobody here can ask for.
    let present = Interface::all()?.into_iter();
    Ok(present.filter(|it| indices.contains(&it.index)).map(|it| it.mtu).max())
}

/// The links of one program.
#[derive(Default)]
pub(super) struct Links(Vec<Link>);

fn attach_error(interface: &Interface, mode: Mode) -> impl FnOnce(Opaque) -> Error {
    let (name, mtu) = (interface.name.clone(), interface.mtu);
    move |source| {
        let merging = merging(&name);
        Error::Attach { name, mode, mtu, merging, source }
    }
}

impl Links {
    /// Puts `programs` in the place of whatever the pinned links run, each atomically (`BPF_LINK_UPDATE`): detaching
    /// first would let packets pass unlimited. Links of interfaces that are gone are removed.
    pub(super) fn take_over(directory: &Path, programs: &mut Programs) -> Result<Self, Error> {
        let mut links = Self::default();
        let failed = Error::pin("list the links in", directory);
        let present = Interface::all()?;
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Some((mode, ifindex)) = path.file_name().and_then(link_of) else { continue };
            let Some(interface) = present.iter().find(|i| i.index == ifindex) else {
                // The kernel has detached the link with the interface, and gives its index to another in time.
                tracing::warn!("interface {ifindex} is gone: removing its link");
                fs::remove_file(&path).map_err(Error::pin("remove", &path))?;
                continue;
            };
            let link = with_program(programs, interface, mode, |program| update(&path, program))?;
            links.0.push(Link { ifindex, mode, link, path });
        }
        Ok(links)
    }

    /// Attaches the program for its frames to `name`; does nothing if it is there already in this mode.
    pub(super) fn attach(
        &mut self,
        directory: &Path,
        programs: &mut Programs,
        name: &str,
        mode: Mode,
        replace: bool,
    ) -> Result<(), Error> {
        let interface = Interface::named(name)?;
        // By index, not by name: an interface may have been renamed since it was attached.
        if let Some(link) = self.0.iter().find(|link| link.ifindex == interface.index) {
            return if link.mode == mode {
                Ok(())
            } else {
                Err(Error::OtherMode { name: name.into(), present: link.mode.name() })
            };
        }
        if mode == Mode::Offload {
            let problem = no_offload(name, interface.index);
            return Err(Error::Offload { name: name.into(), problem });
        }
        // Before another program is removed for it.
        interface.link_kinds(mode)?;
        if let Some((other, id)) = interface.program {
            // Not even to be replaced: the other would go on as if it limited something.
            if let Some(pins) = pins_of(interface.index, id, directory) {
                return Err(Error::Taken { name: name.into(), owner: Owner::new(&pins) });
            }
            if !replace {
                return Err(Error::Occupied { name: name.into(), id });
            }
            match evict(&interface, other.unwrap_or(mode), id) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err(Error::ForeignLink { name: name.into(), id });
                }
                Err(error) => return Err(attach_error(&interface, mode)(Box::new(error))),
            }
            tracing::warn!("removed XDP program {id} from {name}");
        }
        let path = path_of_link(directory, interface.index, mode);
        // What was there has been removed before, as the kernel has no way to put a link in the
        // place of a program that is not on one. Packets pass unlimited for that moment, which
        // `replace` accepts.
        let link = with_program(programs, &interface, mode, |program| {
            create(&path, program, interface.index, mode)
        })?;
        self.0.push(Link { ifindex: interface.index, mode, link, path });
        if let Some(offload) = merging(name) {
            tracing::warn!(
                "{offload} is on: {name} merges frames before they are judged; ethtool -K {name} \
                 {offload} off"
            );
        }
        Ok(())
    }

    /// Detaches from `name`.
    pub(super) fn detach(&mut self, name: &str) -> Result<(), Error> {
        let interface = Interface::named(name)?;
        let at = self
            .0
            .iter()
            .position(|link| link.ifindex == interface.index)
            .ok_or_else(|| Error::NotAttached { name: name.into() })?;
        let Link { link, path, .. } = self.0.swap_remove(at);
        fs::remove_file(&path).map_err(Error::pin("remove", &path))?;
        // The pin and this descriptor were all that held the link.
        drop(link);
        Ok(())
    }

    /// The links whose interfaces exist, with what the kernel says of them.
    pub(super) fn list(&self) -> Result<Vec<(Attachment, u32)>, Error> {
        let present = Interface::all()?;
        let mut list = Vec::new();
        for Link { ifindex, mode, link, .. } in &self.0 {
            let Some(interface) = present.iter().find(|i| i.index == *ifindex) else { continue };
            let (program_id, link_id) =
                // A link that the kernel has ended with its interface has
                // nothing to tell, and the others are still listed.
                link.info().map_or((0, 0), |info| (info.program_id(), info.id()));
            list.push((
                Attachment {
                    name: interface.name.clone(),
                    ifindex: *ifindex,
                    mode: *mode,
                    program_id,
                    link_id,
                    mtu: interface.mtu,
                    rx_packets: interface.rx_packets,
                },
                interface.mtu,
            ));
        }
        Ok(list)
    }

    /// Moves the pins to `directory`.
    pub(super) fn move_to(&mut self, directory: &Path) -> Result<(), Error> {
        for link in &mut self.0 {
            let path = path_of_link(directory, link.ifindex, link.mode);
            fs::rename(&link.path, &path).map_err(Error::pin("move", &link.path))?;
            link.path = path;
        }
        Ok(())
    }

    /// Takes note that the directory of the pins was renamed to `directory`.
    pub(super) fn moved_to(&mut self, directory: &Path) {
        for link in &mut self.0 {
            link.path = path_of_link(directory, link.ifindex, link.mode);
        }
    }

    /// Forgets all links without detaching them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Does something with the first program that an interface takes.
fn with_program<T>(
    programs: &mut Programs,
    interface: &Interface,
    mode: Mode,
    mut act: impl FnMut(&mut Xdp) -> Result<T, Opaque>,
) -> Result<T, Error> {
    let mut refusal = None;
    for kind in interface.link_kinds(mode)? {
        let Some(program) = programs.of(*kind)? else { continue };
        match act(program) {
            Ok(done) => return Ok(done),
            // The last one serves what those before do not.
            Err(error) => refusal = Some(error),
        }
    }
    let refusal = refusal.unwrap_or_else(|| "this kernel has no program for it".into());
    Err(attach_error(interface, mode)(refusal))
}

/// Makes the pinned link at `path` run `program` from its next packet on.
fn update(path: &Path, program: &mut Xdp) -> Result<FdLink, Opaque> {
    let link = FdLink::from(PinnedLink::from_pin(path)?);
    let id = program.attach_to_link(XdpLink::try_from(link)?)?;
    Ok(FdLink::try_from(program.take_link(id)?)?)
}

/// Attaches and pins.
fn create(path: &Path, program: &mut Xdp, ifindex: u32, mode: Mode) -> Result<FdLink, Opaque> {
    let mode = match mode {
        Mode::Native => XdpMode::Driver,
        Mode::Generic => XdpMode::Skb,
        Mode::Offload => XdpMode::Hardware,
    };
    let id = program.attach_to_if_index(ifindex, mode)?;
    let link = FdLink::try_from(program.take_link(id)?)?;
    // Pinned at once: without a pin the link would end with this process, and limits with it.
    Ok(link.pin(path)?.into())
}

/// Removes program `id` from `interface`, by whichever way it was attached. Links of others are only for
/// those to find who have CAP_SYS_ADMIN.
fn evict(interface: &Interface, mode: Mode, id: u32) -> io::Result<()> {
    match detach_link(interface.index, id) {
        Ok(true) => Ok(()),
        // Programs of ip(8) and older tools are on no link, and netlink alone removes them.
        Ok(false) => interface.clear_xdp(mode),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            // It may be on no link, and so need none to be found.
            interface.clear_xdp(mode).map_err(|cleared| {
                if cleared.kind() == ErrorKind::ResourceBusy { error } else { cleared }
            })
        }
        Err(error) => Err(error),
    }
}

/// Detaches the link by which program `id` runs on the interface with index `ifindex`. Returns whether
/// there was one.
///
/// # Errors
/// Without CAP_SYS_ADMIN, or if the kernel refuses.
pub fn detach_link(ifindex: u32, id: u32) -> io::Result<bool> {
    for link in loaded_links() {
        let link = link.map_err(|error| match error {
            LinkError::SyscallError(error) => error.io_error,
            other => io::Error::other(other),
        })?;
        if link.program_id() != id {
            continue;
        }
        // The same program may run on other interfaces, which are none of our business.
        let foreign = ForeignLink::open(link.id())?;
        if foreign.ifindex()? == ifindex {
            return foreign.detach().map(|()| true);
        }
    }
    Ok(false)
}
