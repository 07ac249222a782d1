//! What happens, told to the log, to whoever listens, and to whoever asks later.

use std::collections::VecDeque;
use std::time::Instant;

use ipnet::IpNet;
use limiter_common::abi::{EventKind, Internal};

use super::core::Core;
use super::kept_changes::{ChangesFile, FILE};
use api::ChangesReport;
use api::error::Failure;
use api::requests::ChangeOptions;
use dataplane;
use telemetry::detect::{Jump, Pressure, Spread};
use telemetry::event::By;
use telemetry::throttle::Throttle;
use telemetry::{Event, Sample, What};

/// Changes that are remembered.
const CHANGES: usize = 100;
/// Other events that are remembered.
const OTHERS: usize = 200;
/// Sources that began to be limited and wait to be noticed; others are found a little later.
const NOTICED: usize = 256;
/// How often the table is looked at while it could be full, s: a look takes milliseconds.
const LOOK: u64 = 5;
/// Share of the buckets in use from which it could be.
const COULD_BE_FULL: f64 = 0.6;

/// What was told, and what it takes to know what is to be.
pub(super) struct EventLog {
    /// Who asks for what is being done; `None` for the daemon itself.
    pub(super) by: Option<By>,
    started: Instant,
    throttle: Throttle,
    changes: VecDeque<Event>,
    /// Where they are kept; `None` until that is opened.
    kept: Option<ChangesFile>,
    others: VecDeque<Event>,
    /// Whether sources are suddenly many.
    pub(super) jump: Jump,
    spread: Spread,
    pressure: Pressure,
    /// Sources that began to be limited, for whoever divides limits of the cluster.
    limited: Vec<IpNet>,
    /// Events that were lost at the last sample.
    lost: Option<u64>,
    looked: Option<u64>,
}

impl Default for EventLog {
    fn default() -> Self {
        Self {
            by: None,
            started: Instant::now(),
            throttle: Throttle::default(),
            changes: VecDeque::new(),
            kept: None,
            others: VecDeque::new(),
            jump: Jump::default(),
            spread: Spread::default(),
            pressure: Pressure::default(),
            limited: Vec::new(),
            lost: None,
            looked: None,
        }
    }
}

fn remember(events: &mut VecDeque<Event>, most: usize, event: &Event) {
    if events.len() == most {
        events.pop_front();
    }
    events.push_back(event.clone());
}

impl Core {
    /// Tells what happens now.
    pub(super) fn tell(&mut self, what: What) {
        self.tell_event(Event::now(what));
    }

    fn tell_event(&mut self, event: Event) {
        let (kind, told) = (event.what.kind(), &mut self.told);
        if kind.is_change() {
            // However many there are: who has done it must be found later.
            remember(&mut told.changes, CHANGES, &event);
            if let Some(kept) = &mut told.kept {
                kept.add(&event, &told.changes);
            }
        }
        if !told.throttle.admits(kind, told.started.elapsed()) {
            return;
        }
        if !kind.is_change() {
            remember(&mut told.others, OTHERS, &event);
        }
        event.log();
        self.bus.tell(event);
    }

    /// Remembers the changes that earlier daemons have kept, and keeps those to come.
    pub(super) fn open_changes(&mut self) {
        let path = self.store.path().with_file_name(FILE);
        let (kept, changes) = ChangesFile::open(&path, CHANGES);
        (self.told.kept, self.told.changes) = (Some(kept), changes);
    }

    /// Tells that a policy has changed, `how`, for so many seconds.
    pub(super) fn tell_policy(
        &mut self,
        what: String,
        how: &ChangeOptions,
        ttl_seconds: Option<u64>,
    ) {
        let confirm_seconds = how.confirm.map(|period| period.as_secs());
        let by = self.told.by.clone();
        self.tell(What::Policy { what, by, ttl_seconds, confirm_seconds });
    }

    /// Tells what the data plane has told since the last time.
    pub(super) fn tell_of_plane(&mut self) {
        let mut events = Vec::new();
        self.plane.events(&mut |event| events.push(event));
        let now = self.told.started.elapsed().as_secs();
        for event in events {
            let (source, limited) = (event.source, event.kind == EventKind::Limited);
            if limited && self.replicated.is_some() && self.told.limited.len() < NOTICED {
                self.told.limited.push(source);
            }
            self.tell_event(event_of(event));
            if limited && let Some((prefix, sources)) = self.told.spread.note(now, source) {
                self.tell(What::Spread { prefix, sources });
            }
        }
    }

    /// Tells what the data plane has told, and which sources have begun to be limited since the last time.
    pub(super) fn begun_to_be_limited(&mut self) -> Vec<IpNet> {
        self.tell_of_plane();
        std::mem::take(&mut self.told.limited)
    }

    /// Tells what a sample shows.
    pub(super) fn tell_of_sample(&mut self, sample: &Sample) {
        let now = sample.monotonic_ns / 1_000_000_000;
        if let Some(distinct) = sample.distinct
            && let Some(median) = self.told.jump.note(now, distinct.sources)
        {
            self.tell(What::DistinctJump { sources: distinct.sources, median });
        }
        let lost = sample.internal(Internal::EventsLost);
        let before = self.told.lost.replace(lost).unwrap_or(lost);
        if lost > before {
            self.tell(What::EventsLost { count: lost - before });
        }
        self.tell_of_table(now, sample.tracked());
        for (kind, count) in self.told.throttle.suppressed() {
            self.tell(What::Suppressed { kind, count });
        }
    }

    fn tell_of_table(&mut self, now: u64, tracked: u64) {
        let recent = self.told.looked.is_some_and(|looked| now.saturating_sub(looked) < LOOK);
        if recent || (tracked as f64) < self.plane.buckets() as f64 * COULD_BE_FULL {
            return;
        }
        self.told.looked = Some(now);
        let table = self.plane.table();
        let busy = table.busy as f64 / f64::from(table.capacity).max(1.0);
        if let Some(high) = self.told.pressure.note(busy) {
            self.tell(What::TablePressure { high, busy });
        }
    }

    /// Tells that the daemon works. Cannot fail.
    pub fn tell_started(&mut self) -> Result<(), Failure> {
        self.tell(What::Started { version: env!("CARGO_PKG_VERSION").into() });
        Ok(())
    }

    /// Tells that the daemon ends, which also ends what streams events. Cannot fail.
    pub fn tell_stopping(&mut self) -> Result<(), Failure> {
        self.tell(What::Stopping);
        Ok(())
    }

    /// The last changes and other events.
    pub fn changes(&self) -> ChangesReport {
        ChangesReport {
            changes: self.told.changes.iter().cloned().collect(),
            events: self.told.others.iter().cloned().collect(),
        }
    }
}

/// What listeners are told of an event of the data plane.
pub(super) fn event_of(event: dataplane::Event) -> Event {
    let source = event.source;
    let what = match event.kind {
        EventKind::Limited => {
            What::Limited { source, limit: event.limit.map(|limit| limit.rate.to_string()) }
        }
        EventKind::SetFull => What::SetFull { source },
    };
    Event::at(event.time, what)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fake::Fake;
    use model::Limit;
    use model::lists::{Action, Listing};
    use telemetry::event::Kind;

    fn texts(core: &Core) -> Vec<String> {
        core.changes().changes.iter().map(|event| event.what.to_string()).collect()
    }

    #[test]
    fn changes_are_remembered_with_who_made_them() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut core = fake.core(&directory);
        let mut heard = core.bus().events();
        core.told.by = Some(By { uid: Some(7), user: "ann".into() });
        let limit = |rate: &str| {
            Limit::new("192.0.2.1".parse().unwrap(), rate.parse().unwrap(), None).unwrap()
        };
        let how =
            ChangeOptions { confirm: Some(Duration::from_secs(60)), ..ChangeOptions::default() };
        core.set(&limit("5pps"), &how).unwrap();
        // Neither what changes nothing nor a dry run is a change.
        core.abort().unwrap();
        core.set(&limit("5pps"), &ChangeOptions { dry_run: true, ..ChangeOptions::default() })
            .unwrap();
        core.told.by = None;
        let listing = Listing::new(Action::Deny, Some(Duration::from_secs(90)), None).unwrap();
        core.list_add(&["192.0.2.9/32".parse().unwrap()], &listing, &ChangeOptions::default())
            .unwrap();
        let told = core.changes().changes;
        let set = serde_json::to_value(&told[0]).unwrap();
        assert_eq!((&set["event"], &set["by"]["user"]), (&"policy".into(), &"ann".into()));
        assert_eq!(set["confirm_seconds"], 60);
        assert!(set["what"].as_str().unwrap().starts_with("limit for 192.0.2.1: 5pps"), "{set}");
        assert_eq!(told[1].what.kind().name(), "reverted");
        let add = serde_json::to_value(&told[2]).unwrap();
        assert_eq!((&add["ttl_seconds"], &add["by"]), (&90.into(), &serde_json::Value::Null));
        assert_eq!(texts(&core).len(), 3);
        for told in told {
            assert_eq!(*heard.try_recv().unwrap(), told);
        }
        assert!(heard.try_recv().is_err());
    }

    #[test]
    fn the_next_daemon_knows_of_changes() {
        let directory = tempfile::tempdir().unwrap();
        let mut core = Fake::default().core(&directory);
        core.open_changes();
        core.tell_policy("one".into(), &ChangeOptions::default(), None);
        core.tell(What::Suppressed { kind: Kind::Limited, count: 3 });
        drop(core);
        let mut core = Fake::default().core(&directory);
        core.open_changes();
        core.tell_policy("two".into(), &ChangeOptions::default(), None);
        assert_eq!(texts(&core), ["one", "two"]);
    }

    #[test]
    fn memory_of_changes_is_bounded_and_a_flood_of_them_is_told_as_a_number() {
        let directory = tempfile::tempdir().unwrap();
        let mut core = Fake::default().core(&directory);
        let mut heard = core.bus().events();
        for i in 0..250 {
            core.tell_policy(format!("change {i}"), &ChangeOptions::default(), None);
        }
        let texts = texts(&core);
        assert_eq!((texts.len(), texts[99].as_str()), (CHANGES, "change 249"));
        let sample = core.sample().unwrap();
        core.tell_of_sample(&sample);
        let told: Vec<_> = std::iter::from_fn(|| heard.try_recv().ok()).collect();
        assert!((20..30).contains(&told.len()), "{}", told.len());
        let rest = 250 - (told.len() - 1) as u64;
        let What::Suppressed { count, .. } = told[told.len() - 1].what else { panic!("{told:?}") };
        assert_eq!(count, rest);
    }
}
