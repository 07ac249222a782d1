//! Why packets are not listened to, and how many.

use std::net::SocketAddr;

use serde::Serialize;

use super::bytes::Malformed;
use crate::Moment;

/// Why a packet is not listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// It does not begin as a frame.
    #[error("not from a limiter")]
    Foreign,
    /// It is too short for a frame.
    #[error("too short")]
    Short,
    /// It is too long for a frame.
    #[error("too long")]
    Long,
    /// It is in a version that this host does not understand.
    #[error("another version of the protocol: upgrade by one version at a time")]
    Protocol,
    /// It is of another cluster.
    #[error("another cluster with the same key")]
    Cluster,
    /// It is sealed with a key that is not in the ring.
    #[error("unknown key")]
    Key,
    /// Its seal is broken.
    #[error("changed on its way, or forged")]
    Forged,
    /// It has come already, or is too far behind.
    #[error("come before, or too late")]
    Replayed,
    /// Its sender has been started again since.
    #[error("from an earlier run of its sender, or from a second host with a copy of its ledger")]
    Old,
    /// This host has been started again since.
    #[error("for an earlier run of this host")]
    StaleRecipient,
    /// This host has sent it.
    #[error("from this host itself")]
    Own,
    /// Its sender is no member of the cluster, as far as this host knows.
    #[error("from a host that is no member")]
    UnknownMember,
    /// There is no room for another sender.
    #[error("too many senders")]
    TooManySenders,
    /// It says what nobody should.
    #[error("authenticated but malformed")]
    Malformed,
    /// It is about something that this version does not know.
    #[error("about something that this version does not know")]
    Unknown,
    /// Nobody had time to listen.
    #[error("the queue was full")]
    QueueFull,
    /// Its sender has other source prefixes, or another floor or other leases.
    #[error(
        "of a host that is set up otherwise: source prefixes and leases have to be the same on all hosts of a cluster"
    )]
    Disagreement,
}

impl Rejection {
    /// All of them.
    /// Hosts tell each other counts by the place in here: a new one goes to the end.
    pub const ALL: [Self; 17] = [
        Self::Foreign,
        Self::Short,
        Self::Long,
        Self::Protocol,
        Self::Cluster,
        Self::Key,
        Self::Forged,
        Self::Replayed,
        Self::Old,
        Self::StaleRecipient,
        Self::Own,
        Self::UnknownMember,
        Self::TooManySenders,
        Self::Malformed,
        Self::Unknown,
        Self::QueueFull,
        Self::Disagreement,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::Short => "short",
            Self::Long => "long",
            Self::Protocol => "protocol",
            Self::Cluster => "cluster",
            Self::Key => "key",
            Self::Forged => "forged",
            Self::Replayed => "replayed",
            Self::Old => "old",
            Self::StaleRecipient => "stale_recipient",
            Self::Own => "own",
            Self::UnknownMember => "unknown_member",
            Self::TooManySenders => "too_many_senders",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::QueueFull => "queue_full",
            Self::Disagreement => "disagreement",
        }
    }
}

impl From<Malformed> for Rejection {
    fn from(Malformed: Malformed) -> Self {
        Self::Malformed
    }
}

/// Packets of one kind that were not listened to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
// One place for each reason: a flood of forged frames, each from another address, takes no memory.
pub struct Rejected {
    /// How many.
    pub packets: u64,
    /// When the latest came, and from where it claimed to be.
    pub latest: Option<(Moment, SocketAddr)>,
}

/// What has come and gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that were opened and listened to.
    pub received: u64,
    /// Their bytes, without the headers of UDP and IP.
    pub received_bytes: u64,
    /// Frames that were sealed to be sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that the network did not take, or for which nobody was known.
    pub unsent: u64,
    rejected: [Rejected; Rejection::ALL.len()],
}

impl Counts {
    /// Counts a packet that was not listened to.
    pub fn reject(&mut self, rejection: Rejection, now: Moment, from: SocketAddr) {
        let rejected = &mut self.rejected[rejection as usize];
        rejected.packets += 1;
        rejected.latest = Some((now, from));
    }

    /// Those that were not listened to for this reason.
    pub const fn rejected(&self, rejection: Rejection) -> &Rejected {
        &self.rejected[rejection as usize]
    }

    /// All that were not listened to.
    pub fn rejections(&self) -> impl Iterator<Item = (Rejection, &Rejected)> {
        let all = Rejection::ALL.into_iter().zip(&self.rejected);
        all.filter(|(_, rejected)| rejected.packets > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_itself() {
        let mut counts = Counts::default();
        let from = ([192, 0, 2, 1], 7).into();
        for (times, rejection) in Rejection::ALL.into_iter().enumerate() {
            assert_eq!(rejection as usize, times);
            for _ in 0..=times {
                counts.reject(rejection, Moment(9), from);
            }
        }
        let told: Vec<_> = counts.rejections().map(|(_, rejected)| rejected.packets).collect();
        assert_eq!(told, (1..=Rejection::ALL.len() as u64).collect::<Vec<_>>());
        assert_eq!(counts.rejected(Rejection::Key).latest, Some((Moment(9), from)));
    }
}
