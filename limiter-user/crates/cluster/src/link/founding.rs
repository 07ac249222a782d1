//! Which of the hosts that belong to no cluster founds one, where they expect each other (`bootstrap_expect`).
//!
//! Each host proposes a cluster of its own, by a random number that it keeps. It votes for one proposal, durably
//! before it tells anybody, and founds its own with the votes of as many hosts as are expected, itself among them.
//! A vote moves only away from a host that has given up its own proposal, and only to a lower number. Who has voted
//! for another proposal never founds any more, so a vote that is told late is worth nothing. So two foundings need
//! twice as many hosts as are expected, whatever is lost, doubled or restarted in between. A host that has lost what
//! it kept proposes another number, and has no votes. Who belongs to a cluster has no vote, and who has heard of
//! one joins it instead.

use super::ClusterId;

/// What a host that belongs to no cluster tells of founding one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// Hosts that found a cluster together, this one among them; 0 if it takes no part in that.
    pub expect: u32,
    /// The cluster that it would found.
    pub proposal: ClusterId,
    /// The proposal that it votes for.
    pub vote: Option<ClusterId>,
}

impl Bootstrap {
    /// Of a host that takes no part in it.
    pub const NONE: Self = Self { expect: 0, proposal: ClusterId(0), vote: None };
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing yet.
    Wait,
    /// Vote for this proposal, which has to be kept.
    Vote(ClusterId),
    /// Found the cluster that was proposed.
    Found,
}

/// The next step of a host, where `others` belong to no cluster either and have been heard lately.
pub(super) fn step(mine: Bootstrap, others: &[Bootstrap]) -> Step {
    // A copy of this host's disk has its proposal, and must not count as a second voter.
    let others = || others.iter().filter(|it| it.expect > 0 && it.proposal != mine.proposal);
    // Where hosts expect different numbers, the largest one holds for all.
    let expect = others().map(|other| other.expect).fold(mine.expect, u32::max);
    // By a smaller one, some of them could found a cluster, and the rest another.
    let enough = |others: usize| others as u64 + 1 >= u64::from(expect);
    if mine.expect == 0 || !enough(others().count()) {
        return Step::Wait;
    }
    let votes = others().filter(|other| other.vote == Some(mine.proposal)).count();
    if mine.vote == Some(mine.proposal) && enough(votes) {
        return Step::Found;
    }
    let least = others().map(|other| other.proposal).fold(mine.proposal, ClusterId::min);
    let gave_up = |proposal: ClusterId| {
        let its = others().find(|other| other.proposal == proposal).and_then(|other| other.vote);
        its.is_some_and(|its| its != proposal)
    };
    match mine.vote {
        None => Step::Vote(least),
        Some(vote) if least < vote && (vote == mine.proposal || gave_up(vote)) => Step::Vote(least),
        Some(_) => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// A host that proposes a number and votes for another one, 0 if for none yet.
    fn host(proposal: u64, expect: u32, vote: u64) -> Bootstrap {
        let vote = Some(ClusterId(vote)).filter(|vote| vote.0 != 0);
        Bootstrap { expect, proposal: ClusterId(proposal), vote }
    }

    #[test]
    fn the_least_of_enough_hosts_founds_with_their_votes() {
        let [a, b, c] = [1, 2, 3].map(|proposal| host(proposal, 3, 0));
        assert_eq!(step(a, &[b]), Step::Wait);
        assert_eq!(step(a, &[b, c]), Step::Vote(ClusterId(1)));
        assert_eq!(step(c, &[b, a]), Step::Vote(ClusterId(1)));
        let [a, b, voted] = [1, 2, 3].map(|proposal| host(proposal, 3, 1));
        assert_eq!(step(a, &[b, c]), Step::Wait);
        assert_eq!(step(a, &[b, voted]), Step::Found);
        assert_eq!(step(b, &[a, voted]), Step::Wait);
        // Who is not there any more does not count, nor who is heard twice, nor itself.
        assert_eq!(step(a, &[b]), Step::Wait);
        assert_eq!(step(a, &[b, a]), Step::Wait);
        // Those that take no part are not counted, and take none.
        let idle = host(9, 0, 0);
        assert_eq!(step(host(1, 3, 0), &[b, idle]), Step::Wait);
        assert_eq!(step(idle, &[a, b, c]), Step::Wait);
    }

    #[test]
    fn of_different_numbers_the_largest_holds() {
        let (a, b) = (host(1, 2, 1), host(2, 3, 1));
        assert_eq!(step(a, &[b]), Step::Wait);
        assert_eq!(step(a, &[b, host(3, 2, 0)]), Step::Wait);
        assert_eq!(step(a, &[b, host(3, 2, 1)]), Step::Found);
    }

    #[test]
    fn a_vote_moves_only_from_a_host_that_has_given_up() {
        // Its own, and that of one which votes for another itself.
        assert_eq!(step(host(2, 2, 2), &[host(1, 2, 1)]), Step::Vote(ClusterId(1)));
        let gave_up = [host(1, 2, 1), host(2, 2, 1)];
        assert_eq!(step(host(3, 2, 2), &gave_up), Step::Vote(ClusterId(1)));
        // Not that of one which may found with it, or is not heard of.
        assert_eq!(step(host(3, 2, 2), &[host(1, 2, 1), host(2, 2, 2)]), Step::Wait);
        assert_eq!(step(host(3, 2, 2), &[host(1, 2, 1)]), Step::Wait);
        // Never upwards.
        assert_eq!(step(host(3, 2, 1), &[host(1, 2, 0), host(2, 2, 2)]), Step::Wait);
    }

    proptest! {
        /// Hosts that hear some of each other, late and in any order, and that restart, found one cluster at most
        /// where they are fewer than twice as many as are expected.
        #[test]
        fn fewer_than_twice_as_many_as_expected_found_once(
            expect in 2_u32..5,
            more in 0_usize..3,
            differ in any::<bool>(),
            order in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 1..400),
        ) {
            let count = (expect as usize + more).min(2 * expect as usize - 1);
            let expects = |at: usize| if differ && at == 0 { expect + 1 } else { expect };
            let mut hosts: Vec<_> = (0..count).map(|at| host(at as u64 + 1, expects(at), 0)).collect();
            // All that each has told, and what each has heard of others.
            let mut told: Vec<Vec<Bootstrap>> = hosts.iter().map(|host| vec![*host]).collect();
            let mut heard = vec![BTreeMap::new(); count];
            let mut founders = BTreeSet::new();
            for (to, from, what) in order {
                let (to, from) = (usize::from(to) % count, usize::from(from) % count);
                if to == from {
                    // A restart: what is kept stays, what was heard is forgotten.
                    heard[to].clear();
                    continue;
                }
                // What it told before may still be heard.
                if founders.contains(&to) {
                    continue;
                }
                let said = told[from][usize::from(what) % told[from].len()];
                heard[to].insert(from, said);
                let others: Vec<_> = heard[to].values().copied().collect();
                match step(hosts[to], &others) {
                    Step::Wait => {}
                    Step::Vote(vote) => {
                        hosts[to].vote = Some(vote);
                        told[to].push(hosts[to]);
                    }
                    Step::Found => { founders.insert(to); }
                }
            }
            prop_assert!(founders.len() <= 1, "{founders:?}");
        }

        /// All hosts that hear all others found one, in a few rounds.
        #[test]
        fn hosts_that_hear_each_other_found_one(expect in 2_u32..6, more in 0_u64..4) {
            let mut hosts: Vec<_> =
                (1..=u64::from(expect) + more).map(|at| host(at, expect, 0)).collect();
            let mut founded = BTreeSet::new();
            for _ in 0..3 {
                let before = hosts.clone();
                for mine in &mut hosts {
                    match step(*mine, &before) {
                        Step::Wait => {}
                        Step::Vote(vote) => mine.vote = Some(vote),
                        Step::Found => { founded.insert(mine.proposal); }
                    }
                }
            }
            prop_assert_eq!(founded, BTreeSet::from([ClusterId(1)]));
        }
    }
}
