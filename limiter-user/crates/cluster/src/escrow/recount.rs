//! Counting all home shares anew, so that what hosts had that are gone for good is not lost.
//!
//! Shares are minted once, by the founder. From then on those who count, more than half of them, may begin a new *era*:
//! whoever is counted has in it what it has, and the host that counts gets what is missing to the whole. Whoever is not
//! counted has nothing any more. Before that nobody may use anything of it: each host uses what is beside its floor by
//! a *home lease*, which half of those who count renew by their messages.
//!
//! One era is followed by one other: those who count agree by Paxos (Lamport, "Paxos made simple", 2001). What is told
//! of it is each host's state, not its changes: messages may be lost, late, doubled and out of order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::{Ask, Attempt, Standing, Step, Tally};
use crate::{HostId, Message, Moment};
use model::Share;

use super::clock::grace;
use super::excess::NOISE;
use super::home::Home;
use super::host::Host;
use super::lost::Absent;
use super::peer::Peer;
use super::{Planted, Urgency};

/// For so long those who are to be counted must be others than those who count.
const SETTLED: Duration = Duration::from_secs(1);
/// How long a step waits for all, and how long after an attempt the next one begins.
const STEP: Duration = Duration::from_secs(3);
/// Rounds of messages that a host which leaves still takes what was sent to it before that was known.
const LAST_ROUNDS: u32 = 4;

/// What a host must not forget about eras.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Era {
    /// How many times all shares have been counted. 0 for a host that does not know yet.
    pub number: u64,
    /// Whether this host is one of those who count.
    pub counts: bool,
    /// What began this era.
    pub tally: Tally,
    /// The latest attempt to end it that this host has answered.
    pub promised: Attempt,
    /// The latest attempt that has told this host that it is counted; its home share does not change since then.
    pub counted: Option<Attempt>,
    /// What this host has accepted, and in which attempt.
    pub accepted: Option<(Attempt, Tally)>,
    /// The latest attempt that has voided all earlier ones.
    pub voided: Attempt,
    /// All that were counted have been heard in this era.
    pub known: bool,
}

impl Era {
    /// That of a founder, who has counted itself.
    pub fn first() -> Self {
        let tally = Tally { hosts: 1, ..Tally::default() };
        Self { number: 1, counts: true, tally, ..Self::default() }
    }

    /// Whether a majority decides about limits with [`Partition::Auto`]: not among two, each of which is half. Whoever does
    /// not know that of this era goes by votes, and nobody votes about a host that was not heard in it.
    pub(super) const fn has_majority(&self) -> bool {
        self.tally.hosts > 2 || !self.known
    }

    /// Takes what a host asks; whether it is answered with more than before.
    pub(super) fn take(&mut self, ask: Ask) -> bool {
        if ask.attempt < self.promised {
            return false;
        }
        let before = self.clone();
        self.promised = ask.attempt;
        match ask.step {
            Step::Promise => {}
            Step::Count => self.counted = Some(ask.attempt),
            Step::Void => {
                self.voided = ask.attempt;
                self.accepted.take_if(|(attempt, _)| *attempt < ask.attempt);
            }
            Step::Release => self.counted = None,
            Step::Accept(tally) => self.accepted = Some((ask.attempt, tally)),
        }
        *self != before
    }
}

/// An attempt of this host.
#[derive(Clone, Debug)]
struct Running {
    ask: Ask,
    /// Since when the step lasts.
    since: Moment,
    /// The hosts that it counts.
    counted: BTreeSet<HostId>,
}

/// What an attempt does next.
enum Next {
    /// Asks all for that, and counts these.
    Ask(Step, BTreeSet<HostId>),
    /// It is decided.
    Begin(Tally),
    Stop,
}

/// What this host does about recounts.
#[derive(Clone, Debug)]
pub(super) struct Recount {
    running: Option<Running>,
    /// Since when something is missing, as far as this host can tell.
    lacking: Option<Moment>,
    /// Since when those who are there are others than those who count.
    differs: Option<Moment>,
    /// Not before.
    next: Moment,
    /// Since when this host knows of the era, or of anything.
    began: Moment,
    /// Before that, an earlier run may have renewed home leases that this one does not know of.
    knows: Moment,
    /// Since when this host has nothing more to hand over.
    empty: Option<Moment>,
    /// Hosts that are gone for good, as an operator says.
    forgotten: BTreeMap<HostId, Forget>,
}

/// What an operator says of a host that is gone for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// It is counted no more as soon as its home lease has ended.
    AfterLease,
    /// Its machine is off: there is nothing that could use a lease, and it will not vote.
    Now,
}

/// Those who are there.
struct Present {
    /// What each has told of itself, this host among them.
    hosts: BTreeMap<HostId, Known>,
}

/// What is known of a host that is there.
#[derive(Clone, Copy)]
struct Known {
    home: Share,
    /// It is one of those who count.
    counts: bool,
    /// It is to be counted: it has something or may be given something.
    stays: bool,
    standing: Standing,
}

impl Present {
    fn voters(&self, votes: impl Fn(&Standing) -> bool) -> usize {
        self.hosts.values().filter(|known| known.counts && votes(&known.standing)).count()
    }

    fn stay(&self) -> BTreeSet<HostId> {
        self.hosts.iter().filter(|(_, known)| known.stays).map(|(host, _)| *host).collect()
    }

    /// What is missing to the whole beside what these have, by what they have kept that they are counted with.
    fn lacking(&self, counted: &BTreeSet<HostId>) -> Option<Share> {
        let homes = counted.iter().map(|host| Some(self.hosts.get(host)?.standing.home));
        Some(Share::WHOLE.without(homes.sum::<Option<Share>>()?))
    }

    fn all(&self, which: impl Fn(HostId) -> bool, are: impl Fn(&Standing) -> bool) -> bool {
        let mut those = self.hosts.iter().filter(|(host, _)| which(**host));
        those.all(|(_, known)| are(&known.standing))
    }
}

impl Recount {
    pub(super) fn new(start: Moment, knows: Moment) -> Self {
        let next = start.after(STEP);
        let (running, lacking, differs, empty) = (None, None, None, None);
        let (began, forgotten) = (start, BTreeMap::new());
        Self { running, lacking, differs, next, began, knows, empty, forgotten }
    }

    pub(super) fn forget(&mut self, host: HostId, how: Forget) {
        self.forgotten.insert(host, how);
    }

    /// It is not known which home leases were renewed that last until then.
    pub(super) fn forget_renewed(&mut self, until: Moment) {
        self.knows = until;
    }

    /// Whether this host, which leaves, may go where it has nothing: when nothing is on its way to it, and it does not count,
    /// or if the others do not see to that and are a majority without it. Who went before could leave so few that they never
    /// count anybody again.
    pub(super) fn lets_go(&mut self, now: Moment, has: bool, host: &Host, home: &Home) -> bool {
        self.empty = (!has).then(|| self.empty.unwrap_or(now));
        let Some(since) = self.empty else { return false };
        let (era, timing) = (&home.state.era, host.settings.timing);
        let span = home.delegation(&timing);
        let alive = || host.peers.values().filter(|peer| peer.alive(now, span));
        let waited = !since.is_recent(now, 3 * STEP);
        // Whoever has answered so many rounds knows that this host leaves, and gives it nothing more. What it gave before is in
        // each of its messages: one of them has come.
        let known = since.after(LAST_ROUNDS * timing.every);
        if !waited && alive().any(|peer| peer.echoed <= Some(known)) {
            return false;
        }
        let others = || alive().filter(|peer| peer.counts).count();
        !era.counts || host.sees_nobody() || waited && self.is_majority(others(), era)
    }

    /// What this host asks of another one at present.
    pub(super) fn ask(&self, of: HostId) -> Option<Ask> {
        let Running { ask, counted, .. } = self.running.as_ref()?;
        // Who is not counted must not keep that it is: it would be one more of those who count.
        let step = if ask.step == Step::Count && !counted.contains(&of) {
            Step::Promise
        } else {
            ask.step
        };
        Some(Ask { step, ..*ask })
    }

    /// What is told of this host while there is a recount.
    pub(super) fn standing(&self, now: Moment, host: &Host, home: &Home) -> Option<Standing> {
        let era = &home.state.era;
        (era.promised != Attempt::NONE).then(|| Standing {
            promised: era.promised,
            counted: era.counted.unwrap_or_default(),
            accepted: era.accepted,
            voided: era.voided,
            home: home.state.home,
            renewed: (now >= self.knows).then(|| {
                // Also of those that have nothing, as far as is known: some may be on its way to them.
                let may = |peer: &Peer| !peer.renewed.has_come(now) && peer.stays();
                let renewed = host.peers.iter().filter(|(_, peer)| may(peer));
                Standing::sum(renewed.map(|(host, _)| *host))
            }),
        })
    }

    /// Takes what a message of this era says of a recount.
    pub(super) fn hear(
        &mut self,
        now: Moment,
        from: HostId,
        message: &Message,
        host: &mut Host,
        home: &mut Home,
    ) {
        if let (Some(standing), Some(peer)) = (message.standing, host.peers.get_mut(&from)) {
            peer.standing = standing;
        }
        if message.ask.is_some_and(|ask| home.take_ask(ask)) {
            host.send_soon(now, from, Urgency::Now);
        }
    }

    /// Begins an attempt, or goes on with one.
    pub(super) fn poll(
        &mut self,
        now: Moment,
        round: bool,
        host: &mut Host,
        home: &mut Home,
        absent: &mut Absent,
    ) {
        // Of a thousand hosts: not in each poll.
        if !round && self.running.is_none() {
            return;
        }
        let present = self.present(now, host, home);
        if let (true, Some(present)) = (round, &present) {
            self.look(now, present, host, home);
        }
        let Some(running) = &self.running else { return };
        let wait = grace(home.longest(&host.settings.timing));
        let lasts = running.since.is_recent(now, STEP + wait);
        if running.ask.attempt != home.state.era.promised || !lasts {
            // Somebody does not answer, or another attempt is under way.
            return self.stop(now);
        }
        let next = present.and_then(|present| self.step(now, running, &present, wait, host, home));
        match next {
            None => {}
            Some(Next::Stop) => self.stop(now),
            Some(Next::Begin(tally)) => {
                self.stop(now);
                self.begin_era(now, home.state.era.number + 1, tally, host, home, absent);
            }
            Some(Next::Ask(step, counted)) => {
                self.running =
                    Some(Running { ask: Ask { step, ..running.ask }, since: now, counted });
                // This host is asked as all others are.
                self.ask(host.settings.me).map(|ask| home.take_ask(ask));
                host.tell_all(now);
            }
        }
    }

    /// Begins the era that a recount has ended with: all that was known of the one before says nothing any more.
    pub(super) fn begin_era(
        &mut self,
        now: Moment,
        number: u64,
        tally: Tally,
        host: &mut Host,
        home: &mut Home,
        absent: &mut Absent,
    ) {
        (self.running, self.lacking, self.differs) = (None, None, None);
        self.began = now;
        self.forgotten.clear();
        home.begin_era(number, tally, host.settings.me);
        absent.begin_era();
        host.begin_era(now);
    }

    fn stop(&mut self, now: Moment) {
        (self.running, self.next) = (None, now.after(STEP));
    }

    /// What an attempt does next, if all that it waits for has come.
    fn step(
        &self,
        now: Moment,
        running: &Running,
        present: &Present,
        wait: Duration,
        host: &Host,
        home: &Home,
    ) -> Option<Next> {
        let Running { ask: Ask { attempt, step }, since, counted } = running;
        let (attempt, era) = (*attempt, &home.state.era);
        let is_counted = |standing: &Standing| standing.counted == attempt;
        let ask = |step, counted: &BTreeSet<HostId>| Some(Next::Ask(step, counted.clone()));
        // Once all that are there do: whether they are a majority.
        let agree = |does: &dyn Fn(&Standing) -> bool| {
            present.all(|_| true, does).then(|| self.is_majority(present.voters(does), era))
        };
        match *step {
            Step::Promise => {
                let promises = |standing: &Standing| standing.promised == attempt;
                if !agree(&promises)? {
                    return Some(Next::Stop);
                }
                let standings = present.hosts.values().map(|known| known.standing);
                let voided = standings.clone().map(|standing| standing.voided).max();
                let accepted = standings.filter_map(|standing| standing.accepted);
                // An attempt voids those before it, not what it comes to itself.
                let accepted = accepted.filter(|(attempt, _)| Some(*attempt) >= voided);
                match accepted.max_by_key(|(attempt, _)| *attempt) {
                    // What may have been decided is what is decided.
                    Some((_, tally)) => ask(Step::Accept(tally), counted),
                    None => ask(Step::Void, counted),
                }
            }
            Step::Void => {
                let voids = |standing: &Standing| standing.voided == attempt;
                if !agree(&voids)? {
                    return Some(Next::Stop);
                }
                // Only now may anybody forget that an earlier attempt has counted it.
                let stay = present.stay();
                match self.given(now, present, &stay, host, era) {
                    Some(_) => ask(Step::Count, &stay),
                    None => ask(Step::Release, counted),
                }
            }
            Step::Count if !present.all(|host| counted.contains(&host), is_counted) => None,
            Step::Count => {
                let hosts = u32::try_from(counted.len()).unwrap_or(u32::MAX);
                let tally = |lacking| Tally { counted: attempt, hosts, lacking };
                let given = self.given(now, present, counted, host, era).map(tally);
                ask(given.map_or(Step::Release, Step::Accept), counted)
            }
            Step::Accept(tally) => {
                // Who is not counted may have renewed the lease of one whose share is given out, until it accepted.
                let renews_nobody = Standing::sum(std::iter::empty());
                let those = [renews_nobody, Standing::sum(counted.iter().copied())].map(Some);
                let bound = |it: &Standing| {
                    let counted = it.counted == tally.counted;
                    counted || tally.lacking.is_none() || those.contains(&it.renewed)
                };
                let accepts = |it: &Standing| it.accepted == Some((attempt, tally)) && bound(it);
                // What is used in the place of lost hosts by votes from before they were counted out has to end.
                let waited = tally.lacking.is_none() || now.since(*since) >= wait;
                let majority = self.is_majority(present.voters(accepts), era);
                (majority && waited).then_some(Next::Begin(tally))
            }
            Step::Release => {
                present.all(|_| true, |it| it.counted == Attempt::NONE).then_some(Next::Stop)
            }
        }
    }

    /// Whether so many of those who count are more than half of them.
    fn is_majority(&self, voters: usize, era: &Era) -> bool {
        let gone = self.forgotten.values().filter(|how| **how == Forget::Now).count();
        let all = (era.tally.hosts as usize).saturating_sub(gone);
        // Where all of those who count are off, an operator has decided.
        2 * voters > all || all == 0
    }

    /// What the host that counts these gets of what they lack; none while they cannot be counted.
    fn given(
        &self,
        now: Moment,
        present: &Present,
        counted: &BTreeSet<HostId>,
        host: &Host,
        era: &Era,
    ) -> Option<Share> {
        let lacking = present.lacking(counted)?;
        let mut voters = present.hosts.iter().filter(|(_, known)| known.counts);
        let renews_no_others = |(host, known): &(&HostId, &Known)| {
            let others = counted.iter().filter(|other| other != host);
            known.standing.renewed == Some(Standing::sum(others.copied()))
        };
        let long = |since: Moment| now.since(since) >= patience(host);
        // Who counts them out has renewed nothing in this era, and what was renewed in earlier ones has ended. One who leaves
        // is asked again when it accepts.
        let agree = voters.clone().filter(renews_no_others).count();
        let ended = self.is_majority(agree, era)
            && voters.all(|it| renews_no_others(&it) || !counted.contains(it.0))
            && long(self.began);
        let off = self.forgotten.values().any(|how| *how == Forget::Now);
        let waits = !host.settings.planted(Planted::HomeLeaseNotWaited);
        let lost = self.lacking.is_some_and(long);
        if (lost || !self.forgotten.is_empty()) && (off || ended || !waits) {
            return Some(lacking);
        }
        // So little is on its way, or was lost by rounding. Somebody may have it, so nobody gets it.
        (lacking < NOISE).then_some(Share::NONE)
    }

    /// Looks whether shares are to be counted anew, which the first host of a view does.
    fn look(&mut self, now: Moment, present: &Present, host: &Host, home: &mut Home) {
        let era = &home.state.era;
        self.forgotten.retain(|host, _| !present.hosts.contains_key(host));
        let homes: Share = present.hosts.values().map(|known| known.home).sum();
        // What is on its way to a lost host is as lost as that.
        let sent = home.state.outgoing.iter().filter(|(to, _)| present.hosts.contains_key(to));
        let on_the_way: Share = sent.map(|(_, transfer)| transfer.share).sum();
        let lacks = homes + on_the_way + NOISE < Share::WHOLE;
        let stay = present.hosts.values().filter(|known| known.stays);
        let differs = stay.clone().count() != era.tally.hosts as usize
            || stay.clone().any(|known| !known.counts);
        let since = |since: &mut Option<Moment>, is: bool| {
            *since = is.then(|| since.unwrap_or(now));
            since.map(|since| now.since(since))
        };
        let settled = since(&mut self.differs, differs && !lacks) >= Some(SETTLED);
        let lost = since(&mut self.lacking, lacks) >= Some(patience(host));
        // Whoever is counted gives and takes nothing until that comes to an end.
        let open = present.hosts.values().any(|known| known.standing.counted != Attempt::NONE);
        let due = settled || lost || open || lacks && !self.forgotten.is_empty();
        let may = era.number > 0
            // Whoever the operator has told counts: others do not know.
            && (host.is_first()
                || !self.forgotten.is_empty()
                || host.settings.planted(Planted::AllCount))
            && self.is_majority(present.voters(|_| true), era);
        if !(due && may && self.running.is_none() && self.next.has_come(now) && !host.is_quiet(now))
        {
            return;
        }
        let promised = present.hosts.values().map(|known| known.standing.promised).max();
        let number = promised.map_or(1, |promised| promised.number.saturating_add(1));
        let ask = Ask { attempt: Attempt { number, by: host.settings.me }, step: Step::Promise };
        self.running = Some(Running { ask, since: now, counted: BTreeSet::new() });
        home.take_ask(ask);
    }

    /// All that are there, if each of them is heard: one that is not may have what is missing.
    fn present(&self, now: Moment, host: &Host, home: &Home) -> Option<Present> {
        let (me, span) = (host.settings.me, home.delegation(&host.settings.timing));
        let mut hosts = BTreeMap::new();
        for (other, _) in host.views.present().iter().filter(|(other, _)| *other != me) {
            let peer = host.peers.get(&other).filter(|peer| peer.alive(now, span))?;
            let home = host.settings.whole_of(peer.offered?);
            let Peer { counts, standing, .. } = *peer;
            hosts.insert(other, Known { home, counts, stays: peer.stays(), standing });
        }
        let (era, mine) = (&home.state.era, home.state.home);
        let standing = self.standing(now, host, home).unwrap_or_default();
        let stays = !host.leaving || !mine.is_none();
        hosts.insert(me, Known { home: mine, counts: era.counts, stays, standing });
        Some(Present { hosts })
    }
}

/// For how long shares are missing until they are counted anew.
fn patience(host: &Host) -> Duration {
    let settings = &host.settings;
    let waits = !settings.planted(Planted::HomeLeaseNotWaited);
    if waits { grace(settings.timing.home_lease) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_voids_what_was_accepted_in_earlier_ones() {
        let [one, two] = [1, 2].map(|number| Attempt { number, by: HostId(1) });
        let mut era = Era::first();
        // Its founder has counted itself.
        assert_eq!((era.tally.hosts, era.counts), (1, true));
        let tally = Tally::default();
        assert!(era.take(Ask { attempt: one, step: Step::Accept(tally) }));
        era.take(Ask { attempt: one, step: Step::Void });
        assert_eq!(era.accepted, Some((one, tally)));
        assert!(era.take(Ask { attempt: two, step: Step::Void }));
        assert_eq!(era.accepted, None);
        assert!(!era.take(Ask { attempt: one, step: Step::Accept(tally) }));
        assert_eq!((era.accepted, era.promised), (None, two));
    }
}
