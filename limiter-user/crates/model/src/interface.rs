//! Interfaces that the program is attached to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In the driver, before the kernel makes an skb of the frame.
    Native,
    /// In the network stack, for drivers without XDP: works everywhere, several times slower.
    Generic,
    /// On the card. No card can run this program, so it is refused wherever it is asked for.
    // Named all the same: an operator who asks for it gets a reason, not an unknown value.
    Offload,
}

impl Mode {
    /// The mode's name in output and in pins.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Offload => "offload",
        }
    }
}

/// An interface that frames are judged on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The interface's name.
    pub name: String,
    /// Its index in this network namespace.
    pub ifindex: u32,
    /// How the program is attached.
    pub mode: Mode,
    /// The program's id in the kernel.
    pub program_id: u32,
    /// The link's id in the kernel.
    pub link_id: u32,
    /// The largest packet that it takes, bytes, without Ethernet header and tags.
    pub mtu: u32,
    /// Packets the interface has received, as the kernel counts them; since it was made, not since
    /// the program was attached.
    // The other half of P5: the counters' sum is compared with it.
    pub rx_packets: u64,
}

/// What the Ethernet header adds to the MTU; VLAN tags add 4 each.
const HEADER: u32 = 14;

/// The largest frame that the stack merges packets to.
const MERGED: u32 = 65_535 + HEADER;

impl Attachment {
    /// The largest frame without VLAN tags that the program can meet there, bytes, where an offload is `merging` frames or none is.
    #[must_use]
    pub fn largest_frame(&self, merging: bool) -> u32 {
        // In generic mode the stack has merged packets before (GRO).
        if merging || self.mode == Mode::Generic { MERGED } else { self.mtu + HEADER }
    }
}

/// An interface that a pinned program judges the frames of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinnedOn {
    /// The interface's name; absent if it is in another network namespace.
    pub name: Option<String>,
    /// Its index in its own network namespace.
    pub ifindex: u32,
    /// How the program is attached.
    pub mode: Mode,
}

impl std::fmt::Display for PinnedOn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "interface {} of another network namespace", self.ifindex),
        }
    }
}
