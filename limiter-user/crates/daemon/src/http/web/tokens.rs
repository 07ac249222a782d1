//! Who may do what over TCP: tokens, and the sessions of browsers that have shown one.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;

use api::error::{Failure, exit};
use settings::web::WebConfig;

/// Characters of a token, at least: fewer could be guessed.
const MIN_LEN: usize = 16;

/// Characters of a token, at most.
const MAX_LEN: usize = 256;

/// Sessions at once; a further one ends the oldest.
const MAX_SESSIONS: usize = 64;

/// How long a session lasts.
pub(super) const SESSION: Duration = Duration::from_secs(12 * 3600);

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
// In this order: a request passes if its role is at least the one needed.
pub(super) enum Role {
    /// Look.
    Reader,
    /// Look, and change limits and the deny list.
    Admin,
}

struct Session {
    /// The random number in its cookie, in hexadecimal.
    id: String,
    role: Role,
    since: Instant,
}

impl Session {
    fn has(&self, cookie: &str) -> bool {
        // As with tokens: the time of a comparison should not tell how much of a guess is right.
        self.id.as_bytes().ct_eq(cookie.as_bytes()).into()
    }
}

/// The tokens, and who has shown them.
pub(super) struct Tokens {
    reader: Option<Vec<u8>>,
    admin: Option<Vec<u8>>,
    sessions: Mutex<Vec<Session>>,
}

impl Tokens {
    /// Reads those that `config` has files for.
    ///
    /// # Errors
    /// If a file cannot be read, is open to everyone, or has no token in it.
    pub(super) fn read(config: &WebConfig) -> Result<Self, Failure> {
        let read = |file: &Option<PathBuf>, flag: &str| {
            let token = file.as_ref().map(|path| token(path)).transpose();
            token.map_err(|failure: Failure| failure.context(flag))
        };
        Ok(Self::new(
            read(&config.token_file, "--http-token-file")?,
            read(&config.admin_token_file, "--http-admin-token-file")?,
        ))
    }

    pub(super) fn new(reader: Option<Vec<u8>>, admin: Option<Vec<u8>>) -> Self {
        Self { reader, admin, sessions: Mutex::default() }
    }

    /// What somebody may do who has shown nothing. Only users of this machine reach a loopback address.
    pub(super) fn anybody(&self, loopback: bool) -> Option<Role> {
        (loopback && self.reader.is_none()).then_some(Role::Reader)
    }

    /// Whether there is a token for changes.
    pub(super) fn has_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// What a token allows. It takes as long for any wrong one of the same length: a comparison that ends at the first
    /// difference would let a client find a token byte by byte.
    pub(super) fn role_of(&self, token: &[u8]) -> Option<Role> {
        // Both are compared each time, so that the time does not tell whose token it is either.
        let is = |own: &Option<Vec<u8>>| own.as_ref().is_some_and(|own| own.ct_eq(token).into());
        let (admin, reader) = (is(&self.admin), is(&self.reader));
        if admin { Some(Role::Admin) } else { reader.then_some(Role::Reader) }
    }

    /// Begins a session at `now`. Returns what its cookie says; `None` if the kernel has no random
    /// numbers.
    pub(super) fn begin(&self, role: Role, now: Instant) -> Option<String> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).ok()?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        // A thread that panicked with the lock left the list whole: nothing is done with it in two
        // steps.
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|session| now.duration_since(session.since) < SESSION);
        // Whoever has a token could fill the memory with sessions; the oldest browser has to sign in again.
        if sessions.len() >= MAX_SESSIONS {
            sessions.remove(0);
        }
        sessions.push(Session { id: id.clone(), role, since: now });
        Some(id)
    }

    /// What the session with this cookie allows at `now`.
    pub(super) fn session(&self, cookie: &str, now: Instant) -> Option<Role> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let found = sessions.iter().find(|session| session.has(cookie))?;
        (now.duration_since(found.since) < SESSION).then_some(found.role)
    }

    pub(super) fn end(&self, cookie: &str) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|session| !session.has(cookie));
    }
}

/// The token in a file.
fn token(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    let make = format!("make one with `(umask 077; openssl rand -hex 32 >{name})`");
    let failed = |error: std::io::Error| {
        Failure::new(exit::USAGE, format!("cannot read {name}: {error}")).hint(make.clone())
    };
    // Opened first, then checked: between a check of the path and its opening, the file could
    // become another.
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    // A group is the operator's choice: whoever makes the token need not be the daemon's user.
    if mode & 0o007 != 0 {
        let failure = Failure::new(exit::USAGE, format!("everyone may read or change {name}"));
        return Err(failure.hint(format!("run `chmod 600 {name}`, and better make another token")));
    }
    // No more than tells that it is too long: somebody may have named a huge file, or a device without an end.
    let mut text = Vec::new();
    file.take(MAX_LEN as u64 + 2).read_to_end(&mut text).map_err(failed)?;
    // Editors and `openssl rand` end a file with a newline, which nobody types into a form.
    let token = text.trim_ascii();
    if !(MIN_LEN..=MAX_LEN).contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
        let message = format!(
            "{name} is no token: that is {MIN_LEN} to {MAX_LEN} letters, digits or signs in one line"
        );
        return Err(Failure::new(exit::USAGE, message).hint(make));
    }
    Ok(token.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const READER: &[u8] = b"0123456789abcdef";
    const ADMIN: &[u8] = b"fedcba9876543210fedcba9876543210";

    fn tokens() -> Tokens {
        Tokens::new(Some(READER.into()), Some(ADMIN.into()))
    }

    #[test]
    fn a_token_gives_its_role_and_nothing_else_does() {
        let tokens = tokens();
        assert_eq!(tokens.role_of(READER), Some(Role::Reader));
        assert_eq!(tokens.role_of(ADMIN), Some(Role::Admin));
        for wrong in [&b""[..], b"0123456789abcdeF", b"0123456789abcde", b"0123456789abcdef0"] {
            assert_eq!(tokens.role_of(wrong), None);
        }
        assert_eq!(Tokens::new(None, None).role_of(b""), None);
        assert_eq!(tokens.anybody(true), None);
        let open = Tokens::new(None, Some(ADMIN.into()));
        assert_eq!((open.anybody(true), open.anybody(false)), (Some(Role::Reader), None));
    }

    #[test]
    fn sessions_end() {
        let (tokens, start) = (tokens(), Instant::now());
        let cookie = tokens.begin(Role::Admin, start).unwrap();
        assert_eq!(tokens.session(&cookie, start), Some(Role::Admin));
        assert_eq!(tokens.session(&cookie, start + SESSION), None);
        for wrong in ["", "zz", &cookie[..63], &cookie.replace(&cookie[..2], "ßx")] {
            assert_eq!(tokens.session(wrong, start), None);
        }
        tokens.end(&cookie);
        assert_eq!(tokens.session(&cookie, start), None);
    }

    #[test]
    fn sessions_are_bounded() {
        let (tokens, start) = (tokens(), Instant::now());
        let first = tokens.begin(Role::Reader, start).unwrap();
        for _ in 0..MAX_SESSIONS {
            tokens.begin(Role::Reader, start).unwrap();
        }
        assert_eq!(tokens.sessions.lock().unwrap().len(), MAX_SESSIONS);
        assert_eq!(tokens.session(&first, start), None);
    }

    #[test]
    fn a_token_file_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        assert!(token(&path).unwrap_err().hint.unwrap().contains("openssl rand"));
        let write = |text: &[u8], mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            token(&path)
        };
        assert_eq!(write(b"0123456789abcdef\n", 0o640).unwrap(), READER);
        assert!(write(READER, 0o644).unwrap_err().message.contains("everyone"));
        for wrong in [&b"short\n"[..], b"", b"0123456789 abcdef", &[b'x'; 300], &[200; 20]] {
            assert!(write(wrong, 0o600).unwrap_err().message.contains("is no token"));
        }
    }
}
