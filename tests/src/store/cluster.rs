//! Three servers that share the keys among them.

use serde_json::Value;

use super::{Store, StoreOptions, TIMEOUT};
use crate::{process::wait_for, resp::Resp};

/// How many slots there are for keys.
const SLOTS: usize = 16_384;

/// How many servers.
const NODES: usize = 3;

/// Three servers with a third of the slots each.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Store>,
}

impl Cluster {
    /// Starts them as `options` say, and waits until each finds the cluster whole.
    ///
    /// # Panics
    /// If one does not.
    #[must_use]
    pub fn start(options: &StoreOptions) -> Self {
        let mut options = options.clone();
        options.settings.extend(
            ["cluster-enabled yes", "cluster-config-file nodes.conf", "cluster-node-timeout 1000"]
                .map(str::to_owned),
        );
        let nodes: Vec<_> = (0..NODES).map(|_| Store::start_with(&options)).collect();
        for (number, node) in nodes.iter().enumerate() {
            // Two of one epoch would have to agree on another first, which takes them seconds.
            assert_eq!(node.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)), "OK");
            let (begin, end) = (SLOTS * number / NODES, SLOTS * (number + 1) / NODES);
            // Before version 7 there is no command for a range.
            let slots: String = (begin..end).map(|slot| format!(" {slot}")).collect();
            assert_eq!(node.ask(&format!("CLUSTER ADDSLOTS{slots}")), "OK");
        }
        for node in &nodes[1..] {
            let (ip, port) = (node.address().ip(), node.address().port());
            assert_eq!(nodes[0].ask(&format!("CLUSTER MEET {ip} {port}")), "OK");
        }
        let cluster = Self { nodes };
        cluster.wait_whole();
        cluster
    }

    /// The servers.
    #[must_use]
    pub fn nodes(&self) -> &[Store] {
        &self.nodes
    }

    /// One of the servers.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn node(&mut self, number: usize) -> &mut Store {
        &mut self.nodes[number]
    }

    /// The number of the server that has a key.
    ///
    /// # Panics
    /// If none answers.
    #[must_use]
    pub fn owner_of(&self, key: &str) -> usize {
        let slot = self.nodes[0].call(&["CLUSTER", "KEYSLOT", key]);
        let slot = slot.as_u64().expect("a slot");
        let has_slot = |node: &Store| {
            let ranges = slots(&node.client().ask("CLUSTER NODES"));
            ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot))
        };
        self.nodes.iter().position(has_slot).expect("each slot has an owner")
    }

    /// A client of the server that has a key.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn client_of(&self, key: &str) -> Resp {
        self.nodes[self.owner_of(key)].client()
    }

    /// Waits until each server finds that all slots are served.
    ///
    /// # Panics
    /// If one does not.
    pub fn wait_whole(&self) {
        let is_whole = |node: &Store| {
            let told = node.ask("CLUSTER INFO");
            let told = told.as_str().unwrap_or_default();
            told.contains("cluster_state:ok") && told.contains(&format!("cluster_size:{NODES}"))
        };
        let are_whole = || self.nodes.iter().all(is_whole).then_some(());
        wait_for("a cluster that is whole", TIMEOUT, are_whole);
    }
}

/// The slots of a server, by what it says of all.
fn slots(nodes: &Value) -> Vec<(u64, u64)> {
    let lines = nodes.as_str().unwrap_or_default().lines();
    let own = lines.filter(|line| line.split(' ').nth(2).is_some_and(|it| it.contains("myself")));
    let ranges = own.flat_map(|line| line.split(' ').skip(8));
    // A slot on its way to another server is in brackets.
    let ranges = ranges.filter(|range| !range.starts_with('['));
    let number = |text: &str| text.parse().expect("a slot");
    ranges
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            (number(first), number(last))
        })
        .collect()
}
