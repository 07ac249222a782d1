//! Who asks far above its limit is denied by the kernel, through the host's daemon: then its packets cost neither the
//! proxy nor what is behind it anything.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::ListChanged;
use api::client::{Client, escape};
use api::error::{Failure, exit};
use decide::decider::{Item, Key};
use decide::rules::{ADDRESS, Rule};
use ipnet::IpNet;
use tokio::sync::mpsc;

/// Addresses that wait for the daemon at most. More are lost, and come again if they go on.
const WAITING: usize = 4_096;

/// Addresses that the daemon is told of at a time.
const BATCH: usize = 256;

/// How long a warning counts for those after it.
const WARNINGS: Duration = Duration::from_secs(10);

/// The longest reason of a denial, bytes.
const MAX_REASON: usize = 256;

/// Who is to be denied, and by which rule.
type Excess = (IpAddr, Arc<Rule>);

/// Takes who is to be denied.
#[derive(Debug)]
pub(crate) struct PushDowns {
    to: Option<mpsc::Sender<Excess>>,
    trusted: Arc<Proxies>,
    counts: Arc<Counts>,
}

/// The proxies whose word counts about who asks.
#[derive(Debug, Default)]
pub(crate) struct Proxies {
    nets: Vec<IpNet>,
    /// Which address of `X-Forwarded-For` is the first that may be a client's, from the last one, 1.
    depth: usize,
}

/// What became of addresses.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    denied: AtomicU64,
    /// Proxies, this host, or no addresses.
    spared: AtomicU64,
    /// The daemon has refused them: management addresses, or on the allow list.
    refused: AtomicU64,
    /// There was no daemon, or too many of them.
    lost: AtomicU64,
}

impl Counts {
    /// All of them, by their names.
    pub(crate) fn all(&self) -> [(&'static str, u64); 4] {
        let Self { denied, spared, refused, lost } = self;
        [("denied", denied), ("spared", spared), ("refused", refused), ("lost", lost)]
            .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

impl Proxies {
    /// Those of some networks; the client is the address so far from the last one, or before.
    pub(crate) fn new(nets: Vec<IpNet>, depth: u32) -> Self {
        Self { nets, depth: depth as usize }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.nets.iter().any(|net| net.contains(&address))
    }

    /// The client by the lines of `X-Forwarded-For`: the last address that no trusted proxy has. What is before it
    /// anybody can have written.
    pub(crate) fn client<'a>(&self, lines: impl Iterator<Item = &'a str>) -> Option<IpAddr> {
        let all: Vec<&str> = lines.flat_map(|line| line.split(',')).map(str::trim).collect();
        let end = (all.len() + 1).checked_sub(self.depth.max(1))?;
        let mut latest = all.get(..end)?.iter().rev().map(|text| address(text));
        let mut client = latest.next()??;
        while self.trusts(client) {
            // All of them are proxies: the first one has asked itself.
            let Some(before) = latest.next() else { break };
            client = before?;
        }
        Some(client)
    }
}

/// An address, perhaps with a port.
fn address(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse().ok().map(|address: std::net::SocketAddr| address.ip());
    let address = text.parse().ok().or_else(with_port);
    // The kernel sees IPv4.
    address.map(|address| address.to_canonical())
}

impl PushDowns {
    /// Nobody is denied.
    pub(crate) fn off(trusted: Arc<Proxies>) -> Self {
        Self { to: None, trusted, counts: Arc::default() }
    }

    /// The daemon at `socket` is told, as long as this lives. In a runtime.
    pub(crate) fn start(socket: &Path, trusted: Arc<Proxies>) -> Self {
        let (to, from) = mpsc::channel(WAITING);
        let counts = Arc::<Counts>::default();
        let daemon = Client::new(socket);
        let teller = Teller { daemon, counts: Arc::clone(&counts), warned: None };
        tokio::spawn(teller.run(from));
        Self { to: Some(to), trusted, counts }
    }

    /// The proxies that are believed.
    pub(crate) fn trusted(&self) -> &Proxies {
        &self.trusted
    }

    /// What became of them.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Whether somebody is told.
    pub(crate) const fn is_on(&self) -> bool {
        self.to.is_some()
    }

    /// The address in `item` is to be denied by its rule. Waits for nobody.
    pub(crate) fn push(&self, item: &Item<'_>, rule: &Arc<Rule>) {
        let Some(to) = &self.to else { return };
        let Key::Descriptor { entries, .. } = item.key else { return };
        let value = entries.iter().find(|(key, _)| *key == ADDRESS).map(|(_, value)| *value);
        let client = value.and_then(address);
        let client = client.filter(|it| !self.trusted.trusts(*it) && !it.is_loopback());
        let count = match client {
            None => &self.counts.spared,
            Some(client) => match to.try_send((client, Arc::clone(rule))) {
                Ok(()) => return,
                Err(_) => &self.counts.lost,
            },
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Tells the daemon.
struct Teller {
    daemon: Client,
    counts: Arc<Counts>,
    warned: Option<Instant>,
}

impl Teller {
    async fn run(mut self, mut from: mpsc::Receiver<Excess>) {
        let mut batch = Vec::new();
        while from.recv_many(&mut batch, BATCH).await > 0 {
            let mut by_rule: BTreeMap<String, (Duration, BTreeSet<IpAddr>)> = BTreeMap::new();
            for (client, rule) in batch.drain(..) {
                let Some(push_down) = rule.push_down else { continue };
                let named = if rule.name.is_empty() { &rule.path } else { &rule.name };
                let of_rule = by_rule.entry(named.clone());
                of_rule.or_insert((push_down.span, BTreeSet::new())).1.insert(client);
            }
            for (name, (span, clients)) in by_rule {
                let clients: Vec<IpAddr> = clients.into_iter().collect();
                if self.tell(&name, span, &clients).await.is_ok() {
                    continue;
                }
                // Together or none of them: whose fault it is shows when each is told by itself.
                for client in clients {
                    let told = self.tell(&name, span, &[client]).await;
                    told.unwrap_or_else(|failure| self.failed(client, &failure));
                }
            }
        }
    }

    async fn tell(&self, name: &str, span: Duration, clients: &[IpAddr]) -> Result<(), Failure> {
        let mut reason = format!("rule {name}");
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        let (seconds, reason) = (span.as_secs().max(1), escape(&reason));
        let path = format!("/v1/lists/deny?ttl_seconds={seconds}&reason={reason}&automatic=true");
        let clients: Vec<String> = clients.iter().map(ToString::to_string).collect();
        let told: ListChanged = self.daemon.send_text(&path, clients.join("\n")).await?;
        self.counts.denied.fetch_add(clients.len() as u64, Ordering::Relaxed);
        // Some are denied already: their packets take a moment, or come through somebody else's proxy.
        if told.changed > 0 {
            tracing::info!("rule {name}: the kernel denies {}", clients.join(", "));
        }
        Ok(())
    }

    fn failed(&mut self, client: IpAddr, failure: &Failure) {
        // What the daemon has decided is no fault.
        let is_refused = failure.code == exit::NEGATIVE;
        let count = if is_refused { &self.counts.refused } else { &self.counts.lost };
        count.fetch_add(1, Ordering::Relaxed);
        // Whoever floods is no reason to fill the log.
        if self.warned.is_none_or(|warned| warned.elapsed() > WARNINGS) {
            self.warned = Some(Instant::now());
            tracing::warn!("the kernel does not deny {client}: {failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_the_last_one_that_is_no_trusted_proxy() {
        let of = |depth, lines: &[&str]| {
            let nets = vec!["10.0.0.0/8".parse().unwrap(), "2001:db8:1::/48".parse().unwrap()];
            let client = Proxies::new(nets, depth).client(lines.iter().copied());
            client.map(|client| client.to_string())
        };
        let is = |client: &str| Some(client.to_owned());
        assert_eq!(of(1, &["192.0.2.1"]), is("192.0.2.1"));
        // Whoever asks can write what it wants before it.
        assert_eq!(of(1, &["198.51.100.9, 192.0.2.1"]), is("192.0.2.1"));
        assert_eq!(of(1, &["192.0.2.1, 10.0.0.1", "10.0.0.2"]), is("192.0.2.1"));
        assert_eq!(of(1, &["192.0.2.1:4711, [2001:db8:1::1]:80"]), is("192.0.2.1"));
        assert_eq!(of(1, &["10.0.0.1, 10.0.0.2"]), is("10.0.0.1"));
        assert_eq!(of(2, &["198.51.100.9, 192.0.2.1, 203.0.113.1"]), is("192.0.2.1"));
        assert_eq!(of(1, &["::ffff:192.0.2.1"]), is("192.0.2.1"));
        // Nobody is denied by a guess.
        for lines in [&["unknown"][..], &["192.0.2.1, unknown"], &["192.0.2.1, "], &[]] {
            assert_eq!(of(1, lines), None, "{lines:?}");
        }
        assert_eq!(of(3, &["192.0.2.1, 192.0.2.2"]), None);
    }
}
