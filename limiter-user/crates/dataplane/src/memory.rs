//! Array maps as memory.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::slice;

use aya::maps::MapData;
use limiter_common::abi::Config;
use limiter_common::table::{Identity, Slot};
use memmap2::{MmapOptions, MmapRaw};
use std::sync::atomic::AtomicU64;

use super::error::{Error, Opaque};

/// Types that consist of atomics only, so that sharing them with the kernel is sound.
///
/// # Safety
/// Every byte lies in an atomic, every bit pattern is a value, and the size is a multiple of 8 (an
/// array map's stride is its value size rounded up to that).
pub(super) unsafe trait Shared {}

// SAFETY: one atomic.
unsafe impl Shared for AtomicU64 {}
// SAFETY: atomics only, 64 bytes without padding (asserted in `abi`).
unsafe impl Shared for Config {}
// SAFETY: as above.
unsafe impl Shared for Slot {}
// SAFETY: as above.
unsafe impl Shared for Identity {}
// SAFETY: as above, 16 bytes.
unsafe impl Shared for limiter_common::share::ShareSlot {}
// SAFETY: as above.
unsafe impl Shared for limiter_common::shared::Shared {}
// SAFETY: as above.
unsafe impl Shared for limiter_common::batch::Batch {}
// SAFETY: atomics only, 64 bytes without padding (asserted where it is).
unsafe impl Shared for limiter_common::sampling::Sampling {}
// SAFETY: an array of atomics.
unsafe impl Shared for limiter_common::hll::Registers {}
// SAFETY: an array of atomics.
unsafe impl Shared for limiter_common::class::Table {}

fn unmapped(name: &str) -> impl Fn(Opaque) -> Error {
    move |source| Error::Map { action: format!("map the memory of {name}"), source }
}

/// The elements of an array map with `BPF_F_MMAPABLE`, shared with the kernel program.
pub(super) struct Elements<T> {
    memory: MmapRaw,
    count: usize,
    element: PhantomData<T>,
}

impl<T: Shared> Elements<T> {
    /// Maps all elements of `map`.
    ///
    /// # Errors
    /// [`Error::Map`] if the map is not what `name` should be, or cannot be mapped.
    pub(super) fn new(map: &MapData, name: &str) -> Result<Self, Error> {
        let failed = unmapped(name);
        let info = map.info().map_err(|e| failed(Box::new(e)))?;
        // The map may be one that was pinned, by whatever version. A wrong size would have this
        // read beside the elements.
        if info.value_size() as usize != size_of::<T>() {
            let found = info.value_size();
            let problem = format!("elements have {found} bytes, not {}", size_of::<T>());
            return Err(failed(io::Error::other(problem).into()));
        }
        Self::map(map, info.max_entries() as usize).map_err(failed)
    }

    /// Maps `count` times the memory of a `T`, which the map must have.
    fn map(map: &MapData, count: usize) -> Result<Self, Opaque> {
        let memory =
            MmapOptions::new().len(count * size_of::<T>()).map_raw(map.fd().as_fd().as_raw_fd())?;
        // A mapping begins at a page, so this never fails; unsafe code below depends on it.
        if memory.as_ptr().align_offset(align_of::<T>()) != 0 {
            return Err(io::Error::other("not aligned").into());
        }
        Ok(Self { memory, count, element: PhantomData })
    }

    /// All elements.
    pub(super) fn all(&self) -> &[T] {
        // SAFETY: the mapping covers `count` elements of `T`, is aligned for them (checked in `new`)
        // and lives as long as `self`. The kernel and others change them at any time, which is what
        // the atomics that `T: Shared` consists of are for.
        unsafe { slice::from_raw_parts(self.memory.as_ptr().cast::<T>(), self.count) }
    }

    /// The size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        (self.count * size_of::<T>()) as u64
    }
}
