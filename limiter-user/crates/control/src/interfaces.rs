//! The interfaces of the configuration: each is attached to as soon as it is there, which is before it is up
//! where it comes late. One that cannot be leaves no other unprotected.

use std::collections::BTreeMap;

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

/// What is to be attached to until it is detached, and how.
#[derive(Default)]
pub struct Interfaces {
    mode: Option<Mode>,
    replace: bool,
    /// By name, with what is wrong at present.
    interfaces: BTreeMap<String, Option<Problem>>,
}

impl Interfaces {
    pub(super) fn new(names: &[String], mode: Mode, replace: bool) -> Self {
        let interfaces = names.iter().map(|name| (name.clone(), None)).collect();
        Self { mode: Some(mode), replace, interfaces }
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
        self.attached(rules, &attachment);
        Ok(AttachReport { interface: attachment })
    }

    /// Notes and tells that an interface is attached to.
    fn attached(&mut self, rules: &mut Rules, attachment: &Attachment) {
        if let Some(problem) = self.interfaces.get_mut(&attachment.name) {
            *problem = None;
        }
        let (interface, mode) = (attachment.name.clone(), attachment.mode.name().to_owned());
        let by = rules.events.by.clone();
        rules.events.tell(What::Attached { interface, mode, by });
    }

    /// Detaches from an interface, which stays so.
    ///
    /// # Errors
    /// As [`dataplane::Attachments::detach`].
    pub fn detach(&mut self, rules: &mut Rules, interface: &str) -> Result<DetachReport, Failure> {
        rules.plane.detach(interface)?;
        self.interfaces.remove(interface);
        let by = rules.events.by.clone();
        rules.events.tell(What::Detached { interface: interface.into(), by });
        Ok(DetachReport { detached: interface.into() })
    }

    /// Attaches to all interfaces that are wanted, as far as that can be done now.
    pub(super) fn attach_wanted(&mut self, rules: &mut Rules) {
        let Some(mode) = self.mode else { return };
        let attached = attached(&*rules.plane);
        let names = self.interfaces.keys().filter(|name| !attached.contains(name));
        for name in names.cloned().collect::<Vec<_>>() {
            match rules.plane.attach(&name, mode, self.replace) {
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
        let before = attached(&*rules.plane);
        if let Some(mode) = self.mode {
            for name in self.interfaces.keys().filter(|name| before.contains(name)) {
                rules.plane.attach(name, mode, self.replace)?;
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
