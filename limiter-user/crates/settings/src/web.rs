//! Where the dashboard is served, and what that takes.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use api::error::{Failure, exit};

/// Where the dashboard is served, and for whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebConfig {
    /// The address; `None` if it is not served at all.
    pub listen: Option<SocketAddr>,
    /// The file with the token for looking.
    pub token_file: Option<PathBuf>,
    /// The file with the token for changing something.
    pub admin_token_file: Option<PathBuf>,
    /// The certificate with its chain.
    pub tls_cert: Option<PathBuf>,
    /// Its private key.
    pub tls_key: Option<PathBuf>,
    /// Names that requests may have as their host.
    pub hosts: Vec<String>,
}

/// Reads an address to listen on.
///
/// # Errors
/// If it is none, in words that say how one looks.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let example = "give an address and a port, such as 127.0.0.1:9090 or [::1]:9090";
    match text.parse::<SocketAddr>() {
        // The kernel would choose another port at each start, and nobody would find the page.
        Ok(address) if address.port() == 0 => Err(format!("port 0 is none: {example}")),
        Ok(address) => Ok(address),
        Err(_) => Err(format!("{text:?} is not an address to listen on: {example}")),
    }
}

/// How to make what is needed for an address.
fn how_to(address: IpAddr) -> String {
    let named = if address.is_unspecified() { "DNS:HOST".into() } else { format!("IP:{address}") };
    format!(
        "make a token with `(umask 077; openssl rand -hex 32 >/etc/limiter/token)` and a certificate \
         with `(umask 077; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
         -days 365 -subj /CN=limiter -addext subjectAltName={named} -keyout /etc/limiter/tls.key -out \
         /etc/limiter/tls.crt)`, then give --http-token-file, --http-tls-cert and --http-tls-key; or \
         listen on 127.0.0.1 and come through `ssh -L`"
    )
}

impl WebConfig {
    /// Whether it goes together.
    ///
    /// # Errors
    /// What does not, and the key that is to blame.
    pub fn check(&self) -> Result<(), (&'static str, Failure)> {
        let refuse =
            |key, text: &str, hint: String| Err((key, Failure::new(exit::USAGE, text).hint(hint)));
        let both = "give --http-tls-cert and --http-tls-key, or neither".to_owned();
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => return refuse("http_tls_cert", "its private key is missing", both),
            (None, Some(_)) => return refuse("http_tls_key", "its certificate is missing", both),
            _ => {}
        }
        for name in &self.hosts {
            // Compared with the header of a request, which has names in ASCII only.
            let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
            if name.is_empty() || name.len() > 253 || name.contains(odd) {
                let hint = "give names such as limiter.example.net, without a port".into();
                return refuse("http_host", &format!("{name:?} is not the name of a host"), hint);
            }
        }
        // On a loopback address the machine's own users are the only ones, and `ssh -L` brings
        // others.
        let Some(listen) = self.listen.filter(|listen| !listen.ip().is_loopback()) else {
            return Ok(());
        };
        // Refused at the start rather than warned about: who can reach it could deny sources.
        let missing = if self.token_file.is_none() && self.admin_token_file.is_none() {
            "there is no token"
        // A token without TLS could be read on its way, and then be used by anybody (P7).
        } else if self.tls_cert.is_none() {
            "there is no certificate"
        } else {
            return Ok(());
        };
        let text = format!("{listen} can be reached from other hosts, and {missing}");
        refuse("http_listen", &text, how_to(listen.ip()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str) -> WebConfig {
        WebConfig { listen: Some(parse_listen(listen).unwrap()), ..WebConfig::default() }
    }

    #[test]
    fn other_hosts_need_token_and_certificate() {
        assert!(WebConfig::default().check().is_ok());
        for loopback in ["127.0.0.1:9090", "[::1]:9090", "127.3.4.5:80"] {
            assert!(config(loopback).check().is_ok(), "{loopback}");
        }
        for open in ["0.0.0.0:9090", "[::]:9090", "192.0.2.1:9090"] {
            let (key, failure) = config(open).check().unwrap_err();
            assert_eq!((key, failure.code), ("http_listen", exit::USAGE));
            assert!(failure.message.contains("no token"), "{failure}");
            assert!(failure.hint.unwrap().contains("openssl req"));
            let token = WebConfig { token_file: Some("t".into()), ..config(open) };
            assert!(token.check().unwrap_err().1.message.contains("no certificate"));
            let [cert, key] = ["c", "k"].map(|path| Some(path.into()));
            let whole = WebConfig { tls_cert: cert, tls_key: key, ..token };
            assert!(whole.check().is_ok());
            assert!(WebConfig { tls_key: None, ..whole }.check().is_err());
        }
    }

    #[test]
    fn addresses_and_names_are_checked() {
        for wrong in ["9090", "localhost:9090", "127.0.0.1", "127.0.0.1:0", "::1:80", ""] {
            let error = parse_listen(wrong).unwrap_err();
            assert!(error.contains("127.0.0.1:9090"), "{error}");
        }
        for wrong in ["", "a b", "limiter:9090", "ä"] {
            let config = WebConfig { hosts: vec![wrong.into()], ..WebConfig::default() };
            assert_eq!(config.check().unwrap_err().0, "http_host");
        }
    }
}
