//! Tokens: texts in files that only those can read who may do something.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use model::{Explain, Fault};
use subtle::ConstantTimeEq;

/// Characters of a token, at least: fewer could be guessed.
const MIN_LEN: usize = 16;

/// Characters of a token, at most.
const MAX_LEN: usize = 256;

/// What somebody has to show.
pub struct Token(Vec<u8>);

/// Why a file has no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others than its owner and group can read or change it.
    #[error("everyone may read or change {}", .0.display())]
    Open(PathBuf),
    /// Something else is in it.
    #[error(
        "{} is no token: that is {MIN_LEN} to {MAX_LEN} letters, digits or signs in one line",
        .0.display()
    )]
    Malformed(PathBuf),
}

impl Explain for TokenError {
    fn fault(&self) -> Fault {
        Fault::Input
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Open(path) => {
                format!("run `chmod 600 {}`, and better make another token", path.display())
            }
            Self::Read { path, .. } | Self::Malformed(path) => {
                format!("make one with `(umask 077; openssl rand -hex 32 >{})`", path.display())
            }
        })
    }
}

impl Token {
    /// The token in a file.
    ///
    /// # Errors
    /// If it cannot be read, is open to everyone, or has no token in it.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Read { path: path.to_owned(), source };
        // Opened first, then checked: between a check of the path and its opening, the file could become another.
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        // A group is the operator's choice: whoever makes the token need not be the user that reads it.
        if mode & 0o007 != 0 {
            return Err(TokenError::Open(path.to_owned()));
        }
        // No more than tells that it is too long: somebody may have named a huge file, or a device without an end.
        let mut text = Vec::new();
        file.take(MAX_LEN as u64 + 2).read_to_end(&mut text).map_err(failed)?;
        // Editors and `openssl rand` end a file with a newline, which nobody types into a form.
        let token = text.trim_ascii();
        if !(MIN_LEN..=MAX_LEN).contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::Malformed(path.to_owned()));
        }
        Ok(Self(token.into()))
    }

    /// A token that is known already.
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        Self(text.into())
    }

    /// Whether somebody has shown it. It takes as long for any wrong one of the same length: a comparison that ends at the
    /// first difference would let a client find a token byte by byte.
    #[must_use]
    pub fn is(&self, shown: &[u8]) -> bool {
        self.0.ct_eq(shown).into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_token_file_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = |path| Token::read(path).map_err(|error| (error.to_string(), error.hint()));
        assert!(token(&path).err().unwrap().1.unwrap().contains("openssl rand"));
        let write = |text: &[u8], mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            token(&path)
        };
        assert!(
            write(b"0123456789abcdef\n", 0o640).is_ok_and(|token| token.is(b"0123456789abcdef"))
        );
        assert!(write(b"0123456789abcdef", 0o644).err().unwrap().0.contains("everyone"));
        for wrong in [&b"short\n"[..], b"", b"0123456789 abcdef", &[b'x'; 300], &[200; 20]] {
            assert!(write(wrong, 0o600).err().unwrap().0.contains("is no token"));
        }
    }

    #[test]
    fn only_the_token_is_the_token() {
        let token = Token::new(b"0123456789abcdef");
        assert!(token.is(b"0123456789abcdef"));
        for wrong in [&b""[..], b"0123456789abcdeF", b"0123456789abcde", b"0123456789abcdef0"] {
            assert!(!token.is(wrong));
        }
    }
}
