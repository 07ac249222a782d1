//! Maps by single sources, written many keys at a time.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData, MapError};
use aya::{Ebpf, Pod};

use super::Error;

/// `BPF_MAP_UPDATE_BATCH` of linux/bpf.h.
const UPDATE_BATCH: libc::c_long = 26;

/// `BPF_ANY` of linux/bpf.h.
const ANY: u64 = 0;

/// Keys that are handed over at once: long enough that the call does not count, short enough for the
/// kernel's patience with whoever else wants the CPU.
const CHUNK: usize = 4096;

/// The `batch` part of `union bpf_attr`.
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Keys of sources, and the values that they lead to, such as policy slots.
pub(super) struct Exact<K, V> {
    map: HashMap<MapData, K, V>,
    fd: OwnedFd,
    /// What is to be written next.
    keys: Vec<K>,
    slots: Vec<V>,
}

impl<K: Pod, V: Pod> Exact<K, V> {
    /// Takes the map `name` out of a loaded object.
    ///
    /// # Errors
    /// If it is not there, or is not what it should be.
    pub(super) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Self, Error> {
        let Some(Map::HashMap(data)) = ebpf.map(name) else {
            return Err(Error::load(format!("no hash map {name} in the object")));
        };
        // aya has no batches, so these calls are made here, and need a descriptor beside the one
        // that its type hides.
        let fd = data.fd().as_fd().try_clone_to_owned();
        let fd = fd.map_err(|source| Error::Map {
            action: format!("open the map {name}"),
            source: Box::new(source),
        })?;
        Ok(Self { map: super::take(ebpf, name)?, fd, keys: Vec::new(), slots: Vec::new() })
    }

    /// Every key and its value.
    pub(super) fn iter(&self) -> impl Iterator<Item = Result<(K, V), MapError>> {
        self.map.iter()
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: &K) -> Result<(), MapError> {
        self.map.remove(key)
    }

    /// Lets a key lead to a value, from the next [`Exact::flush`] on at the latest.
    ///
    /// # Errors
    /// As [`Exact::flush`].
    pub(super) fn insert(&mut self, key: K, slot: V) -> Result<(), (K, MapError)> {
        self.keys.push(key);
        self.slots.push(slot);
        if self.keys.len() < CHUNK { Ok(()) } else { self.flush() }
    }

    /// Forgets what has been inserted and not been written yet.
    pub(super) fn forget(&mut self) {
        self.keys.clear();
        self.slots.clear();
    }

    /// Writes what has been inserted.
    ///
    /// # Errors
    /// The first key that could not be written, and why. What was inserted after it is forgotten.
    pub(super) fn flush(&mut self) -> Result<(), (K, MapError)> {
        let Self { map, fd, keys, slots } = self;
        let written = write(
            keys,
            slots,
            |keys, slots| update_batch(fd, keys, slots),
            |key, slot| patiently(|| map.insert(key, slot, ANY)).map_err(|error| (key, error)),
        );
        self.forget();
        written
    }
}

/// Times that the kernel is asked again for memory.
const TRIES: u32 = 100;

/// Asks again when the kernel has no memory at hand: for elements that are not made beforehand it refills
/// its stock in the background, which a long list can be faster than.
fn patiently(mut insert: impl FnMut() -> Result<(), MapError>) -> Result<(), MapError> {
    let mut tries = 0;
    loop {
        match insert() {
            Err(MapError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::OutOfMemory && tries < TRIES =>
            {
                tries += 1;
                thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// Writes keys many at once, and those that cannot be written so one by one.
fn write<K: Copy, V: Copy, E>(
    keys: &[K],
    slots: &[V],
    mut many: impl FnMut(&[K], &[V]) -> usize,
    mut one: impl FnMut(K, V) -> Result<(), E>,
) -> Result<(), E> {
    // For a single key the usual call does.
    let mut at_once = keys.len() > 1;
    let mut done = 0;
    while done < keys.len() {
        if at_once {
            let written = many(&keys[done..], &slots[done..]);
            done += written;
            // Hash maps have batches since Linux 5.6, but a seccomp filter may forbid them: one refusal that wrote
            // nothing is enough. The key it failed at goes by the usual call, which tells why.
            at_once = written > 0;
        }
        if let (Some(key), Some(slot)) = (keys.get(done), slots.get(done)) {
            one(*key, *slot)?;
        }
        done += 1;
    }
    Ok(())
}

/// Writes keys in one system call; says how many were written. The next one may have been refused.
fn update_batch<K: Pod, V: Pod>(fd: &OwnedFd, keys: &[K], slots: &[V]) -> usize {
    let count = keys.len().min(slots.len());
    let mut attr = BatchAttr {
        in_batch: 0,
        out_batch: 0,
        keys: keys.as_ptr() as u64,
        values: slots.as_ptr() as u64,
        // Never more than a chunk.
        count: count as u32,
        map_fd: fd.as_raw_fd().cast_unsigned(),
        elem_flags: ANY,
        flags: 0,
    };
    // SAFETY: `attr` is laid out as the kernel's for this command, with what is not used zero, and of
    // the size that is told. `keys` and `slots` have at least `count` elements of the key's and the
    // value's size of the map (which `HashMap` has checked); the kernel only reads them.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, UPDATE_BATCH, &raw mut attr, size_of::<BatchAttr>())
    };
    if result == 0 {
        return count;
    }
    let error = io::Error::last_os_error();
    // The kernel tells how many it wrote before it failed, which is never all of them. If it failed
    // before it began, it tells nothing.
    let written = attr.count as usize;
    let written = if written < count { written } else { 0 };
    tracing::debug!("{written} of {count} keys were written at once: {error}");
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use limiter_common::key::SourceKey;
    use std::mem::offset_of;

    #[test]
    fn the_attributes_are_laid_out_as_in_the_kernel() {
        assert_eq!((size_of::<BatchAttr>(), offset_of!(BatchAttr, count)), (56, 32));
        assert_eq!((offset_of!(BatchAttr, map_fd), offset_of!(BatchAttr, elem_flags)), (36, 40));
    }

    /// Writes ten keys to a kernel that writes `at_most` at once, if any, and never `refused`. Returns
    /// what it has then, what it was asked for, and what came of it.
    fn written(at_most: usize, refused: u64) -> (Vec<u64>, [usize; 2], Result<(), u64>) {
        let keys: Vec<_> = (0..10).map(|low| SourceKey { high: 0, low }).collect();
        let slots: Vec<u32> = (0..10).collect();
        let kernel = std::cell::RefCell::new(Vec::new());
        let mut calls = [0, 0];
        let [many, single] = &mut calls;
        let result = write(
            &keys,
            &slots,
            |keys, slots| {
                *many += 1;
                let good = keys.iter().take(at_most).take_while(|key| key.low != refused);
                let good: Vec<_> = good.map(|key| key.low).collect();
                assert!(good.iter().zip(slots).all(|(key, slot)| *key == u64::from(*slot)));
                kernel.borrow_mut().extend_from_slice(&good);
                good.len()
            },
            |key, slot| {
                *single += 1;
                assert_eq!(key.low, u64::from(slot));
                if key.low == refused {
                    return Err(key.low);
                }
                kernel.borrow_mut().push(key.low);
                Ok(())
            },
        );
        (kernel.into_inner(), calls, result)
    }

    #[test]
    fn every_key_is_written_once_however_many_go_at_once() {
        let all: Vec<u64> = (0..10).collect();
        assert_eq!(written(10, 99), (all.clone(), [1, 0], Ok(())));
        assert_eq!(written(4, 99), (all.clone(), [2, 2], Ok(())));
        assert_eq!(written(0, 99), (all, [1, 10], Ok(())));
    }

    #[test]
    fn the_key_that_is_refused_is_told() {
        for at_most in [0, 1, 3, 10] {
            let (kernel, _, result) = written(at_most, 7);
            assert_eq!((kernel, result), ((0..7).collect(), Err(7)), "{at_most}");
        }
    }

    #[test]
    fn memory_that_comes_late_is_waited_for() {
        let refusal = |errno| {
            let io_error = io::Error::from_raw_os_error(errno);
            Err(MapError::SyscallError(aya::sys::SyscallError { call: "bpf", io_error }))
        };
        let mut asked = 0;
        let late = patiently(|| {
            asked += 1;
            if asked < 4 { refusal(libc::ENOMEM) } else { Ok(()) }
        });
        assert!(late.is_ok() && asked == 4);
        assert!(patiently(|| refusal(libc::ENOMEM)).is_err(), "not for ever");
        asked = 0;
        let full = patiently(|| {
            asked += 1;
            refusal(libc::E2BIG)
        });
        assert!(full.is_err() && asked == 1);
    }
}
