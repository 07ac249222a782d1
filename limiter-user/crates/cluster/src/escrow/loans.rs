//! What the owners of a key in different regions lend each other.

use std::time::Duration;

use smallvec::SmallVec;

use crate::message::{Loan, Report};
use crate::{HostId, KeyId, Moment, ViewId};
use model::Share;

use super::allocation::{Need, Wanted, targets};
use super::claim::Grantee;
use super::keys::ByHost;
use super::poll::Draft;
use super::taken::HeldLease;
use super::view::Members;
use super::{MAX_PEERS, Region, Timing};

/// What is asked for and had of one owner in another region.
#[derive(Clone, Debug, Default)]
struct Borrowed {
    want: Share,
    /// Since when anything is wanted.
    since: Moment,
    /// What it was last asked for.
    told: Share,
    /// When that was.
    said: Moment,
    /// All that it counts as lent, numbers ascending: the last one is counted here, those before it are not acknowledged to
    /// be given up yet.
    taken: SmallVec<[HeldLease; 2]>,
    /// To be said before the next round.
    dirty: bool,
}

impl Borrowed {
    fn expire(&mut self, now: Moment) {
        // The last one's number outlives its end: a late message must not bring an earlier loan back.
        let last = self.taken.last().map(|taken| taken.number);
        self.taken.retain(|taken| {
            let remembered = Some(taken.number) == last && !taken.memory.has_come(now);
            remembered || !taken.until.has_come(now)
        });
    }

    /// What lasts at least until then.
    fn share(&self, until: Moment) -> Share {
        let last = self.taken.last().filter(|taken| taken.until >= until);
        last.map_or(Share::NONE, |taken| taken.share)
    }

    fn in_use(&self) -> u32 {
        // The earliest: what was given of it holds until `acknowledge` has seen that all fits without (I11).
        self.taken.first().map_or(0, |taken| taken.number)
    }
}

/// What there is between the owner of a key and those in other regions.
#[derive(Clone, Debug, Default)]
pub(super) struct Far {
    /// The view that the root and the others are by.
    view: Option<ViewId>,
    root: Option<HostId>,
    /// The owners in all other regions, if this host is the root.
    others: Vec<HostId>,
    /// Who wants to borrow, and what was lent.
    lent: ByHost<Grantee>,
    borrowed: ByHost<Borrowed>,
    /// What is delegated until then or longer, in the order of moments; as when the key was divided last.
    pub(super) lasting: SmallVec<[(Moment, Share); 8]>,
    pub(super) majority: bool,
}

impl Far {
    /// Takes what another owner asks for.
    pub(super) fn ask(
        &mut self,
        now: Moment,
        from: HostId,
        sent: Moment,
        echo: Option<Moment>,
        ask: &Report,
    ) -> Option<bool> {
        let claim = self.lent.get_or_add(from, MAX_PEERS)?;
        Some(claim.hear(now, sent, echo, ask, Share::NONE))
    }

    /// Takes a loan that was asked for; whether that changes anything.
    pub(super) fn take(
        &mut self,
        now: Moment,
        (from, latest): (HostId, bool),
        loan: &Loan,
        until: Moment,
        memory: Moment,
        early: bool,
    ) -> bool {
        let Some(known) = self.borrowed.get_mut(from) else { return false };
        known.expire(now);
        if until.has_come(now) || loan.number == 0 {
            return false;
        }
        let share = loan.share.min(Share::WHOLE);
        let new = HeldLease { number: loan.number, share, until, memory };
        match known.taken.last_mut() {
            Some(last) if new.number < last.number => return false,
            Some(last) if (new.number, new.share) == (last.number, last.share) => {
                last.prolong(&new);
                return false;
            }
            // As with grants: the lender has forgotten it meanwhile, and counts anew.
            Some(last) if new.number == last.number && !latest => return false,
            _ => {}
        }
        // Earlier loans stay in the list: grants may have been made of them (I11).
        if early {
            known.taken.clear();
        }
        // So many are never outstanding: the lender changes its mind after an answer.
        if known.taken.len() == 16 {
            return false;
        }
        known.taken.push(new);
        known.dirty = true;
        true
    }

    /// Whether others say that a majority decides about the limit.
    pub(super) fn others_go_by_majority(&self) -> bool {
        self.lent.values().any(|claim| claim.majority)
    }

    /// What there is of the key until then at least: pool(t) of `ALGORITHM.md`.
    fn pool(&self, until: Moment) -> Share {
        let delegated = self.lasting.iter().find(|(end, _)| *end >= until);
        delegated.map_or(Share::NONE, |(_, share)| *share) + self.borrowed(until)
    }

    pub(super) fn expire(&mut self, now: Moment) {
        self.lent.values_mut().for_each(|claim| claim.expire(now));
        self.borrowed.values_mut().for_each(|borrowed| borrowed.expire(now));
    }

    /// What is borrowed at least until then.
    pub(super) fn borrowed(&self, until: Moment) -> Share {
        self.borrowed.values().map(|borrowed| borrowed.share(until)).sum()
    }

    /// All that may be counted elsewhere.
    pub(super) fn outstanding(&self) -> Share {
        self.lent.values().map(Grantee::outstanding).sum()
    }

    /// Nothing more is said of it.
    pub(super) fn let_end(&mut self) {
        self.lent.values_mut().for_each(Grantee::let_end);
        for borrowed in self.borrowed.values_mut() {
            (borrowed.dirty, borrowed.want) = (false, Share::NONE);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lent.is_empty() && self.borrowed.is_empty()
    }

    /// Forgets what nobody asks for any more.
    pub(super) fn forget(&mut self, now: Moment, timing: &Timing) {
        self.lent.retain(|_, claim| !claim.stale(now, timing.forget));
        self.borrowed.retain(|_, borrowed| {
            !borrowed.want.is_none() || borrowed.dirty || !borrowed.taken.is_empty()
        });
    }

    /// Who is the root, and who else there is.
    fn look(&mut self, id: KeyId, me: HostId, view: &Members) {
        if self.view == Some(view.id) {
            return;
        }
        self.view = Some(view.id);
        self.root = view.root(id);
        self.others.clear();
        if self.root == Some(me) {
            let mine = view.region(me);
            let others = view.regions().filter(|(region, _)| Some(*region) != mine);
            self.others = others.filter_map(|(region, _)| view.owner_in(region, id)).collect();
        }
    }

    /// Decides what is to be borrowed of whom, and what is to be lent: to each who has asked, in their order.
    pub(super) fn plan(&mut self, now: Moment, of: &Planned<'_>) -> Vec<Share> {
        let Planned { id, me, view, own, pool, need, .. } = *of;
        self.look(id, me, view);
        let reserve = need.ample.min(own);
        let spare = own.without(reserve);
        let is_root = self.root == Some(me);
        let region = view.region(me);
        let silent = of.timing.forget;
        let mut wants: Vec<Wanted> = Vec::new();
        for (host, claim) in self.lent.iter() {
            let theirs = view.region(host).filter(|_| !of.alone);
            // By way of the root alone, which knows what is missing everywhere: so nobody both lends and asks.
            let counts = theirs.is_some()
                && theirs != region
                && (is_root || self.root == Some(host))
                && claim.heard.is_recent(now, silent);
            let demand = if counts { claim.demand } else { Share::NONE };
            let weight = theirs.map_or(0, |region| of.weight(region));
            let current = claim.current();
            wants.push(Wanted { demand, own: Share::NONE, weight, current });
        }
        // What hosts of this region are about to delegate again is not asked of others.
        let unmet = need.close.without(own.max(of.expected));
        let mut borrow = Share::NONE;
        let targets = if is_root {
            let all: Share = wants.iter().map(|want| want.demand).sum::<Share>() + unmet;
            let of_all = all.times(21, 20).without(spare);
            borrow = of_all;
            let weight = region.map_or(0, |region| of.weight(region));
            let current = Share::NONE;
            let short = need.close.without(own);
            // The root's own region is one among the regions; its part is no loan.
            wants.push(Wanted { demand: short, own: Share::NONE, weight, current });
            let mut targets = targets(pool.without(reserve), &wants);
            targets.pop();
            targets
        } else {
            let lend = |want: &Wanted| {
                let target = want.demand.min(spare);
                let (current, asked) = (want.current, want.demand);
                // A loan that changes costs several messages.
                let stays = if target >= current {
                    !asked.is_none() && target.without(current) <= current.times(1, 50)
                } else {
                    asked >= current.times(1, 2) && own.without(current) >= need.close
                };
                if stays { current } else { target }
            };
            wants.iter().map(lend).collect()
        };
        let Self { lent, borrowed, root, others, .. } = self;
        for (host, borrowed) in borrowed.iter_mut() {
            if !is_root && *root != Some(host) || is_root && !others.contains(&host) {
                borrowed.want = Share::NONE;
            }
        }
        let mut want = |host: HostId, share: Share| {
            if share.is_none() {
                if let Some(borrowed) = borrowed.get_mut(host) {
                    borrowed.want = Share::NONE;
                }
            } else if let Some(borrowed) = borrowed.get_or_add(host, MAX_PEERS) {
                if borrowed.want.is_none() {
                    borrowed.since = now;
                }
                borrowed.want = share;
            }
        };
        if of.alone {
            borrow = Share::NONE;
        }
        if is_root {
            for &host in others.iter() {
                // Nobody lends what it asks for itself.
                let wants = lent.get(host).is_some_and(|claim| {
                    !claim.demand.is_none() && claim.heard.is_recent(now, silent)
                });
                want(host, if wants { Share::NONE } else { borrow });
            }
        } else if let Some(root) = *root {
            want(root, if of.alone { Share::NONE } else { unmet });
        }
        targets
    }

    /// Those who may be lent something, in the order of what [`Far::plan`] returns.
    pub(super) fn lent_mut(&mut self) -> impl Iterator<Item = (HostId, &mut Grantee)> {
        self.lent.iter_mut()
    }

    /// Whether all that is lent lasts no longer than what it is made of (I4), without loans that were not
    /// acknowledged to be given up.
    fn covered(&self, after: Moment) -> bool {
        let ends = self.lent.values().flat_map(|claim| claim.given.iter().map(|given| given.end));
        ends.filter(|end| !end.has_come(after)).all(|end| {
            let lent: Share = self.lent.values().map(|claim| claim.outstanding_at(end)).sum();
            lent <= self.pool(end)
        })
    }

    /// Gives up earlier loans if all that was given of them fits without; `fits` says whether it does for as
    /// long as a grant lasts. Returns who has to be told something, and whether at once.
    pub(super) fn acknowledge(&mut self, fits: bool, after: Moment) -> Vec<(HostId, bool)> {
        let fits = fits && self.covered(after);
        let mut tell = Vec::new();
        for (host, borrowed) in self.borrowed.iter_mut() {
            let mut now = false;
            if fits && borrowed.taken.len() > 1 {
                let less = borrowed.taken.iter().map(|taken| taken.share).max();
                let last = borrowed.taken.len() - 1;
                borrowed.taken.drain(..last);
                borrowed.dirty = true;
                now = less > borrowed.taken.last().map(|taken| taken.share);
            }
            let (want, told) = (borrowed.want, borrowed.told);
            let change = want.without(told) + told.without(want);
            now |= told.is_none() && !want.is_none();
            borrowed.dirty |= change > told.times(1, 10);
            if borrowed.dirty {
                tell.push((host, now));
            }
        }
        let dirty = self.lent.iter().filter(|(_, claim)| claim.dirty);
        tell.extend(dirty.map(|(host, _)| (host, true)));
        tell
    }

    pub(super) fn unsaid(&self) -> bool {
        self.lent.values().any(|claim| claim.dirty)
            || self.borrowed.values().any(|borrowed| borrowed.dirty)
    }

    /// Puts loans and asks into the messages: all, or what is urgent.
    pub(super) fn say(&mut self, id: KeyId, all: bool, of: &Said<'_>, drafts: &mut [Draft]) {
        let is_root = self.root == Some(of.me);
        let others: Share = self.outstanding();
        // What lasts for seconds needs not be said in each round.
        let renew = of.timing.every * 3 / 2;
        for draft in drafts {
            if let Some(borrowed) = self.borrowed.get_mut(draft.to) {
                let has = borrowed.taken.last().is_some_and(|last| !last.until.has_come(of.now));
                let due = all && (has || !borrowed.want.is_none());
                let due = due && of.now.since(borrowed.said) >= renew;
                if borrowed.dirty || due {
                    borrowed.dirty = false;
                    (borrowed.told, borrowed.said) = (borrowed.want, of.now);
                    let (demand, in_use) = (borrowed.want, borrowed.in_use());
                    draft.message.asks.push(Report {
                        key: id,
                        demand,
                        in_use,
                        majority: self.majority,
                    });
                }
            }
            let Some(claim) = self.lent.get(draft.to) else { continue };
            let Some(last) = claim.given.last() else { continue };
            let Some(heard) = draft.heard else { continue };
            let more = claim.given.len() > 1;
            if !(claim.dirty || all && (more || !last.share.is_none())) {
                continue;
            }
            let longest = if is_root { of.timing.loan_out } else { of.timing.loan_in };
            let wanted = heard.after(longest);
            let needed = last.share + others.without(claim.outstanding());
            // As long as it is asked for, or as what it is made of lasts.
            let lasts = |end: &Moment| self.pool(*end) >= needed;
            let ends = self.lasting.iter().map(|(end, _)| *end).rev();
            let end = std::iter::once(wanted).chain(ends.filter(|end| *end <= wanted)).find(lasts);
            let end = if of.outlives { Some(wanted) } else { end };
            // Nothing needs nothing to be made of.
            let end = if last.share.is_none() { Some(wanted) } else { end };
            let Some(end) = end.filter(|end| !end.has_come(of.now)) else { continue };
            // In whole milliseconds, as messages have it: so the books and the borrower go by one number.
            let lasts = Duration::from_millis(end.since(heard).as_millis() as u64);
            let gains = end.since(last.end) >= renew || last.first.is_none();
            if !(claim.dirty || more || gains) {
                continue;
            }
            let Some(claim) = self.lent.get_mut(draft.to) else { continue };
            claim.dirty = false;
            let Some(last) = claim.given.last_mut() else { continue };
            last.first.get_or_insert(draft.message.sent);
            // Never earlier: the borrower may count what was said before, to its own end (I11).
            last.end = last.end.max(heard.after(lasts));
            let (share, number) = (last.share, last.number);
            draft.message.loans.push(Loan { key: id, share, number, lasts });
        }
    }

    /// Who has to be talked to often: whom something is lent to or borrowed from, and who was asked just now.
    pub(super) fn busy(&self, now: Moment, calm: Duration) -> impl Iterator<Item = HostId> {
        let lent = self.lent.iter().filter(|(_, claim)| !claim.outstanding().is_none());
        let borrowed = self.borrowed.iter().filter(move |(_, borrowed)| {
            let new = !borrowed.want.is_none() && borrowed.since.is_recent(now, calm);
            new || borrowed.taken.iter().any(|taken| taken.counts(now))
        });
        lent.map(|(host, _)| host).chain(borrowed.map(|(host, _)| host))
    }

    /// What is lent and what is borrowed now.
    pub(super) fn count(&self, now: Moment) -> (Share, Share) {
        (self.outstanding(), self.borrowed(now))
    }
}

/// What a plan is made from.
pub(super) struct Planned<'a> {
    pub(super) id: KeyId,
    pub(super) me: HostId,
    pub(super) view: &'a Members,
    pub(super) weights: &'a [(Region, u32)],
    /// What is delegated here, and that together with what is borrowed.
    pub(super) own: Share,
    pub(super) pool: Share,
    /// What hosts of this region delegate in all.
    pub(super) expected: Share,
    /// What this region's hosts need of that.
    pub(super) need: Need,
    /// Nothing is to be lent nor borrowed.
    pub(super) alone: bool,
    pub(super) timing: &'a Timing,
}

impl Planned<'_> {
    fn weight(&self, region: Region) -> u32 {
        let found = self.weights.iter().find(|(its, _)| *its == region);
        found.map_or(0, |(_, weight)| *weight)
    }
}

/// What loans are told with.
pub(super) struct Said<'a> {
    pub(super) now: Moment,
    pub(super) me: HostId,
    pub(super) timing: &'a Timing,
    /// A fault: loans last longer than what they are made of.
    pub(super) outlives: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_one_number_the_latest_word_of_the_lender_counts() {
        let (key, lender) = (KeyId::from_hash(1), HostId(2));
        let mut far = Far::default();
        far.borrowed.get_or_add(lender, 1);
        let (now, end) = (Moment(1), Moment(9));
        for (number, latest, units, has) in
            [(0, true, 5, 0), (7, false, 4, 4), (7, false, 3, 4), (7, true, 2, 2), (6, true, 3, 2)]
        {
            let (share, lasts) = (Share::from_units(units), Duration::ZERO);
            let loan = Loan { key, share, number, lasts };
            far.take(now, (lender, latest), &loan, end, end, false);
            assert_eq!(far.borrowed(now), Share::from_units(has), "{loan:?}");
        }
        let loan = Loan { key, share: Share::WHOLE, number: 8, lasts: Duration::ZERO };
        assert!(!far.take(now, (HostId(3), true), &loan, end, end, false), "nothing was asked");
        assert!(!far.take(end, (lender, true), &loan, end, end, false), "it is over");
    }
}
