//! What the operator wants: limits, in their units, and where they are kept.

pub mod applying;
pub mod ban;
pub mod class;
pub mod compile;
pub mod limits;
pub mod list;
mod listed;
pub mod lists;
pub mod management;
pub mod model;
pub mod scope;
pub mod store;
pub mod target;
pub mod units;
pub mod wording;

pub use ban::Ban;
pub use class::{Class, Classes};
pub use limits::{Amount, Change, Changes, Limits};
pub use management::Management;
pub use model::{LimitSpec, ModelError, Tier};
pub use scope::{Partition, Reach, Scope};
pub use store::{Store, StoreError};
pub use target::{Target, Whom};
pub use units::{Rate, Unit, UnitError};
pub use wording::Wording;
