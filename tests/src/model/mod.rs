//! A plain reference model of the limiter: what should become of each frame, written from the
//! documentation and independently of the code that it checks.
//!
//! Its sketch is an exact count per source, its table has room for everyone, and its time is an
//! interval: a test only knows that the program read the clock between two moments of its own. Where
//! the verdict depends on where between, the model says so and adopts what it sees.

mod bucket;
mod judge;
mod packet;
mod policy;
mod sketch;
pub mod traffic;

pub use bucket::{Bucket, Charge};
pub use judge::{Counts, Model, Moment, Outcome, Tracked};
pub use packet::{Reading, read};
pub use policy::{Policy, Rate};
pub use sketch::Sketch;
