//! Moves shares between hosts so that together they never use more than a limit: see `ALGORITHM.md`, whose
//! invariants are named here by their numbers.
//!
//! It knows neither a clock nor a network and draws no random numbers: the daemon and the simulator tell it
//! the time and what has come, and do what it says, in this order: what is to be kept is made durable, the
//! floor and the grants are told to the kernel, then the messages are sent. Where one of the steps fails,
//! the later ones are left out; lost messages are made up for. It is polled after what it was told, and when
//! it has said so; a poll with nothing to do costs next to nothing.

mod allocation;
mod claim;
mod clock;
mod excess;
mod half;
mod holder;
mod home;
mod host;
mod keys;
mod loans;
mod lost;
mod majority;
mod owner;
mod peer;
mod poll;
mod pools;
mod receive;
mod recount;
mod taken;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::time::Duration;

use limiter_common::share::FLOORS;
use serde::{Deserialize, Serialize};

pub use excess::Doubts;
pub use lost::Partition;
pub use recount::{Era, Forget};
pub use view::{Member, Region};

use crate::message::Transfer;
use crate::{HostId, KeyId, Message, Moment};
use model::Share;

use clock::Clock;
use excess::Excess;
use holder::Held;
use home::Home;
use host::Host;
use lost::Absent;
use majority::Votes;
use owner::Owned;
use recount::Recount;

/// The most keys that a host asks grants for; others run at their floor.
pub const MAX_HELD: usize = 1 << 14;
/// The most keys that a host divides among others.
pub const MAX_OWNED: usize = 1 << 16;
/// The most hosts that are heard.
const MAX_PEERS: usize = 4_096;

/// How a host is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This host.
    pub me: HostId,
    /// Its weight among the members: what it gets of home shares.
    pub weight: u32,
    /// Where it is.
    pub region: Region,
    /// The part of its home share that it never delegates; the same on all hosts. One of [`FLOORS`] at the most, as the
    /// kernel takes that for it.
    pub floor: Share,
    /// How often and for how long.
    pub timing: Timing,
    /// Whether there are limits that a majority decides about, as in [`Partition::MajorityReclaim`]; on all hosts, from
    /// the start or by [`Escrow::go_by_majority`].
    pub majority: bool,
    /// Whether the kernel lets every key use the whole limit without end when this run begins: then earlier runs
    /// have left nothing delegated.
    pub alone: bool,
    /// Spreads the messages of hosts over time.
    pub seed: u64,
    /// A fault to be found by those who test.
    #[doc(hidden)]
    pub planted: Option<Planted>,
}

impl Settings {
    /// The usual ones for a host, in the region of those for whom none is configured.
    pub fn new(me: HostId, weight: u32) -> Self {
        let floor = Share::WHOLE.times(1, FLOORS);
        Self {
            me,
            weight,
            region: Region::default(),
            floor,
            timing: Timing::default(),
            majority: false,
            alone: false,
            seed: me.0,
            planted: None,
        }
    }

    /// What of a home share every key may use without end.
    fn floor_of(&self, home: Share) -> Share {
        home.times(self.floor.units(), Share::WHOLE.units())
    }

    /// What is delegated of a home share.
    fn beside_floor(&self, home: Share) -> Share {
        home.without(self.floor_of(home))
    }

    /// The home share of a host that delegates so much.
    fn whole_of(&self, delegated: Share) -> Share {
        let rest = Share::WHOLE.without(self.floor).units();
        delegated.times(Share::WHOLE.units(), rest)
    }

    fn planted(&self, fault: Planted) -> bool {
        self.planted == Some(fault)
    }

    /// Whether shares that are more than the whole are bounded. A planted fault is to be found by what it breaks, so it
    /// takes the bounds away.
    fn bounded(&self) -> bool {
        self.planted.is_none_or(Planted::is_of_recounts)
    }
}

/// How often hosts talk and how long shares are given for. All hosts of a cluster have the same durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between two messages to a host while nothing is urgent.
    pub every: Duration,
    /// The same while something changes.
    pub hot: Duration,
    /// How long a delegation lasts, for the host that gives it.
    pub delegation: Duration,
    /// How long a grant lasts, for the host that gives it; less than a delegation.
    pub grant: Duration,
    /// After how long without a report a key is forgotten.
    pub forget: Duration,
    /// How long a host may use what is beside its floor without hearing from half of those who count; and for how long
    /// shares are missing until those who are there count all anew.
    pub home_lease: Duration,
    /// How long a delegation lasts where there are regions.
    pub far_delegation: Duration,
    /// How long a loan to the root of a key lasts; less than such a delegation.
    pub loan_in: Duration,
    /// How long a loan by the root lasts; less than one to it.
    pub loan_out: Duration,
    /// Between two messages to a host of another region while there is nothing to say.
    pub far_every: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            every: Duration::from_millis(200),
            hot: Duration::from_millis(50),
            delegation: Duration::from_millis(1_500),
            grant: Duration::from_millis(500),
            forget: Duration::from_secs(3),
            home_lease: Duration::from_secs(600),
            far_delegation: Duration::from_millis(4_000),
            loan_in: Duration::from_millis(3_200),
            loan_out: Duration::from_millis(2_000),
            far_every: Duration::from_secs(1),
        }
    }
}

impl Timing {
    /// How long a delegation lasts, where there are regions or not.
    fn delegation(&self, far: bool) -> Duration {
        if far { self.far_delegation } else { self.delegation }
    }

    /// The longest that a grant lasts, over long ways or not.
    fn longest_grant(&self, far: bool) -> Duration {
        // Half of what it is made of: of either much is over when it comes.
        if far { self.grant.max(self.far_delegation / 2) } else { self.grant }
    }

    /// The longest that anything is given for.
    fn longest(&self, far: bool) -> Duration {
        let loan = if far { self.loan_in.max(self.loan_out) } else { Duration::ZERO };
        self.delegation(far).max(self.longest_grant(far)).max(loan)
    }
}

/// Faults that a test plants to see that they are found.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// An owner grants without taking off what others hold.
    GrantNotSubtracted,
    /// A holder counts a lease from when it came.
    LeaseFromReceipt,
    /// An owner does not ask by which views it was delegated to.
    ViewsNotCompared,
    /// A transfer is taken as often as it comes.
    TransferTakenTwice,
    /// Home shares are sent on without waiting for what was delegated out of them.
    TransferNotWaited,
    /// A restarted host does not wait for what it gave before.
    RestartNotWaited,
    /// A host votes for one while its vote for another one holds.
    VotedTwice,
    /// A lowered loan is acknowledged while what was given of it holds.
    LoanAcknowledgedEarly,
    /// A loan is passed on for longer than it lasts.
    LoanOutlives,
    /// Nothing but that nothing is done about home shares that are more than the whole together.
    Unbounded,
    /// What a lost host had is given to others while it may use it.
    HomeLeaseNotWaited,
    /// A host uses its home share without a home lease.
    HomeLeaseNotNeeded,
    /// An owner counts each grant to its usual end, though it was given for longer.
    GrantHeldLonger,
    /// An owner counts all of what a host says to delegate half of.
    HalfCountedWhole,
    /// A host uses its own half of a home share, though what it delegated of that lasts.
    HalfNotWaited,
    /// No fault: every host begins recounts, as where all have views of their own.
    AllCount,
}

impl Planted {
    fn is_of_recounts(self) -> bool {
        matches!(self, Self::HomeLeaseNotWaited | Self::HomeLeaseNotNeeded | Self::AllCount)
    }
}

/// What must survive a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PersistentState {
    /// The home share.
    pub home: Share,
    /// The number of the last transfer. Each transfer adds its share in units, so the difference of two numbers is
    /// what was given between them.
    pub last_transfer: u64,
    /// Home shares that have been given away and not been acknowledged: they are in `home` no more.
    pub outgoing: Vec<(HostId, Transfer)>,
    /// The highest number that was taken from each host.
    pub incoming: BTreeMap<HostId, u64>,
    /// A moment that no message has told yet.
    pub clock: Moment,
    /// Whether it gives for as long as is needed between regions and over long ways.
    pub far: bool,
    /// What it knows of recounts.
    pub era: Era,
}

impl PersistentState {
    /// What the founder of a cluster starts with: all. Every other host starts with [`PersistentState::default`].
    pub fn founder() -> Self {
        Self { home: Share::WHOLE, era: Era::first(), ..Self::default() }
    }

    /// What has been given away and not come to others yet.
    pub fn on_the_way(&self) -> Share {
        self.outgoing.iter().map(|(_, transfer)| transfer.share).sum()
    }
}

/// What the kernel is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The source and its limit.
    pub key: KeyId,
    /// All that it may use here, the floor included.
    pub share: Share,
    /// Until when, by the host's clock; the floor from then on.
    pub until: Moment,
}

/// What is to be done, in the order that the module's text names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    /// Whether [`Escrow::kept`] must be durable before anything else is done.
    pub keep: bool,
    /// What every key may use from now on without end, if that or the number of hosts has changed.
    pub floor: Option<Share>,
    /// How many hosts have home shares, as far as this one knows; 0 where `floor` is none.
    pub hosts: u32,
    /// What some keys may use from now on.
    pub grants: Vec<Granted>,
    /// What to send.
    pub messages: Vec<(HostId, Message)>,
    /// Whether all is handed over, after [`Escrow::leave`].
    pub left: bool,
    /// When to poll again if nothing happens before, by the host's clock.
    pub next: Moment,
}

/// What a host has lent and borrowed, of keys that it owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Loans {
    /// Keys of which something is lent to other regions.
    pub lent: usize,
    /// Keys of which something is borrowed from other regions.
    pub borrowed: usize,
    /// The most that is lent of one key.
    pub most_lent: Share,
    /// The most that is borrowed of one key.
    pub most_borrowed: Share,
}

/// A host with shares that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostHost {
    /// Which one.
    pub host: HostId,
    /// What it had when it was heard last.
    pub home: Share,
    /// How long its home lease may last yet, as far as this host has renewed it. None if it needs nobody for that: until it
    /// hears that it is not counted any more.
    pub home_lease: Option<Duration>,
}

/// What was refused or could not be done, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Keys that were not tracked because there were too many.
    pub keys_refused: u64,
    /// Messages of hosts that were not heard because there were too many.
    pub hosts_refused: u64,
    /// Delegations by views that this host does not know.
    pub views_unknown: u64,
    /// Messages with a moment that this run of the host has not told.
    pub echoes_refused: u64,
    /// Transfers that would make the home share more than the whole.
    pub transfers_refused: u64,
}

/// The shares of one host: what comes and what is due is given to the parts that own what it concerns, in an order that
/// keeps the invariants.
#[derive(Clone, Debug)]
pub struct Escrow {
    clock: Clock,
    host: Host,
    home: Home,
    held: Held,
    owned: Owned,
    votes: Votes,
    absent: Absent,
    excess: Excess,
    recount: Recount,
    /// When everything is looked at the next time.
    round: Moment,
    /// What the kernel was told: the home share, what may be used of it without end, and how many hosts have one.
    told: Option<(Share, Share, u32)>,
}

impl Escrow {
    /// A host that starts with what it has kept. A host that has run before gives and takes nothing for as
    /// long as the longest lease.
    pub fn new(settings: Settings, kept: PersistentState, now: Moment) -> Self {
        let clock = Clock::new(now, kept.clock);
        let start = clock.start;
        // Who has never run has given nothing. One that may have run and has lost its state is given a clock.
        let fresh = kept.clock == Moment(0) && kept.incoming.is_empty();
        let waits = !fresh && !settings.planted(Planted::RestartNotWaited);
        let grace = clock::grace(settings.timing.longest(kept.far));
        let quiet = if waits { start.after(grace) } else { start };
        let knows =
            if waits { start.after(clock::grace(settings.timing.home_lease)) } else { start };
        let every = settings.timing.every.as_nanos().max(1) as u64;
        Self {
            // Hosts that start together, after a power cut for instance, do not all send at one moment.
            round: Moment(start.0 + settings.seed % every),
            clock,
            host: Host::new(settings, start, quiet),
            home: Home::new(kept, quiet),
            held: Held::default(),
            owned: Owned::default(),
            votes: Votes::default(),
            absent: Absent::default(),
            excess: Excess::new(start),
            recount: Recount::new(start, knows),
            told: None,
        }
    }

    /// What must be durable when [`Outputs::keep`] says so.
    pub fn kept(&self) -> &PersistentState {
        &self.home.state
    }

    /// What was refused.
    pub fn counters(&self) -> Counters {
        self.host.counters
    }

    /// Tells the members that are alive as this host sees them, with their weights and regions. The host itself is one
    /// of them whether it is listed or not.
    pub fn set_members(&mut self, now: Moment, members: &BTreeMap<HostId, Member>) {
        let now = self.clock.advance(now);
        let Settings { me, weight, region, .. } = self.host.settings;
        self.host.members.clone_from(members);
        self.host.members.entry(me).or_insert(Member { weight, region });
        self.enter_view(now);
    }

    /// Enters the view of those who are there now, if it is another one.
    fn enter_view(&mut self, now: Moment) {
        let timing = self.host.settings.timing;
        let members = self.host.there(now, self.home.delegation(&timing) / 2);
        self.host.lingers = members.len() != self.host.members.len();
        if self.host.views.enter(now, &members) {
            // Owners by this view know nothing of any key yet: all is told and divided again at once.
            self.held.owners_changed();
            self.owned.all_dirty();
            self.round = self.round.min(now);
            if self.host.views.present().has_regions() {
                self.home.go_far();
            }
            // The books about a host outlast its membership: what it was lent may be in use.
            let far = self.home.longest(&timing) * 4;
            let peers = &mut self.host.peers;
            peers.retain(|host, peer| members.contains_key(host) || peer.needed(now, far));
        }
    }

    /// Tells what a tracked source sends at present, as a part of its limit, drops included, and whether
    /// packets of it are dropped. A key that is not told of for some seconds is forgotten.
    pub fn demand(&mut self, now: Moment, key: KeyId, demand: Share, limited: bool) {
        let now = self.clock.advance(now);
        let floor = self.floor();
        let Some(urgency) = self.held.demand(now, key, demand, limited, floor) else {
            self.host.counters.keys_refused += 1;
            return;
        };
        self.held.report_soon(now, key, urgency, &mut self.host, &mut self.owned);
    }

    /// Tells that a key is tracked no more: nothing of it is used here.
    pub fn forget(&mut self, key: KeyId) {
        let now = self.clock.now();
        if let Some(urgency) = self.held.forget(now, key) {
            self.held.report_soon(now, key, urgency, &mut self.host, &mut self.owned);
        }
    }

    /// Sets what is done with a key while hosts are lost. It is forgotten with the key.
    pub fn set_partition(&mut self, key: KeyId, partition: Partition) {
        if self.held.set_partition(key, partition) {
            let now = self.clock.now();
            self.held.report_soon(now, key, Urgency::Hot, &mut self.host, &mut self.owned);
        }
    }

    /// From now on, until the end of this run, this host goes by votes: there are limits that a majority decides
    /// about. It does not stop with the last of them, because others may not know yet that it was that.
    pub fn go_by_majority(&mut self) {
        self.host.settings.majority = true;
    }

    /// This host's clock is wrong, or was a moment ago: what it was given may have ended, and what it gave may last. So it
    /// gives and takes nothing until all of that has ended, and has its floor meanwhile, as after a restart. Returns whether
    /// that matters: not where no other host can use anything.
    pub fn distrust_clock(&mut self, now: Moment) -> bool {
        let now = self.clock.advance(now);
        if self.alone(now) {
            return false;
        }
        let Self { host, home, held, recount, .. } = self;
        let timing = host.settings.timing;
        host.quiet = now.after(clock::grace(home.longest(&timing)));
        host.takes = host.quiet;
        // Both by a clock that was wrong: the leases that it has, and those that it has renewed.
        host.peers.values_mut().for_each(|peer| peer.renews = Moment(0));
        recount.forget_renewed(now.after(clock::grace(timing.home_lease)));
        home.cede_nothing();
        held.touch_all();
        true
    }

    /// Takes an operator's word that a host is gone for good. What it had is given to the others as soon as that breaks no
    /// promise.
    pub fn forget_host(&mut self, host: HostId, how: Forget) {
        self.recount.forget(host, how);
    }

    /// Begins to hand everything over: nothing is delegated any more, the floor is nothing when all that was
    /// has ended, and [`Outputs::left`] says when all of it has come somewhere.
    pub fn leave(&mut self, now: Moment) {
        let now = self.clock.advance(now);
        self.host.leaving = true;
        self.round = now;
    }

    /// What this host may use of a key at that moment and until when: its floor and what it was granted, or
    /// its home share where the owner is silent. The floor, without end, of a key that is not tracked.
    pub fn share_of(&self, now: Moment, key: KeyId) -> (Share, Moment) {
        let now = self.clock.at(now);
        let held = self.held.tracked(key);
        match held.and_then(|it| self.usable(now, key, it, it.reclaims(now, key, &self.host))) {
            Some((share, until)) => (share, self.clock.host(until)),
            None => (self.floor(), Moment(u64::MAX)),
        }
    }

    /// What this host's kernel may use of every key without end: its floor, or all where it has everything and
    /// nothing of that can be used by another host.
    pub fn without_end(&self, now: Moment) -> Share {
        let now = self.clock.at(now);
        if self.alone(now) { Share::WHOLE } else { self.floor() }
    }

    /// Whether no other host can use anything, and none is there that could be delegated to.
    fn alone(&self, now: Moment) -> bool {
        let Self { host, home, owned, .. } = self;
        let me = host.settings.me;
        // All of WHOLE is here (I1), and nothing that was given out of it lasts: neither by this run's books nor,
        // after `quiet`, by an earlier run's.
        home.state.home == Share::WHOLE
            && host.home_lease == Moment(u64::MAX)
            && self.excess.homes == Share::WHOLE
            && home.state.outgoing.is_empty()
            && (!host.is_quiet(now) || host.settings.alone)
            && host.sees_nobody()
            && host.views.earlier_until().has_come(now)
            // A vote for another host lasts no longer than what is delegated to that with it.
            && host.peers.values().all(|peer| peer.lent.has_come(now))
            && owned.granted(me) == 0
            && !owned.lends()
    }

    /// What this host may use of every key without end, of which it has less than everything.
    pub fn floor(&self) -> Share {
        self.excess.scaled(self.host.settings.floor_of(self.home.state.home))
    }

    /// Keys that this host has grants of, and grants of keys that it owns which other hosts may go by.
    pub fn count_grants(&self, now: Moment) -> [usize; 2] {
        [self.held.granted(self.clock.at(now)), self.owned.granted(self.host.settings.me)]
    }

    /// What a host has last said to have as its home share, as far as it has.
    pub fn home_of(&self, host: HostId) -> Option<Share> {
        let me = host == self.host.settings.me;
        if me { Some(self.home.state.home) } else { self.host.home_of(host) }
    }

    /// What this host has lent to and borrowed from the owners of its keys in other regions.
    pub fn count_loans(&self, now: Moment) -> Loans {
        self.owned.count_loans(self.clock.at(now))
    }

    /// Hosts with shares that are lost, as this one sees it.
    pub fn lost(&self, now: Moment) -> Vec<LostHost> {
        let now = self.clock.at(now);
        let lost = self.absent.lost(now, &self.host, &self.home);
        let renewed = |host: &HostId| self.host.peers.get(host).map(|peer| peer.renewed);
        // With one or two who count, each is half of them by itself.
        let ends = self.home.state.era.tally.hosts > 2;
        lost.map(|(host, home)| {
            let home_lease = ends.then(|| renewed(&host).unwrap_or_default().since(now));
            LostHost { host, home, home_lease }
        })
        .collect()
    }

    /// In which era this host is, and until when it may use what is beside its floor.
    pub fn home_lease(&self) -> (u64, Moment) {
        (self.home.state.era.number, self.clock.host(self.host.home_lease))
    }

    /// What does not add up.
    pub fn doubts(&self) -> Doubts {
        let homes = Some(self.excess.homes).filter(|homes| *homes > Share::WHOLE);
        Doubts { homes, lost: self.absent.doubted, given_up: self.home.given_up }
    }
}

/// How soon something is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// With the next round.
    None,
    /// In some tens of milliseconds.
    Hot,
    /// At once.
    Now,
}
