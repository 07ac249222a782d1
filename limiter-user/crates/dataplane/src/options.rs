//! What the data plane is built with.

use model::tables::OnFull;
use model::{Explain as _, Groups};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use aya::util::nr_cpus;
use ipnet::IpNet;

use limiter_common::abi::{ABI_VERSION, Layout};
use limiter_common::batch::FULL_FRAME;
use limiter_common::hash::HashKey;
use limiter_common::key::{PrefixMasks, SourceKey};
use limiter_common::lists::BITS_PER_SOURCE;
use limiter_common::peers::Listen;
use limiter_common::share::ShareSlot;
use limiter_common::sketch::{MAX_DEPTH, Shape};
use limiter_common::table::{Identity, Slot, WAYS};
use limiter_common::tunnels::{MAX_TUNNELS, Prefix, Tunnels};

use super::Error;
use super::sources::{key_of, mask_of};

/// Bytes that room for one source takes: its bucket, whose it is, what it may use, and a fingerprint to find it by.
pub const SOURCE_BYTES: usize =
    size_of::<Slot>() + size_of::<Identity>() + size_of::<ShareSlot>() + 1;

/// A secret that the hash of a fresh data plane is made from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashSecret(pub [u8; 80]);

// Not derived: options may come to a log, and who knows the secret can aim at one bucket or cell.
impl std::fmt::Debug for HashSecret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("HashSecret(..)")
    }
}

/// How to open the data plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where maps and links are pinned; on a BPF file system.
    pub pin_dir: PathBuf,
    /// The sketch's relative error ε: width = ⌈e/ε⌉, rounded up to a power of two.
    pub epsilon: f64,
    /// The sketch's failure probability δ: depth = ⌈ln 1/δ⌉.
    pub delta: f64,
    /// The sketch's epoch, rounded to a power of two of ns.
    pub window: Duration,
    /// Sources that can have a bucket at once, rounded up to a power of two.
    pub max_sources: u32,
    /// Limits of single sources that can be set.
    pub max_limits: u32,
    /// Sources that can be on the allow and deny lists.
    pub max_listed: u32,
    /// Bits of an IPv4 address that make a source.
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 address that make a source.
    pub ipv6_prefix: u8,
    /// Whether IP packets without a readable source are dropped rather than passed.
    pub drop_malformed: bool,
    /// Whether what the link needs to work is limited as anything else, rather than passed.
    pub limit_link_control: bool,
    /// Outer sources whose tunnels of IP in IP are looked into, [`MAX_TUNNELS`] at the most.
    pub tunnels: Vec<IpNet>,
    /// What happens when a set of the bucket table is full.
    pub on_full: OnFull,
    /// What sources of a prefix may send together that have no buckets.
    pub groups: Groups,
    /// Whether the kernel program writes lines for [`super::KernelLog`].
    pub kernel_log: bool,
    /// What the hash of fresh maps is made from, random if left out. Hosts whose hash is the same can count
    /// distinct sources together. Maps that are taken over keep theirs.
    pub hash_secret: Option<HashSecret>,
    /// Where this host listens for frames of its cluster, if it is to be in one.
    pub listen: Option<SocketAddr>,
    /// Whether to start with fresh maps and discard the buckets and counters of pinned ones.
    pub reset: bool,
}

/// The most cells a sketch may have: 2^26, 512 MiB.
const MAX_CELLS: u64 = 1 << 26;

impl Options {
    /// The usual ones, with pins in this place: those of a daemon that nobody has configured.
    pub fn usual(pin_dir: PathBuf) -> Self {
        Self {
            pin_dir,
            // 131,072 columns: a flood of 2.5 Mpps leaves 2.5 packets of noise in a cell, far below a gate of 16.
            epsilon: 0.000_025,
            // Two rows. Each more is one more random cache line for every packet of a flood.
            delta: 0.14,
            // 2^27 ns. With a second, the same flood would leave 19.
            window: Duration::from_millis(134),
            max_sources: 524_288,
            max_limits: 1 << 20,
            max_listed: 1 << 20,
            ipv4_prefix: 32,
            // A /64 is one subnet: its host may send from any of 2^64 addresses, each of which would have a burst.
            ipv6_prefix: 64,
            drop_malformed: false,
            // Without neighbour discovery nobody reaches the host: a neighbour over its limit would cut itself off.
            limit_link_control: false,
            // None: who chooses an inner source chooses whom a limit hits.
            tunnels: Vec::new(),
            // P1 rests on it: with `drop`, a flood of forged sources costs conforming ones their packets.
            on_full: OnFull::Pass,
            // Off: how many hosts a prefix has, and what they send, only its operator knows.
            groups: Groups { limit: None, ipv6_prefix: 48 },
            kernel_log: false,
            // Random, so that nobody outside can choose sources that meet in one set or cell.
            hash_secret: None,
            listen: None,
            reset: false,
        }
    }

    /// The sketch's size for ε and δ.
    ///
    /// # Errors
    /// [`Error::Option`] for values out of range or a sketch above 512 MiB.
    pub fn shape(&self) -> Result<Shape, Error> {
        let out_of_range = |option, value: f64, range| Error::Option {
            option,
            problem: format!("{value} is out of range"),
            hint: format!("give a number {range}"),
        };
        if !(self.epsilon > 0.0 && self.epsilon < 1.0) {
            return Err(out_of_range("--sketch-epsilon", self.epsilon, "between 0 and 1"));
        }
        let least = (-f64::from(MAX_DEPTH)).exp();
        if !(self.delta >= least && self.delta < 1.0) {
            let range = "from 0.00034 (8 rows) to below 1";
            return Err(out_of_range("--sketch-delta", self.delta, range));
        }
        // The operands are small positive numbers: the conversions cannot lose anything.
        let width = (std::f64::consts::E / self.epsilon).ceil() as u64;
        // A power of two, as the kernel program takes columns off the hash with a mask. The upper
        // bound keeps the product below from overflowing.
        let width = width.clamp(64, 1 << 40).next_power_of_two();
        let depth = ((1.0 / self.delta).ln().ceil() as u64).max(1);
        if width * depth > MAX_CELLS {
            return Err(Error::Option {
                option: "--sketch-epsilon",
                problem: format!("{} makes a sketch of {depth} × {width} cells", self.epsilon),
                hint: "the sketch may take 512 MiB at most: choose a larger ε".into(),
            });
        }
        Ok(Shape { mask: width as u32 - 1, depth: depth as u32 })
    }

    /// Whether a data plane can be made with these options.
    ///
    /// # Errors
    /// [`Error::Option`] names the option that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        let layout = self.layout(HashKey { words: [0; 10] })?;
        self.kernel_tunnels()?;
        let compiled = || self.groups.compile(layout.window_shift, FULL_FRAME);
        let checked = self.groups.check(self.ipv4_prefix, self.ipv6_prefix);
        checked
            .and_then(|()| compiled().map(drop).map_err(|invalid| ("--group-limit", invalid)))
            .map_err(|(option, invalid)| Error::Option {
                option,
                problem: invalid.to_string(),
                hint: invalid.hint().unwrap_or_default(),
            })
    }

    /// log2 of the sketch's epoch in ns.
    fn window_shift(&self) -> Result<u32, Error> {
        let ns = self.window.as_nanos() as f64;
        let shift = ns.log2().round();
        if (20.0..=36.0).contains(&shift) {
            Ok(shift as u32)
        } else {
            Err(Error::Option {
                option: "--sketch-window",
                problem: format!("{:?} is out of range", self.window),
                hint: "give a duration from 1ms to 60s".into(),
            })
        }
    }

    /// The sets of the bucket table.
    fn sets(&self) -> Result<u32, Error> {
        if !(WAYS..=1 << 26).contains(&self.max_sources) {
            return Err(Error::Option {
                option: "--max-sources",
                problem: format!("{} is out of range", self.max_sources),
                hint: format!(
                    "give a number from 8 to 67108864; each source takes {SOURCE_BYTES} bytes"
                ),
            });
        }
        Ok(self.max_sources.next_power_of_two() / WAYS)
    }

    /// The words of the lists' filter.
    fn filter_words(&self) -> Result<u32, Error> {
        if !(1..=1 << 26).contains(&self.max_listed) {
            return Err(Error::Option {
                option: "--max-listed",
                problem: format!("{} is out of range", self.max_listed),
                hint: "give a number from 1 to 67108864".into(),
            });
        }
        Ok((self.max_listed.next_power_of_two() * BITS_PER_SOURCE / 64).max(1))
    }

    /// Where the kernel program finds frames of the cluster.
    pub(super) fn kernel_listen(&self) -> Listen {
        self.listen.map_or(Listen::default(), |listen| Listen {
            address: key_of(listen.ip()),
            port: listen.port().into(),
        })
    }

    /// Whose tunnels the kernel program looks into.
    ///
    /// # Errors
    /// [`Error::Option`] for more than there is room for.
    pub(super) fn kernel_tunnels(&self) -> Result<Tunnels, Error> {
        if self.tunnels.len() > MAX_TUNNELS {
            return Err(Error::Option {
                option: "--tunnels",
                problem: format!("{} prefixes are too many", self.tunnels.len()),
                hint: format!("give {MAX_TUNNELS} at the most, of wider prefixes"),
            });
        }
        let mut tunnels = Tunnels { count: self.tunnels.len() as u64, ..Tunnels::default() };
        for (prefix, net) in tunnels.prefixes.iter_mut().zip(&self.tunnels) {
            let mask = mask_of(*net);
            let mask = SourceKey { high: (mask >> 64) as u64, low: mask as u64 };
            *prefix = Prefix { key: key_of(net.network()), mask };
        }
        Ok(tunnels)
    }

    /// The layout for these options, with the given secret.
    ///
    /// # Errors
    /// [`Error::Option`] names the option that is out of range.
    pub(super) fn layout(&self, hash_key: HashKey) -> Result<Layout, Error> {
        for (option, length, most) in
            [("--ipv4-prefix", self.ipv4_prefix, 32), ("--ipv6-prefix", self.ipv6_prefix, 128)]
        {
            if !(1..=most).contains(&length) {
                return Err(Error::Option {
                    option,
                    problem: format!("/{length} is out of range"),
                    hint: format!("give a number from 1 to {most}"),
                });
            }
        }
        // Those that may ever come, not those that are on line: the program bounds by their number
        // what CPUs have counted and not told yet, and does not hear of one that is added.
        let cpus = nr_cpus().map_err(|(path, source)| Error::Cpus { path, source })?;
        Ok(Layout {
            abi: ABI_VERSION,
            window_shift: self.window_shift()?,
            sketch: self.shape()?,
            set_mask: self.sets()? - 1,
            cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
            filter_words: self.filter_words()?,
            padding: 0,
            masks: PrefixMasks::new(self.ipv4_prefix, self.ipv6_prefix),
            hash_key,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn options() -> Options {
        Options::usual("/sys/fs/bpf/limiter".into())
    }

    const KEY: HashKey = HashKey { words: [1; 10] };

    #[test]
    fn dimensions_follow_epsilon_and_delta() {
        let shape = |epsilon, delta| Options { epsilon, delta, ..options() }.shape();
        let sizes = |epsilon, delta| shape(epsilon, delta).map(|s| (s.width(), s.depth)).ok();
        assert_eq!(sizes(0.000025, 0.14), Some((131_072, 2)));
        assert_eq!(sizes(0.00005, 0.02), Some((65_536, 4)));
        assert_eq!(sizes(0.01, 0.01), Some((512, 5)));
        assert_eq!(sizes(0.001, 0.5), Some((4096, 1)));
        for (epsilon, delta) in
            [(0.0, 0.1), (1.0, 0.1), (-1.0, 0.1), (f64::NAN, 0.1), (0.1, 1e-9), (0.1, f64::NAN)]
        {
            assert!(sizes(epsilon, delta).is_none(), "{epsilon} {delta}");
        }
        assert!(shape(1e-12, 0.1).is_err_and(|e| e.to_string().contains("--sketch-epsilon")));
    }

    #[test]
    fn a_layout_follows_its_options() {
        let layout = options().layout(KEY).unwrap();
        assert_eq!((layout.window_shift, layout.set_mask), (27, 65_535));
        assert_eq!(layout.masks.lengths(), (32, 64));
        assert!(layout.cpus >= 1);
        for wrong in [
            Options { window: Duration::from_nanos(1), ..options() },
            Options { window: Duration::from_secs(600), ..options() },
            Options { max_sources: 3, ..options() },
            Options { max_listed: 0, ..options() },
            Options { ipv4_prefix: 33, ..options() },
            Options { ipv6_prefix: 0, ..options() },
        ] {
            assert!(matches!(wrong.layout(KEY), Err(Error::Option { .. })));
        }
    }
}
