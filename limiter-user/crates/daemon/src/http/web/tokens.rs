//! Who may do what over TCP: tokens, and the sessions of browsers that have shown one.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::error::Failure;
use listen::token::Token;
use settings::web::WebConfig;

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
    id: Token,
    role: Role,
    since: Instant,
}

/// The tokens, and who has shown them.
pub(super) struct Tokens {
    reader: Option<Token>,
    admin: Option<Token>,
    sessions: Mutex<Vec<Session>>,
}

impl Tokens {
    /// Reads those that `config` has files for.
    ///
    /// # Errors
    /// If a file cannot be read, is open to everyone, or has no token in it.
    pub(super) fn read(config: &WebConfig) -> Result<Self, Failure> {
        let read = |file: &Option<PathBuf>, flag: &str| {
            let token = file.as_ref().map(|path| Token::read(path)).transpose();
            token.map_err(|error| Failure::from(error).context(flag))
        };
        Ok(Self::new(
            read(&config.token_file, "--http-token-file")?,
            read(&config.admin_token_file, "--http-admin-token-file")?,
        ))
    }

    pub(super) fn new(reader: Option<Token>, admin: Option<Token>) -> Self {
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

    /// What a token allows.
    pub(super) fn role_of(&self, token: &[u8]) -> Option<Role> {
        // Both are compared each time, so that the time does not tell whose token it is either.
        let is = |own: &Option<Token>| own.as_ref().is_some_and(|own| own.is(token));
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
        sessions.push(Session { id: Token::new(id.as_bytes()), role, since: now });
        Some(id)
    }

    /// What the session with this cookie allows at `now`.
    pub(super) fn session(&self, cookie: &str, now: Instant) -> Option<Role> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let found = sessions.iter().find(|session| session.id.is(cookie.as_bytes()))?;
        (now.duration_since(found.since) < SESSION).then_some(found.role)
    }

    pub(super) fn end(&self, cookie: &str) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|session| !session.id.is(cookie.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: &[u8] = b"0123456789abcdef";
    const ADMIN: &[u8] = b"fedcba9876543210fedcba9876543210";

    fn tokens() -> Tokens {
        Tokens::new(Some(Token::new(READER)), Some(Token::new(ADMIN)))
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
        let open = Tokens::new(None, Some(Token::new(ADMIN)));
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
}
