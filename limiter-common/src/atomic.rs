//! Read-modify-write on shared words, the same on BPF and on the host.
//!
//! Map memory is shared by all CPUs and, through `mmap`, with the daemon. It is therefore made of
//! [`AtomicU64`] everywhere. The BPF target declares no compare-and-swap, so `core` offers its
//! atomics only `load` and `store` there; the kernel has had the instructions since Linux 5.12, and
//! the intrinsics reach them. Those instructions are full barriers, hence `SeqCst`.

use core::sync::atomic::AtomicU64;
#[cfg(not(target_arch = "bpf"))]
use core::sync::atomic::Ordering;

/// Reads `word`. Never tears.
#[inline(always)]
pub fn load(word: &AtomicU64) -> u64 {
    #[cfg(not(target_arch = "bpf"))]
    return word.load(Ordering::Relaxed);
    #[cfg(target_arch = "bpf")]
    // SAFETY: `word` is live and aligned. BPF has no atomic load before v4; an aligned 64-bit load
    // is one instruction, and volatile keeps the compiler from merging or splitting it.
    return unsafe { word.as_ptr().read_volatile() };
}

/// Writes `word`, without ordering against other words.
#[inline(always)]
pub fn store(word: &AtomicU64, value: u64) {
    #[cfg(not(target_arch = "bpf"))]
    word.store(value, Ordering::Relaxed);
    #[cfg(target_arch = "bpf")]
    // SAFETY: as in `load`.
    unsafe {
        word.as_ptr().write_volatile(value);
    }
}

/// Adds `value` to `word`, wrapping, and returns what it was before; never loses an update.
#[inline(always)]
pub fn add(word: &AtomicU64, value: u64) -> u64 {
    #[cfg(not(target_arch = "bpf"))]
    return word.fetch_add(value, Ordering::SeqCst);
    #[cfg(target_arch = "bpf")]
    // SAFETY: `word` is a live, aligned u64 that is only ever accessed atomically.
    return unsafe {
        core::intrinsics::atomic_xadd::<u64, u64, { core::intrinsics::AtomicOrdering::SeqCst }>(
            word.as_ptr(),
            value,
        )
    };
}

/// Sets `bits` of `word`, and returns what it was before.
#[inline(always)]
pub fn or(word: &AtomicU64, bits: u64) -> u64 {
    #[cfg(not(target_arch = "bpf"))]
    return word.fetch_or(bits, Ordering::SeqCst);
    #[cfg(target_arch = "bpf")]
    // SAFETY: `word` is a live, aligned u64 that is only ever accessed atomically.
    return unsafe {
        core::intrinsics::atomic_or::<u64, u64, { core::intrinsics::AtomicOrdering::SeqCst }>(
            word.as_ptr(),
            bits,
        )
    };
}

/// Replaces `word` by `new` and returns the old value. A full barrier: what was written before is
/// seen by whoever sees `new`.
#[inline(always)]
pub fn swap(word: &AtomicU64, new: u64) -> u64 {
    #[cfg(not(target_arch = "bpf"))]
    return word.swap(new, Ordering::SeqCst);
    #[cfg(target_arch = "bpf")]
    // SAFETY: `word` is a live, aligned u64 that is only ever accessed atomically.
    return unsafe {
        core::intrinsics::atomic_xchg::<u64, { core::intrinsics::AtomicOrdering::SeqCst }>(
            word.as_ptr(),
            new,
        )
    };
}

/// Replaces `word` by `new` if it is `old`. Whether it did.
#[inline(always)]
pub fn replace(word: &AtomicU64, old: u64, new: u64) -> bool {
    #[cfg(not(target_arch = "bpf"))]
    return word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    #[cfg(target_arch = "bpf")]
    // SAFETY: `word` is a live, aligned u64 that is only ever accessed atomically.
    return unsafe {
        let (seen, _) = core::intrinsics::atomic_cxchg::<
            u64,
            { core::intrinsics::AtomicOrdering::SeqCst },
            { core::intrinsics::AtomicOrdering::SeqCst },
        >(word.as_ptr(), old, new);
        // The instruction returns what it found; comparing that compiles to one jump, while the
        // intrinsic's own flag costs an i1 in memory that the verifier dislikes.
        seen == old
    };
}
