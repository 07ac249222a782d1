//! Limits of single descriptors, in place of what the rules of a domain say: "user 241531 has 5 in a second".

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound::{Excluded, Unbounded};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::invalid::Invalid;
use crate::lists::{end_of, now};
use crate::meter::{Limit, LimitError};

/// The longest descriptor, bytes of its text, so that it fits a message of the cluster with its limit.
pub const MAX_LEN: usize = 512;

/// Whose limit it is: a domain, and the keys and values of a descriptor.
// As text, since there may be a million of them: `["api","user","241531"]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Descriptor(Arc<str>);

impl Descriptor {
    /// The descriptor of a domain with some entries.
    ///
    /// # Errors
    /// If it has no domain, no entries, an entry without a key, or is too long.
    pub fn new<'a>(
        domain: &'a str,
        entries: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Invalid> {
        let mut parts = vec![domain];
        for (key, value) in entries {
            if key.is_empty() {
                return Err(Invalid::new("an entry has no key").with_hint(EXAMPLE));
            }
            parts.extend([key, value]);
        }
        if domain.is_empty() {
            return Err(Invalid::new("the domain is empty").with_hint(EXAMPLE));
        }
        if parts.len() == 1 {
            return Err(Invalid::new("there is no entry").with_hint(EXAMPLE));
        }
        if parts.iter().any(|part| part.chars().any(char::is_control)) {
            return Err(Invalid::new("a descriptor has line breaks or the like"));
        }
        // Plain texts always make JSON.
        let text = serde_json::to_string(&parts).unwrap_or_default();
        if text.len() > MAX_LEN {
            return Err(Invalid::new(format!("a descriptor is longer than {MAX_LEN} bytes")));
        }
        Ok(Self(text.into()))
    }

    /// That of a domain and entries as `KEY=VALUE`.
    ///
    /// # Errors
    /// As [`Descriptor::new`], or if one has no `=`.
    pub fn parse(domain: &str, entries: &[String]) -> Result<Self, Invalid> {
        let entry = |text| {
            let missing = || Invalid::new(format!("{text:?} has no =")).with_hint(EXAMPLE);
            str::split_once(text, '=').ok_or_else(missing)
        };
        let entries: Vec<_> = entries.iter().map(|text| entry(text)).collect::<Result<_, _>>()?;
        Self::new(domain, entries)
    }

    /// Its text, which is JSON.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The domain, then keys and values in turn.
    #[must_use]
    pub fn parts(&self) -> Vec<String> {
        // It was made of such.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

/// The [`Descriptor::parts`] as a domain and its entries.
#[must_use]
pub fn split(parts: &[String]) -> (&str, Vec<(&str, &str)>) {
    let (domain, rest) = parts.split_first().map_or(("", &[][..]), |(it, rest)| (&**it, rest));
    let (entries, _) = rest.as_chunks::<2>();
    (domain, entries.iter().map(|[key, value]| (&**key, &**value)).collect())
}

/// How a descriptor is written.
const EXAMPLE: &str = "give a domain and entries, such as: api user=241531";

/// As people write it: `api user=241531`.
impl fmt::Display for Descriptor {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts();
        let (domain, entries) = split(&parts);
        to.write_str(domain)?;
        entries.iter().try_for_each(|(key, value)| write!(to, " {key}={value}"))
    }
}

/// Reads its text.
impl FromStr for Descriptor {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = || {
            Invalid::new("it is no list of a domain, keys and values")
                .with_hint(r#"write ["api","user","241531"]"#)
        };
        let parts: Vec<String> = serde_json::from_str(text).map_err(|_| wrong())?;
        let (domain, entries) = parts.split_first().ok_or_else(wrong)?;
        let (entries, rest) = entries.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(wrong());
        }
        Self::new(domain, entries.iter().map(|[key, value]| (key.as_str(), value.as_str())))
    }
}

impl Serialize for Descriptor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.parts().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Descriptor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let parts = Vec::<String>::deserialize(from)?;
        let text = serde_json::to_string(&parts).map_err(D::Error::custom)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// The limit of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// The limit.
    pub limit: Limit,
    /// When it was set, seconds since 1970.
    pub added: u32,
    /// When it ends, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u32>,
    /// Whether it holds on all hosts of the cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cluster: bool,
}

impl Override {
    /// One that is set now.
    ///
    /// # Errors
    /// A time of no length, or one that ends in the next century.
    pub fn new(limit: Limit, ttl: Option<Duration>, cluster: bool) -> Result<Self, Invalid> {
        let added = now();
        Ok(Self { limit, added, until: end_of(added, ttl)?, cluster })
    }

    /// Whether it has ended, at `now` in seconds since 1970.
    #[must_use]
    pub fn is_over(&self, now: u32) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// What becomes of them: each descriptor once, `None` where there is to be none.
pub type OverrideChanges = Vec<(Descriptor, Option<Override>)>;

/// All that there are, by descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    all: BTreeMap<Descriptor, Override>,
    /// Those that end, by when.
    ends: BTreeSet<(u32, Descriptor)>,
}

impl Overrides {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// That of a descriptor.
    #[must_use]
    pub fn get(&self, descriptor: &Descriptor) -> Option<&Override> {
        self.all.get(descriptor)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Descriptor, &Override)> {
        self.all.iter()
    }

    /// Those behind `last`, in order; all if there is none.
    pub fn after(
        &self,
        last: Option<&Descriptor>,
    ) -> impl Iterator<Item = (&Descriptor, &Override)> {
        self.all.range::<Descriptor, _>((last.map_or(Unbounded, Excluded), Unbounded))
    }

    /// Those that have ended at `now`, seconds since 1970.
    pub fn over(&self, now: u32) -> impl Iterator<Item = &Descriptor> {
        self.ends.iter().take_while(move |(end, _)| *end <= now).map(|(_, descriptor)| descriptor)
    }

    /// Makes changes.
    pub fn apply(&mut self, changes: &OverrideChanges) {
        changes.iter().for_each(|(descriptor, to)| self.put(descriptor, *to));
    }

    fn put(&mut self, descriptor: &Descriptor, to: Option<Override>) {
        let former = match to {
            Some(to) => {
                self.ends.extend(to.until.map(|end| (end, descriptor.clone())));
                self.all.insert(descriptor.clone(), to)
            }
            None => self.all.remove(descriptor),
        };
        let end = former.and_then(|former| former.until);
        if let Some(end) = end.filter(|_| end != to.and_then(|to| to.until)) {
            self.ends.remove(&(end, descriptor.clone()));
        }
    }

    /// What undoes changes.
    #[must_use]
    pub fn undoing(&self, changes: &OverrideChanges) -> OverrideChanges {
        let former = |descriptor| self.all.get(descriptor).copied();
        changes.iter().map(|(descriptor, _)| (descriptor.clone(), former(descriptor))).collect()
    }
}

/// A line of an import: `{"for": ["api", "user", "241531"], "limit": {"rate": "5/second"}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Whose limit it is.
    #[serde(rename = "for")]
    pub descriptor: Descriptor,
    /// The limit.
    pub limit: Limit,
}

impl From<LimitError> for Invalid {
    fn from(error: LimitError) -> Self {
        Self::new(error.to_string())
    }
}

/// Reads lines of JSON; empty ones are left out.
///
/// # Errors
/// The first line that is none, by its number.
pub fn read_lines<'a, T: Deserialize<'a>>(text: &'a str) -> Result<Vec<T>, Invalid> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let read = |(line, number): (&'a str, u64)| {
        serde_json::from_str(line)
            .map_err(|error| Invalid::new(error.to_string()).context(format!("line {number}")))
    };
    lines.map(read).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::meter::Choice;

    #[test]
    fn descriptors_are_read_as_they_are_written() {
        let user = Descriptor::parse("api", &["user=24=15".into(), "path=".into()]).unwrap();
        assert_eq!(user.text(), r#"["api","user","24=15","path",""]"#);
        assert_eq!(user.to_string(), "api user=24=15 path=");
        for wrong in
            ["", "[]", r#"["api"]"#, r#"["","a","b"]"#, r#"["api","a"]"#, r#"["api","","b"]"#]
        {
            assert!(wrong.parse::<Descriptor>().is_err(), "{wrong}");
        }
        assert!(Descriptor::new("api", [("a", "b\n")]).is_err());
        assert!(Descriptor::new("api", [("a", "b".repeat(MAX_LEN).as_str())]).is_err());
        assert!(Descriptor::parse("api", &["user".into()]).is_err());
    }

    proptest! {
        #[test]
        fn any_descriptor_comes_back(parts in prop::collection::vec("[^\\p{Cc}]{1,20}", 3..=5)) {
            let entries = parts[1..].chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str()));
            let made = Descriptor::new(&parts[0], entries).unwrap();
            prop_assert_eq!(&made.text().parse::<Descriptor>().unwrap(), &made);
            let json = serde_json::to_string(&made).unwrap();
            prop_assert_eq!(json.as_str(), made.text());
            prop_assert_eq!(serde_json::from_str::<Descriptor>(&json).unwrap(), made);
        }
    }

    #[test]
    fn those_that_end_are_found_and_changes_are_undone() {
        let of =
            |number: u32| Descriptor::new("api", [("user", number.to_string().as_str())]).unwrap();
        let set = |until| {
            let limit = Limit::of_rate("5/second").unwrap();
            Some(Override { limit, added: 1, until, cluster: false })
        };
        let mut all = Overrides::default();
        all.apply(&vec![(of(1), set(Some(10))), (of(2), set(None)), (of(3), set(Some(20)))]);
        let before = all.clone();
        let changes = vec![(of(1), set(Some(30))), (of(2), set(Some(5))), (of(3), None)];
        let undo = all.undoing(&changes);
        all.apply(&changes);
        let over = |all: &Overrides, now| all.over(now).cloned().collect::<Vec<_>>();
        assert_eq!(
            (over(&all, 4), over(&all, 29), over(&all, 30)),
            (vec![], vec![of(2)], vec![of(2), of(1)])
        );
        // Once more, as with the same end.
        all.apply(&changes);
        assert_eq!(over(&all, 30), [of(2), of(1)]);
        assert_eq!(all.after(Some(&of(1))).count(), 1);
        all.apply(&undo);
        assert_eq!(all, before);
    }

    #[test]
    fn limits_are_written_as_they_are_read() {
        for (text, told) in [
            (r#"{"rate":"5/second"}"#, "5/second"),
            (r#"{"rate":"100/1m30s","burst":7}"#, "100/1m 30s, burst 7"),
            (r#"{"rate":"5/year","algorithm":"sliding-window"}"#, "5/year, sliding-window"),
            (
                r#"{"rate":"60/minute","algorithm":"sub-windows","granularity":6}"#,
                "60/minute, sub-windows of 6 parts",
            ),
        ] {
            let limit: Limit = serde_json::from_str(text).unwrap();
            assert_eq!(
                (serde_json::to_string(&limit).unwrap(), limit.to_string()),
                (text.into(), told.into())
            );
        }
        for wrong in ["5", "/second", "5/fortnight", "-5/second", "5/0s", "x/second"] {
            let json = format!(r#"{{"rate":"{wrong}"}}"#);
            assert!(serde_json::from_str::<Limit>(&json).is_err(), "{wrong}");
        }
        let limit =
            Limit { algorithm: Choice::SlidingLog, ..Limit::of_rate("121/second").unwrap() };
        assert_eq!(limit.checked(), Err(LimitError::LongLog));
    }

    #[test]
    fn lines_are_told_by_their_numbers() {
        let good = r#"{"for":["api","user","1"],"limit":{"rate":"5/second"}}"#;
        let lines: Vec<Line> = read_lines(&format!("{good}\n\n{good}\n")).unwrap();
        assert_eq!(lines.len(), 2);
        let error = read_lines::<Line>(&format!("{good}\n\n{{}}")).unwrap_err();
        assert!(error.to_string().starts_with("line 3: missing field `for`"), "{error}");
    }
}
