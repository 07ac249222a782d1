//! What the share loop asks of the core, in a thread of its own: the core may be busy for seconds, while a million
//! limits change, and grants go on meanwhile.
//!
//! The floor is a part of each policy of the cluster. So it changes as limits do, one change after the other.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::floors::FloorsFile;
use super::pace::AdaptiveBatch;
use super::words::RefundWorker;
use crate::handle::CoreHandle;
use crate::plane::Plane;
use crate::rules::Rules;
use crate::rules::replicated::is_clusters;
use api::error::{Failure, exit};
use cluster::KeyId;
use model::{Partition, Share, Target};

/// How long buckets may be given a larger floor at a time, while the core is locked and no share is written.
// The share thread waits for the same lock before it writes a grant.
const BUDGET: Duration = Duration::from_millis(1);
/// How many of them at a time, at least and at most.
// Below the least, taking the lock would cost more than the work under it.
const CHUNK: RangeInclusive<usize> = 1 << 10..=1 << 20;
/// How long others have the core in between.
// Long against the budget: a raised floor may take a while, requests to the daemon must not.
const PAUSE: Duration = Duration::from_millis(20);

/// What each source may use without end, and how many hosts share each limit.
pub(super) type Floor = (Share, u32);

/// What is asked. Of each kind one at a time, so that no more waits.
pub(super) enum Request {
    /// Let this be the floor.
    Floor(Floor),
    /// What becomes of the limits of these sources while hosts are lost.
    Partitions(Question),
}

/// Sources, and when they were asked about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) round: u64,
    pub(super) targets: Vec<(KeyId, Target)>,
}

/// What the core says.
pub(super) enum Answer {
    /// This is the floor now. Buckets get a larger one by and by.
    Floor(Floor),
    /// The floor stays as it was.
    Refused(Failure),
    /// What was asked in a round.
    Partitions(u64, Vec<(KeyId, Partition)>),
    /// There is no core any more to be asked.
    InDoubt(Failure),
}

/// The thread, which ends with this.
pub(super) struct CoreWorker {
    requests: Sender<Request>,
    pub(super) answers: UnboundedReceiver<Answer>,
}

impl CoreWorker {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there can be none.
    pub(super) fn start(
        shared: CoreHandle,
        giver: RefundWorker,
        floors: Arc<FloorsFile>,
    ) -> Result<Self, Failure> {
        let (requests, inbox) = channel();
        // Unbounded without danger: the share loop has at most one request of each kind open.
        let (tell, answers) = unbounded_channel();
        super::spawn("share core", move || {
            let mut renewal = Renewal { at: None, pace: AdaptiveBatch::new(CHUNK, BUDGET) };
            // The share loop ends on this. Without it grants would go on under a floor that
            // nobody can lower.
            if let Err(failure) = serve(&shared, &giver, &floors, &inbox, &tell, &mut renewal) {
                let _ = tell.send(Answer::InDoubt(failure));
            }
        })?;
        Ok(Self { requests, answers })
    }

    /// Asks; the answer comes when the core has time.
    pub(super) fn ask(&self, request: Request) {
        // Where the thread has ended it has said why.
        let _ = self.requests.send(request);
    }
}

/// Answers until nobody asks any more.
///
/// # Errors
/// If the core's state is in doubt.
fn serve(
    shared: &CoreHandle,
    giver: &RefundWorker,
    floors: &FloorsFile,
    inbox: &Receiver<Request>,
    tell: &UnboundedSender<Answer>,
    renewal: &mut Renewal,
) -> Result<(), Failure> {
    loop {
        // With nothing to renew the thread sleeps until it is asked.
        let request = match renewal.at {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => inbox.recv_timeout(PAUSE),
        };
        let answer = match request {
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => None,
            Ok(Request::Floor(floor)) => Some(change(shared, floors, floor, renewal)?),
            Ok(Request::Partitions(Question { round, targets })) => {
                let answers = shared.with_now(|core| Ok(partitions_of(&core.rules, &targets)))?;
                Some(Answer::Partitions(round, answers))
            }
        };
        if let Some(answer) = answer
            && tell.send(answer).is_err()
        {
            return Ok(());
        }
        // After the answer: messages of the share loop may wait for that, and for nothing of this.
        if renewal.at.is_some() {
            shared.with_now(|core| {
                renewal.go_on(core.plane(), giver);
                Ok(())
            })?;
        }
    }
}

/// Changes the floor, of `limiter-serve` and of the kernel.
///
/// # Errors
/// If the core's state is in doubt.
fn change(
    shared: &CoreHandle,
    floors: &FloorsFile,
    floor: Floor,
    renewal: &mut Renewal,
) -> Result<Answer, Failure> {
    let untold = |error| format!("cannot tell limiter-serve the floor: {error}");
    // Less before it is answered, more after: what is refused has not been told.
    if let Err(error) = floors.lower(floor) {
        return Ok(Answer::Refused(Failure::new(exit::NEGATIVE, untold(error))));
    }
    // The lock is held for one change of policies, not for the buckets: these follow in parts.
    let changed =
        shared.with_now(|core| Ok(core.rules.plane.change_floor(floor.0, floor.1, is_clusters)))?;
    if let Err(error) = changed {
        return Ok(Answer::Refused(error.into()));
    }
    // Buckets that have less meanwhile are no danger to anybody. From the start again, also where a renewal is on its
    // way: the buckets behind it have an older floor.
    renewal.at = Some(0);
    if let Err(error) = floors.raise(floor) {
        tracing::warn!("{}", untold(error));
    }
    Ok(Answer::Floor(floor))
}

/// What becomes of the limits of these sources while hosts are lost.
fn partitions_of(rules: &Rules, targets: &[(KeyId, Target)]) -> Vec<(KeyId, Partition)> {
    let of = |target: &Target| {
        let limit = match target.prefix().filter(|_| !target.aggregate) {
            // By the data plane's target, so that source and kernel mean the same limit while a change
            // is on its way.
            Some(source) => rules.plane.target_of(source, target.class)?,
            None => *target,
        };
        rules.limit_for(&limit)?.scope.partition()
    };
    // A source without a limit gets the usual policy, under which nobody gets more than the limit.
    targets.iter().map(|(key, target)| (*key, of(target).unwrap_or_default())).collect()
}

/// Gives buckets a larger floor.
struct Renewal {
    /// From which bucket on it is still to be given.
    at: Option<usize>,
    pace: AdaptiveBatch,
}

impl Renewal {
    /// Gives some more buckets the floor, as many as fit in a moment.
    fn go_on(&mut self, plane: &dyn Plane, giver: &RefundWorker) {
        let Some(from) = self.at else { return };
        let buckets = plane.buckets();
        // The table may have become smaller since the last part.
        let to = (from + self.pace.much()).min(buckets);
        let begun = Instant::now();
        giver.give_back(plane.renew_floors(from..to));
        self.pace.took(to - from, begun.elapsed());
        self.at = Some(to).filter(|to| *to < buckets);
    }
}

/// The floor that is wanted, and the one that is in force.
#[derive(Debug, Default)]
pub(super) struct PendingFloor {
    /// Not in force yet.
    wanted: Option<Floor>,
    /// What the core was asked for and has not answered.
    asked: Option<Floor>,
    /// As the core has said last.
    in_force: Option<Floor>,
}

impl PendingFloor {
    /// The floor is to be this one.
    pub(super) const fn want(&mut self, floor: Floor) {
        self.wanted = Some(floor);
    }

    /// What the core is to be asked for now.
    pub(super) fn ask(&mut self) -> Option<Floor> {
        // One at a time: while the core is busy only the latest floor is worth asking for.
        if self.asked.is_some() {
            return None;
        }
        self.asked = self.wanted;
        self.asked
    }

    /// This one is in force.
    pub(super) fn told(&mut self, floor: Floor) {
        (self.asked, self.in_force) = (None, Some(floor));
        // Another floor may be wanted since the core was asked.
        self.wanted = self.wanted.filter(|wanted| *wanted != floor);
    }

    /// The core has refused what it was asked for.
    pub(super) const fn refused(&mut self) {
        self.asked = None;
    }

    /// Whether sources may use more than is wanted, so that nothing may be said to others that rests on it. Who has
    /// less than it may have is no danger to anybody.
    pub(super) fn withholds(&self) -> bool {
        let Some((floor, hosts)) = self.wanted else { return false };
        // What was asked for before may come into force any moment, and it may be larger.
        let another = self.asked.is_some_and(|asked| asked != (floor, hosts));
        // With fewer hosts in the terms a bucket holds more: each host has a packet of its own
        // beside its share.
        let less = |(present, among): Floor| present <= floor && among >= hosts;
        another || !self.in_force.is_some_and(less)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    fn floors_in(home: &tempfile::TempDir) -> Arc<FloorsFile> {
        Arc::new(FloorsFile::open(&home.path().join("limiter.sock")))
    }

    impl PendingFloor {
        /// Whether it is not in force yet.
        const fn is_pending(&self) -> bool {
            self.wanted.is_some()
        }
    }

    #[test]
    fn who_asks_does_not_wait_for_the_core() {
        let (fake, home) = (Fake::default(), tempfile::tempdir().unwrap());
        let shared = CoreHandle::new(fake.core(&home));
        let giver = RefundWorker::start(Arc::new(fake)).unwrap();
        let mut worker = CoreWorker::start(shared.clone(), giver, floors_in(&home)).unwrap();
        let targets = vec![(KeyId::from_hash(7), "192.0.2.1".parse().unwrap())];
        let answers = shared.with_now(|_| {
            worker.ask(Request::Floor((Share::WHOLE, 2)));
            worker.ask(Request::Partitions(Question { round: 3, targets }));
            std::thread::sleep(Duration::from_millis(50));
            Ok(worker.answers.try_recv().is_ok())
        });
        assert!(!answers.unwrap(), "the core is busy");
        let Some(Answer::Floor(floor)) = worker.answers.blocking_recv() else { panic!() };
        assert_eq!(floor, (Share::WHOLE, 2));
        let Some(Answer::Partitions(3, found)) = worker.answers.blocking_recv() else { panic!() };
        assert_eq!(found, [(KeyId::from_hash(7), Partition::Auto)]);
    }

    #[test]
    fn a_core_in_doubt_is_told() {
        let (fake, home) = (Fake::default(), tempfile::tempdir().unwrap());
        let shared = CoreHandle::new(fake.core(&home));
        let giver = RefundWorker::start(Arc::new(fake)).unwrap();
        let mut worker = CoreWorker::start(shared.clone(), giver, floors_in(&home)).unwrap();
        let panicked = std::thread::spawn(move || {
            let _ = shared.with_now::<()>(|_| panic!("asked to"));
        });
        assert!(panicked.join().is_err());
        worker.ask(Request::Floor((Share::WHOLE, 2)));
        assert!(matches!(worker.answers.blocking_recv(), Some(Answer::InDoubt(_))));
        assert!(worker.answers.blocking_recv().is_none());
    }

    #[test]
    fn others_hear_nothing_while_sources_may_use_more_than_is_wanted() {
        let [less, more] = [0.1, 0.2].map(Share::from_part);
        let mut floor = PendingFloor::default();
        assert!(!floor.is_pending() && !floor.withholds() && floor.ask().is_none());
        // What is in force at first is not known.
        floor.want((less, 2));
        assert!(floor.is_pending() && floor.withholds());
        assert_eq!((floor.ask(), floor.ask()), (Some((less, 2)), None));
        floor.told((less, 2));
        assert!(!floor.is_pending() && !floor.withholds());
        floor.want((more, 2));
        assert!(floor.is_pending() && !floor.withholds());
        assert_eq!(floor.ask(), Some((more, 2)));
        // The larger one is on its way.
        floor.want((less, 2));
        assert!(floor.withholds() && floor.ask().is_none());
        floor.told((more, 2));
        assert!(floor.withholds());
        assert_eq!(floor.ask(), Some((less, 2)));
        floor.refused();
        assert!(floor.withholds());
        assert_eq!(floor.ask(), Some((less, 2)));
        floor.told((less, 2));
        // One more host has a packet of its own.
        floor.want((less, 3));
        assert!(floor.withholds());
    }
}
