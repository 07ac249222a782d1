//! Changes as rows of a database, in an order that suits it.

use std::fmt::Write as _;
use std::sync::LazyLock;

use ipnet::IpNet;

use model::record::record;
use model::{Changes, Selector, Target};

/// The rows that changes make.
pub(super) struct Rows<'a> {
    changes: &'a Changes,
    /// Each amount as JSON, by [`record`].
    // Once for each amount: a million limits have few, and serialising each would be most of the
    // work.
    records: Vec<String>,
    /// The places of all changes, as they are written.
    order: Vec<u32>,
}

impl<'a> Rows<'a> {
    pub(super) fn new(changes: &'a Changes) -> Self {
        let amounts = changes.amounts().iter();
        let records = amounts.map(record);
        // A row beside the last one finds its page at hand, and fills it.
        let places = changes.numbered().zip(0u32..);
        let mut keyed: Vec<_> = places.map(|((target, _), at)| (rank(&target), at)).collect();
        keyed.sort_unstable();
        let order = keyed.into_iter().map(|(_, place)| place).collect();
        Self { changes, records: records.collect(), order }
    }

    /// Visits each target as text and its record; `None` if there is to be none.
    pub(super) fn visit<E>(
        &self,
        mut visit: impl FnMut(&str, Option<&str>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut text = String::new();
        for place in &self.order {
            let (target, amount) = self.changes.at(*place as usize);
            text.clear();
            // Writing to a string cannot fail.
            let _ = write!(text, "{target}");
            visit(&text, amount.map(|amount| self.records[amount].as_str()))?;
        }
        Ok(())
    }
}

/// Where each number below `count` comes among all of them, written and sorted as text.
fn ranks(count: u32, text: impl Fn(u32) -> String) -> Vec<u16> {
    let mut texts: Vec<_> = (0..count).map(|number| (text(number), number)).collect();
    texts.sort_unstable();
    let mut ranks = vec![0; texts.len()];
    for ((_, number), rank) in texts.into_iter().zip(0..=u16::MAX) {
        ranks[number as usize] = rank;
    }
    ranks
}

/// The parts of an IPv4 address. What follows the last one, a slash, comes before any digit like a dot.
// Looked up, so that a million targets are sorted by numbers, not by their texts.
static DECIMAL: LazyLock<Vec<u16>> = LazyLock::new(|| ranks(1 << 8, |part| format!("{part}.")));

/// The parts of an IPv6 address.
static HEXADECIMAL: LazyLock<Vec<u16>> =
    LazyLock::new(|| ranks(1 << 16, |part| format!("{part:x}:")));

/// Orders targets of a family as their text is ordered; in IPv6 nearly so, because of `::` and what
/// follows the last part.
fn rank(target: &Target) -> u128 {
    match target.whom {
        Selector::Default => u128::MAX,
        Selector::Prefix(IpNet::V4(net)) => {
            let parts = net.addr().octets().into_iter().chain([net.prefix_len()]);
            parts.fold(0, |rank, part| rank << 8 | u128::from(DECIMAL[usize::from(part)]))
        }
        Selector::Prefix(IpNet::V6(net)) => {
            let parts = net.addr().segments().into_iter();
            parts.fold(0, |rank, part| rank << 16 | u128::from(HEXADECIMAL[usize::from(part)]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Change;
    use model::Limit;

    /// The targets as rows, which are all removals.
    fn rows(targets: &[String]) -> Vec<String> {
        let changes = targets.iter().map(|target| Change::Unset(target.parse().unwrap()));
        let changes: Changes = changes.collect();
        let mut rows = Vec::new();
        let visited = Rows::new(&changes).visit(|target, record| {
            assert_eq!(record, None);
            rows.push(target.to_owned());
            Ok::<_, ()>(())
        });
        assert_eq!(visited, Ok(()));
        rows
    }

    #[test]
    fn rows_are_sorted_as_text() {
        let mut ipv4: Vec<String> = (9..=32).map(|length| format!("7.0.0.0/{length}")).collect();
        for part in [0, 1, 2, 9, 10, 19, 99, 100, 101, 199, 200, 255] {
            ipv4.push(format!("{part}.0.0.0/8"));
            ipv4.push(format!("10.{part}.255.0/24"));
            ipv4.push(format!("10.0.0.{part}/32"));
        }
        let mut ipv6 = Vec::new();
        for part in [1, 2, 0xa, 0xf, 0x10, 0x1a, 0x9f, 0xa0, 0x100, 0x9999, 0xa000, 0xffff] {
            ipv6.push(format!("2001:{part:x}:1:1::/64"));
            ipv6.push(format!("2001:db8:{part:x}:{part:x}::/64"));
            ipv6.push(format!("2001:db8:7:7:{part:x}:1:1:1/128"));
        }
        for mut targets in [ipv4, ipv6] {
            targets.sort_unstable_by(|one, other| other.cmp(one));
            let rows = rows(&targets);
            targets.reverse();
            assert_eq!(rows, targets);
        }
    }

    #[test]
    fn each_target_has_its_record() {
        let limits = [("default", "1000pps"), ("2001:db8::/48", "10mbit"), ("1.1.1.1", "5/minute")];
        let changes: Changes = limits
            .iter()
            .map(|(target, rate)| {
                let (target, rate) = (target.parse().unwrap(), rate.parse().unwrap());
                Change::Set(Limit::new(target, rate, Some(2000)).unwrap())
            })
            .collect();
        let mut rows = Vec::new();
        let visited = Rows::new(&changes).visit(|target, record| {
            rows.push((target.to_owned(), record.unwrap().to_owned()));
            Ok::<_, ()>(())
        });
        assert_eq!(visited, Ok(()));
        rows.sort();
        let expected = [
            ("1.1.1.1/32", r#"{"rate":"5/minute","burst":2000}"#),
            ("2001:db8::/48", r#"{"rate":"10mbit","burst":2000}"#),
            ("default", r#"{"rate":"1000pps","burst":2000}"#),
        ];
        assert_eq!(rows, expected.map(|(target, record)| (target.to_owned(), record.to_owned())));
    }
}
