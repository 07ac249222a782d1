//! The allow and deny lists: sources that are let through or dropped whatever they send.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use limiter_common::lists;
use serde::{Deserialize, Serialize};

use super::invalid::Invalid;
use super::prefix::{self, prefixes_of, short_prefix, source_of};
use super::scope::{Reach, for_cluster};
use super::target::TargetError;

mod entries;

pub use entries::Lists;

/// What becomes of a listed source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Every packet passes.
    Allow,
    /// Every packet is dropped.
    Deny,
}

impl Action {
    /// Its name in commands and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }

    /// What the list does to a source, in messages: `allowed`.
    pub const fn done(self) -> &'static str {
        match self {
            Self::Allow => "allowed",
            Self::Deny => "denied",
        }
    }

    /// As the kernel knows it.
    pub const fn kernel(self) -> lists::Action {
        match self {
            Self::Allow => lists::Action::Allow,
            Self::Deny => lists::Action::Deny,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When what is added at `added` ends after `ttl`, both in seconds since 1970.
///
/// # Errors
/// A time of no length, or one that ends in the next century.
pub fn end_of(added: u32, ttl: Option<Duration>) -> Result<Option<u32>, Invalid> {
    let Some(ttl) = ttl else { return Ok(None) };
    // Entries end by the second, so this one would never have been in force.
    if ttl < Duration::from_secs(1) {
        return Err(Invalid::new("--ttl is less than a second")
            .with_hint("give a time such as 10m, 12h or 7d, or leave it out"));
    }
    let until = u32::try_from(ttl.as_secs()).ok().and_then(|ttl| added.checked_add(ttl));
    let until = until.ok_or_else(|| {
        Invalid::new("--ttl reaches beyond the year 2106")
            .with_hint("leave it out for an entry that does not expire")
    })?;
    Ok(Some(until))
}

/// What the lists say of a source or a prefix. Equal reasons share their text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// What becomes of it.
    pub action: Action,
    /// Why, in the operator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// When it was listed, seconds since 1970.
    pub added: u32,
    /// When the entry expires, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u32>,
    /// Whether nobody has asked for it: a limit's ban has made it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ban: bool,
    /// Whether it holds on all hosts of the cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cluster: bool,
}

impl Listing {
    /// A new entry.
    ///
    /// # Errors
    /// A lifetime of no length, or one that ends in the next century.
    pub fn new(
        action: Action,
        ttl: Option<Duration>,
        reason: Option<String>,
    ) -> Result<Self, Invalid> {
        let added = now();
        let until = end_of(added, ttl)?;
        Self { action, reason: reason.map(Into::into), added, until, ban: false, cluster: false }
            .checked()
    }

    /// The entry, which comes from elsewhere.
    ///
    /// # Errors
    /// A reason that is too long, or has line breaks.
    pub fn checked(self) -> Result<Self, Invalid> {
        if let Some(reason) = &self.reason
            // A million reasons are kept in memory. And a line break would forge lines of logs and
            // tables.
            && (reason.len() > 256 || reason.chars().any(char::is_control))
        {
            return Err(Invalid::new("--reason is longer than 256 bytes or has line breaks")
                .with_hint("give a few words"));
        }
        Ok(self)
    }

    /// The entry on this host alone, which it is if nothing is said, or on all hosts of the cluster.
    ///
    /// # Errors
    /// If it is for the cluster and not for the deny list.
    pub fn scoped(self, reach: Option<Reach>) -> Result<Self, Invalid> {
        let cluster = for_cluster(reach)?;
        // An allowed source passes all limits: each host decides for itself whom it exempts.
        if cluster && self.action != Action::Deny {
            return Err(Invalid::new("only denials can be for the cluster").with_hint(
                "leave --scope out, and allow the source on each host that is to let it through",
            ));
        }
        Ok(Self { cluster, ..self })
    }

    /// A ban that begins now and lasts so many seconds.
    // On this host alone: what another host gets of the source may be within its limit.
    pub fn banned(seconds: u32, reason: String) -> Self {
        let added = now();
        let until = Some(added.saturating_add(seconds));
        let reason = Some(reason.into());
        Self { action: Action::Deny, reason, added, until, ban: true, cluster: false }
    }

    /// Whether it is over at `now`, in seconds since 1970.
    pub fn is_over(&self, now: u32) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// Seconds since 1970.
pub fn now() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Four bytes, as there may be a million entries; they suffice until 2106.
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// What is to become of some entries; each target once.
pub type ListChanges = Vec<(IpNet, Option<Listing>)>;

/// The entry for the longest prefix that contains `source`.
pub fn find(lists: &Lists, source: IpNet) -> Option<(IpNet, &Listing)> {
    // Else each source that is shown would ask for 33 or 129 prefixes.
    if lists.is_empty() {
        return None;
    }
    find_by(source, |net| lists.get(net))
}

/// The entry for the longest prefix that contains `source`, where `get` tells the one for a prefix.
pub fn find_by<'a>(
    source: IpNet,
    get: impl Fn(&IpNet) -> Option<&'a Listing>,
) -> Option<(IpNet, &'a Listing)> {
    // The longest first, as the tries of the kernel: an allowed address within a denied prefix
    // passes.
    prefixes_of(source).find_map(|net| get(&net).map(|listing| (net, listing)))
}

/// Prefixes shorter than this may only be listed on purpose: of IPv4, and of IPv6.
// No network that an operator lists is wider: registries hold /8s of IPv4.
const SHORTEST_PREFIXES: (u8, u8) = (8, 16);

/// Whether `net` is so wide that an entry for it is more likely a slip than a wish.
pub fn is_wide(net: &IpNet) -> bool {
    let (v4, v6) = SHORTEST_PREFIXES;
    net.prefix_len() < if net.addr().is_ipv4() { v4 } else { v6 }
}

/// What an entry of the list `action` for the wide prefix `net` hits, in a few words.
pub fn reach_of_wide(action: Action, net: &IpNet) -> String {
    let (family, bits) = if net.addr().is_ipv4() { ("IPv4", 32) } else { ("IPv6", 128) };
    // Exact: at most 2^128.
    let addresses = 2_f64.powi(bits - i32::from(net.prefix_len()));
    let addresses = match bits {
        32 => format!("{:.2} billion", addresses / 1e9),
        _ => format!("{addresses:.1e}"),
    };
    let share = 100.0 / 2_f64.powi(i32::from(net.prefix_len()));
    let what = match net.prefix_len() {
        0 => format!("all {family} addresses ({addresses})"),
        _ => format!("{addresses} addresses, {share:.3} % of {family}"),
    };
    let verb = match action {
        Action::Allow => "allows",
        Action::Deny => "denies",
    };
    format!("{verb} {}: {what}", short_prefix(net))
}

/// Refuses entries for very wide prefixes, unless `yes` says that they are meant.
///
/// # Errors
/// The first wide one.
pub fn check_wide<'a>(
    action: Action,
    targets: impl IntoIterator<Item = &'a IpNet>,
    yes: bool,
) -> Result<(), Invalid> {
    match targets.into_iter().find(|net| is_wide(net)) {
        Some(target) if !yes => {
            Err(Invalid::new(format!("this {}", reach_of_wide(action, target)))
                .with_hint("add --yes if that is meant (over the API: yes=true)"))
        }
        _ => Ok(()),
    }
}

/// Reads targets, with white space between them; `#` begins a comment. Sources have `(v4, v6)` bits.
///
/// # Errors
/// The first one that is no target, or occurs twice, by its line if there are several; then all are
/// refused.
pub fn read(text: &str, (v4, v6): (u8, u8)) -> Result<Vec<IpNet>, Invalid> {
    let mut seen: HashMap<IpNet, usize> = HashMap::new();
    let mut targets = Vec::new();
    // Arguments of a command are one line, whose number would tell nothing.
    let has_lines = text.lines().nth(1).is_some();
    for (line, content) in (1..).zip(text.lines()) {
        let words = content.split('#').next().unwrap_or_default().split_whitespace();
        for word in words {
            let at = |error: Invalid| match has_lines {
                true => error.context(format!("line {line}")),
                false => error,
            };
            let target = parse(word, (v4, v6)).map_err(at)?;
            // Two entries for one target would be in the order of the text, which a list does not
            // have.
            if let Some(earlier) = seen.insert(target, line) {
                let text = match earlier == line {
                    true => format!("{} is there twice", short_prefix(&target)),
                    false => format!("{} is in line {earlier} already", short_prefix(&target)),
                };
                return Err(at(Invalid::new(text).with_hint("keep one of them")));
            }
            targets.push(target);
        }
    }
    if targets.is_empty() {
        return Err(Invalid::new("there is no address to list")
            .with_hint("give addresses or prefixes, one in a line"));
    }
    Ok(targets)
}

/// Reads addresses, with white space between them: the sources that they are of.
///
/// # Errors
/// The first one that is no address.
pub fn read_sources(text: &str, (v4, v6): (u8, u8)) -> Result<Vec<IpNet>, Invalid> {
    let source = |word: &str| match word.parse() {
        Ok(address) => Ok(source_of(address, v4, v6)),
        Err(_) => Err(Invalid::new(format!("{word:?} is no IP address"))),
    };
    // Two addresses may be of one source.
    let all: BTreeSet<IpNet> = text.split_whitespace().map(source).collect::<Result<_, _>>()?;
    Ok(all.into_iter().collect())
}

/// Reads what an entry can be for: an address or a prefix, but not `default`.
///
/// # Errors
/// If it is neither, or has host bits set.
pub fn parse_target(text: &str) -> Result<IpNet, Invalid> {
    Ok(prefix::read(text)?)
}

/// Reads a target of which sources are not a part.
fn parse(text: &str, (v4, v6): (u8, u8)) -> Result<IpNet, Invalid> {
    let target = parse_target(text)?;
    let bits = if target.addr().is_ipv4() { v4 } else { v6 };
    // The kernel program looks whole sources up. An entry for a part of one would deny all of it.
    if target.prefix_len() > bits {
        return Err(TargetError::FinerThanSource { target, bits }.into());
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Explain as _;

    fn listing(action: Action) -> Listing {
        Listing::new(action, None, None).unwrap()
    }

    #[test]
    fn addresses_of_a_program_stand_for_their_sources() {
        let read = |text| {
            read_sources(text, (32, 64)).map(|all| all.iter().map(short_prefix).collect::<Vec<_>>())
        };
        let sources = read("192.0.2.1\n2001:db8::1 2001:db8::2").unwrap();
        assert_eq!(sources, ["192.0.2.1", "2001:db8::/64"]);
        assert!(read("192.0.2.0/24").is_err() && read("nobody").is_err());
    }

    #[test]
    fn one_bad_line_refuses_all_and_is_named() {
        let good =
            read("192.0.2.1\n\n2001:db8::/48 # a comment\n198.51.100.0/24", (32, 64)).unwrap();
        assert_eq!(good.len(), 3);
        for (text, line) in [
            ("192.0.2.1\nnonsense\n", "line 2"),
            ("192.0.2.1\n192.0.2.1/32\n", "line 2: 192.0.2.1 is in line 1"),
            ("\ndefault", "line 2"),
            ("\n2001:db8::1", "line 2"),
            ("\n192.0.2.1/24", "line 2"),
            ("# nothing", "no address"),
            ("\n192.0.2.1 192.0.2.2 192.0.2.1", "line 2: 192.0.2.1 is there twice"),
        ] {
            let error = read(text, (32, 64)).unwrap_err();
            assert!(error.to_string().contains(line), "{error}");
            assert!(error.hint().is_some(), "{error}");
        }
    }

    #[test]
    fn arguments_have_no_lines_and_no_default() {
        assert_eq!(read("192.0.2.1 198.51.100.0/24", (32, 64)).unwrap().len(), 2);
        for text in ["198.51.100.7x", "192.0.2.1 default", "192.0.2.7 192.0.2.7", "2001:db8::1"] {
            let error = read(text, (32, 64)).unwrap_err();
            let all = format!("{error} {}", error.hint().unwrap_or_default());
            assert!(!all.contains("line "), "{all}");
            assert!(!all.contains("or default"), "{all}");
        }
    }

    #[test]
    fn wide_prefixes_are_only_listed_on_purpose() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        for (text, wide) in [
            ("0.0.0.0/0", true),
            ("10.0.0.0/7", true),
            ("10.0.0.0/8", false),
            ("10.0.0.1/32", false),
            ("::/0", true),
            ("2000::/15", true),
            ("2001::/16", false),
        ] {
            for action in [Action::Allow, Action::Deny] {
                let one = net("192.0.2.1/32");
                let refused = check_wide(action, [&one, &net(text)], false);
                assert_eq!(refused.is_err(), wide, "{text}");
                check_wide(action, [&one, &net(text)], true).unwrap();
                let Err(error) = refused else { continue };
                assert!(error.to_string().contains(text), "{error}");
                assert!(error.hint().unwrap().contains("--yes"));
            }
        }
        for (action, text, told) in [
            (Action::Deny, "0.0.0.0/0", "denies 0.0.0.0/0: all IPv4 addresses (4.29 billion)"),
            (
                Action::Allow,
                "64.0.0.0/2",
                "allows 64.0.0.0/2: 1.07 billion addresses, 25.000 % of IPv4",
            ),
            (Action::Deny, "::/0", "denies ::/0: all IPv6 addresses (3.4e38)"),
            (Action::Deny, "2000::/3", "denies 2000::/3: 4.3e37 addresses, 12.500 % of IPv6"),
        ] {
            assert_eq!(reach_of_wide(action, &net(text)), told);
        }
    }

    #[test]
    fn the_longest_prefix_wins() {
        let mut lists = Lists::default();
        lists.insert("198.51.100.0/24".parse().unwrap(), listing(Action::Deny));
        lists.insert("198.51.100.7/32".parse().unwrap(), listing(Action::Allow));
        let found = |text: &str| {
            let source = IpNet::from(text.parse::<std::net::IpAddr>().unwrap());
            find(&lists, source).map(|(_, listing)| listing.action)
        };
        assert_eq!(found("198.51.100.7"), Some(Action::Allow));
        assert_eq!(found("198.51.100.8"), Some(Action::Deny));
        assert_eq!(found("198.51.101.8"), None);
    }

    #[test]
    fn lifetimes_and_reasons_have_bounds() {
        let new = |ttl, reason: &str| Listing::new(Action::Deny, ttl, Some(reason.into()));
        assert!(new(Some(Duration::from_millis(10)), "x").is_err());
        assert!(new(Some(Duration::from_secs(u64::MAX)), "x").is_err());
        assert!(new(None, "two\nlines").is_err());
        let good = new(Some(Duration::from_secs(60)), "scanner").unwrap();
        assert!(!good.is_over(good.added) && good.is_over(good.added + 60));
    }
}
