//! What an operator says of sources and packets, and the words in which hosts and programs speak of them.
//!
//! It owns units, targets, classes, limits, lists and bans: how they are read, checked, merged and compiled
//! to what the kernel computes with. It does no I/O; the present time is an argument, or a field.

pub mod algorithm;
pub mod applying;
pub mod ban;
pub mod class;
pub mod compile;
pub mod digest;
mod distinct;
mod explain;
pub mod fair;
pub mod group;
pub mod input;
pub mod instance;
pub mod interface;
mod invalid;
pub mod layers;
pub mod lease;
pub mod limit;
pub mod limits;
pub mod list;
pub mod lists;
mod location;
pub mod management;
pub mod meter;
mod offered;
pub mod overrides;
pub mod prefix;
pub mod price;
pub mod record;
pub mod rollup;
pub mod rotation;
pub mod sample;
pub mod scope;
pub mod share;
pub mod source;
pub mod stance;
pub mod tables;
pub mod target;
pub mod traffic;
pub mod units;

pub use algorithm::Algorithm;
pub use ban::Ban;
pub use class::{Class, Classes};
pub use distinct::Distinct;
pub use explain::{Explain, Fault, chain};
pub use group::{GroupLimit, Groups};
pub use input::LimitInput;
pub use invalid::Invalid;
pub use layers::{Layer, LayeredLimits};
pub use limit::{Amount, Limit, ModelError, Tier};
pub use limits::{Change, Changes, Limits};
pub use location::Location;
pub use management::Management;
pub use offered::{Least, Offered, evidence_text};
pub use scope::{OnError, Partition, Reach, Scope};
pub use share::Share;
pub use stance::Stance;
pub use target::{Selector, Target};
pub use units::{Rate, Unit, UnitError};
