//! The API's socket: one daemon, never two.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{Mode, umask};
use nix::unistd::Group;

use api::error::{Failure, exit};

/// A listening socket. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// Device and inode of the file.
    inode: (u64, u64),
    listener: UnixListener,
    // Whoever holds it may replace the socket's file.
    _lock: File,
}

/// What an error means that `action` on `path` has failed with.
fn failed(action: &str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    move |error| {
        let denied = error.kind() == ErrorKind::PermissionDenied;
        let code = if denied { exit::PRIVILEGE } else { exit::USAGE };
        Failure::new(code, format!("cannot {action} {}: {error}", path.display()))
            .hint("run as root, or give a --socket that may be made")
    }
}

impl Socket {
    /// Listens on `path`, which belongs to `group` if there is such a group, else to root alone. A
    /// socket that a dead daemon left is replaced.
    ///
    /// # Errors
    /// If another process listens there or is about to, if something else has that name, or if it
    /// cannot be made. What was there before stays.
    pub fn bind(path: &Path, group: &str) -> Result<Self, Failure> {
        if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)
                .map_err(failed("create", directory))?;
        }
        let lock = lock(path)?;
        if is_stale(path)? {
            tracing::info!("replacing {}, which a dead daemon left", path.display());
            fs::remove_file(path).map_err(failed("remove", path))?;
        }
        // Until it has its group, the socket is for its owner alone. bind(2) makes the file: a mode that is set afterwards
        // leaves a moment in which anybody can connect, and who has connected stays. The umask is the process's, which
        // has only this thread yet.
        let before = umask(Mode::from_bits_truncate(0o177));
        let bound = UnixListener::bind(path);
        umask(before);
        let listener = bound.map_err(failed("listen on", path))?;
        let metadata = fs::symlink_metadata(path).map_err(failed("read", path))?;
        let inode = (metadata.dev(), metadata.ino());
        let socket = Self { path: path.into(), inode, listener, _lock: lock };
        socket.open_to(group)?;
        Ok(socket)
    }

    fn open_to(&self, group: &str) -> Result<(), Failure> {
        let failed = || failed("set the permissions of", &self.path);
        let mode = match Group::from_name(group) {
            Ok(Some(found)) => {
                chown(&self.path, None, Some(found.gid.as_raw())).map_err(failed())?;
                0o660
            }
            // The errors are those by which getgrnam(3) may also say that there is no such group, for
            // instance because there is no group file at all.
            Ok(None) | Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => {
                tracing::info!("there is no group {group}: only root may use the socket");
                0o600
            }
            Err(errno) => return Err(failed()(errno.into())),
        };
        fs::set_permissions(&self.path, Permissions::from_mode(mode)).map_err(failed())
    }

    /// Keeps daemons from serving `path`.
    ///
    /// # Errors
    /// If one does already, or if something else has that name.
    pub fn guard(path: &Path) -> Result<SocketGuard, Failure> {
        // Where there is no directory for it, there is no daemon.
        let has_directory = path.parent().is_none_or(|p| p.as_os_str().is_empty() || p.is_dir());
        let lock = if has_directory { Some(lock(path)?) } else { None };
        Ok(SocketGuard { stale: is_stale(path)?, _lock: lock })
    }

    /// Whether a daemon serves `path`, or is about to.
    pub fn is_served(path: &Path) -> bool {
        // A shared lock: two who ask at the same time do not take each other for a daemon.
        let lock = File::open(lock_path(path));
        let is_locked =
            lock.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)));
        is_locked || UnixStream::connect(path).is_ok()
    }

    /// A listener to accept connections from.
    ///
    /// # Errors
    /// If it cannot be duplicated.
    pub fn listener(&self) -> Result<UnixListener, Failure> {
        let listener = self.listener.try_clone();
        let listener = listener.and_then(|l| l.set_nonblocking(true).map(|()| l));
        listener.map_err(failed("listen on", &self.path))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Somebody may have put another file in its place.
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.inode);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Takes the lock beside the socket. It stays when the daemon ends: removing it would let two
/// daemons lock two files of that name.
fn lock(path: &Path) -> Result<File, Failure> {
    let lock_path = lock_path(path);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&lock_path)
        .map_err(failed("open", &lock_path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(failed("lock", &lock_path)(error)),
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // The process id only makes the message better.
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(served(path, pid));
        }
    }
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(failed("write to", &lock_path))?;
    Ok(file)
}

/// Keeps daemons from serving a socket while it exists.
#[derive(Debug)]
pub struct SocketGuard {
    stale: bool,
    _lock: Option<File>,
}

impl SocketGuard {
    /// Whether there is a socket's file that nobody listens on.
    pub fn has_stale_socket(&self) -> bool {
        self.stale
    }
}

fn served(path: &Path, pid: Option<u32>) -> Failure {
    let who = pid.map_or("another process".into(), |pid| format!("another daemon (pid {pid})"));
    Failure::new(exit::USAGE, format!("{who} already serves {}", path.display()))
        .hint("stop it first, or run this one as another --instance, which has its own --socket, --state-dir \
               and --pin-dir")
}

/// Whether there is a socket that nobody listens on; an error if there is anything else.
fn is_stale(path: &Path) -> Result<bool, Failure> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed("read", path)(error)),
    };
    if !metadata.file_type().is_socket() {
        let message = format!("{} exists and is not a socket", path.display());
        return Err(Failure::new(exit::USAGE, message)
            .hint("give another --socket, or move that file away"));
    }
    // The kernel refuses a connection where the file outlives its listener; nothing else tells a dead one from a living
    // one of another program, which has not our lock.
    match UnixStream::connect(path) {
        Ok(_) => Err(served(path, None)),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(true),
        Err(error) => Err(failed("connect to", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: &str = "limiter-no-such-group";

    #[test]
    fn a_live_socket_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sub/limiter.sock");
        let first = Socket::bind(&path, GROUP).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = Socket::bind(&path, GROUP).unwrap_err();
        assert_eq!(error.code, exit::USAGE);
        assert!(error.message.contains(&format!("pid {}", std::process::id())), "{error}");
        assert!(Socket::is_served(&path));
        UnixStream::connect(&path).unwrap();
        drop(first);
        assert!(!Socket::is_served(&path));
        assert!(!path.exists());
        Socket::bind(&path, GROUP).unwrap();
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limiter.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _socket = Socket::bind(&path, GROUP).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn others_sockets_and_files_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limiter.sock");
        let foreign = UnixListener::bind(&path).unwrap();
        let error = Socket::bind(&path, GROUP).unwrap_err();
        assert!(error.message.contains("another process already serves"), "{error}");
        assert!(path.exists());
        drop(foreign);
        let path = directory.path().join("file");
        fs::write(&path, "precious").unwrap();
        let error = Socket::bind(&path, GROUP).unwrap_err();
        assert!(error.message.contains("not a socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}
