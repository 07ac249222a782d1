//! What all hosts of a cluster know together, as an operator asks one of them.
//!
//! A host asks all members a [`Question`] and waits a second at the most. Questions and answers travel in
//! as many packets as they need; what is lost is asked for again. A host that has not answered by then is
//! named: nobody is left out silently. Nothing here knows a socket or a clock: [`Asker`] and [`Answerer`]
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

pub use answer::{Answerer, Asked};
pub use ask::{Answered, Asker, Outcome};
pub use packet::{MOST_ANSWER, MOST_QUESTION};
pub use question::{
    Answer, Candidates, Counted, Distinct, FileLimit, Held, Host, Known, MOST_FILE_LIMITS,
    MOST_PLACES, Place, Question,
};

#[cfg(test)]
mod tests;
