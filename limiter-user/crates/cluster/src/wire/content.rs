//! What a frame says.

use super::bytes::{Malformed, Reader};
use super::{MAX_OPAQUE, Rejection, shares};
use crate::Message;

/// What a frame says, whoever says it to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Who somebody is.
    Hello(Vec<u8>),
    /// Who is there, in the form of [`membership`](crate::membership).
    Membership(Vec<u8>),
    /// Shares.
    Shares(Box<Message>),
    /// Something that others make and understand.
    Other(Topic, Vec<u8>),
}

/// What an opaque content is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Topic {
    /// Limits and bans of the cluster.
    Limits = 16,
    /// What hosts have admitted, cumulatively.
    Counters = 17,
    /// Questions that operators ask all hosts, and answers.
    Queries = 18,
    /// How keys are changed.
    Keys = 19,
    /// Which hosts have a central store, and which use shares instead.
    Fallback = 20,
}

impl Topic {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Limits, Self::Counters, Self::Queries, Self::Keys, Self::Fallback];
}

const HELLO: u8 = 1;
const MEMBERSHIP: u8 = 2;
const SHARES: u8 = 3;

/// Marks that the hash of the configuration comes first.
/// A bit of the kind, not a field: most kinds carry no digest, and pay no byte for that.
const DIGEST: u8 = 0x80;

/// A content that no frame has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes are more than a frame has room for")]
pub struct TooLong(pub usize);

/// A content, and what rides with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The hash of the limits that the cluster has, as the sender knows them.
    pub digest: Option<u64>,
    /// What it says.
    pub content: Content,
}

impl Packet {
    /// As the contents of frames: one, or as many as a message about shares needs. The hash rides in the
    /// first one.
    ///
    /// # Errors
    /// If opaque bytes are more than [`MAX_OPAQUE`].
    pub fn encode(digest: Option<u64>, content: &Content) -> Result<Vec<Vec<u8>>, TooLong> {
        let (kind, body) = match content {
            Content::Hello(bytes) => (HELLO, bytes),
            Content::Membership(bytes) => (MEMBERSHIP, bytes),
            Content::Other(topic, bytes) => (*topic as u8, bytes),
            Content::Shares(message) => return Ok(Self::encode_shares(digest, message)),
        };
        // Refused here, where the caller can say so: every receiver would refuse a longer frame.
        if body.len() > MAX_OPAQUE {
            return Err(TooLong(body.len()));
        }
        Ok(frames(kind, digest, std::slice::from_ref(body)))
    }

    /// A message about shares as the contents of frames; the hash rides in the first one.
    pub fn encode_shares(digest: Option<u64>, message: &Message) -> Vec<Vec<u8>> {
        frames(SHARES, digest, &shares::encode(message, MAX_OPAQUE))
    }

    /// Reads what a frame says.
    ///
    /// # Errors
    /// If it says nothing that makes sense, or is about something unknown.
    pub fn decode(bytes: &[u8]) -> Result<Self, Rejection> {
        let mut from = Reader::new(bytes);
        let (kind, digest) = head(&mut from)?;
        let rest = from.rest();
        let content = match kind {
            HELLO => Content::Hello(rest.into()),
            MEMBERSHIP => Content::Membership(rest.into()),
            SHARES => Content::Shares(Box::new(shares::decode(rest)?)),
            _ => {
                // Told apart from malformed: during an upgrade newer hosts may speak of more than this one knows.
                let topic = Topic::ALL.into_iter().find(|topic| *topic as u8 == kind);
                Content::Other(topic.ok_or(Rejection::Unknown)?, rest.into())
            }
        };
        Ok(Self { digest, content })
    }
}

fn frames(kind: u8, mut digest: Option<u64>, bodies: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let frame = |body: &Vec<u8>| {
        let mut frame = Vec::with_capacity(9 + body.len());
        // Once for all parts: where the first one is lost, the next message brings the digest 200 ms later.
        match digest.take() {
            Some(digest) => {
                frame.push(kind | DIGEST);
                frame.extend(digest.to_be_bytes());
            }
            None => frame.push(kind),
        }
        frame.extend_from_slice(body);
        frame
    };
    bodies.iter().map(frame).collect()
}

fn head(from: &mut Reader<'_>) -> Result<(u8, Option<u64>), Malformed> {
    let kind = from.u8()?;
    let digest = if kind & DIGEST == 0 { None } else { Some(from.u64()?) };
    Ok((kind & !DIGEST, digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Report;
    use crate::wire::MAX_CONTENT;
    use crate::{KeyId, Moment};
    use model::Share;

    #[test]
    fn contents_are_read_as_they_were_written() {
        let message = Message { sent: Moment(5), ..Message::default() };
        let contents = [
            Content::Hello(vec![1, 2]),
            Content::Membership(vec![]),
            Content::Shares(Box::new(message)),
            Content::Other(Topic::Limits, vec![0; MAX_OPAQUE]),
            Content::Other(Topic::Counters, vec![3]),
        ];
        for content in contents {
            for digest in [None, Some(0), Some(u64::MAX)] {
                let frames = Packet::encode(digest, &content).unwrap();
                assert!(frames.len() == 1 && frames[0].len() <= MAX_CONTENT);
                let packet = Packet::decode(&frames[0]).unwrap();
                assert_eq!(packet, Packet { digest, content: content.clone() });
            }
        }
    }

    #[test]
    fn a_long_message_takes_several_frames_and_the_hash_rides_once() {
        let reports = (0..700)
            .map(|key| Report {
                key: KeyId::from_hash(key),
                demand: Share::WHOLE,
                in_use: 1,
                majority: false,
            })
            .collect();
        let message = Message { reports, ..Message::default() };
        let frames = Packet::encode(Some(4), &Content::Shares(Box::new(message))).unwrap();
        assert!(frames.len() > 4 && frames.iter().all(|frame| frame.len() <= MAX_CONTENT));
        let hashes = frames.iter().filter(|frame| Packet::decode(frame).unwrap().digest.is_some());
        assert_eq!(hashes.count(), 1);
    }

    #[test]
    fn what_does_not_fit_or_is_unknown_is_refused() {
        let long = Content::Other(Topic::Limits, vec![0; MAX_OPAQUE + 1]);
        assert_eq!(Packet::encode(None, &long), Err(TooLong(MAX_OPAQUE + 1)));
        assert_eq!(Packet::decode(&[]), Err(Rejection::Malformed));
        assert_eq!(Packet::decode(&[DIGEST | HELLO, 1]), Err(Rejection::Malformed));
        assert_eq!(Packet::decode(&[SHARES, 9]), Err(Rejection::Malformed));
        assert_eq!(Packet::decode(&[100]), Err(Rejection::Unknown));
        assert_eq!(Packet::decode(&[0]), Err(Rejection::Unknown));
    }
}
