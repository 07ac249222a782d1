//! The interfaces of the configuration, and those that somebody has attached to: each is attached to as soon as it is
//! there, which is before it is up where it comes late or comes back. One that cannot be leaves no other unprotected.

use std::collections::{BTreeMap, BTreeSet};

use super::plane::attached;
use super::rules::Rules;
use api::error::Failure;
use api::{AttachReport, DetachReport};
use dataplane::Error;
use model::interface::{Attachment, Mode};
use telemetry::What;

/// Why an interface is not attached to.
struct Problem {
    /// Whether there is no such interface.
    missing: bool,
    failure: Failure,
}

/// How an interface is to be attached to.
struct Wanted {
    mode: Mode,
    replace: bool,
    /// What is wrong at present.
    problem: Option<Problem>,
}

/// What is to be attached to until it is detached.
#[derive(Default)]
pub struct Interfaces {
    by_name: BTreeMap<String, Wanted>,
}

impl Interfaces {
    pub(super) fn new(names: &[String], mode: Mode, replace: bool) -> Self {
        let wanted = |name: &String| (name.clone(), Wanted { mode, replace, problem: None });
        Self { by_name: names.iter().map(wanted).collect() }
    }

    /// Whether one of these is to be attached to.
    pub(super) fn wants(&self, names: &BTreeSet<String>) -> bool {
        names.iter().any(|name| self.by_name.contains_key(name))
    }

    /// Attaches to an interface.
    ///
    /// # Errors
    /// As [`dataplane::Dataplane::attach`].
    pub fn attach(
        &mut self,
        rules: &mut Rules,
        interface: &str,
        mode: Mode,
        replace: bool,
    ) -> Result<AttachReport, Failure> {
        let attachment = rules.plane.attach(interface, mode, replace)?;
        self.by_name.insert(interface.into(), Wanted { mode, replace, problem: None });
        self.attached(rules, &attachment);
        Ok(AttachReport { interface: attachment })
    }

    /// Notes and tells that an interface is attached to.
    fn attached(&mut self, rules: &mut Rules, attachment: &Attachment) {
        if let Some(wanted) = self.by_name.get_mut(&attachment.name) {
            wanted.problem = None;
        }
        let (interface, mode) = (attachment.name.clone(), attachment.mode.name().to_owned());
        let by = rules.events.by.clone();
        rules.events.tell(What::Attached { interface, mode, by });
    }

    /// Detaches from an interface, which stays so. Of one that is not there, nothing is wanted any more.
    ///
    /// # Errors
    /// As [`dataplane::Attachments::detach`].
    pub fn detach(&mut self, rules: &mut Rules, interface: &str) -> Result<DetachReport, Failure> {
        match rules.plane.detach(interface) {
            Err(Error::UnknownInterface { .. } | Error::NotAttached { .. })
                if self.by_name.contains_key(interface) => {}
            detached => detached?,
        }
        self.by_name.remove(interface);
        let by = rules.events.by.clone();
        rules.events.tell(What::Detached { interface: interface.into(), by });
        Ok(DetachReport { detached: interface.into() })
    }

    /// Attaches to all interfaces that are wanted, as far as that can be done now.
    pub(super) fn attach_wanted(&mut self, rules: &mut Rules) {
        let attached = attached(&*rules.plane);
        let missing = self.by_name.iter().filter(|(name, _)| !attached.contains(name));
        let missing = missing.map(|(name, wanted)| (name.clone(), wanted.mode, wanted.replace));
        for (name, mode, replace) in missing.collect::<Vec<_>>() {
            match rules.plane.attach(&name, mode, replace) {
                Ok(attachment) => {
                    tracing::info!("attached to {name} in {} mode", attachment.mode.name());
                    self.attached(rules, &attachment);
                }
                Err(error) => self.note(&name, error),
            }
        }
    }

    /// As [`Interfaces::attach_wanted`], at the start.
    ///
    /// # Errors
    /// If one is attached to already in another mode. Or if nothing at all is protected, and nothing will be before
    /// somebody does something about it.
    pub(super) fn attach_at_start(&mut self, rules: &mut Rules) -> Result<(), Failure> {
        for Attachment { name, mode, .. } in rules.plane.attachments() {
            match self.by_name.get(&name) {
                Some(wanted) => drop(rules.plane.attach(&name, wanted.mode, wanted.replace)?),
                // Somebody has attached to it under a former daemon.
                None => {
                    let wanted = Wanted { mode, replace: false, problem: None };
                    self.by_name.insert(name, wanted);
                }
            }
        }
        self.attach_wanted(rules);
        match self.refused() {
            Some(failure) if attached(&*rules.plane).is_empty() => Err(failure),
            _ => Ok(()),
        }
    }

    /// Those that are not attached to, and why.
    pub(super) fn problems(&self) -> impl Iterator<Item = (&str, &Failure)> {
        self.by_name.iter().filter_map(|(name, wanted)| {
            wanted.problem.as_ref().map(|problem| (name.as_str(), &problem.failure))
        })
    }

    /// The first failure, if all are there and none can be attached to.
    fn refused(&self) -> Option<Failure> {
        let all: Option<Vec<_>> = self.by_name.values().map(|it| it.problem.as_ref()).collect();
        let all = all?;
        let first = all.first()?;
        (!all.iter().any(|problem| problem.missing)).then(|| first.failure.clone())
    }

    /// Notes what is wrong, and logs it where that is news.
    fn note(&mut self, name: &str, error: Error) {
        let missing = matches!(error, Error::UnknownInterface { .. });
        let failure = Failure::from(error);
        let Some(Wanted { problem, .. }) = self.by_name.get_mut(name) else { return };
        if problem.as_ref().is_none_or(|former| former.failure.message != failure.message) {
            let hint = failure.hint.as_deref().unwrap_or_default();
            tracing::warn!("{name} is not protected: {failure} ({hint}); trying again");
        }
        *problem = Some(Problem { missing, failure });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Core;
    use crate::fake::Fake;
    use api::Health;

    /// Attaches to what is wanted, as a daemon that starts.
    fn start(core: &mut Core, wanted: Interfaces) -> Result<(), Failure> {
        core.interfaces = wanted;
        core.interfaces.attach_at_start(&mut core.rules)
    }

    fn wanted(names: &[&str]) -> Interfaces {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        Interfaces::new(&names, Mode::Native, false)
    }

    #[test]
    fn a_missing_interface_leaves_no_other_unprotected() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.state().interfaces = vec!["eth0".into()];
        let mut core = fake.core(&directory);
        start(&mut core, wanted(&["eth9", "eth0"])).unwrap();
        assert_eq!(core.attached(), ["eth0"]);
        let status = core.status().unwrap();
        assert_eq!(status.state, Health::Degraded);
        let told = "eth9 is not protected: no interface is called eth9; there are: eth0";
        assert!(status.warnings.iter().any(|it| it.starts_with(told)), "{:?}", status.warnings);
        fake.state().interfaces.push("eth9".into());
        core.interfaces.attach_wanted(&mut core.rules);
        assert_eq!(core.attached(), ["eth0", "eth9"]);
        assert_eq!(core.status().unwrap().state, Health::Ok);
        core.interfaces.attach_wanted(&mut core.rules);
        assert_eq!(core.attached().len(), 2, "once is enough");
    }

    #[test]
    fn an_interface_that_goes_is_attached_to_again_and_one_that_was_detached_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.state().interfaces = vec!["eth0".into(), "eth1".into()];
        let mut core = fake.core(&directory);
        start(&mut core, wanted(&["eth0", "eth1"])).unwrap();
        core.interfaces.detach(&mut core.rules, "eth1").unwrap();
        fake.state().attached.clear();
        fake.state().interfaces.remove(0);
        core.interfaces.attach_wanted(&mut core.rules);
        assert!(core.attached().is_empty());
        assert_eq!(core.interfaces.problems().map(|(name, _)| name).collect::<Vec<_>>(), ["eth0"]);
        fake.state().interfaces.push("eth0".into());
        core.interfaces.attach_wanted(&mut core.rules);
        assert_eq!(core.attached(), ["eth0"]);
    }

    #[test]
    fn what_somebody_has_attached_to_is_attached_to_again_when_it_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.state().interfaces = vec!["eth0".into()];
        let mut core = fake.core(&directory);
        start(&mut core, wanted(&[])).unwrap();
        core.interfaces.attach(&mut core.rules, "eth0", Mode::Generic, false).unwrap();
        let goes = |core: &mut Core| {
            fake.state().attached.clear();
            fake.state().interfaces.clear();
            core.interfaces.attach_wanted(&mut core.rules);
        };
        let returns = |core: &mut Core| {
            fake.state().interfaces.push("eth0".into());
            core.interfaces.attach_wanted(&mut core.rules);
            core.rules.plane.attachments().into_iter().map(|it| it.mode).collect::<Vec<_>>()
        };
        goes(&mut core);
        assert_eq!(returns(&mut core), [Mode::Generic]);
        // A daemon that takes it over has only its link to tell of it.
        start(&mut core, wanted(&[])).unwrap();
        goes(&mut core);
        assert_eq!(core.interfaces.problems().count(), 1);
        assert_eq!(returns(&mut core), [Mode::Generic]);
        goes(&mut core);
        core.interfaces.detach(&mut core.rules, "eth0").unwrap();
        assert!(returns(&mut core).is_empty());
        core.interfaces.detach(&mut core.rules, "eth0").unwrap_err();
    }

    #[test]
    fn a_start_is_refused_where_nothing_can_be_protected() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.state().interfaces = vec!["eth0".into(), "eth1".into()];
        fake.state().taken = vec!["eth0".into()];
        let mut core = fake.core(&directory);
        let failure = start(&mut core, wanted(&["eth0"])).unwrap_err();
        assert!(failure.hint.is_some_and(|hint| hint.contains("--replace")));
        start(&mut core, wanted(&["eth0", "eth9"])).unwrap();
        start(&mut core, wanted(&["eth0", "eth1"])).unwrap();
        assert_eq!(core.attached(), ["eth1"]);
        fake.state().taken.clear();
        core.interfaces.attach_wanted(&mut core.rules);
        assert_eq!(core.attached(), ["eth1", "eth0"]);
        // Nothing is wanted, and so nothing can be missing.
        start(&mut core, wanted(&[])).unwrap();
        // It is never in another mode than the one that was asked for.
        let generic = Interfaces::new(&["eth0".into(), "eth9".into()], Mode::Generic, false);
        assert!(start(&mut core, generic).unwrap_err().message.contains("native mode"));
    }
}
