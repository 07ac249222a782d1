//! Classes of traffic: packets told apart by protocol, destination port and TCP flags.
//!
//! The daemon resolves its rules to tables, so that a packet's class costs two loads however many
//! there are: the flags of a TCP packet choose a group, the group's table has a class for each port.
//! There are two banks of tables; the one in force is named by [`crate::abi::Config::classes`], the
//! other is written when the rules change, so a packet is judged by the old rules or by the new ones.
//!
//! Classes overlap: if no limit of a packet's class covers its source, those of the next wider class
//! are asked, at last those for packets of any class.

use crate::atomic::{self, AtomicU64};
use crate::packet::Transport;

/// The class of whatever is in no other one.
pub const ANY: u32 = 0;

/// Classes that there may be, beside [`ANY`]. They have the numbers from 1 on.
pub const MAX_CLASSES: u32 = 64;

/// Groups of sources have buckets under numbers of their own: this plus the length of the group's prefix. So a bucket
/// tells by itself what it is for, whatever prefixes groups have later.
pub const GROUPS: u32 = 128;

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
/// The table of what does not depend on a port; its parts follow.
pub const OTHER_TABLE: u32 = UDP_TABLE + 1;
/// Tables of a bank.
pub const TABLES: u32 = OTHER_TABLE + 1;
/// Banks: packets are judged by one while the daemon writes the other.
pub const BANKS: u32 = 2;

/// Where [`OTHER_TABLE`] has the group of each combination of TCP flags.
pub const FLAGS_AT: u32 = 0;
/// Where it has the class of each protocol's packets whose ports are unknown.
pub const PROTOCOLS_AT: u32 = 256;
/// Where it has, for each class, the [`MAX_NESTING`] classes that are asked for its packets one after the
/// other, each with [`COVERS_ALL`] or without; [`ANY`] ends them.
pub const CHAINS_AT: u32 = 512;
/// Where it has what each class is, eight bytes each, which only the daemon reads.
pub const DEFINITIONS_AT: u32 = 1024;

/// A bit beside a class that is asked: its limits cover every source.
// Saves the common case a lookup: a limit of the class for everyone needs no map.
pub const COVERS_ALL: u32 = 0x80;

const TCP: u8 = 6;
const UDP: u8 = 17;

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

/// The class of a packet. `table` gives the tables of a bank by their number.
#[inline(always)]
pub fn class_of<'a>(
    transport: &Transport,
    table: impl Fn(u32) -> Option<&'a Table>,
) -> Option<u32> {
    let other = table(OTHER_TABLE)?;
    let ports = match transport.protocol {
        // A later fragment has no ports: it is of the protocol's class, as nothing else can be said
        // of it.
        TCP if transport.has_ports => {
            let group = entry(other, FLAGS_AT + u32::from(transport.tcp_flags));
            Some(group % FLAG_GROUPS)
        }
        UDP if transport.has_ports => Some(UDP_TABLE),
        _ => None,
    };
    Some(match ports {
        Some(number) => entry(table(number)?, u32::from(transport.destination_port)),
        None => entry(other, PROTOCOLS_AT + u32::from(transport.protocol)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn transport(protocol: u8, port: Option<u16>, tcp_flags: u8) -> Transport {
        Transport {
            protocol,
            fragment: false,
            has_ports: port.is_some(),
            source_port: 4000,
            destination_port: port.unwrap_or(0),
            tcp_flags,
        }
    }

    #[test]
    fn a_class_is_found_by_flags_and_port() {
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
        let class = |transport| class_of(&transport, |number| tables.get(number as usize));
        assert_eq!(class(transport(6, Some(443), 0x02)), Some(3));
        assert_eq!(class(transport(6, Some(443), 0x12)), Some(4));
        assert_eq!(class(transport(6, Some(444), 0x12)), Some(ANY));
        assert_eq!(class(transport(17, Some(53), 0)), Some(5));
        assert_eq!(class(transport(17, Some(54), 0)), Some(6));
        assert_eq!(class(transport(17, None, 0)), Some(7), "a later fragment");
        assert_eq!(class(transport(1, None, 0)), Some(9));
        assert_eq!(class(transport(1, Some(53), 0)), Some(9), "ICMP has no ports");
        assert_eq!(class(transport(47, None, 0)), Some(ANY));
    }
}
