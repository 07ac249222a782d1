//! Hashes by themselves: the limiter's, and SipHash-1-3, which it does without.
//!
//! Each program hashes the IPv4 source of the frame, then what the lower half of that hash is as a
//! source, and so on, and writes the last hash over both addresses, where its next run starts. Each
//! hash waits for the one before, as the rest of the limiter waits for it, and the last one proves all
//! of them.

use core::{hint::black_box, ptr::read_volatile};

use aya_ebpf::{
    bindings::xdp_action::{XDP_ABORTED, XDP_DROP},
    macros::xdp,
    programs::XdpContext,
};
use limiter_common::{hash::HashKey, key::SourceKey};

use crate::packet::ETHERNET;

const ETHERTYPE_IPV4: u16 = 0x0800;
/// Where the addresses are, the source first.
const ADDRESSES: usize = ETHERNET + 12;
/// Hashes in a run: enough for their cost to stand out.
const HASHES: usize = 8;

/// The secret, which the loader overwrites. SipHash takes the first two words.
#[unsafe(no_mangle)]
static HASH_KEY: HashKey = HashKey { words: [0; 10] };

/// The secret as the loader set it.
#[inline(always)]
pub(crate) fn key() -> HashKey {
    // SAFETY: the reference is to an initialised static.
    unsafe { read_volatile(&raw const HASH_KEY) }
}

/// No hash: what reading and writing the frame costs.
#[xdp]
fn hash_nothing(ctx: XdpContext) -> u32 {
    rehash(&ctx, |source| source.low)
}

/// The limiter's hash.
#[xdp]
fn hash_multilinear(ctx: XdpContext) -> u32 {
    rehash(&ctx, |source| key().hash(source).0)
}

/// SipHash-1-3 of what the limiter hashes, sixteen bytes.
#[xdp]
fn hash_siphash(ctx: XdpContext) -> u32 {
    rehash(&ctx, |source| siphash([source.high, source.low, 16 << 56]))
}

/// SipHash-1-3 of the four bytes of an IPv4 address.
#[xdp]
fn hash_siphash_ipv4(ctx: XdpContext) -> u32 {
    rehash(&ctx, |source| siphash([source.low & 0xffff_ffff | 4 << 56]))
}

#[inline(always)]
fn rehash(ctx: &XdpContext, hash: impl Fn(SourceKey) -> u64) -> u32 {
    let start = ctx.data();
    if start + ADDRESSES + 8 > ctx.data_end() {
        return XDP_ABORTED;
    }
    // SAFETY: the frame goes as far as its addresses, as just checked.
    let kind = unsafe { ((start + 12) as *const u16).read_unaligned() };
    if kind != ETHERTYPE_IPV4.to_be() {
        return XDP_ABORTED;
    }
    let addresses = start + ADDRESSES;
    // SAFETY: as above.
    let mut last = unsafe { (addresses as *const u64).read_unaligned() };
    for _ in 0..HASHES {
        let [a, b, c, d, ..] = last.to_ne_bytes();
        // Where the limiter hashes, it does not know any more of which family a source is.
        last = hash(black_box(SourceKey::from_ipv4([a, b, c, d])));
    }
    // SAFETY: as above.
    unsafe { (addresses as *mut u64).write_unaligned(last) };
    XDP_DROP
}

/// SipHash with one round for each word and three at the end. `words` are the message, padded and
/// with its length in the highest byte.
#[inline(always)]
fn siphash<const N: usize>(words: [u64; N]) -> u64 {
    // SAFETY: the references are to words of an initialised static.
    let key = unsafe {
        [read_volatile(&raw const HASH_KEY.words[0]), read_volatile(&raw const HASH_KEY.words[1])]
    };
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for word in words {
        state[3] ^= word;
        state = round(state);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    let [a, b, c, d] = round(round(round(state)));
    a ^ b ^ c ^ d
}

/// BPF has no instruction to rotate: each is two shifts and an or.
#[inline(always)]
fn round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    c = c.wrapping_add(d);
    b = b.rotate_left(13) ^ a;
    d = d.rotate_left(16) ^ c;
    a = a.rotate_left(32);
    c = c.wrapping_add(b);
    a = a.wrapping_add(d);
    b = b.rotate_left(17) ^ c;
    d = d.rotate_left(21) ^ a;
    c = c.rotate_left(32);
    [a, b, c, d]
}
