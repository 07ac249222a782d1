//! The outcome of a step that races with other CPUs.

use crate::abi::Reason;

/// What came of a step. The `Option` around it is `None` where `state` lacks something, so that `?` ends
/// the way of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt<T> {
    /// It is done.
    Done(T),
    /// Another CPU was faster. Nothing was charged, and the packet has no verdict yet.
    Contended,
}

impl Attempt<Reason> {
    /// A number that is no [`Reason`].
    const CONTENDED: u32 = 1 << 16;
    /// Another one.
    const MISSING: u32 = 1 << 17;

    /// A step's outcome as a number, for functions that can return nothing else.
    #[inline(always)]
    pub const fn to_bits(outcome: Option<Self>) -> u32 {
        match outcome {
            Some(Self::Done(reason)) => reason as u32,
            Some(Self::Contended) => Self::CONTENDED,
            None => Self::MISSING,
        }
    }

    /// The outcome that has become `bits`.
    #[inline(always)]
    pub fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            Self::MISSING => None,
            Self::CONTENDED => Some(Self::Contended),
            reason => Some(Self::Done(Reason::from_u32(reason))),
        }
    }
}

// Both cases lie in numbers that are no `Reason`: the kernel program passes them on in one register, and
// the verifier follows one number.
const _: () = assert!(size_of::<Option<Attempt<Reason>>>() == size_of::<Reason>());
