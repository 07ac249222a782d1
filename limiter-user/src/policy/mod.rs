//! What the operator wants: limits, in their units, and where they are kept.

pub mod compile;
pub mod limits;
pub mod list;
pub mod lists;
pub mod management;
pub mod model;
pub mod store;
pub mod units;

pub use limits::{Amount, Change, Changes, Limits};
pub use management::Management;
pub use model::{LimitSpec, ModelError, Target};
pub use store::{Store, StoreError};
pub use units::{Rate, Unit, UnitError};
