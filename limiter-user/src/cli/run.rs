//! `limiter run`

use crate::config::{ConfigFile, Given};
use crate::daemon;
use crate::error::{Failure, exit};

pub(super) fn run(given: Given) -> Result<u8, Failure> {
    let settings = given.with(ConfigFile::find(given.file())?)?;
    daemon::run(given, settings)?;
    Ok(exit::OK)
}
