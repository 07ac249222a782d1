//! Where the store is: one server, one that sentinels name, or a cluster.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo};

/// The ports that servers have where no other one is given, and sentinels.
const PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;

/// Where the store is, without its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreAddress {
    pub(super) kind: Kind,
    tls: bool,
    user: Option<String>,
    hosts: Vec<(String, u16)>,
    database: i64,
    written: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One server.
    Server,
    /// One server, by a socket in the file system.
    Unix(PathBuf),
    /// The one that sentinels tell to be the primary of such a name.
    Sentinel(String),
    /// Many of them, with a part of the keys each.
    Cluster,
}

/// How it is written.
const FORMS: &str = "give redis://HOST:PORT, unix:PATH, redis-sentinel://HOST:PORT,HOST:PORT/NAME or \
                     redis-cluster://HOST:PORT,HOST:PORT; with rediss- for TLS";

impl FromStr for StoreAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |kind| Self {
            kind,
            tls: false,
            user: None,
            hosts: Vec::new(),
            database: 0,
            written: text.to_owned(),
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(plain(Kind::Unix(path.into())));
        }
        let (scheme, rest) = text.split_once("://").ok_or(FORMS)?;
        let (tls, kind) = match scheme.strip_prefix("rediss") {
            Some(kind) => (true, kind),
            None => (false, scheme.strip_prefix("redis").ok_or(FORMS)?),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            None => (None, authority),
            // Other users of the machine can read a command line.
            Some((user, _)) if user.contains(':') => {
                return Err("the password is in a file: give --store-password-file".into());
            }
            Some((user, hosts)) => (Some(user.to_owned()), hosts),
        };
        let number = |path: &str| if path.is_empty() { Ok(0) } else { path.parse() };
        let (kind, database, port) = match kind {
            "" => (Kind::Server, number(path).map_err(|_| "the database is no number")?, PORT),
            "-sentinel" if path.is_empty() => {
                return Err("the name of the primary is missing: give it after the last /".into());
            }
            "-sentinel" => (Kind::Sentinel(path.to_owned()), 0, SENTINEL_PORT),
            "-cluster" if path.is_empty() => (Kind::Cluster, 0, PORT),
            _ => return Err(FORMS.into()),
        };
        let hosts: Vec<_> =
            hosts.split(',').map(|host| parse_host(host, port)).collect::<Result<_, _>>()?;
        if kind == Kind::Server && hosts.len() > 1 {
            return Err(format!("{} servers are no one store: {FORMS}", hosts.len()));
        }
        Ok(Self { tls, user, hosts, database, ..plain(kind) })
    }
}

/// A host and its port, which may be missing. Addresses of IPv6 are in brackets.
fn parse_host(text: &str, port: u16) -> Result<(String, u16), String> {
    let wrong = || format!("{text:?} is no HOST:PORT");
    let (host, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| wrong())?,
        None if rest.is_empty() => port,
        None => return Err(wrong()),
    };
    if host.is_empty() { Err(wrong()) } else { Ok((host.to_owned(), port)) }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.written)
    }
}

impl StoreAddress {
    /// Whether a user is named.
    pub(crate) const fn has_user(&self) -> bool {
        self.user.is_some()
    }

    /// Whether connections are encrypted.
    pub(super) const fn is_encrypted(&self) -> bool {
        self.tls
    }

    /// The servers to begin with.
    pub(super) fn servers(&self) -> Vec<ConnectionAddr> {
        if let Kind::Unix(path) = &self.kind {
            return vec![ConnectionAddr::Unix(path.clone())];
        }
        let hosts = self.hosts.iter().cloned();
        hosts
            .map(|(host, port)| match self.tls {
                true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
                false => ConnectionAddr::Tcp(host, port),
            })
            .collect()
    }

    /// Who asks the store, and in which database.
    pub(super) fn login(&self, password: Option<&str>) -> RedisConnectionInfo {
        let mut login = RedisConnectionInfo::default().set_db(self.database);
        if let Some(user) = &self.user {
            login = login.set_username(user);
        }
        if let Some(password) = password {
            login = login.set_password(password);
        }
        login.set_lib_name("limiter-serve", env!("CARGO_PKG_VERSION"))
    }

    /// One of the servers, with who asks it.
    pub(super) fn connection(
        &self,
        server: ConnectionAddr,
        password: Option<&str>,
    ) -> redis::RedisResult<ConnectionInfo> {
        Ok(server.into_connection_info()?.set_redis_settings(self.login(password)))
    }
}

/// What is in a file with a password: its first line.
pub(super) fn read_password(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().next().unwrap_or_default();
    match line.is_empty() {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "its first line is empty")),
        false => Ok(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read = |text: &str| text.parse::<StoreAddress>();
        let hosts = |text: &str| read(text).unwrap().hosts;
        assert_eq!(hosts("redis://store"), [("store".to_owned(), 6_379)]);
        assert_eq!(hosts("rediss://[::1]:7"), [("::1".to_owned(), 7)]);
        let sentinel = read("redis-sentinel://bob@a,b:1/main").unwrap();
        assert_eq!(sentinel.hosts, [("a".to_owned(), 26_379), ("b".to_owned(), 1)]);
        assert_eq!(
            (sentinel.kind, sentinel.user),
            (Kind::Sentinel("main".into()), Some("bob".into()))
        );
        assert!(read("rediss-cluster://a,b").unwrap().tls);
        assert_eq!(read("redis://a/3").unwrap().database, 3);
        assert_eq!(read("unix:/run/r").unwrap().kind, Kind::Unix("/run/r".into()));
        for (text, wrong) in [
            ("store:6379", "give redis://"),
            ("http://store", "give redis://"),
            ("redis-ring://store", "give redis://"),
            ("redis://bob:secret@store", "--store-password-file"),
            ("redis://a,b", "2 servers"),
            ("redis://store:x", "no HOST:PORT"),
            ("redis://", "no HOST:PORT"),
            ("redis://store/x", "no number"),
            ("redis-sentinel://store", "name of the primary"),
        ] {
            assert!(read(text).unwrap_err().contains(wrong), "{text}");
        }
    }
}
