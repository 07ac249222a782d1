//! What happens, told to the log, to whoever listens, and to whoever asks later.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use ipnet::IpNet;
use limiter_common::abi::{EventKind, Internal};

use super::kept_changes::{ChangesFile, FILE};
use super::plane::Plane;
use api::ChangesReport;
use api::requests::ChangeOptions;
use telemetry::detect::{Jump, Pressure, Spread};
use telemetry::event::By;
use telemetry::throttle::Throttle;
use telemetry::{Bus, Event, Sample, What};

/// Changes that are remembered.
const CHANGES: usize = 100;
/// Other events that are remembered.
const OTHERS: usize = 200;
/// How often the table is looked at while it could be full, s: a look takes milliseconds.
const LOOK: u64 = 5;
/// Share of the buckets in use from which it could be.
const COULD_BE_FULL: f64 = 0.6;

/// What was told, and what it takes to know what is to be.
pub struct EventLog {
    /// Who asks for what is being done; `None` for the daemon itself.
    pub(super) by: Option<By>,
    bus: Bus,
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
    /// Events that were lost at the last sample.
    lost: Option<u64>,
    looked: Option<u64>,
}

impl Default for EventLog {
    fn default() -> Self {
        Self {
            by: None,
            bus: Bus::default(),
            started: Instant::now(),
            throttle: Throttle::default(),
            changes: VecDeque::new(),
            kept: None,
            others: VecDeque::new(),
            jump: Jump::default(),
            spread: Spread::default(),
            pressure: Pressure::default(),
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

impl EventLog {
    /// Where samples and events can be listened to.
    pub const fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Tells what happens now.
    pub fn tell(&mut self, what: What) {
        self.tell_event(Event::now(what));
    }

    fn tell_event(&mut self, event: Event) {
        let kind = event.what.kind();
        if kind.is_change() {
            // However many there are: who has done it must be found later.
            remember(&mut self.changes, CHANGES, &event);
            if let Some(kept) = &mut self.kept {
                kept.add(&event, &self.changes);
            }
        }
        if !self.throttle.admits(kind, self.started.elapsed()) {
            return;
        }
        if !kind.is_change() {
            remember(&mut self.others, OTHERS, &event);
        }
        event.log();
        self.bus.tell(event);
    }

    /// Remembers the changes that earlier daemons have kept in the state directory, and keeps those to come.
    pub(super) fn open_changes(&mut self, state_dir: &Path) {
        let (kept, changes) = ChangesFile::open(&state_dir.join(FILE), CHANGES);
        (self.kept, self.changes) = (Some(kept), changes);
    }

    /// Tells that a policy has changed, `how`, for so many seconds.
    pub(super) fn tell_policy(
        &mut self,
        what: impl Into<String>,
        how: &ChangeOptions,
        ttl_seconds: Option<u64>,
    ) {
        let confirm_seconds = how.confirm.map(|period| period.as_secs());
        let by = self.by.clone();
        self.tell(What::Policy { what: what.into(), by, ttl_seconds, confirm_seconds });
    }

    /// Tells what the data plane has told since the last time.
    pub(super) fn tell_of_plane(&mut self, plane: &mut dyn Plane) {
        let mut events = Vec::new();
        plane.events(&mut |event| events.push(event));
        let now = self.started.elapsed().as_secs();
        for event in events {
            let (source, limited) = (event.source, event.kind == EventKind::Limited);
            self.tell_event(event_of(event));
            if limited && let Some((prefix, sources)) = self.spread.note(now, source) {
                self.tell(What::Spread { prefix, sources });
            }
        }
    }

    /// The prefixes of which many sources were limited within the last minute.
    pub(super) fn spreading(&self) -> Vec<IpNet> {
        self.spread.recent(self.started.elapsed().as_secs())
    }

    /// Tells what a sample of the data plane shows.
    pub(super) fn tell_of_sample(&mut self, sample: &Sample, plane: &dyn Plane) {
        let now = sample.monotonic_ns / 1_000_000_000;
        if let Some(distinct) = sample.distinct
            && let Some(median) = self.jump.note(now, distinct.sources)
        {
            self.tell(What::DistinctJump { sources: distinct.sources, median });
        }
        let lost = sample.internal(Internal::EventsLost);
        let before = self.lost.replace(lost).unwrap_or(lost);
        if lost > before {
            self.tell(What::EventsLost { count: lost - before });
        }
        self.tell_of_table(now, sample.tracked(), plane);
        for (kind, count) in self.throttle.suppressed() {
            self.tell(What::Suppressed { kind, count });
        }
    }

    fn tell_of_table(&mut self, now: u64, tracked: u64, plane: &dyn Plane) {
        let recent = self.looked.is_some_and(|looked| now.saturating_sub(looked) < LOOK);
        if recent || (tracked as f64) < plane.buckets() as f64 * COULD_BE_FULL {
            return;
        }
        self.looked = Some(now);
        let table = plane.table();
        let busy = table.busy as f64 / f64::from(table.capacity).max(1.0);
        if let Some(high) = self.pressure.note(busy) {
            self.tell(What::TablePressure { high, busy });
        }
    }

    /// The last changes and other events.
    pub fn changes(&self) -> ChangesReport {
        ChangesReport {
            changes: self.changes.iter().cloned().collect(),
            events: self.others.iter().cloned().collect(),
        }
    }
}

/// What listeners are told of an event of the data plane.
pub(super) fn event_of(event: dataplane::Event) -> Event {
    let source = event.source;
    let limit = event.limit.map(|limit| limit.rate.to_string());
    let what = match event.kind {
        EventKind::Limited => What::Limited { source, limit },
        EventKind::SetFull | EventKind::DestinationSetFull | EventKind::GroupSetFull => {
            What::SetFull { source }
        }
        EventKind::DestinationLimited => What::DestinationLimited { destination: source, limit },
        EventKind::GroupLimited => What::GroupLimited { group: source, limit },
    };
    Event::at(event.time, what)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Core;
    use crate::fake::Fake;
    use crate::rules::{Rules, confirm, limits, lists};
    use model::Limit;
    use model::lists::{Action, Listing};
    use telemetry::event::Kind;

    fn texts(core: &Core) -> Vec<String> {
        core.rules.events.changes().changes.iter().map(|event| event.what.to_string()).collect()
    }

    #[test]
    fn changes_are_remembered_with_who_made_them() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut core = fake.core(&directory);
        let mut heard = core.bus().events();
        core.rules.events.by = Some(By { uid: Some(7), user: "ann".into() });
        let limit = |rate: &str| {
            Limit::new("192.0.2.1".parse().unwrap(), rate.parse().unwrap(), None).unwrap()
        };
        let how =
            ChangeOptions { confirm: Some(Duration::from_secs(60)), ..ChangeOptions::default() };
        limits::set(&mut core.rules, &limit("5pps"), &how).unwrap();
        // Neither what changes nothing nor a dry run is a change.
        confirm::abort(&mut core.rules).unwrap();
        limits::set(
            &mut core.rules,
            &limit("5pps"),
            &ChangeOptions { dry_run: true, ..ChangeOptions::default() },
        )
        .unwrap();
        core.rules.events.by = None;
        let listing = Listing::new(Action::Deny, Some(Duration::from_secs(90)), None).unwrap();
        lists::add(
            &mut core.rules,
            &["192.0.2.9/32".parse().unwrap()],
            &listing,
            &ChangeOptions::default(),
        )
        .unwrap();
        let told = core.rules.events.changes().changes;
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
        core.rules.events.open_changes(directory.path());
        core.rules.events.tell_policy("one", &ChangeOptions::default(), None);
        core.rules.events.tell(What::Suppressed { kind: Kind::Limited, count: 3 });
        drop(core);
        let mut core = Fake::default().core(&directory);
        core.rules.events.open_changes(directory.path());
        core.rules.events.tell_policy("two", &ChangeOptions::default(), None);
        assert_eq!(texts(&core), ["one", "two"]);
    }

    #[test]
    fn memory_of_changes_is_bounded_and_a_flood_of_them_is_told_as_a_number() {
        let directory = tempfile::tempdir().unwrap();
        let mut core = Fake::default().core(&directory);
        let mut heard = core.bus().events();
        for i in 0..250 {
            core.rules.events.tell_policy(format!("change {i}"), &ChangeOptions::default(), None);
        }
        let texts = texts(&core);
        assert_eq!((texts.len(), texts[99].as_str()), (CHANGES, "change 249"));
        let sample = core.sample().unwrap();
        let Rules { events, plane, .. } = &mut core.rules;
        events.tell_of_sample(&sample, &**plane);
        let told: Vec<_> = std::iter::from_fn(|| heard.try_recv().ok()).collect();
        assert!((20..30).contains(&told.len()), "{}", told.len());
        let rest = 250 - (told.len() - 1) as u64;
        let What::Suppressed { count, .. } = told[told.len() - 1].what else { panic!("{told:?}") };
        assert_eq!(count, rest);
    }
}
