//! A question to all hosts, this one included, and what they answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::Cluster;
use super::super::link::monotonic;
use super::answer::answer;
use api::Unanswered;
use api::error::{Failure, exit};
use cluster::membership::{Members, called};
use cluster::queries::{Answer, Answered, Question, top};
use cluster::{HostId, Moment};

/// How long hosts have for an answer.
// An operator waits for it, and a host that is alive answers in milliseconds.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// How long of that for the first question, where there are several: a host may look twice, a fifth of a
/// second apart.
// The rest of the second has to suffice for the second question, whose answers need no second
// look.
const FIRST: Duration = Duration::from_millis(600);

/// What hosts have answered.
pub(super) struct Round {
    pub(super) members: Arc<Members>,
    answers: BTreeMap<HostId, Answer>,
    /// How long their packets took, and what their clocks said.
    pub(super) timing: BTreeMap<HostId, Answered>,
    /// Who did not answer, and what they said instead.
    pub(super) unanswered: BTreeMap<HostId, String>,
}

impl Round {
    /// Asks all members.
    pub(super) async fn of(
        cluster: &Cluster,
        question: Question,
        until: Moment,
    ) -> Result<Self, Failure> {
        let members = Arc::clone(&cluster.link.members.borrow());
        let (own, outcome) =
            // Together: this host's own answer may take a fifth of a second as well.
            tokio::join!(answer(cluster, question.clone()), cluster.views.ask(question, until));
        let outcome = outcome.ok_or_else(|| {
            Failure::new(exit::NEGATIVE, "too many questions to the cluster are open")
                .hint("ask again in a second")
        })?;
        // Named, never dropped: a sum without a host must not look like the sum of all.
        let silent = outcome.silent.into_iter().map(|host| (host, "it does not answer".to_owned()));
        let mut round = Self {
            members,
            answers: BTreeMap::new(),
            timing: BTreeMap::new(),
            unanswered: silent.collect(),
        };
        // This host counts as any other, also where it cannot answer.
        round.put(cluster.me, own);
        for (host, mut answered) in outcome.answers {
            // Taken out, so that the bytes are not kept beside what was read from them.
            match Answer::read(&std::mem::take(&mut answered.bytes)) {
                Ok(answer) => round.put(host, answer),
                Err(_) => {
                    round
                        .unanswered
                        .insert(host, "its answer makes no sense: another version".into());
                }
            }
            round.timing.insert(host, answered);
        }
        Ok(round)
    }

    fn put(&mut self, host: HostId, answer: Answer) {
        match answer {
            Answer::Trouble(problem) => drop(self.unanswered.insert(host, problem)),
            answer => drop(self.answers.insert(host, answer)),
        }
    }

    /// The answers that are what was asked for.
    pub(super) fn take<T>(&mut self, read: impl Fn(Answer) -> Option<T>) -> BTreeMap<HostId, T> {
        let mut taken = BTreeMap::new();
        for (host, answer) in std::mem::take(&mut self.answers) {
            if let Some(answer) = read(answer) {
                taken.insert(host, answer);
            } else {
                self.unanswered.insert(host, "its answer is to something else".into());
            }
        }
        taken
    }

    /// Completes what was `counted` of all that hosts have `named` by what a host that has not told it has named
    /// itself, and says so. A host that was not heard at first is left out: it was not asked for what it alone has.
    pub(super) fn complete<N, C>(
        &mut self,
        named: &BTreeMap<HostId, N>,
        mut counted: BTreeMap<HostId, C>,
        mut asked: Self,
        own: impl Fn(&N) -> C,
    ) -> BTreeMap<HostId, C> {
        // Its part of the certificate is missing, so its counts would make the list look certain.
        counted.retain(|host, _| named.contains_key(host));
        for (host, named) in named {
            counted.entry(*host).or_insert_with(|| {
                let why = asked.unanswered.remove(host).unwrap_or_default();
                let said = format!("only its own heaviest are counted: {why}");
                self.unanswered.insert(*host, said);
                own(named)
            });
        }
        counted
    }

    pub(super) fn name(&self, host: HostId) -> String {
        called(&self.members, host)
    }

    pub(super) fn unanswered(&self) -> Vec<Unanswered> {
        let told = self.unanswered.iter();
        let mut told: Vec<_> = told
            .map(|(host, problem)| Unanswered { host: self.name(*host), problem: problem.clone() })
            .collect();
        // By name: the map is in the order of random numbers, which looks like chance to a reader.
        told.sort_by(|one, other| one.host.cmp(&other.host));
        told
    }
}

/// The search for a list: hosts are asked for more and more of their heaviest, until it is certain or their time is up.
pub(super) struct Search<L> {
    began: Moment,
    /// When all answers have to be there.
    pub(super) until: Moment,
    wanted: std::vec::IntoIter<usize>,
    best: Option<Found<L>>,
}

/// A list of the heaviest, of the hosts that have answered.
pub(super) struct Found<L> {
    pub(super) list: L,
    /// How many have.
    pub(super) hosts: usize,
    /// Whether it is certain.
    pub(super) exact: bool,
}

impl<L> Search<L> {
    /// For a list of `n`.
    pub(super) fn of(n: usize) -> Self {
        let began = monotonic();
        let wanted = top::rounds(n).collect::<Vec<_>>().into_iter();
        Self { began, until: began.after(TIMEOUT), wanted, best: None }
    }

    /// How many to ask each host for next, and until when; `None` if that is of no use any more.
    pub(super) fn next(&mut self) -> Option<(usize, Moment)> {
        let now = monotonic();
        // Another round would end beyond the time that was promised.
        let late = self.until.since(now) < TIMEOUT / 4;
        if self.best.as_ref().is_some_and(|best| late || best.exact) {
            return None;
        }
        // A later turn gets a quarter of the time at least: with less no host could answer at all.
        let first = self.began.after(FIRST).max(now.after(TIMEOUT / 4)).min(self.until);
        Some((self.wanted.next()?, first))
    }

    /// Takes a list instead of the one before. A host that was not heard this time may have been before.
    pub(super) fn take(&mut self, found: Found<L>) {
        // A longer list of fewer hosts would be worse: whole hosts would be missing.
        if self.best.as_ref().is_none_or(|best| best.hosts <= found.hosts) {
            self.best = Some(found);
        }
    }

    /// The best list that was found, and how long that took, seconds.
    ///
    /// # Errors
    /// If there was none.
    pub(super) fn list(self) -> Result<(L, f64), Failure> {
        let none = || Failure::new(exit::USAGE, "no list is that long");
        let best = self.best.ok_or_else(none)?;
        Ok((best.list, monotonic().since(self.began).as_secs_f64()))
    }
}
