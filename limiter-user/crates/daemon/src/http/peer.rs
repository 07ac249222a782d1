//! Whoever can connect to the socket may look; [`Access`] says who may change something.
//!
//! Who a peer is, the kernel tells: as it was when the peer connected. A socket that is passed on to another process
//! keeps the rights of the one that opened it.

use std::io;
use std::os::fd::AsRawFd;

use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use tokio::net::{UnixListener, UnixStream};

use super::answer::Refusal;
use super::is_look;
use control::{Access, Actor, acting};

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
    /// `SO_PEERCRED` has only one group, the process's own. Admins have theirs as a supplementary one, for which
    /// there is another option.
    fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let mut groups = further_groups(stream)?;
        groups.push(credentials.gid());
        Ok(Self { user: credentials.uid(), groups })
    }
}

/// `SO_PEERGROUPS`, for which neither std, nix nor tokio has a function.
fn further_groups(stream: &UnixStream) -> io::Result<Vec<u32>> {
    // Few users are in more: one call usually does.
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

/// Lets requests through that their peer may make.
pub(super) async fn check(State(access): State<Access>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // It has a body, so it is a POST, but it changes nothing.
    if is_look(request.method()) || path == "/v1/config/diff" {
        return next.run(request).await;
    }
    // By the connection, not by anything that the request says: no header can claim a user (P7).
    let peer = request.extensions().get::<ConnectInfo<Peer>>();
    let who = match peer.and_then(|ConnectInfo(Peer(identity))| identity.as_ref()) {
        Some(Identity { user, groups }) if access.allows(*user, groups) => {
            // The author goes with the task, so that no route can forget to pass it on.
            return acting(Actor::User(*user), next.run(request)).await;
        }
        Some(Identity { user, .. }) => format!("user {user}"),
        None => "somebody".into(),
    };
    tracing::warn!("refused to {who}: {} {path}", request.method());
    Refusal(StatusCode::FORBIDDEN, access.refusal()).into_response()
}

#[cfg(test)]
mod tests {
    use nix::unistd::geteuid;

    use super::*;

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
