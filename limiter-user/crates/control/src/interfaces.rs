//! The interfaces of the configuration: each is attached to as soon as it is there, which is before it is up
//! where it comes late. One that cannot be leaves no other unprotected.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{MissedTickBehavior, interval};

use super::Shared;
use super::core::Core;
use super::services::RETRY_INTERVAL;
use api::error::Failure;
use dataplane::{Error, LinkEvents};
use model::interface::Mode;

/// Why an interface is not attached to.
struct Problem {
    /// Whether there is no such interface.
    missing: bool,
    failure: Failure,
}

/// What is to be attached to until it is detached, and how.
#[derive(Default)]
pub(super) struct Wanted {
    mode: Option<Mode>,
    replace: bool,
    /// By name, with what is wrong at present.
    interfaces: BTreeMap<String, Option<Problem>>,
}

impl Wanted {
    pub(super) fn new(names: &[String], mode: Mode, replace: bool) -> Self {
        let interfaces = names.iter().map(|name| (name.clone(), None)).collect();
        Self { mode: Some(mode), replace, interfaces }
    }

    /// It was attached to.
    pub(super) fn attached(&mut self, name: &str) {
        if let Some(problem) = self.interfaces.get_mut(name) {
            *problem = None;
        }
    }

    /// It was detached from, and stays so.
    pub(super) fn forget(&mut self, name: &str) {
        self.interfaces.remove(name);
    }

    /// Those that are not attached to, and why.
    pub(super) fn problems(&self) -> impl Iterator<Item = (&str, &Failure)> {
        self.interfaces.iter().filter_map(|(name, problem)| {
            problem.as_ref().map(|problem| (name.as_str(), &problem.failure))
        })
    }

    /// The first failure, if all are there and none can be attached to.
    fn refused(&self) -> Option<Failure> {
        let all: Option<Vec<_>> = self.interfaces.values().map(Option::as_ref).collect();
        let all = all?;
        let first = all.first()?;
        (!all.iter().any(|problem| problem.missing)).then(|| first.failure.clone())
    }

    /// Notes what is wrong, and logs it where that is news.
    fn note(&mut self, name: &str, error: Error) {
        let missing = matches!(error, Error::UnknownInterface { .. });
        let failure = Failure::from(error);
        let Some(noted) = self.interfaces.get_mut(name) else { return };
        if noted.as_ref().is_none_or(|former| former.failure.message != failure.message) {
            let hint = failure.hint.as_deref().unwrap_or_default();
            tracing::warn!("{name} is not protected: {failure} ({hint}); trying again");
        }
        *noted = Some(Problem { missing, failure });
    }
}

impl Core {
    /// Attaches to all interfaces that are wanted, as far as that can be done now.
    pub(super) fn attach_wanted(&mut self) {
        let Some(mode) = self.wanted.mode else { return };
        let attached = self.attached();
        let names = self.wanted.interfaces.keys().filter(|name| !attached.contains(name));
        for name in names.cloned().collect::<Vec<_>>() {
            match self.plane.attach(&name, mode, self.wanted.replace) {
                Ok(attachment) => {
                    tracing::info!("attached to {name} in {} mode", attachment.mode.name());
                    self.now_attached(&attachment);
                }
                Err(error) => self.wanted.note(&name, error),
            }
        }
    }

    /// As [`Core::attach_wanted`], at the start.
    ///
    /// # Errors
    /// If one is attached to already in another mode. Or if nothing at all is protected, and nothing will be before
    /// somebody does something about it.
    pub(super) fn attach_at_start(&mut self, wanted: Wanted) -> Result<(), Failure> {
        self.wanted = wanted;
        let attached = self.attached();
        if let Some(mode) = self.wanted.mode {
            let again = self.wanted.interfaces.keys().filter(|name| attached.contains(name));
            for name in again {
                self.plane.attach(name, mode, self.wanted.replace)?;
            }
        }
        self.attach_wanted();
        match self.wanted.refused() {
            Some(failure) if self.attached().is_empty() => Err(failure),
            _ => Ok(()),
        }
    }
}

/// Attaches to what is wanted as soon as it is there.
pub(super) async fn watch(
    events: Option<LinkEvents>,
    wanted: &[String],
    shared: &Shared,
) -> Failure {
    // SAFETY: the descriptor is that of the socket, which the events own: it stays the same and open until they are
    // dropped, which nobody does before their AsyncFd.
    let register = |events| unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) };
    let events = events.and_then(|events| register(events).ok());
    let wanted: BTreeSet<_> = wanted.iter().cloned().collect();
    let mut again = interval(RETRY_INTERVAL);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let changed = tokio::select! {
            names = next(events.as_ref()) => {
                // Of machines with containers there may be many, of which none is wanted.
                if names.is_some_and(|names| names.is_disjoint(&wanted)) {
                    continue;
                }
                true
            }
            // What another program is on, for instance, may be free by and by.
            _ = again.tick() => false,
        };
        let attached = shared.with(move |core| {
            if changed || core.wanted.problems().next().is_some() {
                core.attach_wanted();
            }
            Ok(())
        });
        if let Err(failure) = attached.await {
            return failure;
        }
    }
}

/// The interfaces that something has happened to; nothing if that is not known.
async fn next(events: Option<&AsyncFd<LinkEvents>>) -> Option<BTreeSet<String>> {
    let Some(events) = events else { return pending().await };
    loop {
        let Ok(mut ready) = events.readable().await else { return pending().await };
        match ready.try_io(|events| events.get_ref().read()) {
            Ok(Ok(names)) => return Some(names),
            // More came than there was room for.
            Ok(Err(_)) => return None,
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use api::Health;

    fn wanted(names: &[&str]) -> Wanted {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        Wanted::new(&names, Mode::Native, false)
    }

    #[test]
    fn a_missing_interface_leaves_no_other_unprotected() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.state().interfaces = vec!["eth0".into()];
        let mut core = fake.core(&directory);
        core.attach_at_start(wanted(&["eth9", "eth0"])).unwrap();
        assert_eq!(core.attached(), ["eth0"]);
        let status = core.status().unwrap();
        assert_eq!(status.state, Health::Degraded);
        let told = "eth9 is not protected: no interface is called eth9; there are: eth0";
        assert!(status.warnings.iter().any(|it| it.starts_with(told)), "{:?}", status.warnings);
        fake.state().interfaces.push("eth9".into());
        core.attach_wanted();
        assert_eq!(core.attached(), ["eth0", "eth9"]);
        assert_eq!(core.status().unwrap().state, Health::Ok);
        core.attach_wanted();
        assert_eq!(core.attached().len(), 2, "once is enough");
    }

    #[test]
    fn an_interface_that_goes_is_attached_to_again_and_one_that_was_detached_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.state().interfaces = vec!["eth0".into(), "eth1".into()];
        let mut core = fake.core(&directory);
        core.attach_at_start(wanted(&["eth0", "eth1"])).unwrap();
        core.detach("eth1").unwrap();
        fake.state().attached.clear();
        fake.state().interfaces.remove(0);
        core.attach_wanted();
        assert!(core.attached().is_empty());
        assert_eq!(core.wanted.problems().map(|(name, _)| name).collect::<Vec<_>>(), ["eth0"]);
        fake.state().interfaces.push("eth0".into());
        core.attach_wanted();
        assert_eq!(core.attached(), ["eth0"]);
    }

    #[test]
    fn a_start_is_refused_where_nothing_can_be_protected() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.state().interfaces = vec!["eth0".into(), "eth1".into()];
        fake.state().taken = vec!["eth0".into()];
        let mut core = fake.core(&directory);
        let failure = core.attach_at_start(wanted(&["eth0"])).unwrap_err();
        assert!(failure.hint.is_some_and(|hint| hint.contains("--replace")));
        core.attach_at_start(wanted(&["eth0", "eth9"])).unwrap();
        core.attach_at_start(wanted(&["eth0", "eth1"])).unwrap();
        assert_eq!(core.attached(), ["eth1"]);
        fake.state().taken.clear();
        core.attach_wanted();
        assert_eq!(core.attached(), ["eth1", "eth0"]);
        // Nothing is wanted, and so nothing can be missing.
        core.attach_at_start(wanted(&[])).unwrap();
        // It is never in another mode than the one that was asked for.
        let generic = Wanted::new(&["eth0".into(), "eth9".into()], Mode::Generic, false);
        assert!(core.attach_at_start(generic).unwrap_err().message.contains("native mode"));
    }
}
