//! What a host must not forget: the cluster that it belongs to, its last run, and its shares.
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
use cluster::escrow::PersistentState;
use cluster::link::{Bootstrap, ClusterId};
use cluster::message::Transfer;
use cluster::wire::Epoch;
use cluster::{HostId, Moment};
use model::Share;

const FILE: &str = "cluster.json";

/// The version of the file's format.
// A higher number is refused, so it rises only when an older daemon would misread the file. New
// fields are left out at their default instead.
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: u32,
    /// By which others know it.
    name: String,
    epoch: Epoch,
    cluster: Option<ClusterId>,
    /// An earlier file was damaged: this host may have belonged to a cluster, and may have voted.
    lost: bool,
    /// It has handed over all that it had of `cluster`, and may join any.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left: bool,
    /// The cluster that it would found with other hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proposal: Option<ClusterId>,
    /// The proposal that it votes for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vote: Option<ClusterId>,
    home: u64,
    /// The number of the last transfer; as a file of a version that kept the next one has it, none was as high.
    next_transfer: u64,
    /// To whom, number, share.
    outgoing: Vec<(u64, u64, u64)>,
    /// From whom, number.
    incoming: Vec<(u64, u64)>,
    clock: u64,
    /// Whether this host gives for as long as is needed between regions. Left out where it does not, as in files of
    /// versions that knew no regions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    far: bool,
}

impl State {
    /// Of a host that has kept nothing yet.
    fn empty() -> Self {
        Self { version: VERSION, ..Self::default() }
    }

    /// As [`State::empty`], of a host that begins this run: others may remember it from a life before.
    ///
    /// Its moments and the numbers of its transfers lie beyond all that an earlier life can have used, or nobody
    /// would take them: a clock that is kept goes ahead of the wall clock by an hour a start at most.
    fn newcomer(epoch: Epoch) -> Self {
        // The upper half of an epoch is the start in seconds. Shifted back, one second is worth
        // 4.3 s in nanoseconds, so later starts lie beyond.
        let second = epoch.0 >> 32;
        Self { clock: second << 32, next_transfer: second << 32, ..Self::empty() }
    }

    fn check(&self) -> u64 {
        // Plain values always make JSON.
        // Over the JSON and not the fields: a field that is left out changes nothing, so files of
        // earlier versions keep their check.
        let text = serde_json::to_string(self).unwrap_or_default();
        let mut hasher = SipHasher24::new();
        hasher.write(text.as_bytes());
        hasher.finish()
    }

    fn belong(&mut self, cluster: ClusterId) {
        if self.cluster != Some(cluster) {
            // Hosts of another cluster may have the same names.
            self.incoming.clear();
        }
        self.cluster = Some(cluster);
        // A host with a cluster has no vote. A stale one could found a second cluster after it
        // leaves.
        (self.lost, self.left, self.vote) = (false, false, None);
    }

    fn shares(&self) -> PersistentState {
        let transfer = |&(to, number, share): &(u64, u64, u64)| {
            (HostId(to), Transfer { number, share: Share::from_units(share) })
        };
        PersistentState {
            // More than the whole cannot be right, and the kernel would admit it.
            home: Share::from_units(self.home).min(Share::WHOLE),
            last_transfer: self.next_transfer,
            outgoing: self.outgoing.iter().map(transfer).collect(),
            incoming: self.incoming.iter().map(|&(from, number)| (HostId(from), number)).collect(),
            clock: Moment(self.clock),
            far: self.far,
        }
    }

    fn set_shares(&mut self, kept: &PersistentState) {
        let outgoing = kept.outgoing.iter();
        self.home = kept.home.units();
        self.next_transfer = kept.last_transfer;
        self.outgoing = outgoing.map(|(to, t)| (to.0, t.number, t.share.units())).collect();
        self.incoming = kept.incoming.iter().map(|(from, number)| (from.0, *number)).collect();
        self.clock = kept.clock.0;
        self.far = kept.far;
    }
}

/// The file, and what is in it.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// What was read or written last.
    state: Option<State>,
    name: String,
    /// The name that this host was to have, if it keeps another one.
    refused_name: Option<String>,
}

impl StateFile {
    /// Opens the file of the host `name` in the state directory, where there may be none yet. Who has shares keeps the
    /// name that others know them by: they would count them under both names. One that is copied is refused so, too.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn open(directory: &Path, name: &str) -> Result<Self, Failure> {
        let path = directory.join(FILE);
        let state = read(&path)?;
        // Shares on their way count too: until they are confirmed they are this host's, by its old
        // name.
        let has = |state: &&State| state.home > 0 || !state.outgoing.is_empty();
        let kept = state.as_ref().filter(has).map_or(name, |state| &state.name).to_owned();
        let refused_name = (kept != name).then(|| name.to_owned());
        Ok(Self { path, state, name: kept, refused_name })
    }

    /// By which others know this host.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The name that this host was to have, if it keeps another one.
    pub(super) fn refused_name(&self) -> Option<&str> {
        self.refused_name.as_deref()
    }

    /// Begins a run. `proposal` is a random number, for a host that has none yet.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn begin(&mut self, epoch: Epoch, proposal: ClusterId) -> Result<(), Failure> {
        let mut state = match &self.state {
            // What was in the damaged file is not known.
            // The file that replaced the damaged one has a clock of zero. Numbers must be beyond
            // those of the life that was lost.
            Some(state) if state.lost && state.cluster.is_none() && state.next_transfer == 0 => {
                State { lost: true, ..State::newcomer(epoch) }
            }
            // What is kept may be an earlier copy, which others have heard more of: from its moments on nobody would
            // hear this host.
            Some(state) => {
                State { clock: state.clock.max(State::newcomer(epoch).clock), ..state.clone() }
            }
            None => State::newcomer(epoch),
        };
        state.name.clone_from(&self.name);
        // Stored before the first frame: an epoch that is used twice would repeat nonces under the
        // same key.
        state.epoch = epoch;
        // Kept over restarts: other hosts may have voted for it already.
        state.proposal.get_or_insert(proposal);
        self.write(state)
    }

    /// The last run.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.state.as_ref().map(|state| state.epoch)
    }

    /// The cluster that this host belongs to.
    pub(super) fn cluster(&self) -> Option<ClusterId> {
        // The number stays in the file after leaving, so that `belong` knows whether a later
        // cluster is the same.
        self.state.as_ref().filter(|state| !state.left)?.cluster
    }

    /// What it tells of founding a cluster with as many hosts as are expected. Nothing comes of that where it may
    /// have voted before and does not know.
    pub(super) fn bootstrap(&self, expect: u32) -> Bootstrap {
        let state = self.state.as_ref();
        let lost = state.is_some_and(|state| state.lost);
        let vote = state.and_then(|state| state.vote);
        // Two votes of one host could found two clusters, each of which has the whole limit.
        Bootstrap { expect: if lost { 0 } else { expect }, proposal: self.proposal(), vote }
    }

    /// The cluster that it would found with others.
    pub(super) fn proposal(&self) -> ClusterId {
        self.state.as_ref().and_then(|state| state.proposal).unwrap_or(ClusterId(0))
    }

    /// Its shares.
    pub(super) fn shares(&self) -> PersistentState {
        self.state.as_ref().map(State::shares).unwrap_or_default()
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
            state.home = Share::WHOLE.units();
            // Nobody has heard of it: it need not wait for what it has given before.
            state.clock = 0;
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
        let mut state = self.state.clone()?;
        state.set_shares(shares);
        let path = self.path.clone();
        // The escrow asks often. A write with `fsync` for nothing would hold back messages for the
        // disk's time.
        (self.state.as_ref() != Some(&state)).then_some(Unwritten { path, state })
    }

    /// Takes note that this is written.
    pub(super) fn written(&mut self, Unwritten { state, .. }: Unwritten) {
        self.state = Some(state);
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
        self.change(|state| (state.left, state.home) = (true, 0))?;
        Ok(whole)
    }

    fn change(&mut self, change: impl FnOnce(&mut State)) -> Result<(), Failure> {
        // Nothing was begun: then there is no run yet that could change anything.
        let Some(mut state) = self.state.clone() else { return Ok(()) };
        change(&mut state);
        self.write(state)
    }

    fn write(&mut self, state: State) -> Result<(), Failure> {
        // Memory follows the disk and never goes ahead. A failed write leaves both at the former
        // state.
        if self.state.as_ref() != Some(&state) {
            write(&self.path, &state)?;
            self.state = Some(state);
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

/// The home share that the host keeps in the state directory, whatever it is called: the most that is surely its
/// own before it has joined the others.
pub(super) fn home(directory: &Path) -> Result<Share, Failure> {
    let state = read(&directory.join(FILE))?;
    Ok(state.map_or(Share::NONE, |state| state.shares().home))
}

fn write(path: &Path, state: &State) -> Result<(), Failure> {
    let content = Content { check: state.check(), state };
    let written = state::write_file(path, |file| Ok(serde_json::to_writer(file, &content)?));
    written.map_err(|error| {
        Failure::new(exit::NEGATIVE, format!("cannot write {}: {error}", path.display()))
            .hint("see to it that the state directory can be written and its disk has room")
    })
}

/// Reads the file. One that is damaged is set aside, and an empty one that tells so takes its place.
fn read(path: &Path) -> Result<Option<State>, Failure> {
    let name = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        // Bytes that are not UTF-8 are damage like any other, and end as a parse error below.
        Err(error) if error.kind() == ErrorKind::InvalidData => String::new(),
        Err(error) => {
            return Err(Failure::new(exit::PRIVILEGE, format!("cannot read {name}: {error}")));
        }
    };
    let problem = match serde_json::from_str::<Content<State>>(&text) {
        Ok(Content { state, check }) if state.check() == check && state.version == VERSION => {
            return Ok(Some(state));
        }
        // Not damage: setting it aside would throw away the shares of a host that was downgraded
        // by mistake.
        Ok(Content { state, .. }) if state.version > VERSION => {
            let message = format!("{name} was written by a later version");
            return Err(Failure::new(exit::USAGE, message).hint("run that version, or a later one"));
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
         what it had lies idle",
        aside.display()
    );
    Ok(Some(lost))
}

#[cfg(test)]
mod tests {
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

    fn founder(home: &Path) -> StateFile {
        let mut file = StateFile::open(home, "a").unwrap();
        file.begin(epoch(5), ClusterId(7)).unwrap();
        file.found(ClusterId(9)).unwrap();
        file
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let home = tempfile::tempdir().unwrap();
        let file = StateFile::open(home.path(), "a").unwrap();
        assert_eq!(
            (file.epoch(), file.cluster(), file.shares()),
            (None, None, PersistentState::default())
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
            far: false,
        };
        file.keep(&kept).unwrap();
        assert_eq!(super::home(home.path()).unwrap(), kept.home);
        let mut again = StateFile::open(home.path(), "a").unwrap();
        assert_eq!((again.epoch(), again.cluster()), (Some(epoch(5)), Some(ClusterId(9))));
        assert_eq!(again.shares(), kept);
        let far = PersistentState { far: true, ..kept.clone() };
        again.keep(&far).unwrap();
        assert_eq!(StateFile::open(home.path(), "a").unwrap().shares(), far);
        again.keep(&kept).unwrap();
        // What is not so is not written, as before there were regions.
        assert!(!fs::read_to_string(home.path().join(FILE)).unwrap().contains("far"));
        again.begin(epoch(6), ClusterId(10)).unwrap();
        assert_eq!((again.cluster(), again.shares()), (Some(ClusterId(9)), kept.clone()));
        assert_eq!(again.proposal(), ClusterId(7));
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
        assert_eq!(StateFile::open(home.path(), "a").unwrap().shares(), less);
    }

    #[test]
    fn who_has_a_share_keeps_its_name() {
        let home = tempfile::tempdir().unwrap();
        let mut file = founder(home.path());
        let transfer = Transfer { number: 4, share: Share::from_part(0.25) };
        let kept = file.shares();
        for kept in [
            PersistentState {
                outgoing: vec![(HostId(2), transfer)],
                home: Share::NONE,
                ..kept.clone()
            },
            kept.clone(),
        ] {
            file.keep(&kept).unwrap();
            let again = StateFile::open(home.path(), "b").unwrap();
            assert_eq!((again.name(), again.refused_name()), ("a", Some("b")));
            assert_eq!(StateFile::open(home.path(), "a").unwrap().refused_name(), None);
        }
        // With nothing to be counted twice it may be called otherwise.
        file.keep(&PersistentState { home: Share::NONE, ..kept }).unwrap();
        let mut again = StateFile::open(home.path(), "b").unwrap();
        assert_eq!((again.name(), again.refused_name()), ("b", None));
        again.begin(epoch(6), ClusterId(7)).unwrap();
        again.keep(&PersistentState { home: Share::from_part(0.5), ..again.shares() }).unwrap();
        assert_eq!(StateFile::open(home.path(), "a").unwrap().name(), "b");
    }

    #[test]
    fn a_start_mints_nothing() {
        let home = tempfile::tempdir().unwrap();
        let mut file = StateFile::open(home.path(), "a").unwrap();
        for second in 5..8 {
            file.begin(epoch(second), ClusterId(second)).unwrap();
            assert_eq!((file.cluster(), file.shares().home), (None, Share::NONE));
        }
    }

    #[test]
    fn the_file_of_an_earlier_version_keeps_its_cluster() {
        let home = tempfile::tempdir().unwrap();
        let state = r#"{"version":1,"name":"a","epoch":21474836487,"cluster":9,"lost":false,"home":4294967296,"next_transfer":0,"outgoing":[],"incoming":[],"clock":0}"#;
        let mut hasher = SipHasher24::new();
        hasher.write(state.as_bytes());
        let text = format!(r#"{{"state":{state},"check":{}}}"#, hasher.finish());
        fs::write(home.path().join(FILE), text).unwrap();
        let mut file = StateFile::open(home.path(), "a").unwrap();
        file.begin(epoch(6), ClusterId(7)).unwrap();
        assert_eq!((file.cluster(), file.shares().home), (Some(ClusterId(9)), Share::WHOLE));
    }

    #[test]
    fn a_vote_is_kept_and_none_is_given_by_a_host_that_may_have_voted() {
        let home = tempfile::tempdir().unwrap();
        let mut file = StateFile::open(home.path(), "a").unwrap();
        file.begin(epoch(5), ClusterId(7)).unwrap();
        file.vote(ClusterId(3)).unwrap();
        let mut file = StateFile::open(home.path(), "a").unwrap();
        file.begin(epoch(6), ClusterId(8)).unwrap();
        let told = Bootstrap { expect: 3, proposal: ClusterId(7), vote: Some(ClusterId(3)) };
        assert_eq!(file.bootstrap(3), told);
        fs::write(home.path().join(FILE), "{").unwrap();
        for second in 7..9 {
            let mut file = StateFile::open(home.path(), "a").unwrap();
            file.begin(epoch(second), ClusterId(9)).unwrap();
            assert_eq!((file.bootstrap(3).expect, file.bootstrap(3).vote), (0, None));
        }
        let mut file = StateFile::open(home.path(), "a").unwrap();
        file.begin(epoch(9), ClusterId(9)).unwrap();
        file.join(ClusterId(3)).unwrap();
        assert_eq!(file.cluster(), Some(ClusterId(3)));
    }

    #[test]
    fn a_host_that_has_lost_its_state_numbers_what_it_gives_anew() {
        let home = tempfile::tempdir().unwrap();
        let mut file = founder(home.path());
        // Whatever it has given and told since, and however often it was started in an hour.
        let kept = PersistentState {
            last_transfer: file.shares().last_transfer + 10_000,
            ..file.shares()
        };
        file.keep(&PersistentState { clock: Moment(kept.clock.0 + 3_600_000_000_000), ..kept })
            .unwrap();
        let former = file.shares();
        fs::remove_file(home.path().join(FILE)).unwrap();
        let mut file = StateFile::open(home.path(), "a").unwrap();
        file.begin(epoch(5 + 3600), ClusterId(8)).unwrap();
        assert!(file.shares().last_transfer > former.last_transfer);
        assert!(file.shares().clock > former.clock);
    }

    #[test]
    fn an_older_copy_begins_after_all_that_was_told() {
        let home = tempfile::tempdir().unwrap();
        let mut file = founder(home.path());
        let path = home.path().join(FILE);
        let copy = fs::read(&path).unwrap();
        file.begin(epoch(700), ClusterId(1)).unwrap();
        let told = Moment(file.shares().clock.0 + 3_600_000_000_000);
        file.keep(&PersistentState { clock: told, ..file.shares() }).unwrap();
        fs::write(&path, copy).unwrap();
        let mut file = StateFile::open(home.path(), "a").unwrap();
        file.begin(epoch(700 + 3_600), ClusterId(1)).unwrap();
        assert!(file.shares().clock > told);
        // Where the wall clock is dead, what is kept has to do.
        let kept = file.shares().clock;
        file.begin(epoch(1), ClusterId(1)).unwrap();
        assert_eq!(file.shares().clock, kept);
    }

    #[test]
    fn a_host_that_has_handed_all_over_may_join_any_cluster() {
        let home = tempfile::tempdir().unwrap();
        let mut file = founder(home.path());
        let taken = PersistentState { incoming: [(HostId(2), 3)].into(), ..file.shares() };
        file.keep(&PersistentState { home: Share::NONE, ..taken.clone() }).unwrap();
        assert!(!file.leave().unwrap());
        file.begin(epoch(6), ClusterId(7)).unwrap();
        assert_eq!((file.cluster(), file.shares().home), (None, Share::NONE));
        // Back in the same one, what came before may come again.
        file.join(ClusterId(9)).unwrap();
        assert_eq!(file.shares().incoming, taken.incoming);
        file.keep(&taken).unwrap();
        // With all of it the cluster is no more.
        assert!(file.leave().unwrap());
        assert_eq!((file.cluster(), file.shares().home), (None, Share::NONE));
        file.join(ClusterId(3)).unwrap();
        let file = StateFile::open(home.path(), "a").unwrap();
        assert_eq!((file.cluster(), file.shares().home), (Some(ClusterId(3)), Share::NONE));
        assert!(file.shares().incoming.is_empty());
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
            let mut file = StateFile::open(home.path(), "a").unwrap();
            assert_eq!(file.epoch(), Some(Epoch(0)));
            file.begin(epoch(6), ClusterId(10)).unwrap();
            let mut file = StateFile::open(home.path(), "a").unwrap();
            file.begin(epoch(7), ClusterId(11)).unwrap();
            assert_eq!((file.cluster(), file.shares().home), (None, Share::NONE));
            assert!(path.exists() && path.with_extension("json.damaged").exists());
            file.join(ClusterId(9)).unwrap();
        }
    }
}
