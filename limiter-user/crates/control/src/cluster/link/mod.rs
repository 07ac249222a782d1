//! A [`Link`] with a socket and a clock.

pub mod seeds;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use socket2::{SockRef, Type};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use self::seeds::Seed;
use api::error::{Failure, exit};
use cluster::agreement::Agreement;
use cluster::link::{Affiliation, Bootstrap, ClusterId, Delivery, Link, Others, Settings};
use cluster::membership::{Identity, Members};
use cluster::wire::{Content, Counts, KeyRing, MAX_BYTES};
use cluster::{HostId, Moment};

/// Orders that wait, at most.
// A round of the share thread sends to each member at once, and there may be a thousand.
const MAX_ORDERS: usize = 4096;

/// Deliveries that wait to be taken, at most.
// As many as a burst of all members brings; beyond that the loss is counted, and everything is
// repeated.
const MAX_DELIVERIES: usize = 4096;

/// Datagrams that are read before anything else is looked at.
// Between batches the link answers probes. A flood that held it longer would make members suspect
// this host.
const BATCH: usize = 64;

/// Bytes that the kernel keeps until they are read: a second of a busy cluster.
const BUFFER: usize = 4 << 20;

/// How often it is told what has been counted.
// Copies of all counts are made for it, so not with each frame.
const TOLD: Duration = Duration::from_secs(1);

/// What a link is asked to do.
#[derive(Clone, Debug)]
pub enum Command {
    /// Say something to a member.
    Send {
        /// To whom.
        to: HostId,
        /// The hash of the limits that this host has.
        digest: Option<u64>,
        /// What.
        content: Content,
    },
    /// Use these keys from now on.
    Ring(KeyRing),
    /// Have another weight from now on.
    Weight(u32),
    /// Belong to this cluster from now on, which is kept.
    Belong(ClusterId),
    /// Vote for this proposal from now on, which is kept.
    Vote(ClusterId),
    /// Greet all seeds at once.
    LookAround,
    /// Tell the others that this host goes, and end.
    Leave,
}

/// What a link has to tell about itself.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The cluster that it belongs to.
    pub cluster: Option<ClusterId>,
    /// What has come and gone.
    pub counts: Counts,
    /// Deliveries that nobody took in time.
    pub lost: u64,
    /// Members that are not listened to, since another host has had their name for longer.
    pub refused: BTreeMap<HostId, Identity>,
    /// Members that may be gone: somebody has not heard of them for a while.
    pub suspects: BTreeSet<HostId>,
    /// See [`Affiliation::others`].
    pub others: Others,
    /// See [`Affiliation::bootstrap`]. `None` until it has begun.
    pub bootstrap: Option<Bootstrap>,
    /// See [`Affiliation::agreement`]. `None` until it has begun.
    pub agreement: Option<Agreement>,
    /// See [`Link::other_key`].
    pub other_key: Option<(u16, Moment)>,
}

/// A link that runs. It ends when all of these and of what was made from them are gone.
#[derive(Clone, Debug)]
pub struct Handle {
    orders: mpsc::Sender<Command>,
    /// The members that are there, this host included.
    pub members: watch::Receiver<Arc<Members>>,
    /// What it tells about itself, once a second.
    pub report: watch::Receiver<Report>,
    /// Where seeds were found.
    pub seeds: watch::Receiver<Vec<Seed>>,
    wanted: watch::Sender<Vec<String>>,
}

impl Handle {
    /// Hands over an order. Returns whether there was room for it.
    pub fn order(&self, order: Command) -> bool {
        // It never waits: the share thread calls this, and must not stop for the network.
        self.orders.try_send(order).is_ok()
    }

    /// Looks for these seeds from now on, in the place of those before.
    pub fn set_seeds(&self, seeds: Vec<String>) {
        // A reload gives the same seeds again. To look all of them up anew would lose their error
        // and their pause.
        self.wanted.send_if_modified(|wanted| {
            let changed = *wanted != seeds;
            *wanted = seeds;
            changed
        });
    }
}

/// This host's monotonic clock, as [`Moment`] means it.
pub fn monotonic() -> Moment {
    // The kernel program reads the same clock, and ends of grants go to it. `Instant` hides its
    // number.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    Moment(now.as_nanos() as u64)
}

/// A socket on `listen`, which no interface of this host need have yet.
///
/// # Errors
/// If it cannot listen there.
pub fn bind(listen: SocketAddr) -> Result<std::net::UdpSocket, Failure> {
    // At boot the address may come after the daemon, and limits must not wait for it.
    let bound = crate::listen::bind(Type::DGRAM, listen);
    let bound = bound.and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
    let socket = bound.map_err(|error| {
        let message = format!("cannot listen on {listen} for other hosts: {error}");
        let port = listen.port();
        let hint = format!(
            "give [cluster] listen a port that is free; `ss -lunp sport = :{port}` tells who has it"
        );
        Failure::new(exit::USAGE, message).hint(hint)
    })?;
    // What the system allows anybody holds a hundred datagrams: not one report of a busy host. Who may pass
    // that limit does; less is good enough where it is not allowed.
    if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).is_err() {
        let _ = SockRef::from(&socket).set_recv_buffer_size(BUFFER);
    }
    Ok(socket.into())
}

/// Begins on a socket that [`bind`] has made, in the runtime that this is called in.
///
/// # Errors
/// If the runtime cannot have it.
pub fn start_on(
    settings: Settings,
    socket: std::net::UdpSocket,
    seeds: &[String],
) -> Result<(Handle, mpsc::Receiver<Delivery>, JoinHandle<()>), Failure> {
    let socket = UdpSocket::from_std(socket).map_err(|error| {
        Failure::new(exit::NEGATIVE, format!("cannot listen for other hosts: {error}"))
    })?;
    let (orders, ordered) = mpsc::channel(MAX_ORDERS);
    let (delivered, deliveries) = mpsc::channel(MAX_DELIVERIES);
    let link = Link::new(monotonic(), settings);
    let (tell_members, members) = watch::channel(Arc::clone(link.members()));
    let (tell_report, report) = watch::channel(Report::default());
    // Seeds without addresses are told from the start, so that `status` names them before the
    // first lookup ends.
    let (seed_names, names) = (seeds.to_vec(), seeds.iter().map(|seed| Seed::new(seed)).collect());
    let (tell_seeds, seeds) = watch::channel(names);
    let (wanted, look_for) = watch::channel(seed_names);
    tokio::spawn(seeds::look(tell_seeds, look_for));
    let driver = Driver {
        link,
        socket,
        seeds: seeds.clone(),
        delivered,
        members: tell_members,
        report: tell_report,
        lost: 0,
        told: Moment(0),
    };
    let running = tokio::spawn(driver.run(ordered));
    Ok((Handle { orders, members, report, seeds, wanted }, deliveries, running))
}

/// Drives the link: it alone has the socket and the clock.
struct Driver {
    link: Link,
    socket: UdpSocket,
    seeds: watch::Receiver<Vec<Seed>>,
    delivered: mpsc::Sender<Delivery>,
    members: watch::Sender<Arc<Members>>,
    report: watch::Sender<Report>,
    lost: u64,
    told: Moment,
}

impl Driver {
    async fn run(mut self, mut orders: mpsc::Receiver<Command>) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut seeds_open = true;
        loop {
            let now = monotonic();
            self.link.poll(now);
            self.flush(now);
            let next = self.link.next().min(self.told.after(TOLD));
            // A timer that is due already would otherwise turn the loop without rest.
            let pause = next.since(monotonic()).max(Duration::from_millis(1));
            tokio::select! {
                readable = self.socket.readable() => match readable {
                    Ok(()) => self.read(),
                    Err(error) => {
                        tracing::warn!("cannot read what other hosts send: {error}");
                        // An error of the socket itself may last. Without the pause it would fill
                        // the log.
                        tokio::time::sleep(TOLD).await;
                    }
                },
                count = orders.recv_many(&mut batch, BATCH) => {
                    // All handles are gone: the daemon ends, and the others should hear that at
                    // once.
                    let mut leaving = count == 0;
                    for order in batch.drain(..) {
                        // The whole batch is carried out: what was ordered before the leave must
                        // go out before it.
                        leaving |= self.handle_command(order);
                    }
                    if leaving {
                        self.link.leave(monotonic());
                        self.flush(monotonic());
                        return;
                    }
                }
                // A closed channel is always ready, and would starve the other branches.
                changed = self.seeds.changed(), if seeds_open => {
                    seeds_open = changed.is_ok();
                    let found = self.seeds.borrow_and_update();
                    let addresses = found.iter().flat_map(|seed| seed.addresses.clone()).collect();
                    // The borrow must end before the call: the lookup task waits for it to
                    // publish.
                    drop(found);
                    self.link.set_seeds(monotonic(), addresses);
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn read(&mut self) {
        // One more than is allowed, so that what is too long is known to be.
        let mut buffer = [0; MAX_BYTES + 1];
        // A bound, for a flood may refill the socket faster than it is read.
        for _ in 0..BATCH {
            // What is wrong with a datagram that was sent earlier is reported here, too.
            let Ok((length, from)) = self.socket.try_recv_from(&mut buffer) else { return };
            // Mutable, because it is decrypted in place.
            let datagram = buffer.get_mut(..length).unwrap_or_default();
            self.link.receive(monotonic(), from, datagram);
        }
    }

    /// Returns whether this host is to go.
    fn handle_command(&mut self, order: Command) -> bool {
        match order {
            Command::Send { to, digest, content } => {
                self.link.send(to, digest, &content);
            }
            Command::Ring(ring) => *self.link.ring() = ring,
            Command::Weight(weight) => self.link.set_weight(monotonic(), weight),
            Command::Belong(cluster) => {
                self.link.belong(monotonic(), cluster);
                // Who has ordered it may look at once.
                self.told = Moment(0);
            }
            Command::Vote(vote) => self.link.voted(monotonic(), vote),
            Command::LookAround => self.link.look_around(monotonic()),
            Command::Leave => return true,
        }
        false
    }

    fn flush(&mut self, now: Moment) {
        while let Some((to, frame)) = self.link.outgoing() {
            // Who is told again and again may miss it once.
            if self.socket.try_send_to(&frame, to).is_err() {
                self.link.count_unsent();
            }
        }
        while let Some(delivery) = self.link.delivery() {
            // The socket does not wait for its readers: probes of members come through it, too.
            self.lost += u64::from(self.delivered.try_send(delivery).is_err());
        }
        let members = self.link.members();
        self.members.send_if_modified(|told| {
            // The list is replaced as a whole when it changes. To compare pointers spares a walk
            // through it at each frame.
            let changed = !Arc::ptr_eq(told, members);
            if changed {
                *told = Arc::clone(members);
            }
            changed
        });
        if now.since(self.told) >= TOLD {
            self.told = now;
            let Affiliation { cluster, bootstrap, agreement, others, .. } = self.link.affiliation();
            let _ = self.report.send(Report {
                cluster: *cluster,
                counts: self.link.counts().clone(),
                lost: self.lost,
                refused: self.link.membership().refused().clone(),
                suspects: self.link.membership().suspects(),
                others: others.clone(),
                bootstrap: Some(*bootstrap),
                agreement: Some(agreement.clone()),
                other_key: self.link.other_key(),
            });
        }
    }
}

#[cfg(test)]
mod tests;
