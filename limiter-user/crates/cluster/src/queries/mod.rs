//! What all hosts of a cluster know together, as an operator asks one of them.
//!
//! A host asks all members a [`Question`] and waits a second at the most. Questions and answers travel in
//! as many packets as they need; what is lost is asked for again. A host that has not answered by then is
//! named: nobody is left out silently. Nothing here knows a socket or a clock: [`QueryClient`] and [`QueryServer`]
//! are driven by `daemon/cluster/views.rs`, and by tests.
//!
//! Everything is bounded, by what is waited for and what is kept. Bytes that make no sense are refused.

mod answer;
mod ask;
pub mod distinct;
pub mod groups;
pub mod lag;
mod packet;
mod question;
pub mod top;

pub use answer::{Asked, QueryServer};
pub use ask::{Answered, Outcome, QueryClient};
pub use packet::{MAX_ANSWER, MAX_QUESTION};
pub use question::{
    Answer, BucketInfo, Candidates, Counted, Distinct, FileLimit, Host, MAX_FILE_LIMITS,
    MAX_PLACES, Question, SourceClass, SourceInfo,
};

#[cfg(test)]
mod tests;
