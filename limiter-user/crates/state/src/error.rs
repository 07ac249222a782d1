//! What can go wrong with the store.

use std::io;
use std::path::PathBuf;

use model::{Explain, Fault};

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or directory could not be handled.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another daemon has the store.
    #[error("another daemon uses the state directory {}", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Neither the store nor its mirror can be read.
    #[error("the store {} cannot be read ({main}), nor can its mirror ({mirror})", path.display())]
    Corrupt {
        /// The main file.
        path: PathBuf,
        /// What is wrong with it.
        main: String,
        /// What is wrong with the mirror.
        mirror: String,
    },
    /// The store was written by another version of this program.
    #[error("the store {} has version {found}, this program knows {known}", path.display())]
    // Refused, not converted: what a later version has added would be lost with the first change.
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that can be read.
        known: u64,
    },
    /// The store holds a change that its writer was told has failed.
    #[error(
        "the store {} is at revision {found}, the daemon at {known}: a change that failed is in it after all",
        path.display()
    )]
    // An error, not a repair: the kernel enforces what was before, and a restart takes what the
    // store holds.
    Ahead {
        /// The file.
        path: PathBuf,
        /// The revision of the file.
        found: u64,
        /// The revision of what is in force.
        known: u64,
    },
    /// The database refused.
    #[error("cannot {action} the store {}", path.display())]
    Database {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: Box<redb::Error>,
    },
}

impl Explain for StoreError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Io { source, path, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                format!(
                    "run as root, or give a --state-dir that may be written: {}",
                    path.display()
                )
            }
            Self::Io { .. } => "give another --state-dir".into(),
            Self::Locked { .. } => {
                "stop that daemon, or give this one its own --state-dir, --socket and --pin-dir"
                    .into()
            }
            Self::Corrupt { path, .. } => format!(
                "nothing was changed; restore {} from a backup, or move both files away to start \
                 without limits",
                path.display()
            ),
            Self::Version { .. } => "use the version of limiter that wrote it".into(),
            Self::Ahead { .. } => "restart the daemon: it takes what the store holds".into(),
            Self::Database { .. } => "is the disk full?".into(),
        })
    }

    fn fault(&self) -> Fault {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Fault::Privilege
            }
            Self::Io { .. } | Self::Locked { .. } | Self::Corrupt { .. } | Self::Version { .. } => {
                Fault::Input
            }
            Self::Ahead { .. } | Self::Database { .. } => Fault::Refused,
        }
    }
}
