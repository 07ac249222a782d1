//! Another XDP program on the protected interface: one that was there first, or one in the place of
//! the limiter where a test is about the harness.

use std::path::Path;

use aya::{Ebpf, programs::XdpMode};

use crate::{
    Lab,
    lab::RX,
    leftovers::{BPF_FOLDER, PIN_PREFIX, mount_bpf},
    namespace::unique,
    object, process,
};

/// An attached program, detached on drop.
#[derive(Debug)]
pub struct Bystander {
    _object: Ebpf,
    id: u32,
}

impl Bystander {
    /// Attaches a program that passes everything to the receiver of `lab`, in native mode.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn passing(lab: &Lab) -> Self {
        Self::attach(lab, "pass")
    }

    /// Attaches a program that drops everything.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn dropping(lab: &Lab) -> Self {
        Self::attach(lab, "discard")
    }

    /// Attaches a program that passes everything as `ip link` does, without a link of its own. It
    /// stays until it is replaced or the interface goes.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn without_link(lab: &Lab) -> Self {
        mount_bpf();
        let mut object = object::load();
        let program = object::program(&mut object, "pass");
        let id = program.info().expect("a loaded program").id();
        let name = format!("{PIN_PREFIX}{}-{}", std::process::id(), unique());
        let pin = Path::new(BPF_FOLDER).join(name);
        program.pin(&pin).expect("a BPF file system");
        // Not `ip -n`, which hides the BPF file system from itself.
        let mut command = lab.receiver.command(&tools::IP);
        command.args(["link", "set", "dev", RX, "xdpdrv", "pinned"]).arg(&pin);
        let attached = process::output(&mut command);
        std::fs::remove_file(&pin).expect("the pin is there");
        assert!(attached.status.success(), "{attached:?}");
        Self { _object: object, id }
    }

    fn attach(lab: &Lab, name: &'static str) -> Self {
        lab.receiver.run_inside(move || {
            let mut object = object::load();
            let program = object::program(&mut object, name);
            program.attach(RX, XdpMode::Driver).expect("a free interface");
            let id = program.info().expect("a loaded program").id();
            Self { _object: object, id }
        })
    }

    /// Id of the program in the kernel.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
}
