//! What a line of the screen is about, be it a source, a prefix or a class.

use std::time::SystemTime;

use ipnet::IpNet;

use api::{GroupEntry, LimitReport, TopEntry};
use model::Class;
use model::source::SourceState;
use model::target::short_prefix;

/// By what a line is known again at the next look.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
// A source has a bucket, and so a line, for each limited class: its address alone would be that of
// several.
pub(super) struct Name {
    /// The source, the prefix or the class.
    pub(super) text: String,
    /// Of a source, the class of its packets.
    pub(super) class: Option<Class>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) name: Name,
    pub(super) net: Option<IpNet>,
    pub(super) state: SourceState,
    pub(super) limit: String,
    pub(super) pps: f64,
    pub(super) bps: f64,
    pub(super) passed: u64,
    pub(super) dropped: u64,
    /// What `passed` may be too low by.
    pub(super) uncounted: Option<u64>,
    pub(super) first_seen: Option<SystemTime>,
    pub(super) last_seen: Option<SystemTime>,
    /// How many sources it sums up, if it does.
    pub(super) sources: Option<u64>,
}

fn moment(text: Option<&String>) -> Option<SystemTime> {
    humantime::parse_rfc3339(text?).ok()
}

impl From<&TopEntry> for Line {
    fn from(entry: &TopEntry) -> Self {
        Self {
            name: Name { text: short_prefix(&entry.source), class: entry.class },
            net: Some(entry.source),
            state: entry.state,
            limit: entry.limit.as_ref().map_or("none".into(), LimitReport::rates),
            pps: entry.pps,
            bps: entry.bps,
            passed: entry.passed,
            dropped: entry.dropped,
            uncounted: Some(entry.uncounted),
            first_seen: moment(entry.first_seen.as_ref()),
            last_seen: moment(entry.last_seen.as_ref()),
            sources: None,
        }
    }
}

impl From<&GroupEntry> for Line {
    fn from(entry: &GroupEntry) -> Self {
        // A class is no prefix: it has no network to filter by.
        let net = entry.group.parse().ok();
        let tally = &entry.tally;
        let state = if tally.limited > 0 { SourceState::Limited } else { SourceState::Conforming };
        Self {
            name: Name { text: entry.group.clone(), class: None },
            net,
            state,
            // A group has many limits. How many of its sources are over theirs is what can be told of all.
            limit: format!("{} limited", tally.limited),
            pps: tally.pps,
            bps: tally.bps,
            passed: tally.passed,
            dropped: tally.dropped,
            // Errors of single sources do not add up to one that means
            // anything: most of a group may never have passed the gate.
            uncounted: None,
            first_seen: moment(entry.first_seen.as_ref()),
            last_seen: moment(entry.last_seen.as_ref()),
            sources: Some(tally.sources),
        }
    }
}

impl Line {
    pub(super) fn class(&self) -> String {
        self.name.class.map(|class| class.to_string()).unwrap_or_default()
    }

    /// What can be searched for.
    pub(super) fn texts(&self) -> impl Iterator<Item = String> {
        [self.name.text.clone(), self.class(), self.state.name().into(), self.limit.clone()]
            .into_iter()
    }
}
