//! A configuration that was read and not confirmed.
//!
//! It is noted in the store with the one before it, before it is put in force. While the note is there, a daemon
//! that starts and finds the file as it was refused goes on with what was in force before: after a
//! crash while it waited to be confirmed as well as after it was reverted. A file that has been changed
//! since then is taken, and so is any by `limiter reload`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::confirm::note;
use super::core::Core;
use api::ReloadReport;
use api::error::Failure;
use api::requests::ChangeOptions;
use settings::{Arguments, ConfigFile, Settings};
use state::Store;

/// Its name among the store's notes.
const NOTE: &str = "refused";

/// A file that was not confirmed, and the one before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Refused {
    file: PathBuf,
    /// Its text.
    tried: String,
    /// The text before; nothing if there was no file.
    former: Option<String>,
}

impl Refused {
    /// What there would be to record if `tried` took the place of `former`; nothing without a file.
    fn new(tried: &ConfigFile, former: &ConfigFile) -> Option<Self> {
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
pub(super) struct Start {
    /// What is in effect.
    pub(super) settings: Settings,
    /// The file that is not, though it is there.
    pub(super) refused: Option<Refused>,
    /// What is wrong with the note.
    pub(super) damaged: Option<String>,
}

/// Takes what was in force before in the place of `settings` if their file was refused.
///
/// # Errors
/// If the note cannot be read, or removed when it does not matter any more.
pub(super) fn at_start(
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

impl Core {
    /// The file that is not in force, because it was not confirmed.
    pub(super) fn refused_file(&self) -> Option<String> {
        if self.unconfirmed.is_reload() {
            return None;
        }
        self.file.refused.as_ref().map(|refused| refused.file.display().to_string())
    }

    /// Notes that the file has been accepted.
    ///
    /// # Errors
    /// If that cannot be noted; then it is as it was before.
    pub(super) fn accept_file(&mut self) -> Result<(), Failure> {
        if self.file.refused.is_some() {
            self.store.set_note(NOTE, None)?;
            self.file.refused = None;
        }
        Ok(())
    }

    fn record(&mut self, refused: Option<Refused>) -> Result<(), Failure> {
        let Some(refused) = refused else { return self.accept_file() };
        note(&mut self.store, NOTE, &refused)?;
        self.file.refused = Some(refused);
        Ok(())
    }

    /// Puts what was read in force, as `how` says.
    pub(super) fn take_as(
        &mut self,
        settings: Settings,
        how: &ChangeOptions,
    ) -> Result<ReloadReport, Failure> {
        let before = self.file.refused.clone();
        let former = self.taken()?.clone();
        let period = how.confirm.filter(|_| self.would_change(&settings));
        let record = period.and_then(|_| Refused::new(&settings.file, &former.file));
        self.record(record)?;
        let warnings = self.reload_warnings(&settings, how);
        let mut report = match self.take_settings(settings) {
            Ok(report) => ReloadReport { warnings, ..report },
            Err(failure) => {
                if let Err(left) = self.record(before) {
                    tracing::error!("cannot undo what was recorded of a reload: {left}");
                }
                return Err(failure);
            }
        };
        if let Some(period) = period {
            let file = report.file.as_deref().unwrap_or("no file");
            let what = format!("reload of {file}");
            self.reloaded_until_confirmed(what, former, report.count(), period);
            report.confirm = self.unconfirmed.report();
        }
        Ok(report)
    }
}
