//! How a server is started.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use super::Version;
use crate::namespace::Entrance;

/// Who may use it.
#[derive(Clone, Debug)]
pub struct Login {
    /// The user's name; `default` is the one that clients are that give a password alone.
    pub user: String,
    /// The password, without spaces.
    pub password: String,
}

/// Whether its port speaks TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// It does not.
    #[default]
    Off,
    /// It does, and takes clients without a certificate.
    Server,
    /// It does, and takes only clients with a certificate.
    Mutual,
}

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// The version, if it is not the one that the environment names.
    pub version: Option<Version>,
    /// Where its port is, if that is not this host.
    pub namespace: Option<Entrance>,
    /// The address of its port, where others than its own host ask; one of the loopback interface if none is given.
    pub address: Option<Ipv4Addr>,
    /// Who may use it; anybody if nobody is named.
    pub login: Option<Login>,
    /// Whether its port speaks TLS.
    pub tls: Tls,
    /// More lines of its configuration, as `maxmemory 2mb`, `appendonly yes`.
    pub settings: Vec<String>,
}

impl StoreOptions {
    /// More lines of its configuration.
    #[must_use]
    pub fn with(settings: &[&str]) -> Self {
        Self { settings: settings.iter().map(ToString::to_string).collect(), ..Self::default() }
    }

    /// Only for a user with a password.
    #[must_use]
    pub fn login(self, user: &str, password: &str) -> Self {
        let login = Login { user: user.to_owned(), password: password.to_owned() };
        Self { login: Some(login), ..self }
    }

    /// With a port that speaks TLS.
    #[must_use]
    pub fn tls(self, tls: Tls) -> Self {
        Self { tls, ..self }
    }

    /// The version that is started.
    ///
    /// # Panics
    /// If the environment names one that there is not.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version.unwrap_or_else(|| Version::chosen().unwrap_or_else(|error| panic!("{error}")))
    }

    /// The text of its configuration.
    pub(super) fn configuration(
        &self,
        home: &Path,
        address: SocketAddr,
        is_sentinel: bool,
    ) -> String {
        let (home, ip, port) = (home.display(), address.ip(), address.port());
        let mut text = format!("bind {ip}\nunixsocket {home}/sock\ndir {home}\n");
        if self.tls == Tls::Off {
            text += &format!("port {port}\n");
        } else {
            let clients = if self.tls == Tls::Mutual { "yes" } else { "optional" };
            text += &format!(
                "port 0\ntls-port {port}\ntls-auth-clients {clients}\ntls-replication yes\ntls-cluster yes\n\
                 tls-ca-cert-file {home}/ca.crt\n\
                 tls-cert-file {home}/server.crt\ntls-key-file {home}/server.key\n"
            );
        }
        if is_sentinel {
            let _infallible =
                writeln!(text, "sentinel announce-ip {ip}\nsentinel announce-port {port}");
        } else {
            // A replica waits 5 s by default for others that want the same copy.
            text += &format!(
                "save \"\"\nreplica-announce-ip {ip}\nrepl-diskless-sync-delay 0\n\
                 cluster-announce-ip {ip}\n"
            );
        }
        if let Some(Login { user, password }) = &self.login {
            text += &format!(
                "user default off\nuser {user} on >{password} ~* &* +@all\n\
                 masteruser {user}\nmasterauth {password}\n"
            );
        }
        self.settings.iter().for_each(|line| text += &format!("{line}\n"));
        text
    }
}
