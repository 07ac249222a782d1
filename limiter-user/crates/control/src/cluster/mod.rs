//! The daemon in a cluster: what makes its hosts share limits.
//!
//! The link ([`crate::cluster::link`]) talks to other hosts. What comes from them is given to whom it
//! is for: shares to a thread of their own (`share_loop`), which divides limits and tells the data plane; what
//! limits there are to the replica (`replica`); every other topic to a task of its own.

mod audit;
mod clock_guard;
mod core_worker;
mod fallback;
mod floors;
mod forget;
mod host;
mod init;
mod key;
pub mod key_file;
mod keys_file;
mod leases;
mod leave;
mod ledger;
pub mod link;
mod pace;
mod partitions;
mod peers;
mod pending;
mod replica;
mod room;
pub mod rotation;
mod router;
mod served;
mod share_loop;
mod sources;
mod state_file;
mod status;
mod untracked;
pub mod views;
mod watched;
mod words;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot, watch};

use self::floors::FloorsFile;
use self::keys_file::KeysFile;
pub use self::leases::{LeaseDesk, start_leases};
pub(super) use self::share_loop::floor_of;
use self::state_file::StateFile;
use self::status::View;
pub use self::views::Views;
use self::views::file_limits;
use crate::handle::CoreHandle;
use api::error::{Failure, exit};
use api::{OverageReport, SharesAsked, SharesTold};
use cluster::agreement::Agreement;
use cluster::escrow::LostHost;
use cluster::link::{ClusterId, Settings};
use cluster::membership::Identity;
use cluster::wire::{Epoch, Topic};
use cluster::{ClusterConfig, HostId, escrow};
use dataplane::HashSecret;
use model::Share;

/// What came from members, on one topic.
pub type Inbox = mpsc::Receiver<(HostId, Vec<u8>)>;

/// What waits for a task at most; what comes then is counted and dropped.
// A message from each of a thousand members. More would only be older when it is read.
const MAX_WAITING: usize = 1024;

/// What tasks of the cluster have in common; cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    /// This host.
    pub me: HostId,
    /// Its name.
    pub name: String,
    /// By which it talks to others.
    pub link: link::Handle,
    /// Limits and data plane.
    pub shared: CoreHandle,
    /// How limits are divided at present, once a second.
    pub shares: watch::Receiver<ShareReport>,
    /// By which all members are asked.
    pub views: Views,
    /// What was used of limits of the cluster lately, as counted.
    pub overage: watch::Receiver<Arc<Vec<OverageReport>>>,
    /// In what the files of other hosts have other limits of the cluster.
    file_limits: watch::Receiver<Arc<Vec<file_limits::Difference>>>,
    /// The hash of the limits that the cluster has, as this host knows them.
    pub digest: watch::Receiver<u64>,
    /// The keys that are in use.
    pub keys: rotation::Keys,
    floors: Arc<FloorsFile>,
    fallback: Arc<fallback::Fallback>,
    orders: mpsc::Sender<share_loop::Input>,
}

impl Cluster {
    /// Asks the share loop for something, which answers when that is durable.
    async fn order<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<T>) -> share_loop::Input,
    ) -> Result<oneshot::Receiver<T>, Failure> {
        let (done, answer) = oneshot::channel();
        self.orders.send(order(done)).await.map_err(ended)?;
        Ok(answer)
    }
}

impl Cluster {
    /// What a `limiter-serve` of this host may use of its keys.
    ///
    /// # Errors
    /// If another one shares limits, or this host divides none.
    pub async fn shares_of(&self, asked: SharesAsked) -> Result<SharesTold, Failure> {
        let told = self.divide(&asked).await.inspect_err(|_| self.fallback.leave_alone(&asked))?;
        let fallback = self.fallback.report(asked.serve, asked.fallback);
        Ok(SharesTold { fallback, ..told })
    }

    async fn divide(&self, asked: &SharesAsked) -> Result<SharesTold, Failure> {
        let (floors, serve, asked) = (Arc::clone(&self.floors), asked.serve, asked.clone());
        let admitted = tokio::task::spawn_blocking(move || floors.admit(serve)).await;
        admitted.map_err(ended)??;
        let told = self.order(|done| share_loop::Input::Served(asked, done)).await?.await;
        let none = || Failure::new(exit::NEGATIVE, "this host shares no limits with others");
        told.map_err(ended)?.ok_or_else(none)
    }
}

/// The share loop does not answer. Its end of the channel is gone only if the thread has stopped.
fn ended<E>(_: E) -> Failure {
    Failure::new(exit::NEGATIVE, "cluster limit sharing has stopped")
}

/// What this host has of the cluster's limits, and asks others for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareReport {
    /// The home share.
    pub home: Share,
    /// Home shares that were given away and have not come to others yet.
    pub on_the_way: Share,
    /// What it may use of each source's limit without end.
    pub floor: Share,
    /// Sources under limits of the cluster that are looked at often.
    pub keys: usize,
    /// Those of them that were over their share when they were looked at last.
    pub limited: usize,
    /// Sources beside them that have no more than their floor, because there are too many to divide in time.
    pub left_out: usize,
    /// Sources beside them that have half of its home share here, because there is no room to divide them.
    pub untracked: usize,
    /// Keys of a `limiter-serve` that it divides.
    pub served: usize,
    /// Decisions of that without a share that could be had, since its start.
    pub alone: u64,
    /// Sources that it has grants of, and grants that it has given to others.
    pub grants: [usize; 2],
    /// Sources that it owns of which it has borrowed from other regions, and of which it has lent to them.
    pub loans: [usize; 2],
    /// The regions of those that are there, and what their hosts have said to have.
    pub regions: BTreeMap<String, RegionShares>,
    /// Home shares that no host has which is there, at this moment.
    pub absent: Share,
    /// The same, for a while.
    pub missing: Share,
    /// Hosts with shares that are lost, as this one sees it, and their names where it has heard them.
    pub lost: Vec<(LostHost, Option<String>)>,
    /// How many times the shares of all hosts have been counted.
    pub era: u64,
    /// If it hears less than half of the hosts: for how long it may still use what is beside its floor.
    pub cut_off: Option<Duration>,
    /// What is wrong with this host's clock, or was some seconds ago: then it has its floor alone.
    pub clock: Option<String>,
    /// Whether another host has this one's ledger and has run for longer: then it asks for nothing and gives nothing.
    pub refused: bool,
    /// Whether this host has handed over all its shares.
    pub left: bool,
    /// What does not add up.
    pub doubts: escrow::Doubts,
    /// What cannot be done at present.
    pub problem: Option<String>,
    /// What was refused.
    pub counters: escrow::Counters,
    /// Messages about shares that were given to the link, since the start.
    pub messages: u64,
    /// The same that were withheld until later ones took their place.
    pub withheld: u64,
}

/// Of a region, as this host has heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionShares {
    /// Hosts that are there.
    pub members: usize,
    /// The sum of their home shares.
    pub home: Share,
}

/// What the data plane starts with before this host talks to others.
pub(super) struct Before {
    /// What sources may use of each limit of the cluster: what goes with the home share that this host has kept, and
    /// nothing if that cannot be read.
    pub(super) floor: Share,
    /// What the hash of fresh maps is made from, if the key can be read. It is made anew from the key that is first
    /// in the file then: while keys are changed, hosts may have different ones.
    pub(super) hash_secret: Option<HashSecret>,
}

impl Before {
    /// Reads it; nothing if the host is to be in no cluster. What is wrong with a file is told when the cluster is
    /// started ([`Prepared::new`]).
    pub(super) fn read(config: &ClusterConfig, directory: &Path) -> Option<Self> {
        // Without an address this host is in no cluster, and its data plane needs no secret of
        // one.
        config.listen?;
        let keys =
            key_file::read(&config.key_file).and_then(|keys| KeysFile::open(directory, keys));
        Some(Self {
            // Nothing rather than a guess: a share that others have now would count twice.
            floor: state_file::home(directory).map_or(Share::NONE, floor_of),
            hash_secret: keys.ok().map(|(_, kept)| HashSecret(kept.ring().active().derived())),
        })
    }
}

/// What a start needs.
pub struct Prepared {
    socket: UdpSocket,
    settings: Settings,
    seeds: Vec<String>,
    name: String,
    kept: StateFile,
    keys: (KeysFile, cluster::rotation::KeyState),
    floors: Arc<FloorsFile>,
}

impl Prepared {
    /// Reads the key and what is kept, and listens on `listen`. The state directory and the `api` socket have to be this
    /// daemon's, and `prefixes` the leading bits of a source.
    ///
    /// # Errors
    /// What is wrong with the address, the key or what is kept.
    pub fn new(
        config: &ClusterConfig,
        listen: SocketAddr,
        (directory, api): (&Path, &Path),
        prefixes: (u8, u8),
    ) -> Result<Self, Failure> {
        // The host name may change with DHCP, so it only counts where none is configured.
        let name = config.name(settings::host_name)?;
        let keys = KeysFile::open(directory, key_file::read(&config.key_file)?)?;
        let ring = keys.1.ring();
        let mut kept = StateFile::open(directory)?;
        // Before a run begins: each one is written to the disk, and a busy port may be tried for
        // hours.
        let socket = link::bind(listen)?;
        let unix = model::lists::now();
        let epoch = Epoch::starting(Some(kept.epoch()), unix.into(), random()? as u32);
        // Zero stands for no cluster in frames, and for no ledger.
        kept.begin(epoch, HostId(random()?.max(1)), ClusterId(random()?.max(1)))?;
        let (host, region) = (kept.host(), &config.region);
        let address = config.advertise.unwrap_or(listen);
        let mut me = Identity::new(host, &name, region, address, epoch, config.weight);
        // A version that there is not yet, to which tests upgrade a cluster host by host.
        if cfg!(debug_assertions) && std::env::var_os("LIMITER_PROTOCOL_AHEAD").is_some() {
            me.versions.newest += 1;
        }
        let bootstrap = kept.bootstrap(config.bootstrap_expect.unwrap_or(0));
        let (cluster, agreement) = (kept.cluster(), Agreement::new(prefixes));
        let seed = random()?;
        let settings = Settings { me, cluster, bootstrap, agreement, ring, seed, salt };
        let seeds = config.seeds.iter().map(ToString::to_string).collect();
        let floors = Arc::new(FloorsFile::open(api));
        Ok(Self { socket, settings, seeds, name, kept, keys, floors })
    }
}

/// The cluster that runs.
pub struct Running {
    cluster: Cluster,
    shares: share_loop::Thread,
}

impl Running {
    /// What tasks have in common.
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Ends it: this host keeps what is its own, and the others are told that it goes.
    pub async fn end(self) {
        // First, so that its last state is on the disk and its last messages are in the link.
        self.shares.end().await;
        self.cluster.link.order(link::Command::Leave);
        // The link ends by itself. It gets a moment to send its leave before the process is gone.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Begins to talk to other hosts.
///
/// # Errors
/// If a thread or the socket cannot be had.
pub fn start(prepared: Prepared, shared: &CoreHandle) -> Result<Running, Failure> {
    let Prepared { socket, settings, seeds, name, kept, keys: kept_keys, floors } = prepared;
    let identity = settings.me.clone();
    let (me, address) = (identity.host(), identity.address);
    // Deliveries wait in their channel until `route` starts below, so none is lost meanwhile.
    let (link, deliveries, _ended) = link::start_on(settings, socket, &seeds)?;
    let (digest, told) = watch::channel(0);
    let (tell_limits, limits) = watch::channel(partitions::LimitFacts::default());
    let host = host::Host {
        identity,
        kept,
        link: link.clone(),
        digest: told.clone(),
        limits,
        refused: false,
        left: false,
    };
    let shares = share_loop::start(host, shared, &floors)?;
    let (keys, keys_ordered, tell_keys) = rotation::handle();
    let (views, questions) = Views::new();
    let (tell_overage, overage) = watch::channel(Arc::default());
    let (tell_file_limits, file_limits) = watch::channel(Arc::default());
    let fallback = fallback::Fallback::new(me, link.clone(), shares.report.clone());
    let cluster = Cluster {
        me,
        name,
        link,
        shared: shared.clone(),
        shares: shares.report.clone(),
        views,
        overage,
        file_limits,
        digest: told,
        keys,
        floors,
        fallback: Arc::clone(&fallback),
        orders: shares.inbox.clone(),
    };
    shared.with_now(|core| {
        core.rules.cluster = Some(Box::new(View::of(&cluster, tell_limits)));
        // The share loop starts without limits. The core tells only changes, so the present ones
        // are told once here.
        core.rules.tell_limits();
        Ok(())
    })?;
    let (members, seeds) = (cluster.link.members.clone(), cluster.link.seeds.clone());
    // Early, since until then limits apply to frames of the cluster as well.
    tokio::spawn(peers::serve(members, seeds, address, cluster.shared.clone()));
    let (limits, limits_inbox) = mpsc::channel(MAX_WAITING);
    tokio::spawn(replica::serve(cluster.clone(), limits_inbox, digest));
    // Tasks of other topics hang in here: a channel, the task, and the sender in `Inboxes`.
    let (keys, keys_inbox) = mpsc::channel(MAX_WAITING);
    tokio::spawn(rotation::serve(cluster.clone(), keys_inbox, keys_ordered, tell_keys, kept_keys));
    let (asked, views_inbox) = mpsc::channel(MAX_WAITING);
    tokio::spawn(views::serve(cluster.clone(), views_inbox, questions));
    let (counted, audit_inbox) = mpsc::channel(MAX_WAITING);
    tokio::spawn(file_limits::serve(cluster.clone(), tell_file_limits));
    tokio::spawn(audit::serve(cluster.clone(), audit_inbox, tell_overage));
    let (stood, fallback_inbox) = mpsc::channel(MAX_WAITING);
    tokio::spawn(fallback::serve(fallback, fallback_inbox));
    let others = [
        (Topic::Keys, keys),
        (Topic::Queries, asked),
        (Topic::Counters, counted),
        (Topic::Fallback, stood),
    ];
    let others = others.into();
    let inboxes = router::Inboxes { shares: shares.inbox.clone(), limits, others };
    // Last: a message whose task has no inbox yet would be lost.
    tokio::spawn(router::route(deliveries, inboxes, cluster.clone()));
    Ok(Running { cluster, shares })
}

/// A random number.
fn random() -> Result<u64, Failure> {
    getrandom::u64().map_err(not_random)
}

/// A number that no copy of this machine draws.
fn salt() -> u64 {
    // Two machines of one snapshot may get the same random numbers, until something else comes to either kernel: but
    // not at the same nanosecond.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    getrandom::u64().unwrap_or_default() ^ now.as_nanos() as u64
}

fn not_random(error: getrandom::Error) -> Failure {
    Failure::new(exit::PRIVILEGE, format!("the kernel has no random numbers: {error}"))
}

/// Starts a thread of its own for `work`, which would hold up the runtime.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    started.map_err(no_thread)
}

fn no_thread(error: io::Error) -> Failure {
    Failure::new(exit::PRIVILEGE, format!("cannot start a thread: {error}"))
}
