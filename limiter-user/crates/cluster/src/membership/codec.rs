//! What foca has to say, as bytes.

use foca::{Codec, Header, Member, Message, State};

use super::identity::Identity;
use crate::wire::bytes::{Malformed, Reader, put_number};

/// Why something could not be written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("no room left")]
    Full,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Writes and reads headers and members.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdentityCodec;

/// All or nothing, as foca wants it.
fn put(bytes: &[u8], mut to: impl bytes::BufMut) -> Result<(), Error> {
    // foca fills a packet with members until one does not fit; half a member would spoil the packet.
    if to.remaining_mut() < bytes.len() {
        return Err(Error::Full);
    }
    to.put_slice(bytes);
    Ok(())
}

/// Reads one thing from the front. What is read is in one piece.
fn take<T>(
    mut from: impl bytes::Buf,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T, Error> {
    let chunk = from.chunk();
    let mut reader = Reader::new(chunk);
    let taken = read(&mut reader)?;
    let length = chunk.len() - reader.rest().len();
    from.advance(length);
    Ok(taken)
}

impl Codec<Identity> for IdentityCodec {
    type Error = Error;

    fn encode_header(
        &mut self,
        header: &Header<Identity>,
        to: impl bytes::BufMut,
    ) -> Result<(), Error> {
        let mut written = Vec::with_capacity(256);
        header.src.write(&mut written);
        put_number(&mut written, header.src_incarnation.into());
        header.dst.write(&mut written);
        message(&header.message, &mut written);
        put(&written, to)
    }

    fn decode_header(&mut self, from: impl bytes::Buf) -> Result<Header<Identity>, Error> {
        take(from, |from| {
            Ok(Header {
                src: Identity::read(from)?,
                src_incarnation: narrow(from)?,
                dst: Identity::read(from)?,
                message: read_message(from)?,
            })
        })
    }

    fn encode_member(
        &mut self,
        member: &Member<Identity>,
        to: impl bytes::BufMut,
    ) -> Result<(), Error> {
        let mut written = Vec::with_capacity(128);
        member.id().write(&mut written);
        put_number(&mut written, member.incarnation().into());
        written.push(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        put(&written, to)
    }

    fn decode_member(&mut self, from: impl bytes::Buf) -> Result<Member<Identity>, Error> {
        take(from, |from| {
            let identity = Identity::read(from)?;
            let incarnation = narrow(from)?;
            let state = match from.u8()? {
                0 => State::Alive,
                1 => State::Suspect,
                2 => State::Down,
                _ => return Err(Malformed),
            };
            Ok(Member::new(identity, incarnation, state))
        })
    }
}

/// A number that is no larger than foca's type for it.
fn narrow<T: TryFrom<u64>>(from: &mut Reader<'_>) -> Result<T, Malformed> {
    // Refused, not cut: a cut incarnation would be an earlier one, and lose against what is known.
    from.number()?.try_into().map_err(|_| Malformed)
}

// Numbers of this crate's own: another release of foca may order its variants otherwise.
fn message(message: &Message<Identity>, to: &mut Vec<u8>) {
    let mut about = |kind: u8, identity: Option<&Identity>, number: foca::ProbeNumber| {
        to.push(kind);
        if let Some(identity) = identity {
            identity.write(to);
        }
        put_number(to, number.into());
    };
    match message {
        Message::Ping(number) => about(0, None, *number),
        Message::Ack(number) => about(1, None, *number),
        Message::PingReq { target, probe_number } => about(2, Some(target), *probe_number),
        Message::IndirectPing { origin, probe_number } => about(3, Some(origin), *probe_number),
        Message::IndirectAck { target, probe_number } => about(4, Some(target), *probe_number),
        Message::ForwardedAck { origin, probe_number } => about(5, Some(origin), *probe_number),
        Message::Announce => to.push(6),
        Message::Feed => to.push(7),
        Message::Gossip => to.push(8),
        Message::Broadcast => to.push(9),
        Message::TurnUndead => to.push(10),
    }
}

fn read_message(from: &mut Reader<'_>) -> Result<Message<Identity>, Malformed> {
    Ok(match from.u8()? {
        0 => Message::Ping(narrow(from)?),
        1 => Message::Ack(narrow(from)?),
        2 => Message::PingReq { target: Identity::read(from)?, probe_number: narrow(from)? },
        3 => Message::IndirectPing { origin: Identity::read(from)?, probe_number: narrow(from)? },
        4 => Message::IndirectAck { target: Identity::read(from)?, probe_number: narrow(from)? },
        5 => Message::ForwardedAck { origin: Identity::read(from)?, probe_number: narrow(from)? },
        6 => Message::Announce,
        7 => Message::Feed,
        8 => Message::Gossip,
        9 => Message::Broadcast,
        10 => Message::TurnUndead,
        _ => return Err(Malformed),
    })
}

#[cfg(test)]
mod tests {
    use super::super::identity::tests::identity;
    use super::*;

    #[test]
    fn headers_and_members_are_read_as_they_were_written() {
        let (a, b, c) = (identity("a", 1, 1), identity("b", 2, 2), identity("c", 3, 3));
        let messages = [
            Message::Ping(3),
            Message::Ack(255),
            Message::PingReq { target: c.clone(), probe_number: 1 },
            Message::IndirectPing { origin: c.clone(), probe_number: 2 },
            Message::IndirectAck { target: c.clone(), probe_number: 3 },
            Message::ForwardedAck { origin: c.clone(), probe_number: 4 },
            Message::Announce,
            Message::Feed,
            Message::Gossip,
            Message::Broadcast,
            Message::TurnUndead,
        ];
        for message in messages {
            let header = Header { src: a.clone(), src_incarnation: 300, dst: b.clone(), message };
            let mut bytes = Vec::new();
            IdentityCodec.encode_header(&header, &mut bytes).unwrap();
            let mut rest = &bytes[..];
            assert_eq!(IdentityCodec.decode_header(&mut rest).unwrap(), header);
            assert!(rest.is_empty());
            for cut in 0..bytes.len() {
                assert!(IdentityCodec.decode_header(&bytes[..cut]).is_err());
            }
        }
        for state in [State::Alive, State::Suspect, State::Down] {
            let member = Member::new(a.clone(), 9, state);
            let mut bytes = Vec::new();
            IdentityCodec.encode_member(&member, &mut bytes).unwrap();
            assert_eq!(IdentityCodec.decode_member(&bytes[..]).unwrap(), member);
            // Nothing is written where there is no room for all.
            let mut small = [0xaa; 20];
            assert!(IdentityCodec.encode_member(&member, &mut small[..]).is_err());
            assert_eq!(small, [0xaa; 20]);
        }
    }
}
