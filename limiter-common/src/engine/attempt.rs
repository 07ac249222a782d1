//! The outcome of a step that races with other CPUs.

use crate::abi::Reason;

/// What came of a step. The `Option` around it is `None` where `state` lacks something, so that `?` ends
/// the way of the packet.
pub(super) enum Attempt<T> {
    /// It is done.
    Done(T),
    /// Another CPU was faster. Nothing was charged, and the packet has no verdict yet.
    Contended,
}

// Both cases lie in numbers that are no `Reason`: the kernel program passes them on in one register, and
// the verifier follows one number.
const _: () = assert!(size_of::<Option<Attempt<Reason>>>() == size_of::<Reason>());
