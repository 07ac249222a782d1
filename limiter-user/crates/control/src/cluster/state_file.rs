//! What a host must not forget: the cluster that it belongs to, its last run, and the ledger of its shares.
//!
//! The ledger has a random number, by which others know whose the shares are. It is drawn when the ledger begins, and
//! goes where the file goes. So a host that is called otherwise keeps its shares, and one that has lost its file is
//! another one, whatever it is called.
//!
//! It has a file of its own, beside the store, and the share loop alone writes it: shares move while limits are
//! written, and a store writes one change after the other. All of it is written at once or not at all, with a number
//! that tells damage. A damaged file is set aside: then the host starts with nothing, and what it had lies idle, as an
//! older file would give shares twice.

use std::fs;
use std::hash::Hasher as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

use api::error::{Failure, exit};
use cluster::escrow::{Era, PersistentState};
use cluster::link::{Bootstrap, ClusterId};
use cluster::wire::Epoch;
use cluster::{HostId, Moment};
use model::Share;

const FILE: &str = "cluster.json";

/// The version of the file's format.
// A higher number is refused, so it rises with each field that an older daemon would not know.
const VERSION: u32 = 1;

/// The whole file.
#[derive(Serialize, Deserialize)]
// An unknown field may be a promise of a later version. To drop it silently could give shares
// twice.
#[serde(deny_unknown_fields)]
struct Content<S> {
    state: S,
    /// A hash of `state` as JSON.
    // Without it a flipped digit in `home` would pass as a larger share.
    check: u64,
}

/// What all formats of a state have.
#[derive(Deserialize)]
struct Format {
    version: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: u32,
    /// The number of the ledger; 0 until it begins.
    ledger: u64,
    epoch: Epoch,
    cluster: Option<ClusterId>,
    /// An earlier file was damaged: this host may have belonged to a cluster, and may have voted.
    lost: bool,
    /// The cluster that it would found with other hosts; drawn with the ledger, as others may have voted for it.
    proposal: u64,
    /// The proposal that it votes for.
    vote: Option<ClusterId>,
    shares: PersistentState,
}

impl State {
    /// Of a host that has kept nothing yet.
    fn empty() -> Self {
        Self { version: VERSION, ..Self::default() }
    }

    fn check(&self) -> u64 {
        // Plain values always make JSON.
        let text = serde_json::to_string(self).unwrap_or_default();
        let mut hasher = SipHasher24::new();
        hasher.write(text.as_bytes());
        hasher.finish()
    }

    fn belong(&mut self, cluster: ClusterId) {
        self.cluster = Some(cluster);
        // A host with a cluster has no vote. A stale one could found a second cluster after it
        // leaves.
        (self.lost, self.vote) = (false, None);
    }
}

/// The file, and what is in it.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// What was read or written last.
    state: State,
}

impl StateFile {
    /// Opens the file in the state directory, where there may be none yet.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn open(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join(FILE);
        let state = read(&path)?;
        Ok(Self { path, state })
    }

    /// Begins a run. `ledger` and `proposal` are random numbers, for a host that has none kept.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn begin(
        &mut self,
        epoch: Epoch,
        ledger: HostId,
        proposal: ClusterId,
    ) -> Result<(), Failure> {
        let mut state = self.state.clone();
        if state.ledger == 0 {
            (state.ledger, state.proposal) = (ledger.0, proposal.0);
        } else {
            // What is kept may be an earlier copy, which others have heard more of: from its moments on nobody would
            // hear this host. A clock that is kept goes ahead of the wall clock by an hour a start at most. The upper
            // half of an epoch is the start in seconds. Shifted back, one second is worth 4.3 s in nanoseconds, so
            // later starts lie beyond.
            let clock = &mut state.shares.clock;
            *clock = (*clock).max(Moment(epoch.0 >> 32 << 32));
        }
        // Stored before the first frame: an epoch that is used twice would repeat nonces under the
        // same key.
        state.epoch = epoch;
        self.write(state)
    }

    /// By which others know this host.
    pub(super) const fn host(&self) -> HostId {
        HostId(self.state.ledger)
    }

    /// The last run.
    pub(super) const fn epoch(&self) -> Epoch {
        self.state.epoch
    }

    /// The cluster that this host belongs to.
    pub(super) const fn cluster(&self) -> Option<ClusterId> {
        self.state.cluster
    }

    /// What it tells of founding a cluster with as many hosts as are expected. Nothing comes of that where it may
    /// have voted before and does not know.
    pub(super) const fn bootstrap(&self, expect: u32) -> Bootstrap {
        let State { lost, vote, .. } = self.state;
        // Two votes of one host could found two clusters, each of which has the whole limit.
        Bootstrap { expect: if lost { 0 } else { expect }, proposal: self.proposal(), vote }
    }

    /// The cluster that it would found with others.
    pub(super) const fn proposal(&self) -> ClusterId {
        ClusterId(self.state.proposal)
    }

    /// Its shares.
    pub(super) fn shares(&self) -> PersistentState {
        self.state.shares.clone()
    }

    /// Keeps that this host belongs to a cluster.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn join(&mut self, cluster: ClusterId) -> Result<(), Failure> {
        self.change(|state| state.belong(cluster))
    }

    /// Keeps that this host has founded a cluster, and has all of its limits.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn found(&mut self, cluster: ClusterId) -> Result<(), Failure> {
        self.change(|state| {
            state.belong(cluster);
            // Nobody has heard of it: it need not wait for what it has given and taken before.
            let last_transfer = state.shares.last_transfer;
            state.shares = PersistentState { last_transfer, ..PersistentState::founder() };
        })
    }

    /// Keeps that this host votes for a proposal.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn vote(&mut self, proposal: ClusterId) -> Result<(), Failure> {
        self.change(|state| state.vote = Some(proposal))
    }

    /// What is to be written so that these shares are kept; nothing if they are. Until it is written, nothing else may
    /// be.
    pub(super) fn with_shares(&self, shares: &PersistentState) -> Option<Unwritten> {
        let state = State { shares: shares.clone(), ..self.state.clone() };
        let path = self.path.clone();
        // The escrow asks often. A write with `fsync` for nothing would hold back messages for the
        // disk's time.
        (self.state != state).then_some(Unwritten { path, state })
    }

    /// Takes note that this is written.
    pub(super) fn written(&mut self, Unwritten { state, .. }: Unwritten) {
        self.state = state;
    }

    /// Takes this host out of its cluster, unless it has a part of the limits that others have the rest of.
    /// Returns whether the cluster is no more, since this host had all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn leave(&mut self) -> Result<bool, Failure> {
        let shares = self.shares();
        let whole = shares.home == Share::WHOLE;
        // Leaving with a part would leave it idle for good: nobody else could ever use it.
        if !shares.outgoing.is_empty() || !(whole || shares.home.is_none()) {
            return Ok(false);
        }
        self.change(|state| {
            state.cluster = None;
            // Another cluster has other eras.
            (state.shares.home, state.shares.era) = (Share::NONE, Era::default());
        })?;
        Ok(whole)
    }

    fn change(&mut self, change: impl FnOnce(&mut State)) -> Result<(), Failure> {
        let mut state = self.state.clone();
        change(&mut state);
        self.write(state)
    }

    fn write(&mut self, state: State) -> Result<(), Failure> {
        // Memory follows the disk and never goes ahead. A failed write leaves both at the former
        // state.
        if self.state != state {
            write(&self.path, &state)?;
            self.state = state;
        }
        Ok(())
    }
}

/// What the file is to be.
#[derive(Debug)]
pub(super) struct Unwritten {
    path: PathBuf,
    state: State,
}

impl Unwritten {
    /// Writes it, which may take a while.
    ///
    /// # Errors
    /// If it cannot be written; what was kept before is then.
    pub(super) fn write(&self) -> Result<(), Failure> {
        write(&self.path, &self.state)
    }
}

/// The home share that the host keeps in the state directory: the most that is surely its
/// own before it has joined the others.
pub(super) fn home(directory: &Path) -> Result<Share, Failure> {
    // More than the whole cannot be right, and the kernel would admit it.
    Ok(read(&directory.join(FILE))?.shares.home.min(Share::WHOLE))
}

fn write(path: &Path, state: &State) -> Result<(), Failure> {
    let content = Content { check: state.check(), state };
    let written = state::write_file(path, |file| Ok(serde_json::to_writer(file, &content)?));
    written.map_err(|error| {
        Failure::new(exit::NEGATIVE, format!("cannot write {}: {error}", path.display()))
            .hint("see to it that the state directory can be written and its disk has room")
    })
}

/// Reads the file, if there is one. One that is damaged is set aside, and an empty one that tells so takes its place.
fn read(path: &Path) -> Result<State, Failure> {
    let name = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(State::empty()),
        // Bytes that are not UTF-8 are damage like any other, and end as a parse error below.
        Err(error) if error.kind() == ErrorKind::InvalidData => String::new(),
        Err(error) => {
            return Err(Failure::new(exit::PRIVILEGE, format!("cannot read {name}: {error}")));
        }
    };
    // Not damage: setting it aside would throw away the shares of a host that was downgraded by mistake.
    let format = serde_json::from_str::<Content<Format>>(&text);
    if format.is_ok_and(|content| content.state.version > VERSION) {
        let message = format!("{name} was written by a later version");
        return Err(Failure::new(exit::USAGE, message).hint("run that version, or a later one"));
    }
    let problem = match serde_json::from_str::<Content<State>>(&text) {
        Ok(Content { state, check }) if state.check() == check && state.version == VERSION => {
            return Ok(state);
        }
        Ok(_) => "its checksum is wrong".to_owned(),
        Err(error) => error.to_string(),
    };
    let aside = path.with_extension("json.damaged");
    // Copied, and only then replaced: whenever this ends, no later start takes the host for a new one, which
    // might vote a second time.
    let lost = State { lost: true, ..State::empty() };
    let copied =
        fs::copy(path, &aside).map_err(|error| Failure::new(exit::PRIVILEGE, error.to_string()));
    copied
        .and_then(|_| write(path, &lost))
        .map_err(|failure| failure.context(format!("{name} is damaged and cannot be set aside")))?;
    tracing::error!(
        "{name} is damaged ({problem}), with a copy in {}: this host starts without a share of its own, and \
         what it had is given out anew after ten minutes",
        aside.display()
    );
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use cluster::message::{Attempt, Tally, Transfer};

    use super::*;

    fn epoch(second: u64) -> Epoch {
        Epoch::starting(None, second, 7)
    }

    impl StateFile {
        fn keep(&mut self, shares: &PersistentState) -> Result<(), Failure> {
            let Some(unwritten) = self.with_shares(shares) else { return Ok(()) };
            unwritten.write()?;
            self.written(unwritten);
            Ok(())
        }
    }

    const LEDGER: HostId = HostId(77);

    fn founder(home: &Path) -> StateFile {
        let mut file = StateFile::open(home).unwrap();
        file.begin(epoch(5), LEDGER, ClusterId(7)).unwrap();
        file.found(ClusterId(9)).unwrap();
        file
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let home = tempfile::tempdir().unwrap();
        let file = StateFile::open(home.path()).unwrap();
        assert_eq!(
            (file.epoch(), file.cluster(), file.shares()),
            (Epoch(0), None, PersistentState::default())
        );
        let mut file = founder(home.path());
        assert_eq!(file.shares().home, Share::WHOLE);
        let transfer = Transfer { number: 4, share: Share::from_part(0.25) };
        let kept = PersistentState {
            home: Share::from_part(0.75),
            last_transfer: file.shares().last_transfer + 5,
            outgoing: vec![(HostId(2), transfer)],
            incoming: [(HostId(2), 3)].into(),
            clock: Moment(u64::MAX),
            far: true,
            era: Era {
                number: 3,
                counts: true,
                tally: Tally {
                    counted: Attempt { number: 2, by: HostId(5) },
                    hosts: 3,
                    lacking: Share::NONE,
                },
                promised: Attempt { number: 1, by: HostId(u64::MAX) },
                counted: Some(Attempt { number: 1, by: HostId(u64::MAX) }),
                accepted: Some((Attempt::NONE, Tally::default())),
                voided: Attempt { number: 1, by: HostId(7) },
                known: true,
            },
        };
        file.keep(&kept).unwrap();
        assert_eq!(super::home(home.path()).unwrap(), kept.home);
        let mut again = StateFile::open(home.path()).unwrap();
        assert_eq!((again.epoch(), again.cluster()), (epoch(5), Some(ClusterId(9))));
        assert_eq!(again.shares(), kept);
        again.begin(epoch(6), HostId(78), ClusterId(10)).unwrap();
        assert_eq!((again.cluster(), again.shares()), (Some(ClusterId(9)), kept));
        assert_eq!((again.host(), again.proposal()), (LEDGER, ClusterId(7)));
        assert!(!again.leave().unwrap());
        assert_eq!(again.cluster(), Some(ClusterId(9)));
    }

    #[test]
    fn what_is_kept_already_is_not_written() {
        let home = tempfile::tempdir().unwrap();
        let mut file = founder(home.path());
        assert!(file.with_shares(&file.shares()).is_none());
        let less = PersistentState { home: Share::from_part(0.5), ..file.shares() };
        let unwritten = file.with_shares(&less).unwrap();
        fs::remove_file(home.path().join(FILE)).unwrap();
        fs::create_dir(home.path().join(FILE)).unwrap();
        assert!(unwritten.write().is_err());
        assert_eq!(file.shares().home, Share::WHOLE);
        fs::remove_dir(home.path().join(FILE)).unwrap();
        unwritten.write().unwrap();
        file.written(unwritten);
        assert!(file.with_shares(&less).is_none());
        assert_eq!(StateFile::open(home.path()).unwrap().shares(), less);
    }

    #[test]
    fn a_start_mints_nothing() {
        let home = tempfile::tempdir().unwrap();
        let mut file = StateFile::open(home.path()).unwrap();
        for second in 5..8 {
            file.begin(epoch(second), LEDGER, ClusterId(second)).unwrap();
            assert_eq!((file.cluster(), file.shares().home), (None, Share::NONE));
        }
    }

    #[test]
    fn the_file_of_a_later_version_is_refused_and_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE);
        let text = r#"{"state":{"version":2,"promise":1},"check":0}"#;
        fs::write(&path, text).unwrap();
        let refused = StateFile::open(home.path()).unwrap_err();
        assert!(refused.message.contains("a later version") && refused.hint.is_some(), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn a_vote_is_kept_and_none_is_given_by_a_host_that_may_have_voted() {
        let home = tempfile::tempdir().unwrap();
        let mut file = StateFile::open(home.path()).unwrap();
        file.begin(epoch(5), LEDGER, ClusterId(7)).unwrap();
        file.vote(ClusterId(3)).unwrap();
        let mut file = StateFile::open(home.path()).unwrap();
        file.begin(epoch(6), LEDGER, ClusterId(8)).unwrap();
        let told = Bootstrap { expect: 3, proposal: ClusterId(7), vote: Some(ClusterId(3)) };
        assert_eq!(file.bootstrap(3), told);
        fs::write(home.path().join(FILE), "{").unwrap();
        for second in 7..9 {
            let mut file = StateFile::open(home.path()).unwrap();
            file.begin(epoch(second), LEDGER, ClusterId(9)).unwrap();
            assert_eq!((file.bootstrap(3).expect, file.bootstrap(3).vote), (0, None));
        }
        let mut file = StateFile::open(home.path()).unwrap();
        file.begin(epoch(9), LEDGER, ClusterId(9)).unwrap();
        file.join(ClusterId(3)).unwrap();
        assert_eq!(file.cluster(), Some(ClusterId(3)));
    }

    #[test]
    fn a_ledger_that_is_lost_or_damaged_is_followed_by_another_one() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE);
        drop(founder(home.path()));
        let losses: [fn(&Path); 2] =
            [|path| fs::remove_file(path).unwrap(), |path| fs::write(path, "{").unwrap()];
        for (ledger, lose) in (78..).map(HostId).zip(losses) {
            lose(&path);
            let mut file = StateFile::open(home.path()).unwrap();
            assert_eq!(file.host(), HostId(0));
            file.begin(epoch(6), ledger, ClusterId(8)).unwrap();
            // Nobody has heard of it, so it has nothing to be beyond.
            assert_eq!((file.host(), file.shares()), (ledger, PersistentState::default()));
            let mut again = StateFile::open(home.path()).unwrap();
            again.begin(epoch(7), HostId(99), ClusterId(8)).unwrap();
            assert_eq!(again.host(), ledger);
        }
    }

    #[test]
    fn an_older_copy_begins_after_all_that_was_told() {
        let home = tempfile::tempdir().unwrap();
        let mut file = founder(home.path());
        let path = home.path().join(FILE);
        let copy = fs::read(&path).unwrap();
        file.begin(epoch(700), LEDGER, ClusterId(1)).unwrap();
        let told = Moment(file.shares().clock.0 + 3_600_000_000_000);
        file.keep(&PersistentState { clock: told, ..file.shares() }).unwrap();
        fs::write(&path, copy).unwrap();
        let mut file = StateFile::open(home.path()).unwrap();
        file.begin(epoch(700 + 3_600), LEDGER, ClusterId(1)).unwrap();
        assert!(file.shares().clock > told);
        // Where the wall clock is dead, what is kept has to do.
        let kept = file.shares().clock;
        file.begin(epoch(1), LEDGER, ClusterId(1)).unwrap();
        assert_eq!(file.shares().clock, kept);
    }

    #[test]
    fn a_host_that_has_handed_all_over_may_join_any_cluster() {
        let home = tempfile::tempdir().unwrap();
        let mut file = founder(home.path());
        let taken = PersistentState { incoming: [(HostId(2), 3)].into(), ..file.shares() };
        file.keep(&PersistentState { home: Share::NONE, ..taken.clone() }).unwrap();
        assert!(!file.leave().unwrap());
        file.begin(epoch(6), LEDGER, ClusterId(7)).unwrap();
        assert_eq!((file.cluster(), file.shares().home), (None, Share::NONE));
        // Back in the same one, what came before may come again.
        file.join(ClusterId(9)).unwrap();
        assert_eq!(file.shares().incoming, taken.incoming);
        file.keep(&taken).unwrap();
        // With all of it the cluster is no more.
        assert!(file.leave().unwrap());
        assert_eq!((file.cluster(), file.shares().home), (None, Share::NONE));
        file.join(ClusterId(3)).unwrap();
        let file = StateFile::open(home.path()).unwrap();
        assert_eq!((file.cluster(), file.shares().home), (Some(ClusterId(3)), Share::NONE));
        assert_eq!(file.host(), LEDGER);
    }

    #[test]
    fn a_damaged_file_gives_nothing_and_is_set_aside() {
        for damage in ["", "{", "home\":4294967296", "\u{fffd}"] {
            let home = tempfile::tempdir().unwrap();
            let mut file = founder(home.path());
            file.keep(&PersistentState {
                home: Share::from_part(0.5),
                ..PersistentState::founder()
            })
            .unwrap();
            let path = home.path().join(FILE);
            let text = fs::read_to_string(&path).unwrap();
            let text = match damage {
                "home\":4294967296" => text.replace("home\":2147483648", damage),
                damage => damage.to_owned(),
            };
            fs::write(&path, text).unwrap();
            // Whoever reads it first: it may have founded a cluster, whose limits others have now.
            assert_eq!(super::home(home.path()).unwrap(), Share::NONE);
            let mut file = StateFile::open(home.path()).unwrap();
            assert_eq!(file.epoch(), Epoch(0));
            file.begin(epoch(6), LEDGER, ClusterId(10)).unwrap();
            let mut file = StateFile::open(home.path()).unwrap();
            file.begin(epoch(7), LEDGER, ClusterId(11)).unwrap();
            assert_eq!((file.cluster(), file.shares().home), (None, Share::NONE));
            assert!(path.exists() && path.with_extension("json.damaged").exists());
            file.join(ClusterId(9)).unwrap();
        }
    }
}
