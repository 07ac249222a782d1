//! A configuration that was read and not confirmed.
//!
//! It is noted in the store with the one before it, before it is put in force. While the note is there, a daemon
//! that starts and finds the file as it was refused goes on with what was in force before: after a
//! crash while it waited to be confirmed as well as after it was reverted. A file that has been changed
//! since then is taken, and so is any by `limiter reload`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Rules;
use super::confirm::note;
use api::error::Failure;
use settings::{Arguments, ConfigFile, Settings};
use state::Store;

/// Its name among the store's notes.
const NOTE: &str = "refused";

/// A file that was not confirmed, and the one before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Refused {
    pub(super) file: PathBuf,
    /// Its text.
    tried: String,
    /// The text before; nothing if there was no file.
    former: Option<String>,
}

impl Refused {
    /// What there would be to record if `tried` took the place of `former`; nothing without a file.
    pub(super) fn new(tried: &ConfigFile, former: &ConfigFile) -> Option<Self> {
        Some(Self {
            file: tried.path.clone()?,
            tried: tried.source_text().to_owned(),
            former: former.path.as_ref().map(|_| former.source_text().to_owned()),
        })
    }

    /// The configuration before it.
    fn former(&self, given: &Arguments) -> Result<Settings, Failure> {
        given.with(match &self.former {
            Some(text) => ConfigFile::parse(&self.file, text.as_bytes())?,
            None => ConfigFile::default(),
        })
    }
}

/// What a daemon starts with.
pub(crate) struct Start {
    /// What is in effect.
    pub(crate) settings: Settings,
    /// The file that is not, though it is there.
    pub(crate) refused: Option<Refused>,
    /// What is wrong with the note.
    pub(crate) damaged: Option<String>,
}

/// Takes what was in force before in the place of `settings` if their file was refused.
///
/// # Errors
/// If the note cannot be read, or removed when it does not matter any more.
pub(crate) fn at_start(
    given: &Arguments,
    settings: Settings,
    store: &mut Store,
) -> Result<Start, Failure> {
    let mut start = Start { settings, refused: None, damaged: None };
    let Some(text) = store.note(NOTE)? else { return Ok(start) };
    let read = serde_json::from_str::<Refused>(&text).map_err(|error| error.to_string());
    let file = &start.settings.file;
    let former = match read {
        Ok(refused) if file.source_text() != refused.tried => None,
        Ok(refused) => Some(match refused.former(given) {
            Ok(settings) => Ok((settings, refused)),
            Err(failure) => Err(failure.to_string()),
        }),
        Err(problem) => Some(Err(problem)),
    };
    match former {
        None => store.set_note(NOTE, None)?,
        Some(Ok((settings, refused))) => {
            tracing::warn!(
                "{} was not confirmed: going on with what was in force before",
                refused.file.display()
            );
            start = Start { settings, refused: Some(refused), damaged: None };
        }
        Some(Err(problem)) => {
            let problem = format!(
                "a configuration that was not confirmed may be in force, what is noted of it cannot be used: {problem}"
            );
            tracing::error!("{problem}");
            store.set_note(NOTE, None)?;
            start.damaged = Some(problem);
        }
    }
    Ok(start)
}

/// Notes that the file has been accepted.
///
/// # Errors
/// If that cannot be noted; then it is as it was before.
pub(super) fn accept_file(rules: &mut Rules) -> Result<(), Failure> {
    if rules.file.refused.is_some() {
        rules.store.set_note(NOTE, None)?;
        rules.file.refused = None;
    }
    Ok(())
}

/// Notes which file is not in force, if any, before that is so.
///
/// # Errors
/// As [`accept_file`].
pub(super) fn record(rules: &mut Rules, refused: Option<Refused>) -> Result<(), Failure> {
    let Some(refused) = refused else { return accept_file(rules) };
    note(&mut rules.store, NOTE, &refused)?;
    rules.file.refused = Some(refused);
    Ok(())
}
