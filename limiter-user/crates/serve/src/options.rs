//! What `limiter-serve` is told on its command line, or in its environment.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use api::address::Address;
use api::error::{Failure, exit};
use clap::Parser;
use ipnet::IpNet;
use model::lists::parse_target;
use model::units::parse_duration;

use crate::central::{StoreAddress, StoreSettings};
use crate::service::Place;

/// Decides on any key: whether it is within its limit.
///
/// It answers over RESP (CL.THROTTLE), HTTP (/v1/decide, /json) and gRPC (Envoy's rate limit service). Rules are files in
/// the format of envoyproxy/ratelimit. It needs no privileges and no daemon. States of keys survive its end.
#[derive(Debug, Parser)]
#[command(name = "limiter-serve", version, max_term_width = 100)]
pub(crate) struct Options {
    /// Files with rules, or folders with .yaml files; SIGHUP reads them again
    #[arg(long, value_name = "PATH", env = "LIMITER_SERVE_RULES", value_delimiter = ':')]
    pub(crate) rules: Vec<PathBuf>,

    /// Read the rules, say what is wrong with them, and end
    #[arg(long)]
    pub(crate) check: bool,

    /// Where Redis clients ask: IP:PORT, unix:PATH, or off
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:6380",
        env = "LIMITER_SERVE_RESP"
    )]
    pub(crate) resp: Address,

    /// Where HTTP clients ask, and metrics are
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080",
        env = "LIMITER_SERVE_HTTP"
    )]
    pub(crate) http: Address,

    /// Where Envoy asks by gRPC
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8081",
        env = "LIMITER_SERVE_GRPC"
    )]
    pub(crate) grpc: Address,

    /// A file with the token that TCP clients have to show; needed beyond this host, if not --tls-client-ca
    #[arg(long, value_name = "FILE", env = "LIMITER_SERVE_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// The certificate with its chain, PEM; needed beyond this host
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "LIMITER_SERVE_TLS_CERT")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "LIMITER_SERVE_TLS_KEY")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Those who sign the certificates that TCP clients have to show, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "LIMITER_SERVE_TLS_CLIENT_CA")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// Where the states of keys are kept; a file system in memory is fastest
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/limiter-serve",
        env = "LIMITER_SERVE_STATE_DIR"
    )]
    pub(crate) state_dir: PathBuf,

    /// Keys at once, 60 bytes each
    #[arg(long, value_name = "N", default_value_t = 500_000, env = "LIMITER_SERVE_KEYS",
          value_parser = clap::value_parser!(u64).range(1..=150_000_000))]
    pub(crate) keys: u64,

    /// Of these, keys with sub-windows or a sliding log, 2 KiB each; without room for any, such rules let all through
    #[arg(long, value_name = "N", default_value_t = 4_096, env = "LIMITER_SERVE_SIDE_KEYS",
          value_parser = clap::value_parser!(u64).range(0..=4_000_000))]
    pub(crate) side_keys: u64,

    /// Of these, keys under limits of the cluster, or with scope: synced, 160 bytes each
    #[arg(long, value_name = "N", default_value_t = 16_384, env = "LIMITER_SERVE_CLUSTER_KEYS",
          value_parser = clap::value_parser!(u64).range(1..=4_000_000))]
    pub(crate) cluster_keys: u64,

    /// Connections at once, of each face
    #[arg(long, value_name = "N", default_value_t = 1_000, env = "LIMITER_SERVE_CONNECTIONS",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) connections: u32,

    /// The socket of the daemon: for `limiter rule`, rules with push_down or scope: cluster, and strict limits of packets
    #[arg(long, value_name = "SOCKET", env = "LIMITER_SERVE_DAEMON")]
    pub(crate) daemon: Option<PathBuf>,

    /// The central store of limits with scope: synced or strict, of Redis or Valkey: redis://HOST:PORT, unix:PATH,
    /// redis-sentinel://HOST:PORT,HOST:PORT/NAME or redis-cluster://HOST:PORT,HOST:PORT; rediss- for TLS, USER@ before HOST
    #[arg(long, value_name = "URL", env = "LIMITER_SERVE_STORE")]
    pub(crate) store: Option<StoreAddress>,

    /// A file with the store's password in its first line
    #[arg(
        long,
        value_name = "FILE",
        requires = "store",
        env = "LIMITER_SERVE_STORE_PASSWORD_FILE"
    )]
    pub(crate) store_password_file: Option<PathBuf>,

    /// Those who sign the store's certificate, PEM; without it, whom this machine trusts
    #[arg(long, value_name = "FILE", requires = "store", env = "LIMITER_SERVE_STORE_CA")]
    pub(crate) store_ca: Option<PathBuf>,

    /// How long the store may take for an answer, before the rule's on_error holds
    #[arg(long, value_name = "DURATION", default_value = "20ms", env = "LIMITER_SERVE_STORE_TIMEOUT",
          value_parser = parse_timeout)]
    pub(crate) store_timeout: Duration,

    /// Replicas of the store that have to know of a use before it is answered; not for a cluster
    #[arg(long, value_name = "N", default_value_t = 0, env = "LIMITER_SERVE_STORE_REPLICAS",
          value_parser = clap::value_parser!(u32).range(0..=10))]
    pub(crate) store_replicas: u32,

    /// Addresses of proxies: they are never denied, and X-Forwarded-For is believed that comes from them
    #[arg(
        long,
        value_name = "PREFIX",
        env = "LIMITER_SERVE_TRUSTED_PROXIES",
        value_delimiter = ',',
        value_parser = parse_target
    )]
    pub(crate) trusted_proxies: Vec<IpNet>,

    /// Which address of X-Forwarded-For may be the client's, from the last one
    #[arg(long, value_name = "N", default_value_t = 1, env = "LIMITER_SERVE_FORWARDED_DEPTH",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) forwarded_depth: u32,

    /// Answer Envoy with RateLimit-Limit, -Remaining and -Reset for its clients
    #[arg(long, env = "LIMITER_SERVE_RESPONSE_HEADERS")]
    pub(crate) response_headers: bool,
}

/// How long the store may take.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    const BOUNDS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(5);
    let timeout = parse_duration(text).map_err(|error| error.to_string())?;
    BOUNDS.contains(&timeout).then_some(timeout).ok_or_else(|| "give 1ms to 5s".to_owned())
}

impl Options {
    /// How the store is asked, if there is one.
    pub(crate) fn store(&self) -> Option<StoreSettings> {
        Some(StoreSettings {
            address: self.store.clone()?,
            password: self.store_password_file.clone(),
            authority: self.store_ca.clone(),
            timeout: self.store_timeout,
            replicas: self.store_replicas,
        })
    }

    /// The faces, each with its name and address.
    pub(crate) fn addresses(&self) -> [(&'static str, &Address); 3] {
        [("--resp", &self.resp), ("--http", &self.http), ("--grpc", &self.grpc)]
    }

    /// Where the states are.
    pub(crate) fn place(&self) -> Place {
        Place {
            folder: self.state_dir.clone(),
            keys: self.keys,
            side_keys: self.side_keys,
            cluster_keys: self.cluster_keys,
        }
    }

    /// Whether other hosts can ask, and only those that may; and whether the store knows who asks.
    ///
    /// # Errors
    /// If anybody could, or it would not.
    pub(crate) fn check_access(&self) -> Result<(), Failure> {
        let store = self.store.as_ref();
        if store.is_some_and(StoreAddress::has_user) && self.store_password_file.is_none() {
            // Without a password nobody logs in: the store would take it for anybody.
            let message = "the store's user has no password";
            return Err(Failure::new(exit::USAGE, message).hint("give --store-password-file"));
        }
        let mut all = self.addresses().into_iter();
        let open = all.find(
            |(_, address)| matches!(address, Address::Tcp(address) if !address.ip().is_loopback()),
        );
        let missing = match (&self.tls_cert, &self.token_file, &self.tls_client_ca) {
            // A token without TLS could be read on its way, and then be used by anybody.
            (None, _, _) => "there is no certificate: give --tls-cert and --tls-key",
            (Some(_), None, None) => "there is no token: give --token-file, or --tls-client-ca",
            _ => return Ok(()),
        };
        let Some((flag, _)) = open else { return Ok(()) };
        let message = format!("other hosts can ask at the address of {flag}, and {missing}");
        Err(Failure::new(exit::USAGE, message).hint("or give a loopback address, or unix:PATH"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        Options::parse_from(["limiter-serve"].iter().chain(arguments))
    }

    #[test]
    fn other_hosts_need_tls_and_a_token_or_a_certificate() {
        assert!(options(&[]).check_access().is_ok());
        let user = options(&["--store", "redis://bob@store"]).check_access().unwrap_err();
        assert!(user.message.contains("no password"), "{user}");
        let open = ["--http", "0.0.0.0:80"];
        let tls = ["--tls-cert", "c", "--tls-key", "k"];
        let refused = |more: &[&str]| {
            let all = [&open[..], more].concat();
            options(&all).check_access().err().map(|failure| failure.message)
        };
        assert!(refused(&[]).unwrap().contains("--http, and there is no certificate"));
        assert!(refused(&["--token-file", "t"]).unwrap().contains("no certificate"));
        assert!(refused(&tls).unwrap().contains("no token"));
        assert_eq!(refused(&[&tls[..], &["--token-file", "t"]].concat()), None);
        assert_eq!(refused(&[&tls[..], &["--tls-client-ca", "a"]].concat()), None);
    }
}
