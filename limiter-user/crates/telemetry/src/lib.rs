//! What goes on: a sample of the data plane's counters each second, and events, for everyone who wants
//! to know.
//!
//! Nothing here is needed for a verdict, and nobody who listens can hold the daemon up: whoever is too
//! slow misses something and is told how much.

mod bus;
pub mod compare;
pub mod detect;
pub mod event;
pub mod history;
mod latency;
mod rates;
mod sample;
pub mod saved_sketch;
pub mod suggest;
pub mod throttle;

pub use bus::Bus;
pub use event::{Event, What};
pub use latency::{Latency, Recorder};
pub use rates::{MAX_SERIES, Observation, Rates, SourceRate, Watch};
pub use sample::Sample;
