//! Who is there: the daemon's own membership on a virtual network, without traffic.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::network::Conditions;
use super::outcome::{Outcome, Series};
use super::scenario::Scenario;
use cluster::membership::{Identity, Membership};
use cluster::wire::{Epoch, OVERHEAD};
use cluster::{HostId, Moment};

const SECOND: u64 = 1_000_000_000;
/// How often who has had no answer asks again, as the link does.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often it is looked who knows whom.
const LOOK: Duration = Duration::from_millis(20);
/// For how long something is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Between one event and the next.
const CALM: Duration = Duration::from_secs(5);

/// The host of this number, in a run that began in this second.
pub(crate) fn identity(number: usize, second: u64) -> Identity {
    let address = ([10, 0, (number >> 8) as u8, number as u8], 7946).into();
    let epoch = Epoch::starting(None, second, number as u32 + 1);
    Identity::new(
        HostId(number as u64 + 1),
        &format!("host-{number}"),
        "default",
        address,
        epoch,
        100,
    )
}

/// What is on its way: when it comes, to which address and run, from whom.
type Flight = (Reverse<(Moment, u64)>, SocketAddr, Epoch, usize, Vec<u8>);

/// Hosts by their numbers, and what is between them.
pub(crate) struct Net {
    pub(crate) now: Moment,
    /// Those that run.
    pub(crate) hosts: Vec<Option<Membership>>,
    places: HashMap<SocketAddr, usize>,
    pub(crate) flights: BinaryHeap<Flight>,
    pub(crate) due: BinaryHeap<Reverse<(Moment, usize)>>,
    /// Frames that were sent, and their bytes.
    pub(crate) sent: u64,
    pub(crate) bytes: u64,
    /// Hosts below this number and the others do not hear each other.
    pub(crate) cut: Option<usize>,
    conditions: Conditions,
    seed: u64,
    random: SmallRng,
}

impl Net {
    pub(crate) fn new(conditions: Conditions, seed: u64) -> Self {
        Self {
            now: Moment(SECOND),
            hosts: Vec::new(),
            places: HashMap::new(),
            flights: BinaryHeap::new(),
            due: BinaryHeap::new(),
            sent: 0,
            bytes: 0,
            cut: None,
            conditions,
            seed,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// A host starts, and knows nobody.
    pub(crate) fn start(&mut self, number: usize, me: Identity) {
        self.places.insert(me.address, number);
        if self.hosts.len() <= number {
            self.hosts.resize_with(number + 1, || None);
        }
        self.hosts[number] = Some(Membership::new(self.now, me, self.seed ^ number as u64));
        self.due.push(Reverse((self.now, number)));
    }

    /// As after a hello; nothing happens unless both run.
    pub(crate) fn meet(&mut self, number: usize, seed: usize) {
        let Some(seed) = self.hosts[seed].as_ref().map(|seed| seed.me().clone()) else { return };
        let now = self.now;
        if let Some(host) = &mut self.hosts[number] {
            host.add_peer(now, seed);
        }
        self.collect(number);
    }

    /// Takes what a host sends.
    pub(crate) fn collect(&mut self, number: usize) {
        let Some(host) = &mut self.hosts[number] else { return };
        while let Some((to, bytes)) = host.outgoing() {
            self.sent += 1;
            self.bytes += (bytes.len() + 1 + OVERHEAD) as u64;
            // Counted before it is lost: it has cost its sender what others cost.
            if self.random.random_bool(self.conditions.loss) {
                continue;
            }
            let (least, jitter) = (self.conditions.delay.ns(), self.conditions.jitter.ns());
            let delay = least + self.random.random_range(0..=jitter);
            // The frame's number decides between equal moments, or a seed would not mean one run.
            let key = Reverse((Moment(self.now.0 + delay), self.sent));
            self.flights.push((key, to.address, to.epoch, number, bytes));
        }
        // The moment planned before stays in the heap: it is cheaper to ask the host when it comes up.
        self.due.push(Reverse((host.next(), number)));
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.is_some_and(|cut| (from < cut) != (to < cut))
    }

    /// Goes on until a moment.
    pub(crate) fn run_until(&mut self, end: Moment) {
        loop {
            let flight = self.flights.peek().map_or(Moment(u64::MAX), |flight| flight.0.0.0);
            let due = self.due.peek().map_or(Moment(u64::MAX), |due| due.0.0);
            if flight.min(due) > end {
                self.now = end;
                return;
            }
            if due < flight {
                let Some(Reverse((moment, number))) = self.due.pop() else { return };
                self.now = self.now.max(moment);
                let now = self.now;
                // A host may be in the list more than once.
                if let Some(host) = &mut self.hosts[number]
                    && host.next() <= now
                {
                    host.poll(now);
                    self.collect(number);
                }
                continue;
            }
            let Some((Reverse((moment, _)), address, epoch, from, bytes)) = self.flights.pop()
            else {
                return;
            };
            self.now = self.now.max(moment);
            self.deliver(address, epoch, from, &bytes);
        }
    }

    fn deliver(&mut self, address: SocketAddr, epoch: Epoch, from: usize, bytes: &[u8]) {
        let Some(&to) = self.places.get(&address) else { return };
        let now = self.now;
        let sender = self.hosts[from].as_ref().map(|host| host.me().host());
        if self.is_cut(from, to) {
            return;
        }
        let (Some(sender), Some(host)) = (sender, &mut self.hosts[to]) else { return };
        if host.me().epoch == epoch {
            host.receive(now, sender, bytes);
            self.collect(to);
        } else {
            // The link answers what was for an earlier run by saying who it is.
            let me = host.me().clone();
            if let Some(sender) = &mut self.hosts[from] {
                sender.add_peer(now, me);
            }
            self.collect(from);
        }
    }

    /// Goes on for so long.
    pub(crate) fn run(&mut self, span: Duration) {
        self.run_until(self.now.after(span));
    }

    pub(crate) fn living(&self) -> impl Iterator<Item = (usize, &Membership)> {
        let hosts = self.hosts.iter().enumerate();
        hosts.filter_map(|(number, host)| host.as_ref().map(|host| (number, host)))
    }

    /// How long it takes until this is true of every host.
    ///
    /// # Errors
    /// If it is not within `most`: the hosts that it is not true of, with the members that they know.
    pub(crate) fn until(
        &mut self,
        most: Duration,
        is: impl Fn(usize, &Membership) -> bool,
    ) -> Result<Duration, Vec<(usize, usize)>> {
        let start = self.now;
        while !self.living().all(|(number, host)| is(number, host)) {
            if self.now.since(start) >= most {
                let others = self.living().filter(|(number, host)| !is(*number, host));
                return Err(others.map(|(number, host)| (number, host.members().len())).collect());
            }
            self.run(LOOK);
        }
        Ok(self.now.since(start))
    }

    /// So many hosts start at one moment and ask the first one to let them in. How long it takes until each
    /// knows all.
    ///
    /// # Errors
    /// As [`Self::until`].
    pub(crate) fn start_all(&mut self, hosts: usize) -> Result<Duration, Vec<(usize, usize)>> {
        let start = self.now;
        for number in 0..hosts {
            self.start(number, identity(number, 1));
        }
        while hosts > 1 && self.living().any(|(_, host)| host.members().len() == 1) {
            let alone = |(_, host): &(usize, &Membership)| host.members().len() == 1;
            let alone: Vec<usize> = self.living().filter(alone).map(|(number, _)| number).collect();
            if self.now.since(start) > TIMEOUT {
                return Err(alone.into_iter().map(|number| (number, 1)).collect());
            }
            // Said again, as a hello may be lost: the link does so, too.
            alone.into_iter().filter(|number| *number > 0).for_each(|number| self.meet(number, 0));
            self.run(RETRY_INTERVAL);
        }
        self.until(TIMEOUT, |_, host| host.members().len() == hosts)?;
        Ok(self.now.since(start))
    }
}

/// All hosts start, and one of them crashes when all is calm: the longest that a host took to know of it.
pub(super) fn run(scenario: &Scenario, seed: u64) -> Outcome {
    let mut net = Net::new(scenario.network, seed);
    let seconds = |took: Result<Duration, _>| took.ok().map(|took| took.as_secs_f64());
    let joined = seconds(net.start_all(scenario.hosts));
    net.run(CALM);
    // Measured after a while of rest: joining costs many times what being there does.
    let (bytes, from) = (net.bytes, net.now);
    net.run(CALM);
    let bytes = (net.bytes - bytes) as f64 / net.now.since(from).as_secs_f64();
    // Not the first one, by which all others have joined.
    let gone = scenario.hosts / 2;
    net.hosts[gone] = None;
    let left = scenario.hosts - 1;
    let gone = identity(gone, 1).host();
    let detected = net.until(TIMEOUT, |_, host| {
        !host.members().contains_key(&gone) && host.members().len() == left
    });
    Outcome {
        joined: Some(joined),
        detected: Some(seconds(detected)),
        bytes: bytes / scenario.hosts as f64,
        series: Series::default(),
        ..Outcome::default()
    }
}

#[cfg(test)]
mod tests;
