//! Configuration: one TOML file, the environment and flags.
//!
//! A key has the same name everywhere: `max_sources` in the file, `LIMITER_MAX_SOURCES` in the
//! environment, `--max-sources` as a flag. A flag wins over the environment, the environment over the
//! file, the file over the default. A file with anything wrong in it is refused as a whole.

mod args;
mod daemon;
mod file;
mod pages;
mod problem;
mod read;
mod settings;
mod tables;
pub mod web;

pub use args::{LIVE, LinkControl, LogFormat, Malformed, RunArgs};
pub use daemon::{DaemonConfig, OnExit};
pub use file::ConfigFile;
pub use pages::{default_file, example, reference};
pub use problem::alike;
pub use settings::{Arguments, Fixed, Origin, Settings, host_name};

/// The JSON Schema of the file.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(RunArgs).to_value()
}

#[cfg(test)]
mod tests;
