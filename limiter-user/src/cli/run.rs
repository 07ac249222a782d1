//! `limiter run`

use crate::config::Given;
use crate::daemon;
use crate::error::{Failure, exit};

pub(super) fn run(given: Given) -> Result<u8, Failure> {
    let settings = given.with(given.read_file()?)?;
    daemon::run(given, settings)?;
    Ok(exit::OK)
}
