//! Access to shared words, the same on BPF and on the host.
//!
//! Map memory is shared by all CPUs and, through `mmap`, with the daemon. It is therefore made of
//! [`AtomicU64`] everywhere, and every access goes through these functions: tests switch between CPUs
//! at each of them, and with `--cfg loom` the words are loom's.
//!
//! A load sees all that was written before the store that it reads, and a read-modify-write is a full
//! barrier. On BPF the first is the processor's doing: x86 reorders neither loads nor stores among
//! themselves. arm64 does, and BPF has had acquire loads only since Linux 6.15: see
//! `docs/design/token-bucket.md`.

#[cfg(not(loom))]
pub use core::sync::atomic::AtomicU64;
#[cfg(not(target_arch = "bpf"))]
use core::sync::atomic::Ordering;

#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64;

/// Words of 0.
#[cfg(any(test, feature = "user"))]
#[must_use]
pub fn zeros<const N: usize>() -> [AtomicU64; N] {
    core::array::from_fn(|_| AtomicU64::new(0))
}

/// Where another CPU may come in between.
#[cfg(not(target_arch = "bpf"))]
#[inline(always)]
fn switch() {
    #[cfg(all(test, not(loom)))]
    crate::schedule::switch();
}

/// Makes a read-modify-write a full barrier to loom, which takes `SeqCst` for less unless a fence says so.
#[cfg(not(target_arch = "bpf"))]
#[inline(always)]
fn barrier() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Reads `word`. Never tears.
#[inline(always)]
pub fn load(word: &AtomicU64) -> u64 {
    #[cfg(not(target_arch = "bpf"))]
    {
        switch();
        word.load(Ordering::Acquire)
    }
    #[cfg(target_arch = "bpf")]
    // SAFETY: `word` is live and aligned. BPF has no atomic load before v4; an aligned 64-bit load
    // is one instruction, and volatile keeps the compiler from merging or splitting it.
    unsafe {
        word.as_ptr().read_volatile()
    }
}

/// Writes `word`. Whoever sees `value` sees what was written before.
#[inline(always)]
pub fn store(word: &AtomicU64, value: u64) {
    #[cfg(not(any(loom, target_arch = "bpf")))]
    {
        switch();
        word.store(value, Ordering::Release);
    }
    // loom knows no order between a plain store and a read-modify-write of another CPU: it lets the latter
    // follow although it has read what was there before the store. No processor does that.
    #[cfg(loom)]
    word.swap(value, Ordering::Release);
    #[cfg(target_arch = "bpf")]
    // SAFETY: as in `load`.
    unsafe {
        word.as_ptr().write_volatile(value);
    }
}

/// A read-modify-write, on the host by a method of the word, on BPF by an intrinsic: `core` offers its
/// atomics only `load` and `store` there, as the target declares no compare-and-swap. The kernel has had the
/// instructions since Linux 5.12.
macro_rules! modify {
    ($word:ident, $method:ident, $intrinsic:ident::<$($type:ty),+>, $value:expr) => {{
        #[cfg(not(target_arch = "bpf"))]
        {
            switch();
            barrier();
            let before = $word.$method($value, Ordering::SeqCst);
            barrier();
            before
        }
        #[cfg(target_arch = "bpf")]
        // SAFETY: the word is live, aligned, and only ever accessed atomically.
        unsafe {
            core::intrinsics::$intrinsic::<$($type,)+ { core::intrinsics::AtomicOrdering::SeqCst }>(
                $word.as_ptr(),
                $value,
            )
        }
    }};
}

/// Keeps what was written before apart from what is read afterwards, for all threads.
#[cfg(any(test, feature = "user"))]
pub fn fence() {
    #[cfg(not(loom))]
    core::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Adds `value` to `word`, wrapping, and returns what it was before; never loses an update.
#[inline(always)]
pub fn add(word: &AtomicU64, value: u64) -> u64 {
    modify!(word, fetch_add, atomic_xadd::<u64, u64>, value)
}

/// Sets `bits` of `word`, and returns what it was before.
#[inline(always)]
pub fn or(word: &AtomicU64, bits: u64) -> u64 {
    modify!(word, fetch_or, atomic_or::<u64, u64>, bits)
}

/// Replaces `word` by `new` and returns the old value.
#[inline(always)]
pub fn swap(word: &AtomicU64, new: u64) -> u64 {
    modify!(word, swap, atomic_xchg::<u64>, new)
}

/// Replaces `word` by `new` if it is `old`. Whether it did.
#[inline(always)]
pub fn replace(word: &AtomicU64, old: u64, new: u64) -> bool {
    #[cfg(not(target_arch = "bpf"))]
    {
        switch();
        barrier();
        let is_replaced =
            word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        barrier();
        is_replaced
    }
    #[cfg(target_arch = "bpf")]
    // SAFETY: `word` is a live, aligned u64 that is only ever accessed atomically.
    unsafe {
        let (seen, _) = core::intrinsics::atomic_cxchg::<
            u64,
            { core::intrinsics::AtomicOrdering::SeqCst },
            { core::intrinsics::AtomicOrdering::SeqCst },
        >(word.as_ptr(), old, new);
        // The instruction returns what it found; comparing that compiles to one jump, while the
        // intrinsic's own flag costs an i1 in memory that the verifier dislikes.
        seen == old
    }
}
