//! A server, its replica, and three sentinels that put one in the place of the other.

use std::net::SocketAddr;

use serde_json::Value;

use super::{Store, StoreOptions, TIMEOUT};
use crate::process::wait_for;

/// The name that sentinels know the master by.
pub const MASTER: &str = "limits";

/// How many sentinels; two of them have to agree.
const SENTINELS: usize = 3;

/// A master, its replica, and the sentinels that watch them.
///
/// A former master that lives, or lives again, takes itself for one until a sentinel looks: every 10 s. Meanwhile it
/// takes what clients write to it, and loses that.
#[derive(Debug)]
pub struct Sentinels {
    stores: [Store; 2],
    sentinels: Vec<Store>,
}

impl Sentinels {
    /// Starts them as `options` say for the stores, and waits until all sentinels know of all.
    ///
    /// # Panics
    /// If one does not.
    #[must_use]
    pub fn start(options: &StoreOptions) -> Self {
        let master = Store::start_with(options);
        let replica = Store::replica_of(&master, options);
        let sentinels = (0..SENTINELS).map(|_| sentinel(options, &master)).collect();
        let found = Self { stores: [master, replica], sentinels };
        found.wait_complete();
        found
    }

    /// The number of the store that is the master, by the word of all sentinels.
    ///
    /// # Panics
    /// If they do not agree in time.
    #[must_use]
    pub fn master(&self) -> usize {
        wait_for("sentinels that agree on a master", TIMEOUT, || self.agreed())
    }

    /// The two stores.
    #[must_use]
    pub const fn stores(&self) -> &[Store; 2] {
        &self.stores
    }

    /// One of the stores.
    ///
    /// # Panics
    /// If there are not so many.
    pub const fn store(&mut self, number: usize) -> &mut Store {
        &mut self.stores[number]
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Store] {
        &self.sentinels
    }

    /// Where the sentinels are.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Store::address).collect()
    }

    /// Kills the master, and waits until the other store takes its place. Returns the number of that.
    ///
    /// # Panics
    /// If it does not.
    pub fn kill_master(&mut self) -> usize {
        let former = self.master();
        self.stores[former].kill();
        self.wait_for_other(former)
    }

    /// Has the sentinels put the other store in the place of the master. Returns the number of that.
    ///
    /// # Panics
    /// If it does not come to that.
    pub fn fail_over(&self) -> usize {
        let former = self.master();
        assert_eq!(self.sentinels[0].call(&["SENTINEL", "FAILOVER", MASTER]), "OK");
        self.wait_for_other(former)
    }

    /// Waits until a store that was the master is none any more, and returns the number of the new one.
    ///
    /// # Panics
    /// If that takes too long.
    #[must_use]
    pub fn wait_for_other(&self, former: usize) -> usize {
        wait_for("another master", TIMEOUT, || {
            let new = self.agreed().filter(|new| *new != former)?;
            // Sentinels name it when it has been told, so it may be a moment behind.
            self.stores[new].info("replication").contains("role:master").then_some(new)
        })
    }

    fn agreed(&self) -> Option<usize> {
        let named = |sentinel: &Store| {
            let address = sentinel.call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
            let port: u16 = address[1].as_str()?.parse().ok()?;
            self.stores.iter().position(|store| store.address().port() == port)
        };
        let mut all = self.sentinels.iter().map(named);
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }

    fn wait_complete(&self) {
        let knows_all = |sentinel: &Store| {
            let told = sentinel.call(&["SENTINEL", "MASTER", MASTER]);
            let others = (SENTINELS - 1).to_string();
            let replicas = "1".to_owned();
            field(&told, "num-other-sentinels") == Some(others)
                && field(&told, "num-slaves") == Some(replicas)
        };
        let complete = || self.sentinels.iter().all(knows_all).then_some(());
        wait_for("sentinels that know of each other", TIMEOUT, complete);
    }
}

fn sentinel(options: &StoreOptions, master: &Store) -> Store {
    let (ip, port) = (master.address().ip(), master.address().port());
    // A sentinel connects once a second at most, also to the new master. If it gave up sooner, it would often take that
    // for dead as well, and go back.
    let mut settings = vec![
        format!("sentinel monitor {MASTER} {ip} {port} {}", SENTINELS / 2 + 1),
        format!("sentinel down-after-milliseconds {MASTER} 1500"),
        format!("sentinel failover-timeout {MASTER} 3000"),
    ];
    if let Some(login) = &master.login {
        settings.push(format!("sentinel auth-user {MASTER} {}", login.user));
        settings.push(format!("sentinel auth-pass {MASTER} {}", login.password));
    }
    // Those who may ask a sentinel are others than those who may ask a store.
    Store::launch(&StoreOptions { settings, login: None, ..options.clone() }, true)
}

/// A field of a list of names and values.
fn field(list: &Value, name: &str) -> Option<String> {
    let list = list.as_array()?;
    let pair = list.chunks_exact(2).find(|pair| pair[0] == name)?;
    pair[1].as_str().map(str::to_owned)
}
