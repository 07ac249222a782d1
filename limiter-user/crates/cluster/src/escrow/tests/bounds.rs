//! What comes of one host's messages is bounded, and what is refused is counted.

use super::super::*;
use super::world::MS;
use crate::Message;
use crate::message::{Grant, Report, Vote};

const ME: HostId = HostId(1);
const OTHER: HostId = HostId(2);
const KEY: KeyId = KeyId::from_hash(7);

/// A host with half of all shares, and what it hears of another one.
struct Pair {
    escrow: Escrow,
    now: Moment,
    /// What the host has told last.
    told: Message,
}

impl Pair {
    /// The two have heard each other; the other one does not delegate.
    fn new(settings: Settings, home: Share) -> Self {
        let mut pair = Self::unheard(settings, home);
        pair.hear(Message::default());
        pair
    }

    /// This one has not heard the other one yet.
    fn unheard(settings: Settings, home: Share) -> Self {
        let kept = PersistentState { home, ..PersistentState::founder() };
        let now = Moment(MS);
        let mut escrow = Escrow::new(settings, kept, now);
        escrow.set_members(now, &[ME, OTHER].map(|host| (host, Member::new(100))).into());
        let mut pair = Self { escrow, now, told: Message::default() };
        pair.poll(300);
        pair
    }

    /// So many milliseconds pass.
    fn poll(&mut self, ms: u64) -> Outputs {
        self.now = Moment(self.now.0 + ms * MS);
        let out = self.escrow.poll(self.now);
        if let Some((_, told)) = out.messages.last() {
            self.told.clone_from(told);
        }
        out
    }

    /// The other one answers what it was told last.
    fn hear(&mut self, message: Message) {
        self.hear_of(self.now, message);
    }

    /// The same with the other one's moment.
    fn hear_of(&mut self, sent: Moment, message: Message) {
        let (echo, era) = (Some(self.told.sent), self.told.era);
        self.escrow.receive(self.now, OTHER, &Message { sent, echo, era, ..message });
    }

    fn refused(&self) -> Counters {
        self.escrow.counters()
    }
}

fn pair() -> Pair {
    Pair::new(Settings::new(ME, 100), Share::WHOLE.times(1, 2))
}

fn keys(count: usize) -> impl Iterator<Item = KeyId> {
    (1..=count as u64).map(KeyId::from_hash)
}

fn wants(key: KeyId, demand: Share) -> Report {
    Report { key, demand, in_use: 0, majority: false }
}

#[test]
fn keys_beyond_those_that_a_host_tracks_have_their_floor() {
    let mut pair = pair();
    for key in keys(MAX_HELD + 2) {
        pair.escrow.demand(pair.now, key, Share::WHOLE, false);
    }
    assert_eq!(pair.refused().keys_refused, 2);
    // A tracked one is told of as before.
    pair.escrow.demand(pair.now, keys(1).next().unwrap(), Share::WHOLE, false);
    assert_eq!(pair.refused().keys_refused, 2);
    assert_eq!(pair.escrow.held.keys.len(), MAX_HELD);
    let last = keys(MAX_HELD + 2).last().unwrap();
    assert_eq!(pair.escrow.share_of(pair.now, last).0, pair.escrow.floor());
}

#[test]
fn keys_beyond_those_that_an_owner_divides_are_not_remembered() {
    let mut pair = pair();
    let mut all = keys(MAX_OWNED + 5);
    let reports = all.by_ref().take(MAX_OWNED + 2).map(|key| wants(key, Share::WHOLE)).collect();
    pair.hear(Message { reports, ..Message::default() });
    assert_eq!(pair.refused().keys_refused, 2);
    let asks = vec![wants(all.next().unwrap(), Share::WHOLE)];
    pair.hear(Message { asks, ..Message::default() });
    assert_eq!(pair.refused().keys_refused, 3);
    // Who wants nothing of an unknown key is refused nothing.
    let [one, other] = [all.next(), all.next()].map(|key| vec![wants(key.unwrap(), Share::NONE)]);
    pair.hear(Message { reports: one, asks: other, ..Message::default() });
    assert_eq!(pair.refused().keys_refused, 3);
    assert_eq!(pair.escrow.owned.keys.len(), MAX_OWNED);
}

#[test]
fn hosts_beyond_those_that_are_heard_are_counted() {
    let mut pair = pair();
    let message = Message { sent: Moment(1), ..Message::default() };
    // The other one of the pair is one of them.
    for host in 0..MAX_PEERS as u64 + 1 {
        pair.escrow.receive(pair.now, HostId(1_000 + host), &message);
    }
    assert_eq!((pair.refused().hosts_refused, pair.escrow.host.peers.len()), (2, MAX_PEERS));
    pair.hear(Message::default());
    assert_eq!(pair.refused().hosts_refused, 2);
}

#[test]
fn a_transfer_is_taken_up_to_the_whole_and_not_beyond() {
    let mut pair = pair();
    let half = Share::WHOLE.times(1, 2);
    let send = |pair: &mut Pair, number: u64, share: Share| {
        let transfers = vec![Transfer { number, share }];
        pair.hear(Message { transfers, ..Message::default() });
        (pair.escrow.kept().home, pair.refused().transfers_refused)
    };
    let more = half + Share::from_units(1);
    assert_eq!(send(&mut pair, 1, more), (half, 1));
    assert_eq!(send(&mut pair, 2, more), (half, 2));
    assert_eq!(send(&mut pair, 3, half), (Share::WHOLE, 2));
}

#[test]
fn a_delegation_by_more_views_than_a_host_may_list_does_not_count() {
    for (views, counts) in [(0, false), (1, true), (16, true), (17, false)] {
        let mut pair = pair();
        let view = pair.told.views[0];
        pair.hear(Message {
            views: vec![view; views],
            delegated: Share::WHOLE.times(1, 4),
            delegated_for: pair.escrow.host.settings.timing.delegation,
            ..Message::default()
        });
        let delegations = &pair.escrow.host.peers[&OTHER].delegations;
        assert_eq!(!delegations.is_empty(), counts, "{views} views");
    }
}

#[test]
fn a_grant_without_a_number_is_none() {
    for (number, counts) in [(0, false), (1, true)] {
        let mut pair = pair();
        pair.escrow.demand(pair.now, KEY, Share::WHOLE, true);
        let granted_for = pair.escrow.host.settings.timing.grant;
        let grants = vec![Grant { key: KEY, share: Share::WHOLE, number }];
        pair.hear(Message { grants, granted_for, ..Message::default() });
        assert_eq!(pair.escrow.count_grants(pair.now)[0] > 0, counts);
    }
}

#[test]
fn of_one_number_the_latest_word_of_the_owner_counts() {
    let mut pair = pair();
    pair.escrow.demand(pair.now, KEY, Share::WHOLE, true);
    let granted_for = pair.escrow.host.settings.timing.grant;
    pair.poll(50);
    let (early, late) = (Moment(pair.now.0 + 1), Moment(pair.now.0 + 2));
    for (sent, number, percent, has) in
        [(late, 5, 40, 40), (early, 5, 30, 40), (late, 5, 20, 20), (late, 4, 30, 20)]
    {
        let grants = vec![Grant { key: KEY, share: Share::WHOLE.times(percent, 100), number }];
        pair.hear_of(sent, Message { grants, granted_for, ..Message::default() });
        let (share, _) = pair.escrow.share_of(pair.now, KEY);
        assert_eq!(share, pair.escrow.floor() + Share::WHOLE.times(has, 100), "{percent} %");
    }
}

#[test]
fn who_has_everything_is_alone_as_soon_as_what_it_delegated_has_ended() {
    let mut pair = Pair::new(Settings::new(ME, 100), Share::WHOLE);
    let lasts = pair.escrow.host.settings.timing.delegation.as_millis() as u64;
    pair.poll(200);
    assert_eq!(pair.escrow.without_end(pair.now), pair.escrow.floor());
    pair.escrow.set_members(pair.now, &BTreeMap::new());
    // It counts from the moment at which the other one was heard.
    pair.poll(lasts - 201);
    assert_eq!(pair.escrow.without_end(pair.now), pair.escrow.floor());
    pair.poll(1);
    assert_eq!(pair.escrow.without_end(pair.now), Share::WHOLE);
    assert!(pair.escrow.host.peers.contains_key(&OTHER));
}

#[test]
fn who_has_everything_is_not_alone_while_another_region_may_count_on_a_loan() {
    let mut pair = Pair::new(Settings::new(ME, 100), Share::WHOLE);
    pair.escrow.set_members(pair.now, &BTreeMap::new());
    pair.poll(2_000);
    assert_eq!(pair.escrow.without_end(pair.now), Share::WHOLE);
    pair.escrow.owned.ask(pair.now, OTHER, Moment(1), None, &wants(KEY, Share::WHOLE));
    let far = pair.escrow.owned.keys.get_mut(&KEY).and_then(|key| key.far.as_mut());
    far.unwrap().lent_mut().for_each(|(_, claim)| claim.give(Share::from_units(1)));
    assert_eq!(pair.escrow.without_end(pair.now), pair.escrow.floor());
}

#[test]
fn what_must_outlast_a_restart_is_kept_when_it_changes() {
    let mut pair = pair();
    assert!(!pair.poll(200).keep);
    pair.hear(Message { far: true, ..Message::default() });
    assert!(pair.escrow.kept().far && pair.poll(200).keep);
    // And once.
    pair.hear(Message { far: true, ..Message::default() });
    assert!(!pair.poll(200).keep);
}

#[test]
fn whoever_answers_late_for_many_rounds_is_given_longer_leases_for_good() {
    let mut pair = Pair::unheard(Settings::new(ME, 100), Share::WHOLE.times(1, 2));
    let answers_after = |pair: &mut Pair, polls: u64, rounds: usize| {
        for _ in 0..rounds {
            let (echo, era) = (Some(pair.told.sent), pair.told.era);
            (0..polls).for_each(|_| drop(pair.poll(100)));
            let message = Message { sent: pair.now, echo, era, ..Message::default() };
            pair.escrow.receive(pair.now, OTHER, &message);
        }
        pair.escrow.kept().far
    };
    assert!(!answers_after(&mut pair, 1, 40));
    assert!(answers_after(&mut pair, 4, 80));
    assert!(answers_after(&mut pair, 1, 40));
}

#[test]
fn the_last_host_goes_with_all_that_there_is_and_one_that_is_cut_off_waits() {
    let goes = |home, others: &[HostId]| {
        let mut pair = Pair::unheard(Settings::new(ME, 100), home);
        let members = others.iter().chain([&ME]).map(|&host| (host, Member::new(100)));
        pair.escrow.set_members(pair.now, &members.collect());
        pair.escrow.leave(pair.now);
        (0..300).any(|_| pair.poll(100).left)
    };
    let half = Share::WHOLE.times(1, 2);
    assert!(goes(Share::WHOLE, &[]));
    assert!(!goes(half, &[]));
    assert!(!goes(Share::WHOLE, &[OTHER]));
}

#[test]
fn votes_of_a_host_are_bounded() {
    let mut pair =
        Pair::new(Settings { majority: true, ..Settings::new(ME, 100) }, Share::WHOLE.times(1, 2));
    let of = |hosts: std::ops::Range<u64>| {
        let vote = |host| Vote { host: HostId(host), known: Share::WHOLE };
        let delegated_for = Duration::from_millis(1_500);
        Message { votes: hosts.map(vote).collect(), delegated_for, ..Message::default() }
    };
    for (hosts, known) in [(100..170, 64), (200..264, 128), (300..364, 128)] {
        pair.hear(of(hosts));
        assert_eq!(pair.escrow.host.peers[&OTHER].ballots.len(), known);
    }
}

#[test]
fn votes_are_about_lost_hosts_that_were_heard_since_and_leave_a_place_for_the_receiver() {
    let mut pair =
        Pair::new(Settings { majority: true, ..Settings::new(ME, 100) }, Share::WHOLE.times(1, 2));
    let Escrow { host, home, absent, .. } = &mut pair.escrow;
    home.state.era.tally.hosts = 3;
    home.taken = Moment(5);
    let share = Share::WHOLE.times(1, 1_000);
    for lost in 1_000..1_100 {
        absent.remember(HostId(lost), share, Some(home.taken));
    }
    assert_eq!(absent.voted_about(pair.now, host, home), []);
    for lost in 1_000..1_100 {
        absent.remember(HostId(lost), share, Some(Moment(6)));
    }
    assert_eq!(absent.voted_about(pair.now, host, home).len(), 63);
}

#[test]
fn so_many_lost_hosts_are_remembered() {
    let mut pair = pair();
    let Escrow { host, home, absent, .. } = &mut pair.escrow;
    for lost in 0..MAX_PEERS as u64 + 1 {
        absent.remember(HostId(1_000 + lost), Share::WHOLE, None);
    }
    // These and the two that are there.
    assert_eq!(absent.hosts(host, home), MAX_PEERS as u32 + 2);
    // One that is known is told of as before.
    absent.remember(HostId(1_000), Share::NONE, None);
    assert_eq!(absent.hosts(host, home), MAX_PEERS as u32 + 1);
}
