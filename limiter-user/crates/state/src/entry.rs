//! Entries of the lists as rows of a database: short, since there may be a million of them.
//!
//! A key is an address and the length of its prefix, in order of address. A value is flags, when the entry
//! was made, when it ends if it does, and the reason, to the end.

use std::net::IpAddr;

use ipnet::IpNet;

use model::lists::{Action, Listing};

/// An address of either family, and a length.
pub(super) type Key = ([u8; 17], usize);

/// The bytes of a source or prefix: 5 or 17.
pub(super) fn key(net: &IpNet) -> Key {
    let mut key = [0; 17];
    let length = match net.addr() {
        IpAddr::V4(address) => put(&mut key, &address.octets()),
        IpAddr::V6(address) => put(&mut key, &address.octets()),
    };
    put(&mut key[length..], &[net.prefix_len()]);
    (key, length + 1)
}

fn put(to: &mut [u8], bytes: &[u8]) -> usize {
    for (to, byte) in to.iter_mut().zip(bytes) {
        *to = *byte;
    }
    bytes.len()
}

/// What [`key`] has written.
pub(super) fn net(key: &[u8]) -> Option<IpNet> {
    let (length, address) = key.split_last()?;
    let address = match address.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
    };
    let net = IpNet::new(address, *length).ok()?;
    // Another key for the same prefix would be an entry that nobody could remove.
    (net == net.trunc()).then_some(net)
}

// A byte of flags: a million denied addresses as text and JSON took 173 MB of writes, and take 54
// MB so.
const DENY: u8 = 1;
const ENDS: u8 = 1 << 1;
const BAN: u8 = 1 << 2;
const CLUSTER: u8 = 1 << 3;
const REASON: u8 = 1 << 4;
const ALL: u8 = DENY | ENDS | BAN | CLUSTER | REASON;

/// The bytes of what a list says, over those in `to`.
pub(super) fn write(listing: &Listing, to: &mut Vec<u8>) {
    let Listing { action, reason, added, until, ban, cluster } = listing;
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    to.clear();
    to.push(
        flag(*action == Action::Deny, DENY)
            | flag(until.is_some(), ENDS)
            | flag(*ban, BAN)
            | flag(*cluster, CLUSTER)
            | flag(reason.is_some(), REASON),
    );
    to.extend(added.to_be_bytes());
    to.extend(until.iter().flat_map(|until| until.to_be_bytes()));
    to.extend(reason.iter().flat_map(|reason| reason.as_bytes()));
}

/// What [`write`] has written.
///
/// # Errors
/// Which part makes no sense.
pub(super) fn read(bytes: &[u8]) -> Result<Listing, String> {
    let (flags, rest) = bytes.split_first().ok_or("it is empty")?;
    // Of a later version. To ignore one would be to forget it with the next change.
    if flags & !ALL != 0 {
        return Err(format!("flags {flags:#x} are not known"));
    }
    let has = |flag: u8| flags & flag != 0;
    let (added, mut rest) = rest.split_first_chunk().ok_or("it does not say since when")?;
    let mut until = None;
    if has(ENDS) {
        let (end, after) = rest.split_first_chunk().ok_or("it does not say until when")?;
        (until, rest) = (Some(u32::from_be_bytes(*end)), after);
    }
    // Refused: bytes that nobody accounts for are damage, or of a version that has to be asked.
    if !rest.is_empty() && !has(REASON) {
        return Err("it goes on behind its end".into());
    }
    // Without its length: it goes to the end of the value.
    let reason = std::str::from_utf8(rest).map_err(|_| "the reason is no text")?;
    let listing = Listing {
        action: if has(DENY) { Action::Deny } else { Action::Allow },
        reason: has(REASON).then(|| reason.into()),
        added: u32::from_be_bytes(*added),
        until,
        ban: has(BAN),
        cluster: has(CLUSTER),
    };
    // Checked as what an operator writes: the file may have been edited or damaged.
    listing.checked().map_err(|failure| failure.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn bytes(net: &IpNet) -> Vec<u8> {
        let (bytes, length) = key(net);
        bytes[..length].to_vec()
    }

    fn net_of(address: IpAddr, length: u8) -> IpNet {
        let most = if address.is_ipv4() { 32 } else { 128 };
        IpNet::new(address, length.min(most)).unwrap().trunc()
    }

    fn nets() -> impl Strategy<Value = IpNet> {
        (any::<IpAddr>(), 0u8..=128).prop_map(|(address, length)| net_of(address, length))
    }

    /// Two of one family.
    fn pairs() -> impl Strategy<Value = [IpNet; 2]> {
        let v4 = any::<[Ipv4Addr; 2]>().prop_map(|pair| pair.map(IpAddr::from));
        let v6 = any::<[Ipv6Addr; 2]>().prop_map(|pair| pair.map(IpAddr::from));
        let lengths = [0u8..=128, 0u8..=128];
        (prop_oneof![v4, v6], lengths)
            .prop_map(|([one, other], [a, b])| [net_of(one, a), net_of(other, b)])
    }

    proptest! {
        #[test]
        fn entries_come_back_as_they_were(
            net in nets(), deny: bool, reason in prop::option::of("[ -~äöü]{0,100}"), added: u32,
            until: Option<u32>, ban: bool, cluster: bool,
        ) {
            let action = if deny { Action::Deny } else { Action::Allow };
            let reason = reason.map(Into::into);
            let listing = Listing { action, reason, added, until, ban, cluster };
            let mut value = vec![9; 9];
            write(&listing, &mut value);
            prop_assert_eq!(read(&value), Ok(listing));
            prop_assert_eq!(super::net(&bytes(&net)), Some(net));
        }

        #[test]
        fn keys_of_a_family_are_in_order_of_address([one, other] in pairs()) {
            prop_assert_eq!(bytes(&one).cmp(&bytes(&other)), one.cmp(&other));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (read(&bytes), net(&bytes));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for (bytes, about) in [
            (&b""[..], "empty"),
            (&[32, 0, 0, 0, 1], "flags"),
            (&[DENY, 0, 0], "since when"),
            (&[DENY | ENDS, 0, 0, 0, 1, 0], "until when"),
            (&[DENY, 0, 0, 0, 1, b'a'], "behind its end"),
            (&[REASON, 0, 0, 0, 1, 0xff], "no text"),
            (&[REASON, 0, 0, 0, 1, b'\n'], "line breaks"),
        ] {
            assert!(read(bytes).unwrap_err().contains(about), "{bytes:?}");
        }
        for bytes in [&b""[..], &[10, 0, 0, 0], &[10, 0, 0, 0, 33], &[10, 0, 0, 1, 8], &[0; 18]] {
            assert_eq!(net(bytes), None, "{bytes:?}");
        }
    }
}
