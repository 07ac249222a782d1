//! Configuration: one TOML file, the environment and flags.
//!
//! A key has the same name everywhere: `max_sources` in the file, `LIMITER_MAX_SOURCES` in the
//! environment, `--max-sources` as a flag. A flag wins over the environment, the environment over the
//! file, the file over the default. A file with anything wrong in it is refused as a whole.

mod args;
mod daemon;
mod file;
mod keys;
mod problem;
mod settings;
pub mod web;

pub use args::{LogFormat, Malformed, RunArgs};
pub use daemon::{DaemonConfig, OnExit};
pub use file::ConfigFile;
pub use keys::Keys;
pub use settings::{Arguments, Fixed, Origin, Settings, host_name};

/// A file with every key, its default and what it means; each key is commented out.
pub const DEFAULT: &str = include_str!("default.toml");

/// [`DEFAULT`] with all keys and examples in force.
pub fn example() -> String {
    let in_force = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| !c.is_whitespace() && c != '#') => rest.to_owned(),
        _ => line.to_owned(),
    };
    DEFAULT.lines().map(in_force).collect::<Vec<_>>().join("\n") + "\n"
}

#[cfg(test)]
mod tests;
