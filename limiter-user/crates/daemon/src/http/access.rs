//! Who may do what: whoever can connect may look, root, the daemon's own user and the members of a
//! group may change.
//!
//! Who a peer is, the kernel tells: as it was when the peer connected.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use nix::unistd::{Group, geteuid};
use tokio::net::{UnixListener, UnixStream};

use super::Refusal;
use crate::control::{Actor, acting};
use api::error::{Failure, exit};

/// Groups that a process can be in, `NGROUPS_MAX` of linux/limits.h.
const MAX_GROUPS: usize = 65_536;

/// The user and the groups of a peer; `None` if the kernel did not tell.
#[derive(Clone, Debug)]
pub(crate) struct Peer(Option<Identity>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    user: u32,
    groups: Vec<u32>,
}

impl Identity {
    fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let mut groups = further_groups(stream)?;
        groups.push(credentials.gid());
        Ok(Self { user: credentials.uid(), groups })
    }
}

/// The supplementary groups of a peer.
fn further_groups(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 32];
    loop {
        let mut length = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: the descriptor is open; the kernel writes at most `length` bytes to the vector's
        // memory, which has as many, and the length to a variable that outlives the call.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let needed = length as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // Then the length is the one that is needed.
        if error.raw_os_error() != Some(libc::ERANGE) || needed > MAX_GROUPS {
            return Err(error);
        }
        groups.resize(needed, 0);
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let identity = Identity::of(stream.io());
        if let Err(error) = &identity {
            tracing::warn!("cannot tell who has connected, who may only look: {error}");
        }
        Self(identity.ok())
    }
}

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

    fn allows(&self, peer: &Identity) -> bool {
        let is_admin = self.admins().0.as_ref().is_some_and(|(id, _)| peer.groups.contains(id));
        peer.user == 0 || peer.user == self.own || is_admin
    }

    fn refusal(&self) -> Failure {
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

/// Lets requests through that their peer may make.
pub(super) async fn check(State(access): State<Access>, request: Request, next: Next) -> Response {
    let looks = matches!(*request.method(), Method::GET | Method::HEAD)
        || request.uri().path() == "/v1/config/diff";
    let peer = request.extensions().get::<ConnectInfo<Peer>>();
    let identity = peer.and_then(|ConnectInfo(Peer(identity))| identity.as_ref());
    if looks {
        return next.run(request).await;
    }
    if let Some(user) = identity.filter(|identity| access.allows(identity)).map(|peer| peer.user) {
        return acting(Actor::User(user), next.run(request)).await;
    }
    let who = identity.map_or("somebody".into(), |peer| format!("user {}", peer.user));
    tracing::warn!("refused to {who}: {} {}", request.method(), request.uri().path());
    Refusal(StatusCode::FORBIDDEN, access.refusal()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(user: u32, groups: &[u32]) -> Identity {
        Identity { user, groups: groups.into() }
    }

    #[test]
    fn root_the_own_user_and_admins_may_change() {
        let admins = Admins(Some((77, "operators".into())));
        let access = Access { own: 500, admins: Arc::new(RwLock::new(admins)) };
        assert!(access.allows(&identity(0, &[0])));
        assert!(access.allows(&identity(500, &[500])));
        assert!(access.allows(&identity(1000, &[1000, 77])));
        assert!(!access.allows(&identity(1000, &[1000, 0])));
        assert!(access.refusal().message.contains("operators"));
        let nobody = access.clone();
        access.set(Admins(None));
        assert!(!nobody.allows(&identity(1000, &[1000, 77])));
        assert!(nobody.refusal().hint.is_some_and(|hint| hint.contains("--admin-group")));
        assert_eq!(nobody.refusal().code, exit::PRIVILEGE);
    }

    #[test]
    fn a_group_that_is_missing_is_named() {
        let error = Access::new(Some("limiter-no-such-group")).unwrap_err();
        assert!(error.message.contains("limiter-no-such-group") && error.code == exit::USAGE);
        assert_eq!(*Access::new(Some("root")).unwrap().admins(), Admins(Some((0, "root".into()))));
    }

    #[tokio::test]
    async fn the_kernel_tells_who_a_peer_is() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let identity = Identity::of(&stream).unwrap();
        assert_eq!(identity.user, geteuid().as_raw());
        assert!(identity.groups.contains(&nix::unistd::getegid().as_raw()));
        let mut own: Vec<_> =
            nix::unistd::getgroups().unwrap().iter().map(|group| group.as_raw()).collect();
        own.push(nix::unistd::getegid().as_raw());
        assert_eq!(identity.groups, own);
    }
}
