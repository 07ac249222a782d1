//! A host: its clock, its kernel, its daemon.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::clock::{Clock, Stopwatch};
use super::kernel::Kernel;
use super::rng::{digest, mix};
use super::scheme::{Actions, Payload, Sample, Scheme};
use cluster::demand::{DemandEstimator, GUESS, Snapshot};
use cluster::{HostId, KeyId, Moment};
use model::source::Counts;
use model::{Limit, Share};

/// How a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// All goes on.
    Running,
    /// The daemon does nothing; the kernel goes on.
    Paused,
    /// Nothing goes on, nor the clock.
    Frozen,
    /// There is no daemon; the kernel goes on.
    Dead,
    /// There is no host at present.
    Off,
    /// There is no host any more.
    Left,
}

/// For how long a source is told of after its last packet, ns.
// The least for which the daemon tracks a source, and all that the short bursts of built-in
// scenarios need.
const TRACKED: u64 = 3_000_000_000;
/// Messages that wait for a daemon at most: what a socket's buffer has room for.
const WAITING: usize = 512;

/// What the kernel knows of a source, and what the daemon has read of that.
#[derive(Clone, Copy, Debug, Default)]
struct Track {
    /// When its first packet came, by the host's clock.
    since: Option<Moment>,
    offered: f64,
    admitted: f64,
    /// Packets were dropped since the daemon last looked.
    dropped: bool,
    /// What `offered` was when it looked, and `admitted` when it told of that.
    seen: (f64, f64),
    /// When the latest packet came, by the host's clock.
    last: Moment,
    /// What tells what the source sends, while it is tracked.
    gauge: Option<DemandEstimator>,
    /// Packets were dropped when that told last.
    limited: bool,
}

impl Track {
    /// What the kernel has counted: whole packets of the limit.
    fn counts(&self, limit: &Limit) -> Counts {
        // What is a whole packet may miss it by rounding.
        let packets = |fluid: f64| (fluid * limit.rate.per_second() + 1e-6) as u64;
        let passed = packets(self.admitted);
        let dropped = packets(self.offered).saturating_sub(passed);
        Counts { passed, dropped, bytes: 0, since_ns: self.since.unwrap_or_default().0 }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Host<S> {
    pub(super) id: HostId,
    pub(super) clock: Clock,
    pub(super) state: State,
    pub(super) daemon: S,
    kernel: Kernel,
    tracks: Vec<Track>,
    /// Up to when counts were read, by its clock.
    looked: Moment,
    /// It is to look soon, because packets of a source are dropped.
    pub(super) woken: bool,
    /// Looks belong to one life of the daemon.
    pub(super) life: u32,
    pub(super) waiting: Vec<(HostId, Rc<Payload>)>,
    /// What a paused daemon was about to do.
    pub(super) held: Option<Actions>,
    /// What its clock shows while it stands still.
    pub(super) stood: Option<Moment>,
    pub(super) poll_at: Option<u64>,
    /// Which hosts it takes for alive, by number.
    pub(super) view: Vec<bool>,
    /// How many faults make others take it for dead.
    pub(super) suspected: u32,
    pub(super) bytes: u64,
    /// What of that went to other regions, after warming up.
    pub(super) far: u64,
    /// A digest of what the daemon did.
    pub(super) digest: u64,
    /// What deciding took of a core.
    pub(super) cpu: Stopwatch,
}

impl<S: Scheme> Host<S> {
    pub(super) fn new(
        id: HostId,
        clock: Clock,
        daemon: S,
        kernel: Kernel,
        hosts: usize,
        keys: usize,
    ) -> Self {
        Self {
            id,
            clock,
            state: State::Running,
            daemon,
            kernel,
            tracks: vec![Track::default(); keys],
            looked: Moment(0),
            woken: false,
            life: 0,
            waiting: Vec::new(),
            held: None,
            stood: None,
            poll_at: None,
            view: vec![true; hosts],
            suspected: 0,
            bytes: 0,
            far: 0,
            digest: 0,
            cpu: Stopwatch::default(),
        }
    }

    /// Whether its kernel takes packets.
    pub(super) const fn is_there(&self) -> bool {
        !matches!(self.state, State::Frozen | State::Off | State::Left)
    }

    /// Packets come. Returns what is admitted of them, and whether the daemon is to be told at once.
    pub(super) fn packets(&mut self, key: usize, real: u64, offered: f64) -> (f64, bool) {
        let now = self.clock.local(real);
        let (offered, admitted) = self.kernel.admit(key, now, offered);
        if offered == 0.0 {
            return (0.0, false);
        }
        let track = &mut self.tracks[key];
        track.since.get_or_insert(now);
        track.offered += offered;
        track.admitted += admitted;
        track.last = now;
        // Rounding of the fluid is no drop.
        let dropped = admitted < offered * (1.0 - 1e-9);
        // As the kernel does: it reports when a source begins to be limited, not each drop.
        let urgent = dropped && !track.dropped && !track.limited;
        track.dropped |= dropped;
        (admitted, urgent)
    }

    /// The share that the kernel goes by.
    pub(super) fn share(&self, key: usize, real: u64) -> f64 {
        self.kernel.share(key, self.clock.local(real))
    }

    /// Whether the daemon has not looked for `span` ns.
    pub(super) fn calm(&self, counted: u64, span: u64) -> bool {
        self.clock.local(counted).0 >= self.looked.0.saturating_add(span)
    }

    /// The daemon reads the counters, which are those up to `counted`.
    pub(super) fn look(&mut self, real: u64, counted: u64, keys: &[KeyId], limit: &Limit) {
        let (now, counted) = (self.clock.local(real), self.clock.local(counted));
        // Packets come by ticks: a second look in one tick has no time to divide by.
        if counted <= self.looked {
            return;
        }
        self.looked = counted;
        self.cpu.start();
        for (track, key) in self.tracks.iter_mut().zip(keys) {
            if track.offered <= track.seen.0 && track.gauge.is_none() {
                continue;
            }
            track.seen.0 = track.offered;
            let dropped = std::mem::take(&mut track.dropped);
            if now.since(track.last).as_nanos() >= u128::from(TRACKED) {
                (track.gauge, track.limited) = (None, false);
                self.daemon.forget(*key);
                continue;
            }
            let (counts, starts) = (track.counts(limit), dropped && !track.limited);
            let told = match &mut track.gauge {
                Some(gauge) => gauge.look(counted, limit, counts, starts),
                None => {
                    let guess = if dropped { GUESS } else { Share::NONE };
                    let (gauge, demand) = DemandEstimator::begin(counted, limit, counts, guess);
                    track.gauge = Some(gauge);
                    Some(Snapshot { demand, sends: true, drops: dropped })
                }
            };
            let Some(Snapshot { demand, sends, drops }) = told else { continue };
            track.limited = sends && (drops || dropped);
            let admitted = track.admitted - track.seen.1;
            track.seen.1 = track.admitted;
            self.daemon.demand(now, *key, Sample { demand, admitted, limited: track.limited });
        }
        self.cpu.stop();
    }

    pub(super) fn write(&mut self, real: u64, actions: &Actions, numbers: &BTreeMap<KeyId, usize>) {
        let now = self.clock.local(real);
        self.digest = mix(self.digest ^ mix(real) ^ actions.digest());
        if let Some(floor) = actions.floor {
            self.kernel.set_floor(now, floor);
        }
        for (key, share, until) in &actions.shares {
            let number = numbers.get(key);
            number.into_iter().for_each(|it| self.kernel.set(*it, now, *share, *until));
        }
        for (key, tokens) in &actions.debits {
            let number = numbers.get(key);
            number.into_iter().for_each(|it| self.kernel.debit(*it, now, *tokens));
        }
    }

    /// A message comes: to the daemon, or to its socket's buffer. Returns whether it takes it.
    pub(super) fn receive(&mut self, real: u64, from: HostId, message: &Rc<Payload>) -> bool {
        match self.state {
            State::Running => {
                self.cpu.start();
                self.daemon.receive(self.clock.local(real), from, message);
                self.cpu.stop();
                true
            }
            State::Paused | State::Frozen => {
                // They come to the daemon late but unchanged: answers to moments that have long passed.
                if self.waiting.len() < WAITING {
                    self.waiting.push((from, Rc::clone(message)));
                }
                false
            }
            State::Dead | State::Off | State::Left => false,
        }
    }

    /// The daemon tells of itself, and is to tell the same in the next run.
    pub(super) fn report(&mut self, real: u64, key: KeyId, host: HostId) {
        let report = self.daemon.reports(self.clock.local(real), key, host);
        self.digest = digest(self.digest, report.as_bytes());
    }

    pub(super) fn kill(&mut self, state: State) {
        self.state = state;
        self.life += 1;
        self.woken = false;
        // A socket's buffer goes with its process.
        self.waiting.clear();
        (self.held, self.poll_at) = (None, None);
    }

    /// The daemon starts, or goes on to look.
    pub(super) fn start(&mut self, real: u64) {
        self.state = State::Running;
        self.life += 1;
        self.woken = false;
        // What came while no daemon looked is nobody's demand.
        self.looked = self.clock.local(real);
        for track in &mut self.tracks {
            track.seen = (track.offered, track.admitted);
            (track.gauge, track.limited) = (None, false);
        }
    }

    /// The machine starts: with an empty kernel.
    pub(super) fn boot(&mut self, real: u64) {
        self.tracks.fill(Track::default());
        self.kernel.boot(self.clock.local(real));
    }
}
