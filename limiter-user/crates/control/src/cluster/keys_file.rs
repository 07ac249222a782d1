//! The file with the keys that hosts have agreed on, in the state directory.
//!
//! The key file of the configuration is where it begins. It is never written to: it may lie where the daemon
//! cannot write. What came of it by rotations is kept here, in the form of a key file, so that it can be copied to
//! the key file of a host that was away. A key file that was changed since then is the operator's word,
//! and it begins anew from there.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use siphasher::sip::SipHasher24;

use super::key_file;
use api::error::{Failure, exit};
use cluster::rotation::{Id, KeyState};
use cluster::wire::KeyBytes;
use model::rotation::Stage;

const FILE: &str = "cluster.keys";

/// What the line begins with that tells more than the keys.
// A comment for whoever reads key files, so the same file serves as one.
const LINE: &str = "# rotation ";

/// The keys of a key file.
type Keys = (KeyBytes, Option<KeyBytes>);

/// The file.
#[derive(Debug)]
pub(super) struct KeysFile {
    path: PathBuf,
    /// A hash of the keys that the configuration's key file had.
    // A hash and not the keys: an old key that was replaced for good should lie nowhere.
    source: u64,
    /// What is in it.
    written: Option<KeyState>,
}

fn hash((one, other): &Keys) -> u64 {
    let all: Vec<u8> = one.iter().chain(other.iter().flatten()).copied().collect();
    // Without a secret key: it only finds out whether the file was changed, and the keys are
    // random.
    SipHasher24::new().hash(&all)
}

impl KeysFile {
    /// Reads it; there may be none yet. `keys` are those of the configuration's key file. Returns the keys that are
    /// to be used.
    ///
    /// # Errors
    /// If it cannot be read, is open to others, or has something else in it.
    pub(super) fn open(directory: &Path, keys: Keys) -> Result<(Self, KeyState), Failure> {
        let path = directory.join(FILE);
        let source = hash(&keys);
        let file = |written| Self { path: path.clone(), source, written };
        // Not `exists`: a dangling link or a folder without rights is an error, and no fresh
        // start.
        if matches!(fs::symlink_metadata(&path), Err(error) if error.kind() == ErrorKind::NotFound)
        {
            return Ok((file(None), KeyState::new(keys)));
        }
        let name = path.display();
        let hint = format!(
            "give key_file of [cluster] the key that the other hosts have now, and remove {name}"
        );
        let (stored, text) =
            key_file::read_with_text(&path).map_err(|failure| failure.hint(hint.clone()))?;
        let Some((kept, from)) = parse(stored, &text) else {
            let message = format!("{name} does not tell how far the change of keys is");
            return Err(Failure::new(exit::USAGE, message).hint(hint));
        };
        if from == source || keys == (kept.sealing, None) {
            return Ok((file(Some(kept.clone())), kept));
        }
        tracing::warn!(
            "the key file was changed: its key is used from now on, not the one that hosts agreed on before"
        );
        Ok((file(None), KeyState::new(keys)))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps keys, all of it or nothing.
    ///
    /// # Errors
    /// If they cannot be written; what was kept before is then.
    pub(super) fn write(&mut self, kept: &KeyState) -> Result<(), Failure> {
        // A host that has never changed keys needs no file.
        // A file with the same keys would look like a second source of truth to the operator.
        let first = self.written.is_none() && *kept == KeyState::new((kept.sealing, kept.accepted));
        if self.written.as_ref() == Some(kept) || first {
            return Ok(());
        }
        // By a rename: half a file after a crash would shut this host out of its cluster.
        key_file::put(&self.path, &self.text(kept), true).map_err(|error| {
            let message = format!("cannot write {}: {error}", self.path.display());
            Failure::new(exit::PRIVILEGE, message)
                .hint("the change of keys goes on as soon as it can be written")
        })?;
        self.written = Some(kept.clone());
        Ok(())
    }

    fn text(&self, kept: &KeyState) -> String {
        // Both cases in one form, so that the line always has the same words.
        let (id, stage) = kept.rotation.unwrap_or((kept.last, Stage::Forgotten));
        let mut text = format!(
            "# The keys of the cluster, as its hosts have agreed on them. To let in a host that was away, copy\n\
             # this to its key file, with the same rights.\n\
             {LINE}{} {:016x} {} last {} {:016x} others {} from {:016x}\n{}\n",
            id.number,
            id.tag,
            stage as u8,
            kept.last.number,
            kept.last.tag,
            u8::from(kept.others),
            self.source,
            // The sealing key comes first, as in each key file.
            key_file::encode(&kept.sealing),
        );
        if let Some(accepted) = &kept.accepted {
            text.push_str(&key_file::encode(accepted));
            text.push('\n');
        }
        text
    }
}

/// What the text says besides its keys: how far the host is, and of which key file.
fn parse((sealing, accepted): Keys, text: &str) -> Option<(KeyState, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix(LINE))?;
    let words: Vec<&str> = line.split(' ').collect();
    // All words or nothing: a cut line must not pass for an earlier stage.
    let &[number, tag, stage, "last", last, last_tag, "others", others, "from", from] = &words[..]
    else {
        return None;
    };
    let hex = |word| u64::from_str_radix(word, 16).ok();
    let id = Id { number: number.parse().ok()?, tag: hex(tag)? };
    let last = Id { number: last.parse().ok()?, tag: hex(last_tag)? };
    let stage = Stage::from_number(stage.parse().ok()?)?;
    // The last stage says that nothing is under way any more.
    let rotation = (stage != Stage::Forgotten).then_some((id, stage));
    // Who accepts a key that it is to use has it.
    if rotation.is_some_and(|(_, stage)| stage == Stage::Accepted) && accepted.is_none() {
        return None;
    }
    Some((KeyState { last, sealing, accepted, rotation, others: others == "1" }, hex(from)?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const OLD: KeyBytes = [1; 32];
    const NEW: KeyBytes = [2; 32];

    fn under_way(stage: Stage) -> KeyState {
        let id = Id { number: 8, tag: u64::MAX };
        let last = Id { number: 7, tag: 3 };
        let (sealing, accepted) = if stage == Stage::Using { (NEW, OLD) } else { (OLD, NEW) };
        KeyState {
            last,
            sealing,
            accepted: Some(accepted),
            rotation: Some((id, stage)),
            others: true,
        }
    }

    #[test]
    fn what_is_kept_is_read_again_at_every_stage() {
        let home = tempfile::tempdir().unwrap();
        let (mut file, first) = KeysFile::open(home.path(), (OLD, None)).unwrap();
        file.write(&first).unwrap();
        assert!(!file.path().exists(), "it says nothing that the key file does not");
        let done = KeyState { last: Id { number: 8, tag: 1 }, ..KeyState::new((NEW, None)) };
        for kept in [under_way(Stage::Accepted), under_way(Stage::Using), done] {
            file.write(&kept).unwrap();
            let mode = fs::metadata(file.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let (again, read) = KeysFile::open(home.path(), (OLD, None)).unwrap();
            assert_eq!((read, again.written), (kept.clone(), Some(kept.clone())));
            // It is a key file as well.
            let keys = key_file::read(file.path()).unwrap();
            assert_eq!(keys, (kept.sealing, kept.accepted));
        }
        // The operator has put the new key into the key file, too.
        let (_, read) = KeysFile::open(home.path(), (NEW, None)).unwrap();
        assert_eq!(read.last.number, 8);
    }

    #[test]
    fn another_key_file_is_the_operators_word() {
        let home = tempfile::tempdir().unwrap();
        let (mut file, _) = KeysFile::open(home.path(), (OLD, None)).unwrap();
        file.write(&under_way(Stage::Using)).unwrap();
        let (mut file, read) = KeysFile::open(home.path(), ([3; 32], None)).unwrap();
        assert_eq!(read, KeyState::new(([3; 32], None)));
        let done = KeyState { last: Id { number: 9, tag: 1 }, ..KeyState::new((NEW, None)) };
        file.write(&done).unwrap();
        assert_eq!(KeysFile::open(home.path(), ([3; 32], None)).unwrap().1, done);
    }

    #[test]
    fn what_is_damaged_or_open_to_others_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let (mut file, _) = KeysFile::open(home.path(), (OLD, None)).unwrap();
        file.write(&under_way(Stage::Accepted)).unwrap();
        let good = fs::read_to_string(file.path()).unwrap();
        let second = good.lines().next_back().unwrap();
        for bad in [
            good.replace("last", "lost"),
            good.replace("# rotation 8", "# rotation x"),
            good.replace(second, ""),
            good.replace(" 1 last", " 4 last"),
            String::new(),
        ] {
            fs::write(file.path(), bad).unwrap();
            let failure = KeysFile::open(home.path(), (OLD, None)).unwrap_err();
            assert!(failure.hint.unwrap().contains("key_file of [cluster]"));
        }
        fs::write(file.path(), good).unwrap();
        KeysFile::open(home.path(), (OLD, None)).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(KeysFile::open(home.path(), (OLD, None)).is_err());
    }
}
