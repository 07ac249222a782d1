//! What limiters do without escrow.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Actions, Birth, Count, Payload, Sample, Scheme, SchemeKind};
use cluster::escrow::{Member, PersistentState};
use cluster::{HostId, KeyId, Moment};
use model::Share;

/// How often hosts tell each other what they have counted.
// As often as the escrow reports, so that it is the schemes that are compared.
const EVERY: Duration = Duration::from_millis(200);
/// How long what was heard of another host counts.
const HEARD: Duration = Duration::from_secs(2);

/// What another host told of a source.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Moment,
    admitted: f64,
    demand: Share,
}

/// A host under one of the simpler schemes.
#[derive(Clone, Debug)]
pub(in super::super) struct Baseline {
    kind: SchemeKind,
    birth: Birth,
    others: Vec<HostId>,
    own: BTreeMap<KeyId, Count>,
    heard: BTreeMap<(KeyId, HostId), Heard>,
    /// When the latest message of each host was sent, by its clock.
    latest: BTreeMap<HostId, Moment>,
    debits: Vec<(KeyId, f64)>,
    floor: Option<Share>,
    due: Moment,
    leaving: bool,
    /// Sources whose share may be another one.
    changed: bool,
}

impl Baseline {
    pub(in super::super) fn new(kind: SchemeKind, birth: Birth) -> Self {
        let Birth { me, hosts, now, .. } = birth;
        let floor = match kind {
            SchemeKind::Static | SchemeKind::Proportional => Share::WHOLE.times(1, hosts as u64),
            _ => Share::WHOLE,
        };
        Self {
            kind,
            birth,
            others: Vec::new(),
            own: BTreeMap::new(),
            heard: BTreeMap::new(),
            latest: BTreeMap::new(),
            debits: Vec::new(),
            floor: Some(floor),
            // So that hosts do not all speak at once.
            due: now.after(Duration::from_nanos(me.0 % EVERY.as_nanos() as u64)),
            leaving: false,
            changed: false,
        }
    }

    const fn speaks(&self) -> bool {
        matches!(self.kind, SchemeKind::Debit | SchemeKind::Proportional)
    }

    /// The host's part of the demand that it has heard of.
    fn proportion(&self, now: Moment, count: &Count) -> Share {
        let others: Share = self
            .heard
            .range((count.key, HostId(0))..=(count.key, HostId(u64::MAX)))
            .filter(|(_, heard)| now.since(heard.at) < HEARD)
            .map(|(_, heard)| heard.demand)
            .sum();
        match (others + count.demand).units() {
            0 => Share::WHOLE.times(1, self.birth.hosts as u64),
            all => Share::WHOLE.times(count.demand.units(), all),
        }
    }
}

impl Scheme for Baseline {
    fn members(&mut self, _: Moment, members: &BTreeMap<HostId, Member>) {
        self.others = members.keys().copied().filter(|host| *host != self.birth.me).collect();
    }

    fn demand(&mut self, _: Moment, key: KeyId, sample: Sample) {
        let fresh = Count { key, admitted: 0.0, demand: Share::NONE };
        let count = self.own.entry(key).or_insert(fresh);
        count.admitted += sample.admitted;
        count.demand = sample.demand;
        self.changed = true;
    }

    fn forget(&mut self, key: KeyId) {
        self.own.remove(&key);
    }

    fn receive(&mut self, now: Moment, from: HostId, message: &Payload) {
        let Payload::Counts(sent, counts) = message else { return };
        let latest = self.latest.entry(from).or_default();
        // The network doubles and reorders. Counts are running totals, so an older message brings nothing new.
        if *sent <= *latest {
            // It has come before, or later ones have.
            return;
        }
        *latest = *sent;
        for count in counts {
            let Count { key, admitted, demand } = *count;
            let before = self.heard.insert((key, from), Heard { at: now, admitted, demand });
            // Counts that went back are those of a daemon that has started again.
            let before = before.map_or(0.0, |heard| heard.admitted);
            let news = if admitted < before { admitted } else { admitted - before };
            if self.kind == SchemeKind::Debit && news > 0.0 {
                self.debits.push((key, news));
            }
        }
        self.changed = true;
    }

    fn poll(&mut self, now: Moment) -> Actions {
        let mut actions = Actions {
            floor: self.floor.take(),
            debits: std::mem::take(&mut self.debits),
            left: self.leaving,
            ..Actions::default()
        };
        if self.kind == SchemeKind::Proportional && std::mem::take(&mut self.changed) {
            // No lease: this is why it exceeds the limit when hosts lose each other.
            let forever = Moment(u64::MAX);
            let share = |count: &Count| (count.key, self.proportion(now, count), forever);
            actions.shares = self.own.values().map(share).collect();
        }
        if self.speaks() && now >= self.due {
            self.due = now.after(EVERY);
            let counts: Vec<Count> = self.own.values().copied().collect();
            if !counts.is_empty() {
                let message = |host: &HostId| (*host, Payload::Counts(now, counts.clone()));
                actions.messages = self.others.iter().map(message).collect();
            }
        }
        actions.next = if self.speaks() { self.due } else { now.after(Duration::from_secs(3600)) };
        actions
    }

    fn restart(&mut self, now: Moment, _: HostId, _: PersistentState) {
        let others = std::mem::take(&mut self.others);
        // It keeps nothing on a disk: its counts start anew, which others tell by their going back.
        *self = Self { others, ..Self::new(self.kind, Birth { now, ..self.birth }) };
    }

    fn leave(&mut self, _: Moment) {
        self.leaving = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::escrow::{Partition, Region};

    fn host(kind: SchemeKind, me: u64) -> Baseline {
        let birth = Birth {
            me: HostId(me),
            weight: 1,
            region: Region::new("default"),
            hosts: 2,
            one_of: 2,
            seed: 0,
            policy: Partition::default(),
            home_lease: Duration::from_secs(600),
            now: Moment(0),
        };
        let member = Member { weight: 1, region: birth.region };
        let mut host = Baseline::new(kind, birth);
        host.members(Moment(0), &[1, 2].map(|id| (HostId(id), member)).into());
        host
    }

    fn sample(demand: f64) -> Sample {
        Sample { demand: Share::from_part(demand), admitted: 0.25, limited: true }
    }

    #[test]
    fn counts_are_taken_once() {
        let (mut one, mut two) = (host(SchemeKind::Debit, 1), host(SchemeKind::Debit, 2));
        let later = Moment(1_000_000_000);
        one.demand(later, KeyId::from_hash(7), sample(2.0));
        let actions = one.poll(later);
        assert_eq!(actions.floor, Some(Share::WHOLE));
        let [(HostId(2), message)] = &actions.messages[..] else { panic!("{actions:?}") };
        for _ in 0..2 {
            two.receive(later, HostId(1), message);
        }
        assert_eq!(two.poll(later).debits, [(KeyId::from_hash(7), 0.25)]);
        assert!(two.poll(later).debits.is_empty() && one.poll(later).messages.is_empty());
    }

    #[test]
    fn shares_follow_the_demand_that_is_heard_of() {
        let mut one = host(SchemeKind::Proportional, 1);
        assert_eq!(one.poll(Moment(0)).floor, Some(Share::from_part(0.5)));
        let (now, late) = (Moment(1_000_000_000), Moment(9_000_000_000));
        one.demand(now, KeyId::from_hash(7), sample(3.0));
        let theirs =
            Count { key: KeyId::from_hash(7), admitted: 0.0, demand: Share::from_part(1.0) };
        one.receive(now, HostId(2), &Payload::Counts(Moment(1), vec![theirs]));
        assert_eq!(one.poll(now).shares[0].1, Share::from_part(0.75));
        one.demand(late, KeyId::from_hash(7), sample(3.0));
        assert_eq!(one.poll(late).shares[0].1, Share::WHOLE, "it was heard of too long ago");
    }
}
