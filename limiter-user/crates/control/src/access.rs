//! Who may change something: root, the daemon's own user and the members of a group.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use nix::unistd::{Group, geteuid};

use api::error::{Failure, exit};

/// Who may change something.
#[derive(Clone, Debug)]
pub struct Access {
    own: u32,
    /// The same for all clones.
    admins: Arc<RwLock<Admins>>,
}

/// A group whose members may change something, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admins(Option<(u32, String)>);

impl Admins {
    /// The members of `group`, which must exist.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn of(group: Option<&str>) -> Result<Self, Failure> {
        group.map(|name| Ok((group_id(name)?, name.to_owned()))).transpose().map(Self)
    }
}

impl Access {
    /// Root, this process's user, and the members of `group`, which must exist.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn new(group: Option<&str>) -> Result<Self, Failure> {
        let admins = Arc::new(RwLock::new(Admins::of(group)?));
        Ok(Self { own: geteuid().as_raw(), admins })
    }

    /// Lets other admins change something, from now on.
    pub fn set(&self, admins: Admins) {
        *self.admins.write().unwrap_or_else(PoisonError::into_inner) = admins;
    }

    fn admins(&self) -> RwLockReadGuard<'_, Admins> {
        self.admins.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a user in `groups` may change something.
    pub fn allows(&self, user: u32, groups: &[u32]) -> bool {
        let is_admin = self.admins().0.as_ref().is_some_and(|(id, _)| groups.contains(id));
        user == 0 || user == self.own || is_admin
    }

    /// What whoever may not is told.
    pub fn refusal(&self) -> Failure {
        let refuse = |text: &str| Failure::new(exit::PRIVILEGE, text);
        match &self.admins().0 {
            Some((_, group)) => refuse(&format!(
                "only root and members of the group {group} may change something"
            ))
            .hint(format!("use sudo, or let yourself be added to the group {group}")),
            None => refuse("only root may change something: the daemon has no --admin-group").hint(
                "use sudo, or restart the daemon with --admin-group NAME for a group that you are in",
            ),
        }
    }
}

fn group_id(name: &str) -> Result<u32, Failure> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        _ => Err(Failure::new(exit::USAGE, format!("there is no group {name}"))
            .hint(format!("make it with `groupadd --system {name}`, or leave --admin-group out"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_own_user_and_admins_may_change() {
        let admins = Admins(Some((77, "operators".into())));
        let access = Access { own: 500, admins: Arc::new(RwLock::new(admins)) };
        assert!(access.allows(0, &[0]));
        assert!(access.allows(500, &[500]));
        assert!(access.allows(1000, &[1000, 77]));
        assert!(!access.allows(1000, &[1000, 0]));
        assert!(access.refusal().message.contains("operators"));
        let nobody = access.clone();
        access.set(Admins(None));
        assert!(!nobody.allows(1000, &[1000, 77]));
        assert!(nobody.refusal().hint.is_some_and(|hint| hint.contains("--admin-group")));
        assert_eq!(nobody.refusal().code, exit::PRIVILEGE);
    }

    #[test]
    fn a_group_that_is_missing_is_named() {
        let error = Access::new(Some("limiter-no-such-group")).unwrap_err();
        assert!(error.message.contains("limiter-no-such-group") && error.code == exit::USAGE);
        assert_eq!(*Access::new(Some("root")).unwrap().admins(), Admins(Some((0, "root".into()))));
    }
}
