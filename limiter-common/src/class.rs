//! Classes of traffic: packets told apart by protocol, ports, TCP flags, and type and code of ICMP.
//!
//! The daemon resolves its rules to tables, so that a packet's class costs three loads however many
//! there are: the flags of a TCP packet choose a group, the group's table has a kind for each port.
//! There are two banks of tables; the one in force is named by [`crate::abi::Config::classes`], the
//! other is written when the rules change, so a packet is judged by the old rules or by the new ones.
//!
//! Classes overlap: if no limit of a packet's class covers its source, those of the next wider class
//! are asked, at last those for packets of any class.
//!
//! What a packet is told apart by beside where it goes makes its *kind*, which the tables give. Which classes are asked
//! follows from its kind, and from the longest prefix of its destination that a class names.
//! Destinations have limits of classes of their own, which are asked by the packet's kind alone.

use crate::atomic::{self, AtomicU64};
use crate::packet::Transport;

/// The class of whatever is in no other one.
pub const ANY: u32 = 0;

/// Classes that there may be, beside [`ANY`]. They have the numbers from 1 on.
pub const MAX_CLASSES: u32 = 64;

/// Groups of sources have buckets under numbers of their own: this plus the length of the group's prefix. So a bucket
/// tells by itself what it is for, whatever prefixes groups have later.
pub const GROUPS: u32 = 128;

/// Classes that destinations have limits of have the numbers from this on, so that a bucket tells by itself whose it is.
pub const OF_DESTINATIONS: u32 = MAX_CLASSES + 1;
/// How many of them there may be.
pub const MAX_OF_DESTINATIONS: u32 = 16;

/// Whether destinations have limits of the class with this number.
pub const fn is_of_destinations(class: u8) -> bool {
    class as u32 >= OF_DESTINATIONS && (class as u32) < OF_DESTINATIONS + MAX_OF_DESTINATIONS
}

/// The prefixes that classes name lie among those of limits under this number, and those of the other bank under the
/// next one. What is found there is the number of the prefix, from 1 on.
pub const DESTINATIONS: u32 = 96;

/// The length of the prefix whose group has buckets under a number; `None` for that of a class.
pub const fn group_prefix(class: u8) -> Option<u8> {
    class.checked_sub(GROUPS as u8)
}

/// Classes that are asked for a packet at the most, its own included, beside [`ANY`].
// Each step may cost a map lookup, and the verifier follows all of them.
pub const MAX_NESTING: u32 = 4;

/// Words of a table: a byte for each port.
pub const TABLE_WORDS: usize = 65_536 / 8;

/// Bytes, eight to a word: the lowest first.
pub type Table = [AtomicU64; TABLE_WORDS];

/// Tables for TCP, by the group of the packet's flags.
// A table for each of the 256 combinations of flags would take 16 MiB a bank. Few differ in what
// they fulfil.
pub const FLAG_GROUPS: u32 = 8;
/// The table for UDP.
pub const UDP_TABLE: u32 = FLAG_GROUPS;
/// The tables for source ports of TCP and of UDP.
pub const TCP_SOURCE_TABLE: u32 = UDP_TABLE + 1;
/// See [`TCP_SOURCE_TABLE`].
pub const UDP_SOURCE_TABLE: u32 = TCP_SOURCE_TABLE + 1;
/// The tables for type (upper byte) and code of ICMP, and of ICMPv6.
pub const ICMP_TABLE: u32 = UDP_SOURCE_TABLE + 1;
/// See [`ICMP_TABLE`].
pub const ICMPV6_TABLE: u32 = ICMP_TABLE + 1;
/// The table of what does not depend on a port; its parts follow.
// All of it fits into one: 18,200 bytes are chains.
pub const OTHER_TABLE: u32 = ICMPV6_TABLE + 1;
/// Tables of a bank.
pub const TABLES: u32 = OTHER_TABLE + 1;
/// Banks: packets are judged by one while the daemon writes the other.
pub const BANKS: u32 = 2;

/// Kinds that are known by the tables, 0 for every other packet.
pub const KINDS: u32 = MAX_CLASSES + 1;
/// The kind of packets that hide their protocol; those that follow hide what their protocol has.
pub const HIDDEN: u32 = KINDS;
/// Protocols whose packets can hide ports, flags or types, in the order of their kinds after [`HIDDEN`].
pub const WITH_HEADERS: [u8; 4] = [ICMP, TCP, UDP, ICMPV6];
/// Kinds, hidden ones too.
pub const ALL_KINDS: u32 = KINDS + 1 + WITH_HEADERS.len() as u32;

/// Where [`OTHER_TABLE`] has the group of each combination of TCP flags.
pub const FLAGS_AT: u32 = 0;
/// Where it has the kind of each protocol's packets without ports.
pub const PROTOCOLS_AT: u32 = 256;
/// Where it has the kind of each protocol's later fragments.
pub const FRAGMENTS_AT: u32 = 512;
/// Where it has 1 for each kind that goes before those of source ports.
pub const FIRST_AT: u32 = 768;
/// Where it tells what is asked of destinations: [`NAMED`], [`LIMITED`], or both.
pub const ASKED_AT: u32 = 1016;
/// Where it has what each class is, [`DEFINITION_BYTES`] each, which only the daemon reads.
pub const DEFINITIONS_AT: u32 = 1024;
/// Where it has, for each kind, the [`MAX_NESTING`] classes that are asked for its packets' destinations.
pub const DESTINATION_CHAINS_AT: u32 = 4096;
/// Where it has the classes that are asked for packets one after the other, each with [`COVERS_ALL`] or without; [`ANY`]
/// ends them. For each kind [`MAX_NESTING`], of packets to no prefix that classes name; then the same of each prefix.
pub const CHAINS_AT: u32 = 5120;

/// Bytes that tell what a class is.
pub const DEFINITION_BYTES: u32 = 32;

/// Classes name prefixes of destinations.
pub const NAMED: u32 = 1;
/// Destinations have limits.
pub const LIMITED: u32 = 2;

// No part reaches into the next one.
const _: () = {
    assert!(FLAGS_AT + 256 <= PROTOCOLS_AT && PROTOCOLS_AT + 256 <= FRAGMENTS_AT);
    assert!(FRAGMENTS_AT + 256 <= FIRST_AT && FIRST_AT + ALL_KINDS <= ASKED_AT);
    let numbers = OF_DESTINATIONS + MAX_OF_DESTINATIONS;
    // What divides whose bucket it is: see `Classified::whose`.
    assert!(numbers <= 2 * OF_DESTINATIONS && 2 * OF_DESTINATIONS <= GROUPS + 24);
    assert!(GROUPS + 64 < 3 * OF_DESTINATIONS);
    assert!(numbers <= DESTINATIONS && DESTINATIONS + BANKS <= GROUPS);
    assert!(DEFINITIONS_AT + numbers * DEFINITION_BYTES <= DESTINATION_CHAINS_AT);
    assert!(DESTINATION_CHAINS_AT + ALL_KINDS * MAX_NESTING <= CHAINS_AT);
    assert!(CHAINS_AT + (MAX_CLASSES + 1) * ALL_KINDS * MAX_NESTING <= 1 << 16);
};

/// A bit beside a class that is asked: its limits cover every source.
// Saves the common case a lookup: a limit of the class for everyone needs no map.
pub const COVERS_ALL: u32 = 0x80;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// A byte of a table.
#[inline(always)]
pub fn entry(table: &Table, at: u32) -> u32 {
    // For the verifier: a number from a packet indexes the table.
    let at = at & 0xffff;
    (atomic::load(&table[at as usize / 8]) >> (at % 8 * 8)) as u32 & 0xff
}

/// Sets a byte of a table that no packet is looking at.
// Load and store, not one step: nobody else writes, and the bank is in force only later.
pub fn set_entry(table: &Table, at: u32, value: u8) {
    let word = &table[(at & 0xffff) as usize / 8];
    let shift = at % 8 * 8;
    let rest = atomic::load(word) & !(0xff << shift);
    atomic::store(word, rest | u64::from(value) << shift);
}

/// Where the classes are that are asked for packets of a kind, to the prefix with a number; 0 to none that classes name.
#[inline(always)]
#[must_use]
pub const fn chain_at(destination: u32, kind: u32) -> u32 {
    CHAINS_AT + (destination * ALL_KINDS + kind) * MAX_NESTING
}

/// Classes that are asked one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain(pub u32);

impl Chain {
    /// That which a table has.
    // All of it at once, so that no packet sees half of a change.
    #[inline(always)]
    pub fn read(table: &Table, at: u32) -> Self {
        let at = at & 0xfffc;
        Self((atomic::load(&table[at as usize / 8]) >> (at % 8 * 8)) as u32)
    }

    /// Puts it into a table.
    pub fn write(self, table: &Table, at: u32) {
        let word = &table[(at & 0xfffc) as usize / 8];
        let shift = (at & 4) * 8;
        let rest = atomic::load(word) & !(0xffff_ffff << shift);
        atomic::store(word, rest | u64::from(self.0) << shift);
    }

    /// The class that is asked first, and whether its limits cover everyone.
    #[inline(always)]
    #[must_use]
    pub const fn first(self) -> (u32, bool) {
        (self.0 & 0xff & !COVERS_ALL, self.0 & COVERS_ALL != 0)
    }

    /// What is asked then.
    #[inline(always)]
    #[must_use]
    pub const fn rest(self) -> Self {
        Self(self.0 >> 8)
    }
}

/// The kind of a packet, of which `None` is known if its headers do not end. `table` gives the tables of a bank by
/// their number.
#[inline(always)]
pub fn kind_of<'a>(
    transport: Option<&Transport>,
    table: impl Fn(u32) -> Option<&'a Table>,
) -> Option<u32> {
    let other = table(OTHER_TABLE)?;
    let Some(transport) = transport else { return Some(HIDDEN) };
    let protocol = u32::from(transport.protocol);
    if transport.later_fragment {
        return Some(entry(other, FRAGMENTS_AT + protocol));
    }
    if !transport.has_ports {
        return Some(entry(other, PROTOCOLS_AT + protocol));
    }
    let (number, by_source) = match transport.protocol {
        TCP => {
            let group = entry(other, FLAGS_AT + u32::from(transport.tcp_flags));
            (group % FLAG_GROUPS, Some(TCP_SOURCE_TABLE))
        }
        UDP => (UDP_TABLE, Some(UDP_SOURCE_TABLE)),
        ICMP => (ICMP_TABLE, None),
        _ => (ICMPV6_TABLE, None),
    };
    let kind = entry(table(number)?, u32::from(transport.destination_port));
    if let Some(number) = by_source {
        let source = entry(table(number)?, u32::from(transport.source_port));
        if source != 0 && entry(other, FIRST_AT + kind) == 0 {
            return Some(source);
        }
    }
    Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn transport(protocol: u8, port: Option<u16>, tcp_flags: u8) -> Transport {
        Transport {
            protocol,
            later_fragment: false,
            has_ports: port.is_some(),
            source_port: 4000,
            destination_port: port.unwrap_or(0),
            tcp_flags,
        }
    }

    #[test]
    fn a_chain_is_read_as_it_is_written() {
        let table = atomic::zeros::<TABLE_WORDS>();
        let [one, other] = [Chain(0x0005_8403), Chain(0x0102_0304)];
        one.write(&table, chain_at(0, 1));
        other.write(&table, chain_at(0, 2));
        assert_eq!(Chain::read(&table, chain_at(0, 1)), one);
        assert_eq!(Chain::read(&table, chain_at(0, 2)), other);
        let asked = [one, one.rest(), one.rest().rest(), one.rest().rest().rest()];
        assert_eq!(asked.map(Chain::first), [(3, false), (4, true), (5, false), (0, false)]);
    }

    #[test]
    fn a_kind_is_found_by_flags_and_port() {
        let tables: Vec<Table> = (0..TABLES).map(|_| atomic::zeros::<TABLE_WORDS>()).collect();
        let set = |table: u32, at: u32, value| set_entry(&tables[table as usize], at, value);
        // SYN without ACK is a group of its own.
        set(OTHER_TABLE, FLAGS_AT + 0x02, 1);
        set(OTHER_TABLE, PROTOCOLS_AT + 17, 7);
        set(OTHER_TABLE, PROTOCOLS_AT + 1, 9);
        set(1, 443, 3);
        set(0, 443, 4);
        set(UDP_TABLE, 53, 5);
        set(UDP_TABLE, 54, 6);
        set(OTHER_TABLE, FRAGMENTS_AT + 17, 8);
        set(UDP_SOURCE_TABLE, 123, 11);
        set(TCP_SOURCE_TABLE, 443, 12);
        set(OTHER_TABLE, FIRST_AT + 3, 1);
        set(ICMP_TABLE, 8 << 8, 13);
        set(ICMPV6_TABLE, 128 << 8, 14);
        let class = |transport| kind_of(Some(&transport), |number| tables.get(number as usize));
        assert_eq!(class(transport(6, Some(443), 0x02)), Some(3));
        assert_eq!(class(transport(6, Some(443), 0x12)), Some(4));
        assert_eq!(class(transport(6, Some(444), 0x12)), Some(ANY));
        assert_eq!(class(transport(17, Some(53), 0)), Some(5));
        assert_eq!(class(transport(17, Some(54), 0)), Some(6));
        assert_eq!(class(transport(17, None, 0)), Some(7), "hidden");
        let fragment = Transport { later_fragment: true, ..transport(17, None, 0) };
        assert_eq!(class(fragment), Some(8));
        assert_eq!(class(transport(1, None, 0)), Some(9));
        assert_eq!(class(transport(1, Some(8 << 8), 0)), Some(13));
        assert_eq!(class(transport(58, Some(128 << 8), 0)), Some(14));
        assert_eq!(class(transport(47, None, 0)), Some(ANY));
        let from = |source_port, of| Transport { source_port, ..of };
        assert_eq!(class(from(123, transport(17, Some(53), 0))), Some(11));
        assert_eq!(class(from(443, transport(6, Some(443), 0x12))), Some(12));
        assert_eq!(class(from(443, transport(6, Some(443), 0x02))), Some(3), "flags go first");
        assert_eq!(kind_of(None, |number| tables.get(number as usize)), Some(HIDDEN));
    }
}
