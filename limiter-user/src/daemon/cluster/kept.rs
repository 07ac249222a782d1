//! What a host must not forget: the cluster that it belongs to, its last run, and its rights.
//!
//! It has a file of its own, beside the store: rights move while limits are written, and a store writes one
//! change after the other. All of it is written at once or not at all, with a number that tells damage. A
//! damaged file is set aside: then the host starts with nothing, and what it had lies idle, as an older file
//! would give rights twice.

use std::fs;
use std::hash::Hasher as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

use crate::cluster::escrow::Kept;
use crate::cluster::link::ClusterId;
use crate::cluster::message::Transfer;
use crate::cluster::wire::Epoch;
use crate::cluster::{HostId, Moment, Share};
use crate::daemon::confirm::write_json;
use crate::error::{Failure, exit};

const FILE: &str = "cluster.json";

/// The version of the file's format.
const VERSION: u32 = 1;

/// The whole file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    state: State,
    /// A hash of `state` as JSON.
    check: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: u32,
    /// By which others know it.
    name: String,
    epoch: Epoch,
    cluster: Option<ClusterId>,
    /// An earlier file was damaged: this host may have belonged to a cluster, and founds none.
    lost: bool,
    home: u64,
    /// The number of the last transfer; as a file of a version that kept the next one has it, none was as high.
    next_transfer: u64,
    /// What that was before the first one, which tells the host from others that had its name before.
    #[serde(default, skip_serializing_if = "is_zero")]
    first_transfer: u64,
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
    const fn empty() -> Self {
        Self {
            version: VERSION,
            name: String::new(),
            epoch: Epoch(0),
            cluster: None,
            lost: false,
            home: 0,
            next_transfer: 0,
            first_transfer: 0,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            clock: 0,
            far: false,
        }
    }

    fn check(&self) -> u64 {
        // Plain values always make JSON.
        let text = serde_json::to_string(self).unwrap_or_default();
        let mut hasher = SipHasher24::new();
        hasher.write(text.as_bytes());
        hasher.finish()
    }

    fn rights(&self) -> Kept {
        let transfer = |&(to, number, share): &(u64, u64, u64)| {
            (HostId(to), Transfer { number, share: Share::of_units(share) })
        };
        Kept {
            home: Share::of_units(self.home).min(Share::WHOLE),
            last_transfer: self.next_transfer,
            outgoing: self.outgoing.iter().map(transfer).collect(),
            incoming: self.incoming.iter().map(|&(from, number)| (HostId(from), number)).collect(),
            clock: Moment(self.clock),
            far: self.far,
        }
    }

    fn set_rights(&mut self, kept: &Kept) {
        let outgoing = kept.outgoing.iter();
        self.home = kept.home.units();
        self.next_transfer = kept.last_transfer;
        self.outgoing = outgoing.map(|(to, t)| (to.0, t.number, t.share.units())).collect();
        self.incoming = kept.incoming.iter().map(|(from, number)| (from.0, *number)).collect();
        self.clock = kept.clock.0;
        self.far = kept.far;
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The file, and what is in it.
#[derive(Debug)]
pub(super) struct KeptFile {
    path: PathBuf,
    /// What was read or written last.
    state: Option<State>,
    name: String,
    /// The name that this host was to have, if it keeps another one.
    refused_name: Option<String>,
}

impl KeptFile {
    /// Opens the file of the host `name` in the state directory, where there may be none yet. Who has rights keeps the
    /// name that others know them by: they would count them under both names. One that is copied is refused so, too.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn open(directory: &Path, name: &str) -> Result<Self, Failure> {
        let path = directory.join(FILE);
        let state = read(&path)?;
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

    /// Begins a run. `founded` is the number of the cluster that this host founds if it belongs to none.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn begin(
        &mut self,
        epoch: Epoch,
        founded: Option<ClusterId>,
    ) -> Result<(), Failure> {
        let mut state = self.state.clone().unwrap_or_else(State::empty);
        state.name.clone_from(&self.name);
        state.epoch = epoch;
        if self.state.as_ref().is_none_or(|state| state.lost) {
            // Others may remember transfers of an earlier life of the name, and would not take those numbers again. A
            // host that gives less than the whole each second stays below those of a later life.
            state.first_transfer = epoch.0 >> 32 << 32;
            state.next_transfer = state.first_transfer;
        }
        if state.cluster.is_none()
            && !state.lost
            && let Some(founded) = founded
        {
            state.cluster = Some(founded);
            let last_transfer = state.next_transfer;
            state.set_rights(&Kept { last_transfer, ..Kept::founder() });
            tracing::info!("this host has founded a cluster, and has all of its limits");
        }
        self.write(state)
    }

    /// The last run.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.state.as_ref().map(|state| state.epoch)
    }

    /// The cluster that this host belongs to.
    pub(super) fn cluster(&self) -> Option<ClusterId> {
        self.state.as_ref()?.cluster
    }

    /// Its rights.
    pub(super) fn rights(&self) -> Kept {
        self.state.as_ref().map(State::rights).unwrap_or_default()
    }

    /// Keeps that this host belongs to a cluster.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn join(&mut self, cluster: ClusterId) -> Result<(), Failure> {
        self.change(|state| (state.cluster, state.lost) = (Some(cluster), false))
    }

    /// Keeps rights.
    ///
    /// # Errors
    /// If they cannot be written; what was kept before is then.
    pub(super) fn keep(&mut self, rights: &Kept) -> Result<(), Failure> {
        self.change(|state| state.set_rights(rights))
    }

    /// Forgets the cluster, if this host has neither given rights to another one nor taken any: then nobody
    /// else has anything of it. Returns whether that was so.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn disband(&mut self) -> Result<bool, Failure> {
        let gave_none = |state: &State| state.next_transfer <= state.first_transfer.max(1);
        let alone = |state: &State| gave_none(state) && state.incoming.is_empty();
        if !self.state.as_ref().is_some_and(alone) {
            return Ok(false);
        }
        self.change(|state| {
            state.cluster = None;
            state.home = 0;
        })?;
        Ok(true)
    }

    fn change(&mut self, change: impl FnOnce(&mut State)) -> Result<(), Failure> {
        let Some(mut state) = self.state.clone() else { return Ok(()) };
        change(&mut state);
        self.write(state)
    }

    fn write(&mut self, state: State) -> Result<(), Failure> {
        if self.state.as_ref() != Some(&state) {
            write(&self.path, state.clone())?;
            self.state = Some(state);
        }
        Ok(())
    }
}

/// The home right that the host keeps in the state directory, whatever it is called: the most that is surely its
/// own before it has joined the others.
pub(super) fn home(directory: &Path) -> Result<Share, Failure> {
    let state = read(&directory.join(FILE))?;
    Ok(state.map_or(Share::NONE, |state| state.rights().home))
}

fn write(path: &Path, state: State) -> Result<(), Failure> {
    let check = state.check();
    write_json(path, &Content { state, check })
}

/// Reads the file. One that is damaged is set aside, and an empty one that tells so takes its place.
fn read(path: &Path) -> Result<Option<State>, Failure> {
    let name = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == ErrorKind::InvalidData => String::new(),
        Err(error) => {
            return Err(Failure::new(exit::PRIVILEGE, format!("cannot read {name}: {error}")));
        }
    };
    let problem = match serde_json::from_str::<Content>(&text) {
        Ok(Content { state, check }) if state.check() == check && state.version == VERSION => {
            return Ok(Some(state));
        }
        Ok(Content { state, .. }) if state.version > VERSION => {
            let message = format!("{name} was written by a later version");
            return Err(Failure::new(exit::USAGE, message).hint("run that version, or a later one"));
        }
        Ok(_) => "its checksum is wrong".to_owned(),
        Err(error) => error.to_string(),
    };
    let aside = path.with_extension("json.damaged");
    // Copied, and only then replaced: whenever this ends, no later start takes the host for a new one, which
    // would found a cluster and so give rights twice.
    let lost = State { lost: true, ..State::empty() };
    let copied =
        fs::copy(path, &aside).map_err(|error| Failure::new(exit::PRIVILEGE, error.to_string()));
    copied
        .and_then(|_| write(path, lost.clone()))
        .map_err(|failure| failure.context(format!("{name} is damaged and cannot be set aside")))?;
    tracing::error!(
        "{name} is damaged ({problem}), with a copy in {}: this host starts without rights of its own, those \
         that it had lie idle",
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

    #[test]
    fn what_is_kept_is_read_again() {
        let home = tempfile::tempdir().unwrap();
        let mut file = KeptFile::open(home.path(), "a").unwrap();
        assert_eq!((file.epoch(), file.cluster(), file.rights()), (None, None, Kept::default()));
        file.begin(epoch(5), Some(ClusterId(9))).unwrap();
        let last_transfer = 5 << 32;
        assert_eq!(file.rights(), Kept { last_transfer, ..Kept::founder() });
        let transfer = Transfer { number: 4, share: Share::of(0.25) };
        let kept = Kept {
            home: Share::of(0.75),
            last_transfer: last_transfer + 5,
            outgoing: vec![(HostId(2), transfer)],
            incoming: [(HostId(2), 3)].into(),
            clock: Moment(u64::MAX),
            far: false,
        };
        file.keep(&kept).unwrap();
        assert_eq!(super::home(home.path()).unwrap(), kept.home);
        let mut again = KeptFile::open(home.path(), "a").unwrap();
        assert_eq!((again.epoch(), again.cluster()), (Some(epoch(5)), Some(ClusterId(9))));
        assert_eq!(again.rights(), kept);
        let far = Kept { far: true, ..kept.clone() };
        again.keep(&far).unwrap();
        assert_eq!(KeptFile::open(home.path(), "a").unwrap().rights(), far);
        again.keep(&kept).unwrap();
        // What is not so is not written, as before there were regions.
        assert!(!fs::read_to_string(home.path().join(FILE)).unwrap().contains("far"));
        // Who belongs to a cluster founds no other one.
        again.begin(epoch(6), Some(ClusterId(10))).unwrap();
        assert_eq!((again.cluster(), again.rights()), (Some(ClusterId(9)), kept.clone()));
        assert!(!again.disband().unwrap());
    }

    #[test]
    fn who_has_rights_keeps_its_name() {
        let home = tempfile::tempdir().unwrap();
        let mut file = KeptFile::open(home.path(), "a").unwrap();
        file.begin(epoch(5), Some(ClusterId(9))).unwrap();
        let transfer = Transfer { number: 4, share: Share::of(0.25) };
        let kept = file.rights();
        for kept in [
            Kept { outgoing: vec![(HostId(2), transfer)], home: Share::NONE, ..kept.clone() },
            kept.clone(),
        ] {
            file.keep(&kept).unwrap();
            let again = KeptFile::open(home.path(), "b").unwrap();
            assert_eq!((again.name(), again.refused_name()), ("a", Some("b")));
            assert_eq!(KeptFile::open(home.path(), "a").unwrap().refused_name(), None);
        }
        // With nothing to be counted twice it may be called otherwise.
        file.keep(&Kept { home: Share::NONE, ..kept }).unwrap();
        let mut again = KeptFile::open(home.path(), "b").unwrap();
        assert_eq!((again.name(), again.refused_name()), ("b", None));
        again.begin(epoch(6), None).unwrap();
        again.keep(&Kept { home: Share::of(0.5), ..again.rights() }).unwrap();
        assert_eq!(KeptFile::open(home.path(), "a").unwrap().name(), "b");
    }

    #[test]
    fn a_new_disk_numbers_transfers_above_those_before() {
        let numbers = |second| {
            let home = tempfile::tempdir().unwrap();
            let mut file = KeptFile::open(home.path(), "a").unwrap();
            file.begin(epoch(second), None).unwrap();
            file.join(ClusterId(9)).unwrap();
            let first = file.rights().last_transfer;
            // A later run goes on where the one before was, and has given nothing.
            let mut file = KeptFile::open(home.path(), "a").unwrap();
            file.begin(epoch(second + 100), None).unwrap();
            assert_eq!(file.rights().last_transfer, first);
            assert!(file.disband().unwrap());
            first
        };
        // Half of the whole was given each second.
        assert!(numbers(1_800_000_000) + 50 * Share::WHOLE.units() < numbers(1_800_000_100));
    }

    #[test]
    fn a_joiner_has_nothing_and_a_founder_that_was_alone_can_join_others() {
        let home = tempfile::tempdir().unwrap();
        let mut file = KeptFile::open(home.path(), "a").unwrap();
        file.begin(epoch(5), Some(ClusterId(9))).unwrap();
        assert!(file.disband().unwrap());
        file.begin(epoch(6), None).unwrap();
        assert_eq!((file.cluster(), file.rights().home), (None, Share::NONE));
        file.join(ClusterId(3)).unwrap();
        let file = KeptFile::open(home.path(), "a").unwrap();
        assert_eq!((file.cluster(), file.rights().home), (Some(ClusterId(3)), Share::NONE));
    }

    #[test]
    fn a_damaged_file_gives_nothing_and_is_set_aside() {
        for damage in ["", "{", "home\":4294967296", "\u{fffd}"] {
            let home = tempfile::tempdir().unwrap();
            let mut file = KeptFile::open(home.path(), "a").unwrap();
            file.begin(epoch(5), Some(ClusterId(9))).unwrap();
            file.keep(&Kept { home: Share::of(0.5), ..Kept::founder() }).unwrap();
            let path = home.path().join(FILE);
            let text = fs::read_to_string(&path).unwrap();
            let text = match damage {
                "home\":4294967296" => text.replace("home\":2147483648", damage),
                damage => damage.to_owned(),
            };
            fs::write(&path, text).unwrap();
            // Whoever reads it first: it may have founded a cluster, whose limits others have now.
            assert_eq!(super::home(home.path()).unwrap(), Share::NONE);
            let mut file = KeptFile::open(home.path(), "a").unwrap();
            assert_eq!(file.epoch(), Some(Epoch(0)));
            file.begin(epoch(6), Some(ClusterId(10))).unwrap();
            let mut file = KeptFile::open(home.path(), "a").unwrap();
            file.begin(epoch(7), Some(ClusterId(11))).unwrap();
            assert_eq!((file.cluster(), file.rights().home), (None, Share::NONE));
            assert!(path.exists() && path.with_extension("json.damaged").exists());
            file.join(ClusterId(9)).unwrap();
        }
    }
}
