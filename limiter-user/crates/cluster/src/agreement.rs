//! What hosts have to agree about to divide one limit: they refuse each other where they do not.
//!
//! A key of the escrow is a source, cut to its prefix: hosts with other prefixes divide other keys, and each lets the
//! whole limit through. Floors that differ may be more than the whole together, and leases end by durations alone.

use std::time::Duration;

use super::HostId;
use super::escrow::{Settings, Timing};
use super::wire::bytes::{Malformed, Reader, put_number};
use model::Share;

/// What has to be the same on all hosts of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Leading bits that make a source, of IPv4 and of IPv6 addresses.
    pub prefixes: (u8, u8),
    /// The part of a limit that is never lent.
    floor: Share,
    /// How long leases last and how often hosts talk, each in ms; in the order of [`NAMES`].
    timing: [u64; NAMES.len()],
}

/// The durations.
const NAMES: [&str; 10] = [
    "every",
    "hot",
    "delegation",
    "grant",
    "forget",
    "far delegation",
    "loan in",
    "loan out",
    "far every",
    "home lease",
];

impl Agreement {
    /// Of this version, with such prefixes.
    pub fn new(prefixes: (u8, u8)) -> Self {
        // Both are fixed in this version. They are compared all the same, for the day that two versions meet.
        let Settings { floor, timing, .. } = Settings::new(HostId(0), 1);
        // Taken apart without a rest: a duration that is added later does not compile until it is compared.
        let Timing {
            every,
            hot,
            delegation,
            grant,
            forget,
            far_delegation,
            loan_in,
            loan_out,
            far_every,
            home_lease,
        } = timing;
        let timing = [
            every,
            hot,
            delegation,
            grant,
            forget,
            far_delegation,
            loan_in,
            loan_out,
            far_every,
            home_lease,
        ];
        Self { prefixes, floor, timing: timing.map(|span: Duration| span.as_millis() as u64) }
    }

    /// Appends it.
    pub fn write(&self, to: &mut Vec<u8>) {
        to.extend([self.prefixes.0, self.prefixes.1]);
        put_number(to, self.floor.units());
        self.timing.iter().for_each(|span| put_number(to, *span));
    }

    /// Reads one.
    ///
    /// # Errors
    /// If there is none.
    pub fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let prefixes = (from.u8()?, from.u8()?);
        let floor = Share::from_units(from.number()?);
        let mut timing = [0; NAMES.len()];
        for span in &mut timing {
            *span = from.number()?;
        }
        Ok(Self { prefixes, floor, timing })
    }

    /// What differs: what it is, and its value here and there.
    pub fn differences(&self, theirs: &Self) -> Vec<(String, String, String)> {
        let bits = |bits: u8| format!("/{bits}");
        let floor = |floor: Share| format!("{:.2} %", 100.0 * floor.part());
        let mut all = vec![
            ("ipv4_prefix".to_owned(), bits(self.prefixes.0), bits(theirs.prefixes.0)),
            ("ipv6_prefix".to_owned(), bits(self.prefixes.1), bits(theirs.prefixes.1)),
            ("the floor".to_owned(), floor(self.floor), floor(theirs.floor)),
        ];
        let spans = NAMES.iter().zip(self.timing.iter().zip(&theirs.timing));
        all.extend(spans.map(|(name, (mine, theirs))| {
            (format!("the duration \"{name}\""), format!("{mine} ms"), format!("{theirs} ms"))
        }));
        all.retain(|(_, mine, theirs)| mine != theirs);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_differences_have_both_values() {
        let mine = Agreement::new((32, 64));
        let mut bytes = Vec::new();
        mine.write(&mut bytes);
        assert_eq!(Agreement::read(&mut Reader::new(&bytes)), Ok(mine.clone()));
        assert!(Agreement::read(&mut Reader::new(&bytes[..bytes.len() - 1])).is_err());
        assert!(mine.differences(&mine).is_empty());
        let theirs = Agreement { floor: Share::from_part(0.1), ..Agreement::new((32, 56)) };
        let told = mine.differences(&theirs);
        assert_eq!(told[0], ("ipv6_prefix".into(), "/64".into(), "/56".into()));
        assert_eq!(told[1], ("the floor".into(), "5.00 %".into(), "10.00 %".into()));
        assert_eq!(told.len(), 2);
        let mut slow = mine.clone();
        slow.timing[3] += 1;
        assert_eq!(mine.differences(&slow)[0].0, "the duration \"grant\"");
    }
}
