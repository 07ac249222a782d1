//! What is replicated: a limit or a denial for each target, the limit of a descriptor, or that there is none any more.

use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use super::clock::{Stamp, WallMs};
use crate::HostId;
use model::lists::{Action, Listing};
use model::overrides::{Descriptor, Override};
use model::{Limit, Target, record};

/// How long it is remembered that something was removed or has ended, ms: a week. Who was away for longer
/// does not bring it back either, see [`super::Replica`].
pub const KEPT_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// The longest text of an item and of its content, bytes, so that an entry fits a message.
const MAX_LEN: usize = 700;

/// What an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// The limit of a target.
    Limit(Target),
    /// The deny list's entry for a source or prefix.
    Denied(IpNet),
    /// The limit of a descriptor.
    Override(Descriptor),
}

/// What there is of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A limit for the cluster.
    Limit(Limit),
    /// An entry of the deny list.
    Denied(Listing),
    /// The limit of a descriptor.
    Override(Override),
}

/// How denied sources and descriptors are told from limits' targets, as text.
const DENIED: &str = "denied ";
const OVERRIDE: &str = "override ";

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(target) => write!(f, "{target}"),
            Self::Denied(net) => write!(f, "{DENIED}{net}"),
            Self::Override(descriptor) => write!(f, "{OVERRIDE}{}", descriptor.text()),
        }
    }
}

impl Item {
    /// Reads what `Display` has written.
    pub(super) fn read(text: &str) -> Option<Self> {
        if let Some(descriptor) = text.strip_prefix(OVERRIDE) {
            let read: Descriptor = descriptor.parse().ok()?;
            // One spelling for each, as of prefixes.
            return (read.text() == descriptor).then_some(Self::Override(read));
        }
        match text.strip_prefix(DENIED) {
            Some(net) => {
                // One spelling for each prefix: `10.0.0.1/8` and `10.0.0.0/8` would be two entries for one source.
                net.parse().ok().filter(|net: &IpNet| net.trunc() == *net).map(Self::Denied)
            }
            None => text.parse().ok().map(Self::Limit),
        }
    }

    /// Where it is in the order that is compared.
    pub(super) fn place(&self) -> u64 {
        // A fixed key, since places have to agree on all hosts. Only members choose what is hashed.
        SipHasher13::new_with_keys(1, 0).hash(self.to_string().as_bytes())
    }

    /// Reads what an entry says of it.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub(super) fn value(&self, content: &str) -> Result<Value, String> {
        match self {
            Self::Limit(target) => {
                let limit = record::read(*target, content)?;
                // Taken, it would be a limit here that its own host does not divide with others.
                if !limit.scope.is_cluster() {
                    return Err("it is not for the cluster".into());
                }
                Ok(Value::Limit(limit))
            }
            Self::Denied(_) => {
                let listing: Listing =
                    serde_json::from_str(content).map_err(|error| error.to_string())?;
                let listing = listing.checked().map_err(|error| error.to_string())?;
                // An exception from all limits is each host's own: a faulty member must not open the others.
                if listing.action != Action::Deny {
                    return Err("it is not for the deny list".into());
                }
                Ok(Value::Denied(listing))
            }
            Self::Override(_) => {
                let read = serde_json::from_str(content);
                read.map(Value::Override).map_err(|error| error.to_string())
            }
        }
    }
}

impl Value {
    /// It as text.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Limit(limit) => record::record(&limit.amount),
            // Plain values always make JSON.
            Self::Denied(listing) => serde_json::to_string(listing).unwrap_or_default(),
            Self::Override(to) => serde_json::to_string(to).unwrap_or_default(),
        }
    }

    /// When it ends by itself, ms since 1970.
    pub(super) fn end(&self) -> Option<WallMs> {
        match self {
            Self::Limit(_) => None,
            Self::Denied(Listing { until, .. }) | Self::Override(Override { until, .. }) => {
                until.map(|until| u64::from(until) * 1000)
            }
        }
    }
}

/// What an item is, or is no more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Content {
    /// It is this, as text.
    #[serde(rename = "is")]
    Is(Box<str>),
    /// It is no more, since this millisecond.
    #[serde(rename = "gone")]
    Gone(WallMs),
}

/// What was last said of an item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
// The derived order decides who wins, by the fields from the top: so their order is that of the tie-breaks.
pub(super) struct Entry {
    /// When.
    #[serde(rename = "at")]
    pub(super) stamp: Stamp,
    /// By which host.
    #[serde(rename = "by")]
    pub(super) host: u64,
    /// What. The last resort of the order, for a host that says two things at once.
    #[serde(flatten)]
    pub(super) content: Content,
}

impl Entry {
    /// The host that has said it.
    pub(super) const fn host(&self) -> HostId {
        HostId(self.host)
    }

    /// Whether it says that there is something.
    pub(super) const fn is_live(&self) -> bool {
        matches!(self.content, Content::Is(_))
    }

    /// A number of it and its item, in which any difference shows.
    pub(super) fn hash(&self, item: &Item) -> u64 {
        // Zeros between the parts, which no text has: else two entries could make one row of bytes.
        let mut text = item.to_string().into_bytes();
        text.push(0);
        text.extend(self.stamp.0.to_le_bytes());
        text.extend(self.host.to_le_bytes());
        match &self.content {
            Content::Is(content) => text.extend(content.bytes()),
            Content::Gone(since) => {
                text.push(0);
                text.extend(since.to_le_bytes());
            }
        }
        SipHasher13::new_with_keys(2, 0).hash(&text)
    }

    /// Whether it is short enough to be told to others.
    pub(super) fn fits(&self, item: &Item) -> bool {
        let content = match &self.content {
            Content::Is(content) => content.len(),
            Content::Gone(_) => 0,
        };
        item.to_string().len() + content <= MAX_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_and_values_are_read_as_they_are_written() {
        let limit = Limit::new("10.0.0.0/8 udp:53".parse().unwrap(), "5pps".parse().unwrap(), None);
        let scope = model::Scope::Cluster { partition: Default::default() };
        let limit = limit.unwrap().scoped(scope).unwrap();
        let listing = Listing::banned(60, "over 5pps".into());
        for (item, value) in [
            (Item::Limit(limit.target), Value::Limit(limit)),
            (Item::Denied("2001:db8::/64".parse().unwrap()), Value::Denied(listing)),
            (
                Item::Override(Descriptor::new("api", [("user", "a b")]).unwrap()),
                Value::Override(
                    Override::new(model::meter::Limit::of_rate("5/hour").unwrap(), None, true)
                        .unwrap(),
                ),
            ),
        ] {
            assert_eq!(Item::read(&item.to_string()), Some(item.clone()));
            assert_eq!(item.value(&value.text()), Ok(value));
        }
        for wrong in [
            "",
            "denied default",
            "denied 10.0.0.1/8",
            "10.0.0.1/8",
            "denied",
            "override api",
            r#"override ["api", "user", "1"]"#,
        ] {
            assert_eq!(Item::read(wrong), None, "{wrong}");
        }
        let (target, net) =
            (Item::Limit(Target::DEFAULT), Item::Denied("10.0.0.0/8".parse().unwrap()));
        for (item, wrong) in [
            (target.clone(), ""),
            (target.clone(), r#"{"rate":"5pps","burst":5}"#),
            (
                target,
                r#"{"rate":"5pps","burst":0,"scope":{"cluster":{"partition":"conservative"}}}"#,
            ),
            (net.clone(), r#"{"action":"allow","added":1}"#),
            (net.clone(), r#"{"action":"deny","added":1,"reason":"two\nlines"}"#),
            (net, "[]"),
        ] {
            item.value(wrong).unwrap_err();
        }
    }
}
