//! What all changing commands have in common: trying out, confirming, and whom they could shut out.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use hyper::Method;

use super::output::Output;
use api::ConfirmReport;
use api::client::{Client, escape};
use api::error::Failure;
use control::check_period;
use model::units::parse_duration;

/// Options of changing commands.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct SafetyArgs {
    /// Only print what would change
    #[arg(long, conflicts_with = "confirm")]
    pub(super) dry_run: bool,
    /// Revert the change after this time unless `limiter confirm` comes before, e.g. 60s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
    pub(super) confirm: Option<Duration>,
}

impl SafetyArgs {
    /// The options as a query, with a leading `?` and the parts of `more` before them.
    pub(super) fn query(&self, more: &[(&str, &str)]) -> Result<String, Failure> {
        // Here and not by the parser, which knows durations: the bounds
        // are the daemon's, and need no daemon to be told.
        self.confirm.map_or(Ok(()), check_period)?;
        let mut parts: Vec<_> =
            more.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
        if self.dry_run {
            parts.push("dry_run=true".into());
        }
        if let Some(period) = self.confirm {
            parts.push(format!("confirm_ms={}", period.as_millis()));
        }
        // Only this side knows where the operator sits. The daemon compares it with the change, and
        // warns whoever would shut himself out.
        if let Some(address) = session() {
            parts.push(format!("session={}", escape(&address.to_string())));
        }
        Ok(if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) })
    }
}

/// Tells on stderr what the operator should know of a change.
pub(super) fn warn(warnings: &[String]) {
    // On stderr, as stdout has the report, which has them in JSON as well.
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
}

/// `limiter confirm`
pub(super) async fn confirm(
    client: &Client,
    output: &mut Output<'_>,
    abort: bool,
) -> Result<u8, Failure> {
    let path = if abort { "/v1/confirm?abort=true" } else { "/v1/confirm" };
    let report: ConfirmReport = client.send(Method::POST, path, &()).await?;
    output.print(&report)
}

/// Where the SSH session of this process comes from. `sudo` takes the variables away, but the
/// processes that started it have them.
fn session() -> Option<IpAddr> {
    own_session(|name| std::env::var(name).ok()).or_else(|| inherited_session(std::process::id()))
}

fn own_session(variable: impl Fn(&str) -> Option<String>) -> Option<IpAddr> {
    ["SSH_CONNECTION", "SSH_CLIENT"].iter().find_map(|name| first_address(&variable(name)?))
}

/// The client's address, the first of the words. A link-local one may have a zone.
fn first_address(value: &str) -> Option<IpAddr> {
    value.split_whitespace().next()?.split('%').next()?.parse().ok()
}

/// Processes above this one that are looked at: shells and sudo are a few, and a process can end meanwhile and leave
/// its number to another.
const ANCESTORS: usize = 16;

fn inherited_session(mut pid: u32) -> Option<IpAddr> {
    for _ in 0..ANCESTORS {
        pid = parent(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        // Others' variables are for root to read; without them there is no warning.
        let Ok(variables) = std::fs::read(format!("/proc/{pid}/environ")) else { continue };
        let variables = String::from_utf8_lossy(&variables);
        let value = |name: &str| {
            let mut pairs = variables.split('\0').filter_map(|entry| entry.split_once('='));
            pairs.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
        };
        if let Some(address) = own_session(value) {
            return Some(address);
        }
    }
    None
}

/// The parent in a line of `/proc/PID/stat`; `None` above the first process.
fn parent(stat: &str) -> Option<u32> {
    // A program's name may have anything in it, also parentheses and spaces.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_whitespace().nth(1)?.parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::error::exit;

    #[test]
    fn a_session_has_the_clients_address() {
        let of = |wanted: &'static str, value: &'static str| {
            own_session(|name| (name == wanted).then(|| value.to_owned()))
        };
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let v4 = of("SSH_CONNECTION", "198.51.100.7 50000 192.0.2.1 22");
        assert_eq!(v4, address("198.51.100.7"));
        assert_eq!(of("SSH_CLIENT", "2001:db8::7 50000 22"), address("2001:db8::7"));
        assert_eq!(of("SSH_CLIENT", "fe80::1%eth0 50000 22"), address("fe80::1"));
        for nonsense in ["", "UNKNOWN 65535 UNKNOWN 65535"] {
            assert_eq!(of("SSH_CONNECTION", nonsense), None);
        }
    }

    #[test]
    fn parents_are_found_whatever_a_program_is_called() {
        assert_eq!(parent("42 (a) b (c) S 7 1 1 0"), Some(7));
        assert_eq!(parent("1 (init) S 0 1 1 0"), None);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(parent(&stat), Some(std::os::unix::process::parent_id()));
    }

    #[test]
    fn options_become_a_query() {
        let confirm = Some(Duration::from_secs(60));
        let query = SafetyArgs { dry_run: false, confirm }.query(&[("target", "::/0")]).unwrap();
        assert!(query.starts_with("?target=::%2F0&confirm_ms=60000"), "{query}");
        let error = SafetyArgs { dry_run: false, confirm: Some(Duration::from_millis(5)) }
            .query(&[])
            .unwrap_err();
        assert!(error.message.contains("5ms") && error.code == exit::USAGE, "{error}");
    }
}
