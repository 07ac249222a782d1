//! A plain reference model of the limiter: what should become of each frame, written from the
//! documentation and independently of the code that it checks.
//!
//! Its sketch is an exact count per source, its table has room for everyone, and its time is an
//! interval: a test only knows that the program read the clock between two moments of its own. Where
//! the verdict depends on where between, the model says so and adopts what it sees.

mod bucket;
mod class;
mod judge;
mod limits;
mod packet;
mod policy;
mod sketch;
pub mod traffic;
mod ways;

#[cfg(test)]
mod fuzz;

pub use bucket::{Bucket, Buckets, Charge, Charges};
pub use class::Class;
pub use judge::{Counts, Model, Moment, Outcome, Seen, Tracked};
pub use limits::{Account, By, Limits, Target, is_of_destination};
pub use packet::{Kind, MAPPED, Reading, read, read_bare, read_inside, read_inside_bare};
pub use policy::{Policy, Rate, Tier};
pub use sketch::Sketch;
pub use ways::Verdict;
