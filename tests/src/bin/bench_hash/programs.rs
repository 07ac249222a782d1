//! The kernel programs that hash.

use std::time::Instant;

use aya::{Ebpf, EbpfLoader, Pod, TestRun as _, TestRunOptions, programs::Xdp};
use limiter_common::hash::HashKey;
use tests::{frame, model::traffic::Random, sender};

use crate::hash::Hash;

#[cfg(generator)]
const OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/bench-ebpf")));
#[cfg(not(generator))]
const OBJECT: Option<&[u8]> = None;

/// The source that frames start from.
const SOURCE: [u8; 4] = [198, 51, 100, 7];
const ADDRESSES: std::ops::Range<usize> = frame::ETHERNET + 12..frame::ETHERNET + 20;
const LENGTH: usize = 64;
/// Hashes in a run of a kernel program.
pub(crate) const HASHES: u32 = 8;
/// Runs of a check.
const CHECKED: u32 = 10_000;

/// The key as the kernel keeps it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Key(HashKey);

// SAFETY: an array of integers.
unsafe impl Pod for Key {}

/// The programs, under a key of this process.
pub(crate) struct Programs {
    object: Ebpf,
    key: HashKey,
}

impl Programs {
    /// Loads them all, and keeps this thread on one CPU, the last one.
    ///
    /// # Panics
    /// If they were left out of this build, or the kernel refuses them.
    pub(crate) fn load() -> Self {
        let object = OBJECT.expect(
            "this build lacks the benchmark's kernel programs: `cargo xtask bench` builds them, \
             `cargo xtask setup` installs what that needs",
        );
        let mut random = Random(7);
        let key = HashKey { words: std::array::from_fn(|_| random.number()) };
        let global = Key(key);
        let mut loader = EbpfLoader::new();
        let loaded = loader.override_global("HASH_KEY", &global, true).load(object);
        let mut object = loaded.expect("an object file of the benchmark's kernel programs");
        for hash in Hash::ALL {
            let name = hash.program();
            program(&mut object, hash)
                .load()
                .unwrap_or_else(|error| panic!("the kernel refuses {name}: {error}"));
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        sender::pin(Some(cpus - 1));
        Self { object, key }
    }

    /// Number of instructions of a program.
    pub(crate) fn instructions(&mut self, hash: Hash) -> usize {
        let info = program(&mut self.object, hash).info().expect("a loaded program");
        info.size_translated().map_or(0, |bytes| bytes as usize / 8)
    }

    /// Runs a program; gives ns per run. The kernel's own figure is in whole ns.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub(crate) fn run(&mut self, hash: Hash, runs: u32) -> f64 {
        let start = Instant::now();
        let _frame = self.hash(hash, runs);
        start.elapsed().as_nanos() as f64 / f64::from(runs)
    }

    /// Compares what a program makes with what userspace does.
    ///
    /// # Panics
    /// If they differ.
    pub(crate) fn check(&mut self, hash: Hash) {
        for runs in [1, 2, CHECKED] {
            let expected = hash.chain(&self.key, SOURCE, runs * HASHES);
            let frame = self.hash(hash, runs);
            let name = hash.name();
            assert_eq!(frame[ADDRESSES], expected, "{name}: {runs} runs from {SOURCE:?} differ");
        }
    }

    fn hash(&mut self, hash: Hash, runs: u32) -> Vec<u8> {
        let template = frame::udp(SOURCE.into(), LENGTH);
        let mut out = vec![0; LENGTH];
        let options = TestRunOptions {
            data_in: Some(&template),
            data_out: Some(&mut out),
            repeat: runs,
            ..TestRunOptions::default()
        };
        let name = hash.program();
        let result = program(&mut self.object, hash).test_run(options);
        result.unwrap_or_else(|error| panic!("the kernel does not run {name}: {error}"));
        out
    }
}

fn program(object: &mut Ebpf, hash: Hash) -> &mut Xdp {
    let name = hash.program();
    let program = object.program_mut(name).unwrap_or_else(|| panic!("no program {name}"));
    program.try_into().expect("an XDP program")
}
