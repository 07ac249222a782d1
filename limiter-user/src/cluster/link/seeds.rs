//! Where seeds are: names become addresses again and again, since they move.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;

/// How often names are looked up: soon again where one was not found, at last, and where all were.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(30), Duration::from_secs(30)];

/// Addresses of a seed, at most.
const MOST_ADDRESSES: usize = 64;

/// How long a name may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// One seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// As it is configured: an address or a name, with a port.
    pub name: String,
    /// Where it was found last.
    pub addresses: Vec<SocketAddr>,
    /// Why it was not found the last time.
    pub error: Option<String>,
}

impl Seed {
    /// One that has not been looked for.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), addresses: Vec::new(), error: None }
    }

    /// Looks for it. What was found before stays if it cannot be found now. Returns whether it was.
    async fn resolve(&mut self) -> bool {
        let found = tokio::time::timeout(PATIENCE, tokio::net::lookup_host(&*self.name)).await;
        let error = match found {
            Ok(Ok(addresses)) => {
                let addresses: BTreeSet<_> = addresses.take(MOST_ADDRESSES).collect();
                if addresses.is_empty() {
                    "it has no address".to_owned()
                } else {
                    self.addresses = addresses.into_iter().collect();
                    self.error = None;
                    return true;
                }
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        if self.error.as_ref() != Some(&error) {
            tracing::warn!("cannot find the seed {}: {error}; trying again", self.name);
            self.error = Some(error);
        }
        false
    }
}

/// Keeps looking for all of them, until nobody wants to know.
pub(super) async fn look(seeds: watch::Sender<Vec<Seed>>) {
    let mut known = seeds.borrow().clone();
    let mut pause = PAUSES[0];
    loop {
        let mut found = true;
        for seed in &mut known {
            found &= seed.resolve().await;
        }
        let changed = |before: &mut Vec<Seed>| {
            let changed = *before != known;
            before.clone_from(&known);
            changed
        };
        seeds.send_if_modified(changed);
        pause = if found { PAUSES[2] } else { pause };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = seeds.closed() => return,
        }
        pause = if found { PAUSES[0] } else { (2 * pause).min(PAUSES[1]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn what_was_found_stays_and_what_was_not_is_told() {
        let mut seed = Seed::new("127.0.0.1:7946");
        assert!(seed.resolve().await);
        assert_eq!(seed.addresses, [([127, 0, 0, 1], 7946).into()]);
        seed.name = "no port".to_owned();
        assert!(!seed.resolve().await);
        assert!(seed.error.is_some() && seed.addresses.len() == 1);
    }
}
